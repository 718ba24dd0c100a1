"""The promises of the design, after every step of a cluster's life: random queues, nodes, arrivals, endings, failures.

Each decision is judged with plain arithmetic (tests.unit.reference, sums over lists), never with the engine's, and then
carried out on `engine_model.Model`, whose next state is what the next decision sees.
"""

import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from startgate.engine.cycle import decide
from startgate.engine.world import NEVER, Batch, Plan
from startgate.model import objects
from startgate.model.queue import QueueSpec
from startgate.model.reasons import Code, reason
from startgate.model.resources import Amounts
from startgate.model.shape import Shape
from tests.unit.engine_model import Gang, Model, asks_of
from tests.unit.promises import Course, Judge, answer, reasons_are_true, victims_are_needed
from tests.unit.reference import Fairness, Formulas
from tests.unit.worlds import GPU, node

UNHURRIED = settings(deadline=None)  # the machine may be busy with other things
NAMES = ["a", "b", "c", "d"]
SOON = 6
"""Decisions. Of 10,000 plans that were tried none needed more than two after it."""


def _shape(cpu: int, gpu: int = 0, **demands: Any) -> Shape:
    asks = {"cpu": cpu, GPU: gpu, "pods": 1}
    return Shape(request=tuple(sorted((each, count) for each, count in asks.items() if count)), **demands)


ONE = _shape(1)
GPU_ONE = _shape(1, gpu=1)
SHAPES = [ONE, ONE, _shape(2), _shape(3), GPU_ONE, _shape(1, node_selector=(("zone", "a"),))]


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
def specs(draw: st.DrawFn, name: str, *, limits: bool) -> QueueSpec:
    """A queue whose parent, if any, comes before it in the alphabet."""
    return QueueSpec(
        parent=draw(st.sampled_from(["", *NAMES[: NAMES.index(name)]])),
        weight=draw(st.integers(1, 3)),
        capability=draw(_counts(1, often=3)) if limits else {},
        guarantee=draw(_counts(0, often=3)) if limits else {},
        deserved=draw(_counts(0, often=3)),
        reclaimable=draw(st.integers(0, 5)) < 5,
        stopped=limits and draw(st.integers(0, 9)) == 9,
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


# What comes of it in the long run.


def pass_on(model: Model) -> Plan:
    """What follows by itself from what has been decided, and the decision after it."""
    model.bind()
    for gang in model.gangs.values():
        model.pods_gone(gang)
        model.make_pods(gang)
    return decide(model.world(), model.now)


def comes_to_rest(model: Model) -> None:
    """While nothing arrives, ends or is changed by others, the evictions come to an end."""
    course = Course(model)
    evicted: Counter[str] = Counter()
    for _ in range(4 * len(model.gangs) + 4):
        plan = pass_on(model)
        course.goes_on(plan)
        model.apply(plan)
        evicted.update(evict.gang for evict in plan.evict)
        if not plan.go and not plan.evict:
            break
    else:
        raise AssertionError(f"it never rests: {evicted}")
    assert evicted.total() <= len(model.gangs), evicted


def is_calm(model: Model) -> bool:
    """No pod has room on paper alone, and each gang is of one kind of pods: then the engine sees all that fits."""
    return not any(gang.claims() or len(gang.minimum) > 1 for gang in model.gangs.values())


def until_it_rests(model: Model, plan: Plan) -> Plan:
    """Carries the plan out, and those after it, until one has nothing to carry out: soon.

    The first is seldom the last. Who gave way may go elsewhere at once; a gang that has gathered can be taken back from
    then on; and who goes uses more, and asks for less, by which what others deserve moves.
    """
    course, calm = Course(model), is_calm(model)
    evicted = False
    for i in range(SOON):
        Judge(model, plan).judge()
        course.goes_on(plan)
        if calm and i and not evicted:  # nobody has to leave first: all that fits goes at once
            assert not plan.go
        if not plan.go and not plan.evict:
            return plan
        evicted |= bool(plan.evict)
        model.apply(plan)
        plan = decide(model.world(), model.now)
    raise AssertionError(f"no rest after {SOON} decisions")


def all_start_while_gangs_end(model: Model) -> None:
    """Each gang that could start alone on the empty cluster does, if those that have started end."""
    model.others.clear()
    for _ in range(4 * len(model.gangs) + 4):
        plan = pass_on(model)
        model.apply(plan)
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
        assert answer(alone, gang.key) != ("goes",), f"{gang.key} waits for ever"


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

    @initialize(some=st.data(), limits=st.booleans(), first=st.sampled_from(NAMES), crowd=st.integers(0, 8))
    def begin(self, some: st.DataObject, limits: bool, first: str, crowd: int) -> None:
        """One queue was there before the others. Half of all clusters have queues without limits: there it is about
        who deserves what."""
        self.limits = limits
        for name in NAMES:
            self.model.queues[name] = some.draw(specs(name, limits=limits))
        for i in range(some.draw(st.integers(1, 4))):
            self.model.nodes[f"n{i}"] = some.draw(nodes(f"n{i}"))
        self.a_crowd(first, ONE, 1, crowd, harmless=False)

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
                "lasts": st.sampled_from([NEVER, 300.0]),
                "obstacle": st.sampled_from([*[None] * 9, reason(Code.ON_HOLD)]),
            }
        ),
        leader=st.sampled_from([False, False, True]),
    )
    def gangs_arrive(
        self,
        queue: str,
        shape: Shape,
        count: int,
        extra: int,
        priority: int,
        times: int,
        traits: dict[str, Any],
        leader: bool,
    ) -> None:
        minimum = (*((Batch(GPU_ONE, 1),) if leader and shape != GPU_ONE else ()), Batch(shape, count))
        more = (Batch(shape, extra),) if extra else ()
        for _ in range(times):
            self.model.arrive(queue, *minimum, extra=more, priority=priority, **traits)

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
        self.a_crowd(queue, shape, count, times, harmless=harmless)

    def a_crowd(self, queue: str, shape: Shape, count: int, times: int, *, harmless: bool) -> None:
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
        self.model.queues[name] = some.draw(specs(name, limits=self.limits))

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
        calm = is_calm(model)
        if plan.evict and calm:
            victims_are_needed(model, plan)
        rests = until_it_rests(model, plan)
        if calm and is_calm(model):
            reasons_are_true(model, rests)
        model.now += 1

    def teardown(self) -> None:
        if not self.model.queues:
            return
        comes_to_rest(self.model.copy())
        all_start_while_gangs_end(self.model.copy())


