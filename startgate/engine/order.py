"""Whose turn it is: level by level from the root, the child of least share that still has gangs that wait.

Children of the same share have their turn by that of the gang that they would give. In a queue: by priority, then age,
then name of the gang.

What always holds: each gang is given once; with the same shares the order is the same, however the gangs came. A turn
costs the depth of the tree times the logarithm of the siblings at most, so all turns together are linear in the gangs.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import accumulate, count, groupby
from operator import attrgetter, itemgetter
from typing import NamedTuple, TypeAlias

from startgate.engine.fair import Seat, Share, Shares
from startgate.engine.world import Waiting

_Entry: TypeAlias = tuple[Share, int, float, str, int, "_Branch"]
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
            return self.gangs[-1].turn
        heap = self.heap
        while heap:
            top = heap[0]
            if top is top[-1].entry:
                return top[1:4]
            heappop(heap)
        return None


class _Line(NamedTuple):
    """Gangs in their order, as long as no share moves."""

    keys: list[int]
    """The largest rank so far, up to and with each of them: gangs behind others of their branch wait for those."""
    ends: list[_Branch]
    """Whose next gang it is."""


class Turns:
    """Gives the gangs in order, as the shares are meanwhile.

    As long as no share moves, they stand in line: the whole order is worked out at once, by sorting. With the first
    that moves, the children of each parent go into a heap, and from then on only those on the way of a gang, or of a
    share that has moved, are put in anew.
    """

    def __init__(self, shares: Shares, waiting: Iterable[Waiting]) -> None:
        self._shares = shares
        self._root = _Branch(shares.root, None)
        self._branches = {shares.root: self._root}
        self._serial = count()
        ranks: dict[_Branch, list[int]] = {}
        ends: dict[str, _Branch] = {}
        for rank, gang in enumerate(sorted(waiting, key=attrgetter("turn"))):
            if gang.queue not in ends:
                ends[gang.queue] = self._grow(shares.seat(gang.queue))
            branch = ends[gang.queue]
            branch.gangs.append(gang)
            ranks.setdefault(branch, []).append(rank)
        for branch in ranks:
            branch.gangs.reverse()
        self._line: list[_Branch] | None = self._in_line(ranks)
        """For each gang, the next one last, the branch that it is the next of."""
        self._given: _Branch | None = None
        """Whose gang was given last, as long as it has its old place in its parent's heap: at the top."""

    def _grow(self, seat: Seat) -> _Branch:
        """The branch of this seat, with all that leads to it."""
        way = []
        for each in seat.path:
            if each in self._branches:
                break
            way.append(each)
        for each in reversed(way):
            assert each.parent is not None  # the root has its branch from the start
            self._branches[each] = _Branch(each, self._branches[each.parent])
        return self._branches[seat]

    def _in_line(self, ranks: dict[_Branch, list[int]]) -> list[_Branch]:
        """`ranks`: by branch, the places of its own gangs in the order by turn alone."""
        below: dict[_Branch, list[tuple[Share, _Line]]] = {}
        line = _Line([], [])
        for branch in reversed(self._branches.values()):  # each after all below it
            own = ranks.get(branch, ())
            line = _joined(_Line([*own], [branch] * len(own)), below.pop(branch, ()))
            if branch.above is not None:
                below.setdefault(branch.above, []).append((branch.share, line))
        line.ends.reverse()
        return line.ends

    def pop(self) -> Waiting | None:
        """The gang whose turn it is; None when each has had its turn."""
        if self._line is not None:
            return self._line.pop().gangs.pop() if self._line else None
        self._follow()
        branch = self._root
        while not branch.gangs:
            if branch.first() is None:
                return None
            branch = branch.heap[0][-1]
        self._given = branch
        return branch.gangs.pop()

    def _follow(self) -> None:
        """Puts the branches that gave the last gang in their places by what they would give next."""
        branch, self._given = self._given, None
        while branch is not None and branch.above is not None:
            branch.entry = self._entry(branch)
            if branch.entry is None:
                heappop(branch.above.heap)
            else:
                heapreplace(branch.above.heap, branch.entry)
            branch = branch.above

    def moved(self, queue: str) -> None:
        """Says that the share of this queue, and of those above it, has changed."""
        way = [self._branches[seat] for seat in self._shares.seat(queue).path if seat in self._branches]
        if self._line is not None:
            if all(branch.share == branch.seat.share() for branch in way):
                return
            self._line = None
            for branch in way:
                branch.share = branch.seat.share()
            self._heap_up()
            return
        for branch in way:
            branch.share = branch.seat.share()
        if self._given is not None and way and way[0] is self._given:
            self._follow()
            return
        self._follow()
        for branch in way:
            if branch.entry is None or branch.above is None:
                continue
            entry = self._entry(branch)
            if entry is not None and entry[:4] != branch.entry[:4]:
                branch.entry = entry
                heappush(branch.above.heap, entry)

    def _heap_up(self) -> None:
        for branch in reversed(self._branches.values()):  # each after all below it
            branch.entry = self._entry(branch)
            if branch.above is not None and branch.entry is not None:
                heappush(branch.above.heap, branch.entry)

    def _entry(self, branch: _Branch) -> _Entry | None:
        turn = branch.first()
        if turn is None:
            return None
        return (branch.share, *turn, next(self._serial), branch)


def _joined(own: _Line, children: Sequence[tuple[Share, _Line]]) -> _Line:
    """One line of a branch's own gangs and of its children's: the child of least share first; of those with the same
    share at each place the one whose next gang has the lowest rank."""
    lines = [own] if own.ends else []
    by_share = itemgetter(0)
    for _, alike in groupby(sorted(children, key=by_share), key=by_share):
        lines.append(_merged([line for _, line in alike]))
    if len(lines) == 1:
        return lines[0]
    keys = [key for line in lines for key in line.keys]
    return _Line(list(accumulate(keys, max)), [end for line in lines for end in line.ends])


def _merged(lines: Sequence[_Line]) -> _Line:
    """Who has come up to a key stands before all whose key is larger: so to merge by the next of each is to sort."""
    if len(lines) == 1:
        return lines[0]
    keys = [key for line in lines for key in line.keys]
    ends = [end for line in lines for end in line.ends]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return _Line([keys[i] for i in order], [ends[i] for i in order])
