"""Carrying out what makes room for a gang: others give way to it, whole or by pods beyond their minimum.

The protocol: an intent for each victim in the audit log; the pledge in the claimant's Gang, one write for all of them;
then one victim after the other. What always holds: no victim is touched before the pledge stands; a gang that goes
whole goes by the patch that parks (no failure is counted), marked with whom it gave way to; pods that go alone do so
after their slots, by the Eviction API; the first refusal stops the rest, and the next cycle decides anew. Killed at any
point, what is left is understood from the objects: victims that weren't suspended yet run on. Those that were refused
last time are told first, so that nobody leaves again for a claimant that can't have the rest.
"""

import uuid
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import msgspec

from controller import statuses
from controller.cache import Cache
from controller.gangs import Gangs
from controller.news import News
from controller.state import Flight, State
from controller.under_way import ACTS, RETRY_SECONDS, UnderWay, outcome_of
from controller.writes import ChangedError, Writes, all_of
from startgate.audit.record import DONE, Decision, Record
from startgate.engine.lifecycle import Do
from startgate.engine.roster import surplus_pods
from startgate.engine.world import Evict, Rule
from startgate.kube.errors import KubeError
from startgate.model.gang import Admission, Pledge, Yielded
from startgate.model.objects import rfc3339
from startgate.model.reasons import Reason

LONGEST_REST: Final = 600.0
"""Seconds for which a gang is asked no more that something keeps from giving way (a budget, a policy): twice as long
each time, since what others gave up beside it was for nothing, and they start again."""

MOST_NODES: Final = 500
"""So many nodes of a proof are recorded; a gang that needs more looks for its places anew."""

LONGEST_SENTENCE: Final = 1000
"""Characters kept of what a Job's annotation says."""

Asked: TypeAlias = tuple[State, Evict]
"""A victim, and what is asked of it."""


class Evictions:
    """Acts on `Plan.evict`."""

    def __init__(
        self,
        cache: Cache,
        gangs: Gangs,
        writes: Writes,
        under_way: UnderWay,
        *,
        news: News,
        counted: Callable[[Rule, str], None],
    ) -> None:
        """`counted` is told the rule and the victim's queue, for each that gave way."""
        self._cache = cache
        self._gangs = gangs
        self._writes = writes
        self._under_way = under_way
        self._news = news
        self._counted = counted

    def begin(self, evicts: Iterable[Evict]) -> None:
        """Starts what can be started. Where a claimant or one of its victims is busy, the next cycle decides anew."""
        for party in _parties(evicts):
            claimants = [self._gangs.named(key) for key in dict.fromkeys(evict.claimant for evict in party)]
            now = self._under_way.clock()
            free = all(state.flight is None and now >= state.retry_at for state in claimants)
            if free and all(self._gangs.can_take(evict) for evict in party):
                asked = [(self._gangs.named(evict.gang), evict) for evict in party]
                self._begin(claimants, sorted(asked, key=lambda each: -each[0].balks))

    def _begin(self, claimants: list[State], asked: list[Asked]) -> None:
        at = rfc3339(self._under_way.clock())
        for claimant in claimants:
            flight = Flight(claimant.standing.phase, None)
            flight.act = "recording who makes room for it"
            flight.pledge = _pledge(claimant, [evict for _, evict in asked if evict.claimant == claimant.key], at)
            claimant.flight, claimant.victims_of = flight, ""
        for victim, evict in _once(asked):
            victim.flight, victim.verdict = _flight(victim, evict, at), None
            self._cache.touch(victim.uid)
        first = claimants[0]
        assert first.flight
        self._under_way.start(first, first.flight, self._make_room(claimants, asked))

    async def _make_room(self, claimants: list[State], asked: list[Asked]) -> None:
        """Under the guard of the first claimant."""
        told: dict[str, list[Record]] = {}
        try:
            for victim, evict in asked:
                told.setdefault(victim.uid, []).append(self._intent(victim, evict, claimants))
            if await self._pledged(claimants, told):
                for victim, evict in _once(asked):
                    if not await self._gives_way(victim, evict, told.pop(victim.uid)):
                        break
                self._settle(told, "failed: not begun, since another that was to give way was refused")
        finally:
            for victim, _ in _once(asked):
                self._under_way.end(victim)
            for claimant in claimants[1:]:
                self._under_way.end(claimant)

    async def _pledged(self, claimants: list[State], told: dict[str, list[Record]]) -> bool:
        """Whether all of them have on record who makes room for them."""
        for claimant in claimants:
            try:
                await self._record(claimant)
            except KubeError as error:
                self._settle(told, outcome_of(error))
                if claimant is claimants[0]:
                    raise
                self._under_way.say_refused(claimant, error)
                self._under_way.rest(claimant)
                return False
        return True

    async def _gives_way(self, victim: State, evict: Evict, intents: list[Record]) -> bool:
        """Whether it did, and the next may be told."""
        try:
            await (self._shed(victim) if evict.pods else self._park(victim, evict.reason))
        except (KubeError, ChangedError) as error:
            if isinstance(error, KubeError):
                self._under_way.say_refused(victim, error)
                rest = min(LONGEST_REST, RETRY_SECONDS * 2 ** min(victim.balks, 16))
                victim.balks, victim.spared_until = victim.balks + 1, self._under_way.clock() + rest
            self._settle({victim.uid: intents}, outcome_of(error))
            return False
        victim.refused, victim.balks = None, 0
        self._settle({victim.uid: intents}, DONE)
        self._counted(evict.rule, victim.facts.queue)
        self._news.event(victim, str(evict.reason.code), evict.reason.message, "GiveWay")
        return True

    async def _park(self, victim: State, why: Reason) -> None:
        facts = victim.facts
        job = self._cache.jobs.store.get(facts.owner_name, facts.namespace)
        if job is None or job.metadata.uid != victim.uid or job.spec.suspend or facts.outcome:
            raise ChangedError(f"{victim.key} has ended or been suspended meanwhile")
        await self._writes.suspend(job, str(why.code), _cut(why.message))

    async def _shed(self, victim: State) -> None:
        """First the slots, so that what is made in place of the pods doesn't follow them; then the pods."""
        flight = victim.flight
        assert flight is not None
        if victim.facts.outcome or victim.facts.suspended_by:
            raise ChangedError(f"{victim.key} has ended or been suspended meanwhile")
        await self._record(victim)
        pods = [pod for pod in victim.facts.bound if pod.uid in flight.going]
        await all_of(self._writes.evict(pod) for pod in pods)

    async def _record(self, state: State) -> None:
        await statuses.write(self._writes, state, lambda: statuses.compose(state, self._under_way.clock()))

    def _intent(self, victim: State, evict: Evict, claimants: Iterable[State]) -> Record:
        decision = Decision.PREEMPT if evict.rule is Rule.PRIORITY else Decision.RECLAIM
        seen: dict[str, str | int] = {
            "claimant": evict.claimant,
            "rule": str(evict.rule),
            "pods": evict.pods or victim.facts.past,
        }
        flight = next(state.flight for state in claimants if state.key == evict.claimant)
        assert flight and flight.pledge
        key = f"{flight.pledge.id}-{uuid.uuid4().hex[:8]}"
        return self._under_way.intent(victim, decision, key, evict.reason, seen | dict(evict.numbers))

    def _settle(self, told: dict[str, list[Record]], outcome: str) -> None:
        for intents in told.values():
            for intent in intents:
                self._under_way.settle(intent, outcome)


