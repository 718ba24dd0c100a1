"""Parked: taken back whole and started again, deadlines that don't run while a gang waits, labels that come later.

Where a released gang must not be bound in time, kube-scheduler is stopped and the test binds the pods that it wants
bound: so no filter that the engine doesn't know yet has to serve, and the outcome is the same every time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from startgate.model import names
from startgate.model.gang import Gang, Phase
from startgate.model.objects import Job, timestamp
from startgate.model.quantity import parse_units
from startgate.model.reasons import Code
from tests.behaviour.kit import Field, eventually

SOON: Mapping[str, str] = {names.START_TIMEOUT: "3s"}
LONG = 60.0
"""Seconds: a gang that was taken back is tried again after ten, and after twenty if that failed as well."""


def job_there(field: Field, name: str) -> Job:
    job = field.job(name)
    assert job is not None
    return job


@asynccontextmanager
async def taken_back(field: Field, name: str, *, bound: int = 0, **job: Any) -> AsyncIterator[Gang]:
    """A gang that was released, had so many pods bound, and was taken back: no pod of it is left.

    kube-scheduler is away until the context ends.
    """
    async with field.without_scheduler():
        await field.submit(name, annotations=SOON, **job)
        pods = job.get("pods", 4)
        await field.until(lambda: len(field.opened(name)) == pods, "all gates are open")
        for number, pod in enumerate(field.pods(name)[:bound], 1):
            await field.bind(pod, f"n{number}")
        await field.until(lambda: is_parked(field, name, Code.NOT_BOUND_IN_TIME), "its Job is suspended, and says why")
        await field.until(lambda: not field.pods(name), "its pods are gone")
        yield await field.phase(name, Phase.PARKED)


def is_parked(field: Field, name: str, code: Code) -> bool:
    job = field.job(name)
    return job is not None and job.spec.suspend is True and job.metadata.annotations.get(names.PARKED) == code


async def test_a_gang_that_is_not_bound_in_time_is_taken_back_whole(field: Field) -> None:
    """Two of four are bound when the time is over: none stays, no failure is counted, its place in the queue stays.

    Its Job has `backoffLimit: 0`, so that one failure would end it (as in case 25). What it had is free for others.
    """
    await field.nodes(4, cpu="1")
    queue = await field.queue()
    async with taken_back(field, "a", bound=2, queue=queue, runs="300ms") as gang:
        assert len(field.bindings("a")) == 2
        since = gang.status.since
        await field.until(lambda: field.sure("a").status.taken_back == 1, "it says that it was taken back")
        assert field.sure("a").status.reason == Code.BACKING_OFF
        assert field.sure("a").status.message.startswith("taken back 1 times")
        assert not field.sure("a").status.admission
    await field.run("b", queue=queue, runs="300ms")
    job = await field.completes("a", LONG)
    assert (job.status.succeeded, job.status.failed) == (4, 0)
    assert field.sure("a").status.since == since
    assert names.PARKED not in job.metadata.annotations
    phases = [phase for phase, _ in field.story("a")]
    assert Phase.PARKED in phases
    assert phases.index(Phase.RELEASING) < phases.index(Phase.PARKED)


async def test_what_is_left_of_a_gang_starts_again(field: Field) -> None:
    """Case 43: of four indexes two have succeeded when it is taken back; nothing waits for four."""
    await field.nodes(4, cpu="1")
    queue = await field.queue()
    async with taken_back(field, "a", bound=2, queue=queue, runs="100ms"):
        await field.until(lambda: job_there(field, "a").status.completed_indexes == "0,1", "two have succeeded")
    job = await field.completes("a", LONG)
    assert (job.status.succeeded, job.status.failed) == (4, 0)
    assert len(field.opened("a")) == 6, "four the first time, two the second"


async def test_a_gang_of_nine_of_ten_starts_again_with_nine(field: Field) -> None:
    """Case 11, second part."""
    await field.nodes(3)
    queue = await field.queue(capability={"cpu": "9"})
    async with field.without_scheduler():
        await field.submit("a", pods=10, minimum=9, queue=queue, annotations=SOON)
        await field.until(lambda: len(field.opened("a")) == 9, "nine gates are open")
        await field.until(lambda: is_parked(field, "a", Code.NOT_BOUND_IN_TIME), "it is taken back")
    await field.phase("a", Phase.RUNNING, LONG)
    await field.runs("a", 9)
    assert len(field.gated("a")) == 1
    assert job_there(field, "a").status.failed == 0


async def test_somebody_else_resumes_a_job_that_was_taken_back(field: Field) -> None:
    """No harm: its pods are gated, our mark goes, and the gang starts when its time has come."""
    await field.nodes(4, cpu="1")
    queue = await field.queue()
    async with taken_back(field, "a", queue=queue, runs="100ms") as gang:
        before = len(field.opened("a"))
        await field.change_job("a", {"spec": {"suspend": False}})
        await field.until(lambda: len(field.gated("a")) == 4, "its pods are made, behind the gate")
        await field.until(lambda: names.PARKED not in job_there(field, "a").metadata.annotations, "the mark is off")
        assert len(field.opened("a")) == before, "and stay there until the back-off is over"
        assert field.sure("a").status.not_before == gang.status.not_before
    assert (await field.completes("a", LONG)).status.failed == 0


async def test_a_gang_whose_job_another_controller_owns_is_not_suspended(field: Field) -> None:
    """It says that it can't be taken back; and runs if it is bound after all."""
    await field.nodes(2)
    queue = await field.queue()
    owner = await field.owner("workflow")
    async with field.without_scheduler():
        await field.submit("a", queue=queue, annotations=SOON, owner=owner)
        gang = await field.waits("a", Code.CANNOT_PARK)
        assert "ConfigMap workflow" in gang.status.message
        assert not job_there(field, "a").spec.suspend
    await field.phase("a", Phase.RUNNING)


