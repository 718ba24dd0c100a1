"""Jobs in all their shapes: suspended and resumed by their user, wherever their gang is at that moment.

What always holds: a suspend of the user's own stands until the user takes it back, and its pods are gone and charged to
nobody; resumed, the gang takes its turn anew, at the gate; and no failure is counted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.objects import Job
from startgate.model.reasons import Code
from tests.behaviour.kit import Field, eventually

SOON: Final = {names.START_TIMEOUT: "3s"}
LONG: Final = 60.0


def there(field: Field, name: str) -> Job:
    job = field.job(name)
    assert job is not None
    return job


async def suspend(field: Field, *jobs: str) -> None:
    """And its pods go, its Gang says whose doing it is, and it stays so while others are decided on."""
    for name in jobs:
        await field.change_job(name, {"spec": {"suspend": True}})
    for name in jobs:
        await field.waits(name, Code.SUSPENDED)
        await field.until(lambda name=name: not field.pods(name), f"no pod of {name} is left")  # type: ignore[misc]
        job = there(field, name)
        assert job.spec.suspend
        assert names.PARKED not in job.metadata.annotations
        assert not field.sure(name).status.admission


async def resume(field: Field, *jobs: str) -> None:
    for name in jobs:
        await field.change_job(name, {"spec": {"suspend": False}})


@asynccontextmanager
async def without_new_pods(field: Field) -> AsyncIterator[None]:
    """The Job controller is away for as long as the context lasts: no pods are made, and none are taken away."""
    await field.cluster.stop_process("kube-controller-manager")
    try:
        yield
    finally:
        await field.cluster.start_process("kube-controller-manager")


async def test_while_it_waits_while_it_is_bound_and_while_it_runs(field: Field) -> None:
    """Three gangs, each in another phase; one that waits for the quota of all three starts meanwhile."""
    await field.nodes(1, cpu="6")
    queue = await field.queue(capability={"cpu": "6"})
    await field.run("running", pods=2, queue=queue)
    async with field.without_scheduler():
        await field.submit("releasing", pods=2, queue=queue)
        await field.phase("releasing", Phase.RELEASING)
        await field.until(lambda: len(field.opened("releasing")) == 2, "its gates are open")
        await field.submit("waiting", pods=3, queue=queue)
        await field.waits("waiting", Code.QUEUE_CAPABILITY)
        await field.submit("next", pods=6, queue=queue)
        await field.waits("next", Code.QUEUE_CAPABILITY)
        await suspend(field, "running", "releasing", "waiting")
    await field.phase("next", Phase.RUNNING)
    before = {name: len(field.opened(name)) for name in ("running", "releasing", "waiting")}
    await resume(field, *before)
    for name, pods in (("running", 2), ("releasing", 2), ("waiting", 3)):
        await field.until(lambda name=name, pods=pods: len(field.gated(name)) == pods, f"{name} is at the gate")  # type: ignore[misc]
        await field.waits(name, Code.QUEUE_CAPABILITY)
        assert len(field.opened(name)) == before[name]
    await suspend(field, "waiting")
    await field.delete_job("next")
    for name in ("running", "releasing"):
        await field.phase(name, Phase.RUNNING)
    assert there(field, "waiting").spec.suspend
    await field.delete_job("running")
    await resume(field, "waiting")
    await field.phase("waiting", Phase.RUNNING)
    assert field.failures() == 0


async def test_while_its_pods_are_being_made(field: Field) -> None:
    """A parked gang whose turn has come: what was held for it is free at once, and it is its user's from then on."""
    await field.nodes(1, cpu="4")
    queue = await field.queue(capability={"cpu": "4"}, parkBeyond=0)
    async with without_new_pods(field):
        await field.submit("a", pods=4, queue=queue)
        await field.phase("a", Phase.GATHERING)
        await field.until(lambda: not there(field, "a").spec.suspend, "it is resumed")
        await field.submit("b", pods=4, queue=queue)
        await field.waits("b", Code.QUEUE_CAPABILITY)
        await suspend(field, "a")
        await field.phase("b", Phase.GATHERING)
    await field.phase("b", Phase.RUNNING)
    assert not field.pods("a")
    await resume(field, "a")
    await field.waits("a", Code.QUEUE_CAPABILITY)
    await field.delete_job("b")
    await field.phase("a", Phase.RUNNING)
    assert field.failures() == 0


async def test_while_it_is_taken_back(field: Field) -> None:
    """Suspended already, by us: a suspend of the user's leaves no trace, and it is tried again when its time has come.
    That is what hold is for."""
    await field.nodes(1, cpu="4")
    queue = await field.queue()
    async with field.without_scheduler():
        for name in ("again", "held"):
            await field.submit(name, pods=2, queue=queue, annotations=SOON)
        for name in ("again", "held"):
            await field.waits(name, Code.BACKING_OFF)
            await field.change_job(name, {"spec": {"suspend": True}})
        await field.change_job("held", {"metadata": {"annotations": {names.HOLD: "true"}}})
    await field.phase("again", Phase.RUNNING, LONG)
    await field.waits("held", Code.ON_HOLD)
    assert there(field, "held").spec.suspend
    await field.change_job("held", {"metadata": {"annotations": {names.HOLD: "false"}}})
    await field.phase("held", Phase.RUNNING, LONG)
    assert field.failures() == 0


async def test_created_suspended_and_changed_before_it_is_resumed(field: Field) -> None:
    """Its size, its minimum and its queue are what they are when it is resumed."""
    await field.nodes(1, cpu="8")
    first, second = await field.queue("first"), await field.queue("second")
    for name in ("a", "b"):
        await field.submit(name, pods=4, queue=first, suspend=True, spec={"completionMode": "NonIndexed"})
        await field.waits(name, Code.SUSPENDED)
    await field.change_job("a", {"metadata": {"labels": {names.QUEUE: second}}, "spec": {"parallelism": 2}})
    await field.change_job("b", {"metadata": {"labels": {names.MIN_AVAILABLE: "3"}}})
    await resume(field, "a", "b")
    gang = await field.phase("a", Phase.RUNNING)
    assert (gang.spec.queue, gang.spec.pods) == (second, 2)
    assert all(pod.queue == second for pod in field.pods("a"))
    gang = await field.phase("b", Phase.RUNNING)
    assert (gang.spec.queue, gang.spec.min_available) == (first, 3)
    seen = await eventually(lambda: field.read_queue(second), lambda it: it.status.running == 1, "it runs there")
    assert seen.status.waiting == 0
