"""The ground on which each trial starts: a namespace, a queue, the scenario's nodes, and nothing left of the last one.

Nodes are made here, not by kwok: nobody plays their kubelets, so a bound pod costs the API server its binding and no
more, the same in each mode. That takes a control plane without the node lifecycle controller, which would find
those nodes dead.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Final

import msgspec

from bench.parallel import in_parallel
from bench.scenarios import NAMESPACE, QUEUE, Scenario
from startgate.kube import kinds
from startgate.kube.client import ApiError, Client, Patch
from startgate.model import names

EVENTS: Final = f"/api/v1/namespaces/{NAMESPACE}/events"
CLEAN_WITHIN: Final = 240.0
SETTLE: Final = 3.0
"""Seconds in which kube-scheduler and our controller take note of new nodes."""
PAUSE: Final = 2.0
"""Seconds of quiet before each trial."""
POLL: Final = 0.5
LONG: Final = 120.0
"""Seconds for a request that deletes thousands of objects."""


class _ListMeta(msgspec.Struct, rename="camel"):
    remaining_item_count: int = 0


class _Some(msgspec.Struct):
    """The first object of a list, and how many more there are."""

    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


async def prepare(client: Client) -> None:
    """Makes the namespace and the queue, once. Trials need more: `clear`, then `set_nodes`."""
    queue = {"apiVersion": names.API_VERSION, "kind": "Queue", "metadata": {"name": QUEUE}, "spec": {}}
    await client.create(kinds.NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    await client.create(kinds.QUEUES, queue)


async def set_nodes(client: Client, scenario: Scenario) -> None:
    """Makes the cluster's nodes exactly those of the scenario. They never change, so a name says all of a node."""
    wanted = {f"bench-{scenario.node_cpu}-{number:03}" for number in range(scenario.nodes)}
    present = {node.metadata.name for node in await client.list_all(kinds.NODES)}

    async def remove(name: str) -> None:
        await client.delete(kinds.NODES, name)

    async def add(name: str) -> None:
        await _add_node(client, name, scenario.node_cpu)

    await in_parallel(sorted(present - wanted), remove)
    await in_parallel(sorted(wanted - present), add)
    if present != wanted:
        await asyncio.sleep(SETTLE)


async def _add_node(client: Client, name: str, cpu: int) -> None:
    capacity = {"cpu": str(cpu), "memory": "256Gi", "pods": "110"}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": capacity, "allocatable": capacity, "conditions": [ready]},
    }
    await client.create(kinds.NODES, node)
    # Admission marks each new node as not ready; the controller that would take the mark off doesn't run here.
    await client.patch(kinds.NODES, name, {"spec": {"taints": None}}, how=Patch.MERGE)


async def clear(client: Client) -> None:
    """Deletes all Jobs of the namespace with what they own, waits until all is gone, and lets the cluster rest."""
    deadline = time.monotonic() + CLEAN_WITHIN
    jobs, pods, gangs = (kind.path(NAMESPACE) for kind in (kinds.JOBS, kinds.PODS, kinds.GANGS))
    while left := {path: found for path in (jobs, pods, gangs) if (found := await _count(client, path))}:
        if time.monotonic() > deadline:
            raise TimeoutError(f"After {CLEAN_WITHIN:.0f} s there is still left of the last trial: {left}")
        if jobs in left:
            await _delete_all(client, jobs)
        elif pods in left:  # faster than the garbage collector, which takes them one by one
            await _delete_all(client, pods)
        await asyncio.sleep(POLL)
    # They would only make the store slower from trial to trial.
    await _delete_all(client, EVENTS)
    await asyncio.sleep(PAUSE)


async def _count(client: Client, path: str) -> int:
    some = msgspec.json.decode(await client.request("GET", path, query={"limit": "1"}, attempts=3), type=_Some)
    return len(some.items or ()) + some.metadata.remaining_item_count


async def _delete_all(client: Client, path: str) -> None:
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", "gracePeriodSeconds": 0}
    try:
        await client.request("DELETE", path, body=options, timeout=LONG, attempts=3)
    except ApiError as error:
        if error.status != 504:  # not done in the API server's own time: the next call goes on
            raise
