"""All or none, whatever breaks between our programs and the API server: refusals, silence, cuts, outages.

The controller (and the webhook) stand behind a gateway that does to their requests what a test says; users, the Job
controller and kube-scheduler don't. Each test plays a small story through a fault and asks what a user would: that
nothing starts on a picture that is out of date, no gang stays in half, all goes on when the fault ends, and no Job has
a failure counted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from localcluster.deploy import Startgate
from startgate.kube.errors import ApiError
from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.reasons import Code
from tests.behaviour.kit import ON_N1, Field
from tests.faults import Call, Cut, Expire, Gateway, Hang, Late, Refuse, Silent, Twice, behind, kept, which
from tests.faults.behind import CONTROLLER, WEBHOOK

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOON: Final = {names.START_TIMEOUT: "4s"}
LONG: Final = 60.0

KINDS: Final = ("nominate", "record", "lift", "tell", "resume", "queue", "event")
"""The writes of a story (see `play`)."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def through(startgate: Startgate, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """The gateway that both programs go through."""
    folder: Path = tmp_path_factory.mktemp("gateway")
    cluster = startgate.cluster
    made = Gateway(cluster.server, cluster.authority.certificate_file, folder)
    async with made as gateway, behind(gateway, startgate):
        yield gateway


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(through: Gateway) -> AsyncIterator[Gateway]:
    """The same, without rules before and after the test."""
    yield through
    through.rules.clear()


@pytest_asyncio.fixture(loop_scope="module")
async def stage(startgate: Startgate, gateway: Gateway) -> AsyncIterator[Field]:
    """A field whose end is after the faults' end."""
    async with Field.on(startgate) as opened:
        yield opened
        gateway.rules.clear()


def of_controller(call: Call) -> bool:
    """All that the controller asks."""
    return call.program.startswith(CONTROLLER)


async def play(field: Field) -> None:
    """Four gangs, room for one and a half: they start one after the other, each reserves, one comes parked."""
    await field.nodes(3, cpu="2")
    queue = await field.queue()
    for name in ("a", "b", "c"):
        await field.submit(name, pods=4, queue=queue, runs="300ms", annotations=SOON)
    await field.submit("d", pods=4, queue=queue, runs="300ms", annotations=SOON, deadline=300)


async def all_complete(field: Field, *, pods: int = 6, within: float = LONG) -> None:
    """Returns when all Jobs have completed: no failure was counted, and no more ran at once than there is room for."""
    for job in field.jobs():
        await field.completes(job.metadata.name, within)
    assert field.failures() == 0
    assert field.most_at_once(lambda pod: pod.bound and not pod.ended) <= pods


@pytest.mark.parametrize("status", [409, 422, 429, 500, 503])
async def test_writes_are_refused(stage: Field, gateway: Gateway, status: int) -> None:
    """The first two of each kind of write are; what was refused is tried again, and Retry-After is kept to."""
    after = 1 if status == 429 else None
    rules = [gateway.on(which(program=CONTROLLER, kind=kind), Refuse(status, after), times=2) for kind in KINDS]
    await play(stage)
    await all_complete(stage)
    assert [kind for kind, rule in zip(KINDS, rules, strict=True) if not rule.hits] == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_connections_break_at_writes(stage: Field, gateway: Gateway, after: bool) -> None:
    """Each kind of write loses its connection twice: before the API server hears of it, or before its end."""
    rules = [gateway.on(which(program=CONTROLLER, kind=kind), Cut(after), times=2) for kind in KINDS]
    await play(stage)
    await all_complete(stage)
    assert [kind for kind, rule in zip(KINDS, rules, strict=True) if not rule.hits] == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_writes_are_never_answered(stage: Field, gateway: Gateway, after: bool) -> None:
    """Half-open connections: a write that hears nothing is given up in seconds, and sent again."""
    for kind in ("nominate", "record", "lift"):
        gateway.on(which(program=CONTROLLER, kind=kind), Hang(after), times=1)
    await play(stage)
    await all_complete(stage)


