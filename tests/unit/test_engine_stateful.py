"""The promises of the design, after every step of a cluster's life: random queues, nodes, arrivals, endings, failures.

Each decision is judged with plain arithmetic (tests.unit.reference, sums over lists), never with the engine's, and then
carried out on `engine_model.Model`, whose next state is what the next decision sees.
"""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from startgate.engine.cycle import decide
from startgate.engine.world import Batch, ClaimKind, Evict, Plan, Rule, Stay
from startgate.model import objects
from startgate.model.pods import Shape
from startgate.model.queue import QueueSpec
from startgate.model.reasons import Code, Reason
from startgate.model.resources import Amounts, add, scale
from tests.unit.engine_model import Gang, Model, asks_of, batches_of, counted, pods_of, summed
from tests.unit.reference import Fairness, Formulas, Place
from tests.unit.worlds import GPU, node

UNHURRIED = settings(deadline=None)  # the machine may be busy with other things
NAMES = ["a", "b", "c", "d"]
QUOTA = frozenset({Code.QUEUE_CAPABILITY, Code.PARENT_CAPABILITY, Code.GUARANTEE_KEPT, Code.CLUSTER_IN_USE})
NODES = frozenset({Code.NO_ROOM, Code.FRAGMENTED, Code.NO_NODE_MATCHES, Code.NEVER_FITS})


def _shape(cpu: int, gpu: int = 0, **demands: Any) -> Shape:
    asks = {"cpu": cpu, GPU: gpu, "pods": 1}
    return Shape(request=tuple(sorted((each, count) for each, count in asks.items() if count)), **demands)


ONE = _shape(1)
SHAPES = [ONE, ONE, _shape(2), _shape(3), _shape(1, gpu=1), _shape(1, node_selector=(("zone", "a"),))]


def _written(counts: Amounts) -> dict[str, str | int]:
    return {each: f"{count}m" if each == "cpu" else count for each, count in counts.items()}


def _counts(least: int, *, often: int) -> st.SearchStrategy[dict[str, str | int]]:
    """Amounts of cpu, of GPUs, of both; or, as `often` times as each of these, of nothing."""
    counts = st.integers(least, 8)
    cpu, gpu = st.fixed_dictionaries({"cpu": counts}), st.fixed_dictionaries({GPU: counts})
    both = st.fixed_dictionaries({"cpu": counts, GPU: counts})
    nothing: st.SearchStrategy[dict[str, int]] = st.just({})
    return st.one_of(*[nothing] * often, cpu, gpu, both).map(_written)


@st.composite
def specs(draw: st.DrawFn, name: str) -> QueueSpec:
    """A queue whose parent, if any, comes before it in the alphabet."""
    return QueueSpec(
        parent=draw(st.sampled_from(["", *NAMES[: NAMES.index(name)]])),
        weight=draw(st.integers(1, 3)),
        capability=draw(_counts(1, often=6)),
        guarantee=draw(_counts(0, often=6)),
        deserved=draw(_counts(0, often=2)),
        reclaimable=draw(st.integers(0, 5)) < 5,
        stopped=draw(st.integers(0, 19)) == 19,
    )


@st.composite
def nodes(draw: st.DrawFn, name: str) -> objects.Node:
    return node(
        name,
        cpu=f"{draw(st.sampled_from([8, 4, 2, 12, 6]))}m",
        gpu=str(draw(st.sampled_from([4, 0, 1]))),
        pods=str(draw(st.sampled_from([20, 20, 3]))),
        labels={"zone": draw(st.sampled_from("aab"))},
        cordoned=draw(st.integers(0, 19)) == 19,
    )


