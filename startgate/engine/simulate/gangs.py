"""Gangs of a simulation: facts, standing, admission, as the controller has them; and the World made of them.

The controller's `gangs` and `state`, without what is only there because writes take time. What always holds: what
decides is in engine.observe, engine.lifecycle and engine.roster alone; a queue's use is the sum of its gangs' charges.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from startgate.engine import roster
from startgate.engine.explain import HOPELESS
from startgate.engine.lifecycle import RAN_WELL, Do, Grant, Standing, back_off, backing_off, standing, told
from startgate.engine.observe import (
    COMPLETED,
    Facts,
    amounts_of,
    batches,
    charged,
    observe_job,
    observe_owner,
    opted_in,
    template_preempts,
)
from startgate.engine.roster import Member
from startgate.engine.simulate.manifests import MICRO
from startgate.engine.simulate.owners import Group
from startgate.engine.simulate.stage import Stage
from startgate.engine.world import Claim, Evict, Holder, Stay, Waiting, World
from startgate.model.gang import Admission, Gang, Phase, Pledge
from startgate.model.objects import timestamp
from startgate.model.reasons import Code, Reason
from startgate.model.resources import Amounts

MOST_TAKE_BACKS: Final = 20
"""After so many a gang will be taken back for ever: by then it is tried every ten minutes or so."""


class State(msgspec.Struct, kw_only=True):
    """One gang."""

    uid: str
    facts: Facts
    standing: Standing
    came: float
    """Epoch seconds from which it waits, as the files have it."""
    since: float
    """The same as the engine is told, so that no two gangs of the files are of one age."""
    grant: Grant | None = None
    taken_back: int = 0
    not_before: float = 0.0
    runs_since: float | None = None
    """None while it doesn't."""
    whole: bool = False
    lost_at: float | None = None
    verdict: Stay | None = None
    claims: tuple[Claim, ...] = ()
    asks: Waiting | None = None
    holds: Holder | None = None
    victims: tuple[str, ...] = ()
    places: tuple[tuple[str, int], ...] = ()
    """Where it has room once these are gone (world.Waiting)."""
    makes_room: bool = False
    """Whether any of these is leaving still."""
    charge: tuple[str, Amounts] = ("", {})
    said: Code | None = None
    """The reason for waiting that was told last."""
    minimum: int = 0
    """How many start together, as long as it wanted any."""
    over: bool = False
    """Whether its end is known."""

    @property
    def key(self) -> str:
        """As the engine knows it."""
        return self.facts.key

    @property
    def name(self) -> str:
        """As the user knows it: a Job by its own name."""
        facts = self.facts
        return f"{facts.namespace}/{facts.owner_name}" if facts.owner_kind == "Job" else facts.key

    @property
    def minds_the_clock(self) -> bool:
        """Whether time alone may change something about it."""
        return (
            self.asks is not None
            or bool(self.standing.deadline)
            or self.standing.do is not Do.NOTHING
            or bool(self.not_before)
        )

    @property
    def reason(self) -> Reason | None:
        """Why it is where it is."""
        return told(self.facts, self.standing.reason, self.verdict.reason if self.verdict else None)

    @property
    def released(self) -> int:
        """How many of its pods are past the gate; of a gang that has completed, how many were."""
        if self.facts.outcome == COMPLETED:
            return self.grant.slots if self.grant else 0
        return self.facts.past


