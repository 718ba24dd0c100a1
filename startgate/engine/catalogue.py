"""Volumes, claims, classes and drivers, as the API server has them, and from which nodes each can be used.

What kube-scheduler's plugins VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits read, besides pods.
What always holds: the order in which things came has no influence on any answer; an array that is handed out is of
`width` slots, right as long as `version` is the same, and not to be written into.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias, TypeVar

import numpy as np

from startgate.engine.nodes import Bools, Ints
from startgate.engine.places import Labels, Places
from startgate.model.storage import (
    MIGRATED,
    AnyNodeDriver,
    Attachment,
    NodeDrivers,
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

T = TypeVar("T")
K = TypeVar("K")


class Catalogue:
    """The attributes are for reading; methods change them."""

    def __init__(self) -> None:
        self.claims: dict[Key, VolumeClaim] = {}
        self.volumes: dict[str, Volume] = {}
        self.by_class: dict[str, dict[str, Volume]] = {}
        self.classes: dict[str, VolumeClass] = {}
        self.on_node: dict[str, NodeDrivers] = {}
        """By the node's name."""
        self.everywhere: dict[str, AnyNodeDriver] = {}
        self.attachments: dict[str, Attachment] = {}
        self.attached_to: dict[str, dict[str, Attachment]] = {}
        """The same by the node's name."""
        self.places = Places()
        self.slots: dict[str, int] = {}
        """Of the known nodes, by name."""
        self.names: dict[int, str] = {}
        self.width = 0
        self.version = 0
        """Another one: something changed, on which an answer may depend."""
        self._limits: dict[str, Ints] = {}
        self._having: dict[str, Bools] = {}
        self._segments: dict[str, Ints] = {}

    def set_node(self, slot: int, name: str, labels: Labels | None) -> None:
        """The node in this slot and its labels; None: the node isn't known (any more)."""
        before = self.names.pop(slot, None)
        if before is not None:
            del self.slots[before]
        if labels is not None:
            self.names[slot] = name
            self.slots[name] = slot
        if before == (name if labels is not None else None) and self.places.labels.get(slot) == labels:
            return
        self.places.put(slot, labels)
        self._changed()

    def set_claim(self, claim: VolumeClaim) -> None:
        self._set(self.claims, (claim.namespace, claim.name), claim)

    def remove_claim(self, namespace: str, name: str) -> None:
        self._set(self.claims, (namespace, name), None)

    def set_volume(self, volume: Volume) -> None:
        before = self.volumes.get(volume.name)
        if before is not None and before.storage_class != volume.storage_class:
            self.remove_volume(volume.name)
        self._set(self.volumes, volume.name, volume)
        self.by_class.setdefault(volume.storage_class, {})[volume.name] = volume

    def remove_volume(self, name: str) -> None:
        before = self.volumes.get(name)
        if before is not None:
            del self.by_class[before.storage_class][name]
            self._set(self.volumes, name, None)

    def set_class(self, made: VolumeClass) -> None:
        self._set(self.classes, made.name, made)

    def remove_class(self, name: str) -> None:
        self._set(self.classes, name, None)

    def set_node_drivers(self, drivers: NodeDrivers) -> None:
        self._set(self.on_node, drivers.name, drivers)

    def remove_node_drivers(self, name: str) -> None:
        self._set(self.on_node, name, None)

    def set_driver(self, driver: AnyNodeDriver) -> None:
        self._set(self.everywhere, driver.name, driver)

    def remove_driver(self, name: str) -> None:
        self._set(self.everywhere, name, None)

    def set_attachment(self, attachment: Attachment) -> None:
        if self.attachments.get(attachment.name) != attachment:
            self.remove_attachment(attachment.name)
            self.attached_to.setdefault(attachment.node, {})[attachment.name] = attachment
            self._set(self.attachments, attachment.name, attachment)

    def remove_attachment(self, name: str) -> None:
        before = self.attachments.get(name)
        if before is not None:
            del self.attached_to[before.node][name]
            self._set(self.attachments, name, None)

    def widen(self, width: int) -> None:
        """From now on arrays are of so many slots."""
        if width != self.width:
            self.width = width
            self._changed()

    def default_class(self) -> VolumeClass | None:
        """The class of claims that name none: the newest of the defaults."""
        defaults = [each for each in self.classes.values() if each.default]
        return min(defaults, key=lambda each: (-each.created, each.name), default=None)

    def reach(self, volume: Volume) -> Ints | None:
        """The slots from which it can be used, by its node affinity; None: all of them."""
        return None if volume.affinity is None else self.places.reached(volume.affinity)

    def mask(self, slots: Ints | None) -> Bools:
        """The same as a mask."""
        found = np.full(self.width, slots is None, dtype=np.bool_)
        if slots is not None:
            found[slots] = True
        return found

    def usable(self, volume: Volume) -> Bools:
        """By slot, whether it can be used there once a claim has it: by its node affinity and by its zones."""
        mask = self.mask(self.reach(volume))
        return mask & self.mask(self.places.zoned(volume.zones)) if volume.zones else mask

    def limits(self, driver: str) -> Ints:
        """By slot, how many of this driver's volumes can be attached at most."""
        limits = self._limits.get(driver)
        if limits is None:
            limits = self._limits[driver] = np.full(self.width, UNLIMITED, dtype=np.int64)
            for slot, node in self._drivers():
                for each, limit in node.drivers:
                    if each == driver and limit is not None:
                        limits[slot] = limit
        return limits

    def having(self, driver: str) -> Bools:
        """By slot, whether the node has this driver."""
        having = self._having.get(driver)
        if having is None:
            having = self._having[driver] = np.zeros(self.width, dtype=np.bool_)
            for slot, node in self._drivers():
                having[slot] = any(each == driver for each, _ in node.drivers)
        return having

    def segments(self, driver: str) -> Ints:
        """By slot, a number that nodes share where what is made for one of them can be used from all of them.

        A CSI driver says by which labels (topologyKeys). A node of which nothing is known is alone.
        """
        segments = self._segments.get(driver)
        if segments is None:
            segments = self._segments[driver] = np.arange(self.width, dtype=np.int64)
            first: dict[tuple[tuple[str, str], ...], int] = {}
            for slot, node in self._drivers():
                keys, labels = dict(node.keys).get(driver), self.places.labels[slot]
                if keys is not None and all(key in labels for key in keys):
                    segments[slot] = first.setdefault(tuple((key, labels[key]) for key in keys), slot)
        return segments

    def _drivers(self) -> Iterator[tuple[int, NodeDrivers]]:
        for slot, name in sorted(self.names.items()):
            if name in self.on_node:
                yield slot, self.on_node[name]

    def _set(self, where: dict[K, T], key: K, value: T | None) -> None:
        if where.get(key) == value:
            return
        if value is None:
            del where[key]
        else:
            where[key] = value
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._limits, self._having, self._segments = {}, {}, {}

    def _copy_into(self, twin: "Catalogue") -> None:
        twin.claims = dict(self.claims)
        twin.volumes = dict(self.volumes)
        twin.by_class = {name: dict(volumes) for name, volumes in self.by_class.items()}
        twin.classes = dict(self.classes)
        twin.on_node = dict(self.on_node)
        twin.everywhere = dict(self.everywhere)
        twin.attachments = dict(self.attachments)
        twin.attached_to = {node: dict(held) for node, held in self.attached_to.items()}
        twin.places = self.places.copy()
        twin.slots, twin.names = dict(self.slots), dict(self.names)
        twin.width, twin.version = self.width, self.version
        twin._limits, twin._having, twin._segments = dict(self._limits), dict(self._having), dict(self._segments)


def driver_of_volume(volume: Volume) -> str:
    """The CSI driver among whose volumes it counts; "" for none."""
    return volume.driver or MIGRATED.get(volume.in_tree, "")


def driver_of_class(made: VolumeClass | None) -> str:
    """The CSI driver among whose volumes a claim counts that has none yet; "" for none."""
    if made is None or made.provisioner in NOT_COUNTED:
        return ""
    return MIGRATED.get(made.provisioner, made.provisioner)
