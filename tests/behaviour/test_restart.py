"""Nothing lost: each program is killed at the worst moments, and what comes back makes it whole (promise 6).

Where a moment is too short to hit, a policy in the API server refuses the write that would end it.
"""

from __future__ import annotations

import pytest

from localcluster.nodes import Node
from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.reasons import Code
from tests.behaviour.kit import LIFTED, Field

HOSTNAME = "kubernetes.io/hostname"


async def test_killed_while_it_opens_the_gates_of_a_gang(field: Field) -> None:
    """SIGKILL between two gates: after the restart the gang is whole, by the admission that was on record."""
    await field.nodes(8, cpu="64")
    queue = await field.queue()
    for attempt in range(5):
        job = f"a{attempt}"
        await field.submit(job, pods=100, cpu="100m", queue=queue)
        await field.until(lambda job=job: field.opened(job), "the first gate is open")  # type: ignore[misc]
        await field.kill_controller()
        shut = len(field.gated(job))
        admission = field.sure(job).status.admission
        await field.start_controller()
        await field.phase(job, Phase.RUNNING)
        await field.runs(job, 100)
        assert field.sure(job).status.admission == admission
        assert len(field.opened(job)) == 100, "no pod was made anew"
        if shut:
            mine = [
                line for line in field.startgate.controller.audit.read_text().splitlines() if field.namespace in line
            ]
            assert any("unknown: the process ended" in line for line in mine), "the intent's end is said to be unknown"
            return
        await field.clear()
    pytest.fail("in no attempt was the controller killed before the last gate was open")


async def test_killed_between_the_record_and_the_first_gate(field: Field) -> None:
    """What is on record is completed."""
    await field.nodes(2)
    queue = await field.queue(stopped=True)
    await field.submit("a", queue=queue)
    await field.waits("a", Code.QUEUE_STOPPED)
    policy = await field.policy("no-gate-opens", resource="pods", refuses=LIFTED)
    await field.change_queue(queue, stopped=False)
    await field.until(lambda: field.sure("a").status.admission, "the admission is on record")
    await field.waits("a", Code.RELEASE_REFUSED)
    await field.kill_controller()
    assert field.opened("a") == {}
    await field.take_away(policy)
    await field.start_controller()
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 4)


async def test_killed_while_it_opens_the_gates_of_a_gang_that_is_pinned(field: Field) -> None:
    """Two spreads, two pods on one node. The others, with one on each node, are kept to their places as the first."""
    zones = [Node(name=f"{zone}{i}", cpu="2", labels={"zone": zone}) for zone in ("a", "b") for i in (1, 2)]
    await field.nodes(0, *zones)
    queue = await field.queue(stopped=True)
    spread = [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"batch.kubernetes.io/job-name": "a"}},
        }
        for key in ("zone", HOSTNAME)
    ]
    await field.submit("a", pods=5, queue=queue, topologySpreadConstraints=spread)
    await field.waits("a", Code.QUEUE_STOPPED)
    index = "object.metadata.labels['batch.kubernetes.io/job-completion-index']"
    policy = await field.policy("not-the-last", resource="pods", refuses=f"{LIFTED} && {index} in ['3', '4']")
    await field.change_queue(queue, stopped=False)
    await field.until(lambda: len(field.bound("a")) == 3, "the first three are bound")
    await field.kill_controller()
    await field.take_away(policy)
    await field.start_controller()
    await field.runs("a", 5)
    for pod in field.pods("a"):
        assert dict(pod.shape.node_selector) == {HOSTNAME: pod.node}


async def test_killed_after_a_suspend_before_the_gang_is_written(field: Field) -> None:
    """The Job is suspended as ours, and the Gang doesn't know yet: afterwards it does, once."""
    await field.nodes(2)
    queue = await field.queue()
    async with field.without_scheduler():
        await field.submit("a", queue=queue, runs="100ms", annotations={names.START_TIMEOUT: "5s"})
        await field.until(lambda: len(field.opened("a")) == 4, "all gates are open")
        policy = await field.policy("gangs-stay", resource="gangs", group=names.GROUP, refuses="true")
        await field.until(lambda: (job := field.job("a")) and job.spec.suspend, "its Job is suspended")
        await field.kill_controller()
        assert field.sure("a").status.taken_back == 0
        assert field.sure("a").status.admission
        await field.take_away(policy)
        await field.start_controller()
        await field.until(lambda: field.sure("a").status.taken_back == 1, "the Gang knows that it was taken back")
        assert field.sure("a").status.phase is Phase.PARKED
        assert not field.sure("a").status.admission
    job = await field.completes("a", within=60.0)
    assert job.status.failed == 0
    assert field.sure("a").status.taken_back == 1