async def test_a_deadline_does_not_run_while_its_gang_waits(field: Field) -> None:
    """activeDeadlineSeconds of 5, and it waits for longer than that: it is parked at creation, and then completes."""
    await field.nodes(1, cpu="2")
    queue = await field.queue()
    await field.run("blocker", pods=2, queue=queue, runs="6s")
    made = await field.submit("a", pods=2, queue=queue, deadline=5, runs="100ms")
    assert made.spec.suspend
    assert made.metadata.annotations[names.PARKED] == Code.DEADLINE_PARKED
    await field.waits("a", Code.CLUSTER_IN_USE)
    assert field.sure("a").status.phase is Phase.PARKED
    assert not field.pods("a")
    assert job_there(field, "a").status.start_time is None
    job = await field.completes("a")
    assert job.status.start_time is not None
    assert made.metadata.creation_timestamp is not None
    assert timestamp(job.status.start_time) - timestamp(made.metadata.creation_timestamp) >= 5
    assert (job.status.succeeded, job.status.failed) == (2, 0)
    assert names.PARKED not in job.metadata.annotations


async def test_a_deadline_parked_job_on_hold_stays_parked(field: Field) -> None:
    """`hold` is what a user has who doesn't want a parked Job to start."""
    await field.nodes(1)
    queue = await field.queue()
    await field.submit("a", pods=2, queue=queue, deadline=60, annotations={names.HOLD: "true"})
    await field.waits("a", Code.ON_HOLD)
    await field.run("canary", pods=1, queue=queue)
    assert job_there(field, "a").spec.suspend
    assert not field.pods("a")
    await field.change_job("a", {"metadata": {"annotations": {names.HOLD: None}}})
    await field.phase("a", Phase.RUNNING)


async def test_quota_is_held_while_a_parked_gang_s_pods_are_made(field: Field) -> None:
    """Two parked gangs for the quota of one: one after the other, never both."""
    await field.nodes(2)
    queue = await field.queue(capability={"cpu": "4"})
    for name in ("a", "b"):
        await field.submit(name, pods=4, queue=queue, deadline=60, runs="200ms")
    for name in ("a", "b"):
        await field.completes(name)
    assert field.most_at_once(lambda pod: not pod.gated and not pod.ended) == 4


async def test_a_label_that_comes_before_the_pods_are_bound(field: Field) -> None:
    """The Job's pods are pending: it is suspended, its template prepared, and it starts whole in its turn."""
    await field.nodes(1, cpu="3")
    queue = await field.queue()
    await field.pod("outsider", cpu="3")
    await field.lands("outsider")
    await field.submit("a", pods=3)
    await field.until(lambda: len(field.pods("a")) == 3, "its pods are pending")
    await field.change_job("a", {"metadata": {"labels": {names.QUEUE: queue}}})
    await field.until(lambda: is_parked(field, "a", Code.LABELLED_LATER), "it is suspended, and says why")
    template = job_there(field, "a").spec.template
    await field.until(
        lambda: job_there(field, "a").spec.template.metadata.labels.get(names.QUEUE) == queue,
        "the template is labelled",
    )
    assert not template.metadata.labels.get(names.MIN_AVAILABLE)
    await field.waits("a", Code.NO_ROOM)
    assert not field.pods("a")
    await field.delete_pod("outsider")
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 3)
    job = job_there(field, "a")
    assert job.status.failed == 0
    assert names.PARKED not in job.metadata.annotations
    assert all(pod.queue == queue for pod in field.pods("a"))


async def test_a_label_that_comes_when_the_pods_are_bound(field: Field) -> None:
    """They are charged and left alone, and the Gang says so; the next gang meets what is left of the quota."""
    await field.nodes(2)
    queue = await field.queue(capability={"cpu": "4"})
    await field.submit("a", pods=3)
    await field.runs("a", 3)
    running = {pod.uid for pod in field.bound("a")}
    await field.change_job("a", {"metadata": {"labels": {names.QUEUE: queue}}})
    gang = await field.waits("a", Code.PASSED_BEFORE_LABEL)
    assert gang.status.phase is Phase.RUNNING
    assert f"charged to queue {queue}, not gated" in gang.status.message
    await field.submit("b", pods=2, queue=queue)
    waiting = await field.waits("b", Code.QUEUE_CAPABILITY)
    assert "has 1 of 4 cpu left" in waiting.status.message
    await eventually(
        lambda: field.read_queue(queue),
        lambda it: it.status.allocated and parse_units(it.status.allocated["cpu"]) == 3,
        "three are charged",
    )
    assert {pod.uid for pod in field.bound("a")} == running
    assert not job_there(field, "a").spec.suspend
    await field.delete_job("a")
    await field.phase("b", Phase.RUNNING)
