"""Features by which volumes decide: where they are, where they can be made, how many a node attaches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tests.oracle.case import HOME, Json
from tests.oracle.draft import HOSTNAME, ZONE, Draft

DRIVER: Final = "disk.example.com"
MANY: Final = "ReadWriteMany"
ALONE: Final = "ReadWriteOncePod"


def _name(draft: Draft, kind: str) -> str:
    return f"{kind.lower()}-{sum(it['kind'] == kind for it in draft.extra)}"


def _class(draft: Draft, *, waits: bool, provisioner: str = DRIVER, topologies: Sequence[Json] = ()) -> str:
    name = _name(draft, "StorageClass")
    it: Json = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer" if waits else "Immediate",
    }
    if topologies:
        it["allowedTopologies"] = list(topologies)
    draft.extra.append(it)
    return name


def _claim_spec(storage_class: str, mode: str, size: str = "1Gi") -> Json:
    return {
        "storageClassName": storage_class,
        "accessModes": [mode],
        "resources": {"requests": {"storage": size}},
    }


def _claim(draft: Draft, storage_class: str, mode: str, volume: str = "", size: str = "1Gi") -> str:
    """A claim; with a volume it is bound to it."""
    name = _name(draft, "PersistentVolumeClaim")
    it: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": HOME},
        "spec": _claim_spec(storage_class, mode, size),
    }
    if volume:
        it["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
        it["spec"]["volumeName"] = volume
        it["status"] = {"phase": "Bound"}
    draft.extra.append(it)
    return name


def _volume(draft: Draft, storage_class: str, mode: str, claim: str = "", size: str = "1Gi") -> Json:
    name = _name(draft, "PersistentVolume")
    it: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {}},
        "spec": {
            "storageClassName": storage_class,
            "accessModes": [mode],
            "capacity": {"storage": size},
            "csi": {"driver": DRIVER, "volumeHandle": name},
        },
        "status": {"phase": "Bound" if claim else "Available"},
    }
    if claim:
        it["spec"]["claimRef"] = _reference(claim)
    draft.extra.append(it)
    return it


def _reference(claim: str) -> Json:
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": HOME, "name": claim}


def _bound(draft: Draft, mode: str = MANY) -> tuple[str, Json]:
    """A claim and the volume that it is bound to."""
    name = _name(draft, "PersistentVolumeClaim")
    volume = _volume(draft, "", mode, claim=name)
    return _claim(draft, "", mode, volume["metadata"]["name"]), volume


def _use(pod: Json, claim: str) -> None:
    volumes = pod["spec"].setdefault("volumes", [])
    volumes.append({"name": f"v{len(volumes)}", "persistentVolumeClaim": {"claimName": claim}})


def _use_ephemeral(pod: Json, spec: Json) -> None:
    volumes = pod["spec"].setdefault("volumes", [])
    volumes.append({"name": f"v{len(volumes)}", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}})


def _neighbours(draft: Draft) -> list[Json]:
    """Other pods that can have claims of the gang's namespace."""
    return [pod for pod in draft.others if pod["metadata"]["namespace"] == HOME]


def _only(key: str, values: Sequence[str], operator: str = "In") -> Json:
    expression = {"key": key, "operator": operator, "values": list(values)}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}


def _somewhere(draft: Draft) -> Json:
    """Where a volume can be mounted."""
    hosts = [node["metadata"]["name"] for node in draft.nodes]
    return draft.pick(
        (
            _only(HOSTNAME, draft.some(hosts)),
            _only(ZONE, draft.some("abc")),
            _only(ZONE, draft.pick("abc"), "NotIn"),
        )
    )


def _drivers(draft: Draft, *, keys: Sequence[str] = (), most: Sequence[int] = ()) -> None:
    """The driver on most nodes; `keys`: by which nodes share volumes; `most`: how many volumes each attaches."""
    known = {it["metadata"]["name"]: it for it in draft.extra if it["kind"] == "CSINode"}
    for node in draft.nodes:
        name = node["metadata"]["name"]
        if name not in known and draft.often(0.9):
            driver = {"name": DRIVER, "nodeID": "n", "topologyKeys": []}
            it = {"metadata": {"name": name}, "spec": {"drivers": [driver]}}
            known[name] = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", **it}
            draft.extra.append(known[name])
        if name in known and known[name]["spec"]["drivers"]:
            driver = known[name]["spec"]["drivers"][0]
            driver["topologyKeys"] = list(dict.fromkeys((*driver["topologyKeys"], *keys)))
            for key in keys:  # a driver labels its node so
                node["metadata"]["labels"].setdefault(key, name if key == HOSTNAME else draft.pick("abc"))
            if most and draft.often(0.9):
                driver["allocatable"] = {"count": draft.pick(most)}


