"""Several controllers, one leader: it is ended, killed, stopped, cut off, or its clock is set; gangs don't notice.

The replicas are the programs as they ship. A gateway stands between them and the API server: where a moment is too
short to hit, it holds back what the first of them writes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from localcluster.deploy import Program, Startgate
from startgate.kube.election import LEASES, Lease
from startgate.kube.kinds import GANGS
from startgate.model import names
from startgate.model.gang import Admission, Phase
from startgate.model.reasons import Code
from tests.behaviour.kit import LIFTED, Field
from tests.behaviour.test_reservation import SURVIVES_A_RESTART
from tests.faults import Cut, Delay, Gateway, Hang, behind, kept, which

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIRST: Final = "startgate-controller-0"
LEASE_LASTS: Final = 15.0
LONG: Final = 60.0
LANDS_AFTER: Final = 27.0
"""Seconds: when the lease has passed, another leads, and what it took back is gone."""

CLOCK_IS_SET: Final = """
import pathlib, time
real, by = time.time, pathlib.Path({by!r})
time.time = lambda: real() + float(by.read_text())
from controller import main
main.run()
"""
"""python -m controller, on a machine whose clock is set by so many seconds as a file says."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def through(startgate: Startgate, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """The gateway that the replicas go through."""
    folder: Path = tmp_path_factory.mktemp("gateway")
    cluster = startgate.cluster
    made = Gateway(cluster.server, cluster.authority.certificate_file, folder)
    async with made as gateway, behind(gateway, startgate, startgate.controller):
        yield gateway


@pytest_asyncio.fixture(loop_scope="module")
async def stage(startgate: Startgate, through: Gateway) -> AsyncIterator[Field]:
    """A field whose end is after the faults' end, with the first replica leading alone."""
    async with Field.on(startgate) as opened:
        await leads(opened, FIRST)
        yield opened
        through.rules.clear()


@asynccontextmanager
async def standing_by(field: Field, through: Gateway, count: int) -> AsyncIterator[list[Program]]:
    """So many more replicas, which are ready. At the end only the first is left, if it still runs."""
    first = field.startgate.controller
    others = [first.replica(number) for number in range(1, count + 1)]
    try:
        for program in others:
            program.kubeconfig = through.kubeconfig(first.kubeconfig, program.name)
            await program.start()
        for program in others:
            await program.wait_ready()
        yield others
    finally:
        for program in (first, *others):
            if pid := field.cluster.pids.get(program.name):
                os.kill(pid, signal.SIGCONT)
                if program is not first:
                    await program.stop()


async def lease(field: Field) -> Lease:
    return await field.client.get(LEASES, names.LEASE, names.SYSTEM_NAMESPACE)


async def leads(field: Field, *programs: str, within: float = LONG) -> Lease:
    """The Lease when one of these has just got it (or has it)."""
    end = time.monotonic() + within
    while (found := await lease(field)).spec.holder_identity is None or _program(found) not in programs:
        assert time.monotonic() < end, f"none of {programs} leads after {within} s, but {_program(found)!r}"
        await asyncio.sleep(0.02)
    return found


def _program(found: Lease) -> str:
    """A leader is called by its pod's name and uid."""
    return (found.spec.holder_identity or "").partition("_")[0]


def admission(field: Field, job: str) -> Admission:
    found = field.sure(job).status.admission
    assert isinstance(found, Admission)
    return found


async def test_at_sigterm_a_standby_leads_within_a_second(stage: Field, through: Gateway) -> None:
    """Three replicas; one after the other is ended, and what waits starts under the next."""
    await stage.nodes(4)
    queue = await stage.queue()
    await stage.run("runs", pods=2, queue=queue)
    running = {pod.uid for pod in stage.bound("runs")}
    async with standing_by(stage, through, 2) as others:
        programs = {program.name: program for program in (stage.startgate.controller, *others)}
        took = []
        for number in range(2):
            leader = programs.pop(_program(await lease(stage)))
            began = time.monotonic()
            ending = asyncio.create_task(leader.stop())
            await leads(stage, *programs)
            took.append(time.monotonic() - began)
            await stage.run(f"a{number}", pods=2, queue=queue)
            await ending
        print("hand-over at SIGTERM:", [f"{each:.2f} s" for each in took])
        assert max(took) < 2.0, "a second, and one more for a busy machine"
    assert {pod.uid for pod in stage.bound("runs")} == running


