"""`kubectl gang simulate` on a dump of a running cluster: the next decision that it tells is the one that is then made.

The controller is stopped, the cluster is dumped by kubectl as docs/how-to/what-if.md says, and the controller comes
back. What always holds: nothing of what it then does is known to the simulator, which has the dump alone; and gangs of
all kinds that a dump can hold are there, so that agreeing takes reading all of them right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from localcluster.deploy import kubectl
from localcluster.nodes import GPU, Node
from startgate.audit.record import Decision, Stage
from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.pods import Pod
from startgate.model.reasons import Code
from tests.behaviour.asking import gang, records
from tests.behaviour.kit import IGNORES_DISRUPTION, SIMULATE, Field

DUMPED: Final = "nodes,queues,namespaces,priorityclasses,limitranges,jobs,pods,gangs"
AT_ONCE: Final = "--until=1s"
"""Pods that leave take longer than that here, so it is the next decision alone."""

GAVE_WAY: Final = (Decision.RECLAIM, Decision.PREEMPT)
WAITS: Final = (Phase.WAITING, Phase.PARKED, Phase.GATHERING, Phase.RESERVED)
NODE: Final = "kubernetes.io/hostname"


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """A decision, by the names of Jobs."""

    released: Mapping[str, int]
    """How many pods went through their gates."""
    gave_way: Mapping[str, tuple[int, str]]
    """How many pods leave, and the sentence that says for whom and by which rule."""
    stays: Mapping[str, tuple[str, str]]
    """With its reason, code and sentence."""


# --- what the simulator tells -----------------------------------------------------------------------------------------


async def dump(field: Field, path: Path) -> Path:
    return saved(path, await kubectl(field.cluster, "get", DUMPED, "--all-namespaces", "--output=json"))


def saved(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


async def foretold(field: Field, path: Path, *changes: Mapping[str, Any]) -> Decided:
    """Of this dump, or of what these changes would make of it."""
    more: Sequence[str] = ()
    if changes:
        over = saved(path.with_suffix(".what-if.yaml"), yaml.safe_dump_all(changes))
        more = ("--what-if", str(over))
    code, out, err = await gang(None, "simulate", "-f", str(path), *more, AT_ONCE, "-o", "json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    return told(answer["after"] if changes else answer, f"{field.namespace}/")


def told(answer: Mapping[str, Any], mine: str) -> Decided:
    released: dict[str, int] = {}
    gave_way: dict[str, tuple[int, str]] = {}
    for event in answer["events"]:
        if not event["gang"].startswith(mine):
            continue
        job = event["gang"].removeprefix(mine)
        if event["event"] == "Released":
            released[job] = released.get(job, 0) + len(event["pods"])
        elif event["event"] in ("Reclaimed", "Preempted"):
            gave_way[job] = (len(event["pods"]), event["message"])
    ends = {name.removeprefix(mine): end for name, end in answer["final"]["gangs"].items() if name.startswith(mine)}
    return Decided(
        released=released,
        gave_way=gave_way,
        stays={name: (end["reason"], end["message"]) for name, end in ends.items() if end["phase"] in WAITS},
    )


# --- what the controller does -----------------------------------------------------------------------------------------


class Watch:
    """What has been decided since this was made, with the controller down."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self._opened = {job.metadata.name: len(field.opened(job.metadata.name)) for job in field.jobs()}
        self._lines = len(records(field.startgate.controller, namespace=field.namespace))

    def seen(self) -> Decided:
        jobs = [job.metadata.name for job in self.field.jobs()]
        opened = {job: len(self.field.opened(job)) - self._opened.get(job, 0) for job in jobs}
        lines = records(self.field.startgate.controller, namespace=self.field.namespace)[self._lines :]
        intents = [line for line in lines if line.decision in GAVE_WAY and line.stage is Stage.INTENT]
        told = {line.gang.removeprefix("job-"): line.message for line in intents}
        gangs = {job: found for job in jobs if (found := self.field.gang(job))}
        return Decided(
            released={job: count for job, count in opened.items() if count},
            gave_way={job: (len(self._leaving(job)), message) for job, message in told.items()},
            stays={
                job: (found.status.reason, found.status.message)
                for job, found in gangs.items()
                if found.status.phase in WAITS
            },
        )

    def _leaving(self, job: str) -> list[Pod]:
        return [pod for pod in self.field.pods(job) if pod.deleting]

    async def comes_to(self, expected: Decided, stopped: str) -> None:
        """Starts the controller, and returns when it has decided this and goes no further."""
        await self.field.start_controller()
        try:
            await self.field.until(lambda: self.seen() == expected, "it has decided the same")
            # A gang that comes now is answered by a later decision, one with nothing left to do.
            await self.field.submit("canary", pods=1, queue=stopped)
            await self.field.waits("canary", Code.QUEUE_STOPPED)
            seen = self.seen()
        except AssertionError as error:
            raise AssertionError(f"foretold {expected}\ndecided  {self.seen()}\n{error}") from None
        stays = {name: why for name, why in seen.stays.items() if name != "canary"}
        assert msgspec.structs.replace(seen, stays=stays) == expected


# --- the tests --------------------------------------------------------------------------------------------------------


