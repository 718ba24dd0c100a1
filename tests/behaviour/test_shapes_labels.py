"""Jobs in all their shapes: the label added, changed or removed while their gang waits, and while it runs."""

from __future__ import annotations

from typing import Final

import pytest

from startgate.kube.errors import ApiError
from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.quantity import parse_units
from startgate.model.reasons import Code
from tests.behaviour.kit import Field, eventually
from tests.behaviour.test_shapes_suspend import without_new_pods

OTHER: Final = {"team": "eval"}
"""A label of the user's own. A Job that has none gets those of its template from the API server, ours among them."""


async def label(field: Field, name: str, **labels: str | None) -> None:
    keys = {"queue": names.QUEUE, "minimum": names.MIN_AVAILABLE}
    await field.change_job(name, {"metadata": {"labels": {keys.get(key, key): value for key, value in labels.items()}}})


async def charged(field: Field, queue: str, cpu: int) -> None:
    await eventually(
        lambda: field.read_queue(queue),
        lambda it: parse_units(it.status.allocated.get("cpu", 0)) == cpu,
        f"queue {queue} is charged {cpu} cpu",
    )


async def test_changed_while_it_waits(field: Field) -> None:
    """Another queue, a lower minimum: at the gate, parked, or suspended by its user, it goes by what is there then."""
    await field.nodes(1, cpu="12")
    stopped, going = await field.queue("stopped", stopped=True), await field.queue("going", capability={"cpu": "8"})
    await field.submit("gated", pods=2, queue=stopped)
    await field.submit("parked", pods=2, queue=stopped, deadline=600)
    await field.submit("suspended", pods=2, queue=stopped, suspend=True)
    await field.submit("fewer", pods=3, queue=going)
    await field.phase("fewer", Phase.RUNNING)
    await field.submit("minimum", pods=8, queue=going)
    for name in ("gated", "parked"):
        await field.waits(name, Code.QUEUE_STOPPED)
    await field.waits("suspended", Code.SUSPENDED)
    await field.waits("minimum", Code.QUEUE_CAPABILITY)

    await label(field, "minimum", minimum="1")
    await field.phase("minimum", Phase.RUNNING)
    await field.runs("minimum", 5)
    await field.delete_job("minimum")
    for name in ("gated", "parked", "suspended"):
        await label(field, name, queue=going)
    for name in ("gated", "parked"):
        gang = await field.phase(name, Phase.RUNNING)
        assert gang.spec.queue == going
    await field.waits("suspended", Code.SUSPENDED)
    assert field.sure("suspended").spec.queue == going
    await charged(field, going, 7)
    await charged(field, stopped, 0)
    assert {pod.queue for pod in field.pods("parked")} == {going}, "what is suspended has a template that follows"


async def test_changed_while_its_pods_are_being_made(field: Field) -> None:
    """What was held for it in one queue is free there; in the other it doesn't pass the ceiling, though its turn had
    come."""
    await field.nodes(1, cpu="12")
    first, second = [await field.queue(name, capability={"cpu": "4"}) for name in ("first", "second")]
    await field.run("blocker", pods=4, queue=second)
    async with without_new_pods(field):
        await field.submit("a", pods=4, queue=first, deadline=600)
        await field.phase("a", Phase.GATHERING)
        await field.until(lambda: (job := field.job("a")) and not job.spec.suspend, "it is resumed")
        await label(field, "a", queue=second)
        await field.submit("b", pods=4, queue=first)
    await field.phase("b", Phase.RUNNING)
    await field.until(lambda: len(field.gated("a")) == 4, "its pods are at the gate")
    await field.waits("a", Code.QUEUE_CAPABILITY)
    assert not field.opened("a")
    await charged(field, second, 4)
    await field.delete_job("blocker")
    gang = await field.phase("a", Phase.RUNNING)
    assert gang.spec.queue == second
    await charged(field, second, 4)
    await charged(field, first, 4)


async def test_changed_while_it_runs(field: Field) -> None:
    """Refused with a sentence, and nothing changes; once it is suspended it may."""
    await field.nodes(1)
    queue, other = await field.queue(), await field.queue("other")
    await field.run("a", pods=2, queue=queue)
    running = {pod.uid for pod in field.bound("a")}
    for change in ({"queue": other}, {"minimum": "1"}):
        with pytest.raises(ApiError) as refused:
            await label(field, "a", **change)
        assert "its pods have passed the gate" in refused.value.message
    assert {pod.uid for pod in field.bound("a")} == running
    await charged(field, queue, 2)
    await field.change_job("a", {"spec": {"suspend": True}})
    await field.waits("a", Code.SUSPENDED)
    await label(field, "a", queue=other, minimum="1")
    await field.change_job("a", {"spec": {"suspend": False}})
    gang = await field.phase("a", Phase.RUNNING)
    assert (gang.spec.queue, gang.spec.min_available) == (other, 1)
    await charged(field, other, 2)
    await charged(field, queue, 0)


async def test_removed(field: Field) -> None:
    """Not from a Job whose pods are born behind the gate, in whatever phase: nobody would open it. From one that had
    its pods before the label came: it is charged no more."""
    await field.nodes(1, cpu="8")
    stopped, going = await field.queue("stopped", stopped=True), await field.queue("going")
    await field.submit("late", pods=2)
    await field.runs("late", 2)
    await label(field, "late", queue=going, **OTHER)
    await field.waits("late", Code.PASSED_BEFORE_LABEL)
    await field.submit("waiting", pods=2, queue=stopped)
    await field.submit("parked", pods=2, queue=stopped, deadline=600)
    await field.submit("suspended", pods=2, queue=stopped, suspend=True)
    await field.run("running", pods=2, queue=going)
    await charged(field, going, 4)
    for name in ("waiting", "parked", "suspended", "running"):
        await label(field, name, **OTHER)
        with pytest.raises(ApiError) as refused:
            await label(field, name, queue=None)
        assert "can't be taken off this Job" in refused.value.message, name
    await label(field, "late", queue=None)
    await charged(field, going, 2)
    assert len(field.bound("late")) == 2
    await field.until(lambda: field.gang("late") is None, "it is no gang any more")


async def test_added(field: Field) -> None:
    """To a Job that its user has suspended: its template gets label and gate, and it stays suspended. To one that is
    parked by nobody and has no pods, or has ended: nothing is made of it before its time."""
    await field.nodes(1, cpu="8")
    queue = await field.queue()
    await field.submit("suspended", pods=2, suspend=True)
    await field.submit("nothing", pods=0, completions=2)
    await field.submit("ended", pods=2, runs="10ms")
    await field.completes("ended")
    for name in ("suspended", "nothing", "ended"):
        await label(field, name, queue=queue)
    await field.until(
        lambda: (job := field.job("suspended")) and job.spec.template.metadata.labels.get(names.QUEUE) == queue,
        "the template is labelled",
    )
    await field.waits("suspended", Code.SUSPENDED)
    assert (job := field.job("suspended")) and job.spec.suspend
    await field.change_job("suspended", {"spec": {"suspend": False}})
    await field.phase("suspended", Phase.RUNNING)
    assert all(pod.queue == queue for pod in field.pods("suspended"))
    assert len(field.opened("suspended")) == 2
    await field.change_job("nothing", {"spec": {"parallelism": 2}})
    await field.phase("nothing", Phase.RUNNING)
    assert all(pod.queue == queue for pod in field.pods("nothing"))
    await charged(field, queue, 4)
    assert field.failures() == 0
