"""Jobs in all their shapes: how they end, what of them is made anew, and who else may see to them."""

from __future__ import annotations

from typing import Any, Final

from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.quantity import parse_units
from startgate.model.reasons import Code
from tests.behaviour.kit import IGNORES_DISRUPTION, ON_N1, Field, eventually

FAILS_JOB: Final[dict[str, Any]] = {
    "backoffLimit": 6,
    "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]},
}
FAILS_INDEX: Final[dict[str, Any]] = {
    "backoffLimit": None,
    "backoffLimitPerIndex": 3,
    "podFailurePolicy": {"rules": [{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [1]}}]},
}
LEADER_DECIDES: Final[dict[str, Any]] = {"successPolicy": {"rules": [{"succeededIndexes": "0"}]}}
LONG: Final = 60.0


def over(field: Field, name: str, kind: str, reason: str) -> bool:
    job = field.job(name)
    return job is not None and any(
        each.type == kind and each.status == "True" and each.reason == reason for each in job.status.conditions
    )


async def test_every_way_to_end(field: Field) -> None:
    """Seven running gangs end, each in its own way: the Gang says how, all of its pods go, and what they held is there
    for the next gang, which needs all of it."""
    await field.nodes(1, cpu="14")
    queue = await field.queue(capability={"cpu": "14"})
    ends: dict[str, tuple[str, str, dict[str, Any]]] = {
        "deadline": ("Failed", "DeadlineExceeded", {"deadline": 3}),
        "backoff": ("Failed", "BackoffLimitExceeded", {}),
        "fail-job": ("Failed", "PodFailurePolicy", {"spec": FAILS_JOB}),
        "fail-index": ("Failed", "FailedIndexes", {"spec": FAILS_INDEX}),
        "too-many": (
            "Failed",
            "MaxFailedIndexesExceeded",
            {"spec": {"backoffLimit": None, "backoffLimitPerIndex": 0, "maxFailedIndexes": 0}},
        ),
        "leader": ("Complete", "SuccessPolicy", {"spec": LEADER_DECIDES}),
        "all": ("Complete", "CompletionsReached", {}),
    }
    for name, (_, _, job) in ends.items():
        await field.submit(name, pods=2, queue=queue, **job)
    for name in ends:
        await field.phase(name, Phase.RUNNING)
    await field.submit("next", pods=14, queue=queue)
    for name in ("backoff", "fail-job", "fail-index", "too-many"):
        await field.simulate(field.bound(name)[0], fails="1ms")
    for name in ("leader", "all"):
        await field.simulate(field.bound(name)[0], runs="1ms")
    for name in ("fail-index", "all"):
        await field.simulate(field.bound(name)[-1], runs="1ms")
    for name, (kind, reason, _) in ends.items():
        await field.until(lambda name=name, kind=kind, reason=reason: over(field, name, kind, reason), f"{name} ends")  # type: ignore[misc]
        said = "it completed" if kind == "Complete" else f"it failed ({reason}"
        await field.until(lambda name=name, said=said: said in field.sure(name).status.message, f"{name} says how")  # type: ignore[misc]
        gang = await field.phase(name, Phase.FINISHED)
        assert gang.status.bound == ("2/2" if kind == "Complete" else "0/2"), name
    await field.phase("next", Phase.RUNNING)
    assert field.most_at_once(lambda pod: not pod.gated and not pod.ended) == 14
    seen = await eventually(
        lambda: field.read_queue(queue), lambda it: it.status.running == 1 and not it.status.waiting, "one runs"
    )
    assert parse_units(seen.status.allocated["cpu"]) == 14


async def test_what_fails_and_is_made_anew_takes_its_own_slot(field: Field) -> None:
    """With backoffLimit, with backoffLimitPerIndex, and with a rule that doesn't count: the next try of a pod comes
    before a gang that waits for the same quota, and nothing is taken back."""
    await field.nodes(1, cpu="6")
    queue = await field.queue(capability={"cpu": "6"})
    retries: dict[str, dict[str, Any]] = {
        "job": {"backoffLimit": 3},
        "index": {"backoffLimit": None, "backoffLimitPerIndex": 3},
        "uncounted": {
            "podFailurePolicy": {"rules": [{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [1]}}]}
        },
    }
    for name, spec in retries.items():
        await field.run(name, pods=2, queue=queue, spec=spec)
    await field.submit("next", pods=2, queue=queue)
    await field.waits("next", Code.QUEUE_CAPABILITY)
    for name in retries:
        await field.simulate(field.bound(name)[1], fails="1ms")
    for name in retries:
        await field.until(lambda name=name: len(field.opened(name)) == 3, f"{name} has a pod in its place", LONG)  # type: ignore[misc]
        await field.runs(name, 2)
        await field.phase(name, Phase.RUNNING)
        assert Phase.PARKED not in [phase for phase, _ in field.story(name)]
    assert not field.opened("next")
    job = field.job("uncounted")
    assert job is not None
    assert job.status.failed == 0


