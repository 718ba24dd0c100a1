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
from tests.behaviour.test_audit import open_intents
from tests.faults import Call, Cut, Delay, Expire, Gateway, Hang, Late, Refuse, Silent, Twice, behind, kept, which
from tests.faults.behind import CONTROLLER, WEBHOOK

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOON: Final = {names.START_TIMEOUT: "4s"}
LONG: Final = 60.0

KINDS: Final = ("nominate", "record", "lift", "tell", "resume", "suspend", "forget", "queue", "event")
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
    """Four gangs, room for one and a half: they start one after the other, each reserves, one comes parked.

    A fifth is never bound, since no scheduler takes care of it, and is taken back.
    """
    await field.nodes(3, cpu="2")
    queue = await field.queue()
    quick = {names.START_TIMEOUT: "1s"}
    await field.submit("e", pods=2, cpu="1m", queue=queue, annotations=quick, schedulerName="nobody")
    for name in ("a", "b", "c"):
        await field.submit(name, pods=4, queue=queue, runs="300ms", annotations=SOON)
    await field.submit("d", pods=4, queue=queue, runs="300ms", annotations=SOON, deadline=300)


async def all_ends_well(field: Field) -> None:
    """Returns when what `play` submits has completed or is taken back, and all that was begun is settled on record."""
    for name in "abcd":
        await field.completes(name, LONG)
    await field.until(lambda: (gang := field.gang("e")) and gang.status.taken_back > 0, "e is taken back", LONG)
    await field.until(lambda: not open_intents(field), "each intent has its effect")
    assert field.failures() == 0
    assert field.most_at_once(lambda pod: pod.bound and not pod.ended) <= 6


async def test_writes_are_refused(stage: Field, gateway: Gateway) -> None:
    """Each kind of write meets each refusal: what was refused is tried again, and Retry-After is kept to."""
    rules = {
        (kind, status): gateway.on(
            which(program=CONTROLLER, kind=kind), Refuse(status, 1 if status == 429 else None), times=1
        )
        for kind in KINDS
        for status in (409, 422, 429, 500, 503)
    }
    await play(stage)
    await all_ends_well(stage)
    seldom = ("queue", "event")
    assert [key for key, rule in rules.items() if key[0] not in seldom and not rule.hits] == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_connections_break_at_writes(stage: Field, gateway: Gateway, after: bool) -> None:
    """Each kind of write loses its connection twice: before the API server hears of it, or before its end."""
    rules = [gateway.on(which(program=CONTROLLER, kind=kind), Cut(after), times=2) for kind in KINDS]
    await play(stage)
    await all_ends_well(stage)
    assert [kind for kind, rule in zip(KINDS, rules, strict=True) if not rule.hits] == []


@pytest.mark.parametrize("how", [Hang(), Hang(after=True), Delay(5, lands=True)], ids=["never", "no-answer", "late"])
async def test_writes_are_not_answered_in_time(stage: Field, gateway: Gateway, how: Hang | Delay) -> None:
    """Half-open connections: a write that hears nothing is given up in seconds and sent again, though it may land."""
    rules = [gateway.on(which(program=CONTROLLER, kind=kind), how, times=1) for kind in ("record", "lift")]
    await play(stage)
    await all_ends_well(stage)
    assert all(rule.hits for rule in rules)


async def test_watches_and_lists_are_too_old(stage: Field, gateway: Gateway) -> None:
    """410 on every watch, and on the list that follows it: once more, and on it goes."""
    start = gateway.log.numbered
    await play(stage)
    await stage.until(stage.bound, "the first gang starts")
    for what in ("pods", "jobs", "gangs"):
        gateway.on(which(program=CONTROLLER, verb="list", what=what), Expire(), times=1)
        gateway.on(which(program=CONTROLLER, verb="watch", what=what), Expire(), times=1)
    assert gateway.expire(of_controller) > 10
    await all_ends_well(stage)
    lists = gateway.log.of(which(program=CONTROLLER, verb="list", what="pods"), start)
    assert 2 <= len(lists) <= 4, "no kind is listed over and over"


@pytest.mark.parametrize("slow", ["jobs", "pods"])
async def test_events_come_twice_and_late(stage: Field, gateway: Gateway, slow: str) -> None:
    """What came once comes again, and word of one kind is behind that of the others: no more starts than fits."""
    gateway.on(which(program=CONTROLLER, verb="watch"), Twice(0.5))
    gateway.on(which(program=CONTROLLER, verb="watch", what=slow), Late(0.4))
    await play(stage)
    await all_ends_well(stage)


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
    """It lets a gang go to nodes that take no pods any more: no half of it stays, and others go on."""
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
    await stage.run("b", pods=2, queue=queue)
    assert stage.failures() == 0
    for number in range(2, 9):
        await stage.cordon(f"n{number}", cordoned=False)


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
        await gateway.seen(which(program=CONTROLLER, kind="lease"), 1, start)
        assert stage.opened("a") == {}
    await stage.phase("a", Phase.RUNNING)


async def out_of_touch(field: Field) -> None:
    """Returns when the controller itself says that it isn't in sync."""
    program = field.startgate.controller
    await field.until(lambda: not program._answers("/readyz"), "the controller isn't in sync", LONG)


async def test_the_api_server_is_away(stage: Field, gateway: Gateway, startgate: Startgate) -> None:
    """First nothing comes any more, until the lease has passed and the process has ended; then no connection is taken.

    What runs runs on. When it is back all goes on, gently.
    """
    await stage.nodes(3, cpu="2")
    queue = await stage.queue()
    await stage.run("runs", pods=2, queue=queue)
    running = {pod.uid for pod in stage.bound("runs")}
    async with kept(startgate, startgate.controller) as again:
        with gateway.outage(of_controller, silent=True):
            for name in ("a", "b", "c"):
                await stage.submit(name, queue=queue, runs="300ms", annotations=SOON)
            await stage.until(lambda: again, "it has lost the lease and was started anew", LONG)
            with gateway.outage(of_controller):
                start = gateway.log.numbered
                await gateway.seen(of_controller, 60, start)
                assert stage.opened("a") == {}
        back = gateway.log.numbered
        for name in ("a", "b", "c"):
            await stage.completes(name, LONG)
        assert again == [startgate.controller.name]
    assert stage.failures() == 0
    assert {pod.uid for pod in stage.bound("runs")} == running
    lists = [call.what for call in gateway.log.of(which(program=CONTROLLER, verb="list"), back) if call.status == 200]
    assert len(lists) == len(set(lists)), "each kind is listed once"
    # Of 14 kinds each is tried some five times in the first second, then less and less; and gangs start.
    assert gateway.log.most_within(1.0, of_controller, start) < 200


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
    """It leads on, and tries again at a measured pace; nothing has been let go by halves."""
    start = gateway.log.numbered
    others = which(program=CONTROLLER, writes=True)
    with gateway.on(lambda call: others(call) and call.kind != "lease", Refuse(503)):
        await play(stage)
        await gateway.seen(which(program=CONTROLLER, kind="lease"), 2, start)
        assert stage.opened("a") == {}
        assert gateway.log.most_within(1.0, others, start) < 60
    await all_ends_well(stage)


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
    await stage.run("b", queue=queue)