async def test_what_a_leader_has_sent_lands_before_another_leads(stage: Field, through: Gateway) -> None:
    """It is ended while the record of an admission is on its way: the next leader has read it when it decides."""
    await stage.nodes(2)
    queue = await stage.queue(capability={"cpu": "4"})
    async with standing_by(stage, through, 1) as (second,):
        rule = through.on(which(program=FIRST, kind="record"), Delay(2.0, lands=True), times=1)
        await stage.submit("a", pods=4, queue=queue)
        await stage.submit("b", pods=4, queue=queue)
        await stage.until(lambda: rule.hits, "an admission is being recorded")
        ending = asyncio.create_task(stage.startgate.controller.stop())
        got = await leads(stage, second.name)
        await stage.until(lambda: stage.gangs(Phase.RUNNING), "one of the two runs")
        (runs,) = stage.gangs(Phase.RUNNING)
        job = runs.metadata.name.removeprefix("job-")
        assert stage.recorded(job) < int(got.metadata.resource_version)
        other = "b" if job == "a" else "a"
        await stage.waits(other, Code.QUEUE_CAPABILITY)
        assert stage.opened(other) == {}
        await ending


@pytest.mark.parametrize("how", ["killed", "cut off"])
async def test_a_leader_is_gone_while_it_opens_gates(stage: Field, through: Gateway, how: str) -> None:
    """Another leads when the lease has passed, with its caches warm, and completes what is on record."""
    await stage.nodes(4)
    queue = await stage.queue()
    async with standing_by(stage, through, 2) as others:
        through.on(which(program=FIRST, kind="lift"), Hang(), skip=3)
        await stage.submit("a", pods=8, queue=queue)
        await stage.until(lambda: len(stage.opened("a")) == 3, "three gates are open")
        known = admission(stage, "a")
        began = time.monotonic()
        if how == "killed":
            await stage.kill_controller()
            await leads(stage, *(program.name for program in others))
        else:
            with through.outage(which(program=FIRST), silent=True):
                await leads(stage, *(program.name for program in others))
                await stage.until(lambda: FIRST not in stage.cluster.pids, "who can't renew its lease ends")
        took = time.monotonic() - began
        print(f"hand-over of one that is {how}: {took:.1f} s")
        await stage.phase("a", Phase.RUNNING)
        print(f"and its gang is whole after {time.monotonic() - began:.1f} s")
        await stage.runs("a", 8)
        assert took < LEASE_LASTS + 5
        assert admission(stage, "a") == known
        assert len(stage.opened("a")) == 8, "no pod was made anew"
    assert stage.failures() == 0


async def test_a_leader_that_was_stopped_wakes_and_does_no_harm(stage: Field, through: Gateway) -> None:
    """SIGSTOP while it opens gates, and SIGCONT when another leads. What it has sent lands last of all.

    One gang was completed by then, and is left alone; the other was taken back, and its pods are others.
    """
    await stage.nodes(4)
    queue = await stage.queue()
    async with standing_by(stage, through, 1) as (second,):
        rule = through.on(which(program=FIRST, kind="lift"), Delay(LANDS_AFTER, lands=True))
        await stage.submit("back", pods=4, queue=queue, annotations={names.START_TIMEOUT: "2s"})
        await stage.submit("done", pods=4, queue=queue)
        await stage.until(lambda: len(rule.hits) == 8, "all lifts are on their way")
        old = {pod.uid: pod.name for pod in stage.pods("back")}
        os.kill(stage.startgate.controller.pid, signal.SIGSTOP)
        known = admission(stage, "done")
        await leads(stage, second.name)
        await stage.phase("done", Phase.RUNNING)
        await stage.until(lambda: stage.sure("back").status.taken_back == 1, "the other one is taken back")
        await stage.until(lambda: not stage.pods("back"), "its pods are gone")
        woken = through.log.numbered
        os.kill(stage.startgate.controller.pid, signal.SIGCONT)
        await stage.until(lambda: FIRST not in stage.cluster.pids, "who has slept through its lease ends")
        assert through.log.of(which(program=FIRST, writes=True), woken) == []
        await stage.client.patch(GANGS, names.gang_of_job("back"), {"status": {"notBefore": ""}}, stage.namespace)
        await stage.phase("back", Phase.RUNNING)
        await stage.until(lambda: late(stage, old.values()) == [404] * 4, "the old lifts have hit nothing")
        await stage.runs("back", 4)
        await stage.runs("done", 4)
        assert not stage.opened("back").keys() & old.keys()
        assert admission(stage, "done") == known
        assert len(stage.opened("done")) == 4
    assert stage.failures() == 0


