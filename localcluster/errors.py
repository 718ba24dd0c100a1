"""What goes wrong here, as sentences that say what to do.

Whoever catches a ClusterError can show it to a person as it is.
"""

from __future__ import annotations


class ClusterError(Exception):
    """Something that a person has to know of; its text is a sentence."""


class ApiError(ClusterError):
    """The API server refused; `code` is its HTTP status."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
