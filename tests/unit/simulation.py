"""For the tests of `kubectl gang simulate`: manifests in a few words, and the story that they make."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from startgate.engine.simulate.documents import Source
from startgate.engine.simulate.manifests import MICRO, Manifest, read
from startgate.engine.simulate.report import Event, Happened, Story
from startgate.engine.simulate.run import simulate

SIMULATE = "simulate.startgate.dev/"
QUEUE = "startgate.dev/queue"
Object = dict[str, Any]


def node(name: str = "n1", cpu: str = "8", **times: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": noted(times)},
        "status": {"allocatable": {"cpu": cpu}},
    }


def queue(name: str = "q", *, at: str = "0s", **spec: Any) -> Object:
    return {
        "apiVersion": "startgate.dev/v1alpha1",
        "kind": "Queue",
        "metadata": {"name": name, "annotations": noted({"at": at})},
        "spec": spec,
    }


def job(
    name: str, pods: int = 1, cpu: str = "1", *, queue: str = "q", spec: Object | None = None, **times: str
) -> Object:
    """A Job of so many pods, all of which have to succeed; without a queue it is nobody's gang."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {QUEUE: queue} if queue else {}, "annotations": noted(times)},
        "spec": {"parallelism": pods, "completions": pods, "template": template(cpu), **(spec or {})},
    }


def template(cpu: str = "1", **more: Any) -> Object:
    return {"spec": {**more, "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}


def pod(name: str, cpu: str = "1", *, node: str = "", queue: str = "", **times: str) -> Object:
    spec = template(cpu)["spec"] | ({"nodeName": node} if node else {})
    labels = {QUEUE: queue} if queue else {}
    metadata = {"name": name, "labels": labels, "annotations": noted(times)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def claim(name: str, storage: str = "1Gi", *, of: str | None = None, **spec: Any) -> Object:
    """A PersistentVolumeClaim, of a class."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}, **spec}
    metadata = {"name": name, "namespace": "default"}
    chosen = {} if of is None else {"storageClassName": of}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {**spec, **chosen}}


def storage_class(name: str, *, waits: bool = True, default: bool = False, **fields: Any) -> Object:
    """A StorageClass that makes volumes."""
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "annotations": annotations},
        "provisioner": "disk.example",
        "volumeBindingMode": "WaitForFirstConsumer" if waits else "Immediate",
        **fields,
    }


def on_node(name: str, disks: int = 8) -> Object:
    """What a node can attach."""
    driver = {"name": "disk.example", "nodeID": name, "topologyKeys": [], "allocatable": {"count": disks}}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": name},
        "spec": {"drivers": [driver]},
    }


def noted(times: Mapping[str, str]) -> dict[str, str]:
    return {SIMULATE + key: value for key, value in times.items()}


def change(what: Object, at: str, **parts: Any) -> Object:
    """A later document about the same object."""
    metadata = {"name": what["metadata"]["name"], "annotations": {f"{SIMULATE}at": at}}
    return {"apiVersion": what["apiVersion"], "kind": what["kind"], "metadata": metadata, **parts}


def manifests(*objects: Object) -> list[Manifest]:
    return read([Source("given.yaml", yaml.safe_dump_all(objects))]).manifests


def story(*objects: Object, until: int | None = None, patience: float = 600.0) -> Story:
    return simulate(manifests(*objects), until=None if until is None else until * MICRO, patience=patience)


def told(found: Story, *kinds: Happened) -> list[tuple[float, str, str]]:
    """When, who (without the namespace default), what; of these kinds only, if any are named."""
    return [
        (each.at, each.gang.removeprefix("default/"), each.event)
        for each in found.told.events
        if not kinds or each.event in kinds
    ]


def starts(found: Story) -> list[tuple[float, str]]:
    return [(at, gang) for at, gang, _ in told(found, Happened.RELEASED)]


def events(found: Story, gang: str) -> Sequence[Event]:
    return [each for each in found.told.events if each.gang == f"default/{gang}"]
