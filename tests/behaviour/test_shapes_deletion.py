"""Jobs in all their shapes: deleted in every phase, with each propagation policy."""

from __future__ import annotations

import pytest

from startgate.kube.kinds import JOBS
from startgate.model.gang import Phase
from startgate.model.quantity import parse_units
from startgate.model.reasons import Code
from tests.behaviour.kit import Field, eventually
from tests.behaviour.test_repair import GATE, lift
from tests.behaviour.test_shapes_suspend import without_new_pods

PHASES = ("suspended", "parked", "waiting", "releasing", "running", "finished")


async def in_every_phase(field: Field) -> tuple[str, str]:
    """Six gangs of two, one in each phase; the names of a queue that is stopped, and of one that isn't."""
    await field.nodes(1, cpu="8")
    stopped, going = await field.queue("stopped", stopped=True), await field.queue("going")
    await field.submit("suspended", pods=2, queue=going, suspend=True)
    await field.submit("parked", pods=2, queue=stopped, deadline=600)
    await field.submit("waiting", pods=2, queue=stopped)
    await field.submit("releasing", pods=2, queue=going, gates=(GATE,))
    await field.submit("running", pods=2, queue=going)
    await field.submit("finished", pods=2, queue=going, runs="10ms")
    await field.waits("suspended", Code.SUSPENDED)
    await field.waits("parked", Code.QUEUE_STOPPED)
    await field.waits("waiting", Code.QUEUE_STOPPED)
    await field.waits("releasing", Code.FOREIGN_GATE)
    await field.phase("running", Phase.RUNNING)
    await field.phase("finished", Phase.FINISHED)
    return stopped, going


async def books(field: Field, queue: str, *, cpu: int, waiting: int, running: int) -> None:
    await eventually(
        lambda: field.read_queue(queue),
        lambda it: (
            (parse_units(it.status.allocated.get("cpu", 0)), it.status.waiting, it.status.running)
            == (cpu, waiting, running)
        ),
        f"{queue} is charged {cpu} cpu, {waiting} wait, {running} run",
    )


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
async def test_deleted_with_its_pods(field: Field, policy: str) -> None:
    """Pods and Gang go with it, and what it held is free."""
    stopped, going = await in_every_phase(field)
    for name in PHASES:
        await field.client.delete(JOBS, name, field.namespace, propagation=policy)
    for name in PHASES:
        await field.until(lambda name=name: not field.job(name) and not field.gang(name), f"{name} is gone")  # type: ignore[misc]
    await field.until(lambda: not field.pods(), "no pod is left")
    await books(field, stopped, cpu=0, waiting=0, running=0)
    await books(field, going, cpu=0, waiting=0, running=0)
    await field.run("next", pods=8, queue=going)


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
async def test_deleted_while_its_pods_are_being_made(field: Field, policy: str) -> None:
    """What was held for it is the next gang's."""
    await field.nodes(1, cpu="4")
    queue = await field.queue(capability={"cpu": "4"})
    async with without_new_pods(field):
        await field.submit("a", pods=4, queue=queue, deadline=600)
        await field.phase("a", Phase.GATHERING)
        await field.submit("b", pods=4, queue=queue, deadline=600)
        await field.waits("b", Code.QUEUE_CAPABILITY)
        await field.client.delete(JOBS, "a", field.namespace, propagation=policy)
        await field.phase("b", Phase.GATHERING)
    await field.phase("b", Phase.RUNNING)
    await field.until(lambda: not field.job("a") and not field.gang("a") and not field.pods("a"), "nothing is left")
    await books(field, queue, cpu=4, waiting=0, running=1)


async def test_deleted_without_its_pods(field: Field) -> None:
    """Orphaned pods are each a gang of its own from then on: those at the gate wait for their queue, those past it go
    on and stay charged. Of the Job's Gang nothing is left."""
    stopped, going = await in_every_phase(field)
    for name in PHASES:
        await field.client.delete(JOBS, name, field.namespace, propagation="Orphan")
    for name in PHASES:
        await field.until(lambda name=name: not field.job(name) and not field.gang(name), f"{name} is gone")  # type: ignore[misc]
    left = field.pods()
    assert sorted(pod.name.rsplit("-", 2)[0] for pod in left) == [
        *["releasing"] * 2,
        *["running"] * 2,
        *["waiting"] * 2,
    ]
    for pod in left:
        await field.until(lambda pod=pod: field.gang_named(f"pod-{pod.name}"), f"pod {pod.name} is a gang")  # type: ignore[misc]
    await books(field, stopped, cpu=0, waiting=2, running=0)
    await books(field, going, cpu=4, waiting=0, running=4)
    await field.change_queue(stopped, stopped=False)
    for pod in left:
        if pod.name.startswith("releasing-"):
            await lift(field, pod.name)
    for pod in left:
        await field.lands(pod.name)
    await books(field, stopped, cpu=2, waiting=0, running=2)
    for pod in left:
        await field.delete_pod(pod.name)
    await books(field, stopped, cpu=0, waiting=0, running=0)
    await books(field, going, cpu=0, waiting=0, running=0)
