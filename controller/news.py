"""Telling people: Gangs, Queues and Events are written here, when there is news and as the write budget allows.

What always holds: news that stands is written; what is about to be overtaken is not (a gang that starts at once costs
one write for its record, one when it runs, one when it ends; design §10a). A change of code goes out after a moment of
settling, numbers alone within a budget, the stalest first. Never decides anything.
"""

import asyncio
import heapq
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from controller import statuses
from controller.cache import Cache
from controller.gangs import Counts, Gangs
from controller.retries import Retries
from controller.state import State
from controller.writes import NotLeadingError, Writes
from startgate.engine.world import Plan, QueueView
from startgate.kube.errors import KubeError
from startgate.kube.events import Budget, Recorder, Regarding
from startgate.model.gang import Phase
from startgate.model.objects import Condition, rfc3339
from startgate.model.reasons import Code
from startgate.model.resources import quantities

log = logging.getLogger(__name__)

SETTLE: Final[Mapping[Code, float]] = {
    Code.PODS_MISSING: 4.0,
    Code.RELEASING: 4.0,
    Code.BINDING: 4.0,
    Code.RESERVING: 2.0,
    Code.GATHERING: 2.0,
    Code.BELOW_MINIMUM: 1.0,
    Code.ENDING: 1.0,
}
"""Seconds that a passing reason has to stand before it is news. All others: SHORTLY."""

CROWD: Final = (50, 16.0)
"""What goes well is told a second later for each so many gangs that have news, up to so many seconds. In a burst news
would stand in line with the releases themselves, at the same API server, and most of it is overtaken meanwhile."""

SHORTLY: Final = 0.2
NUMBERS_PER_SECOND: Final = 10.0
WRITERS: Final = 8
QUEUE_SECONDS: Final = 1.0
"""Between two looks at the Queues' statuses."""

TOLD: Final = frozenset(Phase) - {
    Phase.RELEASING,
    Phase.RUNNING,
    Phase.FINISHED,
    Phase.RESERVED,
    Phase.GATHERING,
}
"""Phases that get an Event: waits and take-backs, not what went well at once."""


class _Due(NamedTuple):
    """When a Gang may be written, and which news that time was set for."""

    at: float
    state: State
    code: Code | None
    phase: Phase


