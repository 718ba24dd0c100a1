"""Volumes, and the pods that use them: what nodes have attached, and who has which claim.

It follows kube-scheduler's plugins VolumeBinding, VolumeZone, VolumeRestrictions (of claims) and NodeVolumeLimits; what
that comes to for pods is in `volumes`. What always holds: the order in which things came has no influence on any
answer; pods without claims cost nothing; a change costs what it touches.

Not followed: the node affinity of an in-tree volume is read as it is written, not translated to the labels of its CSI
driver.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, TypeVar

import numpy as np
from msgspec import Struct

from startgate.engine.catalogue import Catalogue, Key
from startgate.engine.claims import NOTHING, Attaches, Needs, Plan, attached_by, basis, make_plan, needs_of, room_basis
from startgate.engine.nodes import Ints
from startgate.model.shape import Shape

PLANS: Final = 1024
ATTACHES: Final = 2**16
"""So many are remembered; beyond that all are forgotten, and worked out again where needed."""

K = TypeVar("K", bound=Hashable)
L = TypeVar("L", bound=Hashable)


class Tally(Struct, frozen=True):
    """What counts as attached to a node."""

    shared: frozenset[tuple[str, str]] = frozenset()
    """(driver, which) of the volumes of claims, each once however many pods use it."""
    counts: Mapping[str, int] = {}
    """By driver, all that pods have."""
    left: Mapping[str, int] = {}
    """By driver, what is attached though no pod has it: until it is detached."""

    def total(self, driver: str) -> int:
        return self.counts.get(driver, 0) + self.left.get(driver, 0)

    def plus(self, attaches: Attaches, pods: int) -> "Tally":
        """The same with so many pods more."""
        counts = dict(self.counts)
        for volume in attaches.shared:
            if volume not in self.shared:
                counts[volume[0]] = counts.get(volume[0], 0) + 1
        for driver, volumes in attaches.each.items():
            counts[driver] = counts.get(driver, 0) + volumes * pods
        return Tally(self.shared.union(attaches.shared), counts, self.left)


NONE_ATTACHED: Final = Tally()


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
        self._plans: dict[Needs, tuple[tuple[object, ...], Plan]] = {}
        self._attaches: dict[Needs, tuple[tuple[object, ...], Attaches]] = {}
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
        _count(self.on, slot, needs, count)
        for name in needs.claims:
            _count(self.users, (needs.namespace, name), slot, count)
        if not settled:
            left = self.unsettled.pop((needs, slot), 0) + count
            if left:
                self.unsettled[needs, slot] = left
        self._changed(slots=(slot,))

    def copy(self) -> "Storage":
        """Another one like this; a change to either isn't seen in the other."""
        twin = Storage()
        self._copy_into(twin)
        twin.on = {slot: dict(held) for slot, held in self.on.items()}
        twin.users = {claim: dict(slots) for claim, slots in self.users.items()}
        twin.unsettled = dict(self.unsettled)
        return twin

    def plan(self, needs: Needs) -> Plan:
        """What these needs come to."""
        now = (*basis(needs, self), *room_basis(needs, self))
        found = self._plans.get(needs)
        if found is None or found[0] != now:
            if len(self._plans) >= PLANS:
                self._plans = {}
            found = self._plans[needs] = now, make_plan(needs, self)
        return found[1]

    def attaches(self, needs: Needs) -> Attaches:
        """What pods with these needs have attached."""
        now = basis(needs, self)
        found = self._attaches.get(needs)
        if found is None or found[0] != now:
            if len(self._attaches) >= ATTACHES:
                self._attaches = {}
            found = self._attaches[needs] = now, attached_by(needs, self)
        return found[1]

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

    def tally(self, slot: int) -> Tally:
        """What counts as attached there."""
        self._refresh()
        return self._tallies.get(slot, NONE_ATTACHED)

    def tally_of(self, held: Mapping[Needs, int], left: Mapping[str, int]) -> Tally:
        """What would count as attached to a node with these pods, and so much by driver that no pod has."""
        made = Tally(left=left)
        for needs, count in held.items():
            if count > 0:
                made = made.plus(self.attaches(needs), count)
        return made

    def _refresh(self) -> None:
        if self._stale is None:
            self._tallies, self._attached, self._where = {}, {}, {}
            self._stale = {*self.on, *(self.slots[name] for name in self.attached_to if name in self.slots)}
        for slot in self._stale:
            before = self._tallies.pop(slot, NONE_ATTACHED)
            after = self.tally_of(self.on.get(slot, {}), {})
            after = self._tallies[slot] = Tally(after.shared, after.counts, self._left(slot, after.shared))
            for volume in before.shared - after.shared:
                self._where[volume].discard(slot)
            for volume in after.shared - before.shared:
                self._where.setdefault(volume, set()).add(slot)
            for driver in {*before.counts, *after.counts, *before.left, *after.left}:
                if driver not in self._attached:
                    self._attached[driver] = np.zeros(self.width, dtype=np.int64)
                self._attached[driver][slot] = after.total(driver)
        self._stale.clear()

    def _left(self, slot: int, shared: frozenset[tuple[str, str]]) -> Counter[str]:
        """By driver, what is attached to the node though no pod there has it.

        A volume whose claim is a pod's own is counted by the pod.
        """
        found = set()
        for attachment in self.attached_to.get(self.names.get(slot, ""), {}).values():
            volume = self.volumes.get(attachment.volume)
            if volume is None or not volume.driver or not attachment.driver:
                continue
            claim = self.claims.get(volume.claim[:2]) if volume.claim is not None else None
            if claim is None or not claim.owner:
                found.add((attachment.driver, volume.handle))
        return Counter(driver for driver, _ in found - shared)

    def _changed(
        self,
        *,
        slots: Iterable[int] = (),
        nodes: Iterable[str] = (),
        claims: Iterable[Key] = (),
        volumes: Iterable[str] = (),
        everything: bool = False,
    ) -> None:
        super()._changed()
        if everything:
            self._stale = None
        if self._stale is None:
            return
        with_volumes = (node for volume in volumes for node in self.nodes_with.get(volume, {}).values())
        self._stale.update(slots)
        self._stale.update(self.slots[name] for name in (*nodes, *with_volumes) if name in self.slots)
        for claim in claims:
            self._stale.update(self.users.get(claim, ()))


def _count(where: dict[K, dict[L, int]], outer: K, inner: L, count: int) -> None:
    held = where.setdefault(outer, {})
    left = held.pop(inner, 0) + count
    if left:
        held[inner] = left
    elif not held:
        del where[outer]
