"""For one kind of pods, by node: how many more it takes, and which node comes first. Kept from decision to decision.

Identical pods are placed as a class: how many of them a node takes is one division per resource, for all nodes at once.
A large cluster changes by a node or two between decisions, so what was worked out for the others stays. What always
holds: a stock that `Stocks.of` gives says what it would say if it were worked out anew; it is not to be written into
(`copy` is for that).
"""

from copy import copy
from typing import Final

import numpy as np

from startgate.engine.filters import demand
from startgate.engine.nodes import Bools, Ints, Nodes
from startgate.model.quantity import LARGEST
from startgate.model.resources import PODS
from startgate.model.shape import Shape

MOST: Final = 2**20 - 1
"""Pods of one kind on one node, at most. More than any kubelet takes; keeps the sort key within its bits."""

BASIC: Final = frozenset({"cpu", "memory", "ephemeral-storage", PODS})
"""What every node has. A node with something else is spared for those who ask for it."""

SPARED: Final = 56
"""From this bit on, a key says how much that is special a node has."""

NOWHERE: Final = np.iinfo(np.int64).max

KINDS: Final = 128
"""Kinds of pods whose stock is kept; beyond that all are forgotten, and worked out again where needed."""


class Tally:
    """How many pods each slot takes, and all of them together."""

    __slots__ = ("by_slot", "total")

    def __init__(self, by_slot: Ints) -> None:
        self.by_slot = by_slot
        self.total = int(by_slot.sum())

    def put(self, slots: Ints, counts: Ints) -> None:
        """These slots take so many now."""
        self.total += int(counts.sum()) - int(self.by_slot[slots].sum())
        self.by_slot[slots] = counts


