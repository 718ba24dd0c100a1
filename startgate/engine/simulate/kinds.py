"""The kinds that a simulation reads: what they are decoded into, and what is filled in where nobody else does.

What always holds: what is filled in is what the API server, or a kubelet, would fill in for the same object; what is
given is never overruled; and what the API server would refuse is a problem, said by field.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from startgate.model import drivers, labels, names, objects, storage
from startgate.model.gang import Gang
from startgate.model.quantity import Quantity, QuantityError
from startgate.model.queue import Queue, QueueSpec
from startgate.model.resources import PODS, amount

USUAL_PODS: Final = "110"
"""Pods that a kubelet takes if nobody says otherwise."""

INDEXES: Final = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*")

MOST_PODS: Final = 100_000
"""Of one Job at once: each of them is made here."""


class LimitRangeItem(msgspec.Struct, rename="camel", frozen=True):
    type: str = ""
    default: dict[str, Quantity] = {}
    default_request: dict[str, Quantity] = {}
    max: dict[str, Quantity] = {}
    min: dict[str, Quantity] = {}


class LimitRangeSpec(msgspec.Struct, frozen=True):
    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(msgspec.Struct, frozen=True):
    metadata: objects.ObjectMeta = objects.ObjectMeta()
    spec: LimitRangeSpec = LimitRangeSpec()


class Kind(msgspec.Struct, frozen=True):
    """One kind."""

    group: str
    version: str
    namespaced: bool
    type: Any
    problems: Callable[[Any, Mapping[str, Any]], Iterator[str]]
    """What is wrong with a decoded object (and what it was decoded from), beyond its types."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