Life.TestCase.settings = settings(deadline=None, max_examples=80, stateful_step_count=20)
TestLife = Life.TestCase


# No to and fro.


@st.composite
def contested(draw: st.DrawFn) -> Model:
    """Queues without limits; half of these clusters lose patience after one wave."""
    model = Model(patience=draw(st.sampled_from([600, 5])))
    for name in NAMES:
        model.queues[name] = draw(specs(name, limits=False))
    for i in range(draw(st.integers(1, 3))):
        model.nodes[f"n{i}"] = draw(nodes(f"n{i}"))
    return model


arrivals = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(SHAPES), st.integers(1, 4), st.integers(0, 2), st.integers(1, 4)),
    min_size=2,
    max_size=4,
)


@settings(UNHURRIED, max_examples=100)
@given(contested(), st.lists(arrivals, min_size=2, max_size=3))
def test_who_has_just_started_is_not_taken_back(
    model: Model, waves: list[list[tuple[str, Shape, int, int, int]]]
) -> None:
    for wave in waves:
        for queue, shape, count, priority, times in wave:
            for _ in range(times):
                model.arrive(queue, Batch(shape, count), priority=priority)
        until_it_rests(model, decide(model.world(), model.now))
        comes_to_rest(model)
        model.now += 10


# Fair, at rest.


@st.composite
def crowded(draw: st.DrawFn) -> Model:
    """Queues in two levels, all of whose gangs are single pods of 1 cpu, more than there is room for; they come one
    queue after the other, so that the first ones have it all."""
    model = Model()
    for i in range(draw(st.integers(1, 3))):
        model.nodes[f"n{i}"] = node(f"n{i}", cpu=f"{draw(st.integers(1, 6))}m")
    tops = ["a", "b", "c"][: draw(st.integers(2, 3))]
    left = model.total()["cpu"]
    for top in tops:
        given = draw(st.none() | st.integers(0, left))
        left -= given or 0
        deserved = {} if given is None else _written({"cpu": given})
        model.queues[top] = QueueSpec(weight=draw(st.integers(1, 3)), deserved=deserved)
    leaves = [f"{top}{i}" for top in tops for i in range(draw(st.integers(0, 2)))] or tops
    for leaf in leaves:
        if leaf not in tops:
            model.queues[leaf] = QueueSpec(parent=leaf[0], weight=draw(st.integers(1, 3)))
    ends = [name for name in model.queues if name in leaves or not any(leaf[0] == name for leaf in leaves)]
    for name in draw(st.permutations(ends)):
        for _ in range(model.total()["cpu"]):
            model.arrive(name, Batch(ONE, 1))
        comes_to_rest(model)
        model.now += 1
    return model


