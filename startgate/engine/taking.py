"""Taking room: pods of one kind go to the nodes that would have the least left over, and come off them again.

Between what is counted (`vacancy`) and what is decided (`fit`): it takes for one kind at a time, whole or not at all.
What always holds: what is free, and what other pods leave, change together; what was taken is undone by giving it back.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from startgate.engine.cluster import Cluster
from startgate.engine.constraints import pinnable, spreads_itself
from startgate.engine.nodes import Ints
from startgate.engine.stock import NOWHERE, Stock
from startgate.engine.surroundings import Surroundings
from startgate.engine.vacancy import Vacancy
from startgate.engine.within import Need, Region, in_few
from startgate.engine.world import Placement
from startgate.model.shape import Shape, narrowed

FEW: Final = 6
"""So many nodes are looked for one by one; for more, all are put in order."""


class Taking(Vacancy):
    """At an instant, with what other pods leave."""

    def __init__(self, cluster: Cluster, *, bare: bool = False) -> None:
        """`bare`: as if no pod were on any node."""
        super().__init__(cluster, bare=bare)
        self._around = Surroundings(cluster, bare=bare)

    def concern(self, shape: Shape) -> bool:
        """Whether such a pod's place depends on more than what the nodes have free."""
        return self._around.concern(shape)

    @property
    def around(self) -> Surroundings:
        """What other pods, host ports and volumes leave, for reading."""
        return self._around

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

    def _take(
        self, shape: Shape, pods: int, region: Region | None, *, whole: bool = True, alone: bool = True
    ) -> tuple[Ints, Ints] | None:
        """Room for so many pods: (slots, pods in each), in the order in which they can be bound. None where there
        isn't enough; unless `whole`, as many as there is room for. `alone`: their gang has no other kinds of pods."""
        stock = self._stock(shape)
        fits, key, total = stock.fits, stock.key, stock.total
        if region is not None:
            fits = fits * region.inside if region.most is None else np.minimum(fits, region.most) * region.inside
            total = int(fits.sum())
            if region.few is not None:
                key = in_few(self.cluster, region.few, Need(pods, fits, key))
        if self._around.concern(shape):
            there = those_in(shape, region)
            if region is not None and whole and self._around.most(there, pods, fits) < pods:
                return None  # a look at how many costs a fraction of a look at where
            found = self._around.arrange(there, pods, fits, key)
            chosen = set(found.slots.tolist())
            sure = pinnable(there) and self.cluster.have_own_labels(chosen)
            kept_apart = spreads_itself(there) and found.total > len(chosen)
            if (found.steered or not alone) and kept_apart and not sure:
                # Where each goes has to be said, and with two on a node that can't be: not by reservations, which would
                # keep them apart (Drafts), nor by their node selectors.
                found = self._around.arrange(there, pods, np.minimum(fits, 1), key)
            slots, counts, total = found.slots, found.counts, found.total
        if total == 0 or (whole and total < pods):
            return None
        if not self._around.concern(shape):
            pods = min(pods, total)
            best_first = self._best_first(stock, pods) if region is None else _in_order(fits, key)
            slots, counts = _filled(best_first, fits, pods)
        self._add(shape, slots, -counts)
        return slots, counts

    def _best_first(self, stock: Stock, pods: int) -> Ints:
        """The nodes that have room for so many pods, the best first."""
        slots = self._first_few(stock, pods)
        if slots is None:
            # Each node of the best `pods` takes one at least: no others need to be sorted.
            key = stock.key
            slots = np.argpartition(key, pods)[:pods] if pods < len(key) else np.arange(len(key))
            slots = slots[np.argsort(key[slots])]
        return slots

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
        self._change(shape, slots, pods, ours=ours)
        if ours:
            self._around.add(shape, slots, -pods)
        else:
            self._around.keep(shape, slots, -pods)

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


def those_in(shape: Shape, region: Region | None) -> Shape:
    """The pods as they will be if they go there."""
    return narrowed(shape, region.selector) if region is not None and region.selector else shape


def _in_order(fits: Ints, key: Ints) -> Ints:
    """The slots that take any pods, the best first."""
    slots = np.flatnonzero(fits)
    return slots[np.argsort(key[slots])]


def _filled(slots: Ints, fits: Ints, pods: int) -> tuple[Ints, Ints]:
    """So many pods, for which there is room, in one slot after the other."""
    counts = fits[slots]
    up_to = counts.cumsum()
    last = int(up_to.searchsorted(pods))
    counts = counts[: last + 1]
    counts[-1] -= int(up_to[last]) - pods
    return slots[: last + 1], counts
