"""Who could give way at all: what runs, by queue and in turn, and what starts only in this decision.

What always holds: a unit is given to one claimant only; what starts only in this decision goes first, since nobody has
to leave for it; and a bound says no only where no choice among a queue's units could be enough.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from startgate.engine.draft import batches_of
from startgate.engine.fit import by_shape
from startgate.engine.ground import FRESH, SURPLUS, WHOLE, Ground, Unit, negative
from startgate.engine.nodes import Ints
from startgate.engine.observe import amounts_of
from startgate.engine.within import within_of
from startgate.engine.world import Batch, Holder, Placement, Waiting, Within
from startgate.model.resources import Amounts, add, subtract
from startgate.model.shape import Shape


class Victims:
    """All that could be taken, less what has been told to go in this decision."""

    def __init__(self, ground: Ground, holders: Iterable[Holder]) -> None:
        self._ground = ground
        self._holders: dict[str, list[Holder]] = {}
        for holder in [each for each in holders if each.takeable]:
            self._holders.setdefault(holder.queue, []).append(holder)
        self._lowest = {queue: min([each.priority for each in held]) for queue, held in self._holders.items()}
        self._piles: dict[str, list[Unit]] = {}
        self._new: dict[str, tuple[Waiting, tuple[Placement, ...]]] = {}
        """Who starts in this decision, and where."""
        self._fresh_units: dict[str, Unit] = {}
        self._started: list[Placement] = []
        """Of all that ever were fresh."""
        self._gone: set[tuple[str, int]] = set()
        """(gang, surplus number) of what has been told to go."""
        self._sums: dict[str, tuple[Amounts, Ints]] = {}
        self._freed: dict[frozenset[str], Ints] = {}
        self._most: dict[tuple[frozenset[str], Shape, Within | None], int] = {}

    def queues(self) -> Iterable[str]:
        """Those that have something to give."""
        return dict.fromkeys((*self._holders, *(gang.queue for gang, _ in self._new.values())))

    def lowest(self, queue: str) -> int | None:
        """No gang of this queue that could be taken has a lower priority; None where there is none."""
        return self._lowest.get(queue)

    def start(self, gang: Waiting, pods: tuple[Placement, ...]) -> None:
        """This gang starts in this decision; it may have to wait instead."""
        self._started += pods
        self._lowest[gang.queue] = min(gang.priority, self._lowest.get(gang.queue, gang.priority))
        self._new[gang.gang] = gang, pods

    def _fresh(self) -> Iterable[Unit]:
        """What starts in this decision; most decisions never ask."""
        for key, (gang, pods) in self._new.items():
            if key not in self._fresh_units:
                self._fresh_units[key] = _fresh_unit(gang, pods)
        return [self._fresh_units[key] for key in self._new]

    def take(self, units: Iterable[Unit]) -> None:
        """These have been told to go, or not to start."""
        for unit in units:
            if unit.fresh:
                del self._new[unit.holder.gang], self._fresh_units[unit.holder.gang]
            else:
                self._gone.add((unit.holder.gang, unit.surplus))

    def fresh(self, queues: Iterable[str]) -> Iterator[Unit]:
        """Who starts only in this decision, of these queues."""
        wanted = set(queues)
        units = [unit for unit in self._fresh() if unit.holder.queue in wanted]
        yield from sorted(units, key=attrgetter("turn"))

    def in_turn(self, queues: Iterable[str]) -> Iterator[Unit]:
        """What these queues could give, in the order in which it would go."""
        wanted = set(queues)
        yield from self.fresh(wanted)
        piles = [self._pile(queue) for queue in self._holders if queue in wanted]
        for unit in heapq.merge(*piles, key=attrgetter("turn")):
            if not self._is_gone(unit):
                yield unit

    def could_do(self, queues: frozenset[str], queue: str, batches: Sequence[Batch], asks: Amounts) -> bool:
        """Whether these pods of this queue would fit with everything gone that those queues could give.

        Worked out once for each set of queues and shape: what is free only shrinks as a decision goes on.
        """
        within = within_of(batches)
        if any(self._bound(queues, shape, within) < count for shape, count in by_shape(batches).items()):
            return False
        books = self._ground.ahead.books
        if books.refusal(queue, asks) is None:
            return True
        freed = {each: negative(self._sum(each)[0]) for each in queues}
        for unit in self._fresh():
            if unit.holder.queue in freed:
                freed[unit.holder.queue] = subtract(freed[unit.holder.queue], unit.charge)
        for each, amounts in freed.items():
            books.take(each, amounts)
        possible = books.refusal(queue, asks) is None
        for each, amounts in freed.items():
            books.take(each, negative(amounts))
        return possible

    def _bound(self, queues: frozenset[str], shape: Shape, within: Within | None) -> int:
        key = (queues, shape, within)
        if key not in self._most:
            self._most[key] = self._ground.ahead.room.fits_with(shape, self.freed(queues), within)
        return self._most[key]

    def freed(self, queues: frozenset[str]) -> Ints:
        """What would be free in addition, by node (resources x slots), with everything gone that they could give."""
        if queues not in self._freed:
            parts = [self._sum(queue)[1] for queue in sorted(queues)]
            self._freed[queues] = sum(parts[1:], parts[0])
        freed = self._freed[queues]
        return freed + self._ground.ahead.room.amounts_on(self._started) if self._started else freed

    def _sum(self, queue: str) -> tuple[Amounts, Ints]:
        """All that runs in the queue and could be taken: by quota, and by node."""
        found = self._sums.get(queue)
        if found is None:
            held = self._holders.get(queue, [])
            placements = [placement for holder in held for placement in holder.pods]
            amounts = self._ground.ahead.room.amounts_on(placements)
            found = self._sums[queue] = (add(*(holder.charge for holder in held)), amounts)
        return found

    def _pile(self, queue: str) -> list[Unit]:
        pile = self._piles.get(queue)
        if pile is None:
            pile = [unit for holder in self._holders[queue] for unit in _units(holder)]
            pile.sort(key=attrgetter("turn"))
            self._piles[queue] = pile
        while pile and self._is_gone(pile[0]):
            pile.pop(0)
        return pile

    def _is_gone(self, unit: Unit) -> bool:
        gang = unit.holder.gang
        return (gang, 0) in self._gone or (gang, unit.surplus) in self._gone


def _fresh_unit(gang: Waiting, pods: tuple[Placement, ...]) -> Unit:
    charge = amounts_of(batches_of(pods))
    holder = Holder(
        gang=gang.gang, queue=gang.queue, priority=gang.priority, since=gang.since, charge=charge, pods=pods
    )
    turn = (FRESH, gang.priority, -gang.since, gang.gang, 0)
    return Unit(holder=holder, surplus=0, charge=charge, placements=pods, turn=turn)


def _units(holder: Holder) -> Iterator[Unit]:
    rest, pods = dict(holder.charge), holder.pods
    order = (holder.priority, -holder.since, holder.gang)
    for number, placement in enumerate(holder.surplus, 1):
        rest = subtract(rest, placement.shape.amounts)
        pods = _without(pods, placement)
        turn = (SURPLUS, *order, number)
        yield Unit(holder=holder, surplus=number, charge=placement.shape.amounts, placements=(placement,), turn=turn)
    yield Unit(holder=holder, surplus=0, charge=rest, placements=pods, turn=(WHOLE, *order, 0))


def _without(pods: tuple[Placement, ...], one: Placement) -> tuple[Placement, ...]:
    """These pods but for one."""
    node = one.nodes[0][0]
    left = []
    for placement in pods:
        if placement.shape is one.shape:
            nodes = tuple((name, count - (name == node)) for name, count in placement.nodes)
            left.append(Placement(placement.shape, tuple(each for each in nodes if each[1])))
        else:
            left.append(placement)
    return tuple(left)
