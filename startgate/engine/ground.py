"""Quota, fair shares and room together, as they stand at one point of a decision.

A decision goes on by changing this one thing, and a what-if changes it and puts it back. It can be looked at in two
ways: as it is `now`, where pods that leave still take their quota and room, and as it will be `ahead`, when they are
gone. Who starts is decided on the one, who has to give way on the other, so that nobody is made to leave
for what is about to be free. What always holds: books, shares and room tell of the same pods; what leaves counts in no
share; `lift` undoes `hold` exactly, and `restore` undoes `remove`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from startgate.engine.fair import Shares
from startgate.engine.fit import Room
from startgate.engine.observe import amounts_of
from startgate.engine.quota import Books
from startgate.engine.tree import ROOT
from startgate.engine.world import Batch, ClaimKind, Holder, Placement, Waiting, World
from startgate.model.resources import Amounts, add, subtract

UNPAID = frozenset({ClaimKind.BIND, ClaimKind.REPLACE})
"""Claims that nothing is held for: their pods are charged already, or somebody who leaves still pays for the slot."""


Places: TypeAlias = Sequence[tuple[str, int]]
"""(node name, how many): where to try first."""

FRESH, SURPLUS, WHOLE = range(3)


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Quota and room that are kept for a gang which can't start yet."""

    gang: str
    queue: str
    asks: Amounts
    placements: tuple[Placement, ...]
    """On nodes where, in part, others still are."""
    relief: Amounts = {}
    """What others have to free on those nodes first, and so in the cluster as a whole: the root isn't charged for it
    a second time. What a guarantee covers it isn't charged for at all, so that relieves it of nothing."""


