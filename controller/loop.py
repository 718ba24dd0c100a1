"""The decision loop: one cycle at a time, woken by changes, many changes to a cycle.

A cycle reads what has changed, asks the engine once, starts what it answered, and notes what people should read. What
always holds: no cycle on caches that aren't synced, none without leadership, never two at once; and a cycle awaits
nothing, so that the world can't change under it.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from controller.cache import Cache
from controller.evictions import Evictions
from controller.flights import Flights
from controller.gangs import Gangs
from controller.metrics import Metrics
from controller.news import News
from controller.state import State
from controller.under_way import UnderWay
from startgate.engine.cycle import decide
from startgate.engine.lifecycle import Do
from startgate.engine.world import Plan
from startgate.model.gang import Phase
from startgate.model.reasons import Code

log = logging.getLogger(__name__)

COALESCE: Final = 0.02
"""Seconds in which changes are gathered before a cycle. Well below the 100 ms in which a change has to take effect, and
long enough that a burst of pods costs tens of cycles, not thousands."""

HEARTBEAT: Final = 5.0
"""Seconds after which the loop looks again even if nothing changed: deadlines are checked at least so often."""


RECOUNT: Final = 30.0
"""Seconds between two recounts of all queues' use."""


class Loop:
    """Decides. `wake` may be called at any time, as often as one likes."""

    def __init__(
        self,
        cache: Cache,
        gangs: Gangs,
        news: News,
        metrics: Metrics,
        *,
        under_way: UnderWay,
        flights: Flights,
        evictions: Evictions,
        leading: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cache = cache
        self._gangs = gangs
        self._news = news
        self._metrics = metrics
        self._under_way = under_way
        self._flights = flights
        self._evictions = evictions
        self._leading = leading
        self._clock = clock
        self._woken = asyncio.Event()
        self._counted_at = clock()
        self._took = 0.0
        """Seconds, the last cycle."""

    def wake(self) -> None:
        """Something has changed."""
        self._woken.set()

    async def run(self) -> None:
        """For ever, until cancelled; raises what a flight couldn't live with."""
        while True:
            if self._under_way.failed:
                raise self._under_way.failed
            self._woken.clear()
            if self._cache.synced and self._leading():
                self.cycle()
                self._check_books()
            await self._sleep()

    async def _sleep(self) -> None:
        now = self._clock()
        until = min(HEARTBEAT, max(0.05, self._gangs.next_due(now) - now))
        try:
            async with asyncio.timeout(until):
                await self._woken.wait()
        except TimeoutError:
            return
        # As long again as the last cycle took: in a deep queue there are as many writes to send as changes to look at.
        await asyncio.sleep(max(COALESCE, self._took))

    def _check_books(self) -> None:
        now = self._clock()
        if now - self._counted_at >= RECOUNT:
            self._counted_at = now
            if not self._gangs.recount():
                log.error("the books of the queues had gone wrong and were made anew; this is a mistake of ours")

    def cycle(self) -> Plan:
        """Reads, decides, starts. Synchronous: nothing changes while it runs."""
        now = self._clock()
        began = time.perf_counter()
        changed = self._refresh(now)
        world = self._gangs.world(now)
        plan = decide(world, now)
        self._start(plan, changed)
        for state in changed.values():
            finished = state.standing.phase is Phase.FINISHED
            if finished:
                self._flights.note_end(state)
            if state.standing.do not in (Do.NOTHING, Do.DECIDE):
                self._flights.act(state)
            elif state.admission is None and not finished:
                self._flights.drop_reservations(state)
            self._news.note(state)
        self._news.note_queues(plan)
        self._took = time.perf_counter() - began
        self._metrics.cycle(self._took, len(world.waiting), plan)
        return plan

    def _refresh(self, now: float) -> dict[str, State]:
        changed: dict[str, State] = {}
        dirty = self._cache.take_dirty()
        dirty.update(self._gangs.due(now))
        for uid in dirty:
            state = self._gangs.refresh(uid, now)
            if state is None:
                self._news.forget(uid)
            else:
                changed[uid] = state
        return changed

    def _start(self, plan: Plan, changed: dict[str, State]) -> None:
        # Of two answers to one gang the first counts: pods that have a slot come before those that would join.
        first = {stay.gang: stay for stay in reversed(plan.stay)}
        for stay in first.values():
            state = self._gangs.named(stay.gang)
            if state.victims and not state.makes_room and stay.reason.code is not Code.MAKING_ROOM:
                # All that gave way for it are gone, and it can't start: others have their turn. The claim is taken off
                # its Gang too, or the next leader would put it first once more, however long ago that was.
                state.victims = ()
                changed[state.uid] = state
            if state.verdict != stay or state.refused:
                # What was refused a while ago isn't why it waits now.
                state.verdict, state.refused = stay, None
                if state.standing.phase is Phase.GATHERING:
                    self._gangs.restand(state, self._clock())  # with pods that can never go it is taken back
                changed[state.uid] = state
        for go in plan.go:
            state = self._gangs.named(go.gang)
            if state.flight is None:
                state.verdict = None
                self._flights.go(state, go)
        self._evictions.begin(plan.evict)
