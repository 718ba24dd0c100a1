"""From what exists to what the engine decides on: the states of all gangs, and the World made of them.

`refresh` re-reads one owner's group; `world` puts the states together. What always holds: a pod is in exactly one
place of the World (on a node, in a claim, or in a waiting gang); work under way counts as done, so that no second
decision can spend the same room; and a queue's use is the sum of its gangs' charges, which `recount` makes anew now and
then, so that nothing is only ever counted up and down.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from controller.cache import Cache, Group
from controller.state import State, grant_of, moment
from startgate.engine import roster
from startgate.engine.explain import HOPELESS
from startgate.engine.lifecycle import Do, Standing, backing_off, standing
from startgate.engine.observe import Facts, amounts_of, batches, charged, observe_job, observe_owner, opted_in
from startgate.engine.roster import Member
from startgate.engine.world import PATIENCE, Claim, Evict, Holder, Waiting, World
from startgate.model import names
from startgate.model.gang import Admission, Gang, Phase
from startgate.model.objects import rfc3339
from startgate.model.quantity import QuantityError
from startgate.model.reasons import Reason
from startgate.model.resources import Amounts

WAITS: Final = frozenset({Phase.WAITING, Phase.PARKED})

FOUND: Final = "found-"
"""Begins the id of an admission that nobody decided: its pods were found past the gate."""


class Counts(NamedTuple):
    """What stands in a Queue's status."""

    waiting: int = 0
    """Gangs that wait."""
    waiting_pods: int = 0
    """Their pods (`at_the_gate`)."""
    holding: int = 0
    """Gangs that hold quota."""


