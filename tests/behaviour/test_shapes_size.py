"""Jobs in all their shapes: how many pods they run, and what changes it while they wait and while they run."""

from __future__ import annotations

from typing import Any, Final

from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.quantity import parse_units
from startgate.model.reasons import Code
from tests.behaviour.kit import IGNORES_DISRUPTION, ON_N1, Field, eventually

NOT_INDEXED: Final[dict[str, Any]] = {"completionMode": "NonIndexed"}
WORK_QUEUE: Final[dict[str, Any]] = {"completionMode": "NonIndexed", "completions": None}


async def charged(field: Field, queue: str, cpu: int) -> None:
    """Returns when the queue is charged for so many, and no gang of it is told otherwise."""
    await eventually(
        lambda: field.read_queue(queue),
        lambda it: parse_units(it.status.allocated.get("cpu", 0)) == cpu,
        f"{cpu} cpu are charged",
    )


async def scale(field: Field, name: str, pods: int, *, completions: int | None = None) -> None:
    spec = {"parallelism": pods} if completions is None else {"parallelism": pods, "completions": completions}
    await field.change_job(name, {"spec": spec})


async def test_every_way_to_count_completions(field: Field) -> None:
    """Six Jobs at once: none ever runs more pods than it may, each lets all of its pods through, all complete."""
    await field.nodes(4, cpu="8")
    queue = await field.queue()
    shapes: dict[str, tuple[int, dict[str, Any]]] = {
        "indexed": (3, {"pods": 3}),
        "indexed-more": (5, {"pods": 2, "completions": 5}),
        "indexed-fewer": (2, {"pods": 4, "completions": 2}),
        "counted": (3, {"pods": 3, "spec": NOT_INDEXED}),
        "counted-more": (5, {"pods": 2, "completions": 5, "spec": NOT_INDEXED}),
        "work-queue": (3, {"pods": 3, "spec": WORK_QUEUE}),
    }
    for name, (_, job) in shapes.items():
        await field.submit(name, queue=queue, runs="200ms", **job)
    for name, (pods, job) in shapes.items():
        done = await field.completes(name)
        assert done.status.failed == 0
        assert len(field.opened(name)) == pods, name
        mine = field.opened(name)
        most = field.most_at_once(lambda pod, mine=mine: pod.uid in mine and not pod.gated and not pod.ended)  # type: ignore[misc]
        assert most == min(pods, job["pods"]), name
    await charged(field, queue, 0)


async def test_parallelism_changes_while_its_gang_waits(field: Field) -> None:
    """Up, down, and to nothing and back: it waits for as many as it asks for by then, and starts whole."""
    await field.nodes(1, cpu="8")
    queue = await field.queue(capability={"cpu": "6"}, stopped=True)
    for name in ("up", "down", "nothing"):
        await field.submit(name, pods=3, queue=queue, spec=WORK_QUEUE)
    await field.submit("least", pods=3, minimum=3, queue=queue, spec=WORK_QUEUE)
    await field.submit("parked", pods=3, queue=queue, deadline=600, spec=WORK_QUEUE)
    for name in ("up", "down", "nothing", "least", "parked"):
        await field.waits(name, Code.QUEUE_STOPPED)
    for name, pods in (("up", 6), ("down", 2), ("nothing", 0), ("least", 1), ("parked", 4)):
        await scale(field, name, pods)
    asks = {"up": (6, 6), "down": (2, 2), "least": (1, 1), "parked": (4, 4)}
    for name, (pods, minimum) in asks.items():
        await field.until(
            lambda name=name, pods=pods: field.sure(name).spec.pods == pods,  # type: ignore[misc]
            f"{name} asks for {pods}",
        )
        assert field.sure(name).spec.min_available == minimum
    gang = await field.waits("nothing", Code.PODS_MISSING)
    assert "asks for none" in gang.status.message
    await field.until(lambda: not field.pods("nothing"), "its pods are gone")
    assert not any(field.opened(name) for name in (*asks, "nothing"))

    await field.change_queue(queue, stopped=False)
    for name, pods in (("down", 2), ("least", 1)):
        await field.phase(name, Phase.RUNNING)
        await field.runs(name, pods)
    await field.waits("up", Code.QUEUE_CAPABILITY)  # it needs the whole queue, so it comes last
    await scale(field, "nothing", 2)
    await field.phase("nothing", Phase.RUNNING)
    for name in ("down", "nothing"):
        await field.delete_job(name)
    await field.phase("parked", Phase.RUNNING)
    await field.runs("parked", 4)
    for name in ("parked", "least"):
        await field.delete_job(name)
    await field.phase("up", Phase.RUNNING)
    await field.runs("up", 6)
    assert field.failures() == 0
    assert field.most_at_once(lambda pod: not pod.gated and not pod.ended and not pod.deleting) <= 6


