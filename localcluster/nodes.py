"""Fake nodes: what the scheduler believes to have, while kwok plays their kubelets."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localcluster.api import Session
from localcluster.errors import ClusterError

NODES = "/api/v1/nodes"
GPU = "nvidia.com/gpu"
READY_WITHIN = 120.0


@dataclass(frozen=True, kw_only=True)
class Node:
    name: str
    cpu: str = "32"
    memory: str = "128Gi"
    gpus: int = 8
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()

    def _resources(self) -> dict[str, str]:
        resources = {
            "cpu": self.cpu,
            "memory": self.memory,
            "pods": str(self.pods),
            "ephemeral-storage": "1Ti",
        }
        return resources | ({GPU: str(self.gpus)} if self.gpus else {})

    def _labels(self) -> dict[str, str]:
        return {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            **self.labels,
        }

    def manifest(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": self._labels()},
            "spec": {"taints": [dict(taint) for taint in self.taints]},
            "status": {"capacity": self._resources(), "allocatable": self._resources()},
        }

    def changes(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """JSON patches that turn a node of this name into this one: of the node, and of its status."""
        wanted = self.manifest()
        return (
            [
                {"op": "add", "path": "/metadata/labels", "value": wanted["metadata"]["labels"]},
                {"op": "add", "path": "/spec/taints", "value": wanted["spec"]["taints"]},
            ],
            [
                {"op": "add", "path": f"/status/{kind}", "value": self._resources()}
                for kind in ("capacity", "allocatable")
            ],
        )


def same_nodes(count: int, *, cpu: str = "32", memory: str = "128Gi", gpus: int = 8) -> list[Node]:
    return [Node(name=f"node-{number:03}", cpu=cpu, memory=memory, gpus=gpus) for number in range(1, count + 1)]


def _is_ready(node: Mapping[str, Any], taints: int) -> bool:
    conditions = {it["type"]: it["status"] for it in node["status"].get("conditions", ())}
    # A new node is tainted until the node lifecycle controller has seen it ready.
    return conditions.get("Ready") == "True" and len(node["spec"].get("taints", ())) <= taints


def set_nodes(session: Session, wanted: Sequence[Node]) -> None:
    """Make the cluster's nodes exactly these (in place where the name is known), and await them ready."""
    present = {it["metadata"]["name"] for it in session.call("GET", NODES)["items"]}
    for name in sorted(present - {node.name for node in wanted}):
        session.call("DELETE", f"{NODES}/{name}")
    for node in wanted:
        if node.name in present:
            changes, status = node.changes()
            patch = "application/json-patch+json"
            session.call("PATCH", f"{NODES}/{node.name}", changes, patch)
            session.call("PATCH", f"{NODES}/{node.name}/status", status, patch)
        else:
            session.call("POST", NODES, node.manifest())
    taints = {node.name: len(node.taints) for node in wanted}
    deadline = time.monotonic() + READY_WITHIN
    while True:
        items = session.call("GET", NODES)["items"]
        ready = {it["metadata"]["name"] for it in items if _is_ready(it, taints.get(it["metadata"]["name"], 0))}
        if ready == taints.keys() and len(items) == len(taints):
            return
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{len(taints.keys() - ready)} of {len(taints)} nodes did not become ready within "
                f"{READY_WITHIN:.0f} s; look into logs/kwok.log of the cluster's directory."
            )
        time.sleep(0.1)
