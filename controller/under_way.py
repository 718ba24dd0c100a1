"""Work on gangs that is under way: started, guarded, and put on record.

What always holds: at most one flight for a gang; however it ends, another cycle looks at the gang; a write that was
refused is said in the gang and tried again; and an intent that was put on record is settled by whoever put it there,
or after a restart.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

from controller import retries
from controller.cache import Cache
from controller.state import Flight, State
from controller.writes import ChangedError, NotLeadingError
from startgate.audit.journal import Journal, JournalError
from startgate.audit.record import Decision, Record, Stage
from startgate.engine.lifecycle import Do
from startgate.kube.errors import ApiError, KubeError
from startgate.model.pods import Pod
from startgate.model.reasons import Code, Reason, reason

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = retries.PAUSES[0]
"""After a refused write: until the gang is tried again, at least."""

ACTS: Final = {
    Do.PARK: "suspending its Job",
    Do.RESUME: "resuming its Job",
    Do.PREPARE: "putting the label into its Job's template",
    Do.UNMARK: "taking our mark off its Job",
    Do.FORGET: "taking its admission back",
}
"""For the sentence about a write that was refused."""


class UnderWay:
    """Starts flights and knows those under way."""

    def __init__(
        self,
        cache: Cache,
        journal: Journal,
        *,
        clock: Callable[[], float] = time.time,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`clock` is what spans are measured with, `wall` what the machine says: the time in the audit log."""
        self._cache = cache
        self._journal = journal
        self.clock = clock
        self._wall = wall
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: BaseException | None = None
        """Set where a flight ended by a mistake of ours, or by an audit log that can't be written: the program ends."""

    async def close(self) -> None:
        """Ends all flights where they are; what they leave is understood from the objects."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start(self, state: State, flight: Flight, work: Coroutine[Any, Any, None], pods: Iterable[Pod] = ()) -> None:
        """From now on this is done with the gang, and nothing else. `pods`: those whose gate it will lift."""
        flight.pods = {pod.uid: pod for pod in pods}
        state.flight = flight
        task = asyncio.create_task(self._guard(state, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self, state: State) -> None:
        """Nothing is done with the gang any more; another cycle looks at it."""
        for pod in state.flight.pods.values() if state.flight else ():
            self._cache.unreserve(pod)
        state.flight = None
        self._cache.touch(state.uid)

    async def _guard(self, state: State, work: Coroutine[Any, Any, None]) -> None:
        """Whatever happens, the flight ends and another cycle looks at the gang."""
        try:
            await work
            state.refused, state.refused_since = None, 0.0
        except KubeError as error:
            self.say_refused(state, error)
            self.rest(state)
            self._settle_flight(state, outcome_of(error))
        except ChangedError as error:
            self._settle_flight(state, outcome_of(error))
        except NotLeadingError:
            log.warning("%s: left as it is, since this process doesn't lead any more", state.key)
        except JournalError as error:
            self.failed = error
        except Exception as error:
            log.exception("%s: a mistake of ours", state.key)
            self.failed = error
        finally:
            self.end(state)

    def say_refused(self, state: State, error: KubeError) -> None:
        """In the Gang; it is tried again."""
        flight = state.flight
        assert flight is not None
        log.warning("%s: %s", state.key, error)
        state.retry_at = self.clock() + RETRY_SECONDS
        if state.refused is None:
            act = flight.act or ACTS.get(state.standing.do, "recording its admission")
            state.refused = reason(Code.WRITE_REFUSED, act=act, error=str(error))

    def rest(self, state: State) -> None:
        """What is refused again and again is tried more and more rarely."""
        now = self.clock()
        state.refused_since = state.refused_since or now
        state.retry_at = now + retries.pause(now - state.refused_since)

    # --- on record ----------------------------------------------------------------------------------------------

    def intent(
        self, state: State, decision: Decision, key: str, why: Reason | None, seen: Mapping[str, str | int] | None
    ) -> Record:
        """Puts on record what is about to be done. JournalError."""
        made = self._write(state, (Stage.INTENT, decision, key), why, seen)
        if state.flight:
            state.flight.intent = made
        return made

    def verdict(self, state: State, decision: Decision, key: str) -> None:
        """Puts on record what has come to be by itself. JournalError."""
        self._write(state, (Stage.VERDICT, decision, key), state.standing.reason, None)

    def settle(self, intent: Record, outcome: str) -> None:
        """Puts on record what became of it. JournalError."""
        self._journal.settle(intent, outcome, at=self._wall())

    def _settle_flight(self, state: State, outcome: str) -> None:
        if state.flight is None or state.flight.intent is None:
            return
        try:
            self.settle(state.flight.intent, outcome)
        except JournalError as broken:
            self.failed = broken

    def _write(
        self,
        state: State,
        what: tuple[Stage, Decision, str],
        why: Reason | None,
        seen: Mapping[str, str | int] | None,
    ) -> Record:
        facts = state.facts
        return self._journal.write(
            *what,
            at=self._wall(),
            namespace=facts.namespace,
            gang=facts.name,
            job=facts.owner_name if facts.owner_version == "batch/v1" else "",
            queue=facts.queue,
            reason=str(why.code) if why else "",
            message=why.message if why else "",
            seen=seen,
        )


def outcome_of(error: KubeError | ChangedError) -> str:
    """How an intent ended that met this: it had no effect, or nobody knows."""
    known = isinstance(error, ApiError | ChangedError)
    return f"{'failed' if known else 'unknown'}: {error}"
