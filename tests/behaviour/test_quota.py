"""Quota across queues, as users of a cluster meet it: ceilings, floors, use that is always what exists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from startgate.kube.errors import ApiError
from startgate.kube.kinds import QUEUES
from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.quantity import parse_milli, parse_units
from startgate.model.reasons import Code
from tests.behaviour.kit import Field, eventually


async def test_what_a_gang_does_not_ask_for_never_blocks_it(field: Field) -> None:
    """Case 1."""
    await field.nodes(1)
    queue = await field.queue(capability={"nvidia.com/gpu": "9999", "example.com/rdma": "9999"})
    await field.run("a", pods=2, queue=queue)


async def test_gangs_that_fit_one_at_a_time_run_one_at_a_time(field: Field) -> None:
    """Case 2: in order, none deadlocked, and never more in use than the queue may have."""
    await field.nodes(4)
    queue = await field.queue(capability={"cpu": "2", "memory": "10Gi"})
    for job in ("a", "b", "c"):
        await field.submit(job, pods=2, memory="2Gi", queue=queue, runs="300ms")
        await field.until(lambda name=job: len(field.pods(name)) == 2, "its pods are made")  # type: ignore[misc]
    for job in ("a", "b", "c"):
        await field.completes(job)
    starts = [sorted(field.opened(job).values()) for job in ("a", "b", "c")]
    assert starts == sorted(starts)
    assert starts[0][-1] < starts[1][0] and starts[1][-1] < starts[2][0]
    assert field.most_at_once(lambda pod: not pod.gated and not pod.ended) == 2


async def finish(field: Field) -> None:
    for pod in field.pods("a"):
        await field.simulate(pod, runs="1ms")
    await field.completes("a")


async def delete_pods(field: Field) -> None:
    for pod in field.pods("a"):
        await field.delete_pod(pod.name)


async def delete_owner(field: Field) -> None:
    await field.delete_job("a")


async def scale_down(field: Field) -> None:
    await field.change_job("a", {"spec": {"parallelism": 0}})


ENDS: Final[dict[str, Callable[[Field], Awaitable[None]]]] = {
    "its pods have finished": finish,
    "its pods are deleted by hand": delete_pods,
    "its owner is gone": delete_owner,
    "it is scaled to 0": scale_down,
}


@pytest.mark.parametrize("end", ENDS)
async def test_quota_is_free_again_though_nobody_watched(field: Field, end: str) -> None:
    """Case 3: what a gang had is free for the next, also when the controller was down while it ended."""
    await field.nodes(2)
    queue = await field.queue(capability={"cpu": "2"})
    await field.run("a", pods=2, queue=queue)
    await field.submit("b", pods=2, queue=queue)
    await field.waits("b", Code.QUEUE_CAPABILITY)
    await field.kill_controller()
    await ENDS[end](field)
    await field.until(lambda: not field.bound("a"), "the pods of a are gone")
    assert field.opened("b") == {}
    await field.start_controller()
    await field.phase("b", Phase.RUNNING)
    await field.runs("b", 2)


async def test_a_restart_rebuilds_what_is_in_use_before_anything_is_released(field: Field) -> None:
    """Case 4: two gangs run and fill the queue; the controller that comes back lets no third one by."""
    await field.nodes(4)
    queue, other = await field.queue(capability={"cpu": "4"}), await field.queue("other")
    await field.run("a", pods=2, queue=queue)
    await field.run("b", pods=2, queue=queue)
    await field.submit("c", pods=2, queue=queue)
    await field.waits("c", Code.QUEUE_CAPABILITY)
    await field.kill_controller()
    await field.submit("d", pods=2, queue=queue)
    await field.submit("canary", pods=2, queue=other)
    await field.start_controller()
    await field.phase("canary", Phase.RUNNING)
    await field.waits("d", Code.QUEUE_CAPABILITY)
    assert field.opened("c") == {} and field.opened("d") == {}
    await field.delete_job("a")
    await field.phase("c", Phase.RUNNING)
    await field.runs("c", 2)
    assert field.opened("d") == {}


async def test_finished_jobs_left_lying_use_nothing(field: Field) -> None:
    """Case 5: 35 of them, and the whole queue is free; after a restart of the controller as well."""
    await field.nodes(4, cpu="16")
    queue = await field.queue()
    for number in range(35):
        await field.submit(f"done-{number}", pods=1, queue=queue, runs="1ms")
    await field.until(
        lambda: field.job("done-34") and all(job.status.succeeded for job in field.jobs()), "all are done"
    )
    await field.change_queue(queue, capability={"cpu": "2"})
    await field.kill_controller()
    await field.start_controller()
    await field.run("a", pods=2, queue=queue)
    status = (await eventually(lambda: field.read_queue(queue), lambda it: it.status.running == 1, "one runs")).status
    assert status.allocated["cpu"] == "2"
    assert status.waiting == 0


async def test_a_guarantee_is_there_whenever_it_is_asked_for(field: Field) -> None:
    """Case 6: of 9 cpu two greedy queues get 7 together, and the third starts its 2 at once."""
    await field.nodes(4, cpu="16")
    parent = await field.queue("parent", capability={"cpu": "9"})
    one, two, three = [
        await field.queue(name, parent=parent, guarantee={"cpu": "2"}) for name in ("one", "two", "three")
    ]
    for number in range(9):
        await field.submit(f"one-{number}", pods=1, queue=one)
        await field.submit(f"two-{number}", pods=1, queue=two)
    await field.until(lambda: len(field.bound()) == 7, "seven run")
    await field.until(lambda: len(field.gangs(Phase.WAITING)) == 11, "eleven say that they wait")
    codes = {gang.status.reason for gang in field.gangs(Phase.WAITING)}
    assert codes == {Code.PARENT_CAPABILITY}
    assert "kept" in field.gangs(Phase.WAITING)[0].status.message
    assert len(field.bound()) == 7
    await field.run("c", pods=2, queue=three)
    await field.runs("c", 2)
    assert field.most_at_once(lambda pod: not pod.gated and not pod.ended) == 9


async def test_a_limit_range_s_defaults_are_charged(field: Field) -> None:
    """Case 10: no request of its own is the default of 1; a limit of 3 alone asks for 3."""
    await field.nodes(2, cpu="8")
    limits = [{"type": "Container", "defaultRequest": {"cpu": "1"}}]
    await field.put(
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "defaults"}, "spec": {"limits": limits}}
    )
    queue = await field.queue(capability={"cpu": "4"})
    limited = [{"name": "main", "image": "example.invalid/main", "resources": {"limits": {"cpu": "3"}}}]
    await field.run("a", pods=1, queue=queue, containers=limited)
    await field.submit("b", pods=2, cpu="", queue=queue)
    gang = await field.waits("b", Code.QUEUE_CAPABILITY)
    assert gang.status.message.startswith(f"needs 2 cpu; queue {queue} has 1 of 4 cpu left")
    await field.run("c", pods=1, cpu="", queue=queue)
    assert field.opened("b") == {}


async def test_leader_and_workers_are_each_checked_against_what_they_ask(field: Field) -> None:
    """Case 35: a gang of pods that another controller makes, one of 3 cpu and two of 1."""
    await field.nodes(1, cpu="8")
    queue = await field.queue(capability={"cpu": "4"})
    owner = await field.owner("boss")
    labels = {names.QUEUE: queue, names.MIN_AVAILABLE: "3"}
    await field.pod("leader", cpu="3", labels=labels, owner=owner)
    for name in ("worker-1", "worker-2"):
        await field.pod(name, cpu="1", labels=labels, owner=owner)
    await field.until(
        lambda: (it := field.gang_named("configmap-boss")) and it.status.reason == Code.NEVER_WITHIN_QUOTA, "it waits"
    )
    gang = field.gang_named("configmap-boss")
    assert gang is not None
    assert gang.status.message.startswith("asks 5 cpu")
    assert not field.bound()
    await field.change_queue(queue, capability={"cpu": "5"})
    await field.until(lambda: len(field.bound()) == 3, "leader and workers are bound")


async def test_a_parked_gang_whose_pods_ask_for_more_than_their_template(field: Field) -> None:
    """A LimitRange fills in what the template left out: its turn came for nothing, and its pods would be 4 cpu."""
    await field.nodes(1, cpu="8")
    limits = {"limits": [{"type": "Container", "defaultRequest": {"cpu": "2"}, "default": {"cpu": "2"}}]}
    await field.put({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "fill-in"}, "spec": limits})
    queue = await field.queue(capability={"cpu": "5"})
    await field.run("first", pods=2, cpu="1", queue=queue)
    await field.submit("a", pods=2, cpu="", queue=queue, deadline=600)
    gang = await field.waits("a", Code.QUEUE_CAPABILITY)
    assert gang.status.phase is Phase.GATHERING
    assert gang.status.message.startswith(f"needs 4 cpu; queue {queue} has 3 of 5 cpu left")
    assert field.opened("a") == {}
    await field.delete_job("first")
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 2)


async def test_a_job_that_is_scaled_down_and_up_asks_again(field: Field) -> None:
    """What it gave up another gang has by now: its pods wait, and the queue's ceiling holds."""
    await field.nodes(1, cpu="16")
    queue = await field.queue(capability={"cpu": "4"})
    await field.run("a", pods=4, queue=queue, spec={"backoffLimit": 6})
    await field.change_job("a", {"spec": {"parallelism": 1}})
    await field.run("b", pods=3, queue=queue)
    await field.change_job("a", {"spec": {"parallelism": 4}})
    await field.until(lambda: len(field.gated("a")) == 3, "it has its pods again")
    await field.until(lambda: field.sure("a").status.counts.gated == 3, "the Gang knows")
    await field.run("canary", pods=1, cpu="", queue=queue)
    assert (len(field.bound("a")), len(field.gated("a"))) == (1, 3)
    await field.delete_job("b")
    await field.runs("a", 4)


