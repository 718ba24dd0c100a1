"""Answers that are kept from decision to decision, as long as what they were made of is the same.

Most gangs of a deep queue wait for quota, and most of what changes in a cluster changes neither what queues have nor
which nodes there are. What always holds: what is known in a state was worked out in an equal one.
"""

from collections.abc import Hashable
from typing import Any, Final

MANY: Final = 8192
"""So many are kept; then all are forgotten, and worked out again where needed."""


class Kept:
    """Of one kind of questions."""

    def __init__(self) -> None:
        self._state: object = None
        self._known: dict[Hashable, Any] = {}

    def known(self, state: object) -> dict[Hashable, Any]:
        """What is known in this state (a value that nobody changes), to be added to."""
        if state != self._state or len(self._known) > MANY:
            self._state, self._known = state, {}
        return self._known
