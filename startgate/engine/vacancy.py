"""What is free on the nodes, and how many pods of a kind that is: now, on empty nodes, once gangs end.

The lower half of a room: it counts by what the nodes alone decide, and `fit` places. What always holds: what was taken
and given back leaves it as it was; the numbers of a kind follow only in the slots where something changed.
"""

from collections.abc import Hashable, Iterable
from typing import Any, Final

import numpy as np

from startgate.engine.cluster import Cluster
from startgate.engine.filters import demand
from startgate.engine.nodes import Bools, Ints
from startgate.engine.stock import Stock, asked_of
from startgate.engine.within import Best, best
from startgate.engine.world import Placement, Within
from startgate.model.shape import Shape

ABOVE_ALL: Final = 2**63
"""A priority that no pod has."""


class Vacancy:
    """At an instant. The cluster must not change while it is in use."""

    def __init__(self, cluster: Cluster, *, bare: bool = False) -> None:
        """`bare`: as if no pod were on any node."""
        self.cluster = cluster
        self._free = cluster.offers.copy() if bare else cluster.free()
        self._ours: Ints = np.zeros_like(cluster.ours) if bare else cluster.ours.copy()
        """What of the used is gangs', and so will be free some day."""
        self._stocks: dict[Shape, Stock] = {}
        self._asked: dict[Shape, tuple[Ints, Ints]] = {}
        self._version = int(bare)
        self._stamps: Ints = np.full(self._free.shape[1], self._version)
        """By slot: the version in which what is free there last changed; stocks catch up when they are asked."""
        self.memo: dict[Hashable, Any] = {}
        """What somebody has worked out of it as it is now; forgotten when it changes."""

    def _copy_into(self, twin: "Vacancy") -> None:
        twin.cluster = self.cluster
        twin._free = self._free.copy()
        twin._ours = self._ours.copy()
        twin._stocks = {shape: stock.copy() for shape, stock in self._stocks.items()}
        twin._asked = self._asked
        twin._stamps, twin._version = self._stamps.copy(), self._version
        twin.memo = dict(self.memo)

    def best_empty(self, shape: Shape, within: Within) -> Best:
        """The domain that would take the most pods of this shape if nothing were on the nodes."""
        return best(self.cluster, within, self.cluster.stocks.of(shape.plain).empty().by_slot)

    def fits_empty(self, shape: Shape) -> int:
        """How many pods of this shape the nodes would take if nothing were on them."""
        return self.cluster.stocks.of(shape.plain).empty().total

    def fits_cleared(self, shape: Shape, within: Within | None = None) -> int:
        """How many pods of this shape could be placed if no gang had pods on any node, when the decision began; never
        less than `fits`."""
        cleared = self.cluster.stocks.of(shape.plain).cleared()
        return self._sum(cleared.by_slot, within, cleared.total)

    def fits_with(self, shape: Shape, freed: Ints, within: Within | None = None) -> int:
        """How many pods of this shape could be placed if so much more (resources x slots) were free."""
        return self._sum(self.takes_with(shape, freed), within)

    def takes_with(self, shape: Shape, freed: Ints) -> Ints:
        """By slot: how many pods of this shape it would take then."""
        stock = self._stock(shape)
        rows = stock.rows[:, 0]
        return stock.count(np.maximum(self._free[rows], 0) + freed[rows], stock.mask)

    def _sum(self, fits: Ints, within: Within | None, total: int | None = None) -> int:
        """How many pods fit by how many each slot takes; `total`: all of them, if that is known."""
        if within is not None and within.key:
            return best(self.cluster, within, fits).pods
        return int(fits.sum()) if total is None else total

    def debt(self, placements: Iterable[Placement]) -> dict[str, int]:
        """By how much these pods' nodes are below zero, in what the pods ask for: others have to go first."""
        slots: dict[str, set[int]] = {}
        for placement in placements:
            for resource in placement.shape.amounts:
                slots.setdefault(resource, set()).update(self.cluster.slots[name] for name, _ in placement.nodes)
        owed = {
            resource: -sum(np.minimum(self._free[self.cluster.rows[resource], sorted(where)], 0).tolist())
            for resource, where in slots.items()
        }
        return {resource: count for resource, count in owed.items() if count}

    def amounts_on(self, placements: Iterable[Placement]) -> Ints:
        """What these pods ask for by node, resources x slots; on nodes that aren't known, nothing."""
        sums = np.zeros_like(self._free)
        slots = self.cluster.slots
        where: dict[Shape, list[tuple[int, int]]] = {}
        for placement in placements:
            known = [(slots[name], pods) for name, pods in placement.nodes if name in slots]
            where.setdefault(placement.shape, []).extend(known)
        for shape, known in where.items():
            rows, asked = self._costs(shape)
            there, pods = np.array(known, dtype=np.int64).reshape(-1, 2).T
            np.add.at(sums, (rows, there), asked * pods)
        return sums

    def matching(self, shape: Shape) -> Bools:
        """By slot: whether kube-scheduler's filters let such pods in, however full the node is."""
        return self.cluster.matching(demand(shape))

    def free(self, mask: Bools, resources: Iterable[str]) -> dict[str, int]:
        """What is free in sum on these nodes; an overcommitted node counts as having nothing."""
        sums = {}
        for resource in resources:
            row = self.cluster.rows.get(resource)
            sums[resource] = 0 if row is None else sum(np.maximum(self._free[row, mask], 0).tolist())
        return sums

    def offered(self, mask: Bools, resources: Iterable[str]) -> dict[str, int]:
        """What these nodes have in sum, whatever is on them."""
        rows = {resource: self.cluster.rows.get(resource) for resource in resources}
        return {
            resource: 0 if row is None else sum(self.cluster.offers[row, mask].tolist())
            for resource, row in rows.items()
        }

    def takes(self, shape: Shape) -> Ints:
        """By slot: how many of these pods it takes, as far as amounts and the nodes' own filters go. Not to be written
        into."""
        return self._stock(shape).fits

    def left(self, shape: Shape, *, nominated: bool = True) -> Ints:
        """What is free of what such a pod asks for (`stock.asked_of`), resources x slots. Without `nominated` as if
        nothing were kept for pods that are nominated; else for those of its priority or a higher one."""
        rows = self._costs(shape)[0][:, 0]
        free = self._free[rows]
        lent = self.cluster.lent(shape.priority if nominated else ABOVE_ALL)
        return free if lent is None else np.minimum(free + lent[rows], self.cluster.offers[rows])

    def _stock(self, shape: Shape) -> Stock:
        """The shape's numbers, up to date. Not to be written into."""
        kind = shape.plain
        stock = self._stocks.get(kind)
        if stock is None:
            base = self.cluster.stocks.of(kind)
            if not self._version:
                return base
            stock = self._stocks[kind] = base.copy()
            stock.seen = 0
        if stock.seen < self._version:
            stock.refresh(self._free, (self._stamps > stock.seen).nonzero()[0])
            stock.seen = self._version
        return stock

    def _then(self, shape: Shape) -> Ints:
        """By slot: how many of these pods it takes once gangs end."""
        stock = self._stock(shape)
        rows = stock.rows[:, 0]
        return stock.count(self._free[rows] + self._ours[rows], stock.mask)

    def _change(self, shape: Shape, slots: Ints, pods: Ints, *, ours: bool) -> None:
        """Gives room for so many pods back to each slot; negative: takes it. `ours`: of pods that are or were there."""
        rows, asked = self._costs(shape)
        np.add.at(self._free, (rows, slots), pods * asked)  # a slot may come more than once
        if ours:
            np.subtract.at(self._ours, (rows, slots), pods * asked)
        self._version += 1
        self.memo.clear()
        self._stamps[slots] = self._version

    def _costs(self, shape: Shape) -> tuple[Ints, Ints]:
        """Rows and amounts of what a pod of this shape asks for, without working out where it would fit."""
        kind = shape.plain
        found = self._asked.get(kind)
        if found is None:
            found = self._asked[kind] = asked_of(self.cluster, shape)
        return found
