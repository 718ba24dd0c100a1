"""The facts about kube-scheduler that reservations stand on (design §3), and that Startgate does reserve.

They are facts of the stock scheduler, which no longer promises them to outside writers (KEP-5278): these tests are
what notices when a version changes them. The pods here stand at a gate of the test's own; Startgate has no say in them.
"""

from __future__ import annotations

import os
from typing import Any

from localcluster import build
from startgate.kube.client import Patch
from startgate.kube.kinds import PODS
from startgate.model.gang import Phase
from tests.behaviour.kit import ON_N1, Field

GATE = "example.com/wait"
SURVIVES_A_RESTART = os.environ.get("KUBERNETES", build.NEWEST) != "1.36"
"""Whether kube-scheduler knows, after its own restart, what was nominated for gated pods before it."""


async def reserve(field: Field, name: str, node: str, **spec: Any) -> None:
    """A gated pod of 1 cpu, with room on this node kept for it."""
    await field.pod(name, gates=(GATE,), **spec)
    await field.client.patch(
        PODS, name, {"status": {"nominatedNodeName": node}}, field.namespace, how=Patch.MERGE, subresource="status"
    )


async def lift(field: Field, name: str) -> None:
    patch = {"spec": {"schedulingGates": [{"name": GATE, "$patch": "delete"}]}}
    await field.client.patch(PODS, name, patch, field.namespace, how=Patch.STRATEGIC)


async def test_room_is_kept_from_pods_of_the_same_and_of_a_lower_priority(field: Field) -> None:
    """Though the pod that it is kept for stands at a gate; which then takes it."""
    low = await field.priority("low", -10)
    await field.nodes(1, cpu="1")
    await reserve(field, "gated", "n1")
    await field.pod("same")
    await field.pod("lower", priorityClassName=low)
    await field.turned_away("same")
    await field.turned_away("lower")
    await lift(field, "gated")
    await field.lands("gated", "n1")
    assert [pod.name for pod in field.bound()] == ["gated"]


async def test_a_pod_of_a_higher_priority_takes_the_room(field: Field) -> None:
    high = await field.priority("high", 1000)
    await field.nodes(1, cpu="1")
    await reserve(field, "gated", "n1")
    await field.pod("higher", priorityClassName=high)
    await field.lands("higher", "n1")
    await lift(field, "gated")
    await field.turned_away("gated")


async def test_when_the_gate_opens_the_nominated_node_is_tried_first(field: Field) -> None:
    """Each goes where it was nominated, though kube-scheduler's own choice would be another node."""
    await field.nodes(2, cpu="8")
    # An empty n2 is what kube-scheduler prefers: as many on n1 as it can take, all nominated there.
    await field.pod("unguided")
    used = (await field.lands("unguided")).node
    names = [f"gated-{number}" for number in range(7)]
    for name in names:
        await reserve(field, name, used)
    for name in names:
        await lift(field, name)
    for name in names:
        await field.lands(name, used)


async def test_pods_for_another_scheduler_reserve_nothing(field: Field) -> None:
    await field.nodes(1, cpu="1")
    await reserve(field, "gated", "n1", schedulerName="another")
    await field.pod("same")
    await field.lands("same", "n1")


async def test_what_a_restart_of_kube_scheduler_does_to_a_reservation(field: Field) -> None:
    """It is kept on 1.37; on 1.36 it is lost, for gated pods."""
    await field.nodes(1, cpu="1")
    await reserve(field, "gated", "n1")
    await field.cluster.restart("kube-scheduler")
    await field.pod("same")
    if SURVIVES_A_RESTART:
        await field.turned_away("same")
        await lift(field, "gated")
        await field.lands("gated", "n1")
    else:
        await field.lands("same", "n1")


async def test_a_tight_gang_reserves_before_it_is_released(field: Field) -> None:
    """All four stand nominated before the first gate opens, and each goes where it was nominated."""
    await field.nodes(4, cpu="1")
    queue = await field.queue()
    await field.run("a", pods=4, queue=queue)
    await field.runs("a", 4)
    nominated = field.nominations("a")
    assert nominated.keys() == field.opened("a").keys()
    assert max(nominated.values()) < field.recorded("a") < min(field.opened("a").values())
    assert all(pod.node == field.nominated_to(pod.uid) for pod in field.bound("a"))
    verbs = [each.what for each in field.writes() if each.what.startswith("pods")]
    assert verbs == ["pods/status"] * 4 + ["pods"] * 4


async def test_a_gang_with_room_to_spare_is_not_reserved_for(field: Field) -> None:
    """It would cost a write for each pod, and nobody could take a place that it has no substitute for."""
    await field.nodes(8, cpu="1")
    queue = await field.queue()
    await field.run("a", pods=4, queue=queue)
    assert field.nominations("a") == {}
    assert field.writes(what="pods/status") == []


async def test_nobody_squeezes_in_between_reservation_and_release(field: Field) -> None:
    """Case 28: a pod of the same priority comes while the gang's room is reserved: the gang isn't split."""
    await field.nodes(4, cpu="1")
    queue = await field.queue()
    for attempt in range(6):
        job, late = f"a{attempt}", f"late{attempt}"
        await field.pod(late, gates=(GATE,), **ON_N1)
        await field.submit(job, pods=4, queue=queue)
        await field.until(lambda job=job: field.nominations(job), "the first reservation is seen")  # type: ignore[misc]
        await lift(field, late)
        await field.phase(job, Phase.RUNNING)
        await field.runs(job, 4)
        passed = next(
            c.new.version for c in field.pod_changes if c.new and c.new.name == late and not c.new.foreign_gates
        )
        await field.turned_away(late)
        between = passed < min(field.opened(job).values())
        await field.clear()
        if between:
            return
    raise AssertionError("in no attempt did the other pod come between the reservation and the first gate")
