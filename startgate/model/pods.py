"""A pod as Startgate holds it: small, and with all that decides where it can run in one shared Shape.

What always holds: nothing here grows with the number of pods that have gone.
"""

from contextlib import suppress
from functools import lru_cache
from typing import Final

from msgspec import Struct

from startgate.model import names, objects
from startgate.model.shape import Shape, shape_of

LONGEST_MESSAGE: Final = 400
"""Characters kept of what kube-scheduler says about a pod."""


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
        shape=shape_of(spec, status, namespace=metadata.namespace, labels=metadata.labels),
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
        created=objects.timestamp(metadata.creation_timestamp) if metadata.creation_timestamp else 0.0,
        unschedulable=_unschedulable(status),
        priority_class=_shared(spec.priority_class_name),
        preempts=spec.preemption_policy != "Never",
    )


# Bounded, unlike sys.intern (whose strings live as long as the process on some versions of Python).
@lru_cache(maxsize=16384)
def _shared(text: str) -> str:
    return text


@lru_cache(maxsize=16384)
def _shared_owner(owner: objects.OwnerReference) -> objects.OwnerReference:
    return owner


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
    return _shared((found.message or found.reason)[:LONGEST_MESSAGE])
