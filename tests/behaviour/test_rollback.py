"""Taken back whole: what a running or a released gang can lose by no decision of ours, and what is done and said then.

A Job's own back-off makes a pod's replacement ten seconds late: so a gang that loses one isn't mended in `TOO_SOON`,
and its pods are made in that time once it is tried again. It is tried after ten seconds and more; a test that has no
time for that says so in the Gang, as its admin could.
"""

from __future__ import annotations

import asyncio
import urllib.request
from typing import Any, Final

from localcluster.nodes import Node
from startgate.kube.client import Patch
from startgate.kube.kinds import GANGS, NODES
from startgate.model import names
from startgate.model.gang import Gang, Phase
from startgate.model.objects import timestamp
from startgate.model.reasons import Code
from tests.behaviour.kit import IGNORES_DISRUPTION, Field, eventually

SOON: Final = {names.START_TIMEOUT: "2s"}
TOO_SOON: Final = {names.START_TIMEOUT: "8s"}
LONG: Final = 60.0


async def tried_now(field: Field, job: str, **status: Any) -> None:
    """Ends its back-off; `status` makes its past another one."""
    change = {"status": {"notBefore": "", **status}}
    await field.client.patch(GANGS, names.gang_of_job(job), change, field.namespace)


async def taken_back(field: Field, job: str, times: int = 1) -> Gang:
    """Its Gang when it was taken back so often, and none of its pods holds a node for it."""
    await field.until(
        lambda: (gang := field.gang(job)) and gang.status.taken_back == times, f"{job} is taken back so often", LONG
    )
    await field.until(lambda: not field.bound(job), "none of its pods is to stay on a node")
    return await field.waits(job, Code.BACKING_OFF)


async def test_a_node_dies_under_a_running_gang(field: Field) -> None:
    """Its pod there is told to go and never does, since nobody is left to end it. The gang is taken back, so that the
    rest of it holds no node for nothing, and starts again on others, though the dead node's pod is still there."""
    await field.nodes(2, cpu="1")
    queue = await field.queue()
    spec = {"backoffLimit": 6}  # that a pod is lost counts as a failure, by Kubernetes' own rules
    await field.run("a", pods=2, queue=queue, terminates="1s", annotations=TOO_SOON, spec=spec)
    lost = field.bound("a")[0]
    dead = lost.node
    await field.simulate(lost, terminates="1h")
    taint = {"key": "example.com/dead", "value": "dead", "effect": "NoExecute"}
    await field.client.patch(NODES, dead, {"spec": {"taints": [taint]}}, how=Patch.STRATEGIC)
    await taken_back(field, "a")
    assert (Phase.RELEASING, Code.BELOW_MINIMUM) in field.story("a")
    other = "n1" if dead == "n2" else "n2"
    await field.until(lambda: all(pod.node == dead for pod in field.pods("a")), "the other node is free of it")
    await field.run("b", pods=1, queue=queue)
    assert {pod.node for pod in field.bound("b")} == {other}
    await field.delete_job("b")
    await field.nodes(0, *(Node(name=f"n{i}", cpu="1", taints=[taint] if f"n{i}" == dead else []) for i in range(1, 4)))
    await tried_now(field, "a")
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 2)
    assert field.sure("a").status.taken_back == 1
    assert dead not in {pod.node for pod in field.bound("a")}
    assert lost.uid in {pod.uid for pod in field.pods("a") if pod.deleting}


async def test_kube_scheduler_preempts_one_pod_of_a_running_gang(field: Field) -> None:
    """A pod of a higher priority that isn't ours takes one place of two. The gang is taken back, and the other place is
    there for others; no failure is counted where the Job doesn't want disruptions to count."""
    await field.nodes(2, cpu="1")
    high, queue = await field.priority("high", 1000), await field.queue()
    await field.run("a", pods=2, queue=queue, annotations=TOO_SOON, spec={"backoffLimit": 0, **IGNORES_DISRUPTION})
    await field.pod("vip", priorityClassName=high)
    place = (await field.lands("vip")).node
    await taken_back(field, "a")
    assert (Phase.RELEASING, Code.BELOW_MINIMUM) in field.story("a")
    await field.run("b", pods=1, queue=queue)
    assert field.bound("b")[0].node != place
    await field.delete_job("b")
    await field.delete_pod("vip")
    await tried_now(field, "a")
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 2)
    assert field.sure("a").status.taken_back == 1
    assert field.failures() == 0


async def test_a_gang_that_can_not_be_recorded_holds_no_room(field: Field) -> None:
    """Its record is refused again and again: what it reserves each time is there for others in between."""
    await field.nodes(4, cpu="1")
    queue = await field.queue(stopped=True)
    await field.submit("a", queue=queue)
    await field.waits("a", Code.QUEUE_STOPPED)
    policy = await field.policy(
        "no-record", resource="gangs", group=names.GROUP, refuses="has(object.status.admission)"
    )
    await field.change_queue(queue, stopped=False)
    await field.waits("a", Code.WRITE_REFUSED)
    assert len(field.nominations("a")) == 4, "room is reserved for all before the record"
    await field.pod("outsider")
    await field.lands("outsider")
    await field.waits("a", Code.NO_ROOM)
    await field.take_away(policy)
    assert field.opened("a") == {}
    await field.delete_pod("outsider")
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 4)


async def test_pods_that_are_never_bound_for_a_reason_that_nobody_sees(field: Field) -> None:
    """No scheduler takes care of them. Each time it is taken back it waits longer, and in the end it says where to
    look; meanwhile what it doesn't use is there for others."""
    await field.nodes(2, cpu="2")
    queue = await field.queue(capability={"cpu": "4"})
    await field.submit("a", queue=queue, annotations=SOON, schedulerName="nobody")
    once = await taken_back(field, "a")
    assert "look at" not in once.status.message
    assert 9 <= pause(once) <= 16, "ten seconds, and up to half as much more"
    await field.run("b", queue=queue)
    await field.delete_job("b")
    await tried_now(field, "a", takenBack=2)
    often = await taken_back(field, "a", times=3)
    assert often.status.message.startswith("taken back 3 times, last because not all of its pods were bound in time; ")
    assert f"kubectl get events -n {field.namespace}), at its pods' schedulerName" in often.status.message
    assert 39 <= pause(often) <= 61
    counted = f'startgate_take_backs_total{{queue="{queue}"}} 2.0'
    await eventually(lambda: asyncio.to_thread(metrics, field), lambda told: counted in told, "both are counted")
    assert field.failures() == 0


def metrics(field: Field) -> str:
    """What the controller tells Prometheus."""
    with urllib.request.urlopen(f"http://127.0.0.1:{field.startgate.controller.health_port}/metrics") as answer:
        return str(answer.read().decode())


def pause(gang: Gang) -> float:
    """Seconds from when it was parked until it is tried again; the times are known to the second."""
    parked = [each.at for each in gang.status.transitions if each.phase is Phase.PARKED]
    return timestamp(gang.status.not_before) - timestamp(parked[-1])