def _driver(draft: Draft) -> Json:
    """What holds of the driver on every node."""
    found = [it for it in draft.extra if it["kind"] == "CSIDriver"]
    if not found:
        it = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER}}
        found = [{**it, "spec": {"attachRequired": True}}]
        draft.extra += found
    spec: Json = found[0]["spec"]
    return spec


def bound_volumes(draft: Draft) -> None:
    """Claims that are bound to volumes which can be mounted on some nodes only."""
    claim, volume = _bound(draft)
    volume["spec"]["nodeAffinity"] = _somewhere(draft)
    for pod in draft.some(draft.shapes):
        _use(pod, claim)


def zoned_volumes(draft: Draft) -> None:
    """Volumes with the older labels."""
    claim, volume = _bound(draft)
    volume["metadata"]["labels"][ZONE] = draft.pick(("a", "b", "a__b", "c__a"))
    for pod in draft.some(draft.shapes):
        _use(pod, claim)


def first_use(draft: Draft) -> None:
    """Volumes that are made where their first pod goes, for some zones only; one for all, or one for each pod."""
    term = {"matchLabelExpressions": [{"key": ZONE, "values": draft.some("abc")}]}
    storage_class = _class(draft, waits=True, topologies=(term,) if draft.often(0.7) else ())
    if draft.often(0.6):
        _drivers(draft, keys=(draft.pick((ZONE, ZONE, HOSTNAME)),))
    for pod in draft.some(draft.shapes):
        if draft.often(0.5):
            _use(pod, _claim(draft, storage_class, MANY))
        else:
            _use_ephemeral(pod, _claim_spec(storage_class, "ReadWriteOnce"))


def storage_capacity(draft: Draft) -> None:
    """A driver that says how large a volume it can make where."""
    _driver(draft)["storageCapacity"] = draft.often(0.9)
    classes = [_class(draft, waits=True) for _ in range(draft.pick((1, 1, 2)))]
    for storage_class in classes:
        for _ in range(draft.pick((0, 1, 1, 2, 3))):
            draft.extra.append(_room(draft, storage_class))
    for pod in draft.some(draft.shapes):
        for _ in range(draft.pick((1, 1, 2))):
            size = draft.pick(("600Mi", "1Gi", "1Gi", "2Gi"))
            storage_class = draft.pick(classes)
            if draft.often(0.3):
                _use(pod, _claim(draft, storage_class, MANY, size=size))
            else:
                _use_ephemeral(pod, _claim_spec(storage_class, "ReadWriteOnce", size))


def _room(draft: Draft, storage_class: str) -> Json:
    it: Json = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIStorageCapacity",
        "metadata": {"name": _name(draft, "CSIStorageCapacity"), "namespace": HOME},
        "storageClassName": storage_class,
    }
    if draft.often(0.95):
        zones = {"key": ZONE, "operator": draft.pick(("In", "NotIn")), "values": draft.some("abc")}
        it["nodeTopology"] = draft.pick(
            (
                {},
                {"matchLabels": {ZONE: draft.pick("abc")}},
                {"matchLabels": {HOSTNAME: draft.pick(draft.nodes)["metadata"]["name"]}},
                {"matchExpressions": [zones]},
            )
        )
    if draft.often(0.9):
        it["capacity"] = draft.pick(("0", "1Gi", "1Gi", "3Gi"))
        if draft.often(0.3):  # never alone: kube-scheduler 1.37 dies of that, when it scores nodes
            it["maximumVolumeSize"] = draft.pick(("700Mi", "1Gi", "2Gi"))
    return it


