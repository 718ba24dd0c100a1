"""Volumes as they come from the API server: what is read of them, and what it comes to."""

from typing import Any, TypeVar

import msgspec
import pytest

from startgate.kube import kinds
from startgate.model.drivers import AnyNodeDriver, Capacity, NodeDrivers, capacity_of, driver_of, drivers_of
from startgate.model.quantity import QuantityError
from startgate.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement
from startgate.model.storage import (
    Attachment,
    Volume,
    VolumeClaim,
    VolumeClass,
    attachment_of,
    claim_of,
    class_of,
    silent_of_class,
    volume_of,
)

T = TypeVar("T")
BETA = "volume.beta.kubernetes.io/storage-class"


def read(kind: "kinds.Kind[T]", **fields: Any) -> T:  # type: ignore[type-var]
    return kind.decode(msgspec.json.encode(fields))


def volume(labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **spec: Any) -> Volume:
    metadata = {"name": "pv-1", "labels": labels, "annotations": annotations}
    return volume_of(read(kinds.VOLUMES, metadata=metadata, spec=spec, status={"phase": "Available"}))


def claim(annotations: dict[str, str] | None = None, **spec: Any) -> VolumeClaim:
    metadata = {"name": "data", "namespace": "eval", "uid": "u-1", "annotations": annotations}
    return claim_of(read(kinds.CLAIMS, metadata=metadata, spec=spec, status={"phase": "Pending"}))


def test_a_volume_of_a_driver() -> None:
    zone = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    made = volume(
        capacity={"storage": "10Gi"},
        accessModes=["ReadWriteOnce"],
        claimRef={"namespace": "eval", "name": "data", "uid": "u-1"},
        storageClassName="fast",
        volumeMode="Block",
        csi={"driver": "disk.example", "volumeHandle": "h-1", "fsType": "ext4"},
        nodeAffinity={"required": {"nodeSelectorTerms": zone}},
    )
    assert made == Volume(
        name="pv-1",
        driver="disk.example",
        handle="h-1",
        affinity=NodeSelector((NodeSelectorTerm((Requirement("zone", "In", ("a",)),)),)),
        storage_class="fast",
        capacity=10 << 30,
        modes=("ReadWriteOnce",),
        block=True,
        claim=("eval", "data", "u-1"),
        phase="Available",
    )


def test_a_volume_from_before_drivers() -> None:
    assert volume(gcePersistentDisk={"pdName": "x"}).in_tree == "kubernetes.io/gce-pd"
    assert volume(nfs={"server": "x"}) == Volume(name="pv-1", phase="Available")


@pytest.mark.parametrize(
    ("labels", "zones"),
    [
        ({"topology.kubernetes.io/zone": "a"}, (("topology.kubernetes.io/zone", frozenset("a")),)),
        ({"topology.kubernetes.io/zone": "a__b"}, (("topology.kubernetes.io/zone", frozenset("ab")),)),
        ({"topology.kubernetes.io/zone": "a__"}, ()),  # kube-scheduler ignores a label that it can't read
        ({"other": "a"}, ()),
        (
            {"failure-domain.beta.kubernetes.io/region": "r", "topology.kubernetes.io/region": "s"},
            (
                ("failure-domain.beta.kubernetes.io/region", frozenset("r")),
                ("topology.kubernetes.io/region", frozenset("s")),
            ),
        ),
    ],
)
def test_zones_of_a_volume(labels: dict[str, str], zones: tuple[tuple[str, frozenset[str]], ...]) -> None:
    assert volume(labels=labels).zones == zones


def test_a_claim() -> None:
    assert claim() == VolumeClaim(namespace="eval", name="data", uid="u-1")
    made = claim(
        accessModes=["ReadWriteOncePod"],
        resources={"requests": {"storage": "1Gi"}},
        selector={"matchLabels": {"a": "b"}},
        storageClassName="fast",
    )
    assert (made.modes, made.request, made.storage_class) == (("ReadWriteOncePod",), 1 << 30, "fast")
    assert made.selector == LabelSelector({"a": "b"})


def test_a_claim_is_bound_when_both_sides_are() -> None:
    completed = {"pv.kubernetes.io/bind-completed": "yes"}
    assert claim(completed, volumeName="pv-1").bound
    assert not claim(volumeName="pv-1").bound
    assert not claim(completed).bound
    assert claim({"volume.kubernetes.io/selected-node": "n1"}).node == "n1"


def test_a_claim_on_its_way_out_or_without_its_volume() -> None:
    metadata = {"name": "data", "namespace": "eval", "deletionTimestamp": "2030-01-01T00:00:00Z"}
    made = claim_of(read(kinds.CLAIMS, metadata=metadata, status={"phase": "Lost"}))
    assert made.deleting
    assert made.lost


def test_the_old_annotation_names_the_class_whatever_the_field_says() -> None:
    assert claim({BETA: "old"}, storageClassName="new").storage_class == "old"
    assert volume(annotations={BETA: "old"}, storageClassName="new").storage_class == "old"


