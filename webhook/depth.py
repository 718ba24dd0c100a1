"""How deep is a queue? Beyond so many waiting pods a new Job had better wait without its own (design §3, Parked).

The controller writes into the Queue's status how many pods wait, a second or so late; beside that stands what this
process has let in since. A part of that is in the status already, so the greater of both counts, and not their sum: of
a burst as large as the limit none is parked, and a deep queue gets less than a limit's worth too many at worst. What
always holds: nobody is asked and nothing is awaited for this number. Where it is off (other replicas let Jobs in too,
the controller is away, a Job that was let in has started) a Job is parked too early or too late, and starts in its turn
all the same.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Final

LATE: Final = 2.0
"""Seconds after which what was let in is in the status, if one has come since: the controller looks once a second."""


class _Since:
    """Pods of one queue that were let in and may not be in its status yet."""

    __slots__ = ("older", "recent", "status_at")

    def __init__(self) -> None:
        self.older = 0
        """Let in longer than LATE ago, and no status has come since. One number, however long none comes."""
        self.recent: deque[tuple[float, int]] = deque()
        self.status_at = float("-inf")

    def settle(self, now: float) -> None:
        while self.recent and self.recent[0][0] <= now - LATE:
            at, pods = self.recent.popleft()
            if at > self.status_at:
                self.older += pods

    @property
    def pods(self) -> int:
        return self.older + sum(pods for _, pods in self.recent)


class Depths:
    """Pods that were let in, by queue."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, _Since] = {}

    def let_in(self, queue: str, pods: int) -> None:
        """A Job with so many pods comes to the queue."""
        now = self._clock()
        since = self._since.setdefault(queue, _Since())
        since.settle(now)
        since.recent.append((now, pods))

    def status_came(self, queue: str) -> None:
        """The controller has counted anew."""
        since = self._since.get(queue)
        if since is None:
            return
        since.status_at = self._clock()
        since.settle(since.status_at)
        since.older = 0
        if not since.recent:
            del self._since[queue]

    def forget(self, queue: str) -> None:
        """The queue is gone."""
        self._since.pop(queue, None)

    def waiting(self, queue: str, counted: int) -> int:
        """How many pods wait in the queue, where its status says `counted`."""
        since = self._since.get(queue)
        if since is None:
            return counted
        since.settle(self._clock())
        return max(counted, since.pods)
