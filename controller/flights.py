"""Carrying out what was decided for one gang: reserve where tight, record, release; resume; park; take over.

The protocol of design §3. What always holds: the admission is in the Gang before the first gate opens (for a gang of
one the patch that opens its gate is the record); an intent is in the audit log before the first write and its effect
after the last; at most one flight per gang is under way; and a flight that ends early leaves only what the next cycle
understands from the objects alone.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from controller import statuses
from controller.cache import Cache
from controller.gangs import backing_off
from controller.state import Flight, State
from controller.writes import ChangedError, NotLeadingError, Writes, all_of
from startgate.audit.journal import Journal, JournalError
from startgate.audit.record import DONE, Decision, Record, Stage
from startgate.engine.assign import assigned, chosen
from startgate.engine.lifecycle import Do, back_off
from startgate.engine.world import ClaimKind, Go
from startgate.kube.errors import ApiError, KubeError
from startgate.model import names
from startgate.model.gang import Admission, Phase
from startgate.model.objects import rfc3339
from startgate.model.pods import Pod
from startgate.model.reasons import Code, reason

log = logging.getLogger(__name__)

RESERVATION_SECONDS: Final = 10.0
"""How long a reservation may take to be seen standing. Reservations are held for seconds, not minutes (design §3)."""

BINDINGS_SETTLE: Final = (0.03, 0.3)
"""Seconds, at least and at most, in which bindings come to light that kube-scheduler had decided on before it saw the
reservation. In between: as long as the reservation itself took, since a binding is a write to the same API server."""

RETRY_SECONDS: Final = 2.0
"""After a refused write: until the gang is tried again."""


ACTS: Final = {
    Do.PARK: "suspending its Job",
    Do.RESUME: "resuming its Job",
    Do.PREPARE: "putting the label into its Job's template",
    Do.UNMARK: "taking our mark off its Job",
    Do.FORGET: "taking its admission back",
}
"""For the sentence about a write that was refused."""


class Flights:
    """Starts flights and knows those under way."""

    def __init__(
        self,
        cache: Cache,
        writes: Writes,
        journal: Journal,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cache = cache
        self._writes = writes
        self._journal = journal
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: BaseException | None = None
        """Set where a flight ended by a mistake of ours, or by an audit log that can't be written: the program ends."""

    async def close(self) -> None:
        """Ends all flights where they are; what they leave is understood from the objects."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def go(self, state: State, go: Go) -> None:
        """Acts on a decision of the engine."""
        facts, now = state.facts, self._clock()
        if state.flight:
            return
        if go.kind in (ClaimKind.FOLLOW, ClaimKind.REPLACE):
            self._fly(state, Flight(state.phase, None), chosen(facts.gated, go), self._follow(state, go))
        elif go.kind is ClaimKind.GATHER:
            assert state.admission is not None
            admission = Admission(id=state.admission.id, at=rfc3339(now), slots=state.admission.slots)
            self._release_flight(state, go, admission)
        elif facts.suspended_by:
            admission = Admission(id=uuid.uuid4().hex, at=rfc3339(now), slots=go.count, gathering=True)
            why = reason(Code.GATHERING, have=facts.members, want=go.count)
            self._fly(state, Flight(Phase.GATHERING, why, admission), (), self._resume(state, go))
        else:
            joined = state.admission.slots if state.admission else 0
            admission = Admission(id=uuid.uuid4().hex, at=rfc3339(now), slots=joined + go.count)
            if joined and state.admission:
                admission = Admission(id=state.admission.id, at=state.admission.at, slots=joined + go.count)
            self._release_flight(state, go, admission)

    def act(self, state: State) -> None:
        """Does the one thing that the lifecycle asks for, if it isn't under way."""
        if state.flight or self._clock() < state.retry_at:
            return
        phase, why = state.standing.phase, state.standing.reason
        work: Coroutine[Any, Any, None] | None = None
        admission = None
        match state.standing.do:
            case Do.PARK:
                work = self._park(state)
            case Do.RESUME:
                admission = state.admission
                work = self._resume_again(state)
            case Do.PREPARE:
                work = self._on_job(state, self._writes.prepare_template, Decision.ADOPT)
            case Do.UNMARK:
                work = self._on_job(state, self._writes.unmark, Decision.CHANGE)
            case Do.FORGET:
                work = self._forget(state)
        if work is not None:
            self._fly(state, Flight(phase, why, admission), (), work)

    def note_end(self, state: State) -> None:
        """Puts on record, once, that an admitted gang has ended: its quota is free as its pods go."""
        known = state.record is not None and state.record.status.phase is Phase.FINISHED
        if state.ended or known or state.admission is None:
            return
        state.ended = True
        self._write(state, Stage.VERDICT, Decision.FINISH, state.admission.id)

    def drop_reservations(self, state: State) -> None:
        """Gives up room that a process before us had reserved without recording an admission."""
        pods = [pod for pod in state.facts.gated if pod.nominated]
        if pods and not state.flight and state.admission is None and self._clock() >= state.retry_at:
            self._fly(state, Flight(state.standing.phase, state.standing.reason), (), self._unreserve(pods))

    def _fly(self, state: State, flight: Flight, pods: tuple[Pod, ...], work: Coroutine[Any, Any, None]) -> None:
        flight.pods = {pod.uid: pod for pod in pods}
        state.flight = flight
        task = asyncio.create_task(self._guard(state, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, state: State, work: Coroutine[Any, Any, None]) -> None:
        """Whatever happens, the flight ends and another cycle looks at the gang."""
        try:
            await work
            state.refused = None
        except KubeError as error:
            log.warning("%s: %s", state.key, error)
            self._say_refused(state, error)
        except ChangedError as error:
            self._settle(state, f"failed: {error}")
        except NotLeadingError:
            log.warning("%s: left as it is, since this process doesn't lead any more", state.key)
        except JournalError as error:
            self.failed = error
        except Exception as error:
            log.exception("%s: a mistake of ours", state.key)
            self.failed = error
        finally:
            for pod in state.flight.pods.values() if state.flight else ():
                self._cache.unreserve(pod)
            state.flight = None
            self._cache.touch(state.uid)

    def _say_refused(self, state: State, error: KubeError) -> None:
        """In the Gang, and in the audit log as the effect of what was intended; it is tried again."""
        flight = state.flight
        assert flight is not None
        state.retry_at = self._clock() + RETRY_SECONDS
        if state.refused is None:
            act = flight.act or ACTS.get(state.standing.do, "recording its admission")
            state.refused = reason(Code.WRITE_REFUSED, act=act, error=str(error))
        self._settle(state, f"{'failed' if isinstance(error, ApiError) else 'unknown'}: {error}")

    def _settle(self, state: State, outcome: str) -> None:
        """Puts on record what became of the flight's intent, if it had one."""
        if state.flight is None or state.flight.intent is None:
            return
        try:
            self._journal.settle(state.flight.intent, outcome, at=self._clock())
        except JournalError as broken:
            self.failed = broken

    # --- release ------------------------------------------------------------------------------------------------

    def _release_flight(self, state: State, go: Go, admission: Admission) -> None:
        pods = chosen(state.facts.gated, go)
        phase, why = Phase.RELEASING, reason(Code.RELEASING, lifted=state.facts.past, want=admission.slots)
        if go.tight:
            phase, why = (
                Phase.RESERVED,
                reason(Code.RESERVING, nodes=len({n for p in go.placements for n, _ in p.nodes})),
            )
        flight = Flight(phase, why, None if go.tight else admission)
        flight.nodes = dict(assigned(pods, go)) if go.tight else {}
        for pod in pods if go.tight else ():
            self._cache.reserve(pod, flight.nodes[pod.uid])
        self._fly(state, flight, pods, self._release(state, flight, go, admission, pods))

    async def _release(self, state: State, flight: Flight, go: Go, admission: Admission, pods: tuple[Pod, ...]) -> None:
        if go.tight:
            kept, queue = self._intent(state, Decision.RESERVE, admission.id, go), state.facts.queue
            if not await self._reserve(state, flight):
                self._journal.settle(kept, "failed: the room was taken before it could be reserved", at=self._clock())
                return
            if not _still_so(state, queue, admission):
                await self._unreserve(list(pods))
                self._journal.settle(kept, "failed: the gang was changed meanwhile", at=self._clock())
                return
            self._journal.settle(kept, DONE, at=self._clock())
            flight.phase, flight.admission = Phase.RELEASING, admission
            flight.reason = reason(Code.RELEASING, lifted=state.facts.past, want=admission.slots)
        intent = self._intent(state, Decision.ADMIT, admission.id, go)
        alone = len(pods) == 1 and admission.slots == 1 and state.admission is None
        if not alone:
            await self._record(state)
            state.cut = None
        await self._lift(state, pods)
        if alone:
            state.unrecorded = admission
        self._journal.settle(intent, DONE, at=self._clock())

    async def _follow(self, state: State, go: Go) -> None:
        """Pods that take slots which their gang was admitted for; nothing new is decided, so nothing is recorded."""
        assert state.admission is not None
        pods = tuple(state.flight.pods.values()) if state.flight else ()
        intent = self._intent(state, Decision.RELEASE, f"{state.admission.id}-{uuid.uuid4().hex[:8]}", go)
        await self._lift(state, pods)
        self._journal.settle(intent, DONE, at=self._clock())

    async def _lift(self, state: State, pods: tuple[Pod, ...]) -> None:
        """Lowest completion index first, many at a time. A refusal is said in the Gang and raised."""
        await all_of(self._lift_one(state, pod) for pod in pods)

    async def _lift_one(self, state: State, pod: Pod) -> None:
        try:
            await self._writes.lift_gate(pod)
        except KubeError as error:
            state.refused = reason(Code.RELEASE_REFUSED, pod=pod.name, error=str(error))
            raise

    # --- reserve ------------------------------------------------------------------------------------------------

    async def _reserve(self, state: State, flight: Flight) -> bool:
        """Nominates each pod to its node, and sees in the watch that all stand and nobody came in between."""
        nodes, flight.act, began = flight.nodes, "reserving room", self._clock()
        there = await all_of(self._writes.nominate(pod, nodes[uid]) for uid, pod in flight.pods.items())
        if all(there) and await self._stands(flight, began):
            flight.act = ""
            return True
        await self._unreserve(list(flight.pods.values()))
        return False

    async def _stands(self, flight: Flight, began: float) -> bool:
        held = [self._cache.pods.store.get(pod.name, pod.namespace) for pod in flight.pods.values()]
        last = max((pod.version for pod in held if pod), default=0)
        until = self._clock() + RESERVATION_SECONDS
        while self._cache.pods.store.seen < last:
            if self._clock() > until:
                return False
            await asyncio.sleep(0.005)
        least, most = BINDINGS_SETTLE
        await asyncio.sleep(min(most, max(least, self._clock() - began)))
        for pod in flight.pods.values():
            now = self._cache.pods.store.get(pod.name, pod.namespace)
            if now is None or now.uid != pod.uid or now.deleting or now.nominated != flight.nodes[pod.uid]:
                return False
        asked = {resource for pod in flight.pods.values() for resource in pod.shape.amounts}
        return not any(self._cache.cluster.overcommitted(node, asked) for node in set(flight.nodes.values()))

    async def _unreserve(self, pods: list[Pod]) -> None:
        await all_of(self._writes.nominate(pod, None) for pod in pods)

    # --- park and resume ----------------------------------------------------------------------------------------

    async def _resume(self, state: State, go: Go) -> None:
        assert state.flight and state.flight.admission
        intent = self._intent(state, Decision.RESUME, state.flight.admission.id, go)
        await self._record(state)
        state.flight.act = ACTS[Do.RESUME]
        await self._resume_again(state)
        self._journal.settle(intent, DONE, at=self._clock())

    async def _resume_again(self, state: State) -> None:
        job = self._cache.jobs.store.get(state.facts.owner_name, state.facts.namespace)
        if job is not None and job.metadata.uid == state.uid and names.PARKED in job.metadata.annotations:
            await self._writes.resume(job)

    async def _park(self, state: State) -> None:
        code = state.standing.park_as
        assert code is not None
        decision = Decision.TAKE_BACK if code is Code.NOT_BOUND_IN_TIME else Decision.PARK
        await self._on_job(state, lambda job: self._writes.suspend(job, str(code)), decision)

    async def _on_job(
        self, state: State, write: Callable[[Any], Coroutine[Any, Any, None]], decision: Decision
    ) -> None:
        job = self._cache.jobs.store.get(state.facts.owner_name, state.facts.namespace)
        if job is None or job.metadata.uid != state.uid:
            return
        intent = self._intent(state, decision, uuid.uuid4().hex)
        await write(job)
        self._journal.settle(intent, DONE, at=self._clock())

    async def _forget(self, state: State) -> None:
        """Takes a record off that no longer holds: the gang waits again, with its age."""
        taken_back = state.facts.parked_as == Code.NOT_BOUND_IN_TIME
        state.unrecorded = None
        state.whole, state.lost_at, state.refused = False, None, None

        def compose() -> statuses.Said:
            now = self._clock()
            times = (state.record.status.taken_back if state.record else 0) + 1
            until = now + back_off(times)
            if taken_back and state.flight:
                state.flight.reason = backing_off(times, until)  # no Gang without a reason, not for a moment
            spec, status = statuses.compose(state, now)
            status.admission = msgspec.UNSET
            if taken_back:
                status.taken_back, status.not_before = times, rfc3339(until)
            return spec, status

        await statuses.write(self._writes, state, compose)

    # --- the Gang -----------------------------------------------------------------------------------------------

    async def _record(self, state: State) -> None:
        await statuses.write(self._writes, state, lambda: statuses.compose(state, self._clock()))

    def _intent(self, state: State, decision: Decision, key: str, go: Go | None = None) -> Record:
        made = self._write(state, Stage.INTENT, decision, key, go)
        if state.flight:
            state.flight.intent = made
        return made

    def _write(self, state: State, stage: Stage, decision: Decision, key: str, go: Go | None = None) -> Record:
        facts, why = state.facts, state.standing.reason
        return self._journal.write(
            stage,
            decision,
            key,
            at=self._clock(),
            namespace=facts.namespace,
            gang=facts.name,
            job=facts.owner_name if facts.owner_version == "batch/v1" else "",
            queue=facts.queue,
            reason=str(why.code) if why else "",
            message=why.message if why else "",
            seen={"pods": go.count, **go.numbers} if go else None,
        )


def _still_so(state: State, queue: str, admission: Admission) -> bool:
    """Whether the gang is the one that was decided on: while it reserves, its owner may still change it."""
    facts = state.facts
    whole = state.admission is not None or facts.minimum <= admission.slots
    return whole and facts.queue == queue and not facts.hold and not facts.suspended_by
