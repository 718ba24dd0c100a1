"""Room: what is free on the nodes, and where pods would go. A scratch copy that a decision may use up and give back.

Identical pods are placed as a class: how many of them a node takes is one division per resource, for all nodes at
once, and is kept up to date as pods are placed. What always holds:

* No node gives more than it has free, and none takes a pod that kube-scheduler's filters would keep away from it.
* For pods of one shape the answer is exact: `fits` is how many can be placed, by whatever method; where other pods have
  a say in it, as exact as `constraints` is.
* For several shapes together it is careful: a yes is a placement; a no may be one that a cleverer search would find.
* The same room and the same question give the same placement.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import chain, islice, permutations
from typing import Final

import numpy as np

from startgate.engine.cluster import Cluster
from startgate.engine.constraints import crowd, pinnable
from startgate.engine.nodes import Ints
from startgate.engine.surroundings import Surroundings
from startgate.engine.taking import Taking, those_in
from startgate.engine.within import Best, Need, Region, best, homes, of_places, parts, regions, soonest, within_of
from startgate.engine.world import Batch, Placement, Within
from startgate.model.shape import Shape

ENOUGH: Final = 2**20

ORDERS: Final = 6
"""So many orders of the shapes of a mixed gang are tried."""

TRIES: Final = 64
"""Where other pods have a say, so many domains are tried."""


class Room(Taking):
    """What is free at an instant. The cluster must not change while its room is in use."""

    def __init__(self, cluster: Cluster, *, bare: bool = False) -> None:
        """`bare`: as if no pod were on any node."""
        super().__init__(cluster, bare=bare)
        self._emptied: Room | None = None
        self._later: Surroundings | None = None

    def copy(self) -> "Room":
        """Another one like this; what is placed in either isn't seen in the other."""
        twin = Room.__new__(Room)
        self._copy_into(twin)
        twin._around = self._around.copy()
        twin._emptied, twin._later = self._emptied, self._later
        return twin

    def emptied(self) -> "Room":
        """The same nodes with no pod on any of them. Made once: what is placed there has to be given back."""
        if self._emptied is None:
            self._emptied = Room(self.cluster, bare=True)
        return self._emptied

    @property
    def keeps_out(self) -> bool:
        """Whether anybody is here, or is kept room for, who could keep out pods that ask for nothing of the kind."""
        return self._around.keeps_out

    def kind(self, shape: Shape) -> Shape:
        """What all that have the same answers here have in common: whether they have room, and why not."""
        return self._around.kind(shape)

    def kinds(self, batches: Sequence[Batch]) -> tuple[Batch, ...]:
        """The batches that aren't empty, by what their pods are here: of several kinds, to one another too."""
        some = [batch for batch in batches if batch.count > 0]
        if len(some) > 1 and any(batch.shape.constrained for batch in some):
            kinds = self._around.kinds([batch.shape for batch in some])
            return tuple([Batch(kind, batch.count, batch.within) for kind, batch in zip(kinds, some, strict=True)])
        return tuple(
            [
                Batch(self.kind(batch.shape), batch.count, batch.within) if self.concern(batch.shape) else batch.plain
                for batch in some
            ]
        )

    def fits(self, shape: Shape, up_to: int = ENOUGH, within: Within | None = None) -> int:
        """How many pods of this shape can be placed now; where other pods have a say, what is beyond `up_to` isn't
        looked for, and it is as exact as `constraints.most`."""
        stock = self._stock(shape)
        if not self._around.concern(shape):
            return self._sum(stock.fits, within, stock.total)
        if within is None or not within.key:
            return self._around.most(shape, up_to, stock.fits)
        return self._best_for(shape, up_to, within).pods

    def best_domain(self, batches: Sequence[Batch]) -> Best:
        """The domain with room for the most of these pods, which have to be in one; of several kinds a few domains are
        looked at, those that promise most, and there may be room for more than is said."""
        counts, within = by_shape(batches), within_of(batches)
        assert within is not None
        if len(counts) == 1:
            return next(self._best_for(shape, count, within) for shape, count in counts.items())
        bound = sum(np.minimum(self._stock(shape).fits, count) for shape, count in counts.items())
        found = Best(0, within.value, best(self.cluster, within, np.asarray(bound)).domains)
        for _, region in islice(parts(self.cluster, within, np.asarray(bound)), ORDERS):
            there = Within(key=within.key, value=region.selector[within.key])
            pods = self.fits_together([Batch(shape, count, there) for shape, count in counts.items()])
            if pods > found.pods:
                found = Best(pods, there.value, found.domains)
        return found

    def fits_together(self, batches: Iterable[Batch]) -> int:
        """How many of these pods can be placed, one kind after the other; of several kinds there may be room for more.
        Those that are to be in one domain have to say in which."""
        placed = [self.place_some(batch.shape, batch.count, batch.within) for batch in batches]
        self.free_up(placed)
        return sum(count for placement in placed for _, count in placement.nodes)

    def _best_for(self, shape: Shape, up_to: int, within: Within) -> Best:
        """The domain in which the most of these pods fit; where other pods have a say, of those that promise most."""
        fits = self._bound(shape)
        found = best(self.cluster, within, fits)
        if not self._around.concern(shape):
            return found
        found = Best(0, within.value, found.domains)
        for bound, region in islice(parts(self.cluster, within, fits), TRIES):
            if found.pods >= min(bound, up_to):
                break
            pods = self._around.most(those_in(shape, region), up_to, fits * region.inside)
            if pods > found.pods:
                found = Best(pods, region.selector[within.key], found.domains)
        return found

    def place(self, batches: Sequence[Batch], places: Sequence[tuple[str, int]] = ()) -> tuple[Placement, ...] | None:
        """Takes room for all of these pods together, or for none of them (None).

        Placements are in the order of the batches. Best fit: nodes that would have the least left over come
        first, so that the largest whole nodes stay free. The hardest shape is placed first: the one with the
        largest share of an average node in one resource, then the one with the fewest nodes to go to. Pods that are
        to be in one domain go to the one that would have the least left over. `places`, (node name, how many), are
        tried before all others.
        """
        if len(batches) == 1 and batches[0].within is None and not places:
            one = self._take(batches[0].shape, batches[0].count, None)
            return None if one is None else (self._placement(batches[0].shape, *one),)
        counts = by_shape(batches)
        if any(self._stock(shape).total < count for shape, count in counts.items()):
            return None
        orders = list(islice(permutations(self._hardest_first(counts)), ORDERS))
        regions = self._regions(orders[0], batches)
        if places:
            regions = chain(of_places(self.cluster, self._regions(orders[0], batches), places), regions)
        tries = ((region, order) for region in regions for order in orders)
        taken = next((found for region, order in tries if (found := self._take_all(order, counts, region))), None)
        if taken is None:
            return None
        if len(batches) == len(taken):
            return tuple(self._placement(batch.shape, *taken[batch.shape]) for batch in batches)
        return self._dealt(batches, taken)

    def _regions(self, order: Sequence[Shape], batches: Sequence[Batch]) -> Iterable[Region | None]:
        """The nodes that they may have together, the best first; None for all there are."""
        within = within_of(batches)
        if within is None:
            return (None,)
        counts = by_shape(batches)
        needs = [Need(counts[shape], self._bound(shape), self._stock(shape).key.copy()) for shape in order]
        found = regions(self.cluster, within, needs)
        return _few_of(found) if any(map(self._around.concern, counts)) else found

    def _bound(self, shape: Shape) -> Ints:
        """By slot: how many such pods it takes at most."""
        fits = self._stock(shape).fits
        return self._around.caps(shape, fits) if self._around.concern(shape) else fits.copy()

    def _take_all(
        self, order: Sequence[Shape], counts: dict[Shape, int], region: Region | None
    ) -> dict[Shape, tuple[Ints, Ints]] | None:
        """All of them, placed in this order; else none."""
        taken: dict[Shape, tuple[Ints, Ints]] = {}
        for shape in order:
            found = self._take(shape, counts[shape], region, alone=len(order) == 1)
            if found is None:
                for other, (slots, pods) in taken.items():
                    self._add(other, slots, pods)
                return None
            taken[shape] = found
        if len(taken) > 1 and not (self._is_sure(taken) and all(self._stands(each, taken, region) for each in taken)):
            for shape, (slots, pods) in taken.items():
                self._add(shape, slots, pods)
            return None
        return taken

    def _is_sure(self, taken: dict[Shape, tuple[Ints, Ints]]) -> bool:
        """Whether they will get these places, if one kind has several on a node that reservations would keep apart:
        then their node selectors have to keep them there, and the others of their gang away."""
        where: dict[Shape, Counter[int]] = {shape: Counter() for shape in taken}
        for shape, (slots, counts) in taken.items():
            for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):  # a slot may come more than once
                where[shape][slot] += count
        if not crowd(where):
            return True
        return all(map(pinnable, taken)) and self.cluster.have_own_labels(set().union(*where.values()))

    def _stands(self, shape: Shape, taken: dict[Shape, tuple[Ints, Ints]], region: Region | None) -> bool:
        """Whether these pods could be bound where they are after all others of their gang, too: kube-scheduler may take
        them in any order, and spread and affinity aren't symmetric: others can be in its way without its being in
        theirs."""
        others = [other for other in taken if other is not shape and other.namespace == shape.namespace]
        if not any(self._counts_on(shape, other) for other in others):
            return True
        slots, counts = taken[shape]
        caps, want = np.zeros(self._free.shape[1], dtype=np.int64), int(counts.sum())
        np.add.at(caps, slots, counts)
        self._around.add(shape, slots, -counts)
        found = self._around.arrange(those_in(shape, region), want, caps, self.cluster.ranks())
        self._around.add(shape, slots, counts)
        return found.total == want

    def _counts_on(self, shape: Shape, other: Shape) -> bool:
        """Whether it makes a difference to such pods where these others of their gang are."""
        namespaces = self.cluster.company.namespaces
        return any(
            spread.selector is not None and spread.selector.matches(other.label_map) for spread in shape.spread
        ) or any(term.picks(other.namespace, other.label_map, namespaces) for term in shape.together)

    def place_some(self, shape: Shape, most: int, within: Within | None = None) -> Placement:
        """Takes room for as many of these pods as fit, at most so many; its nodes are empty where none fits."""
        stock = self._stock(shape)
        nodes: list[tuple[str, int]] = []
        need = Need(most, stock.fits, stock.key)
        for region in (None,) if within is None else tuple(homes(self.cluster, within, need)):
            if most <= 0:
                break
            found = self._take(shape, most, region, whole=False)
            if found is not None:
                nodes += self._placement(shape, *found).nodes
                most -= int(found[1].sum())
        return Placement(shape, tuple(nodes))

    def ahead(self, batches: Sequence[Batch]) -> tuple[Placement, ...] | None:
        """Where these pods would go once gangs end, on the nodes with the least to clear; None if nowhere even then.

        Keeps that room, some of which is in use still. Pod by pod, the cheapest first: what has to be cleared for it,
        as a share of the node in the resource that lacks most. Of domains the one in which the most fit already.
        """
        counts, within = by_shape(batches), within_of(batches)
        order = self._hardest_first(counts)
        orders = list(islice(permutations(order), ORDERS))
        places: Iterable[Region | None] = (None,)
        if within is not None and within.key:
            needs = [Need(counts[shape], self._then(shape), self._stock(shape).key) for shape in order]
            places = islice(soonest(self.cluster, within, needs, [self._stock(each).fits for each in order]), TRIES)
        tries = (self._clear(order, counts, region) for region in places for order in orders)
        return next((taken for taken in tries if taken is not None), None)

    def _clear(
        self, order: Sequence[Shape], counts: dict[Shape, int], region: Region | None
    ) -> tuple[Placement, ...] | None:
        taken: dict[Shape, tuple[Ints, Ints]] = {}
        for shape in order:
            want = counts[shape]
            fits = np.minimum(self._then(shape), want)
            if region is not None:
                fits *= region.inside
            chosen, pods = self._least_to_clear(shape, want, fits, region, taken)
            if int(pods.sum()) < want:
                for other, (slots, kept) in taken.items():
                    self._add(other, slots, kept, ours=False)
                return None
            self._add(shape, chosen, -pods, ours=False)
            taken[shape] = chosen, pods
        return tuple(self._placement(shape, *found) for shape, found in taken.items())

    def _least_to_clear(
        self, shape: Shape, want: int, fits: Ints, region: Region | None, taken: dict[Shape, tuple[Ints, Ints]]
    ) -> tuple[Ints, Ints]:
        """(slots, pods in each) of so many pods, or of fewer, where the nodes take `fits` once they are cleared. What
        other pods have to say counts as it is now, if there is a place so; else as it is once gangs have ended, and the
        others of its own (`taken`) are there."""
        stock = self._stock(shape)
        rows, offers = stock.rows[:, 0], np.maximum(stock.offers(), 1)
        if self._around.concern(shape):
            lacks = ((stock.asked - self._free[rows]) / offers).max(axis=0, initial=0.0)
            keys = (np.maximum(lacks, 0.0) * 2**20).astype(np.int64) * 2**20 + self.cluster.ranks()
            found = self._around.arrange(those_in(shape, region), want, fits, keys)
            if found.total < want:
                later = self._without_gangs()
                for other, (slots, pods) in taken.items():
                    later.add(other, slots, pods)
                found = later.arrange(those_in(shape, region), want, fits, keys)
                for other, (slots, pods) in taken.items():
                    later.add(other, slots, -pods)
            return found.slots, found.counts
        slots = np.repeat(np.arange(len(fits)), fits)
        turn = np.arange(len(slots)) - np.repeat(np.cumsum(fits) - fits, fits) + 1
        lacks = (turn * stock.asked - self._free[rows][:, slots]) / offers[:, slots]
        order = np.lexsort((self.cluster.ranks()[slots], turn, lacks.max(axis=0, initial=0.0)))[:want]
        chosen, counts = np.unique(slots[order], return_counts=True)
        return chosen, counts.astype(np.int64)

    def _without_gangs(self) -> Surroundings:
        """What other pods will have to say once gangs have ended. Made once: what is added is taken out again."""
        if self._later is None:
            self._later = Surroundings.without_gangs(self.cluster)
        return self._later

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


def _few_of(found: Iterable[Region]) -> Iterable[Region]:
    """TRIES of them: the first, and the last, which have the most room."""
    found = iter(found)
    yield from islice(found, TRIES // 2)
    yield from deque(found, maxlen=TRIES // 2)


def by_shape(batches: Iterable[Batch]) -> dict[Shape, int]:
    """How many pods of each shape."""
    counts: dict[Shape, int] = {}
    for batch in batches:
        counts[batch.shape] = counts.get(batch.shape, 0) + batch.count
    return counts