@pytest.mark.parametrize(
    ("annotations", "spec", "silent"),
    [(None, {}, True), (None, {"storageClassName": ""}, False), ({BETA: ""}, {}, False)],
)
def test_only_a_claim_that_is_silent_gets_the_default_class(
    annotations: dict[str, str] | None,
    spec: dict[str, str],
    silent: bool,
) -> None:
    wire = read(kinds.CLAIMS, metadata={"name": "a", "annotations": annotations}, spec=spec)
    assert silent_of_class(wire) is silent


def test_an_amount_that_is_none() -> None:
    with pytest.raises(QuantityError):
        claim(resources={"requests": {"storage": "much"}})


def test_a_class() -> None:
    created = {"name": "fast", "creationTimestamp": "1970-01-01T00:01:00Z"}
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    zones = [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}, {"key": "rack", "values": ["1"]}]}, {}]
    made = class_of(
        read(
            kinds.STORAGE_CLASSES,
            metadata={**created, "annotations": default},
            provisioner="disk.example",
            volumeBindingMode="WaitForFirstConsumer",
            allowedTopologies=zones,
        )
    )
    assert made == VolumeClass(
        name="fast",
        provisioner="disk.example",
        waits=True,
        topologies=((("zone", ("a", "b")), ("rack", ("1",))), ()),
        default=True,
        created=60.0,
    )
    assert made.makes
    assert made.reaches({"zone": "b", "rack": "1"})
    assert not made.reaches({"zone": "b"})
    assert not made.reaches({})  # an alternative that asks for nothing is met by none


def test_a_class_that_says_little() -> None:
    made = class_of(read(kinds.STORAGE_CLASSES, metadata={"name": "local"}, provisioner="kubernetes.io/no-provisioner"))
    assert made == VolumeClass(name="local", provisioner="kubernetes.io/no-provisioner")
    assert not made.makes
    assert made.reaches({})


def test_what_is_on_a_node() -> None:
    drivers = [
        {"name": "b", "nodeID": "n", "topologyKeys": ["zone", "rack"], "allocatable": {"count": 8}},
        {"name": "a", "nodeID": "n", "topologyKeys": None},
    ]
    made = drivers_of(read(kinds.CSI_NODES, metadata={"name": "n1"}, spec={"drivers": drivers}))
    assert made == NodeDrivers(name="n1", drivers=(("a", None), ("b", 8)), keys=(("a", ()), ("b", ("rack", "zone"))))
    assert drivers_of(read(kinds.CSI_NODES, metadata={"name": "n1"}, spec={"drivers": None})) == NodeDrivers(name="n1")


def test_the_largest_volume_that_can_be_made() -> None:
    """As kube-scheduler's binder reads it: what is said of one volume counts before what is said of the whole."""

    def largest(**said: str) -> int:
        return capacity_of(read(kinds.CAPACITIES, metadata={"namespace": "d", "name": "c"}, **said)).largest

    assert largest(capacity="1Gi") == 2**30
    assert largest(capacity="1Gi", maximumVolumeSize="1Mi") == 2**20
    assert largest(capacity="1Gi", maximumVolumeSize="0") == 0
    assert largest() == 0
    assert largest(capacity="1500m") == 2  # rounded up, as Quantity.Value does
    assert largest(capacity="100Ei") == 2**63 - 1
    made = capacity_of(
        read(kinds.CAPACITIES, metadata={"namespace": "d", "name": "c"}, storageClassName="x", nodeTopology={})
    )
    assert made == Capacity(namespace="d", name="c", storage_class="x", topology=LabelSelector())


def test_drivers_and_attachments() -> None:
    strict = read(kinds.CSI_DRIVERS, metadata={"name": "a"}, spec={"preventPodSchedulingIfMissing": True})
    assert driver_of(strict) == AnyNodeDriver(name="a", required=True)
    assert driver_of(read(kinds.CSI_DRIVERS, metadata={"name": "a"}, spec={})) == AnyNodeDriver(name="a")
    tracking = read(kinds.CSI_DRIVERS, metadata={"name": "a"}, spec={"storageCapacity": True})
    assert driver_of(tracking) == AnyNodeDriver(name="a", tracked=True)
    spec = {"attacher": "a", "nodeName": "n1", "source": {"persistentVolumeName": "pv-1"}}
    made = attachment_of(read(kinds.ATTACHMENTS, metadata={"name": "csi-1"}, spec=spec))
    assert made == Attachment(name="csi-1", node="n1", driver="a", volume="pv-1")
    assert attachment_of(read(kinds.ATTACHMENTS, metadata={"name": "x"}, spec={**spec, "source": {}})).volume == ""


def test_where_they_live() -> None:
    assert kinds.CLAIMS.path("eval", "data") == "/api/v1/namespaces/eval/persistentvolumeclaims/data"
    assert kinds.VOLUMES.path() == "/api/v1/persistentvolumes"
    assert kinds.STORAGE_CLASSES.path() == "/apis/storage.k8s.io/v1/storageclasses"