async def test_a_job_that_is_scaled_to_nothing_starts_whole_again(field: Field) -> None:
    await field.nodes(1, cpu="4")
    queue = await field.queue()
    await field.run("a", pods=4, queue=queue, spec={"backoffLimit": 6})
    await field.change_job("a", {"spec": {"parallelism": 0}})
    await field.waits("a", Code.PODS_MISSING)
    await field.run("b", pods=2, queue=queue)
    before = len(field.opened("a"))
    await field.change_job("a", {"spec": {"parallelism": 4}})
    await field.waits("a", Code.CLUSTER_IN_USE)
    assert len(field.opened("a")) == before
    await field.delete_job("b")
    await field.runs("a", 4)


async def test_a_gang_that_changes_its_queue_while_it_reserves(field: Field) -> None:
    """It was decided on for the queue that it was in: in the other one it is decided on anew."""
    await field.nodes(2, cpu="4")
    queue, small = await field.queue(), await field.queue("small", capability={"cpu": "1"})
    for attempt in range(8):
        job = f"a{attempt}"
        await field.submit(job, pods=8, queue=queue)
        await field.until(lambda job=job: field.nominations(job), "room is being reserved")  # type: ignore[misc]
        try:
            await field.change_job(job, {"metadata": {"labels": {names.QUEUE: small}}})
        except ApiError as error:
            assert "its pods have passed the gate" in error.message
            await field.clear()
            continue
        await field.waits(job, Code.NEVER_WITHIN_QUOTA)
        assert field.opened(job) == {}
        await field.until(lambda job=job: not any(p.nominated for p in field.gated(job)), "the room is given up")  # type: ignore[misc]
        return
    pytest.fail("in no attempt was the label changed before the gang was released")