async def test_parallelism_changes_while_its_gang_runs(field: Field) -> None:
    """More pods join as there is room, one by one; with fewer, what they had is free at once; with none it starts whole
    when it is scaled up again. What runs is left alone."""
    await field.nodes(1, cpu="20")
    queue = await field.queue(capability={"cpu": "8"})
    for name in ("up", "down", "nothing"):
        await field.run(name, pods=2, queue=queue, spec=WORK_QUEUE)
    running = {pod.uid for pod in field.bound("up")}
    await scale(field, "up", 5)
    await field.runs("up", 4)
    await field.until(lambda: len(field.gated("up")) == 1, "one is left at the gate")
    await field.phase("up", Phase.RUNNING)
    await scale(field, "nothing", 0)
    await field.runs("up", 5)
    await field.waits("nothing", Code.PODS_MISSING)
    await scale(field, "down", 1)
    await field.runs("down", 1)
    await charged(field, queue, 6)
    await field.phase("down", Phase.RUNNING)
    assert running <= {pod.uid for pod in field.bound("up")}
    await scale(field, "nothing", 3)
    await field.waits("nothing", Code.QUEUE_CAPABILITY)
    assert not field.bound("nothing")
    await field.delete_job("down")
    await field.phase("nothing", Phase.RUNNING)
    await field.runs("nothing", 3)
    await charged(field, queue, 8)
    assert field.failures() == 0


async def test_an_elastic_indexed_job_grows_and_shrinks(field: Field) -> None:
    """Parallelism and completions together: the highest indexes come and go."""
    await field.nodes(1, cpu="8")
    queue = await field.queue()
    await field.run("a", pods=3, queue=queue)
    await scale(field, "a", 5, completions=5)
    await field.runs("a", 5)
    await scale(field, "a", 2, completions=2)
    await field.runs("a", 2)
    assert [pod.index for pod in field.bound("a")] == [0, 1]
    await charged(field, queue, 2)
    gang = await field.phase("a", Phase.RUNNING)
    assert (gang.spec.pods, gang.status.bound) == (2, "2/2")
    assert field.failures() == 0


async def test_a_gang_that_grew_in_vain_has_its_whole_time_to_mend_a_loss(field: Field) -> None:
    """It wants more than there is room for, and runs on with what it has. A pod that it loses much later is replaced:
    the time for that counts from the loss, not from when it asked for more."""
    await field.nodes(2, cpu="2")
    queue = await field.queue(capability={"cpu": "2"})
    spec = {**WORK_QUEUE, **IGNORES_DISRUPTION}
    await field.run("a", pods=2, queue=queue, annotations={names.START_TIMEOUT: "6s"}, spec=spec, **ON_N1)
    await scale(field, "a", 3)
    await field.until(lambda: len(field.gated("a")) == 1, "one more is at the gate")
    await field.run("canary", pods=1, queue=await field.queue("r"), runs="7s")
    await field.completes("canary")
    await field.evict(field.bound("a")[0])
    await field.until(lambda: len(field.opened("a")) == 3, "the one at the gate takes its place")
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 2)
    assert Phase.PARKED not in [phase for phase, _ in field.story("a")]
    assert field.failures() == 0