@settings(UNHURRIED, max_examples=40)
@given(crowded())
def test_at_rest_no_queue_is_above_its_deserved_while_its_sibling_is_below_by_a_gang(model: Model) -> None:
    quota = Formulas(model.queues, model.total())
    for name, amounts in model.used().items():
        quota.take(name, amounts)
    waiting = {gang.queue: asks_of(()) for gang in model.gangs.values() if not gang.started}
    for gang in model.gangs.values():
        if not gang.started:
            waiting[gang.queue] = {each: waiting[gang.queue].get(each, 0) + 1 for each in ("cpu", "pods")}
    fair = Fairness(quota, {}, waiting)
    over = {place: fair.use(place, "cpu") - due.get("cpu", 0) for place, due in fair.due.items()}
    for place in fair.due:
        siblings = fair.places(place)
        assert not any(over[one] > 0 for one in siblings) or not any(over[other] <= -1 for other in siblings)
    assert sum(len(gang.pods) for gang in model.gangs.values()) == model.total()["cpu"]


# Nobody starves.


class Crowd:
    """A big gang that has waited for longer than patience, and small ones that keep coming and going."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.model = Model(patience=600)
        sizes = draw(st.lists(st.integers(2, 6), min_size=1, max_size=3))
        for i, cpu in enumerate(sizes):
            self.model.nodes[f"n{i}"] = node(f"n{i}", cpu=f"{cpu}m")
        self.model.queues = {"big": QueueSpec(), "small": QueueSpec(deserved={"cpu": 0})}
        self.small_ones_come()
        self.decide()
        self.model.now = 10.0
        each = draw(st.integers(1, max(sizes)))
        places = sum(cpu // each for cpu in sizes)
        self.big = self.model.arrive("big", Batch(_shape(each), draw(st.integers(1, places))))
        self.decide()
        self.model.now = 1000.0

    def __repr__(self) -> str:
        return f"Crowd({self.model})"

    def small_ones_come(self) -> None:
        for cpu, count, lasts in self.draw(
            st.lists(
                st.tuples(st.integers(1, 2), st.integers(1, 3), st.sampled_from([NEVER, NEVER, 90.0, 300.0])),
                min_size=1,
                max_size=4,
            )
        ):
            # Not to be taken back: else the big one would claim its due, and not have to wait.
            self.model.arrive("small", Batch(_shape(cpu), count), takeable=False, lasts=lasts)

    def decide(self) -> Plan:
        plan = decide(self.model.world(), self.model.now)
        self.model.apply(plan)
        return plan

    def time_passes(self) -> None:
        self.model.now += 60
        for gang in self.running():
            if gang.ends <= self.model.now:
                self.model.end(gang)

    def running(self) -> list[Gang]:
        return [gang for gang in self.model.gangs.values() if gang.started and gang is not self.big]


@st.composite
def crowds(draw: st.DrawFn) -> Crowd:
    return Crowd(draw)


@settings(UNHURRIED, max_examples=60)
@given(crowds())
def test_an_overdue_gang_starts_when_those_before_it_have_ended_whatever_comes(crowd: Crowd) -> None:
    """At the latest: newcomers with a deadline may be let through, and are waited for too."""
    model, big, draw = crowd.model, crowd.big, crowd.draw
    before = crowd.running()
    while not big.started:
        crowd.small_ones_come()
        crowd.decide()
        newcomers = [gang for gang in crowd.running() if gang not in before]
        for gang in draw(st.lists(st.sampled_from(newcomers), unique_by=id)) if newcomers else ():
            model.end(gang)
        crowd.time_passes()
        left = [gang for gang in before if gang.key in model.gangs]
        if left:
            model.end(draw(st.sampled_from(left)))
        elif not any(gang.ends < NEVER for gang in crowd.running()):
            crowd.decide()
            assert big.started
