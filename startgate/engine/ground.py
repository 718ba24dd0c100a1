"""Quota, fair shares and room together, as they stand at one point of a decision.

A decision goes on by changing this one thing, and a what-if changes it and puts it back. It can be looked at in two
ways: as it is now (`look_now`), where pods that leave still take their quota and room, and as it will be when they are
gone (`look_ahead`). Who starts is decided on the one, who has to give way on the other, so that nobody is made to leave
for what is about to be free. What always holds: books, shares and room tell of the same pods; what leaves counts in no
share; `lift` undoes `hold` exactly, and `restore` undoes `remove`.
"""

from collections.abc import Iterable, Sequence

import msgspec

from startgate.engine.fair import Shares
from startgate.engine.fit import Room
from startgate.engine.observe import amounts_of
from startgate.engine.quota import Books
from startgate.engine.world import Batch, ClaimKind, Holder, Placement, World
from startgate.model.resources import Amounts, add

UNPAID = frozenset({ClaimKind.BIND, ClaimKind.REPLACE})
"""Claims that nothing is held for: their pods are charged already, or somebody who leaves still pays for the slot."""


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Quota and room that are kept for a gang which can't start yet."""

    gang: str
    queue: str
    asks: Amounts
    placements: tuple[Placement, ...]
    """On nodes where, in part, others still are."""


class Unit(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What can give way at a time: a whole gang, or one pod of its surplus."""

    holder: Holder
    surplus: int
    """0: the gang; else the pod's number in Holder.surplus, from 1."""
    charge: Amounts
    placements: tuple[Placement, ...]
    pods: int


class Ground:
    """Books, shares and room of one world, used up as the decision goes on."""

    def __init__(self, world: World) -> None:
        """With everything that was admitted before in the books, whatever the limits say by now."""
        self.books = Books(world.queues, world.cluster.total())
        for queue, amounts in world.used.items():
            self.books.take(queue, amounts)
        for claim in world.claims:
            if claim.kind not in UNPAID:
                self.books.take(claim.queue, amounts_of(claim.batches))
        self._leaving = [
            (each.queue, each.leaving_charge, each.leaving) for each in world.holders if each.leaving_charge
        ]
        self._ahead = False
        self.shares = Shares(self.books, _leaving(world), _asked(world, self.books))
        self.room = Room(world.cluster)

    def look_now(self) -> None:
        """What leaves is still there."""
        if self._ahead:
            self._ahead = False
            for queue, charge, placements in self._leaving:
                self.books.take(queue, charge)
                self.room.use_up(placements)

    def look_ahead(self) -> None:
        """What leaves is gone."""
        if not self._ahead:
            self._ahead = True
            for queue, charge, placements in self._leaving:
                self.books.take(queue, negative(charge))
                self.room.free_up(placements)

    def leave(self, unit: Unit) -> None:
        """What has been removed, looking ahead, is on its way out: it is there when one looks at now."""
        self._leaving.append((unit.holder.queue, unit.charge, unit.placements))

    def take(self, queue: str, amounts: Amounts) -> None:
        """So much more is the queue's."""
        self.books.take(queue, amounts)
        self.shares.take(queue, amounts)

    def place(self, queue: str, batches: Sequence[Batch], asks: Amounts) -> tuple[Placement, ...] | None:
        """Room for these pods, taken, if quota and nodes have it for all of them; else None, with nothing changed."""
        if self.books.refusal(queue, asks) is not None:
            return None
        return self.room.place(batches)

    def fits(self, queue: str, batches: Sequence[Batch], asks: Amounts) -> bool:
        """Whether `place` would find it; nothing is taken."""
        placements = self.place(queue, batches, asks)
        if placements is None:
            return False
        self.room.free_up(placements)
        return True

    def hold(self, hold: Hold) -> None:
        """From now on nobody else gets it."""
        self.books.take(hold.queue, hold.asks)
        self.room.use_up(hold.placements)

    def lift(self, hold: Hold) -> None:
        """As if it weren't held."""
        self.books.take(hold.queue, negative(hold.asks))
        self.room.free_up(hold.placements)

    def remove(self, units: Iterable[Unit]) -> None:
        """As if these had ended."""
        for unit in units:
            self.take(unit.holder.queue, negative(unit.charge))
            self.room.free_up(unit.placements)

    def restore(self, units: Iterable[Unit]) -> None:
        """They are there after all."""
        for unit in units:
            self.take(unit.holder.queue, unit.charge)
            self.room.use_up(unit.placements)


def negative(amounts: Amounts) -> dict[str, int]:
    """The same with the other sign."""
    return {resource: -count for resource, count in amounts.items()}


def _leaving(world: World) -> dict[str, Amounts]:
    """By queue, what is charged still and on its way out."""
    sums: dict[str, Amounts] = {}
    for holder in world.holders:
        if holder.leaving_charge:
            sums[holder.queue] = add(sums.get(holder.queue, {}), holder.leaving_charge)
    return sums


def _asked(world: World, books: Books) -> dict[str, dict[str, int]]:
    """By queue, what its waiting gangs ask for: those that quota and nodes alone keep."""
    sums: dict[str, dict[str, int]] = {}
    closed = {gang.queue for gang in world.waiting if gang.queue not in world.queues or books.stopped_by(gang.queue)}
    for gang in world.waiting:
        if gang.obstacle is None and gang.queue not in closed:
            into = sums.setdefault(gang.queue, {})
            for batch in (*gang.minimum, *gang.extra):
                for resource, count in batch.shape.request:
                    into[resource] = into.get(resource, 0) + count * batch.count
    return sums
