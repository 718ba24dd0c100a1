"""What decides where a pod can run, and what it does to others: one shared value for all pods that are alike.

Ten thousand pods of a cluster have a few hundred shapes. What always holds: equal shapes are one object for as long as
any pod has it, so that the engine can count by shape.
"""

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Final
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import astuple

from startgate.model import names, objects
from startgate.model.resources import PODS, pod_request
from startgate.model.selectors import LabelSelector, NodeSelector
from startgate.model.taints import Toleration

DEFAULT_SCHEDULER: Final = "default-scheduler"


class PodTerm(Struct, frozen=True, cache_hash=True):
    """One required term of inter-pod affinity or anti-affinity, with its defaults filled in (KEP-3633 for
    matchLabelKeys, which are in the selector already)."""

    topology_key: str
    selector: LabelSelector | None
    """None picks no pod."""
    namespaces: tuple[str, ...] = ()
    """Sorted. With no namespaces and no selector of namespaces on the wire: the pod's own."""
    namespace_selector: LabelSelector | None = None
    """None picks no namespace, an empty one all."""

    def picks(self, namespace: str, labels: Mapping[str, str], namespaces: Mapping[str, Mapping[str, str]]) -> bool:
        """Whether it is about a pod with these labels. `namespaces`: the labels of each namespace that is known."""
        if self.selector is None or not self.selector.matches(labels):
            return False
        if namespace in self.namespaces:
            return True
        return self.namespace_selector is not None and self.namespace_selector.matches(namespaces.get(namespace, {}))


class Spread(Struct, frozen=True, cache_hash=True):
    """A topology spread constraint with DoNotSchedule (KEP-895, 3022, 3094, 3243); about pods of its own namespace."""

    topology_key: str
    max_skew: int
    selector: LabelSelector | None
    """With matchLabelKeys in it. None picks no pod."""
    min_domains: int = 1
    honors_affinity: bool = True
    """Whether nodes that the pod's node selector and affinity rule out are no domains (nodeAffinityPolicy)."""
    honors_taints: bool = False
    """Whether nodes that its tolerations rule out are no domains (nodeTaintsPolicy)."""


class HostPort(Struct, frozen=True, order=True):
    """A port of the node that one pod at a time can have."""

    port: int
    protocol: str = "TCP"
    ip: str = ""
    """Empty, which 0.0.0.0 means too: all of the node's."""


class Ephemeral(Struct, frozen=True, order=True):
    """A volume whose claim is made for the pod and goes with it (KEP-1698)."""

    storage_class: str | None = None
    """None: the default class."""
    modes: tuple[str, ...] = ()


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
    """Constraints that the engine doesn't follow, sorted, in words: such a gang waits (Code.CANNOT_CHECK)."""
    namespace: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    """What selectors see of it, sorted; without the completion index, in which pods of one gang differ."""
    ports: tuple[HostPort, ...] = ()
    """Sorted."""
    together: tuple[PodTerm, ...] = ()
    """Required inter-pod affinity."""
    apart: tuple[PodTerm, ...] = ()
    """Required inter-pod anti-affinity."""
    spread: tuple[Spread, ...] = ()
    claims: tuple[str, ...] = ()
    """PersistentVolumeClaims of its namespace, sorted."""
    ephemeral: tuple[Ephemeral, ...] = ()
    """Sorted."""

    @cached_property
    def amounts(self) -> Mapping[str, int]:
        """The request by resource; made once, read-only."""
        return MappingProxyType(dict(self.request))

    @cached_property
    def label_map(self) -> Mapping[str, str]:
        """The labels; made once, read-only."""
        return MappingProxyType(dict(self.labels))

    @cached_property
    def plain(self) -> "Shape":
        """The same without what other pods, ports and volumes have to do with it: what the node alone decides."""
        return _shared(
            Shape(
                request=self.request,
                node_selector=self.node_selector,
                affinity=self.affinity,
                tolerations=self.tolerations,
                node_name=self.node_name,
                scheduler=self.scheduler,
                priority=self.priority,
                unchecked=self.unchecked,
            )
        )

    @property
    def constrained(self) -> bool:
        """Whether more than the node decides where it may go."""
        return bool(self.ports or self.together or self.apart or self.spread or self.claims or self.ephemeral)


# By fields, not by Shape: a key that is its own value would never be let go.
_shapes: WeakValueDictionary[tuple[object, ...], Shape] = WeakValueDictionary()


def _shared(shape: Shape) -> Shape:
    return _shapes.setdefault(astuple(shape), shape)


def shape_of(
    spec: objects.PodSpec,
    status: objects.PodStatus | None = None,
    *,
    priority: int | None = None,
    namespace: str = "",
    labels: Mapping[str, str] = MappingProxyType({}),
) -> Shape:
    """The one Shape of pods with this spec, in this namespace and with these labels.

    With a status it is a pod's, without one a template's: only then `spec.node_name` is a demand rather than
    the outcome. `priority` says what a template can't: the value of its PriorityClass. Raises QuantityError.
    """
    return _shared(
        Shape(
            request=tuple(sorted(pod_request(spec, status).items())),
            node_selector=tuple(sorted(spec.node_selector.items())),
            affinity=_affinity(spec),
            tolerations=spec.tolerations,
            node_name=spec.node_name if status is None else "",
            scheduler=spec.scheduler_name or DEFAULT_SCHEDULER,
            priority=priority if priority is not None else spec.priority or 0,
            unchecked=_unchecked(spec),
            namespace=namespace,
            labels=tuple(sorted((key, value) for key, value in labels.items() if key != names.JOB_INDEX)),
        )
    )


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