class Judge:
    """One decision on one state of the model, held against the promises."""

    def __init__(self, model: Model, plan: Plan) -> None:
        self.model, self.plan = model, plan
        self.gangs = model.gangs
        self.asking = {asks.gang: asks for gang in model.gangs.values() if (asks := gang.asks()) is not None}
        self.stays = {stay.gang: stay for stay in plan.stay}

    def books(self) -> Formulas:
        """What was admitted before this decision."""
        plain = Formulas(self.model.queues, self.model.total())
        for name, asks in self.model.used().items():
            plain.take(name, asks)
        for gang in self.gangs.values():
            for claim in gang.claims():
                if claim.kind not in (ClaimKind.BIND, ClaimKind.REPLACE):
                    plain.take(gang.queue, summed(claim.batches))
        return plain

    def all_or_none(self) -> None:
        claims = {(claim.gang, claim.kind): claim for gang in self.gangs.values() for claim in gang.claims()}
        for go in self.plan.go:
            pods = pods_of(go)
            assert go.count == pods.total() > 0
            if go.kind is None:
                asks = self.asking[go.gang]
                assert counted(asks.minimum) <= pods <= counted((*asks.minimum, *asks.extra))
            elif go.kind is ClaimKind.GATHER:
                assert pods == counted(claims[go.gang, go.kind].batches)
            else:
                assert pods <= counted(claims[go.gang, go.kind].batches)

    def everybody_is_answered_once(self) -> None:
        went = Counter(go.gang for go in self.plan.go if go.kind is None)
        stays = Counter(stay.gang for stay in self.plan.stay)
        for key in self.asking:
            assert went[key] + min(stays[key], 1) >= 1
            assert went[key] <= 1
        waiting = [key for key in self.asking if not self.gangs[key].started]
        assert all(went[key] + stays[key] == 1 for key in waiting)
        assert set(stays) <= set(self.gangs)

    def no_ceiling_is_broken(self) -> None:
        plain = self.books()
        for go in self.plan.go:
            if go.kind in (None, ClaimKind.REPLACE):
                asks = summed(batches_of(pods_of(go)))
                assert plain.within(self.gangs[go.gang].queue, asks)
                plain.take(self.gangs[go.gang].queue, asks)
        self.after = plain

    def no_floor_is_taken(self) -> None:
        """Who asks within its guarantee, or within all that the formulas leave, isn't refused for quota."""
        for key, stay in self.stays.items():
            gang = self.gangs[key]
            if not gang.started and stay.reason.code in QUOTA:
                asks = summed(gang.minimum)
                assert not self.after.within(gang.queue, asks), stay.reason.message
                assert not all(
                    self.after.own[gang.queue].get(each, 0)
                    + sum(self.after.charge(child, each) for child in self.after.children(gang.queue))
                    + count
                    <= self.after.floor(gang.queue, each)
                    for each, count in asks.items()
                )

    def no_node_gives_more_than_it_has(self) -> None:
        left = {name: self.model.free(name) for name in self.model.nodes}
        for go in self.plan.go:
            for placement in go.placements:
                for name, count in placement.nodes:
                    assert count > 0
                    assert self.model.takes(name, placement.shape)
                    for resource, each in placement.shape.amounts.items():
                        left[name][resource] = left[name].get(resource, 0) - each * count
                        assert left[name][resource] >= 0

    def evictions_are_just(self) -> None:
        """In the order of the plan, each by the rule that it names, whoever else goes or gives way."""
        going = {name: asks_of(pod for gang in self._of(name) for pod in gang.leaving) for name in NAMES}
        asks = {
            name: add(*(summed((*self.asking[gang.key].minimum, *self.asking[gang.key].extra)) for gang in gangs))
            for name in NAMES
            if not self._stopped(name) and (gangs := [gang for gang in self._of(name) if gang.key in self.asking])
        }
        lines = Fairness(self.books(), going, asks)
        came = [(self.gangs[go.gang].queue, batches_of(pods_of(go))) for go in self.plan.go if go.kind is None]
        went = {go.gang for go in self.plan.go}
        claimants: list[str] = []
        gone: dict[str, set[str]] = {}
        for evict, following in zip_longest(self.plan.evict, self.plan.evict[1:]):
            victim, claimant = self.gangs[evict.gang], self.gangs[evict.claimant]
            assert victim.takeable and victim.started and not victim.gathering
            assert not claimant.started and evict.claimant in self.stays
            assert not {evict.gang, evict.claimant} & went
            if evict.rule is Rule.PRIORITY:
                assert victim.queue == claimant.queue
                assert victim.priority < claimant.priority
                assert claimant.preempts
            else:
                self._is_reclaimed_by_right(evict, lines, came)
            pods = victim.surplus()[: evict.pods] if evict.pods else victim.there
            assert not evict.pods or len(pods) == evict.pods
            leave = [pod for pod in pods if pod.uid not in gone.setdefault(evict.gang, set())]
            assert leave
            gone[evict.gang] |= {pod.uid for pod in leave}
            lines.quota.take(victim.queue, scale(asks_of(leave), -1))
            if following is None or following.claimant != evict.claimant:
                claimants.append(evict.claimant)
                lines.quota.take(claimant.queue, summed(claimant.minimum))
        assert len(set(claimants)) == len(claimants)

    def _of(self, queue: str) -> list[Gang]:
        return [gang for gang in self.gangs.values() if gang.queue == queue]

    def _stopped(self, queue: str) -> bool:
        above = self.model.queues[queue].parent
        return self.model.queues[queue].stopped or bool(above and self._stopped(above))

    def _is_reclaimed_by_right(
        self, evict: Evict, lines: Fairness, came: Sequence[tuple[str, tuple[Batch, ...]]]
    ) -> None:
        victim, claimant = self.gangs[evict.gang], self.gangs[evict.claimant]
        assert self.model.queues[victim.queue].reclaimable
        mine, theirs = _branches(lines, claimant.queue, victim.queue)
        asks = summed(claimant.minimum)
        claimed = {each for each in asks if evict.rule is Rule.DESERVED or lines.floor(mine, each)}
        assert claimed

        def line(place: Place, resource: str) -> int:
            guaranteed = evict.rule is Rule.GUARANTEE and resource in claimed
            return lines.floor(place, resource) if guaranteed else lines.due[place].get(resource, 0)

        assert all(lines.use(mine, each) + count <= line(mine, each) for each, count in asks.items())
        more = add(*(summed(batches) for queue, batches in came if theirs in lines.path(queue)))
        assert any(lines.use(theirs, each) + more.get(each, 0) > line(theirs, each) for each in claimed)

    def judge(self) -> None:
        self.all_or_none()
        self.everybody_is_answered_once()
        self.no_ceiling_is_broken()
        self.no_floor_is_taken()
        self.no_node_gives_more_than_it_has()
        self.evictions_are_just()


