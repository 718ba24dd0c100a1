"""Volumes as kube-scheduler's filters see them: claims, what they are bound to, who makes more, what is attached.

Each kind comes as the API server has it (`PersistentVolume`, ..., only the fields that are read) and is held in a
compact form (`Volume`, ...), which `volume_of` and its like make. What always holds: a compact form is frozen and
hashable; what may be said by an old annotation or by a field is one thing here; sizes are bytes; None means none.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from startgate.model.mounts import PersistentVolumeClaimSpec
from startgate.model.objects import timestamp
from startgate.model.quantity import parse_units
from startgate.model.selectors import LabelSelector, Many, NodeSelector
from startgate.model.wire import ObjectMeta, Presence, Quantities, Wire

READ_WRITE_ONCE_POD: Final = "ReadWriteOncePod"
"""The access mode of a claim that one pod at a time may use (KEP-2485)."""

NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
"""The provisioner of a class whose volumes are made by hand."""

ZONES: Final = (
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
)
"""Labels of a PersistentVolume that say where it can be mounted."""

MULTIPLE: Final = "__"
"""Between the zones in one such label."""

CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
BOUND_ANNOTATION: Final = "pv.kubernetes.io/bind-completed"
SELECTED_ANNOTATION: Final = "volume.kubernetes.io/selected-node"
DEFAULT_ANNOTATIONS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)

IN_TREE: Final = {
    "aws_elastic_block_store": "kubernetes.io/aws-ebs",
    "azure_disk": "kubernetes.io/azure-disk",
    "cinder": "kubernetes.io/cinder",
    "gce_persistent_disk": "kubernetes.io/gce-pd",
    "portworx_volume": "kubernetes.io/portworx-volume",
}
"""Sources whose volumes count among a CSI driver's (nodevolumelimits, isCSIMigrationOn), by the plugin's old name."""

MIGRATED: Final = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
}
"""Which driver's."""


# --- as the API server has them ---------------------------------------------------------------------------------


class CsiSource(Wire, frozen=True):
    driver: str = ""
    volume_handle: str = ""


