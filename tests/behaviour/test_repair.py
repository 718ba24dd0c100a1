"""Release and repair: refusals, foreign gates, lost pods, replacements; never a silent half gang."""

from __future__ import annotations

from typing import Any, Final

from startgate.kube.client import Patch
from startgate.kube.kinds import PODS
from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.reasons import Code
from tests.behaviour.kit import LIFTED, Field, eventually

GATE: Final = "example.com/wait"
SOON: Final = {names.START_TIMEOUT: "3s"}
MENDS: Final[dict[str, Any]] = {
    "backoffLimit": 6,
    "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]},
}
"""A Job that replaces pods that were drained, without counting a failure. Its controller waits ten seconds first."""

THIRD_LIFTED: Final = f"{LIFTED} && object.metadata.name.startsWith('a-2-')"
LONG: Final = 60.0


async def lift(field: Field, name: str) -> None:
    """Takes the test's own gate off."""
    patch = {"spec": {"schedulingGates": [{"name": GATE, "$patch": "delete"}]}}
    await field.client.patch(PODS, name, patch, field.namespace, how=Patch.STRATEGIC)


async def test_a_pod_of_a_higher_priority_takes_a_place(field: Field) -> None:
    """Case 28: it may hit a gang whose room is reserved. Then the gang is never left in half: it is whole later."""
    high = await field.priority("high", 1000)
    await field.nodes(4, cpu="1")
    queue = await field.queue()
    await field.pod("late", gates=(GATE,), priorityClassName=high)
    # Where it came too late for that, it preempts one of them, which counts no failure.
    await field.submit("a", queue=queue, annotations=SOON, **MENDS)
    await field.until(lambda: field.nominations("a"), "the first reservation is seen")
    await lift(field, "late")
    await field.lands("late")
    # Not reserved after all, or released and then taken back: either way no pod of it stays on a node.
    await field.until(lambda: not field.bound("a") and len(field.gated("a")) in (0, 4), "no pod of it holds a node")
    why = (Code.NO_ROOM, Code.BACKING_OFF, Code.CLUSTER_IN_USE)
    await field.until(lambda: (gang := field.gang("a")) and gang.status.reason in why, "it says why")
    await field.delete_pod("late")
    await field.phase("a", Phase.RUNNING, LONG)
    await field.runs("a", 4)
    job = field.job("a")
    assert job is not None
    assert job.status.failed == 0


async def test_a_refused_gate_is_said_and_then_opened(field: Field) -> None:
    """Case 29: a policy refuses the patch of one pod of four; once it is gone the gang is completed."""
    await field.nodes(2)
    queue = await field.queue(stopped=True)
    await field.submit("a", queue=queue)
    await field.waits("a", Code.QUEUE_STOPPED)
    policy = await field.policy("not-this-pod", resource="pods", refuses=THIRD_LIFTED)
    await field.change_queue(queue, stopped=False)
    gang = await field.waits("a", Code.RELEASE_REFUSED)
    assert "lifting the gate of pod a-2-" in gang.status.message
    assert "refused by not-this-pod" in gang.status.message
    assert gang.status.phase is Phase.RELEASING
    await field.take_away(policy)
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 4)


async def test_a_gate_that_stays_refused_takes_the_gang_back(field: Field) -> None:
    """Case 29: rolled back whole when its time is over; no failure is counted."""
    await field.nodes(2)
    queue = await field.queue(stopped=True)
    await field.submit("a", queue=queue, annotations=SOON)
    await field.waits("a", Code.QUEUE_STOPPED)
    policy = await field.policy("not-this-pod", resource="pods", refuses=THIRD_LIFTED)
    await field.change_queue(queue, stopped=False)
    await field.phase("a", Phase.PARKED)
    await field.until(lambda: not field.pods("a"), "no pod of it is left")
    await field.take_away(policy)
    await field.phase("a", Phase.RUNNING, LONG)
    await field.runs("a", 4)
    job = field.job("a")
    assert job is not None
    assert job.status.failed == 0


async def test_a_refusal_is_not_what_is_said_once_something_else_is_in_the_way(field: Field) -> None:
    """Its admission can't be recorded; meanwhile another gang takes the quota, and that is why it waits."""
    await field.nodes(2)
    queue = await field.queue(capability={"cpu": "4"}, stopped=True)
    await field.submit("a", queue=queue)
    await field.waits("a", Code.QUEUE_STOPPED)
    await field.policy("no-record", resource="gangs", group=names.GROUP, refuses="has(object.status.admission)")
    await field.change_queue(queue, stopped=False)
    await field.waits("a", Code.WRITE_REFUSED)
    await field.submit("b", pods=1, queue=queue)  # a gang of one, which passes before it is recorded
    await field.runs("b", 1)
    await field.waits("a", Code.QUEUE_CAPABILITY)


