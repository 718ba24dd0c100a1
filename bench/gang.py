"""One gang as the watch shows it: when its pods were made, bound, ended; and for how long it was bound in part.

Pure: it is told what was seen and when.
"""

from __future__ import annotations

import math


class Gang:
    """Times are those of one clock, in seconds."""

    __slots__ = ("_partly_since", "bound", "created", "ended", "partly_bound", "seen", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.created = math.nan
        """When its Job's create request was sent."""
        self.seen: set[str] = set()
        self.bound: dict[str, float] = {}
        """Its pods that have a node, and since when."""
        self.ended: set[str] = set()
        self.partly_bound = 0.0
        """The longest time in which it had nodes, but not for all of its pods."""
        self._partly_since: float | None = None

    @property
    def whole(self) -> bool:
        return len(self.bound) == self.size

    @property
    def latency(self) -> float:
        """From its create request to the binding of its last pod; for a whole gang."""
        return max(self.bound.values()) - self.created

    @property
    def spread(self) -> float:
        """From the binding of its first pod to that of its last; for a whole gang."""
        return max(self.bound.values()) - min(self.bound.values())

    def bind(self, pod: str, now: float) -> None:
        self.bound[pod] = now
        self._note(now)

    def lose(self, pod: str, now: float) -> None:
        """A pod that is gone before its end: its gang was taken back, or it was never bound."""
        self.seen.discard(pod)
        if self.bound.pop(pod, None) is not None:
            self._note(now)

    def close(self, now: float) -> None:
        """Nothing more will be seen. A gang that is bound in part now stays so for ever."""
        self._note(now)
        if self._partly_since is not None:
            self.partly_bound = math.inf

    def _note(self, now: float) -> None:
        if 0 < len(self.bound) < self.size:
            if self._partly_since is None:
                self._partly_since = now
        elif self._partly_since is not None:
            self.partly_bound = max(self.partly_bound, now - self._partly_since)
            self._partly_since = None
