"""What is submitted: the scenarios, the modes, and the one Job that all of them are made of.

Always holds: within a scenario the modes differ in what keeps a gang together and in nothing else: the same Jobs, in
the same order, on the same nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from startgate.model import names

NAMESPACE: Final = "bench"
QUEUE: Final = "bench"


class Mode(StrEnum):
    """Who decides when a gang's pods may be bound."""

    RAW = "raw"
    """Nobody: kube-scheduler takes pod by pod."""
    FLOOR = "gated-floor"
    """A bare loop in the bench itself, which lifts a gang's gates once it has seen all its pods: the least that
    anything built on scheduling gates can cost."""
    STARTGATE = "startgate"


@dataclass(frozen=True)
class Scenario:
    """`gangs` Jobs of `pods` pods of 1 cpu, all submitted at once to `nodes` nodes of `node_cpu` cpu."""

    key: str
    gangs: int
    pods: int
    nodes: int
    node_cpu: int
    limit: float = 300.0
    """Seconds after which a trial is over, whatever is still waiting."""
    lasts: float | None = None
    """Seconds from the binding of a gang's last pod to the end of its pods, as real ranks wait for each other. None:
    its pods never end."""
    ceiling: float | None = None
    """The mark: at most so many times the seconds of the bare loop. None: what counts is that no gang is ever partly
    bound, and that all get their turn."""

    @property
    def total(self) -> int:
        return self.gangs * self.pods

    def __str__(self) -> str:
        room = f"{self.nodes} nodes x {self.node_cpu} cpu"
        ends = "" if self.lasts is None else f", pods end {self.lasts:g} s after their gang is bound"
        return f"{self.key}: {self.gangs:,} gangs x {self.pods} pods, {room}{ends}"


SCENARIOS: Final = {
    scenario.key: scenario
    for scenario in (
        Scenario("A", gangs=100, pods=20, nodes=200, node_cpu=32, ceiling=1.25),
        Scenario("B", gangs=10, pods=200, nodes=200, node_cpu=32, ceiling=1.25),
        Scenario("C", gangs=2000, pods=1, nodes=200, node_cpu=32, ceiling=1.6),
        # Room for half of the pods: without gangs, each gets a part of the nodes and waits for ever for the rest.
        Scenario("H", gangs=8, pods=100, nodes=25, node_cpu=16, limit=60.0, lasts=2.0),
    )
}

WARM_UP: Final = Scenario("warm-up", gangs=10, pods=20, nodes=200, node_cpu=32)
"""Not counted: the first requests to a new control plane are slower than those that follow."""


def job(scenario: Scenario, mode: Mode, name: str) -> dict[str, Any]:
    """The Job of one gang, as it is posted."""
    labels = {names.QUEUE: QUEUE} if mode is Mode.STARTGATE else {}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [
            {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1", "memory": "64Mi"}}},
        ],
    }
    if mode is Mode.FLOOR:
        pod["schedulingGates"] = [{"name": names.GATE}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": scenario.pods,
            "parallelism": scenario.pods,
            "backoffLimit": 0,
            "template": {"spec": pod},
        },
    }