async def test_a_foreign_gate_is_named(field: Field) -> None:
    """Case 30: released by us, and not called running while another's gate holds its pods."""
    await field.nodes(1)
    queue = await field.queue()
    await field.submit("a", pods=2, queue=queue, gates=(GATE,))
    gang = await field.waits("a", Code.FOREIGN_GATE)
    assert f"held by the scheduling gate {GATE} on 2 pods" in gang.status.message
    assert gang.status.phase is Phase.RELEASING
    pods = field.pods("a")
    await lift(field, pods[0].name)
    await field.runs("a", 1)
    await field.until(lambda: "on 1 pods" in field.sure("a").status.message, "one is still held")
    assert field.sure("a").status.phase is Phase.RELEASING
    await lift(field, pods[1].name)
    await field.phase("a", Phase.RUNNING)


async def test_a_gang_with_a_pending_pod_is_not_running(field: Field) -> None:
    """Cases 28 and 36: another pod has got the place of the fourth. A pod counts when it is bound, not when it was
    released; and the Gang says what kube-scheduler says of it."""
    await field.nodes(2, cpu="2")
    queue = await field.queue()
    await field.pod("outsider", gates=(GATE,))
    async with field.without_scheduler():
        await field.submit("a", queue=queue)
        await field.until(lambda: len(field.opened("a")) == 4, "all gates are open")
        for pod in field.pods("a")[:3]:
            await field.bind(pod, f"n{1 + pod.index // 2}")
        await lift(field, "outsider")
        await field.bind(await field.open("outsider"), "n2")
        await field.until(
            lambda: (gang := field.gang("a")) and gang.status.message.startswith("released: 3 of 4 pods are bound"),
            "three are counted",
        )
    await field.until(
        lambda: "kube-scheduler: 0/2 nodes are available" in field.sure("a").status.message, "it says why"
    )
    gang = field.sure("a")
    assert (gang.status.phase, gang.status.reason) == (Phase.RELEASING, Code.BINDING)
    assert (gang.status.bound, gang.status.counts.pending) == ("3/4", 1)
    assert [each.status for each in gang.status.conditions if each.type == "Running"] == ["False"]
    await field.delete_pod("outsider")
    await field.phase("a", Phase.RUNNING)


async def test_pods_that_are_deleted_while_their_gang_waits(field: Field) -> None:
    """Case 31: of ten gated pods two are deleted by hand: their replacements join, and ten start."""
    await field.nodes(3)
    queue = await field.queue(stopped=True)
    await field.submit("a", pods=10, queue=queue, spec={"backoffLimit": 6})
    await field.until(lambda: len(field.gated("a")) == 10, "ten pods wait")
    await field.waits("a", Code.QUEUE_STOPPED)
    first = {pod.uid for pod in field.pods("a")}
    for pod in field.pods("a")[3:5]:
        await field.delete_pod(pod.name)
    await field.waits("a", Code.PODS_MISSING)
    assert "8 of 10 pods exist" in field.sure("a").status.message
    await field.change_queue(queue, stopped=False)
    await field.phase("a", Phase.RUNNING, LONG)  # the Job controller waits ten seconds before it replaces a pod
    await field.runs("a", 10)
    assert len(field.opened("a")) == 10
    assert len(field.opened("a").keys() & first) == 8
    assert field.most_at_once(lambda pod: not pod.deleting and not pod.ended) == 10


async def test_a_gang_that_loses_a_node_is_mended_where_there_is_room(field: Field) -> None:
    """Cases 31 and 32: one of two nodes is drained and a third is free: a replacement takes the slot, before a gang
    that waits for quota; nothing is taken back, and nothing counted twice."""
    await field.nodes(3, cpu="1")
    queue = await field.queue(capability={"cpu": "2"})
    await field.run("a", pods=2, queue=queue, spec=MENDS, annotations={names.START_TIMEOUT: "30s"})
    await field.submit("b", pods=1, queue=queue)
    await field.waits("b", Code.QUEUE_CAPABILITY)
    lost = field.bound("a")[0]
    try:
        await field.cordon(lost.node)
        await field.evict(lost)
        await field.until(lambda: len(field.opened("a")) == 3, "a replacement has passed", LONG)
        await field.runs("a", 2)
        await field.phase("a", Phase.RUNNING)
    finally:
        await field.cordon(lost.node, cordoned=False)
    assert lost.node not in {pod.node for pod in field.bound("a")}
    assert Phase.PARKED not in [phase for phase, _ in field.story("a")]
    assert field.opened("b") == {}
    assert field.most_at_once(lambda pod: not pod.gated and not pod.ended) == 2
    await eventually(
        lambda: field.read_queue(queue), lambda it: it.status.allocated.get("cpu") == "2", "two are charged"
    )


async def test_a_gang_that_loses_its_node_is_taken_back_where_there_is_none(field: Field) -> None:
    """Case 32: no other node, so its other pod doesn't hold one for nothing; it starts again when there is room."""
    await field.nodes(2, cpu="1")
    queue = await field.queue()
    await field.run("a", pods=2, queue=queue, spec=MENDS, annotations=SOON)
    lost = field.bound("a")[0]
    try:
        await field.cordon(lost.node)
        await field.evict(lost)
        await field.phase("a", Phase.PARKED, LONG)
        await field.until(lambda: not field.pods("a"), "none of its pods holds a node")
    finally:
        await field.cordon(lost.node, cordoned=False)
    await field.phase("a", Phase.RUNNING, LONG)
    await field.runs("a", 2)