class Stock:
    """One kind's numbers, as long as the nodes' epoch is the same."""

    def __init__(self, nodes: Nodes, shape: Shape) -> None:
        self.priority = shape.priority
        asks = {resource: amount for resource, amount in shape.request if amount > 0}
        self._nodes = nodes
        self._demand = demand(shape)
        self.rows, self.asked = asked_of(nodes, shape)
        self.lacking = len(self.rows) < len(asks) or any(amount > LARGEST for amount in asks.values())
        """It asks for a resource that no node has named, or for more than there are numbers."""
        self.special = [row for resource, row in nodes.rows.items() if resource not in BASIC and resource not in asks]
        self.fits: Ints = np.zeros(nodes.offers.shape[1], dtype=np.int64)
        self.key: Ints = np.full(nodes.offers.shape[1], NOWHERE, dtype=np.int64)
        """Order of the nodes: special resources that the pod doesn't ask for, then how many pods fit, then the share
        of what it asks for that is free, then the name; fewest first. 4, 20, 16 and 20 bits."""
        self.total = 0
        self.seen = 0
        """Up to where its owner's news are in the numbers: a version of the nodes, or of the room."""
        slots = nodes.offers.shape[1]
        self.mask: Bools = np.zeros(slots, dtype=np.bool_)
        """By slot: whether the node's filters let such pods in, however full it is. Not to be written into."""
        self._weights = np.zeros((len(self.rows), slots))
        self._order: Ints = np.zeros(slots, dtype=np.int64)
        """What in the key and in the share of what is free doesn't change as pods come and go."""
        self._empty: Tally | None = None
        self._cleared: Tally | None = None

    def copy(self) -> "Stock":
        twin = copy(self)
        twin.fits, twin.key = self.fits.copy(), self.key.copy()
        twin._empty = twin._cleared = None
        return twin

    def offers(self) -> Ints:
        """What the nodes have of the resources asked for, whatever is on them."""
        offers: Ints = self._nodes.offers[self.rows[:, 0]]
        return offers

    def empty(self) -> Tally:
        """How many such pods the nodes would take if nothing were on them. Not to be written into."""
        if self._empty is None:
            self._empty = Tally(self.count(self.offers(), self.mask))
        return self._empty

    def cleared(self) -> Tally:
        """How many such pods the nodes would take if no gang had pods on any of them. Not to be written into."""
        if self._cleared is None:
            self._cleared = Tally(self._clear(slice(None)))
        return self._cleared

    def _clear(self, slots: Ints | slice) -> Ints:
        nodes, rows = self._nodes, self.rows[:, 0]
        used, ours = nodes.used[rows][:, slots], nodes.ours[rows][:, slots]
        free = np.maximum(nodes.offers[rows][:, slots] - used, 0) + ours
        return self.count(free, self.mask[slots])

    def count(self, amounts: Ints, mask: Bools) -> Ints:
        """How many pods fit into these amounts (of the resources asked for, x nodes)."""
        fits: Ints = np.minimum.reduce(amounts // self.asked, axis=0, initial=MOST)
        return np.maximum(fits, 0) * mask

    def learn(self, slots: Ints) -> None:
        """Takes in what has changed of the nodes in these slots."""
        nodes = self._nodes
        if not self.lacking:
            self.mask = nodes.matching(self._demand)
        offers = nodes.offers[self.rows, slots]
        self._weights[:, slots] = 65535 / max(len(self.rows), 1) / np.maximum(offers, 1)
        order = nodes.ranks()[slots]
        if self.special:
            spared = (nodes.offers[np.array(self.special)[:, None], slots] > 0).sum(axis=0, dtype=np.int64)
            order = order + (np.minimum(spared, 15) << SPARED)
        self._order[slots] = order
        if self._empty is not None:
            self._empty.put(slots, self.count(offers, self.mask[slots]))
        if self._cleared is not None:
            self._cleared.put(slots, self._clear(slots))

    def refresh(self, free: Ints, slots: Ints) -> None:
        """Takes in what is free (resources x slots) in these slots now."""
        here = free[self.rows, slots]
        lent = self._nodes.lent(self.priority)
        if lent is not None:
            here = np.minimum(here + lent[self.rows, slots], self._nodes.offers[self.rows, slots])
        # `take` gives what an index gives, in a fraction of the time.
        fits = self.count(here, self.mask.take(slots))
        self.total += int(np.add.reduce(fits - self.fits.take(slots)))
        self.fits[slots] = fits
        share = np.add.reduce(np.maximum(here, 0) * self._weights.take(slots, axis=1), axis=0).astype(np.int64)
        key = self._order.take(slots) + (fits << 36) + (share << 20)
        key[fits == 0] = NOWHERE
        self.key[slots] = key


class Stocks:
    """The stocks of all kinds that were asked for, as the nodes are now."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._epoch = -1
        self._known: dict[Shape, Stock] = {}
        self._free: tuple[int, Ints] = (-1, nodes.offers)
        """Which version of the nodes has this free."""

    def of(self, shape: Shape) -> Stock:
        """The stock of pods of this shape. Not to be written into."""
        nodes = self._nodes
        if self._epoch != nodes.epoch or len(self._known) > KINDS:
            self._known = {}
            self._epoch = nodes.epoch
        stock = self._known.get(shape)
        if stock is None:
            stock = self._known[shape] = Stock(nodes, shape)
            slots = np.arange(len(stock.fits))
            stock.learn(slots)
            stock.refresh(self._now_free(), slots)
        elif stock.seen < nodes.version:
            slots = np.flatnonzero(nodes.stamps > stock.seen)
            if len(slots):
                stock.learn(slots)
                stock.refresh(self._now_free(), slots)
        stock.seen = nodes.version
        return stock

    def _now_free(self) -> Ints:
        if self._free[0] != self._nodes.version:
            self._free = self._nodes.version, self._nodes.free()
        return self._free[1]


def asked_of(nodes: Nodes, shape: Shape) -> tuple[Ints, Ints]:
    """(rows, amounts) of what such a pod asks for, each as a column, of resources that some node or pod has named."""
    asks = {
        nodes.rows[resource]: min(amount, LARGEST)
        for resource, amount in shape.request
        if amount > 0 and resource in nodes.rows
    }
    rows = np.array(list(asks), dtype=np.int64).reshape(-1, 1)
    return rows, np.array(list(asks.values()), dtype=np.int64).reshape(-1, 1)