class Gangs:
    """The states, by the uid of the owner."""

    def __init__(self, cache: Cache, *, patience: float = PATIENCE) -> None:
        """`patience`: seconds after which a gang that can't start yet is protected from those behind it."""
        self._cache = cache
        self._patience = patience
        self.states: dict[str, State] = {}
        self._leftover: dict[str, tuple[str, Amounts]] = {}
        """By owner uid: queue and charge of pods whose owner isn't a gang any more (an older Job's, terminating)."""
        self._holders: dict[str, Holder] = {}
        """By owner uid: who holds something, those of `_leftover` too. What is under way comes on top."""
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

    def can_take(self, evict: Evict) -> bool:
        """Whether what the plan says of this victim can still be begun: nothing else has been with it."""
        state = self.states.get(self._uids.get(evict.gang, ""))
        if state is None or state.flight or state.holds is None:
            return False
        return len(state.holds.surplus) >= evict.pods if evict.pods else state.holds.takeable

    def refresh(self, uid: str, now: float) -> State | None:
        """Looks at one owner anew; None if it has no gang (any more)."""
        self._pay(self._leftover.pop(uid, None), -1)
        self._holders.pop(uid, None)
        group = self._cache.groups.get(uid)
        facts = self._observe(group) if group else None
        if facts is None:
            self._drop(uid)
            if group:
                self._charge_leftover(group)
                self._disown(group)
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
        self.restand(state, now)
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
        member = self._member(state, now)
        if state.quiet:
            self._busy.pop(state.uid, None)
            state.claims, state.asks = (), None
        else:
            self._busy[state.uid] = state
            state.claims = roster.claims(member)
            state.asks = roster.waiting(member)
        state.holds = roster.holder(member, state.claims)
        if state.holds:
            self._holders[state.uid] = state.holds
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

    def counts(self) -> dict[str, Counts]:
        """By queue."""
        waiting: Counter[str] = Counter()
        pods: Counter[str] = Counter()
        holding: Counter[str] = Counter()
        for state in self.states.values():
            queue = state.facts.queue
            if state.phase in WAITS:
                waiting[queue] += 1
                pods[queue] += at_the_gate(state.facts)
            elif state.phase is not Phase.FINISHED:
                holding[queue] += 1
        return {queue: Counts(waiting[queue], pods[queue], holding[queue]) for queue in waiting | holding}

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
        holders = dict(self._holders)
        for state in self._busy.values():
            flight = state.flight
            if flight:
                flying = [pod for pod in state.facts.gated if pod.uid in flight.pods]
                _charge(used, state.facts.queue, amounts_of(batches(flying)))
                member = self._member(state, now)
                claimed = roster.claims(member)
                claims += claimed
                holders.pop(state.uid, None)
                if held := roster.holder(member, claimed):
                    holders[state.uid] = held
            else:
                claims += state.claims
        waiting = [
            self._asking(state, holders)
            for state in self._busy.values()
            if state.asks is not None and (state.flight is None or state.flight.pledge)
        ]
        return World(
            cluster=self._cache.cluster,
            queues={queue.metadata.name: queue.spec for queue in self._cache.queues.store},
            used=used,
            claims=tuple(claims),
            waiting=tuple(waiting),
            holders=tuple(holders.values()),
            patience=self._patience,
            pending=roster.by_shape(self._cache.others.values()),
        )

    def _asking(self, state: State, holders: Mapping[str, Holder]) -> Waiting:
        """With what stands in its way, and with those that make room for it."""
        asks, barred = state.asks, self._not_admitted(state.facts)
        assert asks is not None
        self._follow_victims(state, holders)
        if barred or state.victims:
            places = tuple(state.pledge.nodes.items()) if state.pledge and state.victims else ()
            return msgspec.structs.replace(asks, obstacle=barred, victims=state.victims, places=places)
        return asks

    def _follow_victims(self, state: State, holders: Mapping[str, Holder]) -> None:
        """Who makes room for it still, by what its Gang says (roster.victims_left)."""
        pledge = state.pledge
        if pledge is None:
            state.victims, state.victims_of, state.makes_room = (), "", False
            return
        if state.victims_of != pledge.id:
            state.victims, state.victims_of = tuple(pledge.victims), pledge.id
        state.victims, state.makes_room = roster.victims_left(
            state.victims, lambda victim: holders.get(self._uids.get(victim, ""))
        )

    def _observe(self, group: Group) -> Facts | None:
        if group.job is not None:
            if not opted_in(group.job):
                return None
            try:
                template, preempts = group.template(self._cache.classes.store)
            except QuantityError:  # the API server refuses such a template; one that we can't read isn't decided on
                return None
            return observe_job(group.job, group.pods.values(), template, preempts=preempts)
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
            holder = roster.left_behind(group.uid, pods)
            if holder:
                self._holders[group.uid] = holder

    def _disown(self, group: Group) -> None:
        """The Job lives on and isn't ours any more: its label was taken off. What its Gang says is of nothing."""
        if group.job is None or opted_in(group.job):
            return
        gang = self._cache.gangs.store.get(names.gang_of_job(group.name), group.namespace)
        if gang is not None and _owner_uid(gang) == group.uid:
            self._cache.ownerless[gang.metadata.uid] = gang

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

    def restand(self, state: State, now: float) -> None:
        """Where it stands by what is known of it now."""
        facts = state.facts
        if state.record is not None and isinstance(state.record.status.admission, Admission):
            state.unrecorded = None
        if state.unrecorded and state.unrecorded.id.startswith(FOUND) and not facts.past and not state.flight:
            # A user has suspended its Job and resumed it: what was found was about to be deleted. Its new pods take
            # their turn anew.
            state.unrecorded = None
        held, most = state.admission, facts.parallelism
        if held is not None and most is not None and most < held.slots:
            state.cut = msgspec.structs.replace(held, slots=max(most, 1))  # what it gives up now others may have
        admission = (state.flight and state.flight.admission) or state.admission
        hopeless = state.verdict is not None and state.verdict.reason.code in HOPELESS
        state.standing = _stand(facts, admission, state.lost_at, _pause(state, now), now, hopeless=hopeless)
        if state.standing.do is Do.ADOPT and not state.flight:
            slots = max(facts.minimum, facts.past)
            found = roster.found_in(facts, self._cache.cluster)
            state.unrecorded = Admission(
                id=f"{FOUND}{facts.owner_uid}", at=rfc3339(now), slots=slots, node_selector=found
            )
            state.standing = _stand(facts, state.admission, state.lost_at, None, now)
        self._mark_loss(state, now)
        if state.refused and now >= state.retry_at and state.standing.do is Do.NOTHING and not facts.gated:
            state.refused = None  # what it was refused was to give way: nothing more is to be done
        times = (state.standing.deadline, _not_before(state), state.retry_at, state.spared_until)
        state.recheck_at = min((each for each in times if each > now), default=0.0)

    def _mark_loss(self, state: State, now: float) -> None:
        """Since when a gang that had its minimum hasn't; a restart reads it from the Gang's last transition."""
        if state.standing.phase not in (Phase.RUNNING, Phase.RELEASING):
            state.whole, state.lost_at = False, None
        elif len(state.facts.bound) >= _whole(state):
            state.whole, state.lost_at = True, None
        elif state.lost_at is None and (state.whole or _was_running(state.record)):
            state.lost_at = now if state.whole else _left_running(state.record) or now
            state.standing = _stand(state.facts, state.admission, state.lost_at, None, now)

    def _member(self, state: State, now: float) -> Member:
        """The gang as the engine is told of it."""
        flight = state.flight
        flying = flight.pods if flight else {}
        return Member(
            facts=state.facts,
            standing=state.standing,
            grant=grant_of((flight and flight.admission) or state.admission),
            since=state.since,
            flying={pod.uid: self._cache.reserved_on(pod) for pod in flying.values()},
            under_way=flight is not None and flight.pledge is None,
            leaves=flight is not None and flight.leaves,
            going=flight.going if flight else frozenset(),
            rests=now < state.retry_at,
            spared=now < state.spared_until,
            victims=state.victims,
            near=roster.near(state.facts, self._cache.cluster),
        )

    def _not_admitted(self, facts: Facts) -> Reason | None:
        queue = self._cache.queue(facts.queue)
        namespace = self._cache.namespaces.store.get(facts.namespace)
        labels = namespace.metadata.labels if namespace else None
        return roster.not_admitted(facts, queue.spec if queue else None, labels)


