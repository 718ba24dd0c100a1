"""Making room for one gang: what is done in which order, and what is left undone where a write is refused."""

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from controller.cache import Cache
from controller.evictions import Evictions
from controller.news import News
from controller.state import Flight
from controller.under_way import UnderWay
from controller.writes import NotLeadingError, Writes
from startgate.audit.journal import Journal
from startgate.audit.record import DECODER, Decision, Record, Stage
from startgate.engine.world import Evict, Rule
from startgate.kube.client import Client
from startgate.kube.errors import ApiError
from startgate.kube.events import Recorder
from startgate.model.gang import Gang, Phase
from startgate.model.objects import Job
from startgate.model.pods import Pod
from startgate.model.reasons import Code, reason
from tests.unit.feed import NOW, Feed, empty_cache
from tests.unit.test_holders import ignores

REFUSED = ApiError(403, "Forbidden", "somebody says no")
WHY = reason(Code.PREEMPTED, gang="n/job-c", priority=9, own=0)


class Noted(Writes):
    """Writes that are only noted, one after the other; one of them may be refused."""

    def __init__(self, log: io.BytesIO, refuses: str, error: Exception) -> None:
        self.done: list[str] = []
        self.on_record = 0
        self._log = log
        self._refuses = refuses
        self._error = error

    def _note(self, what: str) -> None:
        if not self.done:
            self.on_record = len(self._log.getvalue().splitlines())
        self.done.append(what)
        if what == self._refuses:
            raise self._error

    async def create_gang(self, namespace: str, body: Mapping[str, Any]) -> Gang:
        self._note(f"write {body['metadata']['name']}")
        return msgspec.convert(msgspec.to_builtins(body), Gang)

    async def patch_gang(self, gang: Gang, patch: Mapping[str, Any]) -> Gang:
        slots = patch["status"].get("admission", {}).get("slots")
        self._note(f"write {gang.metadata.name} slots {slots}")
        return gang

    async def suspend(self, job: Job, why: str, message: str | None = None) -> None:
        assert (why, message) == (Code.PREEMPTED, WHY.message)
        self._note(f"suspend {job.metadata.name}")

    async def evict(self, pod: Pod) -> bool:
        self._note(f"evict {pod.name}")
        return True


class House:
    """What makes room: c waits, x and y run, and each write is `refuses` or done."""

    def __init__(self, cache: Cache, refuses: str = "", error: Exception = REFUSED) -> None:
        self.feed = Feed(cache)
        self.log = io.BytesIO()
        self.counted: list[tuple[Rule, str]] = []
        self.writes = Noted(self.log, refuses, error)
        self._under_way = UnderWay(cache, Journal([self.log], "controller", "test"), clock=lambda: NOW)
        recorder = Recorder(cast(Client, None), "startgate.dev/controller", "test")
        self._evictions = Evictions(
            cache,
            self.feed.gangs,
            self.writes,
            self._under_way,
            news=News(cache, self.feed.gangs, self.writes, recorder),
            counted=lambda rule, queue: self.counted.append((rule, queue)),
        )
        self.feed.job("c")
        self.feed.pod("c", 0)
        self.feed.pod("c", 1)
        self.feed.running("x")
        self.feed.running("y", pods=4, minimum=2, pod_failure_policy=ignores())
        self.feed.world()

    def begin(self, **pods: int) -> None:
        """These give way for c: all of their pods (0), or so many."""
        self.tell([("c", job, count) for job, count in pods.items()])

    def tell(self, evicts: list[tuple[str, str, int]]) -> None:
        """(claimant, victim, how many of its pods)"""
        self._evictions.begin(
            Evict(gang=f"n/job-{job}", claimant=f"n/job-{to}", rule=Rule.PRIORITY, pods=count, reason=WHY, numbers={})
            for to, job, count in evicts
        )

    async def make_room(self, **pods: int) -> None:
        """Begins, and returns when nothing is under way any more."""
        self.begin(**pods)
        await self.done()

    async def done(self) -> None:
        """Returns when nothing is under way any more."""
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        self.feed.world()

    def records(self) -> list[Record]:
        return [DECODER.decode(line) for line in self.log.getvalue().splitlines()]

    def outcomes(self) -> list[tuple[str, str]]:
        return [(each.gang, each.outcome) for each in self.records() if each.stage is Stage.EFFECT]


@pytest.fixture
async def cache(tmp_path: Path) -> AsyncIterator[Cache]:
    async with empty_cache(tmp_path) as made:
        yield made


async def test_intents_then_the_pledge_then_the_victims(cache: Cache) -> None:
    house = House(cache)
    await house.make_room(x=0, y=0)
    assert house.writes.on_record == 2, "both intents, before the first write"
    assert house.writes.done == ["write job-c", "suspend x", "suspend y"]
    assert house.outcomes() == [("job-x", "done"), ("job-y", "done")]
    assert {each.decision for each in house.records()} == {Decision.PREEMPT}
    assert house.counted == [(Rule.PRIORITY, "q")] * 2


