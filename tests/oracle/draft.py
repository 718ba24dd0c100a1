"""A case in the making: nodes, other pods and the gang's templates, to which features are added one by one.

What always holds: all choices come from the one random source; amounts are small and few, so that a gang that just fits
and one that just doesn't are both frequent.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final, TypeVar

from tests.oracle.case import FOREIGN_GATE, HOME, NAMESPACES, PRIORITIES, Json

T = TypeVar("T")

MOST_PODS: Final = 8
HOSTNAME: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
SINCE: Final = "2026-01-01T00:00:00Z"


class Draft:
    """`shapes`: the templates of the gang, one or two; `extra`: objects that are neither nodes nor pods; `annotations`:
    of the gang's Job."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.extra: list[Json] = []
        self.annotations: dict[str, str] = {}
        self.nodes = [self._node(number) for number in range(rng.choice((2, 2, 3, 3, 3, 4, 4, 5, 6, 8)))]
        self.others = [self._other(number) for number in range(rng.choice((0, 0, 1, 2, 3, 4, 6, 8, 12)))]
        self.shapes = [self._template(number) for number in range(rng.choice((1, 1, 1, 2)))]

    def _node(self, number: int) -> Json:
        name = f"node-{number}"
        labels = {HOSTNAME: name} if self.often(0.95) else {}
        if self.often(0.9):
            labels[ZONE] = self.pick("abc")
        amounts = {"cpu": self.pick(("1", "1500m", "2", "2", "3", "4")), "memory": "64Gi", "pods": "110"}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {},
            "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
        }

    def _other(self, number: int) -> Json:
        """A pod that runs somewhere."""
        pod = self._pod(f"other-{number}", self.pick(("", "250m", "500m", "500m", "1")))
        pod["metadata"]["namespace"] = self.pick((HOME, HOME, *NAMESPACES))
        pod["spec"]["nodeName"] = self.pick(self.nodes)["metadata"]["name"]
        return pod

    def _template(self, number: int) -> Json:
        pod = self._pod(f"gang-{number}", self.pick(("100m", "300m", "500m", "500m", "700m", "1", "1500m")))
        pod["metadata"]["namespace"] = HOME
        return pod

    def _pod(self, name: str, cpu: str) -> Json:
        container: Json = {"name": "c", "image": "none", "resources": {}}
        if cpu:
            container["resources"]["requests"] = {"cpu": cpu}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": self.pick("ab")}},
            "spec": {"containers": [container]},
        }

    def pick(self, choices: Sequence[T]) -> T:
        return self.rng.choice(choices)

    def some(self, items: Sequence[T]) -> list[T]:
        """At least one of them, where there are any."""
        return self.rng.sample(items, self.rng.randint(1, len(items))) if items else []

    def often(self, share: float) -> bool:
        return self.rng.random() < share

    def gang(self) -> tuple[Json, ...]:
        """The pods in the order in which they come: of two shapes, one first and then the others, or in turn."""
        if len(self.shapes) == 1:
            pods = [self.shapes[0]] * MOST_PODS
        elif self.often(0.5):
            pods = [self.shapes[0]] * self.pick((1, 1, 2)) + [self.shapes[1]] * MOST_PODS
        else:
            pods = [self.shapes[number % 2] for number in range(MOST_PODS)]
        return tuple(copy.deepcopy(pod) for pod in pods[:MOST_PODS])

    def objects(self) -> tuple[Json, ...]:
        """All but the gang."""
        return (*self.extra, *self.nodes, *self.others)

    # --- what features do to nodes and pods ---------------------------------------------------------------------

    def pods(self, share: float = 0.6) -> Iterator[Json]:
        """One shape of the gang at least, and some of the other pods."""
        yield from self.some(self.shapes)
        yield from (pod for pod in self.others if self.often(share))

    def offer(self, resource: str, amounts: Sequence[str], share: float = 1.0) -> None:
        """Has nodes offer so much of a resource."""
        for node in self.nodes:
            if self.often(share):
                node["status"]["allocatable"][resource] = self.pick(amounts)

    def request(self, pod: Json, resource: str, quantity: str, *, limit: bool = False) -> None:
        """Has the pod's first container ask for it."""
        resources = pod["spec"]["containers"][0]["resources"]
        for part in ("requests", "limits") if limit else ("requests",):
            resources.setdefault(part, {})[resource] = quantity

    def tolerate(self, pod: Json, **toleration: Any) -> None:
        pod["spec"].setdefault("tolerations", []).append(toleration)

    def prioritise(self, pod: Json, name: str) -> None:
        pod["spec"] |= {"priorityClassName": name, "priority": PRIORITIES[name], "preemptionPolicy": "Never"}

    def nominate(self, pod: Json) -> None:
        """Has a pod wait for the node on which it would be running."""
        pod["status"] = {"nominatedNodeName": pod["spec"].pop("nodeName")}
        pod["spec"]["schedulingGates"] = [{"name": FOREIGN_GATE}]

    def mark(self, node: Json, **labels: str) -> None:
        node["metadata"]["labels"].update(labels)