async def test_of_pods_of_several_kinds_those_pass_that_have_the_quota(field: Field) -> None:
    """The second has more than is left, the third has not: the first and the third pass, not the first two."""
    await field.nodes(1, cpu="8")
    queue = await field.queue(capability={"cpu": "2"}, stopped=True)
    owner = await field.owner("boss")
    labels = {names.QUEUE: queue, names.MIN_AVAILABLE: "1"}
    for name, cpu in (("pod-1", "1"), ("pod-2", "3"), ("pod-3", "1")):
        await field.pod(name, cpu=cpu, labels=labels, owner=owner)
    await field.until(
        lambda: (it := field.gang_named("configmap-boss")) and it.status.counts.gated == 3, "all three are known"
    )
    await field.change_queue(queue, stopped=False)
    await field.until(lambda: len(field.bound()) == 2, "two of them are bound")
    assert [pod.name for pod in field.bound()] == ["pod-1", "pod-3"]
    assert [pod.name for pod in field.gated()] == ["pod-2"]


async def test_a_stopped_queue_takes_jobs_and_releases_none(field: Field) -> None:
    await field.nodes(1)
    queue, other = await field.queue(stopped=True), await field.queue("other")
    await field.submit("a", pods=2, queue=queue)
    gang = await field.waits("a", Code.QUEUE_STOPPED)
    assert queue in gang.status.message
    await field.run("canary", pods=1, queue=other)
    assert field.opened("a") == {}
    await field.change_queue(queue, stopped=False)
    await field.phase("a", Phase.RUNNING)


