"""Whose turn it is: level by level from the root, the child of least share that still has gangs that wait.

Children of the same share have their turn by that of the gang that they would give. In a queue: by priority, then age,
then name of the gang.

What always holds: each gang is given once; with the same shares the order is the same, however the gangs came. A turn
costs the depth of the tree times the logarithm of the siblings, so all turns together are linear in the gangs: of each
parent the children are in a heap, and only those on the way of a gang, or of a share that has moved, are put in anew.
"""

from collections.abc import Iterable
from fractions import Fraction
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import TypeAlias

from startgate.engine.fair import Seat, Share, Shares
from startgate.engine.world import Waiting

_Entry: TypeAlias = tuple[float, Fraction, int, float, str, int, "_Branch"]
"""A branch in its parent's heap: share, turn of the gang that it would give, and a serial number, so that two branches
are never compared. It is stale once its branch has another entry."""


class _Branch:
    """A seat with gangs that wait, in it or below it."""

    __slots__ = ("above", "entry", "gangs", "heap", "seat", "share")

    def __init__(self, seat: Seat, above: "_Branch | None") -> None:
        self.seat = seat
        self.above = above
        self.share: Share = seat.share()
        self.gangs: list[Waiting] = []
        """Of this seat itself, the next one last."""
        self.heap: list[_Entry] = []
        """Of its children, stale ones among them."""
        self.entry: _Entry | None = None
        """As it stands with its parent; None when all its gangs have been given."""

    def first(self) -> tuple[int, float, str] | None:
        """The turn of the gang that it would give."""
        if self.gangs:
            return _turn(self.gangs[-1])
        heap = self.heap
        while heap:
            top = heap[0]
            if top is top[-1].entry:
                return top[2:5]
            heappop(heap)
        return None


class Turns:
    """Gives the gangs in order, as the shares are meanwhile."""

    def __init__(self, shares: Shares, waiting: Iterable[Waiting]) -> None:
        self._shares = shares
        self._root = _Branch(shares.root, None)
        self._branches = {shares.root: self._root}
        self._serial = count()
        ends: dict[str, _Branch] = {}
        for gang in sorted(waiting, key=_turn, reverse=True):
            if gang.queue not in ends:
                ends[gang.queue] = self._grow(shares.seat(gang.queue))
            ends[gang.queue].gangs.append(gang)
        for branch in reversed(self._branches.values()):  # each after all below it
            branch.entry = self._entry(branch)
            if branch.above is not None and branch.entry is not None:
                heappush(branch.above.heap, branch.entry)

    def _grow(self, seat: Seat) -> _Branch:
        """The branch of this seat, with all that leads to it."""
        way = []
        for each in seat.path():
            if each in self._branches:
                break
            way.append(each)
        for each in reversed(way):
            assert each.parent is not None  # the root has its branch from the start
            self._branches[each] = _Branch(each, self._branches[each.parent])
        return self._branches[seat]

    def pop(self) -> Waiting | None:
        """The gang whose turn it is; None when each has had its turn."""
        branch = self._root
        while not branch.gangs:
            if branch.first() is None:
                return None
            branch = branch.heap[0][-1]
        gang = branch.gangs.pop()
        above = branch.above
        while above is not None:
            branch.entry = self._entry(branch)
            if branch.entry is None:
                heappop(above.heap)
            else:
                heapreplace(above.heap, branch.entry)
            branch, above = above, above.above
        return gang

    def moved(self, queue: str) -> None:
        """Says that the share of this queue, and of those above it, has changed."""
        for seat in self._shares.seat(queue).path():
            branch = self._branches.get(seat)
            if branch is None or branch.entry is None or branch.above is None:
                continue
            branch.share = seat.share()
            entry = self._entry(branch)
            if entry is not None and entry[:5] != branch.entry[:5]:
                branch.entry = entry
                heappush(branch.above.heap, entry)

    def heads(self) -> dict[str, str]:
        """By queue: the key of the gang that comes next in it or below it. Queues without gangs are left out."""
        return {
            seat.name: branch.entry[4]
            for seat, branch in self._branches.items()
            if branch.entry is not None and not seat.own and branch is not self._root
        }

    def _entry(self, branch: _Branch) -> _Entry | None:
        turn = branch.first()
        if turn is None:
            return None
        return (*branch.share, *turn, next(self._serial), branch)


def _turn(gang: Waiting) -> tuple[int, float, str]:
    return -gang.priority, gang.since, gang.gang
