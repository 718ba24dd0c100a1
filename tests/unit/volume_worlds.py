"""Small clusters with volumes, for the reference and for the engine alike: as the API server would write them."""

import json
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from hypothesis import strategies as st

from startgate.engine.storage import Storage
from startgate.model import drivers as drivers_said
from startgate.model import storage
from startgate.model.selectors import LabelSelector
from startgate.model.shape import Ephemeral, Shape
from tests.unit.volume_reference import BETA_ZONE, BOUND, HOST, REGION, SELECTED, ZONE, Json, Reference
from tests.unit.worlds import shape

WIDTH = 8

NS = "ns"


def node_selector(key: str, *values: str, operator: str = "In") -> Json:
    return {
        "required": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}]
        }
    }


def volume(
    name: str,
    storage_class: str = "",
    *,
    size: int = 10,
    affinity: Json | None = None,
    labels: Json | None = None,
    csi: tuple[str, str] | None = None,
    claim: tuple[str, str] | None = None,
    phase: str = "",
    modes: tuple[str, ...] = ("ReadWriteOnce",),
    **spec: Any,
) -> Json:
    spec |= {"storageClassName": storage_class, "capacity": {"storage": str(size)}, "accessModes": list(modes)}
    if affinity is not None:
        spec["nodeAffinity"] = affinity
    if csi is not None:
        spec["csi"] = {"driver": csi[0], "volumeHandle": csi[1]}
    if claim is not None:
        spec["claimRef"] = {"namespace": NS, "name": claim[0], "uid": claim[1]}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
        "status": {"phase": phase or ("Bound" if claim else "Available")},
    }


