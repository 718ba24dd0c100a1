"""Room: what is free on the nodes, and where pods would go. A scratch copy that a decision may use up and give back.

Identical pods are placed as a class: how many of them a node takes is one division per resource, for all nodes at
once, and is kept up to date as pods are placed. What always holds:

* No node gives more than it has free, and none takes a pod that kube-scheduler's filters would keep away from it.
* For pods of one shape the answer is exact: `fits` is how many can be placed, by whatever method; where other pods have
  a say in it, as exact as `constraints` is.
* For several shapes together it is careful: a yes is a placement; a no may be one that a cleverer search would find.
* The same room and the same question give the same placement.
"""

from collections.abc import Iterable, Sequence
from itertools import islice, permutations
from typing import Final

import numpy as np

from startgate.engine.cluster import Cluster
from startgate.engine.filters import demand
from startgate.engine.nodes import Bools, Ints
from startgate.engine.stock import NOWHERE, Stock, asked_of
from startgate.engine.surroundings import Surroundings
from startgate.engine.world import Batch, Placement
from startgate.model.shape import Shape

ENOUGH: Final = 2**20

ORDERS: Final = 6
"""So many orders of the shapes of a mixed gang are tried."""

FEW: Final = 6
"""So many nodes are looked for one by one; for more, all are put in order."""


