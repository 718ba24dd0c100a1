"""The nodes, and how much of each is in use, as arrays: what there is to give, before anybody asks whether it fits.

Nodes by slot (column), resources by row. What always holds:

* The order in which nodes and pods came has no influence on any answer.
* No sum overflows: what is used beyond an int64 is kept exactly beside the arrays, which then say "full".
* What has changed of a slot can be told by its stamp; what has changed for all of them, by the epoch.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from startgate.engine.filters import Demand, Facts, candidates, facts, obstacle
from startgate.model import objects
from startgate.model.quantity import LARGEST, QuantityError
from startgate.model.resources import Amounts, amount
from startgate.model.shape import Shape

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

HOSTNAME: Final = "kubernetes.io/hostname"

ROWS: Final = 8
SLOTS: Final = 64
MASKS: Final = 1024
"""Demands whose nodes are remembered; beyond that all are forgotten, and worked out again where needed."""


class Nodes:
    """The attributes are for reading; methods change them."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        """The row of each resource that a node or a pod has named."""
        self.names: list[str] = []
        """The node in each slot, known or not; "" where there is none."""
        self.slots: dict[str, int] = {}
        self.facts: list[Facts | None] = []
        """By slot; None where the node isn't known."""
        self.offers: Ints = np.zeros((ROWS, SLOTS), dtype=np.int64)
        """Allocatable, resources x slots; 0 in slots without a known node. Never negative."""
        self.used: Ints = np.zeros((ROWS, SLOTS), dtype=np.int64)
        """Asked for by the pods on each node, resources x slots. Never negative."""
        self.ours: Ints = np.zeros((ROWS, SLOTS), dtype=np.int64)
        """The part of `used` that gangs ask for: what will be free some day without anybody's help."""
        self.stamps: Ints = np.zeros(SLOTS, dtype=np.int64)
        """By slot: the `version` in which it last changed."""
        self.version = 0
        self.epoch = 0
        """Another one: what was worked out for all slots is worth nothing any more."""
        self.remade = 0
        """Another one: a node isn't what it was, whatever is on it."""
        self._open: Bools = np.zeros(SLOTS, dtype=np.bool_)
        self._spare: list[int] = []
        self._pods_on: list[int] = []
        self._nominated: dict[int, dict[tuple[int, int], int]] = {}
        """By priority: the part of `used`, by (row, slot), that pods have which are only nominated to their node."""
        self._beyond: dict[tuple[int, int], int] = {}
        self._masks: dict[Demand, Bools] = {}
        self._ranks: Ints | None = None
        self._total: Mapping[str, int] | None = None

    def __len__(self) -> int:
        """How many nodes are known."""
        return sum(known is not None for known in self.facts)

    def set_node(self, node: objects.Node) -> None:
        """Takes a node in, or what has changed of it; a heartbeat changes nothing and costs next to nothing.

        An amount that isn't a quantity counts as none of that resource.
        """
        slot = self._slot(node.metadata.name)
        self._offer(slot, _allocatable(node))
        is_open = node.ready and not node.spec.unschedulable
        if self._open[slot] != is_open:
            self._open[slot] = is_open
            self._total = None
        self._know(slot, facts(node))

    def remove_node(self, name: str) -> None:
        """Forgets a node; the pods on it go on counting on it, should it come back."""
        slot = self.slots.get(name)
        if slot is None or self.facts[slot] is None:
            return
        self._offer(slot, {})
        self._open[slot] = False
        self._total = None
        self._know(slot, None)
        self._let_go(slot)

    def _copy_into(self, twin: "Nodes") -> None:
        twin.rows = dict(self.rows)
        twin.names = list(self.names)
        twin.slots = dict(self.slots)
        twin.facts = list(self.facts)
        twin.offers = self.offers.copy()
        twin.used = self.used.copy()
        twin.ours = self.ours.copy()
        twin.stamps = self.stamps.copy()
        twin.version, twin.epoch, twin.remade = self.version, self.epoch, self.remade
        twin._open = self._open.copy()
        twin._spare = list(self._spare)
        twin._pods_on = list(self._pods_on)
        twin._nominated = {priority: dict(held) for priority, held in self._nominated.items()}
        twin._beyond = dict(self._beyond)
        twin._masks = dict(self._masks)  # a mask is replaced, never written into
        twin._ranks = self._ranks
        twin._total = self._total

    def total(self) -> Amounts:
        """Allocatable of the nodes that could take pods: Ready, not cordoned (design: "Quota"). No zeros."""
        if self._total is None:
            sums = {name: exact_sum(self.offers[row, self._open]) for name, row in self.rows.items()}
            self._total = MappingProxyType({name: sums[name] for name in sorted(sums) if sums[name]})
        return self._total

    def outside(self) -> Amounts:
        """What pods that are no gang's hold of `total`: no more on a node than it has. No zeros."""
        held = np.minimum(np.maximum(self.used - self.ours, 0), self.offers)
        sums = {name: exact_sum(held[row, self._open]) for name, row in self.rows.items()}
        return {name: count for name, count in sums.items() if count}

    def offer(self, slot: int) -> Amounts:
        """Allocatable of the node in this slot, without zeros."""
        return {name: count for name, row in self.rows.items() if (count := int(self.offers[row, slot]))}

    def lent(self, priority: int) -> Ints | None:
        """What of `used` pods of this priority needn't respect, resources x slots: what is nominated for lower ones
        (kube-scheduler's RunFilterPluginsWithNominatedPods). None: nothing."""
        if not self._nominated:
            return None
        lower = [held for other, held in self._nominated.items() if other < priority]
        if not lower:
            return None
        amounts = np.zeros_like(self.used)
        for held in lower:
            for cell, count in held.items():
                amounts[cell] += min(count, int(self.used[cell]))
        return amounts

    def free(self) -> Ints:
        """What is left, resources x slots, in an array of the caller's own; negative: overcommitted."""
        return self.offers - self.used

    def overcommitted(self, name: str, resources: Iterable[str]) -> bool:
        """Whether the pods on this node ask for more of these than it offers; True for a node that isn't known."""
        slot = self.slots.get(name)
        if slot is None or self.facts[slot] is None:
            return True
        rows = [self.rows[resource] for resource in resources if resource in self.rows]
        return bool((self.used[rows, slot] > self.offers[rows, slot]).any())

    def own_label(self, name: str) -> dict[str, str]:
        """The label that a kubelet gives to its node alone; empty where this one hasn't got it."""
        slot = self.slots.get(name)
        known = None if slot is None else self.facts[slot]
        return {HOSTNAME: known.labels[HOSTNAME]} if known is not None and HOSTNAME in known.labels else {}

    def have_own_labels(self, slots: Iterable[int]) -> bool:
        """Whether pods can be kept to each of these nodes by such a label."""
        known = (self.facts[slot] for slot in slots)
        return all(each is not None and HOSTNAME in each.labels for each in known)

    def ranks(self) -> Ints:
        """By slot: the place of the node's name among all of them, for ties."""
        if self._ranks is None:
            ranks = np.zeros(self.offers.shape[1], dtype=np.int64)
            for rank, name in enumerate(sorted(self.slots)):
                ranks[self.slots[name]] = rank
            self._ranks = ranks
        return self._ranks

    def matching(self, demand: Demand) -> Bools:
        """By slot: whether pods with this demand may go there (filters.obstacle). Not to be written into."""
        mask = self._masks.get(demand)
        if mask is None:
            if len(self._masks) >= MASKS:
                self._masks = {}
            mask = self._masks[demand] = self._match(demand)
        return mask

    def _match(self, demand: Demand) -> Bools:
        mask = np.zeros(self.offers.shape[1], dtype=np.bool_)
        named = candidates(demand)
        looked_at = (
            range(len(self.names)) if named is None else [self.slots[name] for name in named if name in self.slots]
        )
        for slot in looked_at:
            known = self.facts[slot]
            mask[slot] = known is not None and obstacle(demand, known) is None
        return mask

    def _know(self, slot: int, known: Facts | None) -> None:
        """What the filters read of a node has come, changed or gone: the masks follow, in this one place."""
        if self.facts[slot] == known:
            return
        self.facts[slot] = known
        self.remade += 1
        self._stamp(slot)
        self._relabel(slot, known)
        for demand, mask in self._masks.items():
            passes = known is not None and obstacle(demand, known) is None
            if mask[slot] != passes:
                changed = mask.copy()
                changed[slot] = passes
                self._masks[demand] = changed

    def _relabel(self, slot: int, known: Facts | None) -> None:
        """For those who keep more of a node than is here."""

    def _offer(self, slot: int, allocatable: Amounts) -> None:
        fresh = np.zeros(self.offers.shape[0], dtype=np.int64)
        for resource, count in allocatable.items():
            row = self._row(resource)
            if row >= len(fresh):
                fresh = np.pad(fresh, (0, self.offers.shape[0] - len(fresh)))
            fresh[row] = count
        if not np.array_equal(self.offers[:, slot], fresh):
            self.offers[:, slot] = fresh
            self._total = None
            self.remade += 1
            self._stamp(slot)

    def _stamp(self, slot: int) -> None:
        self.version += 1
        self.stamps[slot] = self.version

    def _count(self, slot: int, shape: Shape, times: int, ours: bool) -> None:
        self._stamp(slot)
        for resource, asked in shape.request:
            cell = (self._row(resource), slot)
            if ours:
                self.ours[cell] = max(0, min(int(self.ours[cell]) + asked * times, LARGEST))
            now = self._beyond.pop(cell, None)
            if now is None:
                now = int(self.used[cell])
            now += asked * times
            if now > LARGEST:
                self._beyond[cell] = now
            self.used[cell] = min(now, LARGEST)

    def _nominate(self, slot: int, shape: Shape, times: int) -> None:
        held = self._nominated.setdefault(shape.priority, {})
        for resource, asked in shape.request:
            cell = (self._row(resource), slot)
            count = held.pop(cell, 0) + asked * times
            if count:
                held[cell] = count
        if not held:
            del self._nominated[shape.priority]

    def _row(self, resource: str) -> int:
        row = self.rows.get(resource)
        if row is not None:
            return row
        row = self.rows[resource] = len(self.rows)
        self.epoch += 1
        if row >= self.offers.shape[0]:
            self.offers = np.pad(self.offers, ((0, ROWS), (0, 0)))
            self.used = np.pad(self.used, ((0, ROWS), (0, 0)))
            self.ours = np.pad(self.ours, ((0, ROWS), (0, 0)))
        return row

    def _slot(self, name: str) -> int:
        slot = self.slots.get(name)
        if slot is not None:
            return slot
        if self._spare:
            slot = self._spare.pop()
        else:
            slot = len(self.names)
            self.names.append("")
            self.facts.append(None)
            self._pods_on.append(0)
            if slot >= self.offers.shape[1]:
                self._widen()
        self.names[slot] = name
        self.slots[name] = slot
        self._reorder()
        return slot

    def _widen(self) -> None:
        more = self.offers.shape[1] // 2
        self.offers = np.pad(self.offers, ((0, 0), (0, more)))
        self.used = np.pad(self.used, ((0, 0), (0, more)))
        self.ours = np.pad(self.ours, ((0, 0), (0, more)))
        self.stamps = np.pad(self.stamps, (0, more))
        self._open = np.pad(self._open, (0, more))
        self._masks = {demand: np.pad(mask, (0, more)) for demand, mask in self._masks.items()}

    def _let_go(self, slot: int) -> None:
        """Frees the slot once neither the node nor a pod on it is left."""
        if self.facts[slot] is None and self._pods_on[slot] == 0:
            del self.slots[self.names[slot]]
            self.names[slot] = ""
            self._spare.append(slot)
            self._reorder()

    def _reorder(self) -> None:
        self._ranks = None
        self.epoch += 1


def exact_sum(amounts: Ints) -> int:
    """The sum of amounts that aren't negative, however large they are."""
    if amounts.max(initial=0) <= LARGEST // max(len(amounts), 1):
        return int(amounts.sum())
    return sum(amounts.tolist())


def _allocatable(node: objects.Node) -> dict[str, int]:
    offered = {}
    for resource, quantity in node.status.allocatable.items():
        try:
            offered[resource] = max(amount(resource, quantity), 0)
        except QuantityError:
            continue
    return offered
