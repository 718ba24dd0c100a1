"""Volumes, claims, classes and drivers, as the API server has them, and from which nodes each can be used.

What kube-scheduler's plugins VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits read, besides pods.
What always holds: the order in which things came has no influence on any answer; an array that is handed out is of
`width` slots, right as long as `version` is the same, and not to be written into.
"""

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct

from startgate.engine.capacity import Capacities
from startgate.engine.nodes import Bools, Ints
from startgate.engine.places import Labels, Places
from startgate.engine.shelf import Offers, Shelf
from startgate.model.drivers import AnyNodeDriver, Capacity, NodeDrivers
from startgate.model.selectors import LabelSelector
from startgate.model.storage import (
    MIGRATED,
    Attachment,
    Volume,
    VolumeClaim,
    VolumeClass,
)

Key: TypeAlias = tuple[str, str]
"""Namespace and name of a claim."""

UNLIMITED: Final = 2**40
"""More than anybody asks for, and far from the end of the numbers."""

NOT_COUNTED: Final = frozenset({"kubernetes.io/azure-file", "kubernetes.io/vsphere-volume"})
"""Provisioners that kube-scheduler knows to have become CSI drivers, and whose volumes it doesn't count."""

KEPT: Final = 256
"""Kinds of claims whose volumes are remembered; beyond that all are forgotten, and looked for again where needed."""

T = TypeVar("T")
K = TypeVar("K")
L = TypeVar("L")


class Asked(Struct, frozen=True, cache_hash=True):
    """What a claim asks of a volume that exists."""

    storage_class: str
    size: int
    block: bool
    modes: tuple[str, ...]
    selector: LabelSelector | None
    attributes_class: str
    free: bool
    """Whether it must be nobody's now; otherwise it may become so."""

    def sized(self, volume: Volume) -> bool:
        """Whether it would do as one that is kept for the claim: what kube-scheduler asks of each of them."""
        return (
            volume.storage_class == self.storage_class
            and volume.capacity >= self.size
            and volume.block == self.block
            and volume.attributes_class == self.attributes_class
            and not volume.deleting
        )

    def suits(self, volume: Volume) -> bool:
        """Whether it would do as any other, from where it can be used aside."""
        return (
            self.sized(volume)
            and (not self.free or (volume.phase == "Available" and volume.claim is None))
            and set(self.modes) <= set(volume.modes)
            and (self.selector is None or self.selector.matches(dict(volume.labels)))
        )