async def test_a_job_made_again_while_the_old_pods_terminate(field: Field) -> None:
    """Case 33: the same name, another uid: it starts on its own, with a Gang of its own."""
    await field.nodes(2, cpu="2")
    queue = await field.queue()
    old = await field.submit("a", pods=2, queue=queue, terminates="8s")
    await field.phase("a", Phase.RUNNING)
    gone = {pod.uid for pod in field.bound("a")}
    await field.delete_job("a")
    await field.until(lambda: field.job("a") is None, "the old Job is gone")
    new = await field.submit("a", pods=2, queue=queue)
    await field.until(
        lambda: (
            (gang := field.gang("a"))
            and gang.metadata.controller
            and gang.metadata.controller.uid == new.metadata.uid
            and gang.status.phase is Phase.RUNNING
        ),
        "the new Job's gang runs",
    )
    assert new.metadata.uid != old.metadata.uid
    assert {pod.uid for pod in field.pods("a") if pod.deleting} == gone, "the old pods are still there"
    await field.runs("a", 2)
    assert field.sure("a").status.counts.bound == 2


async def test_room_of_pods_that_terminate_is_not_free_yet(field: Field) -> None:
    """Case 26, as far as it goes without reclaim: quota and nodes count until the pods are gone."""
    await field.nodes(1, cpu="2")
    queue = await field.queue(capability={"cpu": "2"})
    await field.run("a", pods=2, queue=queue, terminates="3s")
    await field.submit("b", pods=2, queue=queue)
    await field.waits("b", Code.QUEUE_CAPABILITY)
    await field.delete_job("a")
    await field.phase("b", Phase.RUNNING)
    gone = [change.old.uid for change in field.pod_changes if change.new is None and change.old]
    assert len(gone) == 2
    assert field.most_at_once(lambda pod: not pod.gated) == 2


async def test_a_replacement_that_comes_while_the_old_pod_terminates(field: Field) -> None:
    """Case 34: it is kept, and takes the slot; the gang runs on."""
    await field.nodes(3, cpu="1")
    queue = await field.queue()
    await field.run("a", pods=2, queue=queue, terminates="60s", spec={"backoffLimit": 6})
    old = field.bound("a")[0]
    await field.client.delete(PODS, old.name, field.namespace, grace=60)
    await field.until(lambda: len(field.opened("a")) == 3, "a replacement has passed", LONG)
    await field.runs("a", 2)
    kept = {pod.uid for pod in field.bound("a")}
    assert old.uid in {pod.uid for pod in field.pods("a") if pod.deleting}, "the old one still terminates"
    await field.client.delete(PODS, old.name, field.namespace, grace=0)
    await field.until(lambda: len(field.pods("a")) == 2, "the old pod is gone")
    await field.until(lambda: field.sure("a").status.counts.terminating == 0, "the Gang knows")
    assert field.sure("a").status.phase is Phase.RUNNING
    assert {pod.uid for pod in field.bound("a")} == kept


async def test_a_replacement_waits_where_the_ceiling_has_no_room_beside_the_old_pod(field: Field) -> None:
    """Promise 2: what terminates is charged, so both together would be over the capability."""
    await field.nodes(4, cpu="1")
    queue, other = await field.queue(capability={"cpu": "2"}), await field.queue("other")
    await field.run("a", pods=2, queue=queue, terminates="60s", spec={"backoffLimit": 6})
    old = field.bound("a")[0]
    await field.client.delete(PODS, old.name, field.namespace, grace=60)
    await field.until(lambda: any(pod.gated for pod in field.pods("a")), "a replacement stands at the gate", LONG)
    await field.run("canary", pods=1, queue=other)
    assert len(field.opened("a")) == 2, "it stays there while others go"
    await field.client.delete(PODS, old.name, field.namespace, grace=0)
    await field.runs("a", 2)
    assert field.most_at_once(lambda pod: pod.queue == queue and not pod.gated and not pod.ended) == 2


async def test_pods_that_follow_take_the_slots_of_those_that_ended(field: Field) -> None:
    """Case 44: twenty completions, five at a time, and a gang that waits for the same quota comes after them."""
    await field.nodes(2, cpu="8")
    queue = await field.queue(capability={"cpu": "5"})
    await field.submit("a", pods=5, completions=20, queue=queue, runs="500ms")
    await field.phase("a", Phase.RUNNING)
    await field.submit("b", pods=5, queue=queue, runs="100ms")
    await field.waits("b", Code.QUEUE_CAPABILITY)
    await field.completes("a")
    await field.completes("b")
    assert len(field.opened("a")) == 20
    assert max(field.opened("a").values()) < min(field.opened("b").values())
    assert field.most_at_once(lambda pod: not pod.gated and not pod.ended) == 5