class News:
    """Writes what people read. `note` is called after each cycle; `run` does the writing."""

    def __init__(
        self, cache: Cache, gangs: Gangs, writes: Writes, recorder: Recorder, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._cache = cache
        self._gangs = gangs
        self._writes = writes
        self._recorder = recorder
        self._clock = clock
        self._due: dict[str, _Due] = {}
        """By owner uid: whose Gang may soon be written."""
        self._order: list[tuple[float, str]] = []
        """A heap of (when, owner uid); what `_due` no longer says is passed over."""
        self._gangs_rest, self._queues_rest, self._left_rest = (Retries(clock) for _ in range(3))
        """What was refused: of Gangs by owner uid, of Queues by name, of Gangs without an owner by their own uid."""
        self._numbers = Budget(NUMBERS_PER_SECOND, int(NUMBERS_PER_SECOND))
        self._plan: Plan | None = None
        self._queues_at = 0.0
        self._wake = asyncio.Event()

    def note(self, state: State) -> None:
        """There may be news of this gang."""
        if state.flight and state.flight.phase is not Phase.RESERVED:
            return  # the flight writes what it does
        why = state.reason
        code = why.code if why else None
        waiting = self._due.get(state.uid)
        if waiting and waiting.code == code and waiting.phase is state.phase:
            return
        if state.record is None and state.phase is Phase.FINISHED and state.admission is None:
            return  # ended before we ever saw it wait or run: nobody looks for it
        self._put_off(state, code, self._settle(code))
        self._wake.set()

    def _settle(self, code: Code | None) -> float:
        """Seconds that a reason has to stand before it is news."""
        base = SETTLE.get(code, SHORTLY) if code else SHORTLY
        if code is not Code.RUNNING and code not in SETTLE:
            return base
        gangs, most = CROWD
        return base + min(most, len(self._due) / gangs)

    def forget(self, uid: str) -> None:
        """The gang is gone, and its Gang goes with its owner."""
        self._due.pop(uid, None)

    def note_queues(self, plan: Plan) -> None:
        """The books after a cycle."""
        self._plan = plan
        self._wake.set()

    async def run(self) -> None:
        """For ever, until cancelled."""
        writers = asyncio.Semaphore(WRITERS)
        async with asyncio.TaskGroup() as tasks:
            while True:
                now = self._clock()
                while not writers.locked() and (state := self._next(now)):
                    await writers.acquire()
                    tasks.create_task(self._tell(state, writers))
                await self._tell_queues(now)
                await self._collect()
                await self._pause(now)

    async def _collect(self) -> None:
        """Deletes Gangs that have lost their owner: what they say is of a gang that is no more."""
        for uid, gang in list(self._cache.ownerless.items()):
            if self._left_rest.rests(uid):
                continue
            try:
                await self._writes.delete_gang(gang)
            except NotLeadingError:
                return
            except KubeError as error:
                log.info("Gang %s/%s wasn't deleted: %s", gang.metadata.namespace, gang.metadata.name, error)
                self._left_rest.refused(uid)
            else:
                self._left_rest.went_well(uid)

    def _next(self, now: float) -> State | None:
        """The gang whose news has been due for longest, if any is."""
        while self._order and self._order[0][0] <= now:
            at, uid = heapq.heappop(self._order)
            news = self._due.get(uid)
            if news is not None and news.at == at:
                del self._due[uid]
                return news.state
        return None

    def _put_off(self, state: State, code: Code | None, seconds: float) -> None:
        if self._gangs.states.get(state.uid) is not state:
            return  # it has gone while its Gang was being written, and nobody will call it off any more
        at = max(self._clock() + seconds, self._gangs_rest.until(state.uid))
        self._due[state.uid] = _Due(at, state, code, state.phase)
        heapq.heappush(self._order, (at, state.uid))

    async def _pause(self, now: float) -> None:
        self._wake.clear()
        soonest = self._order[0][0] if self._order else now + 1.0
        try:
            async with asyncio.timeout(max(0.05, min(1.0, soonest - now))):
                await self._wake.wait()
        except TimeoutError:
            return
        await asyncio.sleep(0.05)  # cycles come in bursts; one look for all of them

    async def _tell(self, state: State, writers: asyncio.Semaphore) -> None:
        try:
            await self._write(state)
        except NotLeadingError:
            pass
        except KubeError as error:
            log.info("%s: its Gang wasn't written: %s", state.key, error)
            self._gangs_rest.refused(state.uid)
            self._put_off(state, None, 0.0)
        else:
            self._gangs_rest.went_well(state.uid)
        finally:
            writers.release()
            self._wake.set()

    async def _write(self, state: State) -> None:
        if state.flight and state.flight.phase is not Phase.RESERVED:
            return
        spec, status = statuses.compose(state, self._clock())
        if state.record is not None:
            patch = statuses.changes(state.record, spec, status)
            if not patch:
                return
            if not statuses.urgent(patch) and not self._numbers.take():
                self._put_off(state, None, 1.0)
                return
        before = state.record.status.reason if state.record else ""
        said = await statuses.write(self._writes, state, lambda: statuses.compose(state, self._clock()))
        if said is not None and said.phase in TOLD and said.reason != before:
            self.event(state, said.reason, said.message, "Gate")

    def event(self, state: State, code: str, message: str, action: str) -> None:
        """An Event about the gang's owner."""
        facts = state.facts
        about = Regarding(facts.owner_version, facts.owner_kind, facts.owner_name, facts.namespace, facts.owner_uid)
        self._recorder.event(about, "Normal", code or "Waiting", message, action)

    async def _tell_queues(self, now: float) -> None:
        if self._plan is None or now - self._queues_at < QUEUE_SECONDS:
            return
        self._queues_at = now
        plan, self._plan = self._plan, None
        counts = self._gangs.counts()
        for name, view in plan.queues.items():
            queue = self._cache.queue(name)
            if queue is None or self._queues_rest.rests(name):
                continue
            many = counts.get(name, Counts())
            others = self._cache.unlabelled.seen_by(queue, self._cache.namespaces.store)
            status = _queue_status(view, queue.status.conditions, now)
            status |= _said(unlabelled=quantities(others), waiting=many.waiting, running=many.holding)
            status |= _said(waitingPods=many.waiting_pods)
            if status == msgspec.to_builtins(queue.status):
                continue
            cleared = {key: None for key in msgspec.to_builtins(queue.status) if key not in status}
            try:
                await self._writes.patch_queue_status(name, {**_replaced(queue.status, status), **cleared})
            except NotLeadingError:
                return
            except KubeError as error:
                log.info("Queue %s: its status wasn't written: %s", name, error)
                self._queues_rest.refused(name)
            else:
                self._queues_rest.went_well(name)


def _queue_status(view: QueueView, old: list[Condition], now: float) -> dict[str, Any]:
    sound = "False" if view.problems else "True"
    message = "; ".join(view.problems)
    was = next((each for each in old if each.type == "Sound"), None)
    at = was.last_transition_time if was and was.status == sound else rfc3339(now)
    reason = "Contradiction" if view.problems else "NoContradiction"
    made = Condition(type="Sound", status=sound, reason=reason, message=message, last_transition_time=at)
    return _said(
        allocated=quantities(view.allocated),
        reserved=quantities(view.reserved),
        headroom=quantities(view.headroom),
        deserved=quantities(view.deserved),
        share="" if view.share is None else f"{view.share:.2f}",
        next=view.next,
        conditions=[msgspec.to_builtins(made)],
    )


def _said(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value}


def _replaced(old: Any, new: Mapping[str, Any]) -> dict[str, Any]:
    """A merge patch keeps the keys of a map that it doesn't name: name those that have gone."""
    before = msgspec.to_builtins(old)
    patch: dict[str, Any] = {}
    for key, value in new.items():
        was = before.get(key)
        if isinstance(value, dict) and isinstance(was, dict):
            patch[key] = {**{gone: None for gone in was if gone not in value}, **value}
        else:
            patch[key] = value
    return patch
