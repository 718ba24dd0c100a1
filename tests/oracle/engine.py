"""The engine's answer to a case: the very objects, decoded as the controller decodes them, and one decision.

Only public functions of the library are called, in the way in which the controller calls them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from startgate.engine.assign import assigned
from startgate.engine.cluster import Cluster
from startgate.engine.cycle import decide
from startgate.engine.observe import batches
from startgate.engine.world import Waiting, World
from startgate.model import objects
from startgate.model.pods import Pod, pod_of
from startgate.model.queue import QueueSpec
from startgate.model.reasons import Code
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
    code: str = ""
    says: str = ""


def ask(stored: Mapping[str, Sequence[Json]], gang: Sequence[Json]) -> Answer:
    """`stored`: the objects by kind, and the gang's pods, as the API server has them."""
    cluster = Cluster()
    for it in stored.get("Node", ()):
        cluster.set_node(msgspec.convert(it, objects.Node))
    for number, it in enumerate(stored.get("Pod", ())):
        pod = _pod(it, f"other-{number}")
        cluster.add_pod(pod.uid, pod.node or pod.nominated, pod.shape)
    pods = [_pod(it, f"gang-{number}") for number, it in enumerate(gang)]
    return _answer(cluster, pods)


def _pod(it: Json, uid: str) -> Pod:
    wire = msgspec.convert(it, objects.Pod)
    return pod_of(msgspec.structs.replace(wire, metadata=msgspec.structs.replace(wire.metadata, uid=uid)))


def _answer(cluster: Cluster, pods: Sequence[Pod]) -> Answer:
    waiting = Waiting(
        gang=GANG,
        queue="q",
        namespace=HOME,
        priority=pods[0].shape.priority,
        since=0.0,
        minimum=batches(pods),
        preempts=False,
    )
    world = World(cluster=cluster, queues={"q": QueueSpec()}, used={}, claims=(), waiting=(waiting,))
    plan = decide(world, NOW)
    if not plan.go:
        why = plan.stay[0].reason
        return Answer(False, code=why.code, says=why.message)
    where = dict(assigned(pods, plan.go[0]))
    return Answer(True, tight=plan.go[0].tight, nodes=tuple(where[pod.uid] for pod in pods))