class ObjectReference(Wire, frozen=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class VolumeNodeAffinity(Wire, frozen=True):
    required: NodeSelector | None = None


class PersistentVolumeSpec(Wire, frozen=True):
    nullable = {"capacity": dict, "access_modes": tuple}

    capacity: Quantities = {}
    access_modes: Many[str] = ()
    claim_ref: ObjectReference | None = None
    storage_class_name: str = ""
    volume_mode: str | None = None
    node_affinity: VolumeNodeAffinity | None = None
    volume_attributes_class_name: str | None = None
    csi: CsiSource | None = None
    aws_elastic_block_store: Presence | None = None
    azure_disk: Presence | None = None
    cinder: Presence | None = None
    gce_persistent_disk: Presence | None = None
    portworx_volume: Presence | None = None


class PersistentVolumeStatus(Wire, frozen=True):
    phase: str = ""


class PersistentVolume(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class PersistentVolumeClaimStatus(Wire, frozen=True):
    phase: str = ""


class PersistentVolumeClaim(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class TopologyExpression(Wire, frozen=True):
    nullable = {"values": tuple}

    key: str = ""
    values: Many[str] = ()


class TopologyTerm(Wire, frozen=True):
    nullable = {"match_label_expressions": tuple}

    match_label_expressions: Many[TopologyExpression] = ()


class StorageClass(Wire, frozen=True):
    nullable = {"allowed_topologies": tuple}

    metadata: ObjectMeta = ObjectMeta()
    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: Many[TopologyTerm] = ()


class VolumeAttachmentSource(Wire, frozen=True):
    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Wire, frozen=True):
    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachment(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()


# --- as they are held -------------------------------------------------------------------------------------------


class Volume(Struct, frozen=True, kw_only=True):
    """A PersistentVolume."""

    name: str
    driver: str = ""
    """Its CSI driver; "" where it has another source."""
    handle: str = ""
    """By which the driver knows it: a volume that several pods of a node have is attached once."""
    in_tree: str = ""
    """The old name of its plugin, where its source is one that kube-scheduler translates (IN_TREE)."""
    affinity: NodeSelector | None = None
    """The nodes that can mount it, by their labels alone: it is matched with "" for the node's name."""
    labels: tuple[tuple[str, str], ...] = ()
    """Sorted; for the selectors of claims."""
    zones: tuple[tuple[str, frozenset[str]], ...] = ()
    """Of its labels those that say where it is (ZONES), each with the values of which a node must have one."""
    storage_class: str = ""
    attributes_class: str = ""
    capacity: int = 0
    modes: tuple[str, ...] = ()
    block: bool = False
    """Without a filesystem (volumeMode)."""
    claim: tuple[str, str, str] | None = None
    """(namespace, name, uid or "") of the claim that it is bound to, or kept for."""
    phase: str = ""
    """"Available" where a claim may be bound to it."""
    deleting: bool = False


class VolumeClaim(Struct, frozen=True, kw_only=True):
    """A PersistentVolumeClaim."""

    namespace: str
    name: str
    uid: str = ""
    owner: str = ""
    """The uid of its controller: the pod, for the claim of an ephemeral volume."""
    volume: str = ""
    """The PersistentVolume that it is bound to, or to be bound to."""
    bound: bool = False
    """Whether both sides are: until then kube-scheduler places no pod with a claim that binds at once."""
    lost: bool = False
    """Its volume is gone for good."""
    storage_class: str = ""
    """"" for none: only volumes without a class, bound at once."""
    attributes_class: str = ""
    modes: tuple[str, ...] = ()
    request: int = 0
    selector: LabelSelector | None = None
    """Which volumes it may be bound to; None for any."""
    block: bool = False
    node: str = ""
    """The node for which kube-scheduler is having its volume made."""
    deleting: bool = False


class VolumeClass(Struct, frozen=True, kw_only=True):
    """A StorageClass."""

    name: str
    provisioner: str = ""
    waits: bool = False
    """Whether a claim is bound only once a pod needs it (WaitForFirstConsumer)."""
    topologies: tuple[tuple[tuple[str, tuple[str, ...]], ...], ...] = ()
    """allowedTopologies: alternatives, each of (label, values) that must all hold."""
    default: bool = False
    created: float = 0.0
    """Seconds since 1970: of several defaults the newest counts, then the first by name."""

    @property
    def makes(self) -> bool:
        """Whether it makes volumes."""
        return self.provisioner not in ("", NO_PROVISIONER)

    def reaches(self, labels: Mapping[str, str]) -> bool:
        """Whether it makes volumes for nodes with these labels; no node meets an alternative that asks for nothing."""
        return not self.topologies or any(
            term and all(labels.get(key) in values for key, values in term) for term in self.topologies
        )


class Attachment(Struct, frozen=True, kw_only=True):
    """A VolumeAttachment: a volume that is attached to a node or about to be, whether or not a pod there has it."""

    name: str
    node: str
    driver: str = ""
    volume: str = ""
    """The PersistentVolume's name; "" where it has none."""


def volume_of(wire: PersistentVolume) -> Volume:
    """The compact form. Raises QuantityError."""
    metadata, spec = wire.metadata, wire.spec
    ref = spec.claim_ref
    return Volume(
        name=metadata.name,
        driver=spec.csi.driver if spec.csi else "",
        handle=spec.csi.volume_handle if spec.csi else "",
        in_tree=next((name for source, name in IN_TREE.items() if getattr(spec, source) is not None), ""),
        affinity=spec.node_affinity.required if spec.node_affinity else None,
        labels=tuple(sorted(metadata.labels.items())),
        zones=tuple((key, zones) for key in ZONES if (zones := _zones(metadata.labels.get(key, "")))),
        storage_class=metadata.annotations.get(CLASS_ANNOTATION, spec.storage_class_name),
        attributes_class=spec.volume_attributes_class_name or "",
        capacity=_size(spec.capacity),
        modes=spec.access_modes,
        block=spec.volume_mode == "Block",
        claim=(ref.namespace, ref.name, ref.uid) if ref else None,
        phase=wire.status.phase,
        deleting=metadata.deletion_timestamp is not None,
    )


def claim_of(wire: PersistentVolumeClaim) -> VolumeClaim:
    """The compact form. Raises QuantityError."""
    metadata, spec = wire.metadata, wire.spec
    owner = metadata.controller
    return VolumeClaim(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        owner=owner.uid if owner else "",
        volume=spec.volume_name,
        bound=bool(spec.volume_name) and BOUND_ANNOTATION in metadata.annotations,
        lost=wire.status.phase == "Lost",
        storage_class=metadata.annotations.get(CLASS_ANNOTATION, spec.storage_class_name or ""),
        attributes_class=spec.volume_attributes_class_name or "",
        modes=spec.access_modes,
        request=_size(spec.resources.requests),
        selector=spec.selector,
        block=spec.volume_mode == "Block",
        node=metadata.annotations.get(SELECTED_ANNOTATION, ""),
        deleting=metadata.deletion_timestamp is not None,
    )


def silent_of_class(wire: PersistentVolumeClaim) -> bool:
    """Whether it leaves its class open, so that a new one is given the default class. "" is none, and not open."""
    return wire.spec.storage_class_name is None and CLASS_ANNOTATION not in wire.metadata.annotations


def class_of(wire: StorageClass) -> VolumeClass:
    """The compact form."""
    metadata = wire.metadata
    return VolumeClass(
        name=metadata.name,
        provisioner=wire.provisioner,
        waits=wire.volume_binding_mode == "WaitForFirstConsumer",
        topologies=tuple(
            tuple((each.key, each.values) for each in term.match_label_expressions) for term in wire.allowed_topologies
        ),
        default=any(metadata.annotations.get(key) == "true" for key in DEFAULT_ANNOTATIONS),
        created=timestamp(metadata.creation_timestamp) if metadata.creation_timestamp else 0.0,
    )


def attachment_of(wire: VolumeAttachment) -> Attachment:
    """The compact form."""
    spec = wire.spec
    volume = spec.source.persistent_volume_name or ""
    return Attachment(name=wire.metadata.name, node=spec.node_name, driver=spec.attacher, volume=volume)


def _zones(label: str) -> frozenset[str]:
    """The zones that a label names; none where one of them is empty, as kube-scheduler then ignores the label."""
    parts = [part.strip() for part in label.split(MULTIPLE)]
    return frozenset(parts) if all(parts) else frozenset()


def _size(held: Mapping[str, str | int | float]) -> int:
    return parse_units(held["storage"]) if "storage" in held else 0