async def test_a_stopped_queue_lets_what_runs_go_on(field: Field) -> None:
    """And the pods that follow in a running gang's slots."""
    await field.nodes(1)
    queue = await field.queue()
    await field.submit("a", pods=2, completions=6, queue=queue, runs="500ms")
    await field.runs("a", 2)
    await field.change_queue(queue, stopped=True)
    await field.completes("a")


async def test_a_gang_on_hold_waits_until_the_hold_is_taken_off(field: Field) -> None:
    await field.nodes(1)
    queue = await field.queue()
    await field.submit("a", pods=2, queue=queue, annotations={names.HOLD: "true"})
    await field.waits("a", Code.ON_HOLD)
    await field.run("canary", pods=1, queue=queue)
    assert field.opened("a") == {}
    await field.change_job("a", {"metadata": {"annotations": {names.HOLD: None}}})
    await field.phase("a", Phase.RUNNING)


async def test_a_queue_that_has_gone_is_said_with_the_nearest_name(field: Field) -> None:
    """It is deleted before anybody has counted the gang in it; when it is there again, the gang starts."""
    await field.nodes(1)
    queue, near = await field.queue("evil"), await field.queue("eval")
    await field.kill_controller()
    await field.submit("a", pods=2, queue=queue)
    await field.client.delete(QUEUES, queue)
    await field.start_controller()
    gang = await field.waits("a", Code.NO_SUCH_QUEUE)
    assert f"there is no queue {queue}" in gang.status.message
    assert near in gang.status.message
    await field.run("canary", pods=1, queue=near)
    assert not field.opened("a")
    await field.queue("evil")
    await field.phase("a", Phase.RUNNING)


async def test_nine_of_ten_run_and_the_tenth_joins_when_there_is_room(field: Field) -> None:
    """Case 11: parallelism 10, minimum 9, quota for 9."""
    await field.nodes(3)
    queue = await field.queue(capability={"cpu": "9"})
    await field.submit("a", pods=10, minimum=9, queue=queue)
    await field.runs("a", 9)
    await field.phase("a", Phase.RUNNING)
    await field.run("canary", pods=1, queue=await field.queue("other"))
    assert len(field.opened("a")) == 9
    assert [pod.index for pod in field.gated("a")] == [9], "lowest completion indexes first"
    await field.change_queue(queue, capability={"cpu": "10"})
    await field.runs("a", 10)
    await field.until(lambda: field.sure("a").status.bound == "10/10", "all ten are counted")


async def test_the_books_of_a_queue_follow_what_lives(field: Field) -> None:
    """status.allocated and headroom, for those who plan by them."""
    await field.nodes(2)
    queue = await field.queue(capability={"cpu": "6", "memory": "8Gi"})
    await field.run("a", pods=3, cpu="1500m", memory="1Gi", queue=queue)
    status = (await eventually(lambda: field.read_queue(queue), lambda it: it.status.allocated, "it is charged")).status
    assert parse_milli(status.allocated["cpu"]) == parse_milli("4500m")
    assert parse_units(status.allocated["memory"]) == parse_units("3Gi")
    assert parse_milli(status.headroom["cpu"]) == parse_milli("1500m")
    await field.delete_job("a")
    await eventually(lambda: field.read_queue(queue), lambda it: not it.status.allocated, "nothing is charged")