async def test_what_is_released_once_others_are_gone(field: Field, tmp_path: Path) -> None:
    """A Job that fills its queue and one that fills the nodes go: by `--what-if`, in a second dump, and for real."""
    await field.nodes(3, Node(name="g1", cpu="1", gpus=4))
    stopped = await field.queue("stopped", stopped=True)
    capped = await field.queue("capped", capability={"cpu": "4"}, reclaimable=False)
    batch = await field.queue("batch", reclaimable=False)
    mine, theirs = [await field.queue(name, deserved={GPU: 2}) for name in ("mine", "theirs")]
    for name, terminates in (("old", None), ("young", "60s")):
        await field.run(name, pods=2, cpu="100m", gpu=1, queue=theirs, terminates=terminates)
        await field.next_second()
    await field.run("fills-queue", queue=capped)
    await field.run("fills-nodes", pods=5, queue=batch)
    await field.run("elastic", pods=4, minimum=2, queue=batch, spec=IGNORES_DISRUPTION)
    await field.runs("elastic", 3)
    waits: Mapping[str, Mapping[str, Any]] = {
        "for-quota": {"queue": capped},
        "still-for-quota": {"pods": 2, "queue": capped},
        "wide": {"pods": 6, "queue": batch},
        "parked": {"pods": 2, "queue": batch, "deadline": 600},
        "on-hold": {"pods": 1, "queue": batch, "annotations": {names.HOLD: "true"}},
        "in-stopped": {"pods": 1, "queue": stopped},
    }
    for name, job in waits.items():
        await field.submit(name, **job)
    codes = (Code.QUEUE_CAPABILITY, Code.QUEUE_CAPABILITY, Code.CLUSTER_IN_USE, Code.CLUSTER_IN_USE, Code.ON_HOLD)
    for name, code in zip(waits, (*codes, Code.QUEUE_STOPPED), strict=True):
        await field.waits(name, code)
    await field.submit("claimant", pods=2, cpu="100m", gpu=1, queue=mine)
    await field.waits("claimant", Code.MAKING_ROOM)
    await field.phase("young", Phase.PARKED)
    await field.startgate.controller.stop()

    watch = Watch(field)
    before = await dump(field, tmp_path / "before.json")
    as_it_is = await foretold(field, before)
    assert (as_it_is.released, as_it_is.gave_way) == ({}, {}), "a quiet moment: nothing is to be decided"
    gone = ["fills-queue", "fills-nodes"]
    expected = await foretold(field, before, *(goes(field, name) for name in gone))
    for name in gone:
        await field.delete_job(name)
    await field.until(lambda: not [pod for name in gone for pod in field.pods(name)], "their pods are gone")
    assert await foretold(field, await dump(field, tmp_path / "after.json")) == expected
    assert expected.released == {"for-quota": 4, "parked": 2, "elastic": 1}
    assert expected.gave_way == {}
    await watch.comes_to(expected, stopped)


def goes(field: Field, job: str) -> Mapping[str, Any]:
    """For `--what-if`: this Job weren't there."""
    metadata = {"name": job, "namespace": field.namespace, "annotations": {f"{SIMULATE}/gone": "0s"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}


async def test_who_gives_way_for_whom(field: Field, tmp_path: Path) -> None:
    """By share and by priority; the claimants came while the controller was down."""
    await field.nodes(2, Node(name="c1", cpu="2", gpus=0), cpu="8", gpus=4)
    stopped = await field.queue("stopped", stopped=True)
    mine, theirs = [await field.queue(name, deserved={GPU: 4}) for name in ("mine", "theirs")]
    ranked = await field.queue("ranked")
    low, high = await field.priority("low", -10), await field.priority("high", 10)
    on_c1 = {"nodeSelector": {NODE: "c1"}}
    gpus = {"cpu": "100m", "gpu": 1, "terminates": "60s"}
    await field.run("low", pods=2, queue=ranked, priorityClassName=low, terminates="60s", **on_c1)
    await field.run("old", pods=2, queue=theirs, **gpus)
    await field.next_second()
    await field.run("elastic", pods=4, minimum=2, queue=theirs, spec=IGNORES_DISRUPTION, **gpus)
    await field.runs("elastic", 4)
    await field.next_second()
    await field.run("young", pods=2, queue=theirs, **gpus)
    await field.startgate.controller.stop()

    await field.submit("claimant", pods=4, queue=mine, **gpus)
    await field.submit("high", pods=2, queue=ranked, priorityClassName=high, **on_c1)
    await field.next_second()
    await field.submit("too-much", pods=2, queue=mine, **gpus)
    await field.until(lambda: len(field.gated()) == 8, "all of their pods are at the gate")
    watch = Watch(field)
    expected = await foretold(field, await dump(field, tmp_path / "dump.json"))
    assert expected.released == {}
    assert {job: pods for job, (pods, _) in expected.gave_way.items()} == {"elastic": 2, "young": 2, "low": 2}
    for job, claimant in (("elastic", "claimant"), ("young", "claimant"), ("low", "high")):
        assert f"gave its place to {field.namespace}/job-{claimant} " in expected.gave_way[job][1]
    assert expected.stays["claimant"][0] == expected.stays["high"][0] == Code.MAKING_ROOM
    await watch.comes_to(expected, stopped)
