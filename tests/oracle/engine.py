"""The engine's answer to a case: the very objects, decoded as the controller decodes them, and one decision.

Only public functions of the library are called, in the way in which the controller calls them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from startgate.engine.assign import assigned
from startgate.engine.cluster import Cluster
from startgate.engine.cycle import decide
from startgate.engine.observe import batches
from startgate.engine.storage import Storage
from startgate.engine.world import Waiting, Within, World
from startgate.model import names, objects
from startgate.model.drivers import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    capacity_of,
    driver_of,
    drivers_of,
)
from startgate.model.pods import Pod, pod_of
from startgate.model.queue import QueueSpec
from startgate.model.reasons import Code, reason
from startgate.model.shape import Shape
from startgate.model.storage import (
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
    attachment_of,
    claim_of,
    class_of,
    volume_of,
)
from tests.oracle.case import HOME, Json

GANG: Final = f"{HOME}/gang"
NOW: Final = 1_000_000_000.0

QUOTA: Final = frozenset({Code.CLUSTER_IN_USE, Code.NEVER_WITHIN_QUOTA})
"""The answers that are about quota: a gang that asks for more than all nodes that aren't cordoned have in sum."""


@dataclass(frozen=True)
class Answer:
    """Whether the gang may go, with the node of each of its pods, in order; or why not."""

    goes: bool
    tight: bool = False
    nodes: tuple[str, ...] = ()
    pins: tuple[Mapping[str, str], ...] = ()
    """For each pod, what its node selector gets to keep it to its node; empty where that isn't needed."""
    domain: Mapping[str, str] = field(default_factory=dict)
    """What the node selectors of all get to keep them in one domain."""
    code: str = ""
    says: str = ""
    shapes: int = 1
    """How many different kinds of pods the gang has."""
    bonds: int = 0
    """How many constraints the pods of one shape put on one another, at most: with two the engine tries a few orders,
    and may miss a fit (engine/constraints.py)."""


def ask(stored: Mapping[str, Sequence[Json]], gang: Sequence[Json], annotations: Mapping[str, str]) -> Answer:
    """`stored`: the objects by kind, and the gang's pods, as the API server has them; `annotations`: its Job's."""
    cluster = Cluster()
    for it in stored.get("Namespace", ()):
        namespace = msgspec.convert(it, objects.Namespace)
        cluster.set_namespace(namespace.metadata.name, namespace.metadata.labels)
    for it in stored.get("Node", ()):
        cluster.set_node(msgspec.convert(it, objects.Node))
    _store(cluster.storage, stored)
    for it in stored.get("Pod", ()):
        pod = _pod(it)
        place = pod.node or pod.nominated
        cluster.add_pod(pod.uid, place, pod.shape, leaving=pod.deleting, nominated=not pod.node)
    key, prefer = annotations.get(names.TOPOLOGY, ""), annotations.get(names.PREFER_TOPOLOGY, "")
    within = Within(key=key, prefer=prefer) if annotations else None
    return _answer(cluster, [_pod(it) for it in gang], within)


def _store(storage: Storage, stored: Mapping[str, Sequence[Json]]) -> None:
    for it in stored.get("StorageClass", ()):
        storage.set_class(class_of(msgspec.convert(it, StorageClass)))
    for it in stored.get("PersistentVolume", ()):
        storage.set_volume(volume_of(msgspec.convert(it, PersistentVolume)))
    for it in stored.get("PersistentVolumeClaim", ()):
        storage.set_claim(claim_of(msgspec.convert(it, PersistentVolumeClaim)))
    for it in stored.get("CSINode", ()):
        storage.set_node_drivers(drivers_of(msgspec.convert(it, CSINode)))
    for it in stored.get("CSIDriver", ()):
        storage.set_driver(driver_of(msgspec.convert(it, CSIDriver)))
    for it in stored.get("CSIStorageCapacity", ()):
        storage.set_capacity(capacity_of(msgspec.convert(it, CSIStorageCapacity)))
    for it in stored.get("VolumeAttachment", ()):
        storage.set_attachment(attachment_of(msgspec.convert(it, VolumeAttachment)))


def _pod(it: Json) -> Pod:
    return pod_of(msgspec.convert(it, objects.Pod))


def _answer(cluster: Cluster, pods: Sequence[Pod], within: Within | None) -> Answer:
    unchecked = sorted({each for pod in pods for each in pod.shape.unchecked})
    waiting = Waiting(
        gang=GANG,
        queue="q",
        namespace=HOME,
        priority=pods[0].shape.priority,
        since=0.0,
        minimum=batches(pods, within),
        preempts=False,
        obstacle=reason(Code.CANNOT_CHECK, what=" and ".join(unchecked)) if unchecked else None,
    )
    world = World(cluster=cluster, queues={"q": QueueSpec()}, used={}, claims=(), waiting=(waiting,))
    plan = decide(world, NOW)
    if not plan.go:
        why = plan.stay[0].reason
        kinds = {pod.shape for pod in pods}
        bonds = max(_bonds(shape, cluster.company.namespaces) for shape in kinds)
        return Answer(False, code=why.code, says=why.message, shapes=len(kinds), bonds=bonds)
    where = dict(assigned(pods, plan.go[0]))
    nodes = tuple(where[pod.uid] for pod in pods)
    pins = tuple(cluster.own_label(node) for node in nodes) if plan.go[0].pinned else ()
    return Answer(True, tight=plan.go[0].tight, nodes=nodes, pins=pins, domain=plan.go[0].node_selector)


def _bonds(shape: Shape, namespaces: Mapping[str, Mapping[str, str]]) -> int:
    spreads = [each for each in shape.spread if each.selector is not None and each.selector.matches(shape.label_map)]
    terms = [
        each for each in (*shape.together, *shape.apart) if each.picks(shape.namespace, shape.label_map, namespaces)
    ]
    return len(spreads) + len(terms)