def at_the_gate(facts: Facts) -> int:
    """How many pods of a gang that waits stand at the gate, or would if it weren't parked. A Job that its user keeps
    from making any has none to be kept away."""
    kept = facts.suspended_by == "user" or (facts.suspended_by and facts.hold)
    return 0 if kept else max(facts.wanted, len(facts.gated))


def _stand(
    facts: Facts,
    admission: Admission | None,
    lost_at: float | None,
    pause: Reason | None,
    now: float,
    *,
    hopeless: bool = False,
) -> Standing:
    return standing(facts, grant_of(admission), lost_at=lost_at, back_off=pause, now=now, hopeless=hopeless)


def _whole(state: State) -> int:
    """How many bound pods make it whole. Scaled up since, it may want more than it was admitted for: it lacks nothing
    for that."""
    least = state.facts.minimum
    return least if state.admission is None else min(least, state.admission.slots)


def _not_before(state: State) -> float:
    return moment(state.record.status.not_before) if state.record else 0.0


def _pause(state: State, now: float) -> Reason | None:
    """Set while a gang that was taken back isn't to be tried again."""
    until = _not_before(state)
    if state.record is None or now >= until:
        return None
    return backing_off(state.facts, state.record.status.taken_back, until)


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


def _charge(used: dict[str, dict[str, int]], queue: str, amounts: Mapping[str, int], sign: int = 1) -> None:
    books = used.setdefault(queue, {})
    for resource, amount in amounts.items():
        books[resource] = books.get(resource, 0) + sign * amount


def _without_zeros(used: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    shown = {queue: {name: amount for name, amount in books.items() if amount} for queue, books in used.items()}
    return {queue: books for queue, books in shown.items() if books}
