"""What CSI drivers say, as kube-scheduler's filters read it: on which nodes they are, how much each node can attach,
from where volumes can be used, and how large ones can still be made.

As in `storage`, each kind comes as the API server has it and is held in a compact form. What always holds: a compact
form is frozen and hashable; sizes are bytes; what a driver leaves unsaid of its room is room for nothing.
"""

from typing import Final

from msgspec import Struct

from startgate.model.quantity import Quantity, parse_units
from startgate.model.selectors import LabelSelector, Many
from startgate.model.wire import ObjectMeta, Wire

MOST: Final = 2**63 - 1
"""A quantity that is larger counts as this."""


# --- as the API server has them ---------------------------------------------------------------------------------


class VolumeNodeResources(Wire, frozen=True):
    count: int | None = None


class CSINodeDriver(Wire, frozen=True):
    nullable = {"topology_keys": tuple}

    name: str = ""
    topology_keys: Many[str] = ()
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(Wire, frozen=True):
    nullable = {"drivers": tuple}

    drivers: Many[CSINodeDriver] = ()


class CSINode(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: CSINodeSpec = CSINodeSpec()


class CSIDriverSpec(Wire, frozen=True):
    storage_capacity: bool | None = None
    prevent_pod_scheduling_if_missing: bool | None = None


class CSIDriver(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: Quantity | None = None
    maximum_volume_size: Quantity | None = None


# --- as they are held -------------------------------------------------------------------------------------------


class NodeDrivers(Struct, frozen=True, kw_only=True):
    """A CSINode: the drivers on the node of that name."""

    name: str
    drivers: tuple[tuple[str, int | None], ...] = ()
    """Sorted; each with how many volumes it can attach there, None for no limit."""
    keys: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Sorted; each with the node's labels (topologyKeys) that say from where a volume made for this node can be used:
    from every node with the same values; with no key, from everywhere."""


class AnyNodeDriver(Struct, frozen=True, kw_only=True):
    """A CSIDriver: what holds of it on every node."""

    name: str
    required: bool = False
    """Whether pods with its volumes stay away from nodes that it isn't on (KEP-5030)."""
    tracked: bool = False
    """Whether it says where there is room for its volumes (KEP-1472): then there is none elsewhere."""


class Capacity(Struct, frozen=True, kw_only=True):
    """A CSIStorageCapacity: how large a volume of one class can be made for some nodes."""

    namespace: str
    name: str
    storage_class: str
    topology: LabelSelector | None = None
    """The nodes that it is about, by their labels; None: none of them."""
    largest: int = 0
    """The largest volume that can be made there: the largest that there can be at all, where the driver says it."""


def drivers_of(wire: CSINode) -> NodeDrivers:
    """The compact form."""
    drivers = sorted(wire.spec.drivers, key=lambda each: each.name)
    return NodeDrivers(
        name=wire.metadata.name,
        drivers=tuple((each.name, each.allocatable.count if each.allocatable else None) for each in drivers),
        keys=tuple((each.name, tuple(sorted(each.topology_keys))) for each in drivers),
    )


def driver_of(wire: CSIDriver) -> AnyNodeDriver:
    """The compact form."""
    spec = wire.spec
    return AnyNodeDriver(
        name=wire.metadata.name,
        required=spec.prevent_pod_scheduling_if_missing is True,
        tracked=spec.storage_capacity is True,
    )


def capacity_of(wire: CSIStorageCapacity) -> Capacity:
    """The compact form. Raises QuantityError."""
    limit = wire.capacity if wire.maximum_volume_size is None else wire.maximum_volume_size
    return Capacity(
        namespace=wire.metadata.namespace,
        name=wire.metadata.name,
        storage_class=wire.storage_class_name,
        topology=wire.node_topology,
        largest=0 if limit is None else min(parse_units(limit), MOST),
    )
