"""Carrying out what was decided for one gang: reserve where tight, record, release; resume; park; take over.

The protocol of design §3. What always holds: the admission is in the Gang before the first gate opens (for a gang of
one the patch that opens its gate is the record); an intent is in the audit log before the first write and its effect
after the last; and a flight that ends early leaves only what the next cycle understands from the objects alone.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from controller import statuses
from controller.cache import Cache
from controller.state import Flight, State
from controller.under_way import ACTS, UnderWay
from controller.writes import Writes, all_of
from startgate.audit.record import DONE, Decision, Record
from startgate.engine.assign import assigned, chosen
from startgate.engine.lifecycle import GAVE_WAY, Do, back_off, backing_off, taken_back_for
from startgate.engine.world import ClaimKind, Go
from startgate.kube.errors import KubeError
from startgate.model import names
from startgate.model.gang import Admission, GangStatus, Phase, Yielded
from startgate.model.objects import rfc3339
from startgate.model.pods import Pod
from startgate.model.reasons import Code, reason

log = logging.getLogger(__name__)

RESERVATION_SECONDS: Final = 10.0
"""How long a reservation may take to be seen standing. Reservations are held for seconds, not minutes (design §3)."""

BINDINGS_SETTLE: Final = (0.03, 0.3)
"""Seconds, at least and at most, in which bindings come to light that kube-scheduler had decided on before it saw the
reservation. In between: as long as the reservation itself took, since a binding is a write to the same API server."""


class Flights:
    """Acts on what was decided for one gang, and on what its lifecycle asks for."""

    def __init__(self, cache: Cache, writes: Writes, under_way: UnderWay, *, counted: Callable[[str], None]) -> None:
        """`counted` is told the queue of each gang that was taken back."""
        self._cache = cache
        self._writes = writes
        self._under_way = under_way
        self._clock = under_way.clock
        self._counted = counted

    def go(self, state: State, go: Go) -> None:
        """Acts on a decision of the engine."""
        facts, now = state.facts, self._clock()
        if state.flight or now < state.retry_at:
            return
        if go.kind in (ClaimKind.FOLLOW, ClaimKind.REPLACE):
            pods, flight = chosen(facts.gated, go), Flight(state.phase, None)
            self._plan_nodes(flight, pods, go)
            self._under_way.start(state, flight, self._follow(state, flight, go), pods)
        elif go.kind is ClaimKind.GATHER:
            assert state.admission is not None
            held = state.admission
            self._release_flight(state, go, _admission(go, held.id, rfc3339(now), held.slots))
        elif facts.suspended_by:
            admission = _admission(go, uuid.uuid4().hex, rfc3339(now), go.count, gathering=True)
            why = reason(Code.GATHERING, have=facts.members, want=go.count)
            self._under_way.start(state, Flight(Phase.GATHERING, why, admission), self._resume(state, go))
        else:
            joins = state.admission
            slots = go.count + (joins.slots if joins else 0)
            key, at = (joins.id, joins.at) if joins else (uuid.uuid4().hex, rfc3339(now))
            self._release_flight(state, go, _admission(go, key, at, slots))

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
            flight = Flight(phase, why, admission)
            flight.leaves = state.standing.do is Do.PARK
            self._under_way.start(state, flight, work)

    def note_end(self, state: State) -> None:
        """Puts on record, once, that an admitted gang has ended: its quota is free as its pods go."""
        known = state.record is not None and state.record.status.phase is Phase.FINISHED
        if state.ended or known or state.admission is None:
            return
        state.ended = True
        self._under_way.verdict(state, Decision.FINISH, state.admission.id)

    def drop_reservations(self, state: State) -> None:
        """Gives up room that a process before us had reserved without recording an admission."""
        pods = [pod for pod in state.facts.gated if pod.nominated]
        if pods and not state.flight and state.admission is None and self._clock() >= state.retry_at:
            flight = Flight(state.standing.phase, state.standing.reason)
            self._under_way.start(state, flight, self._unreserve(pods))

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
        self._plan_nodes(flight, pods, go)
        self._under_way.start(state, flight, self._release(state, flight, go, admission, pods), pods)

    def _plan_nodes(self, flight: Flight, pods: tuple[Pod, ...], go: Go) -> None:
        """Where room has to be reserved, it counts as taken from now on."""
        nodes = dict(assigned(pods, go)) if go.tight or go.pinned else {}
        flight.pins = {uid: self._cache.cluster.own_label(node) for uid, node in nodes.items()} if go.pinned else {}
        flight.nodes = nodes if go.tight else {}
        for pod in pods if go.tight else ():
            self._cache.reserve(pod, flight.nodes[pod.uid])

    async def _release(self, state: State, flight: Flight, go: Go, admission: Admission, pods: tuple[Pod, ...]) -> None:
        alone = len(pods) == 1 and admission.slots == 1 and state.admission is None
        try:
            intent = await self._reserve_and_record(state, flight, go, admission, alone=alone)
        except KubeError:
            if go.tight and state.refused:  # once may be chance; but nothing holds a node for a gang that can't start
                await self._unreserve(list(pods))
            raise
        if intent is None:
            return
        await self._lift(state, pods, go)
        if alone:
            state.unrecorded = admission
        self._under_way.settle(intent, DONE)

    async def _reserve_and_record(
        self, state: State, flight: Flight, go: Go, admission: Admission, *, alone: bool
    ) -> Record | None:
        """The intent to let it go, which is recorded; None where it can't go after all."""
        if go.tight:
            kept, queue = self._intent(state, Decision.RESERVE, admission.id, go), state.facts.queue
            if not await self._reserve(state, flight):
                self._under_way.settle(kept, "failed: the room was taken before it could be reserved")
                return None
            if not _still_so(state, queue, admission):
                await self._unreserve(list(flight.pods.values()))
                self._under_way.settle(kept, "failed: the gang was changed meanwhile")
                return None
            self._under_way.settle(kept, DONE)
            flight.phase, flight.admission = Phase.RELEASING, admission
            flight.reason = reason(Code.RELEASING, lifted=state.facts.past, want=admission.slots)
        intent = self._intent(state, Decision.ADMIT, admission.id, go)
        if not alone:
            await self._record(state)
            state.cut = None
        return intent

    async def _follow(self, state: State, flight: Flight, go: Go) -> None:
        """Pods that take slots which their gang was admitted for; nothing new is decided, so nothing is recorded."""
        assert state.admission is not None
        intent = self._intent(state, Decision.RELEASE, f"{state.admission.id}-{uuid.uuid4().hex[:8]}", go)
        if go.tight and not await self._reserve(state, flight):
            self._under_way.settle(intent, "failed: the room was taken before it could be reserved")
            return
        await self._lift(state, tuple(flight.pods.values()), go)
        self._under_way.settle(intent, DONE)

    async def _lift(self, state: State, pods: tuple[Pod, ...], go: Go) -> None:
        """Lowest completion index first, many at a time. A refusal is said in the Gang and raised."""
        await all_of(self._lift_one(state, pod, go) for pod in pods)

    async def _lift_one(self, state: State, pod: Pod, go: Go) -> None:
        try:
            pin = state.flight.pins.get(pod.uid, {}) if state.flight else {}
            await self._writes.lift_gate(pod, {**go.node_selector, **pin})
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
        self._under_way.settle(intent, DONE)

    async def _resume_again(self, state: State) -> None:
        job = self._cache.jobs.store.get(state.facts.owner_name, state.facts.namespace)
        if job is not None and job.metadata.uid == state.uid and names.PARKED in job.metadata.annotations:
            await self._writes.resume(job)

    async def _park(self, state: State) -> None:
        code, why, message = state.standing.park_as, state.standing.reason, None
        assert code is not None
        decision = Decision.PARK
        if code is Code.NOT_BOUND_IN_TIME:
            assert why is not None
            decision = Decision.TAKE_BACK
            message = taken_back_for(state.facts, why, state.verdict.reason if state.verdict else None)
        await self._on_job(state, lambda job: self._writes.suspend(job, str(code), message), decision)

    async def _on_job(
        self, state: State, write: Callable[[Any], Coroutine[Any, Any, None]], decision: Decision
    ) -> None:
        job = self._cache.jobs.store.get(state.facts.owner_name, state.facts.namespace)
        if job is None or job.metadata.uid != state.uid:
            return
        intent = self._intent(state, decision, uuid.uuid4().hex)
        await write(job)
        self._under_way.settle(intent, DONE)

    async def _forget(self, state: State) -> None:
        """Takes a record off that no longer holds: the gang waits again, with its age."""
        facts = state.facts
        taken_back = facts.parked_as == Code.NOT_BOUND_IN_TIME
        state.unrecorded = None
        state.whole, state.lost_at, state.refused = False, None, None

        def compose() -> statuses.Said:
            now = self._clock()
            old = state.record.status if state.record else GangStatus()
            times = statuses.take_backs(old, state.phase, now) + 1
            until = now + back_off(facts, times)
            if taken_back and state.flight:
                state.flight.reason = backing_off(facts, times, until)  # no Gang without a reason, not for a moment
            spec, status = statuses.compose(state, now)
            status.admission = msgspec.UNSET
            if taken_back:
                status.taken_back, status.not_before = times, rfc3339(until)
            elif facts.parked_as in GAVE_WAY:
                status.yielded = Yielded(at=rfc3339(now), reason=facts.parked_as, message=facts.parked_message)
            return spec, status

        await statuses.write(self._writes, state, compose)
        if taken_back:
            self._counted(facts.queue)

    # --- the Gang -----------------------------------------------------------------------------------------------

    async def _record(self, state: State) -> None:
        await statuses.write(self._writes, state, lambda: statuses.compose(state, self._clock()))

    def _intent(self, state: State, decision: Decision, key: str, go: Go | None = None) -> Record:
        seen: dict[str, str | int] | None = {"pods": go.count, **go.numbers} if go else None
        return self._under_way.intent(state, decision, key, state.standing.reason, seen)


def _still_so(state: State, queue: str, admission: Admission) -> bool:
    """Whether the gang is the one that was decided on: while it reserves, its owner may still change it."""
    facts = state.facts
    joins = state.admission is not None
    same = joins or (facts.minimum <= admission.slots and {facts.topology} - {""} == set(admission.node_selector))
    return same and facts.queue == queue and not facts.hold and not facts.suspended_by


def _admission(go: Go, key: str, at: str, slots: int, *, gathering: bool = False) -> Admission:
    """The record of this decision; its pods stay where it puts them."""
    return Admission(id=key, at=at, slots=slots, gathering=gathering, node_selector=dict(go.node_selector))
