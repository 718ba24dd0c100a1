"""Deep queues: Jobs far from the head of their queue wait without pods, and start in their turn all the same."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from startgate.kube.kinds import JOBS
from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.objects import Job
from startgate.model.reasons import Code
from tests.behaviour.kit import Field, eventually, job_of

MANY: Final = 40
"""Jobs of two pods in one queue."""
BEYOND: Final = 8
"""Pods that may wait there before a new Job is parked."""
LATE: Final = 90.0


def parked(job: Job) -> bool:
    return bool(job.spec.suspend) and job.metadata.annotations.get(names.PARKED) == Code.DEEP_QUEUE


def there(field: Field, name: str) -> Job:
    job = field.job(name)
    assert job is not None
    return job


async def asked(field: Field, name: str, queue: str) -> Any:
    """The Job as it would be made, by a dry run."""
    body = job_of(name, pods=2, queue=queue)
    path = JOBS.path(field.namespace)
    return json.loads(await field.client.request("POST", path, query={"dryRun": "All"}, body=body))


async def fill(field: Field, queue: str, count: int, **job: Any) -> list[Job]:
    """So many Jobs in one go, as the API server has answered."""
    return await asyncio.gather(*(field.submit(f"j{n:03}", queue=queue, pods=2, **job) for n in range(count)))


async def test_a_deep_queue_holds_no_pods_far_from_its_head_and_starts_all_in_order(field: Field) -> None:
    """They come all at once, faster than the controller counts; and the controller is killed on the way."""
    await field.nodes(1, cpu="4")
    queue = await field.queue(capability={"cpu": "4"}, parkBeyond=BEYOND)
    await field.run("blocker", pods=4, queue=queue)
    made = await fill(field, queue, MANY, runs="100ms")
    # In one second it is the name that counts.
    listed = [
        job.metadata.name for job in sorted(made, key=lambda job: (job.metadata.creation_timestamp, job.metadata.name))
    ]
    waiting = [job.metadata.name for job in made if parked(job)]
    assert MANY - BEYOND <= len(waiting) < MANY
    await eventually(lambda: field.read_queue(queue), lambda it: it.status.waiting_pods == 2 * MANY, "all are counted")
    few = 2 * (MANY - len(waiting))
    await field.until(lambda: len(field.gated()) == few, "those that aren't parked have their pods")
    await field.waits(waiting[-1], Code.QUEUE_CAPABILITY)
    assert field.sure(waiting[-1]).status.phase is Phase.PARKED
    assert parked(await field.submit("later", pods=2, queue=queue)), "the controller's count is enough"
    await field.delete_job("later")
    await field.delete_job("blocker")
    await field.until(lambda: len([name for name in listed if field.opened(name)]) > MANY // 3, "a third has started")
    await field.kill_controller()
    await field.start_controller()
    for name in listed:
        await field.completes(name, LATE)
    assert field.most_at_once(lambda pod: pod.gated) <= few + 2 * 2, "the first, and those whose turn has come"
    assert field.failures() == 0
    assert all(names.PARKED not in job.metadata.annotations for job in field.jobs())
    turns = sorted(listed, key=field.recorded)
    # Two fit at a time; of those that are decided on together either may be recorded first.
    for place, name in enumerate(listed):
        assert abs(turns.index(name) - place) <= 1, f"{name} is number {place} and had turn {turns.index(name)}"


async def test_a_higher_priority_does_not_need_pods_to_come_first(field: Field) -> None:
    high = await field.priority("high", 1000)
    await field.nodes(1, cpu="2")
    queue = await field.queue(capability={"cpu": "2"}, parkBeyond=2)
    await field.run("blocker", pods=2, queue=queue, priorityClassName=high)
    made = await fill(field, queue, 3)
    assert parked(await field.submit("urgent", pods=2, queue=queue, priorityClassName=high))
    await field.waits("urgent", Code.QUEUE_CAPABILITY)
    await field.delete_job("blocker")
    await field.phase("urgent", Phase.RUNNING)
    assert not any(field.opened(job.metadata.name) for job in made)


async def test_what_its_users_do_with_jobs_in_a_deep_queue(field: Field) -> None:
    """A suspend of the user's own stays; a resume by somebody else brings pods to the gate, and no further; hold and
    deletion are what they are anywhere; a queue that is deep no more takes Jobs with their pods again."""
    await field.nodes(1, cpu="2")
    queue = await field.queue(capability={"cpu": "2"}, parkBeyond=2)
    await field.run("blocker", pods=2, queue=queue)
    await field.submit("head", pods=2, queue=queue)
    assert not parked(await field.submit("own", pods=2, queue=queue, suspend=True))
    for name in ("resumed", "held", "dropped"):
        assert parked(await field.submit(name, pods=2, queue=queue))
        await field.waits(name, Code.QUEUE_CAPABILITY)

    await field.change_job("resumed", {"spec": {"suspend": False}})
    await field.until(lambda: len(field.gated("resumed")) == 2, "its pods are made, and gated")
    assert not parked(there(field, "resumed"))
    await field.change_job("held", {"metadata": {"annotations": {names.HOLD: "true"}}})
    await field.waits("held", Code.ON_HOLD)
    await field.delete_job("dropped")
    await field.until(lambda: field.gang("dropped") is None, "its Gang goes with it")

    await field.delete_job("blocker")
    await field.phase("head", Phase.RUNNING)
    await field.waits("resumed", Code.QUEUE_CAPABILITY)
    await field.delete_job("head")
    await field.phase("resumed", Phase.RUNNING)
    await field.delete_job("resumed")
    await field.until(lambda: not field.pods(), "nothing runs")
    await field.waits("own", Code.SUSPENDED)
    await field.waits("held", Code.ON_HOLD)
    assert there(field, "own").spec.suspend
    await eventually(lambda: field.read_queue(queue), lambda it: not it.status.waiting_pods, "none is kept away by us")
    await eventually(
        lambda: asked(field, "next", queue), lambda job: not job["spec"].get("suspend"), "not deep any more"
    )
    assert not parked(await field.submit("next", pods=2, queue=queue))
    await field.phase("next", Phase.RUNNING)
    await field.delete_job("next")
    await field.change_job("held", {"metadata": {"annotations": {names.HOLD: None}}})
    await field.phase("held", Phase.RUNNING)
