"""Pods of a simulation: the engine's Pod, with what only a simulation knows of it.

What always holds: an Actor's `pod` is what the engine is shown, and is changed in place; its uid is that of no other.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from startgate.engine.observe import template_labels
from startgate.engine.simulate.admission import fill_in
from startgate.engine.simulate.documents import InputError
from startgate.engine.simulate.kinds import LimitRangeItem
from startgate.engine.simulate.manifests import decode, lasting
from startgate.model import names, objects
from startgate.model.objects import OwnerReference, PriorityClass
from startgate.model.pods import Pod, pod_of
from startgate.model.quantity import QuantityError
from startgate.model.shape import Shape, shape_of


class Actor:
    """One pod."""

    __slots__ = ("bound_at", "document", "order", "pod", "raw", "runs", "since", "stored", "terminates")

    def __init__(self, pod: Pod, order: int) -> None:
        self.pod = pod
        self.order = order
        """Among all pods: the first to come is the first to be placed."""
        self.document = 0
        """The place of its document, if it was written down."""
        self.since = pod.created
        self.stored = False
        """Whether it comes out of a cluster."""
        self.raw: dict[str, Any] | None = None
        """The object, if it was written down; one that a Job made has none until somebody changes it."""
        self.runs: int | None = None
        self.terminates: int | None = None
        """What it says itself of its times; its Job may say more."""
        self.bound_at = 0


class Mold(msgspec.Struct, frozen=True):
    """What the pods of one template have in common."""

    spec: dict[str, Any]
    labels: Mapping[str, str]
    shape: Shape
    queue: str
    min_available: str
    gated: bool
    foreign_gates: tuple[str, ...]
    node: str
    preempts: bool
    runs: int | None
    terminates: int | None


def mold(
    where: str,
    job: Mapping[str, Any],
    limits: list[LimitRangeItem],
    classes: Mapping[str, PriorityClass],
) -> Mold:
    """Of a Job, as its namespace and the PriorityClasses are now."""
    template = job["spec"]["template"]
    spec = fill_in(template.get("spec") or {}, limits, classes)
    made = msgspec.convert(spec, objects.PodSpec)
    gates = [gate.name for gate in made.scheduling_gates]
    labels = template_labels(msgspec.convert({"metadata": job["metadata"], "spec": job["spec"]}, objects.Job))
    queue = labels.get(names.QUEUE, "")
    gated = bool(queue) or names.GATE in gates
    return Mold(
        spec=spec,
        labels=labels,
        shape=_shape(where, made, job["metadata"]["namespace"], labels),
        queue=queue,
        min_available=labels.get(names.MIN_AVAILABLE, ""),
        gated=gated,
        foreign_gates=tuple(gate for gate in gates if gate != names.GATE),
        node="" if gated else made.node_name,
        preempts=made.preemption_policy != "Never",
        runs=_inner(where, job, names.SIMULATE_RUNS),
        terminates=_inner(where, job, names.SIMULATE_TERMINATES),
    )


def from_mold(
    made: Mold, *, namespace: str, name: str, uid: str, owner: OwnerReference, index: int, created: float, order: int
) -> Actor:
    """A pod as the Job controller makes it."""
    pod = Pod(
        namespace=namespace,
        name=name,
        uid=uid,
        version=0,
        shape=made.shape,
        queue=made.queue,
        min_available=made.min_available,
        owner=owner,
        index=index,
        gated=made.gated,
        foreign_gates=made.foreign_gates,
        phase="Pending",
        created=created,
        preempts=made.preempts,
    )
    return Actor(pod, order)


def raw_of(pod: Pod, made: Mold | None) -> dict[str, Any]:
    """A pod that a Job made, as if it had been written down."""
    spec = {key: value for key, value in (made.spec if made else {}).items() if key != "schedulingGates"}
    gates = [*([names.GATE] if pod.gated else []), *pod.foreign_gates]
    owner = pod.owner
    metadata: dict[str, Any] = {
        "name": pod.name,
        "namespace": pod.namespace,
        "uid": pod.uid,
        "labels": dict(made.labels) if made else {},
        "ownerReferences": [{**msgspec.to_builtins(owner), "controller": True}] if owner else [],
    }
    if pod.index >= 0:
        metadata["annotations"] = {names.JOB_INDEX: str(pod.index)}
    return {
        "metadata": metadata,
        "spec": {
            **spec,
            "nodeName": pod.node,
            "nodeSelector": dict(pod.shape.node_selector),
            "schedulingGates": [{"name": gate} for gate in gates],
        },
        "status": {"phase": pod.phase},
    }


def from_raw(where: str, raw: Mapping[str, Any], order: int) -> Actor:
    """A pod that is written down (complete, with a uid)."""
    wire: objects.Pod = decode(where, "Pod", raw)
    try:
        pod = pod_of(wire)
    except QuantityError as error:
        raise InputError(f"{where}: status: {error}") from None
    pod.nominated = ""  # room that somebody reserved in the dump is given anew
    actor = Actor(pod, order)
    actor.raw = dict(raw)
    metadata = raw["metadata"]
    actor.runs = lasting(where, metadata, names.SIMULATE_RUNS)
    actor.terminates = lasting(where, metadata, names.SIMULATE_TERMINATES)
    return actor


def bound_since(raw: Mapping[str, Any]) -> float | None:
    """Epoch seconds from which a written pod runs, if it says so."""
    text = (raw.get("status") or {}).get("startTime")
    try:
        return objects.timestamp(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _shape(where: str, spec: objects.PodSpec, namespace: str, labels: Mapping[str, str]) -> Shape:
    try:
        return shape_of(spec, objects.PodStatus(), namespace=namespace, labels=labels)
    except QuantityError as error:  # checked when it was read; said all the same rather than lost
        raise InputError(f"{where}: spec.template.spec: {error}") from None


def _inner(where: str, job: Mapping[str, Any], annotation: str) -> int | None:
    """The template's word on its pods, else the Job's."""
    for metadata in (job["spec"]["template"].get("metadata") or {}, job["metadata"]):
        if (found := lasting(where, metadata, annotation)) is not None:
            return found
    return None
