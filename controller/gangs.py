"""From what exists to what the engine decides on: the states of all gangs, and the World made of them.

`refresh` re-reads one owner's group; `world` puts the states together. What always holds: a pod is in exactly one
place of the World (on a node, in a claim, or in a waiting gang); work under way counts as done, so that no second
decision can spend the same room; and a queue's use is the sum of its gangs' charges, which `recount` makes anew now and
then, so that nothing is only ever counted up and down.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from controller.cache import Cache, Group
from controller.state import State, grant_of, moment
from startgate.engine.lifecycle import Do, Standing, standing, wanted_slots
from startgate.engine.observe import Facts, amounts_of, batches, charged, observe_job, observe_owner, opted_in
from startgate.engine.world import Batch, Claim, ClaimKind, Waiting, World
from startgate.model.gang import Admission, Gang, Phase
from startgate.model.objects import rfc3339
from startgate.model.pods import Pod, Shape
from startgate.model.quantity import QuantityError
from startgate.model.reasons import Code, Reason, reason
from startgate.model.resources import Amounts

WAITS: Final = frozenset({Phase.WAITING, Phase.PARKED})


class Gangs:
    """The states, by the uid of the owner."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.states: dict[str, State] = {}
        self._leftover: dict[str, tuple[str, Amounts]] = {}
        """By owner uid: queue and charge of pods whose owner isn't a gang any more (an older Job's, terminating)."""
        self._used: dict[str, dict[str, int]] = {}
        self._busy: dict[str, State] = {}
        """Those that a decision has to do with, by owner uid."""
        self._timed: dict[str, State] = {}
        """Those that the clock alone will change."""
        self._uids: dict[str, str] = {}
        """Owner uid by the key that the engine knows; of two owners with one name the one that lives."""

    def named(self, key: str) -> State:
        """The gang that the engine means by this key."""
        return self.states[self._uids[key]]

    def refresh(self, uid: str, now: float) -> State | None:
        """Looks at one owner anew; None if it has no gang (any more)."""
        self._pay(self._leftover.pop(uid, None), -1)
        group = self._cache.groups.get(uid)
        facts = self._observe(group) if group else None
        if facts is None:
            self._drop(uid)
            if group:
                self._charge_leftover(group)
            return None
        state = self.states.get(uid)
        gang = self._cache.gangs.store.get(facts.name, facts.namespace)
        owned = gang is not None and _owner_uid(gang) == uid
        if state is None:
            state = State(uid=uid, facts=facts, standing=_stand(facts, None, None, None, now))
            self.states[uid] = state
        state.facts = facts
        state.record = gang if owned else None
        state.stale = None if owned else gang
        self._restand(state, now)
        self._pay(state.charge, -1)
        state.charge = (facts.queue, charged(facts))
        self._pay(state.charge, 1)
        holder = self.states.get(self._uids.get(facts.key, ""))
        if holder is None or holder.facts.outcome or holder.facts.created <= facts.created:
            # An older owner of the name may be gone already without having been looked at since.
            self._uids[facts.key] = uid
        self._file(state, now)
        return state

    def _file(self, state: State, now: float) -> None:
        """Puts the state where it will be looked for."""
        if state.quiet:
            self._busy.pop(state.uid, None)
        else:
            self._busy[state.uid] = state
            state.claims = tuple(self._claims(state, now))
            state.asks = self._waiting(state, now)
        if state.recheck_at:
            self._timed[state.uid] = state
        else:
            self._timed.pop(state.uid, None)

    def recount(self) -> bool:
        """Sums all charges anew; False, with the books put right, if they had gone wrong (a mistake of ours)."""
        carried, self._used = self._used, {}
        for state in self.states.values():
            self._pay(state.charge, 1)
        for left in self._leftover.values():
            self._pay(left, 1)
        return _without_zeros(carried) == _without_zeros(self._used)

    def counts(self) -> dict[str, tuple[int, int]]:
        """By queue: how many gangs wait, and how many hold quota."""
        waiting: Counter[str] = Counter()
        holding: Counter[str] = Counter()
        for state in self.states.values():
            if state.phase is not Phase.FINISHED:
                (waiting if state.phase in WAITS else holding)[state.facts.queue] += 1
        return {queue: (waiting[queue], holding[queue]) for queue in waiting | holding}

    def due(self, now: float) -> Iterator[str]:
        """Owners whose standing changes by the clock alone, by now."""
        for uid, state in self._timed.items():
            if state.recheck_at <= now:
                yield uid

    def next_due(self, now: float) -> float:
        """Epoch seconds of the next change by the clock; infinity if none is known."""
        return min((s.recheck_at for s in self._timed.values() if s.recheck_at > now), default=float("inf"))

    def world(self, now: float) -> World:
        """What the engine decides on, at this instant."""
        used = {queue: dict(amounts) for queue, amounts in self._used.items()}
        claims: list[Claim] = []
        waiting: list[Waiting] = []
        for state in self._busy.values():
            if state.flight:
                flying = [pod for pod in state.facts.gated if pod.uid in state.flight.pods]
                _charge(used, state.facts.queue, amounts_of(batches(flying)))
                claims += self._claims(state, now)
                continue
            claims += state.claims
            if state.asks is not None:
                barred = self._not_admitted(state.facts)
                waiting.append(msgspec.structs.replace(state.asks, obstacle=barred) if barred else state.asks)
        return World(
            cluster=self._cache.cluster,
            queues={queue.metadata.name: queue.spec for queue in self._cache.queues.store},
            used=used,
            claims=tuple(claims),
            waiting=tuple(waiting),
            pending=_by_shape(self._cache.others.values()),
        )

    def _observe(self, group: Group) -> Facts | None:
        if group.job is not None:
            if not opted_in(group.job):
                return None
            try:
                template = group.template(self._cache.classes.store)
            except QuantityError:  # the API server refuses such a template; one that we can't read isn't decided on
                return None
            return observe_job(group.job, group.pods.values(), template)
        labelled = [pod for pod in group.pods.values() if pod.queue]
        if group.kind == "Job" or not labelled:
            return None
        return observe_owner(group.kind, group.name, group.uid, labelled)

    def _charge_leftover(self, group: Group) -> None:
        """Pods of a Job that is gone: charged until they are gone too, but no gang any more."""
        pods = [pod for pod in group.pods.values() if pod.queue and not pod.gated and not pod.ended]
        if pods:
            left = self._leftover[group.uid] = (pods[0].queue, amounts_of(batches(pods)))
            self._pay(left, 1)

    def _drop(self, uid: str) -> None:
        state = self.states.pop(uid, None)
        if state is None:
            return
        self._busy.pop(uid, None)
        self._timed.pop(uid, None)
        self._pay(state.charge, -1)
        if self._uids.get(state.key) == uid:
            del self._uids[state.key]

    def _pay(self, charge: tuple[str, Amounts] | None, sign: int) -> None:
        if charge and charge[1]:
            _charge(self._used, charge[0], charge[1], sign)

    def _restand(self, state: State, now: float) -> None:
        facts = state.facts
        if state.record is not None and isinstance(state.record.status.admission, Admission):
            state.unrecorded = None
        held, most = state.admission, facts.parallelism
        if held is not None and most is not None and most < held.slots:
            state.cut = msgspec.structs.replace(held, slots=max(most, 1))  # what it gives up now others may have
        admission = (state.flight and state.flight.admission) or state.admission
        state.standing = _stand(facts, admission, state.lost_at, _pause(state, now), now)
        if state.standing.do is Do.ADOPT and not state.flight:
            slots = max(facts.minimum, facts.past)
            state.unrecorded = Admission(id=f"found-{facts.owner_uid}", at=rfc3339(now), slots=slots)
            state.standing = _stand(facts, state.admission, state.lost_at, None, now)
        self._mark_loss(state, now)
        times = (state.standing.deadline, _not_before(state), state.retry_at)
        state.recheck_at = min((each for each in times if each > now), default=0.0)

    def _mark_loss(self, state: State, now: float) -> None:
        """Since when a gang that had its minimum hasn't; a restart reads it from the Gang's last transition."""
        if state.standing.phase not in (Phase.RUNNING, Phase.RELEASING):
            state.whole, state.lost_at = False, None
        elif len(state.facts.bound) >= state.facts.minimum:
            state.whole, state.lost_at = True, None
        elif state.lost_at is None and (state.whole or _was_running(state.record)):
            state.lost_at = now if state.whole else _left_running(state.record) or now
            state.standing = _stand(state.facts, state.admission, state.lost_at, None, now)

    def _claims(self, state: State, now: float) -> Iterator[Claim]:
        """The admitted pods without a node, by how far each has come."""
        facts, flight, admission = state.facts, state.flight, state.admission
        if facts.outcome:
            return
        flying = [pod for pod in facts.gated if flight and pod.uid in flight.pods]
        unbound = [pod for pod in facts.pending if not pod.nominated or pod.foreign_gates]
        unplaced = [pod for pod in flying if not self._cache.reserved(pod)]
        yield from _claim(state, ClaimKind.BIND, batches([*unbound, *unplaced]))
        admission = (flight and flight.admission) or admission
        if admission is None:
            return
        grant = grant_of(admission)
        assert grant is not None
        # Slots that the flight doesn't fill stay the gang's own while it is under way.
        need = wanted_slots(facts, grant) - facts.past - len(flying)
        here = [pod for pod in facts.gated if not (flight and pod.uid in flight.pods)][: max(0, need)]
        if admission.gathering:
            made = _some(facts.template, need - len(here)) if facts.template else ()
            if made or flight or facts.suspended_by or now < state.retry_at:
                yield from _claim(state, ClaimKind.HOLD, (*batches(here), *made))
            else:
                yield from _claim(state, ClaimKind.GATHER, batches(here))
            return
        if facts.suspended_by or state.standing.do is Do.PARK:
            return
        # A pod that leaves is charged until it is gone, and so is its slot: held twice, it would break the ceiling.
        paid = sum(not pod.gated for pod in facts.leaving)
        free = max(0, need - paid)
        may_go = flight is None and now >= state.retry_at
        kind = ClaimKind.FOLLOW if may_go else ClaimKind.HOLD
        yield from _claim(state, kind, batches(here[:free]))
        if may_go:
            yield from _claim(state, ClaimKind.REPLACE, batches(here[free:]))
        if facts.template:
            yield from _claim(state, ClaimKind.HOLD, _some(facts.template, free - len(here)))

    def _waiting(self, state: State, now: float) -> Waiting | None:
        """The gang as one that asks to start, or the pods that would join it; None if it doesn't ask."""
        facts = state.facts
        if now < state.retry_at:
            return None
        if state.standing.do is Do.DECIDE:
            if facts.suspended_by:
                assert facts.template is not None
                minimum = _some(facts.template, facts.minimum)
                extra = _some(facts.template, facts.wanted - facts.minimum)
            else:
                minimum = batches(facts.gated[: facts.minimum])
                extra = batches(facts.gated[facts.minimum : facts.wanted])
        elif state.admission and not state.admission.gathering and state.phase in (Phase.RELEASING, Phase.RUNNING):
            joining = facts.gated[max(0, state.admission.slots - facts.past) :]
            minimum, extra = (), batches(joining[: max(0, facts.wanted - state.admission.slots)])
        else:
            return None
        if not minimum and not extra:
            return None
        return Waiting(
            gang=facts.key,
            queue=facts.queue,
            namespace=facts.namespace,
            priority=facts.priority,
            since=state.since,
            minimum=minimum,
            extra=extra,
        )

    def _not_admitted(self, facts: Facts) -> Reason | None:
        """What the webhook checks at creation, and the queue may have changed since, or a pod have come another way."""
        queue = self._cache.queue(facts.queue)
        if queue is None:
            return None
        highest = queue.spec.max_priority
        if isinstance(highest, int) and facts.priority > highest:
            return reason(Code.PRIORITY_NOT_ADMITTED, priority=facts.priority, queue=facts.queue, highest=highest)
        if not (selector := queue.spec.namespaces):
            return None
        namespace = self._cache.namespaces.store.get(facts.namespace)
        if namespace is not None and selector.matches(namespace.metadata.labels):
            return None
        return reason(Code.NAMESPACE_NOT_ADMITTED, queue=facts.queue, namespace=facts.namespace)


