"""What time it is, for a process that goes on while somebody sets the machine's clock.

Times stand in Gangs and are read by people and by the next leader, so they are epoch seconds; but spans are measured
with them too: a start timeout, a back-off, the pause after a refusal. What always holds: between two readings about as
much passes as has really passed, a quarter more or half of it less; and a clock that was set is followed, a little at a
time. Back faster than forward: that a gang has more time for its start harms nobody, that it has less may.
"""

import time
from collections.abc import Callable
from typing import Final

from startgate.kube.election import steady

FORWARD: Final = 0.25
BACK: Final = 0.5
"""Seconds by which it draws nearer to the machine's clock, for each second that passes. Clocks that are kept right by
small steps are followed at once, in effect; one that was set by an hour, in four hours or two."""


class Clock:
    """Call it for the epoch seconds. It begins with what the machine's clock (`wall`) says."""

    def __init__(self, wall: Callable[[], float] = time.time, passing: Callable[[], float] = steady) -> None:
        self._wall = wall
        self._passing = passing
        self._read_at = passing()
        self._offset = wall() - self._read_at

    def __call__(self) -> float:
        now = self._passing()
        passed = now - self._read_at
        self._read_at = now
        self._offset += max(-BACK * passed, min(FORWARD * passed, self._wall() - now - self._offset))
        return now + self._offset
