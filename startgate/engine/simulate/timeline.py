"""The clock of a simulation: what is due when. Time goes from one due thing to the next, and never by itself.

What always holds: things of one instant come out in one order, whatever the order in which they were put in; what is
due at the same instant is handed out together, so that nobody decides on a half of it.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final, TypeAlias

from startgate.engine.simulate.manifests import MICRO
from startgate.model.objects import timestamp

NAMELESS_DAY: Final = timestamp("2000-01-01T00:00:00Z")
"""When a simulation begins whose files name no time, for sentences that do."""

LATEST_BEGIN: Final = timestamp("3000-01-01T00:00:00Z")
LONGEST: Final = 1000 * 365 * 86_400 * MICRO
"""A thousand years: nothing is due later."""

Rank: TypeAlias = tuple[int, ...]
"""Order within one instant."""

EARLIER, HERE, AFTER, LATER = range(4)
"""Where ranks begin: who is gone makes way for who comes; who is gone as soon as it comes goes when all are there, with
all that is its own; what pods do of themselves comes last."""

Action: TypeAlias = Callable[[], None]


class Timeline:
    """What is due. Moments are whole microseconds since the beginning."""

    def __init__(self, begin: float) -> None:
        self.begin = min(begin, LATEST_BEGIN) or NAMELESS_DAY
        """Epoch seconds of moment 0."""
        self.now = 0
        self.sure = 0
        """How many things are in it that will change something, rather than only may."""
        self.due_owners: dict[str, None] = {}
        """Owners that a look which has come is about."""
        self._heap: list[tuple[int, Rank, int, Action, bool]] = []
        self._looks: set[tuple[int, str]] = set()
        self._serial = count()

    @property
    def epoch(self) -> float:
        """Now, in epoch seconds."""
        return self.begin + self.now / MICRO

    def at(self, moment: int, rank: Rank, action: Action, *, sure: bool = False) -> None:
        """Puts something in; what is due before now is due now."""
        moment = max(moment, self.now)
        if moment <= LONGEST:
            self.sure += sure
            heappush(self._heap, (moment, rank, next(self._serial), action, sure))

    def look(self, epoch: float, owner: str) -> None:
        """This owner is to be looked at again at this time (epoch seconds), or the first moment after it."""
        if not epoch < self.begin + LONGEST / MICRO:
            return
        moment = round((epoch - self.begin) * MICRO)
        while self.begin + moment / MICRO < epoch:
            moment += 1
        if moment > self.now and (moment, owner) not in self._looks:
            self._looks.add((moment, owner))
            self.at(moment, (), lambda: self._look(moment, owner))

    def _look(self, moment: int, owner: str) -> None:
        self._looks.discard((moment, owner))
        self.due_owners[owner] = None

    def next(self) -> int | None:
        """The next moment at which something is due."""
        return self._heap[0][0] if self._heap else None

    def due(self) -> list[Action]:
        """Goes to the next moment, and hands out what is due then."""
        self.now = self._heap[0][0]
        found = []
        while self._heap and self._heap[0][0] == self.now:
            _, _, _, action, sure = heappop(self._heap)
            self.sure -= sure
            found.append(action)
        return found

    def moment(self, epoch: float) -> int:
        """A time in epoch seconds as a moment; before the beginning it is negative."""
        return round((epoch - self.begin) * MICRO)
