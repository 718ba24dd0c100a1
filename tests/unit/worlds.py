"""Nodes, shapes and gangs for tests of the engine, in one line each. Amounts: cpu in whole cores, memory in GiB."""

from collections.abc import Mapping, Sequence
from typing import Any

from startgate.engine.cluster import Cluster
from startgate.engine.world import Batch, Claim, Go, Plan, Stay, Waiting, World
from startgate.model import objects
from startgate.model.queue import QueueSpec
from startgate.model.resources import Amounts
from startgate.model.shape import Shape
from startgate.model.taints import Taint

GPU = "nvidia.com/gpu"


def node(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Taint] = (),
    ready: bool = True,
    cordoned: bool = False,
    **offers: str,
) -> objects.Node:
    """A node; `gpu` stands for nvidia.com/gpu, and it takes 110 pods unless said."""
    return objects.Node(
        metadata=objects.ObjectMeta(name=name, labels=dict(labels or {})),
        spec=objects.NodeSpec(unschedulable=cordoned, taints=tuple(taints)),
        status=objects.NodeStatus(
            allocatable={"pods": "110", **{_resource(key): value for key, value in offers.items()}},
            conditions=(objects.Condition(type="Ready", status="True" if ready else "False"),),
        ),
    )


def cluster(*nodes: objects.Node) -> Cluster:
    made = Cluster()
    for each in nodes:
        made.set_node(each)
    return made


def shape(*, cpu: float = 0, memory: float = 0, gpu: int = 0, priority: int = 0, **demands: Any) -> Shape:
    """A pod's shape: cpu in cores, memory in GiB."""
    asks = {"cpu": round(cpu * 1000), "memory": round(memory * 2**30), GPU: gpu, "pods": 1}
    request = tuple(sorted((resource, count) for resource, count in asks.items() if count))
    return Shape(request=request, priority=priority, **demands)


def gang(name: str, queue: str, *minimum: tuple[int, Shape], **more: Any) -> Waiting:
    """A waiting gang of (count, shape) batches; its key is "ns/NAME"."""
    more = {"namespace": "ns", "priority": 0, "since": 0.0, **more}
    return Waiting(gang=f"ns/{name}", queue=queue, minimum=tuple(Batch(each, n) for n, each in minimum), **more)


def in_order(*gangs: Waiting) -> tuple[Waiting, ...]:
    """The same gangs, each a second younger than the one before."""
    return tuple(
        Waiting(**{field: getattr(each, field) for field in each.__struct_fields__} | {"since": float(second)})
        for second, each in enumerate(gangs)
    )


def world(
    nodes: Cluster,
    queues: Mapping[str, QueueSpec],
    waiting: Sequence[Waiting] = (),
    *,
    used: Mapping[str, Amounts] | None = None,
    claims: Sequence[Claim] = (),
    pending: Sequence[Batch] = (),
) -> World:
    return World(
        cluster=nodes,
        queues=queues,
        used=used or {},
        claims=tuple(claims),
        waiting=tuple(waiting),
        pending=tuple(pending),
    )


def went(plan: Plan) -> list[str]:
    """The names of the gangs that go, in order."""
    return [each.gang.removeprefix("ns/") for each in plan.go]


def go_of(plan: Plan, name: str) -> Go:
    return next(each for each in plan.go if each.gang == f"ns/{name}")


def stay_of(plan: Plan, name: str) -> Stay:
    return next(each for each in plan.stay if each.gang == f"ns/{name}")


def _resource(key: str) -> str:
    return GPU if key == "gpu" else key.replace("_", "-")