def _branches(lines: Fairness, one: str, other: str) -> tuple[Place, Place]:
    """Where the ways from the root to two queues part."""
    both = zip(reversed(lines.path(one)), reversed(lines.path(other)), strict=False)
    return next((left, right) for left, right in both if left != right)


# A reason is true: without what it names, the answer is another one.


def _named(reason: Reason) -> tuple[Any, ...]:
    facts = dict(reason.facts)
    return reason.code, facts.get("queue"), facts.get("parent"), facts.get("gang")


def _answer(model: Model, key: str) -> tuple[Any, ...]:
    plan = decide(model.world(), model.now)
    return next((_named(stay.reason) for stay in plan.stay if stay.gang == key), ("goes",))


def _alone(model: Model, key: str) -> Model:
    """Nobody else asks."""
    twin = model.copy()
    for gang in model.gangs.values():
        if gang.key != key and not gang.started:
            if gang.pods:
                twin.gangs[gang.key].minimum = ()
                twin.gangs[gang.key].extra = ()
            else:
                del twin.gangs[gang.key]
        elif gang.started:
            twin.gangs[gang.key].extra = ()
    return twin


def _without_the_obstacle(model: Model, stay: Stay) -> Model | None:
    facts, code = dict(stay.reason.facts), stay.reason.code
    twin = model.copy()
    if code in (Code.QUEUE_CAPABILITY, Code.PARENT_CAPABILITY):
        name = str(facts["queue" if code is Code.QUEUE_CAPABILITY else "parent"])
        twin.queues[name] = replace(twin.queues[name], capability={})
    elif code is Code.GUARANTEE_KEPT:
        twin.queues = {name: replace(spec, guarantee={}) for name, spec in twin.queues.items()}
    elif code is Code.NEVER_WITHIN_QUOTA:
        twin.queues = {name: replace(spec, guarantee={}, capability={}) for name, spec in twin.queues.items()}
    elif code is Code.QUEUE_STOPPED:
        name = str(facts["queue"])
        twin.queues[name] = replace(twin.queues[name], stopped=False)
    elif code in (Code.CLUSTER_IN_USE, Code.NO_ROOM, Code.FRAGMENTED):
        twin.gangs = {stay.gang: twin.gangs[stay.gang]}
        twin.others = {} if code in NODES else twin.others
    elif code in (Code.NO_NODE_MATCHES, Code.NEVER_FITS):
        for i in range(8):
            twin.nodes[f"more{i}"] = node(f"more{i}", cpu="64m", gpu="64", labels={"zone": "a"})
    else:
        return None
    return twin