async def test_a_replacement_that_comes_once_the_old_pod_has_gone(field: Field) -> None:
    """podReplacementPolicy: Failed. The slot stays the gang's while its pod terminates, and is never used twice."""
    await field.nodes(2, cpu="2")
    queue = await field.queue(capability={"cpu": "2"})
    spec = {**IGNORES_DISRUPTION, "podReplacementPolicy": "Failed", "backoffLimit": 6}
    await field.run("a", pods=2, queue=queue, terminates="2s", spec=spec, **ON_N1)
    await field.submit("next", pods=1, queue=queue)
    await field.waits("next", Code.QUEUE_CAPABILITY)
    lost = field.bound("a")[0]
    await field.evict(lost)
    await field.until(lambda: len(field.opened("a")) == 3, "its replacement is released", LONG)
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 2)
    assert not field.opened("next")
    assert field.most_at_once(lambda pod: not pod.gated and not pod.ended) == 2
    await field.change_job("a", {"spec": {"suspend": True}})
    await field.phase("next", Phase.RUNNING)
    assert field.most_at_once(lambda pod: not pod.gated and not pod.ended) == 2
    await field.change_job("a", {"spec": {"suspend": False}})
    await field.waits("a", Code.QUEUE_CAPABILITY)
    assert field.failures() == 0


async def test_a_job_that_is_cleared_away_when_it_ends(field: Field) -> None:
    """ttlSecondsAfterFinished: Job, pods and Gang go, and nothing stays charged or counted."""
    await field.nodes(1)
    queue = await field.queue()
    for name, deadline in (("gated", None), ("parked", 60)):
        await field.submit(
            name, pods=2, queue=queue, runs="100ms", deadline=deadline, spec={"ttlSecondsAfterFinished": 0}
        )
    for name in ("gated", "parked"):
        await field.until(lambda name=name: len(field.opened(name)) == 2, f"{name} has started")  # type: ignore[misc]
        await field.until(lambda name=name: not field.job(name) and not field.gang(name), f"{name} is gone")  # type: ignore[misc]
    await field.until(lambda: not field.pods(), "no pod is left")
    await eventually(
        lambda: field.read_queue(queue),
        lambda it: not it.status.allocated and not it.status.running and not it.status.waiting,
        "the queue is empty",
    )


async def test_a_job_that_another_controller_manages(field: Field) -> None:
    """managedBy: who makes its pods, or doesn't, is not for us to say. It is never suspended by us, holds nothing while
    it has no pods, and its pods wait for one another as any others."""
    await field.nodes(1, cpu="4")
    queue = await field.queue(capability={"cpu": "4"}, parkBeyond=0)
    made = await field.submit("a", pods=2, queue=queue, deadline=600, spec={"managedBy": "example.com/batch"})
    assert not made.spec.suspend
    assert names.PARKED not in made.metadata.annotations
    gang = await field.waits("a", Code.PODS_MISSING)
    assert "0 of 2 pods exist" in gang.status.message
    assert "example.com/batch" in gang.status.message
    await field.run("others", pods=4, queue=queue, runs="1s")
    await field.completes("others")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": made.metadata.uid, "controller": True}
    labels = dict(made.spec.template.metadata.labels)
    assert labels[names.QUEUE] == queue
    await field.pod("a-0", labels=labels, owner=owner)
    await field.until(lambda: len(field.gated("a")) == 1, "its first pod is at the gate")
    await field.until(lambda: "1 of 2 pods exist" in field.sure("a").status.message, "it is counted")
    assert not field.opened("a")
    await field.pod("a-1", labels=labels, owner=owner)
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 2)
