"""What decides where a pod can run, and what it does to others: one shared value for all pods that are alike.

Ten thousand pods of a cluster have a few hundred shapes. What always holds: equal shapes are one object for as long as
any pod has it, so that the engine can count by shape.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import astuple, replace

from startgate.model import names, objects
from startgate.model.resources import PODS, amounts, pod_request
from startgate.model.selectors import LabelSelector, NodeSelector, Requirement
from startgate.model.taints import Toleration, with_given

DEFAULT_SCHEDULER: Final = "default-scheduler"
OWN: Final = "\0"
"""Stands for the value of a label that only pods of its own kind have; no label can have it."""
DO_NOT_SCHEDULE: Final = "DoNotSchedule"
ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104  (as pods write it)


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
    """With matchLabelKeys in it. None picks no pod. An empty one picks the pod itself, and none of those that are there
    (as kube-scheduler counts)."""
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


class Ephemeral(Struct, frozen=True, cache_hash=True):
    """A volume whose claim is made for the pod and goes with it (KEP-1698)."""

    storage_class: str | None = None
    """None: the default class."""
    modes: tuple[str, ...] = ()
    request: int = 0
    """Bytes."""
    block: bool = False
    """Without a filesystem (volumeMode)."""
    selector: LabelSelector | None = None
    """Which volumes it may be bound to; None for any."""
    attributes_class: str = ""


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
    """Constraints that the engine doesn't follow, sorted, in words that go on from "asks for …": such a gang waits
    (Code.CANNOT_CHECK)."""
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

    @cached_property
    def likenesses(self) -> "dict[tuple[str, ...], Shape]":
        """What `alike` made of it."""
        return {}

    @cached_property
    def constrained(self) -> bool:
        """Whether more than the node decides where it may go."""
        return bool(self.ports or self.together or self.apart or self.spread or self.claims or self.ephemeral)


T = TypeVar("T")


# Shapes of many Jobs differ in labels alone; what they have in common is kept once. Bounded, as in `pods`.
@lru_cache(maxsize=4096)
def _parts(part: Any) -> Any:
    return part


def _one(part: T) -> T:
    """This part of a shape, or one that is equal."""
    return cast(T, _parts(part))


# By fields, not by Shape: a key that is its own value would never be let go.
_shapes: WeakValueDictionary[tuple[object, ...], Shape] = WeakValueDictionary()


def _shared(shape: Shape) -> Shape:
    return _shapes.setdefault(astuple(shape), shape)


def narrowed(shape: Shape, labels: Mapping[str, str]) -> Shape:
    """The one Shape of such pods once their node selectors have these labels too."""
    return _shared(replace(shape, node_selector=tuple(sorted({**dict(shape.node_selector), **labels}.items()))))


def alike(shape: Shape, keys: tuple[str, ...]) -> Shape:
    """The one Shape that stands for all which differ from this one in the values of these labels alone: what its
    selectors ask for by these values, they ask for as its own."""
    found = shape.likenesses.get(keys)
    if found is None:
        own = {key: shape.label_map[key] for key in keys}
        found = shape.likenesses[keys] = _shared(
            replace(
                shape,
                labels=tuple((key, OWN if key in own else value) for key, value in shape.labels),
                together=tuple(replace(term, selector=_owning(term.selector, own)) for term in shape.together),
                apart=tuple(replace(term, selector=_owning(term.selector, own)) for term in shape.apart),
                spread=tuple(replace(each, selector=_owning(each.selector, own)) for each in shape.spread),
            )
        )
    return found


def _owning(selector: LabelSelector | None, own: Mapping[str, str]) -> LabelSelector | None:
    if selector is None:
        return None

    def value(key: str, given: str) -> str:
        return OWN if own.get(key) == given else given

    return LabelSelector(
        {key: value(key, given) for key, given in selector.match_labels.items()},
        tuple(
            Requirement(each.key, each.operator, tuple(value(each.key, given) for given in each.values))
            for each in selector.match_expressions
        ),
    )


def shape_of(
    spec: objects.PodSpec,
    status: objects.PodStatus | None = None,
    *,
    priority: int | None = None,
    namespace: str = "",
    labels: Mapping[str, str] = MappingProxyType({}),
) -> Shape:
    """The one Shape of pods with this spec, in this namespace and with these labels.

    With a status it is a pod's, without one a template's: only then `spec.node_name` is a demand rather than the
    outcome, and what new pods are given is filled in, so that it is the shape of pods made from it. `priority` says
    what a template can't: the value of its PriorityClass. Raises QuantityError.
    """
    affinity = spec.affinity or objects.Affinity()
    seen = {key: value for key, value in labels.items() if key != names.JOB_INDEX}
    request = pod_request(spec, status)
    return _shared(
        Shape(
            request=_one(tuple(sorted(request.items()))),
            node_selector=_one(tuple(sorted(spec.node_selector.items()))),
            affinity=_one(affinity.node_affinity.required) if affinity.node_affinity is not None else None,
            tolerations=_one(with_given(spec.tolerations) if status is None else spec.tolerations),
            node_name=spec.node_name if status is None else "",
            scheduler=spec.scheduler_name or DEFAULT_SCHEDULER,
            priority=priority if priority is not None else spec.priority or 0,
            unchecked=_unchecked(spec, request),
            namespace=_one(namespace),
            labels=tuple(sorted((_one(key), value) for key, value in seen.items())),
            ports=_ports(spec),
            together=_terms(affinity.pod_affinity, namespace, seen),
            apart=_terms(affinity.pod_anti_affinity, namespace, seen),
            spread=_spread(spec, seen),
            claims=tuple(
                sorted(
                    {each.persistent_volume_claim.claim_name for each in spec.volumes if each.persistent_volume_claim}
                )
            ),
            ephemeral=_ephemeral(spec),
        )
    )


# --- what other pods, ports and volumes have to do with it ------------------------------------------------------


def _ports(spec: objects.PodSpec) -> tuple[HostPort, ...]:
    """The ports of the node that it takes (kube-scheduler's GetHostPorts): of containers and sidecars, since other init
    containers are gone before the pod runs. On the host's network each port is the node's; a template doesn't say so.
    """
    sidecars = (each for each in spec.init_containers if each.sidecar)
    found = {
        HostPort(number, port.protocol or "TCP", "" if port.host_ip == ALL_ADDRESSES else port.host_ip)
        for container in (*sidecars, *spec.containers)
        for port in container.ports
        if (number := port.host_port or (port.container_port if spec.host_network else 0)) > 0
    }
    return tuple(sorted(found))


def _terms(side: objects.PodAffinity | None, namespace: str, labels: Mapping[str, str]) -> tuple[PodTerm, ...]:
    """The required terms of affinity or anti-affinity, for a pod of this namespace and with these labels."""
    return tuple(_term(term, namespace, labels) for term in (side.required if side is not None else ()))


def _term(term: objects.PodAffinityTerm, namespace: str, labels: Mapping[str, str]) -> PodTerm:
    selector = _merged(term.label_selector, "In", term.match_label_keys, labels)
    own = not term.namespaces and term.namespace_selector is None
    return PodTerm(
        topology_key=term.topology_key,
        selector=_merged(selector, "NotIn", term.mismatch_label_keys, labels),
        namespaces=(namespace,) if own else tuple(sorted(set(term.namespaces))),
        namespace_selector=term.namespace_selector,
    )


def _spread(spec: objects.PodSpec, labels: Mapping[str, str]) -> tuple[Spread, ...]:
    """The topology spread constraints that filter; the others only rank nodes."""
    return tuple(
        Spread(
            topology_key=each.topology_key,
            max_skew=each.max_skew,
            selector=_merged(each.label_selector, "In", each.match_label_keys, labels),
            min_domains=1 if each.min_domains is None else each.min_domains,
            honors_affinity=each.node_affinity_policy != "Ignore",
            honors_taints=each.node_taints_policy == "Honor",
        )
        for each in spec.topology_spread_constraints
        if each.when_unsatisfiable == DO_NOT_SCHEDULE
    )


def _merged(
    selector: LabelSelector | None, operator: str, keys: Iterable[str], labels: Mapping[str, str]
) -> LabelSelector | None:
    """The selector with (mis)matchLabelKeys in it, as the API server puts them into a new pod's (KEP-3633, 3243).

    In a stored pod they are in it already, which is seen by an expression with that key and operator: nobody else may
    write one.
    """
    if selector is None:
        return None
    there = {each.key for each in selector.match_expressions if each.operator == operator}
    more = tuple(Requirement(key, operator, (labels[key],)) for key in keys if key in labels and key not in there)
    if not more:
        return selector
    return LabelSelector(selector.match_labels, (*selector.match_expressions, *more))


def _ephemeral(spec: objects.PodSpec) -> tuple[Ephemeral, ...]:
    made = []
    for volume in spec.volumes:
        if volume.ephemeral is None or volume.ephemeral.volume_claim_template is None:
            continue
        asked = volume.ephemeral.volume_claim_template.spec
        made.append(
            Ephemeral(
                storage_class=asked.storage_class_name,
                modes=asked.access_modes,
                request=amounts(asked.resources.requests).get("storage", 0),
                block=asked.volume_mode == "Block",
                selector=asked.selector,
                attributes_class=asked.volume_attributes_class_name or "",
            )
        )
    return tuple(made)


CLAIMS: Final = "resource claims (DRA)"
GROUP: Final = "a scheduling group"
DISKS: Final = "disks that the pods name without a claim"
INDEX: Final = "a selector on the completion index"
RESTARTS: Final = "a restart of all containers (RestartAllContainers)"

BY_CLASS: Final = "deviceclass.resource.kubernetes.io/"
"""Before the name of a DeviceClass: a resource that is always allocated by DRA (KEP-5004)."""


def _unchecked(spec: objects.PodSpec, request: Iterable[str]) -> tuple[str, ...]:
    """Which of kube-scheduler's filters this pod meets that the engine doesn't follow."""
    found = set()
    if spec.resource_claims or any(resource.startswith(BY_CLASS) for resource in request):
        found.add(CLAIMS)
    # Without its feature gate (GenericWorkload, off by default up to 1.37) the API server stores none.
    if spec.scheduling_group is not None:
        found.add(GROUP)
    if any(volume.direct for volume in spec.volumes):
        found.add(DISKS)
    if any(names.JOB_INDEX in keys for keys in _selecting(spec)):
        found.add(INDEX)
    # KEP-5328: the only feature of nodes that pods can need by default, up to 1.37.
    if any(
        rule.action == "RestartAllContainers"
        for container in (*spec.init_containers, *spec.containers)
        for rule in container.restart_policy_rules
    ):
        found.add(RESTARTS)
    return tuple(sorted(found))


def _selecting(spec: objects.PodSpec) -> Iterator[set[str]]:
    """The keys of labels by which each constraint picks pods."""
    affinity = spec.affinity or objects.Affinity()
    for side in (affinity.pod_affinity, affinity.pod_anti_affinity):
        for term in side.required if side is not None else ():
            yield {*_keys(term.label_selector), *term.match_label_keys, *term.mismatch_label_keys}
    for each in spec.topology_spread_constraints:
        if each.when_unsatisfiable == DO_NOT_SCHEDULE:
            yield {*_keys(each.label_selector), *each.match_label_keys}


def _keys(selector: LabelSelector | None) -> tuple[str, ...]:
    if selector is None:
        return ()
    return (*selector.match_labels, *(each.key for each in selector.match_expressions))