def reasons_are_true(model: Model, plan: Plan) -> None:
    """On a state that nothing more will change."""
    seen: set[Code] = set()
    for stay in plan.stay:
        gang = model.gangs[stay.gang]
        if gang.started or gang.pods or stay.reason.code in seen:
            continue
        seen.add(stay.reason.code)
        alone = _alone(model, stay.gang)
        without = _without_the_obstacle(alone, stay)
        if without is not None:
            assert _answer(alone, stay.gang) == _named(stay.reason), stay.reason.message
            assert _answer(without, stay.gang) != _named(stay.reason), stay.reason.message
        elif stay.reason.code is Code.OTHERS_FIRST:
            twin = model.copy()
            twin.gangs.pop(str(dict(stay.reason.facts)["gang"]))
            assert _answer(twin, stay.gang) != _named(stay.reason), stay.reason.message
        elif stay.reason.code is Code.MAKING_ROOM:
            assert any(model.gangs[key].leaving for key in gang.victims), stay.reason.message


# What comes of it in the long run.


def pass_on(model: Model) -> Plan:
    """A decision, and all that follows from it by itself."""
    plan = decide(model.world(), model.now)
    model.apply(plan)
    model.bind()
    for gang in model.gangs.values():
        model.pods_gone(gang)
        model.make_pods(gang)
    return plan


def comes_to_rest(model: Model) -> None:
    """While nothing arrives, ends or is changed by others, the evictions come to an end, each of them once."""
    evicted: Counter[str] = Counter()
    for _ in range(4 * len(model.gangs) + 4):
        plan = pass_on(model)
        evicted.update(evict.gang for evict in plan.evict)
        if not plan.go and not plan.evict:
            break
    else:
        raise AssertionError(f"it never rests: {evicted}")
    assert evicted.total() <= len(model.gangs), evicted


def all_start_while_gangs_end(model: Model) -> None:
    """Each gang that could start alone on the empty cluster does, if those that have started end."""
    model.others.clear()
    for _ in range(4 * len(model.gangs) + 4):
        plan = pass_on(model)
        stuck = {stay.gang for stay in plan.stay}
        for gang in list(model.gangs.values()):
            if gang.started and not gang.gathering:
                model.end(gang)
            elif gang.gathering and gang.key in stuck:
                model.take_back(gang)
        model.now += 60
    for gang in model.gangs.values():
        alone = model.copy()
        alone.gangs = {gang.key: alone.gangs[gang.key]}
        assert _answer(alone, gang.key) != ("goes",), f"{gang.key} waits for ever"