def complete(kind: str, raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object with what is filled in for it once it is there."""
    return _complete_node(raw) if kind == "Node" else raw


def _complete_node(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Allocatable from capacity, as the API server has it; a written node is ready, and takes as many pods as most."""
    status = raw.get("status") or {}
    offered = status.get("allocatable") or status.get("capacity") or {}
    conditions = status.get("conditions") or []
    if not any(each.get("type") == "Ready" for each in conditions):
        conditions = [*conditions, {"type": "Ready", "status": "True"}]
    return {**raw, "status": {**status, "allocatable": {PODS: USUAL_PODS, **offered}, "conditions": conditions}}


# --- what is wrong ----------------------------------------------------------------------------------------------


def _meta(made: Any, path: str = "metadata") -> Iterator[str]:
    text = made.creation_timestamp
    if text:
        try:
            objects.timestamp(text)
        except ValueError as error:
            yield f"{path}.creationTimestamp: {error}"


def _only_meta(made: Any, raw: Mapping[str, Any]) -> Iterator[str]:
    yield from _meta(made.metadata)


def _amounts(path: str, held: Mapping[str, Quantity]) -> Iterator[str]:
    for resource, quantity in held.items():
        try:
            count = amount(resource, quantity)
        except QuantityError as error:
            yield f"{path}[{resource[:80]}]: {error}"
            continue
        if count < 0:
            yield f"{path}[{resource[:80]}]: {quantity} is below zero"


def _node(made: objects.Node, raw: Mapping[str, Any]) -> Iterator[str]:
    yield from _meta(made.metadata)
    yield from _amounts("status.allocatable", made.status.allocatable)


def _queue(made: Queue, raw: Mapping[str, Any]) -> Iterator[str]:
    yield from _meta(made.metadata)
    spec = made.spec
    for field, held in (
        ("capability", spec.capability),
        ("guarantee", spec.guarantee),
        ("deserved", spec.deserved),
    ):
        yield from _amounts(f"spec.{field}", held)
    known = {field.encode_name for field in msgspec.structs.fields(QueueSpec)}
    for field in raw.get("spec") or ():
        if field not in known:
            yield f"spec.{field[:80]}: a Queue has no such field"


def _volume(made: storage.PersistentVolume, raw: Mapping[str, Any]) -> Iterator[str]:
    yield from _meta(made.metadata)
    yield from _amounts("spec.capacity", made.spec.capacity)


def _claim(made: storage.PersistentVolumeClaim, raw: Mapping[str, Any]) -> Iterator[str]:
    yield from _meta(made.metadata)
    yield from _resources("spec.resources", made.spec.resources)


def _on_node(made: drivers.CSINode, raw: Mapping[str, Any]) -> Iterator[str]:
    yield from _meta(made.metadata)
    for number, driver in enumerate(made.spec.drivers):
        if driver.allocatable is not None and driver.allocatable.count is not None:
            yield from _within(f"spec.drivers[{number}].allocatable.count", driver.allocatable.count, 0)


def _capacity(made: drivers.CSIStorageCapacity, raw: Mapping[str, Any]) -> Iterator[str]:
    yield from _meta(made.metadata)
    said = {"capacity": made.capacity, "maximumVolumeSize": made.maximum_volume_size}
    for field, quantity in said.items():
        yield from _amounts(field, {} if quantity is None else {"storage": quantity})


def _within(path: str, number: int, least: int) -> Iterator[str]:
    if not least <= number < 2**31:
        yield f"{path}: {number} is not a number from {least} to {2**31 - 1}"


def _limit_range(made: LimitRange, raw: Mapping[str, Any]) -> Iterator[str]:
    for number, item in enumerate(made.spec.limits):
        for field, held in (
            ("default", item.default),
            ("defaultRequest", item.default_request),
            ("max", item.max),
            ("min", item.min),
        ):
            yield from _amounts(f"spec.limits[{number}].{field}", held)


def _pod(made: objects.Pod, raw: Mapping[str, Any]) -> Iterator[str]:
    yield from _meta(made.metadata)
    if made.metadata.deletion_timestamp:
        try:
            objects.timestamp(made.metadata.deletion_timestamp)
        except ValueError as error:
            yield f"metadata.deletionTimestamp: {error}"
    version = made.metadata.resource_version
    if version and not (version.isascii() and version.isdecimal()):
        yield f"metadata.resourceVersion: {version[:80]!r} is not a number"
    yield from _pod_spec("spec", made.spec)


def _pod_spec(path: str, spec: objects.PodSpec) -> Iterator[str]:
    for field, held in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for number, container in enumerate(held):
            yield from _resources(f"{path}.{field}[{number}].resources", container.resources)
    if spec.resources is not None:
        yield from _resources(f"{path}.resources", spec.resources)
    yield from _amounts(f"{path}.overhead", spec.overhead)
    for number, volume in enumerate(spec.volumes):
        if volume.ephemeral is not None and (template := volume.ephemeral.volume_claim_template) is not None:
            where = f"{path}.volumes[{number}].ephemeral.volumeClaimTemplate.spec.resources"
            yield from _resources(where, template.spec.resources)
    for number, constraint in enumerate(spec.topology_spread_constraints):
        where = f"{path}.topologySpreadConstraints[{number}]"
        for field, count in (("maxSkew", constraint.max_skew), ("minDomains", constraint.min_domains)):
            if count is not None:
                yield from _within(f"{where}.{field}", count, 1)


def _resources(path: str, resources: objects.Resources) -> Iterator[str]:
    yield from _amounts(f"{path}.requests", resources.requests)
    yield from _amounts(f"{path}.limits", resources.limits)


def _job(made: objects.Job, raw: Mapping[str, Any]) -> Iterator[str]:
    yield from _meta(made.metadata)
    for annotation in (names.TOPOLOGY, names.PREFER_TOPOLOGY):
        key = made.metadata.annotations.get(annotation)
        if key is not None and (problem := labels.key_problem(key)):
            yield f"metadata.annotations[{annotation}]: {key[:80]!r} can't be a label's key: {problem}"
    spec = made.spec
    for field, number in (
        ("parallelism", spec.parallelism),
        ("completions", spec.completions),
        ("activeDeadlineSeconds", spec.active_deadline_seconds),
        ("backoffLimit", spec.backoff_limit),
    ):
        if number is not None:
            yield from _within(f"spec.{field}", number, 0)
    if spec.parallelism is not None and spec.parallelism > MOST_PODS:
        yield f"spec.parallelism: {spec.parallelism} pods at once are more than simulate makes ({MOST_PODS})"
    if spec.completion_mode not in (None, "Indexed", "NonIndexed"):
        yield f"spec.completionMode: {spec.completion_mode[:80]!r} is neither Indexed nor NonIndexed"
    if spec.completion_mode == "Indexed" and (spec.completions or 0) > MOST_PODS:
        yield f"spec.completions: {spec.completions} indexes are more than simulate keeps ({MOST_PODS})"
    yield from _pod_spec("spec.template.spec", spec.template.spec)
    status = made.status
    for field, text in (("completedIndexes", status.completed_indexes), ("failedIndexes", status.failed_indexes)):
        if text and not INDEXES.fullmatch(text):
            yield f"status.{field}: {text[:80]!r} is not a list of indexes as 1,3-5"
    if status.start_time:
        try:
            objects.timestamp(status.start_time)
        except ValueError as error:
            yield f"status.startTime: {error}"


KINDS: Final[Mapping[str, Kind]] = {
    "Node": Kind("", "v1", False, objects.Node, _node),
    "Namespace": Kind("", "v1", False, objects.Namespace, _only_meta),
    "Pod": Kind("", "v1", True, objects.Pod, _pod),
    "LimitRange": Kind("", "v1", True, LimitRange, _limit_range),
    "Job": Kind("batch", "v1", True, objects.Job, _job),
    "PriorityClass": Kind("scheduling.k8s.io", "v1", False, objects.PriorityClass, _only_meta),
    "PersistentVolume": Kind("", "v1", False, storage.PersistentVolume, _volume),
    "PersistentVolumeClaim": Kind("", "v1", True, storage.PersistentVolumeClaim, _claim),
    "StorageClass": Kind("storage.k8s.io", "v1", False, storage.StorageClass, _only_meta),
    "CSINode": Kind("storage.k8s.io", "v1", False, drivers.CSINode, _on_node),
    "CSIDriver": Kind("storage.k8s.io", "v1", False, drivers.CSIDriver, _only_meta),
    "CSIStorageCapacity": Kind("storage.k8s.io", "v1", True, drivers.CSIStorageCapacity, _capacity),
    "VolumeAttachment": Kind("storage.k8s.io", "v1", False, storage.VolumeAttachment, _only_meta),
    "Queue": Kind(names.GROUP, names.VERSION, False, Queue, _queue),
    "Gang": Kind(names.GROUP, names.VERSION, True, Gang, _only_meta),
}
