"""A pod as Startgate holds it: small, and with all that decides where it can run in one shared Shape.

Ten thousand pods of a cluster have a few dozen shapes. What always holds: equal shapes are one object for as
long as any pod has it, so that the engine can count by shape; nothing here grows with the number of pods that
have gone.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Final
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import astuple

from startgate.model import names, objects
from startgate.model.resources import PODS, pod_request
from startgate.model.selectors import NodeSelector
from startgate.model.taints import Toleration

DEFAULT_SCHEDULER: Final = "default-scheduler"
LONGEST_MESSAGE: Final = 400
"""Characters kept of what kube-scheduler says about a pod."""


class Shape(Struct, frozen=True, weakref=True, dict=True, cache_hash=True):
    """All that decides what a pod takes of a queue and on which nodes it can run. Made by `shape_of` only."""

    request: tuple[tuple[str, int], ...] = ((PODS, 1),)
    """What it asks for, sorted by resource, in the scales of `resources`, with one of "pods"; no zeros."""
    node_selector: tuple[tuple[str, str], ...] = ()
    affinity: NodeSelector | None = None
    tolerations: tuple[Toleration, ...] = ()
    node_name: str = ""
    """The node that a template names. Pods have it empty: theirs is `Pod.node`."""
    scheduler: str = DEFAULT_SCHEDULER
    priority: int = 0
    unchecked: tuple[str, ...] = ()
    """Constraints that the engine doesn't check yet, sorted."""

    @cached_property
    def amounts(self) -> Mapping[str, int]:
        """The request by resource; made once, read-only."""
        return MappingProxyType(dict(self.request))


# By fields, not by Shape: a key that is its own value would never be let go.
_shapes: WeakValueDictionary[tuple[object, ...], Shape] = WeakValueDictionary()


def shape_of(spec: objects.PodSpec, status: objects.PodStatus | None = None, *, priority: int | None = None) -> Shape:
    """The one Shape of pods with this spec.

    With a status it is a pod's, without one a template's: only then `spec.node_name` is a demand rather than
    the outcome. `priority` says what a template can't: the value of its PriorityClass. Raises QuantityError.
    """
    shape = Shape(
        request=tuple(sorted(pod_request(spec, status).items())),
        node_selector=tuple(sorted(spec.node_selector.items())),
        affinity=_affinity(spec),
        tolerations=spec.tolerations,
        node_name=spec.node_name if status is None else "",
        scheduler=spec.scheduler_name or DEFAULT_SCHEDULER,
        priority=priority if priority is not None else spec.priority or 0,
        unchecked=_unchecked(spec),
    )
    return _shapes.setdefault(astuple(shape), shape)


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
        shape=shape_of(spec, status),
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


def _affinity(spec: objects.PodSpec) -> NodeSelector | None:
    if spec.affinity is None or spec.affinity.node_affinity is None:
        return None
    return spec.affinity.node_affinity.required


HOST_PORTS: Final = "host ports"
POD_AFFINITY: Final = "inter-pod affinity"
SPREAD: Final = "topology spread"
VOLUMES: Final = "volumes"
CLAIMS: Final = "resource claims"
GROUP: Final = "scheduling group"


def _unchecked(spec: objects.PodSpec) -> tuple[str, ...]:
    """Which of kube-scheduler's filters this pod meets that the engine doesn't follow yet."""
    found = set()
    # On the host's network each port is a host port; in a template that isn't spelled out yet.
    if any(port.host_port or spec.host_network for each in spec.containers for port in each.ports) or any(
        port.host_port or spec.host_network for each in spec.init_containers if each.sidecar for port in each.ports
    ):
        found.add(HOST_PORTS)
    affinity = spec.affinity
    if affinity is not None and any(
        side is not None and side.required for side in (affinity.pod_affinity, affinity.pod_anti_affinity)
    ):
        found.add(POD_AFFINITY)
    if any(each.when_unsatisfiable == "DoNotSchedule" for each in spec.topology_spread_constraints):
        found.add(SPREAD)
    if any(volume.filtered for volume in spec.volumes):
        found.add(VOLUMES)
    if spec.resource_claims:
        found.add(CLAIMS)
    if spec.scheduling_group is not None:
        found.add(GROUP)
    return tuple(sorted(found))