class Room:
    """What is free at an instant. The cluster must not change while its room is in use."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._free = cluster.free()
        self._ours: Ints = cluster.ours.copy()
        """What of the used is gangs', and so will be free some day."""
        self._stocks: dict[Shape, Stock] = {}
        self._asked: dict[Shape, tuple[Ints, Ints]] = {}
        self._around = Surroundings(cluster)
        self._stamps: Ints = np.zeros(self._free.shape[1], dtype=np.int64)
        """By slot: the version in which what is free there last changed; stocks catch up when they are asked."""
        self._version = 0

    def copy(self) -> "Room":
        """Another one like this; what is placed in either isn't seen in the other."""
        twin = Room.__new__(Room)
        twin.cluster = self.cluster
        twin._free = self._free.copy()
        twin._ours = self._ours.copy()
        twin._stocks = {shape: stock.copy() for shape, stock in self._stocks.items()}
        twin._asked = self._asked
        twin._around = self._around.copy()
        twin._stamps, twin._version = self._stamps.copy(), self._version
        return twin

    def kind(self, shape: Shape) -> Shape:
        """What all that have the same answers here have in common: whether they have room, and why not."""
        return shape if self._around.concern(shape) else shape.plain

    def kinds(self, batches: Sequence[Batch]) -> tuple[Batch, ...]:
        """The batches that aren't empty, by what their pods are here."""
        return tuple([Batch(self.kind(batch.shape), batch.count) for batch in batches if batch.count > 0])

    def fits(self, shape: Shape, up_to: int = ENOUGH) -> int:
        """How many pods of this shape can be placed now; where other pods have a say, what is beyond `up_to` isn't
        looked for, and it is as exact as `constraints.most`."""
        stock = self._stock(shape)
        return self._around.most(shape, up_to, stock.fits) if self._around.concern(shape) else stock.total

    def concern(self, shape: Shape) -> bool:
        """Whether such a pod's place depends on more than what the nodes have free."""
        return self._around.concern(shape)

    def fits_empty(self, shape: Shape) -> int:
        """How many pods of this shape the nodes would take if nothing were on them."""
        return self.cluster.stocks.of(shape.plain).empty()

    def fits_cleared(self, shape: Shape) -> int:
        """How many pods of this shape could be placed if no gang had pods on any node, when the decision began; never
        less than `fits`."""
        return self.cluster.stocks.of(shape.plain).cleared()

    def fits_with(self, shape: Shape, freed: Ints) -> int:
        """How many pods of this shape could be placed if so much more (resources x slots) were free."""
        stock = self._stock(shape)
        rows = stock.rows[:, 0]
        return int(stock.count(np.maximum(self._free[rows], 0) + freed[rows], stock.mask).sum())

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
        where: dict[Shape, tuple[list[int], list[int]]] = {}
        for placement in placements:
            slots, counts = where.setdefault(placement.shape, ([], []))
            for name, pods in placement.nodes:
                slot = self.cluster.slots.get(name)
                if slot is not None:
                    slots.append(slot)
                    counts.append(pods)
        for shape, (slots, counts) in where.items():
            rows, asked = self._costs(shape)
            np.add.at(sums, (rows, np.array(slots, dtype=np.int64)), asked * np.array(counts, dtype=np.int64))
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

    def place(self, batches: Sequence[Batch]) -> tuple[Placement, ...] | None:
        """Takes room for all of these pods together, or for none of them (None).

        Placements are in the order of the batches. Best fit: nodes that would have the least left over come
        first, so that the largest whole nodes stay free. The hardest shape is placed first: the one with the
        largest share of an average node in one resource, then the one with the fewest nodes to go to.
        """
        counts = by_shape(batches)
        if any(self._stock(shape).total < count for shape, count in counts.items()):
            return None
        taken = next((found for order in self._orders(counts) if (found := self._take_all(order, counts))), None)
        if taken is None:
            return None
        if len(batches) == len(taken):
            return tuple(self._placement(batch.shape, *taken[batch.shape]) for batch in batches)
        return self._dealt(batches, taken)

    def _orders(self, counts: dict[Shape, int]) -> Iterable[Sequence[Shape]]:
        return islice(permutations(self._hardest_first(counts)), ORDERS)

    def _take_all(self, order: Sequence[Shape], counts: dict[Shape, int]) -> dict[Shape, tuple[Ints, Ints]] | None:
        """All of them, placed in this order; else none."""
        taken: dict[Shape, tuple[Ints, Ints]] = {}
        for shape in order:
            found = self._take(shape, counts[shape])
            if found is None:
                for other, (slots, pods) in taken.items():
                    self._add(other, slots, pods)
                return None
            taken[shape] = found
        return taken

    def place_some(self, shape: Shape, most: int) -> Placement:
        """Takes room for as many of these pods as fit, at most so many; its nodes are empty where none fits."""
        if most <= 0:
            return Placement(shape, ())
        if not self._around.concern(shape):
            most = min(most, self._stock(shape).total)
        found = self._take(shape, most, whole=False) if most > 0 else None
        return Placement(shape, ()) if found is None else self._placement(shape, *found)

    def free_up(self, placements: Iterable[Placement]) -> None:
        """As if these pods were gone, or had never been placed; a node that isn't known has nothing to free."""
        self._shift(placements, 1, ours=True)

    def use_up(self, placements: Iterable[Placement]) -> None:
        """As if these pods were there, whether or not there is room: what is free may fall below zero."""
        self._shift(placements, -1, ours=True)

    def keep(self, placements: Iterable[Placement]) -> None:
        """Keeps room for pods that aren't there: what is free may fall below zero."""
        self._shift(placements, -1, ours=False)

    def let_go(self, placements: Iterable[Placement]) -> None:
        """Undoes `keep`."""
        self._shift(placements, 1, ours=False)

    def _shift(self, placements: Iterable[Placement], sign: int, *, ours: bool) -> None:
        for placement in placements:
            known = [(self.cluster.slots[name], count) for name, count in placement.nodes if name in self.cluster.slots]
            if known:
                slots, counts = np.array(known, dtype=np.int64).T
                self._add(placement.shape, slots, sign * counts, ours=ours)

    def ahead(self, batches: Sequence[Batch]) -> tuple[Placement, ...] | None:
        """Where these pods would go once gangs end, on the nodes with the least to clear; None if nowhere even then.

        Keeps that room, some of which is in use still. Pod by pod, the cheapest first: what has to be cleared for it,
        as a share of the node in the resource that lacks most.
        """
        taken: list[Placement] = []
        for shape in self._hardest_first(by_shape(batches)):
            want = by_shape(batches)[shape]
            stock = self._stock(shape)
            then = self._free[stock.rows[:, 0]] + self._ours[stock.rows[:, 0]]
            fits = np.minimum(stock.count(then, stock.mask), want)
            if int(fits.sum()) < want:
                self.let_go(taken)
                return None
            chosen, counts = self._least_to_clear(shape, want, fits)
            if int(counts.sum()) < want:
                self.let_go(taken)
                return None
            self._add(shape, chosen, -counts, ours=False)
            taken.append(self._placement(shape, chosen, counts))
        return tuple(taken)

    def _least_to_clear(self, shape: Shape, want: int, fits: Ints) -> tuple[Ints, Ints]:
        """(slots, pods in each) of so many pods, where the nodes take `fits` once they are cleared. What other pods
        have to say, those that will be gone included, counts as it is now."""
        stock = self._stock(shape)
        rows, offers = stock.rows[:, 0], np.maximum(stock.offers(), 1)
        if self._around.concern(shape):
            lacks = ((stock.asked - self._free[rows]) / offers).max(axis=0, initial=0.0)
            keys = (np.maximum(lacks, 0.0) * 2**20).astype(np.int64) * 2**20 + self.cluster.ranks()
            found = self._around.arrange(shape, want, fits, keys)
            return found.slots, found.counts
        slots = np.repeat(np.arange(len(fits)), fits)
        turn = np.arange(len(slots)) - np.repeat(np.cumsum(fits) - fits, fits) + 1
        lacks = (turn * stock.asked - self._free[rows][:, slots]) / offers[:, slots]
        order = np.lexsort((self.cluster.ranks()[slots], turn, lacks.max(axis=0, initial=0.0)))[:want]
        chosen, counts = np.unique(slots[order], return_counts=True)
        return chosen, counts.astype(np.int64)

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
            stock.refresh(self._free, np.flatnonzero(self._stamps > stock.seen))
            stock.seen = self._version
        return stock

    def _take(self, shape: Shape, pods: int, *, whole: bool = True) -> tuple[Ints, Ints] | None:
        """Room for so many pods: (slots, pods in each), in the order in which they can be bound. None where there
        isn't enough; unless `whole`, as many as there is room for."""
        stock = self._stock(shape)
        if self._around.concern(shape):
            found = self._around.arrange(shape, pods, stock.fits, stock.key)
            if found.total == 0 or (whole and found.total < pods):
                return None
            slots, counts = found.slots, found.counts
        elif stock.total < pods:
            return None
        else:
            slots, counts = self._best(stock, pods)
        self._add(shape, slots, -counts)
        return slots, counts

    def _best(self, stock: Stock, pods: int) -> tuple[Ints, Ints]:
        """Best fit for so many pods, for which there is room."""
        slots = self._first_few(stock, pods)
        if slots is None:
            # Each node of the best `pods` takes one at least: no others need to be sorted.
            key = stock.key
            slots = np.argpartition(key, pods)[:pods] if pods < len(key) else np.arange(len(key))
            slots = slots[np.argsort(key[slots])]
        up_to = np.cumsum(stock.fits[slots])
        last = int(np.searchsorted(up_to, pods))
        slots = slots[: last + 1]
        counts = stock.fits[slots]
        counts[-1] -= int(up_to[last]) - pods
        return slots, counts

    def _first_few(self, stock: Stock, pods: int) -> Ints | None:
        """The best nodes, one after the other, if few of them are enough: most gangs need no order of all nodes."""
        chosen: list[int] = []
        kept: list[int] = []
        while pods > 0 and len(chosen) < FEW:
            slot = int(stock.key.argmin())
            chosen.append(slot)
            kept.append(int(stock.key[slot]))
            pods -= int(stock.fits[slot])
            stock.key[slot] = NOWHERE
        slots = np.array(chosen, dtype=np.int64)
        stock.key[slots] = kept
        return slots if pods <= 0 else None

    def _add(self, shape: Shape, slots: Ints, pods: Ints, *, ours: bool = True) -> None:
        """Gives room for so many pods back to each slot; negative: takes it. `ours`: of pods that are or were there."""
        rows, asked = self._costs(shape)
        np.add.at(self._free, (rows, slots), pods * asked)  # a slot may come more than once
        if ours:
            np.subtract.at(self._ours, (rows, slots), pods * asked)
            self._around.add(shape, slots, -pods)
        self._version += 1
        self._stamps[slots] = self._version

    def _costs(self, shape: Shape) -> tuple[Ints, Ints]:
        """Rows and amounts of what a pod of this shape asks for, without working out where it would fit."""
        kind = shape.plain
        found = self._asked.get(kind)
        if found is None:
            found = self._asked[kind] = asked_of(self.cluster, shape)
        return found

    def _hardest_first(self, counts: dict[Shape, int]) -> list[Shape]:
        if len(counts) == 1:
            return list(counts)
        nodes = max(len(self.cluster), 1)

        def hardness(shape: Shape) -> tuple[float, int]:
            stock = self._stock(shape)
            average = stock.offers().sum(axis=1, dtype=np.float64) / nodes
            share = float((stock.asked[:, 0] / np.maximum(average, 1.0)).max(initial=0.0))
            return -share, int(np.count_nonzero(stock.mask))

        return sorted(counts, key=hardness)

    def _placement(self, shape: Shape, slots: Ints, counts: Ints) -> Placement:
        names = self.cluster.names
        return Placement(
            shape, tuple((names[slot], n) for slot, n in zip(slots.tolist(), counts.tolist(), strict=True))
        )

    def _dealt(self, batches: Sequence[Batch], taken: dict[Shape, tuple[Ints, Ints]]) -> tuple[Placement, ...]:
        """What was taken by shape, dealt out to batches of which several have the same shape."""
        piles = {shape: list(self._placement(shape, *found).nodes) for shape, found in taken.items()}
        dealt = []
        for batch in batches:
            pile, hand, want = piles[batch.shape], [], batch.count
            while want > 0:
                name, have = pile.pop(0)
                hand.append((name, min(have, want)))
                if have > want:
                    pile.insert(0, (name, have - want))
                want -= hand[-1][1]
            dealt.append(Placement(batch.shape, tuple(hand)))
        return tuple(dealt)


def by_shape(batches: Iterable[Batch]) -> dict[Shape, int]:
    """How many pods of each shape."""
    counts: dict[Shape, int] = {}
    for batch in batches:
        counts[batch.shape] = counts.get(batch.shape, 0) + batch.count
    return counts