def _parties(evicts: Iterable[Evict]) -> list[list[Evict]]:
    """Claimants for which the same gang gives way are served together: what it gives is proved for all of them."""
    parties: list[list[Evict]] = []
    for evict in evicts:
        same = [each for each in parties if any(e.claimant == evict.claimant or e.gang == evict.gang for e in each)]
        parties = [each for each in parties if each not in same]
        parties.append([*(e for each in same for e in each), evict])
    return parties


def _once(asked: Iterable[Asked]) -> Iterable[Asked]:
    """Each victim once, by what is asked of it last: that has the pods in it which were asked for before."""
    return {victim.uid: (victim, evict) for victim, evict in asked}.values()


def _pledge(claimant: State, evicts: list[Evict], at: str) -> Pledge:
    """Those that leave for it already, and these."""
    victims = list(dict.fromkeys([*claimant.victims, *(evict.gang for evict in evicts)]))
    pledge = claimant.pledge
    if pledge is not None and pledge.victims == victims:
        return pledge  # it is on record: one of them was refused then
    places = evicts[0].places
    nodes = dict(places) if len(places) <= MOST_NODES else {}
    return Pledge(id=uuid.uuid4().hex, at=at, rule=str(evicts[0].rule), victims=victims, nodes=nodes)


def _flight(victim: State, evict: Evict, at: str) -> Flight:
    """What the victim is busy with from now on."""
    facts = victim.facts
    flight = Flight(victim.standing.phase, victim.standing.reason)
    if not evict.pods:
        flight.leaves, flight.act = True, ACTS[Do.PARK]
        return flight
    held = victim.admission
    assert isinstance(held, Admission)
    # Slots that pods hold or are held for; some may be lost already to an eviction that was refused.
    slots = min(held.slots, max(held.slots, facts.past) - evict.pods)
    flight.act = "evicting pods beyond its minimum"
    flight.admission = msgspec.structs.replace(held, slots=max(slots, 1))
    flight.going = frozenset(pod.uid for pod in surplus_pods(facts, evict.pods))
    flight.yielded = Yielded(at=at, reason=str(evict.reason.code), message=_cut(evict.reason.message))
    return flight


def _cut(sentence: str) -> str:
    return sentence if len(sentence) <= LONGEST_SENTENCE else f"{sentence[: LONGEST_SENTENCE - 1]}…"