class Unit(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What can give way at a time: a whole gang, or one pod of its surplus."""

    holder: Holder
    surplus: int
    """0: the gang; else the pod's number in Holder.surplus, from 1."""
    charge: Amounts
    placements: tuple[Placement, ...]
    turn: tuple[int, int, float, str, int] = (WHOLE, 0, 0.0, "", 0)
    """Who goes first: what starts only in this decision, then surplus, then whole gangs; of these the lowest priority,
    then the youngest."""

    @property
    def fresh(self) -> bool:
        """Whether it would start in this very decision: then nobody has to leave, it just doesn't start."""
        return self.turn[0] == FRESH

    @property
    def pods(self) -> int:
        return sum(count for placement in self.placements for _, count in placement.nodes)


class View:
    """Quota and room, one way of looking at them."""

    __slots__ = ("_relieved", "books", "room")

    def __init__(self, books: Books, room: Room) -> None:
        self.books = books
        self.room = room
        self._relieved: dict[str, Amounts] = {}
        """By gang for which something is held: what the root was relieved of."""

    def copy(self) -> "View":
        twin = View(self.books.copy(), self.room.copy())
        twin._relieved = dict(self._relieved)
        return twin

    def hold(self, hold: Hold) -> None:
        """Keeps it."""
        before = dict(self.books.root.inner)
        self.books.take(hold.queue, hold.asks)
        if hold.relief:
            rise = subtract(self.books.root.inner, before)
            relief = self._relieved[hold.gang] = {each: min(count, rise[each]) for each, count in hold.relief.items()}
            self.books.take(ROOT, negative(relief))
        self.room.keep(hold.placements)

    def lift(self, hold: Hold) -> None:
        """Undoes `hold`."""
        if hold.relief:
            self.books.take(ROOT, self._relieved.pop(hold.gang))
        self.books.take(hold.queue, negative(hold.asks))
        self.room.let_go(hold.placements)

    def place(
        self, queue: str, batches: Sequence[Batch], asks: Amounts, places: Places = ()
    ) -> tuple[Placement, ...] | None:
        """Room for these pods, taken, if quota and nodes have it for all of them; else None, with nothing changed."""
        if self.books.refusal(queue, asks) is not None:
            return None
        return self.room.place(batches, places)

    def fits(self, queue: str, batches: Sequence[Batch], asks: Amounts) -> bool:
        """Whether `place` would find it; nothing is taken."""
        placements = self.place(queue, batches, asks)
        if placements is None:
            return False
        self.room.free_up(placements)
        return True

    def remove(self, unit: Unit) -> None:
        """As if it had ended."""
        self.books.take(unit.holder.queue, negative(unit.charge))
        self.room.free_up(unit.placements)

    def restore(self, unit: Unit) -> None:
        """It is there after all."""
        self.books.take(unit.holder.queue, unit.charge)
        self.room.use_up(unit.placements)


class Ground:
    """The two views of one world, and its shares, used up as the decision goes on.

    As long as nothing leaves they are one view. What is changed here is changed in both, but for what leaves.
    """

    def __init__(self, world: World) -> None:
        """With everything that was admitted before in the books, whatever the limits say by now."""
        books = Books(world.queues, world.cluster.total())
        for queue, amounts in world.used.items():
            books.take(queue, amounts)
        for claim in world.claims:
            if claim.kind not in UNPAID:
                books.take(claim.queue, amounts_of(claim.batches))
        self._going = [holder for holder in world.holders if holder.leaving_charge]
        self.now = View(books, Room(world.cluster))
        self._ahead: View | None = None
        self.owed: dict[str, list[Batch]] = {}
        """By gang: pods that were admitted, or are to start when others have left, and have no place: they take the
        next room that comes up, before all who wait."""
        self.shares = Shares(books, _leaving(self._going), _asked(world, books), world.cluster.outside())

    @property
    def ahead(self) -> View:
        """How it will be when what leaves is gone."""
        if self._ahead is None:
            self._ahead = self.now
            if self._going:
                self._ahead = self.now.copy()
                for holder in self._going:
                    self._ahead.books.take(holder.queue, negative(holder.leaving_charge))
                    self._ahead.room.free_up(holder.leaving)
        return self._ahead

    @property
    def parted(self) -> bool:
        """Whether anything leaves, so that there are two views."""
        return self.ahead is not self.now

    def _views(self) -> tuple[View, ...]:
        return (self.now,) if self._ahead in (None, self.now) else (self.now, self.ahead)

    def take(self, queue: str, amounts: Amounts) -> None:
        """So much more is the queue's."""
        for view in self._views():
            view.books.take(queue, amounts)
        self.shares.take(queue, amounts)

    def place(self, batches: Sequence[Batch], places: Places = ()) -> tuple[Placement, ...] | None:
        """Room for these pods now, taken; None, with nothing changed, where there isn't enough for all."""
        placements = self.now.room.place(batches, places)
        if placements is not None:
            self._mirror(self.now, placements)
        return placements

    def place_some(self, batch: Batch) -> Placement:
        """Room for as many of these pods as fit now."""
        placement = self.now.room.place_some(batch.shape, batch.count, batch.within)
        self._mirror(self.now, (placement,))
        return placement

    def foresee(self, batches: Sequence[Batch], places: Places) -> tuple[Placement, ...]:
        """Room for these pods once what leaves is gone, taken for a while; nothing where there isn't enough."""
        placements = self.ahead.room.place(batches, places) or ()
        self._mirror(self.ahead, placements)
        return placements

    def free_up(self, placements: Sequence[Placement]) -> None:
        """Gives room back that was taken."""
        for view in self._views():
            view.room.free_up(placements)

    def place_ahead(
        self, queue: str, batches: Sequence[Batch], asks: Amounts, places: Places = ()
    ) -> tuple[Placement, ...] | None:
        """Room for these pods, and quota, once what leaves is gone; both are taken. None where that isn't enough."""
        placements = self.ahead.place(queue, batches, asks, places)
        if placements is not None:
            self._mirror(self.ahead, placements)
            self.take(queue, asks)
        return placements

    def owe(self, gang: str, batches: Iterable[Batch]) -> None:
        """These pods of this gang have no place."""
        if owed := [batch for batch in batches if batch.count > 0]:
            self.owed.setdefault(gang, []).extend(owed)

    def settle(self, gang: str) -> None:
        """It has its place by now."""
        self.owed.pop(gang, None)

    def others_owed(self, gang: str) -> list[Placement]:
        """What pods that are owed to others than this gang take of the room ahead, taken for a while."""
        batches = [batch for other, owed in self.owed.items() if other != gang for batch in owed]
        return [self.ahead.room.place_some(batch.shape, batch.count, batch.within) for batch in batches]

    def so_that_all_fit(self, gangs: Sequence[Waiting]) -> Sequence[Waiting]:
        """Gangs for which others gave way, as they come; but who has no place after the others goes before them, if
        that gives each a place: it was proved that there is one."""
        order = gangs
        for _ in gangs if len(gangs) > 1 else ():
            found = self._first_without(order)
            if found is None:
                return order
            order = [found, *(gang for gang in order if gang is not found)]
        return gangs

    def _first_without(self, order: Sequence[Waiting]) -> Waiting | None:
        """The first that has no place once those before it have theirs and all that leaves is gone."""
        taken, found = [], None
        for gang in order:
            asks = amounts_of(gang.minimum)
            placements = self.place_ahead(gang.queue, gang.minimum, asks, gang.places)
            if placements is None:
                found = gang
                break
            taken.append((gang.queue, asks, placements))
        for queue, asks, placements in taken:
            self.free_up(placements)
            self.take(queue, negative(asks))
        return found

    def _mirror(self, made_in: View, placements: Sequence[Placement]) -> None:
        for view in self._views():
            if view is not made_in:
                view.room.use_up(placements)

    def hold(self, hold: Hold) -> None:
        """From now on nobody else gets it."""
        for view in self._views():
            view.hold(hold)

    def lift(self, hold: Hold) -> None:
        """As if it weren't held."""
        for view in self._views():
            view.lift(hold)

    def keep_ahead(self, gang: str, queue: str, batches: Sequence[Batch], asks: Amounts) -> Hold | None:
        """Quota, and the nodes on which such pods will be once gangs end, are held; None where there are none."""
        room = self.now.room
        placements = room.ahead(batches)
        if placements is None:
            return None
        owed = room.debt(placements)
        room.let_go(placements)
        relief = {each: min(asks[each], count) for each, count in owed.items() if each in asks}
        hold = Hold(gang=gang, queue=queue, asks=asks, placements=placements, relief=relief)
        self.hold(hold)
        return hold

    def remove(self, units: Iterable[Unit], *, now: bool = False) -> None:
        """Looking ahead, as if these had ended (with `now`, as if they were gone already); their queues' shares are
        less for it."""
        for unit in units:
            for view in self._views() if now else (self.ahead,):
                view.remove(unit)
            self.shares.take(unit.holder.queue, negative(unit.charge))

    def restore(self, units: Iterable[Unit], *, now: bool = False) -> None:
        """They are there after all."""
        for unit in units:
            for view in self._views() if now else (self.ahead,):
                view.restore(unit)
            self.shares.take(unit.holder.queue, unit.charge)

    def leave(self, units: Sequence[Unit]) -> None:
        """What has been removed is on its way out: from now on the two views differ by it. What was fresh is gone."""
        stay = [unit for unit in units if not unit.fresh]
        if self.ahead is not self.now:
            for unit in units:
                if unit.fresh:
                    self.now.remove(unit)
        elif stay:
            self._ahead = self.now.copy()
            for unit in stay:
                self.now.restore(unit)


def negative(amounts: Amounts) -> dict[str, int]:
    """The same with the other sign."""
    return {resource: -count for resource, count in amounts.items()}


def _leaving(going: Iterable[Holder]) -> dict[str, Amounts]:
    """By queue, what is charged still and on its way out."""
    sums: dict[str, Amounts] = {}
    for holder in going:
        sums[holder.queue] = add(sums.get(holder.queue, {}), holder.leaving_charge)
    return sums


def _asked(world: World, books: Books) -> dict[str, dict[str, int]]:
    """By queue, what its waiting gangs ask for (those that quota and nodes alone keep), and pods that replace others.

    What they replace doesn't count, since it leaves; so a restart would cost the queue what it deserves.
    """
    alike = Counter([gang.asked for gang in world.waiting if gang.obstacle is None])
    open_ = {queue: queue in world.queues and not books.stopped_by(queue) for queue, _ in alike}
    sums: dict[str, dict[str, int]] = {}
    for claim in world.claims:
        if claim.kind is ClaimKind.REPLACE:
            sums[claim.queue] = add(sums.get(claim.queue, {}), amounts_of(claim.batches))
    for (queue, batches), times in alike.items():
        if open_[queue]:
            into = sums.setdefault(queue, {})
            for resource, count in amounts_of(batches).items():
                into[resource] = into.get(resource, 0) + count * times
    return sums