class Catalogue:
    """The attributes are for reading; methods change them."""

    def __init__(self) -> None:
        self.claims: dict[Key, VolumeClaim] = {}
        self.volumes: dict[str, Volume] = {}
        self.held_by: dict[Key, dict[str, Volume]] = {}
        """By claim, the volumes that say that it has them, or that are kept for it."""
        self.claims_of: dict[str, dict[Key, VolumeClaim]] = {}
        """By volume, the claims that say that they have it, or ask for it."""
        self.classes: dict[str, VolumeClass] = {}
        self.on_node: dict[str, NodeDrivers] = {}
        """By the node's name."""
        self.everywhere: dict[str, AnyNodeDriver] = {}
        self.attachments: dict[str, Attachment] = {}
        self.attached_to: dict[str, dict[str, Attachment]] = {}
        """The same by the node's name."""
        self.nodes_with: dict[str, dict[str, str]] = {}
        """By volume and attachment, the node's name."""
        self.capacities = Capacities()
        self.places = Places()
        self.slots: dict[str, int] = {}
        """Of the known nodes, by name."""
        self.names: dict[int, str] = {}
        self.width = 0
        self.version = 0
        """Another one: something changed, on which an answer may depend."""
        self.nodes_stamp = 0
        """Another one: nodes or their drivers have changed."""
        self.classes_stamp = 0
        self._of_class: dict[str, dict[str, Volume]] = {}
        self._shelves: dict[str, Shelf] = {}
        self._offers: dict[Asked, Offers] = {}
        self._limits: dict[str, Ints] = {}
        self._having: dict[str, Bools] = {}
        self._segments: dict[str, tuple[Ints, Bools]] = {}

    def set_node(self, slot: int, name: str, labels: Labels | None) -> None:
        """The node in this slot and its labels; None: the node isn't known (any more)."""
        before = self.names.pop(slot, None)
        if before is not None:
            del self.slots[before]
        if labels is not None:
            self.names[slot] = name
            self.slots[name] = slot
        if before != self.names.get(slot) or self.places.labels.get(slot) != labels:
            self.places.put(slot, labels)
            self._renew_nodes()
            self._changed(slots=(slot,))

    def set_claim(self, claim: VolumeClaim) -> None:
        self._claim((claim.namespace, claim.name), claim)

    def remove_claim(self, namespace: str, name: str) -> None:
        self._claim((namespace, name), None)

    def set_volume(self, volume: Volume) -> None:
        before = self.volumes.get(volume.name)
        if before == volume:
            return
        if before is not None and (before.storage_class, before.claim) != (volume.storage_class, volume.claim):
            self.remove_volume(volume.name)
        self.volumes[volume.name] = volume
        self._of_class.setdefault(volume.storage_class, {})[volume.name] = volume
        if volume.storage_class in self._shelves:
            self._shelves[volume.storage_class].put(volume)
        if volume.claim is not None:
            self.held_by.setdefault(volume.claim[:2], {})[volume.name] = volume
        self._changed(claims=self.claims_of.get(volume.name, ()), volumes=(volume.name,))

    def remove_volume(self, name: str) -> None:
        before = self.volumes.pop(name, None)
        if before is None:
            return
        del self._of_class[before.storage_class][name]
        if before.storage_class in self._shelves:
            self._shelves[before.storage_class].drop(name)
        if before.claim is not None:
            _discard(self.held_by, before.claim[:2], name)
        self._changed(claims=self.claims_of.get(name, ()), volumes=(name,))

    def set_class(self, made: VolumeClass) -> None:
        self._class(made.name, made)

    def remove_class(self, name: str) -> None:
        self._class(name, None)

    def set_node_drivers(self, drivers: NodeDrivers) -> None:
        self._drivers(self.on_node, drivers.name, drivers)

    def remove_node_drivers(self, name: str) -> None:
        self._drivers(self.on_node, name, None)

    def set_driver(self, driver: AnyNodeDriver) -> None:
        self._drivers(self.everywhere, driver.name, driver)

    def remove_driver(self, name: str) -> None:
        self._drivers(self.everywhere, name, None)

    def set_attachment(self, attachment: Attachment) -> None:
        if self.attachments.get(attachment.name) != attachment:
            self.remove_attachment(attachment.name)
            self.attachments[attachment.name] = attachment
            self.attached_to.setdefault(attachment.node, {})[attachment.name] = attachment
            self.nodes_with.setdefault(attachment.volume, {})[attachment.name] = attachment.node
            self._changed(nodes=(attachment.node,))

    def remove_attachment(self, name: str) -> None:
        before = self.attachments.pop(name, None)
        if before is not None:
            _discard(self.attached_to, before.node, name)
            _discard(self.nodes_with, before.volume, name)
            self._changed(nodes=(before.node,))

    def set_capacity(self, capacity: Capacity) -> None:
        if self.capacities.put(capacity):
            self._changed()

    def remove_capacity(self, namespace: str, name: str) -> None:
        if self.capacities.drop(namespace, name):
            self._changed()

    def widen(self, width: int) -> None:
        """From now on arrays are of so many slots."""
        if width != self.width:
            self.width = width
            self._renew_nodes()
            self._changed(everything=True)

    def offers(self, asked: Asked) -> Offers:
        """The volumes that exist for such a claim, as they are now."""
        shelf = self._shelves.get(asked.storage_class)
        if shelf is None:
            shelf = Shelf(self._of_class.get(asked.storage_class, {}).values())
            self._shelves[asked.storage_class] = shelf
        shelf.settle(self.nodes_stamp, self.width, self.places.reached)
        found = self._offers.get(asked)
        if found is None:
            if len(self._offers) >= KEPT:
                self._offers = {}
            found = self._offers[asked] = Offers(shelf, asked.suits)
        return found.sync()

    def default_class(self) -> VolumeClass | None:
        """The class of claims that name none: the newest of the defaults."""
        defaults = [each for each in self.classes.values() if each.default]
        return min(defaults, key=lambda each: (-each.created, each.name), default=None)

    def mask(self, slots: Ints) -> Bools:
        """These slots as a mask."""
        found = np.zeros(self.width, dtype=np.bool_)
        found[slots] = True
        return found

    def reach(self, volume: Volume) -> Bools:
        """By slot, whether it can be used there by its node affinity."""
        if volume.affinity is None:
            return np.ones(self.width, dtype=np.bool_)
        return self.mask(self.places.reached(volume.affinity))

    def usable(self, volume: Volume) -> Bools:
        """By slot, whether it can be used there once a claim has it: by its node affinity and by its zones."""
        mask = self.reach(volume)
        return mask & self.mask(self.places.zoned(volume.zones)) if volume.zones else mask

    def limits(self, driver: str) -> Ints:
        """By slot, how many of this driver's volumes can be attached at most."""
        limits = self._limits.get(driver)
        if limits is None:
            limits = self._limits[driver] = np.full(self.width, UNLIMITED, dtype=np.int64)
            for slot, node in self._on_slots():
                for each, limit in node.drivers:
                    if each == driver and limit is not None:
                        limits[slot] = limit
        return limits

    def having(self, driver: str) -> Bools:
        """By slot, whether the node has this driver."""
        having = self._having.get(driver)
        if having is None:
            having = self._having[driver] = np.zeros(self.width, dtype=np.bool_)
            for slot, node in self._on_slots():
                having[slot] = any(each == driver for each, _ in node.drivers)
        return having

    def segments(self, driver: str) -> Ints:
        """By slot, a number that nodes share where what is made for one of them can be used from all of them.

        A CSI driver says by which labels (topologyKeys). A node of which nothing is known is alone.
        """
        return self._segmented(driver)[0]

    def made_ever(self, made: VolumeClass) -> Bools:
        """By slot, whether the class makes volumes for the node there, as long as there is room for them.

        For a node without the labels by which its driver says where a volume can be used, the driver makes none.
        """
        if not made.makes:
            return np.zeros(self.width, dtype=np.bool_)
        return self.mask(self.places.provisioned(made)) & self._segmented(driver_of_class(made))[1]

    def roomy(self, made: VolumeClass, size: int) -> Bools | None:
        """By slot, whether its driver says that a volume of this size can be made now; None: it doesn't say, and
        kube-scheduler doesn't ask. A driver is asked by the very name that is in the class."""
        driver = self.everywhere.get(made.provisioner)
        if driver is None or not driver.tracked:
            return None
        return self.capacities.largest(made.name, self.places, self.nodes_stamp, self.width) >= size

    def _segmented(self, driver: str) -> tuple[Ints, Bools]:
        """The segments, and by slot whether it has the labels that the driver there goes by."""
        found = self._segments.get(driver)
        if found is None:
            segments, labelled = np.arange(self.width, dtype=np.int64), np.ones(self.width, dtype=np.bool_)
            first: dict[tuple[tuple[str, str], ...], int] = {}
            for slot, node in self._on_slots():
                keys, labels = dict(node.keys).get(driver), self.places.labels[slot]
                if keys is not None:
                    labelled[slot] = all(key in labels for key in keys)
                if keys is not None and labelled[slot]:
                    segments[slot] = first.setdefault(tuple((key, labels[key]) for key in keys), slot)
            found = self._segments[driver] = segments, labelled
        return found

    def _on_slots(self) -> Iterator[tuple[int, NodeDrivers]]:
        for slot, name in sorted(self.names.items()):
            if name in self.on_node:
                yield slot, self.on_node[name]

    def _claim(self, key: Key, claim: VolumeClaim | None) -> None:
        before = self.claims.get(key)
        if _put(self.claims, key, claim):
            if before is not None:
                _discard(self.claims_of, before.volume, key)
            if claim is not None:
                self.claims_of.setdefault(claim.volume, {})[key] = claim
            volumes = {each.volume for each in (before, claim) if each is not None}
            self._changed(claims=(key,), volumes=volumes)

    def _class(self, name: str, made: VolumeClass | None) -> None:
        if _put(self.classes, name, made):
            self.classes_stamp += 1
            self._changed(everything=True)

    def _drivers(self, where: dict[str, T], name: str, driver: T | None) -> None:
        if _put(where, name, driver):
            self._renew_nodes()
            self._changed()

    def _renew_nodes(self) -> None:
        self.nodes_stamp += 1
        self._limits, self._having, self._segments = {}, {}, {}

    def _changed(
        self,
        *,
        slots: Iterable[int] = (),
        nodes: Iterable[str] = (),
        claims: Iterable[Key] = (),
        volumes: Iterable[str] = (),
        everything: bool = False,
    ) -> None:
        """Hears of each change, and of what it is about."""
        self.version += 1

    def _copy_into(self, twin: "Catalogue") -> None:
        twin.claims = dict(self.claims)
        twin.volumes = dict(self.volumes)
        twin.held_by = {claim: dict(volumes) for claim, volumes in self.held_by.items()}
        twin.claims_of = {volume: dict(claims) for volume, claims in self.claims_of.items()}
        twin.classes = dict(self.classes)
        twin.on_node = dict(self.on_node)
        twin.everywhere = dict(self.everywhere)
        twin.attachments = dict(self.attachments)
        twin.attached_to = {node: dict(held) for node, held in self.attached_to.items()}
        twin.nodes_with = {volume: dict(held) for volume, held in self.nodes_with.items()}
        twin.capacities = self.capacities.copy()
        twin.places = self.places.copy()
        twin.slots, twin.names = dict(self.slots), dict(self.names)
        twin.width, twin.version = self.width, self.version
        twin._of_class = {name: dict(volumes) for name, volumes in self._of_class.items()}


def driver_of_volume(volume: Volume) -> str:
    """The CSI driver among whose volumes it counts; "" for none."""
    return volume.driver or MIGRATED.get(volume.in_tree, "")


def driver_of_class(made: VolumeClass | None) -> str:
    """The CSI driver among whose volumes a claim counts that has none yet; "" for none."""
    if made is None or made.provisioner in NOT_COUNTED:
        return ""
    return MIGRATED.get(made.provisioner, made.provisioner)


def _put(where: dict[K, T], key: K, value: T | None) -> bool:
    """Whether that changed anything; None takes away."""
    if where.get(key) == value:
        return False
    if value is None:
        del where[key]
    else:
        where[key] = value
    return True


def _discard(where: dict[K, dict[L, T]], key: K, name: L) -> None:
    held = where[key]
    del held[name]
    if not held:
        del where[key]
