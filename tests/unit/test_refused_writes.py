"""What is refused for long is tried ever more rarely; what is refused of a gang that has gone isn't tried at all."""

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from controller.news import News
from controller.state import Flight
from controller.under_way import UnderWay
from controller.writes import Writes
from startgate.audit.journal import Journal
from startgate.engine.cycle import decide
from startgate.kube.client import Client
from startgate.kube.errors import ApiError, KubeError
from startgate.kube.events import Recorder
from startgate.model.gang import Gang
from startgate.model.objects import ObjectMeta
from startgate.model.queue import Queue
from tests.unit.feed import NOW, Feed, empty_cache

REFUSED = ApiError(422, "Invalid", "somebody says no")
HOUR = 3600.0


class Refusing(Writes):
    """Says no, and when it was asked."""

    def __init__(self, clock: "Clock") -> None:
        self.asked: list[float] = []
        self._clock = clock

    async def create_gang(self, namespace: str, body: Mapping[str, Any]) -> Gang:
        self.asked.append(self._clock())
        raise REFUSED

    async def delete_gang(self, gang: Gang) -> None:
        self.asked.append(self._clock())
        raise REFUSED

    async def patch_queue_status(self, name: str, status: Mapping[str, Any]) -> None:
        self.asked.append(self._clock())
        raise REFUSED


class Clock:
    """Loop time, on top of NOW."""

    def __call__(self) -> float:
        return NOW + asyncio.get_running_loop().time()


@pytest_asyncio.fixture
async def feed(tmp_path: Path) -> AsyncIterator[Feed]:
    async with empty_cache(tmp_path) as cache:
        yield Feed(cache)


async def an_hour_of_news(feed: Feed, writes: Refusing) -> None:
    """All that waits is told, whenever it may be."""
    recorder = Recorder(cast(Client, None), "startgate.dev/controller", "test")
    news = News(feed.cache, feed.gangs, writes, recorder, clock=Clock())
    for state in feed.gangs.states.values():
        news.note(state)
    running = asyncio.create_task(news.run())
    for _ in range(int(HOUR)):
        news.note_queues(decide(feed.world(), NOW))
        await asyncio.sleep(1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def tries(asked: list[float]) -> tuple[bool, bool]:
    """Whether it was tried soon, and in the end about once a minute, and no more."""
    first_minute = sum(each < asked[0] + 60 for each in asked)
    last_half = sum(each > asked[-1] - HOUR / 2 for each in asked)
    return 5 <= first_minute <= 31, 20 <= last_half <= 31


@pytest.mark.looptime
async def test_a_gang_that_can_t_be_written(feed: Feed) -> None:
    feed.job("a")
    feed.world()
    writes = Refusing(Clock())
    await an_hour_of_news(feed, writes)
    assert tries(writes.asked) == (True, True), writes.asked


@pytest.mark.looptime
async def test_a_queue_that_can_t_be_written(feed: Feed) -> None:
    feed.cache.queues.store.put(Queue(metadata=ObjectMeta(name="q", uid="q", resource_version="1")))
    writes = Refusing(Clock())
    await an_hour_of_news(feed, writes)
    assert tries(writes.asked) == (True, True), writes.asked


@pytest.mark.looptime
async def test_a_gang_without_an_owner_that_can_t_be_deleted(feed: Feed) -> None:
    feed.cache.gangs.store.put(Gang(metadata=feed._meta("job-a"), spec={}))  # type: ignore[arg-type]
    writes = Refusing(Clock())
    await an_hour_of_news(feed, writes)
    assert tries(writes.asked) == (True, True), writes.asked


@pytest.mark.looptime
async def test_the_gang_goes_while_its_news_is_refused(feed: Feed) -> None:
    feed.job("a")
    feed.world()
    writes = Refusing(Clock())
    recorder = Recorder(cast(Client, None), "startgate.dev/controller", "test")
    news = News(feed.cache, feed.gangs, writes, recorder, clock=Clock())
    news.note(feed.state("a"))
    create = writes.create_gang

    async def goes_meanwhile(namespace: str, body: Mapping[str, Any]) -> Gang:
        feed.cache.jobs.store.forget("a", "n", "uid-a")
        feed.world()
        news.forget("uid-a")
        return await create(namespace, body)

    writes.create_gang = goes_meanwhile  # type: ignore[method-assign]
    running = asyncio.create_task(news.run())
    await asyncio.sleep(HOUR)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(writes.asked) == 1


@pytest.mark.looptime
async def test_a_flight_that_is_refused(feed: Feed) -> None:
    """Each of them by whoever decides, as soon as it may be."""
    feed.job("a")
    feed.world()
    state, clock, asked = feed.state("a"), Clock(), []
    under_way = UnderWay(feed.cache, Journal([io.BytesIO()], "controller", "test"), clock=clock)

    async def work(error: KubeError | None) -> None:
        asked.append(clock())
        if error:
            raise error

    async def fly(error: KubeError | None = None) -> None:
        under_way.start(state, Flight(state.standing.phase, None), work(error))
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        assert state.flight is None

    began = clock()
    while clock() < began + HOUR:
        await fly(REFUSED)
        await asyncio.sleep(state.retry_at - clock())
    assert tries(asked) == (True, True), asked
    await fly()
    await fly(REFUSED)
    assert state.retry_at - clock() <= 3, "it went well in between"
