"""What a plan always keeps to, over random clusters, queues, claims and gangs.

The checks use plain arithmetic of their own (and the formulas of test_quota), never the engine's.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from startgate.engine.cluster import Cluster
from startgate.engine.cycle import decide
from startgate.engine.world import Batch, Claim, ClaimKind, Go, Plan, Waiting, World
from startgate.model import objects
from startgate.model.queue import QueueSpec
from startgate.model.reasons import Code
from startgate.model.resources import add, amounts, scale
from startgate.model.shape import Shape
from startgate.model.taints import Taint, Toleration
from tests.unit.reference import Formulas
from tests.unit.test_quota import NAMES
from tests.unit.worlds import GPU, cluster, node, world

UNHURRIED = settings(deadline=None)  # the machine may be busy with other things
TAINT = Taint("dedicated", "x", "NoSchedule")


def _shape(rng: random.Random) -> Shape:
    asks = {"cpu": rng.choice([0, 1, 1, 2, 3]), GPU: rng.choice([0, 0, 1, 2]), "pods": 1}
    return Shape(
        request=tuple(sorted((resource, count) for resource, count in asks.items() if count)),
        node_selector=rng.choice([(), (), (("zone", "a"),)]),
        tolerations=rng.choice([(), (Toleration(key="dedicated", operator="Exists"),)]),
    )


def _node(rng: random.Random, name: str) -> objects.Node:
    return node(
        name,
        cpu=f"{rng.choice([0, 4, 8, 8, 16])}m",
        gpu=str(rng.choice([0, 0, 2, 4, 8])),
        pods=str(rng.choice([3, 10, 10, 10])),
        labels={"zone": rng.choice("aab")},
        taints=rng.choice([(), (), (), (TAINT,)]),
        cordoned=rng.random() < 0.1,
    )


def _queue(rng: random.Random, above: Sequence[str]) -> QueueSpec:
    def some(chance: float, *choices: int) -> dict[str, str | int]:
        return {
            resource: f"{count}m" if resource == "cpu" else count
            for resource in ("cpu", GPU)
            for count in (rng.choice(choices),)
            if rng.random() < chance
        }

    return QueueSpec(
        parent=rng.choice(["", *above]),
        capability=some(0.4, 2, 4, 8, 16, 32),
        guarantee=some(0.25, 1, 2, 4, 8),
    )


class Case:
    """A world and the plain lists that it was made of, so that it can be made again in another order."""

    def __init__(self, seed: int, gangs: int, claims: int, pods: int, kinds: int) -> None:
        """`kinds`: how many kinds of pods a gang may have. What can be made smaller is drawn, the rest seeded."""
        rng = random.Random(seed)
        shapes = [_shape(rng) for _ in range(rng.randint(1, 3))]

        def batches() -> tuple[Batch, ...]:
            return tuple(Batch(rng.choice(shapes), rng.randint(1, 4)) for _ in range(rng.randint(1, kinds)))

        self.nodes = [_node(rng, f"n{i}") for i in range(rng.randint(1, 5))]
        self.pods = [
            (f"u{i}", rng.choice(self.nodes).metadata.name, rng.choice(shapes)) for i in range(rng.randint(0, pods))
        ]
        self.queues = {name: _queue(rng, NAMES[:i]) for i, name in enumerate(NAMES)}
        self.used = {name: {"cpu": rng.randint(0, 3), GPU: rng.randint(0, 2)} for name in rng.sample(NAMES, 2)}
        self.claims = [
            Claim(
                gang=f"ns/c{i}",
                queue=rng.choice(NAMES),
                kind=rng.choice(list(ClaimKind)),
                batches=batches(),
                priority=rng.randint(0, 2),
                since=float(rng.randint(0, 2)),
            )
            for i in range(claims)
        ]
        self.waiting = [
            Waiting(
                gang=f"ns/g{i}",
                queue=rng.choice(NAMES),
                namespace="ns",
                priority=rng.randint(0, 2),
                since=float(rng.randint(0, 2)),
                minimum=batches() if rng.random() < 0.8 else (),
                extra=batches() if rng.random() < 0.4 else (),
            )
            for i in range(gangs)
        ]
        self.pending = list(batches()) if rng.random() < 0.2 else []

    def cluster(self, shuffled: random.Random | None = None) -> Cluster:
        made = Cluster()
        for each in _shuffled(self.nodes, shuffled):
            made.set_node(each)
        for uid, name, shape in _shuffled(self.pods, shuffled):
            made.add_pod(uid, name, shape)
        return made

    def world(self, shuffled: random.Random | None = None) -> World:
        return world(
            self.cluster(shuffled),
            dict(_shuffled(list(self.queues.items()), shuffled)),
            _shuffled(self.waiting, shuffled),
            used=dict(_shuffled(list(self.used.items()), shuffled)),
            claims=_shuffled(self.claims, shuffled),
            pending=_shuffled(self.pending, shuffled),
        )

    def total(self) -> dict[str, int]:
        return add(*(amounts(each.status.allocatable) for each in self.nodes if not each.spec.unschedulable))

    def formulas(self) -> Formulas:
        """The books with everything in them that was admitted before."""
        plain = Formulas(self.queues, self.total())
        for name, asks in self.used.items():
            plain.take(name, asks)
        for claim in self.claims:
            if claim.kind not in (ClaimKind.BIND, ClaimKind.REPLACE):
                plain.take(claim.queue, _asks(claim.batches))
        return plain


def _shuffled(items: Sequence[Any], rng: random.Random | None) -> list[Any]:
    mixed = list(items)
    if rng is not None:
        rng.shuffle(mixed)
    return mixed


def _asks(batches: Sequence[Batch]) -> dict[str, int]:
    return add(*(scale(each.shape.amounts, each.count) for each in batches))


def cases(*, claims: int = 3, kinds: int = 2) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        seed=st.integers(0, 2**32),
        gangs=st.integers(1, 8),
        claims=st.integers(0, claims),
        pods=st.integers(0, 6),
        kinds=st.just(kinds),
    )


def asks_of(go: Go) -> dict[str, int]:
    return add(*(scale(each.shape.amounts, n) for each in go.placements for _, n in each.nodes))


def pods_of(go: Go) -> Counter[Shape]:
    found: Counter[Shape] = Counter()
    for placement in go.placements:
        found[placement.shape] += sum(n for _, n in placement.nodes)
    return found


def wanted(batches: Sequence[Batch]) -> Counter[Shape]:
    found: Counter[Shape] = Counter()
    for each in batches:
        found[each.shape] += each.count
    return found


@UNHURRIED
@given(cases())
def test_no_node_gives_more_than_it_has_nor_takes_what_it_turns_away(case: Case) -> None:
    by_name = {each.metadata.name: each for each in case.nodes}
    on_it = {name: [shape for _, where, shape in case.pods if where == name] for name in by_name}
    reached = set()
    for go in decide(case.world(), 0).go:
        for placement in go.placements:
            for name, count in placement.nodes:
                assert count > 0
                on_it[name].extend([placement.shape] * count)
                reached.add((name, placement.shape))
    for name, shape in reached:
        target = by_name[name]
        sums = add(*(each.amounts for each in on_it[name]))
        have = amounts(target.status.allocatable)
        assert all(sums[resource] <= have.get(resource, 0) for resource in shape.amounts)
        assert not target.spec.unschedulable
        assert not target.spec.taints or shape.tolerations
        assert all(target.metadata.labels[key] == value for key, value in shape.node_selector)


@UNHURRIED
@given(cases())
def test_no_ceiling_is_broken_by_a_decision(case: Case) -> None:
    plain = case.formulas()
    queue_of = {each.gang: each.queue for each in case.waiting} | {each.gang: each.queue for each in case.claims}
    for go in decide(case.world(), 0).go:
        if go.kind in (None, ClaimKind.REPLACE):
            # The minimum and each extra were within quota one after the other; so are they all at once.
            assert plain.within(queue_of[go.gang], asks_of(go))
            plain.take(queue_of[go.gang], asks_of(go))


@UNHURRIED
@given(cases())
def test_all_or_none_and_everybody_is_answered_once(case: Case) -> None:
    plan = decide(case.world(), 0)
    claims = {each.gang: each for each in case.claims}
    gangs = {each.gang: each for each in case.waiting}
    for go in plan.go:
        pods = pods_of(go)
        assert go.count == pods.total() > 0
        if go.kind is None:
            gang = gangs[go.gang]
            assert wanted(gang.minimum) <= pods <= wanted((*gang.minimum, *gang.extra))
        elif go.kind is ClaimKind.GATHER:
            assert pods == wanted(claims[go.gang].batches)
        else:
            assert go.kind in (ClaimKind.FOLLOW, ClaimKind.REPLACE)
            assert pods <= wanted(claims[go.gang].batches)
    answered = Counter([go.gang for go in plan.go] + [stay.gang for stay in plan.stay])
    asking = [each.gang for each in case.waiting if each.minimum or each.extra]
    gathering = [each.gang for each in case.claims if each.kind is ClaimKind.GATHER]
    assert all(answered[name] == 1 for name in (*asking, *gathering))
    assert set(answered) <= {*asking, *claims}


@UNHURRIED
@given(cases(), st.randoms(use_true_random=False))
def test_the_same_world_gives_the_same_plan(case: Case, rng: random.Random) -> None:
    given_world = case.world()
    plan = decide(given_world, 0)
    assert decide(given_world, 0) == plan
    assert decide(case.world(rng), 0) == plan


@UNHURRIED
@given(cases())
def test_of_two_that_ask_a_queue_for_the_same_the_one_whose_turn_is_first_goes_first(case: Case) -> None:
    went = [go.gang for go in decide(case.world(), 0).go if not go.kind]
    for gang in case.waiting:
        for other in case.waiting:
            same = (gang.queue, gang.minimum) == (other.queue, other.minimum) and gang.minimum
            if same and _turn(gang) < _turn(other) and other.gang in went:
                assert went.index(gang.gang) < went.index(other.gang)


def _turn(gang: Waiting) -> tuple[int, float, str]:
    return -gang.priority, gang.since, gang.gang


def _with(before: World, *waiting: Waiting) -> World:
    made: World = replace(before, waiting=waiting)
    return made


def _applied(case: Case, plan: Plan) -> World:
    """The world in which all that goes is bound where the plan put it."""
    held = case.cluster()
    queue_of = {each.gang: each.queue for each in case.waiting}
    used: dict[str, Mapping[str, int]] = dict(case.used)
    for go in plan.go:
        for i, placement in enumerate(go.placements):
            for name, count in placement.nodes:
                for k in range(count):
                    held.add_pod(f"{go.gang}/{i}/{name}/{k}", name, placement.shape, ours=True)
        used[queue_of[go.gang]] = add(used.get(queue_of[go.gang], {}), asks_of(go))
    gone = {each.gang: pods_of(each) for each in plan.go}
    return world(
        held,
        case.queues,
        [left for each in case.waiting if (left := _still_asking(each, gone.get(each.gang))) is not None],
        used=used,
        pending=case.pending,
    )


def _still_asking(gang: Waiting, went: Counter[Shape] | None) -> Waiting | None:
    """The gang as it was, or those pods beyond its minimum that have yet to join it."""
    if went is None:
        return gang
    left = wanted((*gang.minimum, *gang.extra)) - went
    joining: Waiting = replace(gang, minimum=(), extra=tuple(Batch(shape, count) for shape, count in left.items()))
    return joining if left else None


@UNHURRIED
@given(cases(claims=0, kinds=1))
def test_deciding_again_changes_nothing(case: Case) -> None:
    plan = decide(case.world(), 0)
    again = decide(_applied(case, plan), 0)
    assert again.go == ()
    stays = {stay.gang: stay for stay in again.stay}
    assert all(stays[stay.gang] == stay for stay in plan.stay)
    # What is deserved may move by the unit that can't be shared out, which stays with who uses it.
    moves: dict[str, Any] = {"deserved": {}, "share": None, "next": ""}
    for name, view in plan.queues.items():
        assert replace(again.queues[name], **moves) == replace(view, **moves)


def _lifted(case: Case, *, quota: bool, more: Sequence[objects.Node] = ()) -> World:
    made = case.cluster()
    for each in more:
        made.set_node(each)
    queues = {name: QueueSpec() for name in case.queues} if quota else case.queues
    return world(made, queues, case.waiting[:1], used={} if quota else case.used)


QUOTA = {
    Code.QUEUE_CAPABILITY,
    Code.PARENT_CAPABILITY,
    Code.NEVER_WITHIN_QUOTA,
    Code.GUARANTEE_KEPT,
    Code.CLUSTER_IN_USE,
}
NODES = {Code.NO_ROOM, Code.FRAGMENTED, Code.NO_NODE_MATCHES, Code.NEVER_FITS, Code.NOT_SURE}


@UNHURRIED
@given(cases(claims=0))
def test_taking_the_named_obstacle_away_changes_the_answer(case: Case) -> None:
    plan = decide(_lifted(case, quota=False), 0)
    if not plan.stay:
        return
    (stay,) = plan.stay
    more = [node(f"more{i}", cpu="1", gpu="64", labels={"zone": "a"}) for i in range(16)]
    with_nodes = decide(_lifted(case, quota=False, more=more), 0)
    if stay.reason.code in NODES:
        assert not with_nodes.stay or with_nodes.stay[0].reason.code in QUOTA - {Code.CLUSTER_IN_USE}
        assert decide(_lifted(case, quota=True, more=more), 0).stay == ()
    elif stay.reason.code in (Code.GUARANTEE_KEPT, Code.CLUSTER_IN_USE):
        assert with_nodes.stay == ()
    else:
        without = decide(_lifted(case, quota=True), 0)
        assert not without.stay or without.stay[0].reason.code in NODES | {Code.CLUSTER_IN_USE}


@UNHURRIED
@given(cases(claims=0))
def test_what_is_called_never_is_so_on_the_same_nodes_and_queues_with_nothing_on_them(case: Case) -> None:
    plan = decide(case.world(), 0)
    empty = world(cluster(*case.nodes), case.queues, case.waiting)
    alone = {gang.gang: decide(_with(empty, gang), 0) for gang in case.waiting if gang.minimum or gang.extra}
    for stay in plan.stay:
        if stay.reason.code in (Code.NEVER_WITHIN_QUOTA, Code.NEVER_FITS, Code.NO_NODE_MATCHES):
            assert alone[stay.gang].stay, stay.reason.message
