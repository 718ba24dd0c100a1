"""Reclaim and preemption on the real control plane: who gives way, what it is told, and that nothing is lost by it.

The decisions themselves are tested offline (tests/scenarios). Here: that a gang gives way whole, with no failure
counted; that what it frees goes to whom it was freed for; and that a refusal or a crash on the way leaves no half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from startgate.audit.record import Decision, Stage
from startgate.kube.events import EVENTS
from startgate.model import names
from startgate.model.gang import Phase, Pledge, Yielded
from startgate.model.reasons import Code
from tests.behaviour.asking import records
from tests.behaviour.kit import IGNORES_DISRUPTION, Field, eventually

LONG: Final = 60.0


async def tenants(field: Field, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, str]:
    """Two queues."""
    return await field.queue("mine", **mine), await field.queue("theirs", **theirs)


def gave_way(field: Field, job: str) -> Yielded:
    """What its Gang says of whom it gave way to last."""
    found = field.sure(job).status.yielded
    assert isinstance(found, Yielded), field.sight()
    return found


def has_yielded(field: Field, job: str) -> bool:
    gang = field.gang(job)
    return gang is not None and isinstance(gang.status.yielded, Yielded)


def suspended(field: Field) -> list[str]:
    """The Jobs that are suspended by us now."""
    return sorted(
        job.metadata.name for job in field.jobs() if job.spec.suspend and names.PARKED in job.metadata.annotations
    )


async def test_a_queue_gets_its_share_by_whole_gangs_and_no_more(field: Field) -> None:
    """Case 19, small: sixteen GPUs, eight deserved by each queue; one has them all, in gangs of two."""
    await field.nodes(4, cpu="16", gpus=4)
    gpus = {"deserved": {"nvidia.com/gpu": 8}}
    mine, theirs = await tenants(field, gpus, gpus)
    for number in range(8):
        if number == 4:
            await field.next_second()
        await field.run(f"a{number}", pods=2, cpu="100m", gpu=1, queue=theirs)
    for number in range(6):
        await field.submit(f"b{number}", pods=2, cpu="100m", gpu=1, queue=mine)
    await field.until(
        lambda: len([gang for gang in field.gangs(Phase.RUNNING) if gang.spec.queue == mine]) == 4, "four of mine run"
    )
    await field.waits("b4", Code.CLUSTER_IN_USE)
    victims = [f"a{number}" for number in range(8) if has_yielded(field, f"a{number}")]
    assert victims == ["a4", "a5", "a6", "a7"], "the youngest"
    await field.until(lambda: len(field.bound()) == 16, "all GPUs are in use")
    for victim in victims:
        assert gave_way(field, victim).reason == Code.RECLAIMED
        assert f"queue {mine}" in gave_way(field, victim).message
        assert field.sure(victim).status.taken_back == 0, "nothing was wrong with it: no back-off"
    assert field.failures() == 0


async def test_one_gang_gives_way_where_one_is_enough(field: Field) -> None:
    """Case 20: weights 1 and 10, eleven gangs of 1c on 12c; a gang of one core more than is free takes one."""
    await field.nodes(3)
    mine, theirs = await tenants(field, {"weight": 10}, {"weight": 1})
    for number in range(11):
        if number == 10:
            await field.next_second()
        await field.run(f"a{number}", pods=1, queue=theirs)
    await field.submit("b", pods=2, queue=mine)
    await field.phase("b", Phase.RUNNING)
    await field.runs("b", 2)
    assert [name for name in sorted(job.metadata.name for job in field.jobs()) if has_yielded(field, name)] == ["a10"]
    assert len(field.bound()) == 12


async def test_a_lower_gang_of_the_same_queue_gives_way_whole(field: Field) -> None:
    """Case 22: on 96c a low gang of two pods of 34c runs; a high one of one such pod takes its place."""
    await field.nodes(2, cpu="48")
    low, high = await field.priority("low", -10), await field.priority("high", 10)
    queue = await field.queue()
    await field.run("low", pods=2, cpu="34", queue=queue, priorityClassName=low)
    since = field.sure("low").status.since
    await field.next_second()
    await field.submit("high", pods=1, cpu="34", queue=queue, priorityClassName=high)
    await field.phase("high", Phase.RUNNING)
    await field.until(lambda: not field.pods("low"), "nothing is left of the low gang")
    said = gave_way(field, "low")
    assert said.reason == Code.PREEMPTED
    assert f"{field.namespace}/job-high" in said.message
    assert "priority is 10 and its own -10" in said.message
    assert field.sure("low").status.since == since
    assert field.sure("low").status.phase is Phase.PARKED
    await told_by_event(field, "low", Code.PREEMPTED, said.message)
    found = records(field.startgate.controller, namespace=field.namespace)
    (record,) = [each for each in found if each.decision is Decision.PREEMPT and each.stage is Stage.INTENT]
    assert record.gang == "job-low"
    assert record.seen["claimant"] == f"{field.namespace}/job-high"
    assert record.message == said.message
    assert field.failures() == 0


async def told_by_event(field: Field, job: str, code: Code, message: str) -> None:
    async def events() -> list[str]:
        found = await field.client.list_all(EVENTS, field.namespace)
        return [
            each.note or "" for each in found if each.regarding and each.regarding.name == job and each.reason == code
        ]

    await eventually(events, lambda notes: notes == [message], "one Event tells its user")


async def test_an_equal_gang_of_higher_priority_takes_the_place_of_eight(field: Field) -> None:
    """Case 23."""
    await field.nodes(8, cpu="1")
    low, high = await field.priority("low", -10), await field.priority("high", 10)
    queue = await field.queue()
    await field.run("low", pods=8, queue=queue, priorityClassName=low)
    await field.submit("high", pods=8, queue=queue, priorityClassName=high)
    await field.phase("high", Phase.RUNNING)
    await field.runs("high", 8)
    assert suspended(field) == ["low"]
    assert field.failures() == 0


async def test_what_is_freed_is_held_until_the_last_victim_is_gone(field: Field) -> None:
    """Cases 24 and 26: one victim is gone at once, the other takes its time; the first asks again and gets nothing.

    Room counts as free only when the pods are gone, and nobody else is made to leave meanwhile.
    """
    await field.nodes(2, cpu="3")
    mine, theirs = await tenants(field, {"deserved": {"cpu": "4"}}, {"deserved": {"cpu": "2"}})
    await field.run("stays", pods=2, queue=theirs)
    await field.next_second()
    await field.run("slow", pods=2, queue=theirs, terminates="6s")
    await field.next_second()
    await field.run("quick", pods=2, queue=theirs)
    before = len(field.opened("quick"))
    await field.submit("claimant", pods=4, queue=mine)
    await field.waits("claimant", Code.MAKING_ROOM)
    pledge = field.sure("claimant").status.claim
    assert isinstance(pledge, Pledge)
    assert sorted(pledge.victims) == [f"{field.namespace}/job-quick", f"{field.namespace}/job-slow"]
    await field.until(lambda: not field.pods("quick"), "the quick one is gone")
    await field.waits("quick", Code.OTHERS_FIRST)
    assert len(field.pods("slow")) == 2, "the other one is on its way out still"
    assert field.opened("claimant") == {}
    await field.phase("claimant", Phase.RUNNING)
    await field.runs("claimant", 4)
    assert Counter(pod.node for pod in field.bound("claimant")) == pledge.nodes, "where the proof had them"
    gone = max(change.old.version for change in field.pod_changes if change.new is None and change.old)
    assert min(field.opened("claimant").values()) > gone, "no gate was open before the last of them was gone"
    assert len(field.opened("quick")) == before
    assert not has_yielded(field, "stays")
    parks = [write for write in field.writes(what="jobs", about="") if write.name in ("stays", "slow", "quick")]
    assert len(parks) == 2, "each victim was told once"
    await field.until(lambda: field.sure("claimant").status.phase is Phase.RUNNING, "it runs")
    assert not isinstance(field.sure("claimant").status.claim, Pledge), "nothing is held for it any more"
    assert field.failures() == 0


async def test_a_gang_that_gave_way_completes_later(field: Field) -> None:
    """Case 25: `backoffLimit: 0`, and one counted failure would end it."""
    await field.nodes(1)
    mine, theirs = await tenants(field, {"deserved": {"cpu": "4"}}, {"deserved": {"cpu": "0"}})
    await field.run("victim", pods=4, queue=theirs, runs="8s")
    await field.submit("claimant", pods=4, queue=mine, runs="1s")
    await field.completes("claimant")
    assert has_yielded(field, "victim")
    job = await field.completes("victim", LONG)
    assert (job.status.succeeded, job.status.failed) == (4, 0)
    assert len(field.opened("victim")) == 8, "it started twice, and gave way once"
    assert names.PARKED not in job.metadata.annotations
    assert names.PARKED_MESSAGE not in job.metadata.annotations


async def test_an_elastic_gang_loses_what_is_beyond_its_minimum(field: Field) -> None:
    """Highest index first. It runs on, no failure is counted, and what it lost joins again when there is room."""
    await field.nodes(1)
    mine, theirs = await tenants(field, {"deserved": {"cpu": "2"}}, {"deserved": {"cpu": "2"}})
    await field.run("elastic", pods=4, minimum=2, queue=theirs, spec=IGNORES_DISRUPTION)
    await field.runs("elastic", 4)
    kept = {pod.uid for pod in field.bound("elastic") if pod.index < 2}
    await field.submit("claimant", pods=2, queue=mine)
    await field.phase("claimant", Phase.RUNNING)
    assert {pod.uid for pod in field.bound("elastic")} == kept
    assert field.sure("elastic").status.phase is Phase.RUNNING
    assert gave_way(field, "elastic").reason == Code.RECLAIMED
    assert suspended(field) == []
    await field.until(lambda: len(field.gated("elastic")) == 2, "what takes their place waits at the gate")
    assert field.failures() == 0
    await field.delete_job("claimant")
    await field.runs("elastic", 4)
    assert field.failures() == 0


async def test_a_budget_that_forbids_an_eviction_is_said(field: Field) -> None:
    """A PodDisruptionBudget over the elastic gang: nothing goes, its Gang says why, and it gives way once it may."""
    await field.nodes(1)
    mine, theirs = await tenants(field, {"deserved": {"cpu": "2"}}, {"deserved": {"cpu": "2"}})
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all"},
        "spec": {"minAvailable": 4, "selector": {"matchLabels": {"batch.kubernetes.io/job-name": "elastic"}}},
    }
    await field.put(budget)
    await field.run("elastic", pods=4, minimum=2, queue=theirs, spec=IGNORES_DISRUPTION)
    await field.runs("elastic", 4)
    await field.submit("claimant", pods=2, queue=mine)
    gang = await field.waits("elastic", Code.WRITE_REFUSED)
    assert "evicting pods beyond its minimum was refused" in gang.status.message
    assert "disruption budget" in gang.status.message
    assert len(field.bound("elastic")) == 4
    await field.take_away(budget)
    await field.phase("claimant", Phase.RUNNING)
    await field.waits("elastic", Code.RUNNING)
    assert field.failures() == 0


async def test_killed_between_the_pledge_and_the_victims(field: Field) -> None:
    """The claim stands in the Gang and nobody was touched: the next leader decides anew, and it is done once."""
    await field.nodes(1)
    mine, theirs = await tenants(field, {"deserved": {"cpu": "4"}}, {"deserved": {"cpu": "0"}})
    await field.run("victim", pods=4, queue=theirs)
    suspends = "has(object.spec.suspend) && object.spec.suspend"
    policy = await field.policy("no-suspend", resource="jobs", group="batch", version="v1", refuses=suspends)
    await field.submit("claimant", pods=4, queue=mine)
    await field.until(
        lambda: (gang := field.gang("claimant")) and isinstance(gang.status.claim, Pledge), "the pledge is on record"
    )
    gang = await field.waits("victim", Code.WRITE_REFUSED)
    assert "suspending its Job was refused" in gang.status.message
    await field.kill_controller()
    assert len(field.bound("victim")) == 4
    await field.take_away(policy)
    await field.start_controller()
    await field.phase("claimant", Phase.RUNNING)
    await field.runs("claimant", 4)
    await field.until(lambda: has_yielded(field, "victim"), "the victim's Gang says to whom it gave way")
    assert field.failures() == 0


async def test_killed_while_the_victims_are_leaving(field: Field) -> None:
    """What is freed is held for the claimant by what stands in its Gang."""
    await field.nodes(1)
    mine, theirs = await tenants(field, {"deserved": {"cpu": "4"}}, {"deserved": {"cpu": "0"}})
    await field.run("quick", pods=2, queue=theirs)
    await field.next_second()
    await field.run("slow", pods=2, queue=theirs, terminates="8s")
    await field.submit("claimant", pods=4, queue=mine)
    await field.until(lambda: suspended(field) == ["quick", "slow"], "both are suspended")
    await field.kill_controller()
    await field.until(lambda: not field.pods("quick"), "one is gone")
    await field.start_controller()
    await field.waits("quick", Code.OTHERS_FIRST)
    await field.phase("claimant", Phase.RUNNING)
    assert len(field.opened("quick")) == 2
    assert field.failures() == 0


async def test_a_claim_of_which_nothing_comes_is_taken_off(field: Field) -> None:
    """The claimant's queue gets a ceiling while others leave for it: they start again, and no claim stays on record."""
    await field.nodes(1)
    mine, theirs = await tenants(field, {"deserved": {"cpu": "4"}}, {"deserved": {"cpu": "0"}})
    await field.run("victim", pods=4, queue=theirs, terminates="3s")
    await field.submit("claimant", pods=4, queue=mine)
    await field.waits("claimant", Code.MAKING_ROOM)
    await field.change_queue(mine, deserved={"cpu": "2"}, capability={"cpu": "2"})
    await field.waits("claimant", Code.NEVER_WITHIN_QUOTA)
    await field.runs("victim", 4)
    await field.until(lambda: not isinstance(field.sure("claimant").status.claim, Pledge), "the claim is gone")


async def test_nobody_gives_way_again_and_again_for_what_another_is_kept_from(field: Field) -> None:
    """The claimant needs two places, and an admission policy keeps one gang from leaving: the other one isn't told to
    go each time that it is tried."""
    await field.nodes(1)
    mine, theirs = await tenants(field, {"deserved": {"cpu": "4"}}, {"deserved": {"cpu": "0"}})
    await field.run("kept", pods=2, queue=theirs)
    await field.next_second()
    await field.run("goes", pods=2, queue=theirs)
    refuses = "object.metadata.name == 'kept' && has(object.spec.suspend) && object.spec.suspend"
    policy = await field.policy("no-suspend", resource="jobs", group="batch", version="v1", refuses=refuses)
    await field.submit("claimant", pods=4, queue=mine)

    def refused() -> int:
        return sum(write.code >= 400 and write.name == "kept" for write in field.writes(what="jobs"))

    await field.until(lambda: refused() == 3, "it was tried three times")
    await field.runs("goes", 2)
    assert len(field.opened("goes")) == 4, "it gave way once"
    await field.take_away(policy)
    await field.phase("claimant", Phase.RUNNING)
    assert field.failures() == 0