def late(field: Field, pods: Collection[str]) -> list[int]:
    """What the API server has answered to patches of these pods."""
    return [write.code for write in field.writes(what="pods") if write.verb == "patch" and write.name in pods]


async def test_the_clock_of_a_leader_is_set(stage: Field, through: Gateway, tmp_path: Path) -> None:
    """An hour forward: what has just been let go isn't taken back. An hour back: what was refused is tried again in
    seconds. Its leadership knows nothing of either."""
    await stage.nodes(4)
    queue = await stage.queue(stopped=True)
    by = tmp_path / "by"
    set_by(by, 0)
    async with standing_by(stage, through, 1) as (second,):
        await second.stop()
        shipped = second._command
        argv = [shipped.argv[0], "-c", CLOCK_IS_SET.format(by=str(by)), *shipped.argv[3:]]
        second._command = dataclasses.replace(shipped, argv=argv)
        await second.start()
        await second.wait_ready()
        await stage.startgate.controller.stop()
        before = await leads(stage, second.name)
        await stage.submit("a", queue=queue)
        await stage.waits("a", Code.QUEUE_STOPPED)
        third = f"{LIFTED} && object.metadata.name.startsWith('a-2-')"
        policy = await stage.policy("not-this-pod", resource="pods", refuses=third)
        await stage.change_queue(queue, stopped=False)
        await stage.waits("a", Code.RELEASE_REFUSED)
        set_by(by, 3600)
        await stage.submit("b", pods=2, queue=queue)
        await stage.phase("b", Phase.RUNNING)
        set_by(by, -3600)
        await stage.submit("c", pods=2, queue=queue)
        await stage.phase("c", Phase.RUNNING)
        assert len(stage.opened("a")) == 3
        await stage.take_away(policy)
        await stage.phase("a", Phase.RUNNING, 20.0)
        assert len(stage.opened("a")) == 4, "it was never taken back"
        assert (await lease(stage)).spec.lease_transitions == before.spec.lease_transitions


async def test_kube_scheduler_is_restarted_while_the_leader_holds_room(stage: Field, through: Gateway) -> None:
    """The leader is stopped when room is reserved and nothing is recorded yet. Where kube-scheduler forgets the
    reservation, another pod has the place then: the gang isn't split, it waits."""
    await stage.nodes(4, cpu="1")
    queue = await stage.queue()
    controller = stage.startgate.controller
    stop = Cut(then=lambda _: os.kill(controller.pid, signal.SIGSTOP))
    rule = through.on(which(program=FIRST, kind="record"), stop, times=1)
    async with kept(stage.startgate, controller):  # it may sleep through its lease
        await stage.submit("a", queue=queue)
        await stage.until(lambda: rule.hits, "its record is on the way")
        await stage.until(lambda: len(stage.nominations("a")) == 4, "room is reserved")
        await stage.cluster.restart("kube-scheduler")
        await stage.pod("outsider")
        await (stage.turned_away if SURVIVES_A_RESTART else stage.lands)("outsider")
        assert stage.opened("a") == {}
        os.kill(controller.pid, signal.SIGCONT)
        await stage.until(lambda: stage.gangs(Phase.RUNNING) or stage.bound(), "one of the two has the room")
        await stage.delete_pod("outsider")
        await stage.phase("a", Phase.RUNNING)
        await stage.runs("a", 4)
    assert stage.most_at_once(lambda pod: pod.name != "outsider" and not pod.gated) == 4
    assert stage.sure("a").status.taken_back == 0


def set_by(file: Path, seconds: int) -> None:
    """At once: it may be read at any moment."""
    new = file.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(file)