async def test_watches_and_lists_are_too_old(stage: Field, gateway: Gateway) -> None:
    """410 on every watch, and on the list that follows it: once more, and on it goes."""
    start = gateway.log.numbered
    await play(stage)
    await stage.until(stage.bound, "the first gang starts")
    for what in ("pods", "jobs", "gangs"):
        gateway.on(which(program=CONTROLLER, verb="list", what=what), Expire(), times=1)
        gateway.on(which(program=CONTROLLER, verb="watch", what=what), Expire(), times=1)
    assert gateway.expire(of_controller) > 10
    await all_complete(stage)
    lists = gateway.log.of(which(program=CONTROLLER, verb="list", what="pods"), start)
    assert 2 <= len(lists) <= 4, "no kind is listed over and over"


async def test_events_come_twice_and_late(stage: Field, gateway: Gateway) -> None:
    """What came once comes again later, and word of Jobs is behind word of their pods and Gangs."""
    gateway.on(which(program=CONTROLLER, verb="watch"), Twice(0.5))
    gateway.on(which(program=CONTROLLER, verb="watch", what="jobs"), Late(0.4))
    await play(stage)
    await all_complete(stage)


async def test_word_of_pods_comes_late(stage: Field, gateway: Gateway) -> None:
    """Jobs and Gangs run ahead of it: no more starts than there is room for."""
    gateway.on(which(program=CONTROLLER, verb="watch", what="pods"), Late(0.4))
    await play(stage)
    await all_complete(stage)


async def test_the_pods_watch_falls_silent(stage: Field, gateway: Gateway) -> None:
    """Another takes the room, and the controller doesn't hear of it: no gate opens, and it finds out in seconds."""
    await stage.nodes(1)
    queue = await stage.queue(stopped=True)
    await stage.submit("a", queue=queue)
    await stage.waits("a", Code.QUEUE_STOPPED)
    before = gateway.log.numbered
    gateway.on(lambda call: call.verb == "watch" and call.what == "pods" and call.number <= before, Silent())
    await stage.pod("outsider", **ON_N1)
    await stage.lands("outsider")
    await stage.change_queue(queue, stopped=False)
    await stage.until(lambda: stage.nominations("a"), "it tries to reserve room")
    await stage.waits("a", Code.NO_ROOM)
    assert stage.opened("a") == {}
    await stage.delete_pod("outsider")
    await stage.phase("a", Phase.RUNNING)


async def test_the_nodes_watch_falls_silent(stage: Field, gateway: Gateway) -> None:
    """It lets a gang go to nodes that are no more: no half of it stays, and it runs when the truth is known."""
    await stage.nodes(8)
    queue = await stage.queue()
    await stage.run("canary", pods=1, cpu="100m", queue=queue)
    with gateway.on(which(program=CONTROLLER, verb="watch", what="nodes"), Silent()):
        for number in range(2, 9):
            await stage.cordon(f"n{number}")
        await stage.submit("a", pods=6, queue=queue, annotations=SOON)
        await stage.until(lambda: stage.opened("a"), "it is let go")
        await stage.phase("a", Phase.PARKED)
        await stage.until(lambda: not stage.pods("a"), "it is taken back whole")
    for number in range(2, 9):
        await stage.cordon(f"n{number}", cordoned=False)
    await stage.phase("a", Phase.RUNNING, LONG)
    await stage.runs("a", 6)
    assert stage.failures() == 0


async def test_watches_are_refused_while_writes_pass(stage: Field, gateway: Gateway) -> None:
    """Out of touch it decides nothing, though it could write; then it goes on."""
    await stage.nodes(2)
    queue = await stage.queue(stopped=True)
    await stage.submit("a", queue=queue)
    await stage.waits("a", Code.QUEUE_STOPPED)
    blind = which(program=CONTROLLER, verb="watch", what="pods")
    with gateway.on(blind, Refuse(503)):
        gateway.cut(blind)
        await out_of_touch(stage)
        await stage.change_queue(queue, stopped=False)
        start = gateway.log.numbered
        await gateway.seen(which(program=CONTROLLER, kind="lease"), 2, start)
        assert stage.opened("a") == {}
    await stage.phase("a", Phase.RUNNING)