def local_volumes(draft: Draft) -> None:
    """Volumes that are there, on a node or in a zone each, and are bound when a pod comes."""
    storage_class = _class(draft, waits=True, provisioner="kubernetes.io/no-provisioner")
    varied = draft.often(0.4)
    for _ in range(draft.rng.randint(0, 5)):
        mode = draft.pick(("ReadWriteOnce", "ReadWriteOnce", MANY)) if varied else "ReadWriteOnce"
        volume = _volume(draft, storage_class, mode, size=draft.pick(("1Gi", "1Gi", "2Gi", "500Mi")))
        name = draft.pick(draft.nodes)["metadata"]["name"]
        volume["spec"]["nodeAffinity"] = _somewhere(draft) if draft.often(0.2) else _only(HOSTNAME, [name])
        if varied:
            volume["metadata"]["labels"]["tier"] = draft.pick("ab")
            volume["spec"]["volumeMode"] = draft.pick(("Filesystem", "Filesystem", "Block"))
    for pod in draft.some(draft.shapes):
        spec = _claim_spec(storage_class, "ReadWriteOnce", draft.pick(("1Gi", "1Gi", "600Mi", "2Gi")))
        if varied and draft.often(0.4):
            spec["selector"] = {"matchLabels": {"tier": draft.pick("ab")}}
        if draft.often(0.3):
            claim = _claim(draft, storage_class, "ReadWriteOnce")
            _keep(draft, claim)
            _use(pod, claim)
        else:
            for _ in range(draft.pick((1, 1, 1, 2))):
                _use_ephemeral(pod, spec)


def _keep(draft: Draft, claim: str) -> None:
    """Keeps one of the free volumes for this claim, at times."""
    free = [it for it in draft.extra if it["kind"] == "PersistentVolume" and "claimRef" not in it["spec"]]
    if free and draft.often(0.3):
        draft.pick(free)["spec"]["claimRef"] = _reference(claim)


def attach_limits(draft: Draft) -> None:
    _drivers(draft, most=(0, 1, 2, 3))
    shared, _ = _bound(draft)
    for pod in _neighbours(draft):
        if draft.often(0.6):
            _use(pod, shared if draft.often(0.3) else _bound(draft)[0])
    if draft.often(0.6):
        storage_class = _class(draft, waits=True)
        for pod in draft.some(draft.shapes):
            _use_ephemeral(pod, _claim_spec(storage_class, "ReadWriteOnce"))
    else:
        for pod in draft.some(draft.shapes):
            _use(pod, shared)


def attachments(draft: Draft) -> None:
    """Volumes that are attached to nodes, with or without a pod there that has them."""
    attach_limits(draft)
    for volume in [it for it in draft.extra if it["kind"] == "PersistentVolume"]:
        if draft.often(0.6):
            node = draft.pick(draft.nodes)["metadata"]["name"]
            source = {"persistentVolumeName": volume["metadata"]["name"]}
            draft.extra.append(
                {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "VolumeAttachment",
                    "metadata": {"name": _name(draft, "VolumeAttachment")},
                    "spec": {"attacher": DRIVER, "nodeName": node, "source": source},
                }
            )


def missing_drivers(draft: Draft) -> None:
    """Nodes without a driver that pods with its volumes can't do without."""
    _driver(draft)["preventPodSchedulingIfMissing"] = draft.often(0.8)
    known = {it["metadata"]["name"] for it in draft.extra if it["kind"] == "CSINode"}
    for node in draft.nodes:
        if node["metadata"]["name"] not in known and draft.often(0.5):
            it = {"metadata": {"name": node["metadata"]["name"]}, "spec": {"drivers": []}}
            draft.extra.append({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", **it})
    _drivers(draft)
    if draft.often(0.5):
        first_use(draft)
    else:
        bound_volumes(draft)


def one_pod_at_a_time(draft: Draft) -> None:
    """ReadWriteOncePod."""
    claim, _ = _bound(draft, ALONE)
    for pod in _neighbours(draft)[:1]:
        if draft.often(0.4):
            _use(pod, claim)
    _use(draft.pick(draft.shapes), claim)


def unready_claims(draft: Draft) -> None:
    """Claims that nobody has made, or that are to be bound at once and aren't yet."""
    claim = "absent" if draft.often(0.4) else _claim(draft, _class(draft, waits=False), MANY)
    _use(draft.pick(draft.shapes), claim)


FEATURES: Final[Mapping[str, Callable[[Draft], None]]] = {
    "bound volumes": bound_volumes,
    "zoned volumes": zoned_volumes,
    "volumes on first use": first_use,
    "storage capacity": storage_capacity,
    "local volumes": local_volumes,
    "attach limits": attach_limits,
    "volume attachments": attachments,
    "required drivers": missing_drivers,
    "ReadWriteOncePod": one_pod_at_a_time,
    "claims not ready": unready_claims,
}