def claim(
    name: str,
    storage_class: str | None = "",
    *,
    size: int = 10,
    volume: str = "",
    bound: bool = False,
    node: str | None = None,
    modes: tuple[str, ...] = ("ReadWriteOnce",),
    labels: Json | None = None,
    owner: str = "",
    phase: str = "",
    deleted: bool = False,
) -> Json:
    meta: Json = {"namespace": NS, "name": name, "uid": f"uid-{name}", "annotations": {}}
    spec: Json = {"accessModes": list(modes), "resources": {"requests": {"storage": str(size)}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    if volume:
        spec["volumeName"] = volume
    if bound:
        meta["annotations"][BOUND] = "yes"
    if node is not None:
        meta["annotations"][SELECTED] = node
    if labels is not None:
        spec["selector"] = {"matchLabels": labels}
    if owner:
        meta["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": owner, "controller": True}]
    if deleted:
        meta["deletionTimestamp"] = "2030-01-31T12:00:00Z"
    return {"metadata": meta, "spec": spec, "status": {"phase": phase or ("Bound" if bound else "Pending")}}


def storage_class(name: str, provisioner: str, *, waits: bool = True, zones: tuple[str, ...] = (), **more: Any) -> Json:
    terms = [{"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}]}] if zones else None
    return {
        "metadata": {"name": name, **more},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer" if waits else "Immediate",
        "allowedTopologies": terms,
    }


def capacity(name: str, storage_class: str, labels: Json | None, **said: str) -> Json:
    """What a driver says of its room for volumes of this class, on nodes with these labels."""
    topology = {} if labels is None else {"nodeTopology": {"matchLabels": labels}}
    return {"metadata": {"namespace": NS, "name": name}, "storageClassName": storage_class, **topology, **said}


def drivers(*each: tuple[str, int | None, list[str] | None]) -> Json:
    return {
        "spec": {
            "drivers": [
                {"name": name, "topologyKeys": keys} | ({"allocatable": {"count": limit}} if limit is not None else {})
                for name, limit, keys in each
            ]
        }
    }


def new_pod(name: str, *claims: str, own: tuple[Json, ...] = ()) -> Json:
    """`own`: the claims of its ephemeral volumes, named as the volumes."""
    made = []
    for each in own:
        named = f"{name}-{each['metadata']['name']}"
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": True}
        meta = {**each["metadata"], "name": named, "uid": f"uid-{named}", "annotations": {}, "ownerReferences": [owner]}
        made.append({"metadata": meta, "spec": dict(each["spec"]), "status": dict(each["status"])})
    return {"name": name, "namespace": NS, "claims": list(claims), "own": made, "template": (claims, own)}


def another(pod: Json, name: str) -> Json:
    """Another pod of the same shape."""
    claims, own = pod["template"]
    return new_pod(name, *claims, own=own)


def shape_of(pod: Json) -> Shape:
    """The shape of pods like this one."""
    own = []
    for each in pod["own"]:
        spec = each["spec"]
        selector = spec.get("selector")
        own.append(
            Ephemeral(
                storage_class=spec.get("storageClassName"),
                modes=tuple(spec["accessModes"]),
                request=int(spec["resources"]["requests"]["storage"]),
                selector=LabelSelector(match_labels=selector["matchLabels"]) if selector else None,
            )
        )
    return shape(namespace=pod["namespace"], claims=tuple(sorted(pod["claims"])), ephemeral=tuple(own))


def reference(nodes: dict[str, Json], choice: random.Random | None = None, **objects: dict[str, Json]) -> Reference:
    made = Reference(choice or random.Random(0))
    made.nodes = {name: {HOST: name, **labels} for name, labels in nodes.items()}
    for kind, named in objects.items():
        held = getattr(made, kind)
        for name, each in named.items():
            each.setdefault("metadata", {}).setdefault("name", name)
            held[(NS, name) if kind == "claims" else name] = each
    return made


Step: TypeAlias = tuple[Callable[..., None], tuple[Any, ...]]


def contents(world: Reference, held: Storage) -> dict[tuple[str, object], tuple[Step, Step]]:
    """What is in this world, each with how the engine is told of it, and how that it is gone."""

    def decoded(each: Json, kind: Any) -> Any:
        return msgspec.json.decode(json.dumps(each).encode(), type=kind)

    found: dict[tuple[str, object], tuple[Step, Step]] = {}
    for slot, (name, labels) in enumerate(world.nodes.items()):
        found["node", slot] = (held.set_node, (slot, name, labels)), (held.set_node, (slot, name, None))
    for name, each in world.volumes.items():
        made = storage.volume_of(decoded(each, storage.PersistentVolume))
        found["volume", name] = (held.set_volume, (made,)), (held.remove_volume, (name,))
    for key, each in world.claims.items():
        claimed = storage.claim_of(decoded(each, storage.PersistentVolumeClaim))
        found["claim", key] = (held.set_claim, (claimed,)), (held.remove_claim, key)
    for name, each in world.classes.items():
        kind = storage.class_of(decoded(each, storage.StorageClass))
        found["class", name] = (held.set_class, (kind,)), (held.remove_class, (name,))
    for name, each in world.on_node.items():
        there = drivers_said.drivers_of(decoded(each, drivers_said.CSINode))
        found["drivers", name] = (held.set_node_drivers, (there,)), (held.remove_node_drivers, (name,))
    for name, each in world.drivers.items():
        driver = drivers_said.driver_of(decoded(each, drivers_said.CSIDriver))
        found["driver", name] = (held.set_driver, (driver,)), (held.remove_driver, (name,))
    for name, each in world.capacities.items():
        room = drivers_said.capacity_of(decoded(each, drivers_said.CSIStorageCapacity))
        found["capacity", name] = (held.set_capacity, (room,)), (held.remove_capacity, (NS, name))
    for name, each in world.attachments.items():
        attached = storage.attachment_of(decoded(each, storage.VolumeAttachment))
        found["attachment", name] = (held.set_attachment, (attached,)), (held.remove_attachment, (name,))
    for each, node in world.pods:
        slot = list(world.nodes).index(node)
        found["pod", each["name"]] = (held.add_pod, (shape_of(each), slot)), (held.add_pod, (shape_of(each), slot, -1))
    return found


def loaded(world: Reference, order: random.Random | None = None) -> Storage:
    """The same world as the engine holds it, in whatever order it came."""
    held = Storage()
    held.widen(WIDTH)
    steps = [put for put, _ in contents(world, held).values()]
    if order is not None:
        order.shuffle(steps)
    for step, arguments in steps:
        step(*arguments)
    return held


def turn(held: Storage, old: Reference, new: Reference, order: random.Random) -> None:
    """What was loaded from the old world becomes the new one, one change after the other."""
    before, after = contents(old, held), contents(new, held)
    stays = {what for what in before if what[0] == "pod" and before[what] == after.get(what)}
    gone = [take for what, (_, take) in before.items() if what not in after or (what[0] == "pod" and what not in stays)]
    come = [put for what, (put, _) in after.items() if what not in stays]
    for steps in (gone, come):
        order.shuffle(steps)
        for step, arguments in steps:
            step(*arguments)


CLASSES = {
    "local": storage_class("local", "kubernetes.io/no-provisioner"),
    "disk": storage_class("disk", "disk.example.com"),
    "zonal": storage_class("zonal", "disk.example.com", zones=("z1",)),
    "share": storage_class("share", "share.example.com"),
    "now": storage_class("now", "disk.example.com", waits=False),
}
LIMITED = {"capacity": "9", "maximumVolumeSize": "1"}
SIZES = st.sampled_from([1, 2, 3])
MODES = st.sampled_from([("ReadWriteOnce",), ("ReadWriteMany",), ("ReadWriteOncePod",)])


@st.composite
def worlds(draw: st.DrawFn) -> Reference:
    """Nodes in two zones or none, volumes of all kinds, claims a to d in all states, limits, attachments and pods."""
    count = draw(st.integers(1, 4))
    names = [f"n{index}" for index in range(count)]
    nodes = {}
    for name in names:
        zone = draw(st.sampled_from(["z1", "z2", "z2", ""]))
        nodes[name] = {ZONE: zone, "pool": draw(st.sampled_from(["p", "q"]))} if zone else {}
    made = reference(nodes, random.Random(draw(st.integers(0, 99))), classes={k: dict(v) for k, v in CLASSES.items()})
    for index in range(draw(st.integers(0, 5))):
        name = f"v{index}"
        kind = draw(st.sampled_from(["local", "local", "disk"]))
        made.volumes[name] = volume(
            name,
            kind,
            size=draw(SIZES),
            affinity=draw(affinities(names)),
            labels=draw(
                st.sampled_from([{}, {}, {ZONE: "z1"}, {BETA_ZONE: "z1__z2"}, {REGION: "r"}, {"tier": "gold"}])
            ),
            csi=("disk.example.com", name) if kind == "disk" else None,
            phase=draw(st.sampled_from(["Available", "Available", "Available", "Released"])),
            modes=draw(st.sampled_from([("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"), ("ReadWriteOnce",)])),
        )
    for name in "abcd":
        made.claims[NS, name] = draw(claims(made, name, names))
    for name in names:
        if draw(st.booleans()):
            keys = draw(st.sampled_from([[ZONE], [], [HOST], None]))
            here = [("disk.example.com", draw(st.sampled_from([0, 1, 2, 3, None])), keys)]
            if draw(st.booleans()):
                here.append(("share.example.com", None, []))
            made.on_node[name] = drivers(*here) | {"metadata": {"name": name}}
    if draw(st.booleans()):
        made.drivers["disk.example.com"] = {
            "metadata": {"name": "disk.example.com"},
            "spec": {
                "preventPodSchedulingIfMissing": draw(st.booleans()),
                "storageCapacity": draw(st.sampled_from([None, False, True, True])),
            },
        }
    for index in range(draw(st.integers(0, 3))):
        made.capacities[f"c{index}"] = capacity(
            f"c{index}",
            draw(st.sampled_from(["disk", "disk", "zonal"])),
            draw(st.sampled_from([None, {}, {ZONE: "z1"}, {ZONE: "z2"}, *({HOST: name} for name in names)])),
            **draw(st.sampled_from([{}, {"capacity": "1"}, {"capacity": "2"}, {"capacity": "9"}, LIMITED])),
        )
    for index in range(draw(st.integers(0, 3))):
        there = draw(pods(f"old{index}"))
        where = draw(st.sampled_from(names))
        if made.accepts(there, where):
            made.place(there, where)
    draw(attachments(made))
    return made


def own(world: Reference, name: str) -> bool:
    """Whether this is a volume of one pod's own."""
    ref = world.volumes[name]["spec"].get("claimRef")
    holder = world.claims.get((ref["namespace"], ref["name"])) if ref else None
    return holder is not None and "ownerReferences" in holder["metadata"]


@st.composite
def attachments(draw: st.DrawFn, world: Reference) -> None:
    """Some of the volumes are attached where pods have them, some still are somewhere else. A pod's own go with it."""
    for name in sorted(world.volumes):
        having = {node for pod, node in world.pods if any(name in each for each in world.attached(pod))}
        others = set() if own(world, name) else set(world.nodes)
        for node in sorted(having | others):
            if draw(st.integers(0, 3)) == 0:
                world.attachments[f"{name}-{node}"] = {
                    "metadata": {"name": f"{name}-{node}"},
                    "spec": {
                        "attacher": "disk.example.com",
                        "nodeName": node,
                        "source": {"persistentVolumeName": name},
                    },
                }


def affinities(names: list[str]) -> st.SearchStrategy[Json | None]:
    return st.one_of(
        st.none(),
        st.sampled_from(names).map(lambda name: node_selector(HOST, name)),
        st.sampled_from(names).map(lambda name: node_selector(HOST, name)),
        st.sampled_from(["z1", "z2"]).map(lambda zone: node_selector(ZONE, zone)),
        st.just(node_selector("pool", "p", operator="NotIn")),
    )


@st.composite
def claims(draw: st.DrawFn, world: Reference, name: str, nodes: list[str]) -> Json:
    state = draw(st.sampled_from(["bound", "bound", "open", "open", "open", "odd"]))
    free = sorted(each for each, v in world.volumes.items() if "claimRef" not in v["spec"])
    modes = draw(MODES)
    if state == "bound" and free:
        taken = world.volumes[draw(st.sampled_from(free))]
        made = claim(name, taken["spec"]["storageClassName"], modes=modes)
        world.bind(made, taken)
        return made
    made = claim(
        name,
        draw(st.sampled_from(["local", "disk", "zonal", "share"])),
        size=draw(SIZES),
        modes=modes,
        node=draw(st.sampled_from([None, None, None, None, *nodes])),
        labels=draw(st.sampled_from([None, None, None, {"tier": "gold"}])),
    )
    if state == "odd":
        odd = draw(st.sampled_from(["now", "none", "lost", "deleted", "named", "gone", "class", "kept"]))
        if odd in ("now", "none", "class"):
            made["spec"]["storageClassName"] = {"now": "now", "none": "", "class": "unknown"}[odd]
        if odd == "lost":
            made["status"]["phase"] = "Lost"
        if odd == "deleted":
            made["metadata"]["deletionTimestamp"] = "2030-01-31T12:00:00Z"
        if odd in ("named", "gone"):
            made["spec"]["volumeName"] = "nowhere"
        if odd == "gone":
            made["metadata"]["annotations"][BOUND] = "yes"
        if odd == "kept" and free:
            kept = world.volumes[draw(st.sampled_from(free))]
            made["spec"]["storageClassName"] = kept["spec"]["storageClassName"]
            kept["spec"]["claimRef"] = {
                "namespace": NS,
                "name": name,
                "uid": draw(st.sampled_from(["", f"uid-{name}", "x"])),
            }
    return made


@st.composite
def pods(draw: st.DrawFn, name: str) -> Json:
    named = draw(st.lists(st.sampled_from(["a", "b", "c", "d", "d", "missing"]), max_size=2, unique=True))
    own = [
        claim(
            f"e{index}",
            draw(st.sampled_from(["local", "local", "disk", "disk", "zonal"])),
            size=draw(SIZES),
            labels=draw(st.sampled_from([None, None, None, {"tier": "gold"}])),
        )
        for index in range(draw(st.sampled_from([0, 0, 1, 1, 2])))
    ]
    return new_pod(name, *named, own=tuple(own))
