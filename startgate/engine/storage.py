"""Volumes, and the pods that use them: what nodes have attached, and who has which claim.

It follows kube-scheduler's plugins VolumeBinding, VolumeZone, VolumeRestrictions (of claims) and NodeVolumeLimits; what
that comes to for pods is in `volumes`. What always holds: the order in which things came has no influence on any
answer; pods without claims cost nothing.

Not followed: storage capacity (CSIStorageCapacity), so a driver that tracks it is taken to have room everywhere. The
node affinity of an in-tree volume is read as it is written, not translated to the labels of its CSI driver.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np
from msgspec import Struct

from startgate.engine.catalogue import Catalogue, Key
from startgate.engine.claims import NOTHING, Needs, Plan, attached_by, make_plan, needs_of
from startgate.engine.nodes import Ints
from startgate.model.shape import Shape

K = TypeVar("K", bound=Hashable)


class Tally(Struct, frozen=True):
    """What counts as attached to a node."""

    shared: frozenset[tuple[str, str]] = frozenset()
    """(driver, which) of the volumes of claims, each once however many pods use it."""
    counts: Mapping[str, int] = {}
    """By driver, all of them."""


class Storage(Catalogue):
    """What `Catalogue` knows, and the pods."""

    def __init__(self) -> None:
        super().__init__()
        self.on: dict[int, dict[Needs, int]] = {}
        """By slot, how many pods with which needs."""
        self.users: dict[Key, dict[int, int]] = {}
        """By claim, how many pods use it in which slot."""
        self.unsettled: dict[tuple[Needs, int], int] = {}
        """Of the pods those that may have no volumes yet."""
        self._plans: dict[Needs, Plan] = {}
        self._tallies: dict[int, Tally] = {}
        self._attached: dict[str, Ints] = {}
        self._where: dict[tuple[str, str], set[int]] = {}
        self._stale: set[int] | None = None
        """Slots whose tally is to be made anew; None: all."""

    def add_pod(self, shape: Shape, slot: int, count: int = 1, *, settled: bool = True) -> None:
        """Counts pods in this slot, whether or not its node is known; negative takes them away.

        `settled`: they are bound, so that their volumes are. Others (nominated) still have to get theirs.
        """
        needs = needs_of(shape)
        if needs is NOTHING:
            return
        _count(self.on.setdefault(slot, {}), needs, count)
        for name in needs.claims:
            _count(self.users.setdefault((needs.namespace, name), {}), slot, count)
        if not settled:
            _count(self.unsettled, (needs, slot), count)
        self.version += 1
        if self._stale is not None:
            self._stale.add(slot)

    def copy(self) -> "Storage":
        """Another one like this; a change to either isn't seen in the other."""
        twin = Storage()
        self._copy_into(twin)
        twin.on = {slot: dict(held) for slot, held in self.on.items()}
        twin.users = {claim: dict(slots) for claim, slots in self.users.items()}
        twin.unsettled = dict(self.unsettled)
        twin._plans = dict(self._plans)
        return twin

    def plan(self, needs: Needs) -> Plan:
        """What these needs come to, as long as nothing changes but pods."""
        found = self._plans.get(needs)
        if found is None:
            found = self._plans[needs] = make_plan(needs, self)
        return found

    def attached(self, driver: str) -> Ints:
        """By slot, how many of this driver's volumes count as attached. Not to be written into."""
        self._refresh()
        found = self._attached.get(driver)
        if found is None:
            found = self._attached[driver] = np.zeros(self.width, dtype=np.int64)
        return found

    def where(self, volume: tuple[str, str]) -> set[int]:
        """The slots that have this volume (driver, which) attached for a pod. Not to be changed."""
        self._refresh()
        return self._where.get(volume, set())

    def tally(self, slot: int, held: Mapping[Needs, int], *, bare: bool = False) -> Tally:
        """What counts as attached if these are the pods in the slot.

        What is attached and no pod has counts as well, until it is detached; what a pod had that is gone is on its way
        out, and with `bare` everything else is. An attached volume whose claim is a pod's own is counted by the pod.
        """
        shared: set[tuple[str, str]] = set()
        counts: Counter[str] = Counter()
        for needs, count in held.items():
            ours, each = attached_by(needs, self)
            shared.update(ours)
            for driver, volumes in each.items():
                counts[driver] += volumes * count
        counts.update(driver for driver, _ in shared)
        if not bare:
            counts.update(driver for driver, which in self._left(slot) if (driver, which) not in shared)
        return Tally(frozenset(shared), counts)

    def _left(self, slot: int) -> set[tuple[str, str]]:
        """What is attached to the node though no pod that is there now has it."""
        found = set()
        for attachment in self.attached_to.get(self.names.get(slot, ""), {}).values():
            volume = self.volumes.get(attachment.volume)
            if volume is None or not volume.driver or not attachment.driver:
                continue
            claim = self.claims.get(volume.claim[:2]) if volume.claim is not None else None
            if claim is None or not claim.owner:
                found.add((attachment.driver, volume.handle))
        for needs in self.on.get(slot, {}):
            found.difference_update(attached_by(needs, self)[0])
        return found

    def _refresh(self) -> None:
        if self._stale is None:
            self._tallies, self._attached, self._where = {}, {}, {}
            nodes = (self.slots[name] for name, held in self.attached_to.items() if held and name in self.slots)
            self._stale = {*self.on, *nodes}
        for slot in self._stale:
            before = self._tallies.pop(slot, Tally())
            after = self._tallies[slot] = self.tally(slot, self.on.get(slot, {}))
            for volume in before.shared - after.shared:
                self._where[volume].discard(slot)
            for volume in after.shared - before.shared:
                self._where.setdefault(volume, set()).add(slot)
            for driver in {*before.counts, *after.counts}:
                if driver not in self._attached:
                    self._attached[driver] = np.zeros(self.width, dtype=np.int64)
                self._attached[driver][slot] = after.counts.get(driver, 0)
        self._stale = set()

    def _changed(self) -> None:
        super()._changed()
        self._plans = {}
        self._stale = None


def _count(where: dict[K, int], key: K, count: int) -> None:
    left = where.get(key, 0) + count
    if left:
        where[key] = left
    else:
        del where[key]