class Gangs:
    """All gangs, by the uid of the owner."""

    def __init__(self, stage: Stage, *, documents: int, patience: float) -> None:
        self._stage = stage
        self._documents = documents
        self._patience = patience
        self.states: dict[str, State] = {}
        self.lively: dict[str, State] = {}
        """Those that haven't ended, or hold something still."""
        self.worn_out: dict[str, None] = {}
        """Gangs that were taken back so often that nothing else will come of them."""
        self._leftover: dict[str, tuple[str, Amounts]] = {}
        self._left: dict[str, Holder] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._uids: dict[str, str] = {}

    def named(self, key: str) -> State:
        """The gang that the engine means by this key."""
        return self.states[self._uids[key]]

    def can_take(self, evict: Evict) -> bool:
        """Whether what the plan says of this victim is still so, after what was done by the same plan."""
        state = self.states.get(self._uids.get(evict.gang, ""))
        if state is None or state.holds is None:
            return False
        return len(state.holds.surplus) >= evict.pods if evict.pods else state.holds.takeable

    def refresh(self, uid: str) -> State | None:
        """Looks at one owner anew; None if it has no gang (any more)."""
        self._pay(self._leftover.pop(uid, None), -1)
        self._left.pop(uid, None)
        group = self._stage.jobs.groups.get(uid)
        facts = self._observe(group) if group else None
        if facts is None or group is None:
            self._drop(uid)
            if group:
                self._charge_leftover(group)
            return None
        state = self.states.get(uid)
        if state is None:
            state = self.states[uid] = self._meet(uid, group, facts)
        state.facts = facts
        if facts.wanted and not facts.outcome:
            state.minimum = facts.minimum
        self._restand(state)
        self._pay(state.charge, -1)
        state.charge = (facts.queue, charged(facts))
        self._pay(state.charge, 1)
        holder = self.states.get(self._uids.get(facts.key, ""))
        if holder is None or holder.facts.outcome or holder.facts.created <= facts.created:
            self._uids[facts.key] = uid
        self._file(state)
        return state

    def forget(self, state: State) -> None:
        """Its admission no longer holds; it waits again, with its age."""
        state.grant, state.whole, state.lost_at = None, False, None
        if state.facts.parked_as == Code.NOT_BOUND_IN_TIME:
            state.taken_back += 1
            state.not_before = self._stage.timeline.epoch + back_off(state.facts, state.taken_back)
            if state.taken_back >= MOST_TAKE_BACKS:
                self.worn_out[state.name] = None

    def world(self) -> World:
        """What the engine decides on."""
        holders = dict(self._left)
        claims: list[Claim] = []
        for state in self.lively.values():
            claims += state.claims
            if state.holds:
                holders[state.uid] = state.holds
        return World(
            cluster=self._stage.cluster,
            queues=self._stage.queues,
            used=self._used,
            claims=tuple(claims),
            waiting=tuple(self._asking(state, holders) for state in self.lively.values() if state.asks is not None),
            holders=tuple(holders.values()),
            patience=self._patience,
            pending=roster.by_shape(self._stage.others()),
        )

    def _asking(self, state: State, holders: Mapping[str, Holder]) -> Waiting:
        """With what stands in its way, and those of its victims that aren't gone yet."""
        asks = state.asks
        assert asks is not None
        stage, facts = self._stage, state.facts
        barred = roster.not_admitted(facts, stage.queues.get(facts.queue), stage.namespaces.get(facts.namespace))
        state.victims, state.makes_room = roster.victims_left(
            state.victims, lambda victim: holders.get(self._uids.get(victim, ""))
        )
        if barred or state.victims:
            return msgspec.structs.replace(asks, obstacle=barred, victims=state.victims, places=state.places)
        return asks

    def _meet(self, uid: str, group: Group, facts: Facts) -> State:
        """A gang that is seen for the first time, with what a Gang object of the input says of it."""
        stage = self._stage
        # Between gangs of one age the order of the files decides; of a dump the name does, as in the cluster.
        tie = 0.0 if group.stored else (self._documents - group.order) / MICRO
        state = State(
            uid=uid,
            facts=facts,
            standing=standing(facts, None, lost_at=None, back_off=None, now=stage.timeline.epoch),
            came=group.since,
            since=group.since - tie,
            minimum=facts.minimum,
            over=group.job is not None and group.job.was_over,
        )
        record = stage.gangs.get(facts.key)
        if record is not None and _owned(record, uid, facts):
            self._recall(state, record)
        return state

    def _recall(self, state: State, record: Gang) -> None:
        status = record.status
        state.came = _moment(status.since) or state.came
        state.since = _moment(status.since) or state.since
        state.taken_back, state.not_before = status.taken_back, _moment(status.not_before)
        if isinstance(status.admission, Admission):
            held = status.admission
            state.grant = Grant(
                slots=held.slots,
                at=_moment(held.at),
                gathering=held.gathering,
                node_selector=held.node_selector,
            )
        if isinstance(status.claim, Pledge) and record.spec.queue == state.facts.queue:
            state.victims, state.places = tuple(status.claim.victims), tuple(status.claim.nodes.items())
        state.whole = status.phase is Phase.RUNNING
        steps = status.transitions[-2:]
        if steps and steps[-1].phase is Phase.RUNNING:
            state.runs_since = _moment(steps[-1].at) or None
        if len(steps) == 2 and (steps[0].phase, steps[1].phase) == (Phase.RUNNING, Phase.RELEASING):
            state.lost_at = _moment(steps[1].at) or None

    def _observe(self, group: Group) -> Facts | None:
        pods = [actor.pod for actor in group.actors.values()]
        if group.job is not None:
            job = group.job.wire(self._stage.timeline.begin)
            if not opted_in(job):
                return None
            template = self._stage.jobs.template(group.job)
            return observe_job(job, pods, template, preempts=template_preempts(job, self._stage.classes))
        labelled = [pod for pod in pods if pod.queue]
        if group.kind == "Job" or not labelled:
            return None
        return observe_owner(group.kind, group.name, group.uid, labelled)

    def _restand(self, state: State) -> None:
        facts, now = state.facts, self._stage.timeline.epoch
        if state.grant and facts.parallelism is not None and facts.parallelism < state.grant.slots:
            state.grant = msgspec.structs.replace(state.grant, slots=max(facts.parallelism, 1))
        pause = backing_off(facts, state.taken_back, state.not_before) if now < state.not_before else None
        hopeless = state.verdict is not None and state.verdict.reason.code in HOPELESS
        state.standing = standing(facts, state.grant, lost_at=state.lost_at, back_off=pause, now=now, hopeless=hopeless)
        if state.standing.do is Do.ADOPT:
            found = roster.found_in(facts, self._stage.cluster)
            state.grant = Grant(slots=max(facts.minimum, facts.past), at=now, node_selector=found)
            state.standing = standing(facts, state.grant, lost_at=state.lost_at, back_off=None, now=now)
        self._mark_loss(state, now)
        self._mark_run(state, now)
        for moment in (state.standing.deadline, state.not_before):
            if moment > now:
                self._stage.timeline.look(moment, state.uid)

    def _mark_run(self, state: State, now: float) -> None:
        if state.standing.phase is Phase.RUNNING:
            state.runs_since = now if state.runs_since is None else state.runs_since
        elif state.runs_since is not None:
            if now - state.runs_since >= RAN_WELL:
                state.taken_back = 0
            state.runs_since = None

    def _mark_loss(self, state: State, now: float) -> None:
        if state.standing.phase not in (Phase.RUNNING, Phase.RELEASING):
            state.whole, state.lost_at = False, None
        elif len(state.facts.bound) >= state.facts.minimum:
            state.whole, state.lost_at = True, None
        elif state.lost_at is None and state.whole:
            state.lost_at = now
            state.standing = standing(state.facts, state.grant, lost_at=now, back_off=None, now=now)

    def _file(self, state: State) -> None:
        facts = state.facts
        member = Member(
            facts=facts,
            standing=state.standing,
            grant=state.grant,
            since=state.since,
            victims=state.victims,
            near=roster.near(facts, self._stage.cluster),
        )
        if facts.outcome:
            state.claims, state.asks = (), None
        else:
            state.claims = roster.claims(member)
            state.asks = roster.waiting(member)
        state.holds = roster.holder(member, state.claims)
        if facts.outcome and not state.holds:
            self.lively.pop(state.uid, None)
        else:
            self.lively[state.uid] = state
        if state.asks is not None:
            overdue = state.came + self._patience
            if overdue > self._stage.timeline.epoch:
                self._stage.timeline.look(overdue, state.uid)

    def _charge_leftover(self, group: Group) -> None:
        pods = [each.pod for each in group.actors.values()]
        pods = [pod for pod in pods if pod.queue and not pod.gated and not pod.ended]
        if pods:
            left = self._leftover[group.uid] = (pods[0].queue, amounts_of(batches(pods)))
            self._pay(left, 1)
            if holder := roster.left_behind(group.uid, pods):
                self._left[group.uid] = holder

    def _drop(self, uid: str) -> None:
        state = self.states.pop(uid, None)
        self.lively.pop(uid, None)
        if state is not None:
            self._pay(state.charge, -1)
            if self._uids.get(state.key) == uid:
                del self._uids[state.key]

    def _pay(self, charge: tuple[str, Amounts] | None, sign: int) -> None:
        if charge and charge[1]:
            books = self._used.setdefault(charge[0], {})
            for resource, amount in charge[1].items():
                books[resource] = books.get(resource, 0) + sign * amount


def _owned(record: Gang, uid: str, facts: Facts) -> bool:
    """Whether a Gang object is about this owner, and not an older one of its name."""
    owner = record.metadata.controller
    return owner is None or owner.uid == uid or (not owner.uid and owner.name == facts.owner_name)


def _moment(text: str) -> float:
    try:
        return timestamp(text)
    except ValueError:
        return 0.0