def _claim(state: State, kind: ClaimKind, what: tuple[Batch, ...]) -> Iterator[Claim]:
    if what:
        facts = state.facts
        yield Claim(
            gang=facts.key,
            queue=facts.queue,
            kind=kind,
            batches=what,
            priority=facts.priority,
            since=state.since,
        )


def _stand(
    facts: Facts, admission: Admission | None, lost_at: float | None, pause: Reason | None, now: float
) -> Standing:
    return standing(facts, grant_of(admission), lost_at=lost_at, back_off=pause, now=now)


def _not_before(state: State) -> float:
    return moment(state.record.status.not_before) if state.record else 0.0


def _pause(state: State, now: float) -> Reason | None:
    """Set while a gang that was taken back isn't to be tried again."""
    until = _not_before(state)
    if state.record is None or now >= until:
        return None
    return backing_off(state.record.status.taken_back, until)


def backing_off(times: int, until: float) -> Reason:
    """Why a gang that has been taken back so many times waits until then (epoch seconds)."""
    return reason(Code.BACKING_OFF, times=times, last="not all of its pods were bound in time", until=rfc3339(until))


def _owner_uid(gang: Gang) -> str:
    owner = gang.metadata.controller
    return owner.uid if owner else ""


def _was_running(record: Gang | None) -> bool:
    return record is not None and (record.status.phase is Phase.RUNNING or _left_running(record) is not None)


def _left_running(record: Gang | None) -> float | None:
    """When the Gang went from Running to Releasing, if that was its last change of phase."""
    steps = record.status.transitions[-2:] if record else []
    if len(steps) == 2 and steps[0].phase is Phase.RUNNING and steps[1].phase is Phase.RELEASING:
        return moment(steps[1].at) or None
    return None


def _some(shape: Shape, count: int) -> tuple[Batch, ...]:
    return (Batch(shape, count),) if count > 0 else ()


def _by_shape(pods: Iterable[Pod]) -> tuple[Batch, ...]:
    counts = Counter(pod.shape for pod in pods)
    return tuple(Batch(shape, count) for shape, count in sorted(counts.items(), key=lambda item: item[0].request))


def _charge(used: dict[str, dict[str, int]], queue: str, amounts: Mapping[str, int], sign: int = 1) -> None:
    books = used.setdefault(queue, {})
    for resource, amount in amounts.items():
        books[resource] = books.get(resource, 0) + sign * amount


def _without_zeros(used: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    shown = {queue: {name: amount for name, amount in books.items() if amount} for queue, books in used.items()}
    return {queue: books for queue, books in shown.items() if books}