async def out_of_touch(field: Field) -> None:
    """Returns when the controller itself says that it isn't in sync."""
    program = field.startgate.controller
    await field.until(lambda: not program._answers("/readyz"), "the controller isn't in sync", LONG)


async def test_the_api_server_is_away(stage: Field, gateway: Gateway, startgate: Startgate) -> None:
    """Until the lease has passed and the process has ended: what runs runs on, and the rest goes on, gently."""
    await stage.nodes(3, cpu="2")
    queue = await stage.queue()
    await stage.run("runs", pods=2, queue=queue)
    running = {pod.uid for pod in stage.bound("runs")}
    controller = startgate.controller
    async with kept(startgate, controller) as again:
        with gateway.outage(of_controller):
            for name in ("a", "b", "c"):
                await stage.submit(name, queue=queue, runs="300ms", annotations=SOON)
            await stage.until(lambda: again, "it has lost the lease and was started anew", LONG)
            start = gateway.log.numbered
            await gateway.seen(of_controller, 60, start)
            assert stage.opened("a") == {}
            tries = gateway.log.most_within(5.0, of_controller, start)
        back = gateway.log.numbered
        for name in ("a", "b", "c"):
            await stage.completes(name, LONG)
        assert again == [controller.name]
    assert stage.failures() == 0
    assert {pod.uid for pod in stage.bound("runs")} == running
    lists = [call.what for call in gateway.log.of(which(program=CONTROLLER, verb="list"), back)]
    assert len(lists) == len(set(lists)), "each kind is listed once"
    assert tries < 200
    assert gateway.log.most_within(1.0, of_controller, back) < 200


async def test_only_the_lease_can_not_be_written(stage: Field, gateway: Gateway, startgate: Startgate) -> None:
    """A leader that can't renew ends before another may lead, though all else passes; then a new one goes on."""
    await stage.nodes(3, cpu="2")
    queue = await stage.queue()
    async with kept(startgate, startgate.controller) as again:
        with gateway.on(which(program=CONTROLLER, kind="lease"), Refuse(503)) as rule:
            await stage.until(lambda: again, "it ends", LONG)
            ended = gateway.log.numbered
            await stage.submit("a", queue=queue, runs="300ms")
            hits = len(rule.hits)
            await stage.until(lambda: len(rule.hits) > hits + 2, "its successor tries to lead")
            assert stage.opened("a") == {}
            wrote = gateway.log.of(lambda call: of_controller(call) and call.write > 0 and call.reached, ended)
            assert wrote == [], "who doesn't lead doesn't write"
        await stage.completes("a", LONG)
    assert stage.failures() == 0


async def test_only_leases_can_be_written(stage: Field, gateway: Gateway) -> None:
    """It leads on, says in the Gang what is refused once it can, and tries again at a measured pace."""
    await stage.nodes(3, cpu="2")
    queue = await stage.queue()
    start = gateway.log.numbered
    others = which(program=CONTROLLER, writes=True)
    with gateway.on(lambda call: others(call) and call.kind != "lease", Refuse(503)) as rule:
        for name in ("a", "b", "c"):
            await stage.submit(name, queue=queue, runs="300ms")
        await gateway.seen(which(program=CONTROLLER, kind="lease"), 3, start)
        assert len(rule.hits) < 60
        assert stage.opened("a") == {}
    await all_complete(stage)


async def test_the_webhook_is_cut_off(stage: Field, gateway: Gateway) -> None:
    """Who has no label isn't touched; who has is let in by what is known, or told to come again."""
    await stage.nodes(3, cpu="2")
    queue = await stage.queue()
    with gateway.outage(which(program=WEBHOOK)):
        await stage.submit("stranger", pods=1)
        await stage.runs("stranger", 1)
        await stage.delete_job("stranger")
        try:
            await stage.submit("a", queue=queue, runs="300ms")
        except ApiError as error:
            assert "again" in error.message
    await stage.submit("b", queue=queue, runs="300ms")
    await all_complete(stage)