class Life(RuleBasedStateMachine):
    """A cluster, a step at a time; after each step a decision, judged and carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(patience=600)

    def _gang(self, which: int, **having: bool) -> Gang | None:
        found = [
            gang
            for gang in self.model.gangs.values()
            if all(bool(getattr(gang, field)) == value for field, value in having.items())
        ]
        return found[which % len(found)] if found else None

    @initialize(queues=st.fixed_dictionaries({name: specs(name) for name in NAMES}), some=st.data())
    def begin(self, queues: dict[str, QueueSpec], some: st.DataObject) -> None:
        self.model.queues = queues
        for i in range(some.draw(st.integers(1, 4))):
            self.model.nodes[f"n{i}"] = some.draw(nodes(f"n{i}"))

    @precondition(lambda self: len(self.model.gangs) < 12)
    @rule(
        queue=st.sampled_from(NAMES),
        shape=st.sampled_from(SHAPES),
        count=st.integers(1, 4),
        extra=st.integers(0, 2),
        priority=st.integers(0, 2),
        times=st.integers(1, 3),
        traits=st.fixed_dictionaries(
            {
                "takeable": st.sampled_from([True, True, False]),
                "harmless": st.booleans(),
                "preempts": st.sampled_from([True, True, False]),
                "lasts": st.sampled_from([float("inf"), 300.0]),
            }
        ),
    )
    def gangs_arrive(
        self, queue: str, shape: Shape, count: int, extra: int, priority: int, times: int, traits: dict[str, Any]
    ) -> None:
        more = (Batch(shape, extra),) if extra else ()
        for _ in range(times):
            self.model.arrive(queue, Batch(shape, count), extra=more, priority=priority, **traits)

    @precondition(lambda self: len(self.model.gangs) < 8)
    @rule(
        queue=st.sampled_from(NAMES),
        shape=st.sampled_from(SHAPES),
        count=st.integers(1, 2),
        times=st.integers(3, 8),
        harmless=st.booleans(),
    )
    def a_crowd_arrives(self, queue: str, shape: Shape, count: int, times: int, harmless: bool) -> None:
        """As much as one queue can get, often: then the others have something to claim."""
        more = (Batch(shape, 2),) if harmless else ()
        for _ in range(times):
            self.model.arrive(queue, Batch(shape, count), extra=more, harmless=harmless)

    @precondition(lambda self: self.model.gangs)
    @rule(which=st.integers(0, 11))
    def a_gang_ends(self, which: int) -> None:
        gang = self._gang(which)
        if gang:
            self.model.end(gang)

    @rule()
    def all_that_leave_are_gone(self) -> None:
        for gang in self.model.gangs.values():
            self.model.pods_gone(gang)

    @rule(which=st.integers(0, 11))
    def those_that_leave_are_gone(self, which: int) -> None:
        gang = self._gang(which, leaving=True)
        if gang:
            self.model.pods_gone(gang)

    @rule(which=st.integers(0, 11), pod=st.integers(0, 3))
    def a_pod_is_deleted(self, which: int, pod: int) -> None:
        gang = self._gang(which, there=True)
        if gang:
            self.model.delete_pod(gang, pod)

    @rule()
    def pods_are_made(self) -> None:
        for gang in self.model.gangs.values():
            self.model.make_pods(gang)

    @rule(which=st.integers(0, 11))
    def a_gang_is_taken_back(self, which: int) -> None:
        gang = self._gang(which, started=True)
        if gang:
            self.model.take_back(gang)

    @rule(some=st.data(), which=st.integers(0, 4))
    def a_node_comes_or_changes(self, some: st.DataObject, which: int) -> None:
        self.model.nodes[f"n{which}"] = some.draw(nodes(f"n{which}"))

    @precondition(lambda self: len(self.model.nodes) > 1)
    @rule(which=st.integers(0, 4))
    def a_node_is_lost(self, which: int) -> None:
        self.model.lose_node(list(self.model.nodes)[which % len(self.model.nodes)])

    @rule(which=st.integers(0, 4), shape=st.sampled_from(SHAPES))
    def somebody_elses_pod_comes(self, which: int, shape: Shape) -> None:
        name = f"n{which}"
        if self.model.takes(name, shape):
            self.model.others[f"u{len(self.model.others)}-{self.model.now}"] = (name, shape)

    @precondition(lambda self: self.model.others)
    @rule()
    def somebody_elses_pods_go(self) -> None:
        self.model.others.clear()

    @rule(name=st.sampled_from(NAMES), some=st.data())
    def a_queue_is_changed(self, name: str, some: st.DataObject) -> None:
        self.model.queues[name] = some.draw(specs(name))

    @rule(late=st.booleans())
    def kube_scheduler_is_slow_or_quick(self, late: bool) -> None:
        self.model.late = late

    @rule(seconds=st.sampled_from([1, 60, 700]))
    def time_passes(self, seconds: int) -> None:
        self.model.now += seconds
        self.model.bind()

    @invariant()
    def every_decision_keeps_the_promises(self) -> None:
        model = self.model
        world = model.world()
        plan = decide(world, model.now)
        assert decide(world, model.now) == plan
        assert decide(model.world(random.Random(len(model.gangs))), model.now) == plan
        Judge(model, plan).judge()
        model.apply(plan)
        if plan.evict:  # who gave way may go elsewhere, and slots that had no pod are free for the claimant at once
            moved = {key for evict in plan.evict for key in (evict.gang, evict.claimant)}
            plan = decide(model.world(), model.now)
            Judge(model, plan).judge()
            assert {go.gang for go in plan.go} <= moved
            model.apply(plan)
        again = decide(model.world(), model.now)
        Judge(model, again).judge()
        assert not again.evict
        if not any(gang.claims() for gang in model.gangs.values()):
            assert not again.go
            reasons_are_true(model, again)
        model.apply(again)
        model.now += 1

    def teardown(self) -> None:
        if not self.model.queues:
            return
        comes_to_rest(self.model.copy())
        all_start_while_gangs_end(self.model.copy())


Life.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=25)
TestLife = Life.TestCase