async def test_killed_while_a_parked_gang_s_pods_are_made(field: Field) -> None:
    """Its turn is on record; it takes it afterwards, and its quota wasn't given to another."""
    await field.nodes(4)
    queue = await field.queue(capability={"cpu": "8"}, stopped=True)
    await field.submit("a", pods=8, queue=queue, deadline=120)
    await field.waits("a", Code.QUEUE_STOPPED)
    await field.change_queue(queue, stopped=False)
    await field.until(lambda: field.sure("a").status.admission, "its turn has come")
    await field.kill_controller()
    await field.submit("b", pods=8, queue=queue)
    await field.start_controller()
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 8)
    await field.waits("b", Code.QUEUE_CAPABILITY)
    assert field.opened("b") == {}


async def test_killed_while_room_is_reserved(field: Field) -> None:
    """A reservation that no record stands behind is dropped, where the gang can't start any more."""
    high = await field.priority("high", 1000)
    queue = await field.queue()
    for attempt in range(5):
        job = f"a{attempt}"
        await field.nodes(4, cpu="1")
        await field.submit(job, pods=4, queue=queue)
        await field.until(lambda job=job: field.nominations(job), "room is reserved")  # type: ignore[misc]
        await field.kill_controller()
        if field.opened(job) or ((gang := field.gang(job)) and gang.status.admission):
            await field.clear()
            await field.start_controller()
            continue
        await field.pod("outsider", priorityClassName=high)
        await field.lands("outsider")
        await field.start_controller()
        await field.waits(job, Code.NO_ROOM)
        await field.until(lambda job=job: not any(p.nominated for p in field.pods(job)), "no room is kept")  # type: ignore[misc]
        assert field.opened(job) == {}
        await field.delete_pod("outsider")
        await field.phase(job, Phase.RUNNING)
        return
    pytest.fail("in no attempt was the controller killed before the admission was on record")


async def test_the_webhook_is_down_while_a_job_s_pods_are_made(field: Field) -> None:
    """The template has label and gate from the Job's creation on: the pods are born gated, and the gang starts."""
    await field.nodes(3)
    queue = await field.queue()
    await field.cluster.stop_process("kube-controller-manager")
    try:
        await field.submit("a", pods=8, queue=queue)
        await field.startgate.webhook.kill()
    finally:
        await field.cluster.start_process("kube-controller-manager")
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 8)
    assert all(change.new.gated for change in field.pod_changes if change.old is None and change.new)
    await field.startgate.webhook.start()
    await field.startgate.webhook.wait_ready()
    await field.run("canary", pods=1, cpu="100m", queue=queue)


async def test_both_programs_are_killed_while_a_gang_waits(field: Field) -> None:
    """It keeps its age, and starts when there is room."""
    await field.nodes(1)
    queue = await field.queue(capability={"cpu": "4"})
    await field.run("blocker", queue=queue)
    await field.submit("a", queue=queue)
    since = (await field.waits("a", Code.QUEUE_CAPABILITY)).status.since
    await field.kill_controller()
    await field.startgate.webhook.kill()
    await field.startgate.webhook.start()
    await field.start_controller()
    await field.startgate.webhook.wait_ready()
    await field.delete_job("blocker")
    await field.phase("a", Phase.RUNNING)
    assert field.sure("a").status.since == since


async def test_a_running_gang_is_left_alone_by_a_restart(field: Field) -> None:
    """Nothing is written about it that it didn't already say."""
    await field.nodes(2)
    queue = await field.queue()
    await field.run("a", queue=queue)
    await field.kill_controller()
    before = len(field.writes(about="a"))
    running = {pod.uid for pod in field.bound("a")}
    await field.start_controller()
    await field.run("canary", pods=1, queue=queue)
    assert {pod.uid for pod in field.bound("a")} == running
    assert field.writes(about="a")[before:] == []


async def test_suspended_and_resumed_by_its_user_while_the_controller_is_down(field: Field) -> None:
    """Its pods are others than those that were admitted: they wait for their turn, behind a gang of higher priority."""
    await field.nodes(1)
    high = await field.priority("high", 10)
    queue = await field.queue()
    await field.run("low", pods=4, queue=queue)
    await field.next_second()  # the Job's start is known to the second
    await field.kill_controller()
    await field.change_job("low", {"spec": {"suspend": True}})
    await field.until(lambda: not field.pods("low"), "its pods are gone")
    await field.change_job("low", {"spec": {"suspend": False}})
    await field.until(lambda: len(field.gated("low")) == 4, "they are made anew")
    await field.submit("high", pods=4, queue=queue, priorityClassName=high)
    await field.until(lambda: len(field.gated("high")) == 4, "the other one waits too")
    await field.start_controller()
    await field.phase("high", Phase.RUNNING)
    await field.waits("low", Code.CLUSTER_IN_USE)
    assert len(field.opened("low")) == 4
    assert field.failures() == 0
