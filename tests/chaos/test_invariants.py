"""What the look from outside finds, and what it lets pass."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from startgate.audit.journal import Journal
from startgate.audit.record import DONE, Decision, Stage
from startgate.kube.client import Client
from startgate.kube.kinds import GANGS, JOBS, PODS, QUEUES
from startgate.model import names
from tests.chaos.invariants import MENDS_WITHIN, Outside

VERSIONS = count(1)
NOTHING: Mapping[str, str] = {}
ADMISSION = {"id": "x1", "at": "2026-01-01T00:00:00Z", "slots": 4}


def meta(name: str, uid: str, labels: Mapping[str, str] = NOTHING, owner: str = "") -> dict[str, Any]:
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": owner, "controller": True}] if owner else []
    return {
        "name": name,
        "namespace": "n",
        "uid": uid,
        "resourceVersion": str(next(VERSIONS)),
        "labels": dict(labels),
        "ownerReferences": owners,
    }


@dataclass
class World:
    """What the API server says: a Job of four pods in queue q, with its Gang."""

    outside: Outside
    path: Path
    now: float = 0.0

    def job(self, *, failed: int = 0, minimum: str = "", **template: str) -> None:
        said = {"metadata": {"annotations": {f"{names.SIMULATE}{key}": value for key, value in template.items()}}}
        labels = {names.QUEUE: "q"} | ({names.MIN_AVAILABLE: minimum} if minimum else {})
        job = {
            "metadata": meta("a", "j", labels) | {"annotations": {names.START_TIMEOUT: "5s"}},
            "spec": {"parallelism": 4, "completions": 4, "template": said},
            "status": {"failed": failed},
        }
        self.outside._jobs.store.put(JOBS.decode(json.dumps(job).encode()))

    def gang(self, *, owner: str = "j", **status: Any) -> None:
        gang = {"metadata": meta("job-a", "g", owner=owner), "spec": {"queue": "q", "minAvailable": 4, "pods": 4}}
        self.outside._gangs.store.put(GANGS.decode(json.dumps({**gang, "status": status}).encode()))

    def queue(self, allocated: str = "", ceiling: str = "9", **status: Any) -> None:
        body = {
            "metadata": meta("q", "q") | {"namespace": ""},
            "spec": {"capability": {"cpu": ceiling}},
            "status": {"allocated": {"cpu": allocated, "pods": allocated} if allocated else {}, **status},
        }
        self.outside._queues.store.put(QUEUES.decode(json.dumps(body).encode()))

    def pod(self, number: int, *, gated: bool = False, node: str = "", nominated: str = "") -> None:
        gates = [{"name": names.GATE}] if gated else []
        container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
        spec = {"containers": [container], "schedulingGates": gates, "nodeName": node}
        metadata = meta(f"a-{number}", f"p{number}", {names.QUEUE: "q"}, owner="j")
        body = {"metadata": metadata, "spec": spec, "status": {"nominatedNodeName": nominated}}
        self.outside._pods.store.put(PODS.decode(json.dumps(body).encode()))

    async def found(self) -> list[str]:
        return (await self.outside.settle(-1.0)).sentences()


@pytest.fixture
def world(tmp_path: Path) -> World:
    path = tmp_path / "controller" / "audit.jsonl"
    path.parent.mkdir()
    made = World(Outside(cast(Client, None), [path], clock=lambda: made.now), path)
    made.job()
    made.gang(phase="Waiting")
    made.queue()
    return made


async def test_gated_whole_and_bound_whole_are_right(world: World) -> None:
    for number in range(4):
        world.pod(number, gated=True)
    assert await world.found() == []
    with world.path.open("wb") as file:
        journal = Journal([file], "controller", "one")
        intent = journal.write(Stage.INTENT, Decision.ADMIT, "x1", at=0.0, namespace="n", gang="job-a")
        journal.settle(intent, DONE, at=0.0)
    world.gang(phase="Running", admission=ADMISSION)
    for number in range(4):
        world.pod(number, node="n1")
    world.queue("4")
    assert await world.found() == []


async def test_one_pod_goes_by_itself_where_its_job_needs_no_more_and_then_the_others_with_a_record(
    world: World,
) -> None:
    world.job(minimum="1")
    world.pod(0, gated=True)
    world.pod(0, node="n1")
    with world.path.open("wb") as file:
        journal = Journal([file], "controller", "one")
        journal.settle(journal.write(Stage.INTENT, Decision.ADMIT, "x1", at=0.0), DONE, at=0.0)
    world.gang(phase="Running", admission=ADMISSION)
    world.queue("1")
    assert await world.found() == []


async def test_half_a_gang(world: World) -> None:
    for number in range(4):
        world.pod(number, gated=number > 0, node="" if number else "n1")
    world.queue("1")
    assert await world.found() == ["n/a is half a gang: 1 bound, 1 past the gate, 3 at it, 4 needed"]


async def test_half_for_a_moment_and_for_too_long(world: World) -> None:
    world.pod(0, node="n1")
    world.outside.look()
    world.now = 5 + MENDS_WITHIN
    world.outside.look()
    assert world.outside.found.half == {}
    world.now += 1
    world.outside.look()
    assert list(world.outside.found.half) == ["j"]


@pytest.mark.parametrize("record", ["before", "after", "of one"])
async def test_a_gate_that_opens_before_the_record(world: World, record: str) -> None:
    """Only a gang of one may be recorded afterwards."""
    for number in range(4):
        world.pod(number, gated=True)
    admission = ADMISSION | {"id": "found-j", "slots": 1 if record == "of one" else 4}
    if record == "before":
        world.gang(phase="Releasing", admission=admission)
    for number in range(4):
        world.pod(number, node="n1")
    world.gang(phase="Running", admission=admission)
    world.queue("4")
    opened = ["the gate of n/a-0 was opened with no admission on record"]
    assert await world.found() == (opened if record == "after" else [])


async def test_an_admission_that_no_audit_log_knows(world: World) -> None:
    world.gang(phase="Releasing", admission=ADMISSION)
    assert await world.found() == ["the admission x1 of j isn't in the audit log"]


async def test_books_that_are_wrong_and_quota_held_for_nobody(world: World) -> None:
    world.queue("3", reserved={"cpu": "1"})
    assert await world.found() == [
        "queue q says that 3 cpu, 3 pods is in use, and its pods ask for nothing",
        "queue q holds {'cpu': '1'} for pods that don't come",
    ]


async def test_a_queue_over_its_ceiling(world: World) -> None:
    world.queue("4", ceiling="3")
    for number in range(4):
        world.pod(number, node="n1")
    world.outside.look()
    assert list(world.outside.found.leaks.values()) == ["queue q uses 4 cpu, above its ceiling"]


async def test_a_reservation_a_gang_and_a_pledge_of_nobody(world: World) -> None:
    world.pod(0, gated=True, nominated="n1")
    world.gang(owner="gone", phase="Waiting")
    assert await world.found() == [
        "Gang n/job-a has no owner any more",
        "Job n/a has no Gang",
        "n1 is reserved for pod n/a-0, which is at the gate",
    ]
    pledge = {"id": "y", "at": "2026-01-01T00:00:00Z", "rule": "deserved", "victims": ["n/job-b"]}
    world.gang(phase="Running", claim=pledge)
    assert "Gang n/job-a is Running, and others are to make room for it" in await world.found()


async def test_a_failure_that_is_the_job_s_own_and_one_that_isn_t(world: World) -> None:
    world.job(failed=1, fails="1s")
    assert world.outside.found.failed == {}
    world.job(failed=1)
    assert list(world.outside.found.failed.values()) == ["Job n/a has 1 failures counted"]


async def test_an_intent_without_an_effect_and_lines_that_are_lost(world: World) -> None:
    with world.path.open("wb") as file:
        one = Journal([file], "controller", "one")
        intent = one.write(Stage.INTENT, Decision.ADMIT, "x1", at=0.0, namespace="n", gang="job-a")
        file.write(b'{"schema":"startg\n')  # a kill may tear the last line
        two = Journal([file], "controller", "two")
        assert await world.found() == ["controller: Admit of n/job-a has no effect"]
        two.settle(intent, "unknown", at=0.0)
        assert await world.found() == []
        file.write(b"no record\n")
        two._seq += 1
        two.write(Stage.INTENT, Decision.PARK, "x2", at=0.0, namespace="n", gang="job-a")
    assert [re.sub(r" at byte [0-9]+", "", each) for each in await world.found()] == [
        "controller: Park of n/job-a has no effect",
        "controller: what stands is no record",
        "controller: a line is missing before number 3",
    ]