async def test_nobody_is_touched_where_the_pledge_is_refused(cache: Cache) -> None:
    house = House(cache, refuses="write job-c")
    await house.make_room(x=0, y=0)
    assert house.writes.done == ["write job-c"]
    assert [outcome.partition(":")[0] for _, outcome in house.outcomes()] == ["failed", "failed"]
    refused = house.feed.state("c").refused
    assert refused
    assert refused.message.startswith("recording who makes room for it was refused: somebody says no")
    assert house.counted == []


async def test_the_first_refusal_stops_the_rest(cache: Cache) -> None:
    house = House(cache, refuses="suspend x")
    await house.make_room(x=0, y=0)
    assert house.writes.done == ["write job-c", "suspend x"]
    first, second = house.outcomes()
    assert first[0] == "job-x"
    assert first[1].startswith("failed: somebody says no")
    assert second == ("job-y", "failed: not begun, since another that was to give way was refused")
    refused = house.feed.state("x").refused
    assert refused
    assert refused.message.startswith("suspending its Job was refused")
    takeable = {holder.gang: holder.takeable for holder in house.feed.gangs.world(NOW).holders}
    assert takeable == {"n/job-x": False, "n/job-y": True}, "others may be asked meanwhile"


async def test_who_was_refused_is_asked_first_the_next_time_and_ever_more_rarely(cache: Cache) -> None:
    """Else x would leave again each time, for a claimant that can't have y's place."""
    house = House(cache, refuses="suspend y")
    await house.make_room(x=0, y=0)
    assert house.writes.done == ["write job-c", "suspend x", "suspend y"]
    rests = []
    for _ in range(7):
        y = house.feed.state("y")
        rests.append(y.spared_until - NOW)
        assert y.retry_at - NOW == 2, "all else that it needs is done as soon as ever"
        y.retry_at = y.spared_until = 0.0
        house.feed.running("x")
        house.feed.running("y", pods=4, minimum=2, pod_failure_policy=ignores())
        house.feed.world()
        house.writes.done.clear()
        await house.make_room(x=0, y=0)
        assert house.writes.done[-1] == "suspend y"
        assert "suspend x" not in house.writes.done
    assert rests == [2, 4, 8, 16, 32, 64, 128]


async def test_slots_go_before_the_pods_beyond_the_minimum(cache: Cache) -> None:
    house = House(cache)
    await house.make_room(y=2)
    assert house.writes.done[:2] == ["write job-c", "write job-y slots 2"]
    assert sorted(house.writes.done[2:]) == ["evict y-2", "evict y-3"]


async def test_who_does_not_lead_any_more_leaves_the_rest_to_the_next_leader(cache: Cache) -> None:
    """The intents stay open: whoever leads next settles them."""
    house = House(cache, refuses="suspend x", error=NotLeadingError("not the leader any more"))
    await house.make_room(x=0, y=0)
    assert house.writes.done == ["write job-c", "suspend x"]
    assert house.outcomes() == []


async def test_nothing_is_begun_where_one_of_them_is_busy(cache: Cache) -> None:
    """What was proved was proved for all of them."""
    house = House(cache)
    house.feed.state("y").flight = Flight(Phase.RUNNING, None)
    house.begin(x=0, y=0)
    assert house.feed.state("x").flight is None
    assert house.log.getvalue() == b""


async def test_two_claimants_take_pods_of_the_same_gang_together(cache: Cache) -> None:
    """The second's number has the first's pod in it; both claims are on record before any pod goes."""
    house = House(cache)
    house.feed.job("d")
    house.feed.pod("d", 0)
    house.feed.pod("d", 1)
    house.feed.world()
    house.tell([("c", "y", 1), ("d", "y", 2)])
    await house.done()
    assert house.writes.done[:3] == ["write job-c", "write job-d", "write job-y slots 2"]
    assert sorted(house.writes.done[3:]) == ["evict y-2", "evict y-3"]
    assert house.outcomes() == [("job-y", "done"), ("job-y", "done")]
    assert [each.seen["claimant"] for each in house.records() if each.seen] == ["n/job-c", "n/job-d"]


async def test_of_two_claimants_together_either_both_are_on_record_or_nobody_is_touched(cache: Cache) -> None:
    house = House(cache, refuses="write job-d")
    house.feed.job("d")
    house.feed.pod("d", 0)
    house.feed.pod("d", 1)
    house.feed.world()
    house.tell([("c", "y", 1), ("d", "y", 2), ("d", "x", 0)])
    await house.done()
    assert house.writes.done == ["write job-c", "write job-d"]
    assert {outcome.partition(":")[0] for _, outcome in house.outcomes()} == {"failed"}
    assert house.feed.state("d").refused
    assert not any(house.feed.state(job).flight for job in "cdxy")
