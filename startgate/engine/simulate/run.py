"""Runs a simulation: from one moment to the next, and at each of them until nothing changes any more.

At a moment first happens what is due; then the Job controller, kube-scheduler and the gangs' lifecycles do what is
theirs; then the engine decides, as it does for the controller, and what it decides is carried out at once. What always
holds: pure and deterministic; nobody decides on half a moment; a simulation ends, and says so where it was cut short.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from startgate.engine.assign import assigned, chosen
from startgate.engine.cycle import decide
from startgate.engine.lifecycle import Do, Grant, taken_back_for, wanted_slots
from startgate.engine.roster import surplus_pods
from startgate.engine.simulate import admission, notes, report
from startgate.engine.simulate.documents import InputError
from startgate.engine.simulate.gangs import MOST_TAKE_BACKS, Gangs, State
from startgate.engine.simulate.manifests import Manifest, lives, newest
from startgate.engine.simulate.owners import LiveJob, Loss
from startgate.engine.simulate.report import Course, Event, GangEnd, Happened, Story, Taken, Told, clock, seconds
from startgate.engine.simulate.script import Script
from startgate.engine.simulate.stage import Stage
from startgate.engine.simulate.timeline import Timeline
from startgate.engine.world import PATIENCE, ClaimKind, Evict, Go, Plan, Rule
from startgate.model.gang import Phase
from startgate.model.reasons import Code, Reason, reason

MOST_EVENTS: Final = 1_000_000
"""Things that are done in one simulation; beyond that it is left off."""

MOST_ROUNDS: Final = 1000
"""Decisions at one moment, and two more for each gang."""

WAITS: Final = frozenset({Phase.WAITING, Phase.PARKED, Phase.GATHERING, Phase.RESERVED})


def simulate(manifests: Iterable[Manifest], *, until: int | None = None, patience: float = PATIENCE) -> Story:
    """The story of these objects. `until`: the last moment; without it, until nothing more can happen."""
    return Simulation(list(manifests), patience=patience).run(until)


class Simulation:
    """One run."""

    def __init__(self, manifests: list[Manifest], *, patience: float = PATIENCE) -> None:
        self.timeline = Timeline(newest(manifests))
        self.stage = Stage(self.timeline)
        self.gangs = Gangs(self.stage, documents=len(manifests), patience=patience)
        self.events: list[Event] = []
        self.plan: Plan | None = None
        self._courses: dict[str, Course] = {}
        self._taken: dict[int, Taken] = {}
        self._done = 0
        self._cut = ""
        self._gated: Counter[str] = Counter()
        """The most pods that stood at a queue's gate at the end of a moment."""
        script = Script(self.stage)
        for life in lives(manifests):
            script.enter(life)

    def run(self, until: int | None) -> Story:
        """All of it."""
        while not self._cut and (moment := self.timeline.next()) is not None:
            if until is not None and moment > until:
                break
            if until is None and self._nothing_new():
                break
            actions = self.timeline.due()
            for action in actions:
                action()
            self._done += len(actions)
            if self._changed():
                self._settle()
        if self.plan is None:
            self.plan = decide(self.gangs.world(), self.timeline.epoch)
        return self._story(until)

    def _nothing_new(self) -> bool:
        worn = list(self.gangs.worn_out)
        if not worn or self.timeline.sure:
            return False
        self._cut = f"{notes.some(worn)} had been taken back {MOST_TAKE_BACKS} times, and nothing else was to come"
        return True

    def _changed(self) -> bool:
        """Whether there is anything to decide about: the clock alone changes only those that are looked at."""
        due, self.timeline.due_owners = self.timeline.due_owners, {}
        states = self.gangs.states
        self.stage.dirty.update((uid, None) for uid in due if uid in states and states[uid].minds_the_clock)
        return self.stage.changed or bool(self.stage.dirty)

    # --- one moment ---------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Until nothing changes any more."""
        self._steady()
        for _ in range(MOST_ROUNDS + 2 * len(self.gangs.states)):
            plan = self.plan = decide(self.gangs.world(), self.timeline.epoch)
            self._done += 1
            self._note_verdicts(plan)
            evicted = self._carry_out(plan)
            followed = self._steady()
            # After whoever started the shares are others, so that others may have to give way.
            if not (plan.go or evicted or followed) or self._too_much():
                break
        else:
            self._cut = "the decisions of one moment came to no end, which is a mistake of ours"
        self._tell_waits()

    def _too_much(self) -> bool:
        if self._done + self.stage.made > MOST_EVENTS:
            self._cut = f"more than {MOST_EVENTS:,} things were done"
        return bool(self._cut)

    def _steady(self) -> bool:
        """Everything but the decision; whether anything was done, rather than looked at."""
        stage, acted = self.stage, False
        while True:
            ended = stage.jobs.settle()
            bound = stage.schedule()
            dirty, stage.dirty, stage.changed = stage.dirty, {}, False
            for uid in dirty:
                state = self.gangs.refresh(uid)
                if state is not None:
                    self._follow(state)
                    acted |= self._act(state)
            for job in ended:
                self._tell_end(job)
            acted |= bound or bool(ended)
            self._done += len(dirty)
            if not (dirty or bound or ended) or self._too_much():
                return acted

    def _follow(self, state: State) -> None:
        """Takes note of a gang that comes, unless it had ended before it came."""
        if not state.over and state.name not in self._courses:
            self._courses[state.name] = Course(queue=state.facts.queue, came=seconds(self.timeline.now))

    def _act(self, state: State) -> bool:
        """The one thing that the lifecycle asks for; whether there was one."""
        do = state.standing.do
        if do in (Do.NOTHING, Do.DECIDE, Do.ADOPT):
            return False
        if do is Do.FORGET:
            self.gangs.forget(state)
            self.stage.dirty[state.uid] = None
            return True
        job = self.stage.jobs.groups[state.uid].job
        assert job is not None
        match do:
            case Do.PARK:
                assert state.standing.park_as is not None
                self._park(state, job, state.standing.park_as)
            case Do.RESUME:
                self.stage.jobs.rewrite(job, admission.resumed(job.raw))
            case Do.PREPARE:
                self.stage.jobs.rewrite(job, admission.prepared(job.raw))
            case Do.UNMARK:
                self.stage.jobs.rewrite(job, admission.unmarked(job.raw))
        return True

    def _park(self, state: State, job: LiveJob, why: Code) -> None:
        message = ""
        if why is Code.NOT_BOUND_IN_TIME:
            stands, verdict = state.standing.reason, state.verdict
            assert stands is not None
            message = taken_back_for(state.facts, stands, verdict.reason if verdict else None)
            cause = f": {message}" if stands.code is Code.GATHERING else ""
            self._tell(state, Happened.TAKEN_BACK, _not_bound(state, self.timeline.epoch, cause), self._places(state))
        state.said = None
        self.stage.jobs.rewrite(job, admission.parked(job.raw, why, message))

    # --- carrying out -------------------------------------------------------------------------------------------

    def _note_verdicts(self, plan: Plan) -> None:
        # Of two answers to one gang the first counts: pods that have a slot come before those that would join.
        first = {stay.gang: stay for stay in reversed(plan.stay)}
        for gang, stay in first.items():
            state = self.gangs.named(gang)
            if state.verdict != stay and state.standing.phase is Phase.GATHERING:
                self.stage.dirty[state.uid] = None  # with pods that can never go it is taken back
            state.verdict = stay
            if not state.makes_room and stay.reason.code is not Code.MAKING_ROOM:
                state.victims = state.places = ()

    def _carry_out(self, plan: Plan) -> bool:
        """Does what was decided; whether anybody gave way."""
        for go in plan.go:
            state = self.gangs.named(go.gang)
            state.verdict = None
            self._go(state, go)
        evicted = False
        claims: dict[str, list[Evict]] = {}
        for evict in _each_alone(plan.evict):
            claims.setdefault(evict.claimant, []).append(evict)
        for claimant, evicts in claims.items():
            if all(self.gangs.can_take(evict) for evict in evicts):
                self._make_room(self.gangs.named(claimant), evicts)
                evicted = True
        return evicted

    def _go(self, state: State, go: Go) -> None:
        grant, now = state.grant, self.timeline.epoch
        if go.kind is None and state.facts.suspended_by:
            state.grant = Grant(slots=go.count, at=now, gathering=True, node_selector=go.node_selector)
            self._again(state)
            return
        if go.kind is ClaimKind.GATHER:
            assert grant is not None
            state.grant = Grant(slots=grant.slots, at=now, node_selector=go.node_selector)
        elif go.kind is None:
            joined = grant.slots if grant else 0
            at = grant.at if grant else now
            state.grant = Grant(slots=joined + go.count, at=at, node_selector=go.node_selector)
        state.victims = state.places = ()
        self._release(state, go)

    def _release(self, state: State, go: Go) -> None:
        pods = chosen(state.facts.gated, go)
        nodes = dict(assigned(pods, go))
        for pod in pods:
            actor = self.stage.actors[pod.uid]
            self.stage.lift(actor, go.node_selector)
            if not pod.foreign_gates:
                self.stage.bind(actor, nodes[pod.uid])
        self._again(state)
        state.said = None
        self._tell(state, Happened.RELEASED, state.reason, {pod.name: pod.node for pod in pods})

    def _make_room(self, claimant: State, evicts: list[Evict]) -> None:
        claimant.victims = tuple(dict.fromkeys([*claimant.victims, *(evict.gang for evict in evicts)]))
        claimant.places = evicts[0].places
        self.stage.dirty[claimant.uid] = None
        for evict in evicts:
            victim = self.gangs.named(evict.gang)
            victim.verdict = None
            event = Happened.PREEMPTED if evict.rule is Rule.PRIORITY else Happened.RECLAIMED
            if evict.pods:
                self._shed(victim, evict, event)
                continue
            self._tell(victim, event, evict.reason, self._places(victim), evict)
            victim.said = None
            job = self.stage.jobs.groups[victim.uid].job
            assert job is not None and isinstance(evict.reason.code, Code)
            self.stage.jobs.rewrite(job, admission.parked(job.raw, evict.reason.code, evict.reason.message))
            self._again(victim)

    def _shed(self, victim: State, evict: Evict, event: Happened) -> None:
        """Some pods beyond its minimum leave, and the slots with them."""
        pods = surplus_pods(victim.facts, evict.pods)
        self._tell(victim, event, evict.reason, {pod.name: pod.node for pod in pods}, evict)
        held = victim.grant
        assert held is not None
        slots = min(held.slots, max(held.slots, victim.facts.past) - evict.pods)
        victim.grant = msgspec.structs.replace(held, slots=max(slots, 1))
        for pod in pods:
            self.stage.delete(self.stage.actors[pod.uid], Loss.DISRUPTED)
        self._again(victim)

    def _again(self, state: State) -> None:
        """A look at what was just done to it, for those that come after it in the same plan."""
        self.gangs.refresh(state.uid)
        self.stage.dirty[state.uid] = None

    # --- telling ------------------------------------------------------------------------------------------------

    def _tell(
        self,
        state: State,
        event: Happened,
        why: Reason | None,
        pods: dict[str, str] | None = None,
        evict: Evict | None = None,
    ) -> None:
        if evict:
            claimant = self.gangs.named(evict.claimant).name
            self._taken[len(self.events)] = Taken(claimant=claimant, rule=evict.rule)
        self.events.append(
            Event(
                at=seconds(self.timeline.now),
                gang=state.name,
                event=event,
                reason=str(why.code) if why else "",
                message=why.message if why else "",
                pods=pods or {},
            )
        )

    def _places(self, state: State) -> dict[str, str]:
        return {pod.name: pod.node for pod in state.facts.bound}

    def _tell_end(self, job: LiveJob) -> None:
        state = self.gangs.refresh(job.group.uid)
        if state is not None and not state.over:
            state.over = True
            self._tell(state, Happened.FINISHED, state.reason)

    def _tell_waits(self) -> None:
        """Who waits at the end of a moment, the first time and when the reason is another one."""
        gated: Counter[str] = Counter()
        for state in self.gangs.lively.values():
            if state.standing.phase not in WAITS:
                continue
            gated[state.facts.queue] += len(state.facts.gated)
            why = state.reason
            if why is not None and why.code != state.said:
                state.said = why.code
                self._tell(state, Happened.WAITING, why)
        self._gated |= gated

    def _story(self, until: int | None) -> Story:
        assert self.plan is not None
        if len(self.stage.actors) > MOST_EVENTS:
            raise InputError(f"there are more than {MOST_EVENTS:,} pods")
        ends = ((state.name, _end(state)) for state in self.gangs.states.values())
        final = report.Final(gangs=report.by_name(ends), queues=report.in_order(self.plan.queues))
        said = [
            *self.stage.notes,
            *notes.unknown(list(self.stage.unknown_classes)),
            *notes.unsound(self.plan),
            *notes.deep(self.stage.queues, self._gated),
        ]
        if self._cut:
            said.append(f"Left off at {clock(seconds(self.timeline.now))}: {self._cut}.")
        return Story(
            told=Told(events=self.events, final=final),
            notes=tuple(said),
            ended=seconds(self.timeline.now if until is None or self._cut else until),
            gangs=self._courses,
            parents={name: queue.parent for name, queue in self.stage.queues.items() if name in self.plan.queues},
            taken=self._taken,
        )


def _each_alone(evicts: Iterable[Evict]) -> Iterator[Evict]:
    """With the pods that go for this claimant alone: those that go for one before it are gone when its turn comes."""
    told: dict[str, int] = {}
    for evict in evicts:
        before = told.get(evict.gang, 0)
        told[evict.gang] = evict.pods
        yield msgspec.structs.replace(evict, pods=evict.pods - before) if evict.pods else evict


def _not_bound(state: State, now: float, why: str) -> Reason:
    facts, grant = state.facts, state.grant
    assert grant is not None
    want, timeout = wanted_slots(facts, grant), clock(min(facts.start_timeout, now - grant.at))
    return reason(Code.NOT_BOUND_IN_TIME, bound=len(facts.bound), want=want, timeout=timeout, why=why)


def _end(state: State) -> GangEnd:
    why = state.reason
    return GangEnd(
        phase=str(state.standing.phase),
        reason=str(why.code) if why else "",
        message=why.message if why else "",
        released=state.released,
        min_available=state.minimum,
    )
