"""Release: a gang starts whole or not at all, in its turn, and for few writes."""

from __future__ import annotations

from startgate.model.gang import Phase
from startgate.model.reasons import Code
from tests.behaviour.kit import ASIDE, ON_ASIDE, ON_N1, Field


async def test_a_gang_that_fits_starts_whole(field: Field) -> None:
    """All four pods of a labelled Job pass and are bound, after the admission stands in the Gang."""
    await field.nodes(2)
    queue = await field.queue()
    await field.run("a", pods=4, cpu="2", queue=queue)
    await field.runs("a", 4)
    assert len(field.opened("a")) == 4
    assert field.recorded("a") < min(field.opened("a").values()), "the record comes before the first gate"
    gang = field.gang("a")
    assert gang is not None
    assert (gang.status.bound, gang.status.message) == ("4/4", "4 of 4 pods are bound")
    assert {each.type: each.status for each in gang.status.conditions} == {
        "Released": "True",
        "Running": "True",
        "Finished": "False",
    }


async def test_three_of_four_fit_and_none_starts_until_the_fourth_does(field: Field) -> None:
    """The place comes free: all four start together, by nothing else than that."""
    await field.nodes(4, ASIDE, cpu="2")
    queue = await field.queue()
    await field.pod("outsider", cpu="2", **ON_N1)
    await field.lands("outsider")
    await field.submit("a", pods=4, cpu="2", queue=queue)
    gang = await field.waits("a", Code.NO_ROOM)
    assert "3 of 4 pods fit now (2 cpu each" in gang.status.message
    # A later gang elsewhere goes its way meanwhile, and nothing of this one moves.
    await field.run("canary", pods=1, queue=queue, **ON_ASIDE)
    assert field.opened("a") == {}
    await field.delete_pod("outsider")
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 4)
    assert [each.node for each in field.bound("a")].count("n1") == 1


async def test_no_quota_for_the_whole_gang_and_none_starts(field: Field) -> None:
    """The queue has room for three of four: the sentence says how much is left, and more capability starts all."""
    await field.nodes(4)
    queue = await field.queue(capability={"cpu": "4"})
    await field.run("first", pods=1, queue=queue)
    await field.submit("a", pods=4, queue=queue)
    gang = await field.waits("a", Code.QUEUE_CAPABILITY)
    assert gang.status.message.startswith(f"needs 4 cpu; queue {queue} has 3 of 4 cpu left")
    await field.run("canary", pods=1, queue=queue)
    assert field.opened("a") == {}
    await field.change_queue(queue, capability={"cpu": "6"})
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 4)


async def test_ninety_nine_of_a_hundred_fit_and_none_starts(field: Field) -> None:
    """Case 27."""
    await field.nodes(10, ASIDE, cpu="1")
    queue = await field.queue()
    await field.pod("outsider", cpu="100m", **ON_N1)
    await field.lands("outsider")
    await field.submit("a", pods=100, cpu="100m", queue=queue)
    gang = await field.waits("a", Code.NO_ROOM)
    assert "99 of 100 pods fit now" in gang.status.message
    await field.run("canary", pods=1, queue=queue, **ON_ASIDE)
    assert field.opened("a") == {}
    await field.delete_pod("outsider")
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 100)


async def test_the_order_is_by_priority_then_by_age(field: Field) -> None:
    """Four gangs wait for the same room: the one of high priority goes first, then the older of the others."""
    await field.nodes(1, cpu="2")
    queue = await field.queue()
    high = await field.priority("high", 1000, preemptionPolicy="Never")  # else it took the blocker's place
    await field.run("blocker", pods=2, queue=queue)
    await field.submit("older", pods=2, queue=queue, runs="200ms")
    await field.waits("older", Code.CLUSTER_IN_USE)
    await field.next_second()
    await field.submit("newer", pods=2, queue=queue, runs="200ms")
    await field.waits("newer", Code.CLUSTER_IN_USE)
    await field.submit("a-high", pods=2, queue=queue, runs="200ms", priorityClassName=high)
    await field.waits("a-high", Code.CLUSTER_IN_USE)
    await field.delete_job("blocker")
    for job in ("a-high", "older", "newer"):
        await field.completes(job)
    starts = [min(field.opened(job).values()) for job in ("a-high", "older", "newer")]
    assert starts == sorted(starts)


async def test_a_gang_of_one_costs_no_write_before_its_patch(field: Field) -> None:
    """By the API server's audit log: the first thing that the controller writes for it opens its gate."""
    await field.nodes(1)
    queue = await field.queue()
    await field.run("one", pods=1, queue=queue)
    await field.until(lambda: len(field.writes(what="gangs")) >= 1, "its Gang is in the audit log")
    writes = field.writes()
    assert (writes[0].verb, writes[0].what) == ("patch", "pods")
    assert writes[0].name.startswith("one-0-")
    assert {each.what for each in writes[1:]} == {"gangs"}
    assert len(writes) <= 3
    assert all(each.code < 300 for each in writes)


async def test_a_gang_costs_a_patch_for_each_pod_and_at_most_three_writes(field: Field) -> None:
    """From first sight to Running, by the API server's audit log; one more when it ends."""
    await field.nodes(8)
    queue = await field.queue()
    await field.run("a", pods=4, queue=queue, runs="3s")
    await field.phase("a", Phase.RUNNING)
    await field.until(lambda: len(field.writes(what="pods")) == 4, "its pods are in the audit log")
    await field.until(lambda: len(field.writes(what="gangs")) >= 2, "its Gang is in the audit log")
    seen = field.writes()
    assert 2 <= [each.what for each in seen].count("gangs") <= 3
    assert {each.what for each in seen} == {"pods", "gangs"}
    assert (seen[0].verb, seen[0].what) == ("create", "gangs")
    assert all(each.code < 300 for each in seen)
    await field.completes("a")
    await field.phase("a", Phase.FINISHED)
    later = field.writes()[len(seen) :]
    assert {each.what for each in later} == {"gangs"}
    assert len(later) <= 2  # as its pods end one by one, and when it has ended
