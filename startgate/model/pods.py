"""A pod as Startgate holds it: small, and with all that decides where it can run in one shared Shape.

What always holds: nothing here grows with the number of pods that have gone.
"""

from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from typing import Final
from weakref import ref

from msgspec import Struct

from startgate.model import names, objects
from startgate.model.resources import RESIZE_PENDING
from startgate.model.shape import Shape, shape_of

LONGEST_MESSAGE: Final = 400
"""Characters kept of what kube-scheduler says about a pod."""

OWNERS: Final = 256
"""Owners that are remembered, each with its last pod, to see that the next one is like it."""


class Pod(Struct, gc=False):
    """A pod that a reflector holds. Texts that many pods have in common are shared."""

    namespace: str
    name: str
    uid: str
    version: int
    """resourceVersion, as a number (KEP-5504: comparable since 1.35)."""
    shape: Shape
    queue: str = ""
    """The label startgate.dev/queue, or "": not ours."""
    min_available: str = ""
    """The label startgate.dev/min-available as it stands, or ""."""
    owner: objects.OwnerReference | None = None
    """The controller, usually its Job."""
    index: int = -1
    """Completion index of an Indexed Job's pod, else -1."""
    node: str = ""
    gated: bool = False
    """Our gate is still shut."""
    foreign_gates: tuple[str, ...] = ()
    """Gates of others that are still shut."""
    phase: str = ""
    nominated: str = ""
    """status.nominatedNodeName."""
    deleting: bool = False
    created: float = 0.0
    """Seconds since 1970."""
    unschedulable: str = ""
    """Why kube-scheduler couldn't place it, in its words, cut to LONGEST_MESSAGE; "" before it tries."""
    priority_class: str = ""
    preempts: bool = True
    """False with preemptionPolicy Never."""

    @property
    def bound(self) -> bool:
        return self.node != ""

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def released(self) -> bool:
        return not self.gated


def pod_of(wire: objects.Pod) -> Pod:
    """The compact form. Raises QuantityError for amounts that the API server would have refused."""
    metadata, spec, status = wire.metadata, wire.spec, wire.status
    gates = [gate.name for gate in spec.scheduling_gates]
    owner = metadata.controller
    return Pod(
        namespace=_shared(metadata.namespace),
        name=metadata.name,
        uid=metadata.uid,
        version=int(metadata.resource_version or 0),
        shape=_shape(wire, owner),
        queue=_shared(metadata.labels.get(names.QUEUE, "")),
        min_available=_shared(metadata.labels.get(names.MIN_AVAILABLE, "")),
        owner=None if owner is None else _shared_owner(owner),
        index=_index(metadata),
        node=_shared(spec.node_name),
        gated=names.GATE in gates,
        foreign_gates=tuple(_shared(gate) for gate in gates if gate != names.GATE),
        phase=_shared(status.phase),
        nominated=_shared(status.nominated_node_name),
        deleting=metadata.deletion_timestamp is not None,
        created=_moment(metadata.creation_timestamp) if metadata.creation_timestamp else 0.0,
        unschedulable=_unschedulable(status),
        priority_class=_shared(spec.priority_class_name),
        preempts=spec.preemption_policy != "Never",
    )


# Bounded, unlike sys.intern (whose strings live as long as the process on some versions of Python). What comes and goes
# with each gang is kept for few of them only: its pods come together, and each small thing that lives long among many
# that don't keeps a page of the allocator from being given back.
@lru_cache(maxsize=16384)
def _shared(text: str) -> str:
    return text


@lru_cache(maxsize=512)
def _shared_message(text: str) -> str:
    return text


@lru_cache(maxsize=OWNERS)
def _shared_owner(owner: objects.OwnerReference) -> objects.OwnerReference:
    return owner


@lru_cache(maxsize=1024)
def _moment(text: str) -> float:
    return objects.timestamp(text)


# Whatever is not known to have no influence counts.
_of_spec = attrgetter(*({*objects.PodSpec.__struct_fields__} - {"node_name", "scheduling_gates"}))
_of_status = attrgetter(*({*objects.PodStatus.__struct_fields__} - {"phase", "nominated_node_name", "conditions"}))

_last: dict[tuple[str, bool], tuple[object, ref[Shape]]] = {}
"""By owner, and whether the pod has been started: what decided the shape of its last pod, and that shape."""


def _shape(wire: objects.Pod, owner: objects.OwnerReference | None) -> Shape:
    """Its shape. Pods of one owner come together and are alike: to see that costs a fifth of working it out."""
    metadata, spec, status = wire.metadata, wire.spec, wire.status
    if owner is None:
        return shape_of(spec, status, namespace=metadata.namespace, labels=metadata.labels)
    labels = metadata.labels
    if names.JOB_INDEX in labels:
        labels = {key: value for key, value in labels.items() if key != names.JOB_INDEX}
    resizing = objects.condition(status.conditions, RESIZE_PENDING)
    decides = (_of_spec(spec), labels, metadata.namespace, _of_status(status), resizing and resizing.reason)
    key = (owner.uid, bool(status.container_statuses))
    last = _last.get(key)
    shape = last[1]() if last is not None and last[0] == decides else None
    if shape is None:
        shape = shape_of(spec, status, namespace=metadata.namespace, labels=labels)
        _last[key] = (decides, ref(shape))
        if len(_last) > OWNERS:
            del _last[next(iter(_last))]
    return shape


def _index(metadata: objects.ObjectMeta) -> int:
    text = metadata.annotations.get(names.JOB_INDEX) or metadata.labels.get(names.JOB_INDEX, "")
    with suppress(ValueError):
        return max(int(text), -1)
    return -1


def _unschedulable(status: objects.PodStatus) -> str:
    found = objects.condition(status.conditions, "PodScheduled")
    # With reason SchedulingGated it only says that there are gates, which is known.
    if found is None or found.status != "False" or found.reason == "SchedulingGated":
        return ""
    return _shared_message((found.message or found.reason)[:LONGEST_MESSAGE])
