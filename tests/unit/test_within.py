"""Gangs that are to be in one topology domain: all of their nodes have one value of a label, and it is the tightest."""

import random
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from startgate.engine.cluster import Cluster
from startgate.engine.cycle import decide
from startgate.engine.fit import Room
from startgate.engine.within import settled
from startgate.engine.world import Batch, Claim, ClaimKind, Holder, Placement, Waiting, Within
from startgate.model import objects
from startgate.model.queue import QueueSpec
from startgate.model.reasons import Code
from startgate.model.selectors import LabelSelector
from startgate.model.shape import PodTerm, Spread, narrowed
from tests.unit.worlds import cluster, gang, go_of, in_order, node, shape, stay_of, went, world

UNHURRIED = settings(deadline=None)  # the machine may be busy with other things

RACK, ZONE, HOST = "example.com/rack", "example.com/zone", "kubernetes.io/hostname"
IN_RACK = Within(key=RACK)
NEAR = Within(prefer=RACK)
ONE = shape(cpu=1)


def racks(**cpus: Iterable[int]) -> Cluster:
    """Nodes by rack, each with so many cores: `r1=(2, 2)` makes r1-0 and r1-1. `none` is no rack."""
    return cluster(
        *(
            node(f"{rack}-{i}", cpu=str(cpu), labels={HOST: f"{rack}-{i}", **({RACK: rack} if rack != "none" else {})})
            for rack, held in cpus.items()
            for i, cpu in enumerate(held)
        )
    )


def places(found: Iterable[Placement] | None) -> dict[str, int]:
    assert found is not None
    counts: Counter[str] = Counter()
    for placement in found:
        for name, count in placement.nodes:
            counts[name] += count
    return dict(counts)


# --- where there is room --------------------------------------------------------------------------------------------


def test_all_go_to_the_domain_that_would_have_the_least_left() -> None:
    room = Room(racks(a=(2, 2), b=(2, 1), c=(9,), none=(3,)))
    assert places(room.place([Batch(ONE, 3, IN_RACK)])) == {"b-0": 2, "b-1": 1}
    assert places(room.place([Batch(ONE, 3, IN_RACK)])) == {"a-0": 2, "a-1": 1}
    assert places(room.place([Batch(ONE, 3, IN_RACK)])) == {"c-0": 3}


def test_enough_in_sum_and_in_no_domain() -> None:
    room = Room(racks(a=(2, 2), b=(2, 1), none=(64,)))
    assert room.place([Batch(ONE, 5, IN_RACK)]) is None
    assert room.fits(ONE, within=IN_RACK) == 4
    assert places(room.place([Batch(ONE, 5)])) != {}


def test_a_domain_whose_nodes_have_something_special_is_spared() -> None:
    room = Room(cluster(node("a", cpu="4", gpu="8", labels={RACK: "a"}), node("b", cpu="64", labels={RACK: "b"})))
    assert places(room.place([Batch(ONE, 4, IN_RACK)])) == {"b": 4}


def test_the_pods_own_selector_decides_as_well() -> None:
    room = Room(racks(a=(4,), b=(2,)))
    pinned = shape(cpu=1, node_selector=((RACK, "a"),))
    assert places(room.place([Batch(pinned, 2, IN_RACK)])) == {"a-0": 2}


def test_several_kinds_of_pods_go_to_one_domain_together() -> None:
    big = shape(cpu=3)
    room = Room(racks(a=(3, 2), b=(2, 2, 2), c=(4, 4)))
    found = room.place([Batch(big, 1, IN_RACK), Batch(ONE, 3, IN_RACK)])
    assert places(found) == {"c-0": 4, "c-1": 2} or set(places(found)) <= {"c-0", "c-1"}


def test_only_the_given_value() -> None:
    room = Room(racks(a=(4,), b=(2,)))
    there = Within(key=RACK, value="b")
    assert room.place([Batch(ONE, 3, there)]) is None
    assert places([room.place_some(ONE, 3, there)]) == {"b-0": 2}
    assert room.place_some(ONE, 1, Within(key=RACK, value="gone")).nodes == ()


def test_as_many_as_fit_go_to_the_largest_domain_where_none_takes_all() -> None:
    assert places([Room(racks(a=(2, 2), b=(3,), none=(9,))).place_some(ONE, 8, IN_RACK)]) == {"a-0": 2, "a-1": 2}


def test_preferred_one_domain_if_one_takes_all_else_few() -> None:
    room = Room(racks(a=(2, 2), b=(5,), c=(4,), d=(1,), none=(1,)))
    assert set(places(room.place([Batch(ONE, 4, NEAR)]))) == {"a-0", "a-1"}
    assert places(room.place([Batch(ONE, 6, NEAR)])) == {"b-0": 5, "d-0": 1}
    assert places(room.place([Batch(ONE, 5, NEAR)])) == {"c-0": 4, "none-0": 1}


def test_preferred_near_the_others_then_anywhere() -> None:
    room = Room(racks(a=(9,), b=(2,)))
    near = Within(prefer=RACK, near="b")
    assert places([room.place_some(ONE, 3, near)]) == {"b-0": 2, "a-0": 1}
    assert places([room.place_some(ONE, 1, near)]) == {"a-0": 1}


def test_those_that_join_are_to_go_where_most_are_also_where_two_kinds_share_a_node() -> None:
    there = [Placement(ONE, (("a-0", 3),)), Placement(shape(cpu=2), (("b-0", 2), ("a-0", 1)))]
    assert settled(racks(a=(9,), b=(9,)), NEAR, there).near == "a"


def test_one_zone_for_sure_and_one_rack_if_it_can_be() -> None:
    def held(name: str, zone: str, rack: str, cpu: int) -> objects.Node:
        return node(name, cpu=str(cpu), labels={ZONE: zone, RACK: rack})

    room = Room(cluster(held("n1", "z1", "r", 2), held("n2", "z2", "r", 3), held("n3", "z2", "s", 4)))
    within = Within(key=ZONE, prefer=RACK)
    # Rack "r" has five places, but in two zones.
    assert places(room.place([Batch(ONE, 4, within)])) == {"n3": 4}
    assert room.place([Batch(ONE, 4, within)]) is None
    assert places(room.place([Batch(ONE, 3, within)])) == {"n2": 3}
    assert places(Room(room.cluster).place([Batch(ONE, 6, within)])) == {"n3": 4, "n2": 2}


def test_pods_that_keep_one_another_away_are_counted_by_domain() -> None:
    alone = shape(cpu=1, namespace="ns", labels=(("app", "x"),), apart=(_term(HOST),))
    room = Room(racks(a=(9,), b=(1, 1), c=(1, 1, 1)))
    assert set(places(room.place([Batch(alone, 2, IN_RACK)]))) == {"b-0", "b-1"}
    assert room.fits(alone, within=IN_RACK) == 3
    assert room.place([Batch(alone, 4, IN_RACK)]) is None


def test_a_spread_looks_at_the_chosen_domain_alone() -> None:
    # kube-scheduler counts the nodes that the selector lets in, which each pod gets with its domain.
    held = racks(a=(4, 4), b=(1,), c=(1,))
    spread = Spread(topology_key=HOST, max_skew=1, selector=LabelSelector({"app": "x"}))
    even = shape(cpu=1, namespace="ns", labels=(("app", "x"),), spread=(spread,))
    assert Room(held).place([Batch(even, 8)]) is None
    assert places(Room(held).place([Batch(even, 8, IN_RACK)])) == {"a-0": 4, "a-1": 4}


def _term(key: str) -> PodTerm:
    return PodTerm(topology_key=key, selector=LabelSelector({"app": "x"}), namespaces=("ns",))


@given(st.integers(0, 10**6))
@UNHURRIED
def test_placed_in_one_domain_if_any_takes_them(seed: int) -> None:
    rng = random.Random(seed)
    held = _some_cluster(rng)
    kinds = [shape(cpu=rng.choice([1, 2, 3]), gpu=rng.choice([0, 0, 1])) for _ in range(rng.choice([1, 1, 2]))]
    if rng.random() < 0.3:
        kinds[0] = shape(cpu=1, namespace="ns", labels=(("app", "x"),), apart=(_term(HOST),))
    asked = [Batch(each, rng.randint(1, 4)) for each in kinds]
    values = sorted({known.labels[RACK] for known in held.facts if known and RACK in known.labels})
    alone = [
        value
        for value in values
        if Room(held).place([Batch(narrowed(each.shape, {RACK: value}), each.count) for each in asked])
    ]
    room = Room(held)
    found = room.place([Batch(each.shape, each.count, IN_RACK) for each in asked])
    assert (found is not None) == bool(alone)
    if found is not None:
        assert {_label(held, name) for name in places(found)} <= set(alone)
        assert len({_label(held, name) for name in places(found)}) == 1
        room.free_up(found)
        same = room.place([Batch(each.shape, each.count, IN_RACK) for each in asked])
        assert places(same) == places(found)
    for each in kinds:
        best = max((Room(held).fits(narrowed(each, {RACK: value})) for value in values), default=0)
        assert Room(held).fits(each, within=IN_RACK) == best


@given(st.integers(0, 10**6))
@UNHURRIED
def test_the_order_of_nodes_has_no_influence(seed: int) -> None:
    rng = random.Random(seed)
    nodes = _some_nodes(rng)
    asked = [Batch(shape(cpu=rng.choice([1, 2])), rng.randint(1, 6), rng.choice([IN_RACK, NEAR]))]
    first = Room(cluster(*nodes)).place(asked)
    rng.shuffle(nodes)
    assert Room(cluster(*nodes)).place(asked) == first


@given(st.integers(0, 10**6))
@UNHURRIED
def test_preferred_goes_whenever_it_could_without(seed: int) -> None:
    rng = random.Random(seed)
    held = _some_cluster(rng)
    kind, count = shape(cpu=rng.choice([1, 2])), rng.randint(1, 9)
    preferred = Room(held).place([Batch(kind, count, NEAR)])
    assert (preferred is None) == (Room(held).place([Batch(kind, count)]) is None)
    if preferred is not None and Room(held).place([Batch(kind, count, IN_RACK)]) is not None:
        assert len({_label(held, name) for name in places(preferred)}) == 1


def _some_nodes(rng: random.Random) -> list[objects.Node]:
    return [
        node(
            f"n{i}",
            cpu=str(rng.randint(0, 5)),
            gpu=str(rng.choice([0, 0, 2])),
            labels={HOST: f"n{i}", **({RACK: rng.choice("abc")} if rng.random() < 0.9 else {})},
        )
        for i in range(rng.randint(1, 7))
    ]


def _some_cluster(rng: random.Random) -> Cluster:
    held = cluster(*_some_nodes(rng))
    for i in range(rng.randint(0, 3)):
        held.add_pod(f"u{i}", rng.choice(list(held.slots)), shape(cpu=rng.randint(1, 3)))
    return held


def _label(held: Cluster, name: str) -> str | None:
    known = held.facts[held.slots[name]]
    assert known is not None
    return known.labels.get(RACK)


# --- decisions ------------------------------------------------------------------------------------------------------

QUEUES = {"q": QueueSpec()}


def asks(name: str, *minimum: Batch, priority: int = 0, since: float = 0.0) -> Waiting:
    return replace(gang(name, "q", priority=priority, since=since), minimum=minimum)


def test_the_plan_says_what_keeps_the_pods_together() -> None:
    waiting = asks("g", Batch(ONE, 3, IN_RACK))
    more = replace(waiting, extra=(Batch(ONE, 2, IN_RACK),))
    plan = decide(world(racks(a=(2, 2), b=(8,)), QUEUES, [more]), 0.0)
    go = go_of(plan, "g")
    assert (go.count, dict(go.node_selector)) == (4, {RACK: "a"})  # the fifth would have to go elsewhere
    assert set(places(go.placements)) == {"a-0", "a-1"}
    assert go.numbers["domain"] == f"{RACK}=a"
    assert go.tight
    loose = decide(world(racks(a=(8, 8), b=(30,)), QUEUES, [waiting]), 0.0)
    assert not go_of(loose, "g").tight


def test_preferred_is_reserved_lest_it_be_scattered() -> None:
    waiting = asks("g", Batch(ONE, 3, NEAR))
    go = go_of(decide(world(racks(a=(30,), b=(3,)), QUEUES, [waiting]), 0.0), "g")
    assert (go.tight, dict(go.node_selector), places(go.placements)) == (True, {}, {"b-0": 3})
    alone = asks("g", Batch(ONE, 1, NEAR))
    assert not go_of(decide(world(racks(a=(30,), b=(3,)), QUEUES, [alone]), 0.0), "g").tight


@pytest.mark.parametrize("kind", [ClaimKind.FOLLOW, ClaimKind.REPLACE])
def test_pods_that_follow_go_where_the_others_are(kind: ClaimKind) -> None:
    def claim(within: Within) -> Claim:
        return Claim(gang="ns/g", queue="q", kind=kind, batches=(Batch(ONE, 2, within),))

    held = racks(a=(1,), b=(9,))
    plan = decide(world(held, QUEUES, claims=[claim(Within(key=RACK, value="a"))]), 0.0)
    go = go_of(plan, "g")
    assert (go.count, dict(go.node_selector), places(go.placements)) == (1, {RACK: "a"}, {"a-0": 1})
    near = go_of(decide(world(held, QUEUES, claims=[claim(Within(prefer=RACK, near="a"))]), 0.0), "g")
    assert (near.count, near.tight, places(near.placements)) == (2, True, {"a-0": 1, "b-0": 1})


def test_a_follower_without_room_there_says_where_it_has_to_go() -> None:
    claim = Claim(gang="ns/g", queue="q", kind=ClaimKind.FOLLOW, batches=(Batch(ONE, 1, Within(key=RACK, value="a")),))
    held = racks(a=(1,), b=(9,))
    held.add_pod("u", "a-0", ONE)
    stay = stay_of(decide(world(held, QUEUES, claims=[claim]), 0.0), "g")
    assert stay.reason.code is Code.NO_DOMAIN
    assert "in example.com/rack=a, which was chosen for its gang, 0 of 1 pod fit now" in stay.reason.message


def test_a_gathered_gang_may_go_to_another_domain_than_was_chosen() -> None:
    chosen = Within(key=RACK, value="a")
    claim = Claim(gang="ns/g", queue="q", kind=ClaimKind.GATHER, batches=(Batch(ONE, 3, chosen),))
    go = go_of(decide(world(racks(a=(2,), b=(3,)), QUEUES, claims=[claim]), 0.0), "g")
    assert (go.count, dict(go.node_selector)) == (3, {RACK: "b"})


def test_the_reason_names_the_best_domain() -> None:
    waiting = asks("g", Batch(ONE, 8, IN_RACK))
    held = racks(r1=(8, 2), r7=(6, 4), none=(9,))
    for uid, name, cpu in (("u", "r1-0", 5), ("v", "r7-1", 4)):
        held.add_pod(uid, name, shape(cpu=cpu))
    stay = stay_of(decide(world(held, QUEUES, [waiting]), 0.0), "g")
    assert stay.reason.code is Code.NO_DOMAIN
    assert stay.reason.message == (
        "has quota and waits for nodes together: no example.com/rack has room for all; in example.com/rack=r7, the "
        "best of 2, 6 of 8 pods fit now (1 cpu each); of 5 nodes: 3 outside example.com/rack=r7, 1 short of free cpu, "
        "1 with room for 6 and then short of free cpu; it starts when enough pods end in one place or nodes are added "
        "to it"
    )
    assert stay.shortage == {"cpu": 2000, "pods": 2}


def test_what_no_empty_domain_would_take() -> None:
    waiting = asks("g", Batch(ONE, 8, IN_RACK))
    stay = stay_of(decide(world(racks(r1=(4, 2), r7=(3, 4), none=(9,)), QUEUES, [waiting]), 0.0), "g")
    assert stay.reason.code is Code.NEVER_IN_DOMAIN
    assert "example.com/rack=r7 would take 7 of 8 pods of 1 cpu, the most of 2" in stay.reason.message
    nowhere = stay_of(decide(world(racks(none=(9,)), QUEUES, [waiting]), 0.0), "g")
    assert "no node that could take any has it" in nowhere.reason.message


def test_without_room_anywhere_the_label_is_not_to_blame() -> None:
    held = racks(a=(8,))
    held.add_pod("u", "a-0", shape(cpu=5))
    waiting = asks("g", Batch(ONE, 8, IN_RACK))
    assert stay_of(decide(world(held, QUEUES, [waiting]), 0.0), "g").reason.code is Code.NO_ROOM


def test_several_kinds_that_fit_in_no_domain_together() -> None:
    held = racks(a=(4, 1), b=(1, 1, 1, 1))
    held.add_pod("u", "a-1", ONE)
    two = shape(cpu=2, labels=(("k", "v"),))
    waiting = asks("g", Batch(two, 2, IN_RACK), Batch(ONE, 1, IN_RACK))
    stay = stay_of(decide(world(held, QUEUES, [waiting]), 0.0), "g")
    assert stay.reason.code is Code.NO_DOMAIN
    assert "in example.com/rack=a, the best of 2, 2 of 3 pods fit now (2 of 2 cpu; 1 of 1 cpu each)" in (
        stay.reason.message
    )


def test_those_give_way_who_are_in_one_domain() -> None:
    held = racks(a=(2,), b=(2,), c=(4,))
    victims, pods = [], {"low-a": ("a-0", 2), "low-b": ("b-0", 2), "low-c": ("c-0", 4)}
    for i, (name, (where, count)) in enumerate(pods.items()):
        for n in range(count):
            held.add_pod(f"{name}-{n}", where, ONE, ours=True)
        victims.append(
            Holder(
                gang=f"ns/{name}",
                queue="q",
                priority=0,
                since=100.0 - i,  # the one in the domain that is large enough is the oldest
                charge={"cpu": 1000 * count, "pods": count},
                pods=(Placement(ONE, ((where, count),)),),
                takeable=True,
            )
        )
    waiting = asks("high", Batch(ONE, 4, IN_RACK), priority=5)
    made = replace(world(held, QUEUES, [waiting], used={"q": {"cpu": 8000, "pods": 8}}), holders=tuple(victims))
    plan = decide(made, 200.0)
    assert [each.gang for each in plan.evict] == ["ns/low-c"]
    assert stay_of(plan, "high").reason.code is Code.MAKING_ROOM
    too_large = asks("high", Batch(ONE, 5, IN_RACK), priority=5)
    assert decide(replace(made, waiting=(too_large,)), 200.0).evict == ()


def test_patience_keeps_one_domain() -> None:
    held = racks(a=(4,), b=(4,))
    held.add_pod("u", "a-0", shape(cpu=3), ours=True)
    held.add_pod("v", "b-0", ONE, ours=True)
    overdue = asks("big", Batch(ONE, 4, IN_RACK), since=0.0)
    small = [asks(f"s{i}", Batch(ONE, 1), since=5000.0 + i) for i in range(4)]
    made = world(held, QUEUES, [overdue, *small], used={"q": {"cpu": 4000, "pods": 2}})
    plan = decide(made, 10_000.0)
    # Most of what it needs is free in b already: that is kept, and a is left to those behind it.
    assert went(plan) == ["s0"]
    assert places(go_of(plan, "s0").placements) == {"a-0": 1}


def test_two_gangs_get_a_domain_each() -> None:
    waiting = in_order(*(asks(n, Batch(ONE, 3, IN_RACK)) for n in ("g1", "g2", "g3")))
    plan = decide(world(racks(a=(2, 2), b=(4,), none=(20,)), QUEUES, waiting), 0.0)
    assert went(plan) == ["g1", "g2"]
    assert {dict(go.node_selector)[RACK] for go in plan.go} == {"a", "b"}


@given(st.integers(0, 10**6))
@UNHURRIED
def test_every_plan_keeps_gangs_together(seed: int) -> None:
    rng = random.Random(seed)
    nodes = _some_nodes(rng)
    waiting = []
    for i in range(rng.randint(1, 4)):
        kind, within = shape(cpu=rng.choice([1, 2])), rng.choice([IN_RACK, IN_RACK, NEAR, None])
        extra = (Batch(kind, rng.randint(1, 3), within),) if rng.random() < 0.5 else ()
        waiting.append(replace(asks(f"g{i}", Batch(kind, rng.randint(1, 4), within), since=float(i)), extra=extra))
    plan = decide(world(cluster(*nodes), QUEUES, waiting), 100.0)
    by_name = {each.metadata.name: each.metadata.labels for each in nodes}
    demands = {each.gang: each.minimum[0].within for each in waiting}
    for go in plan.go:
        values = {by_name[name].get(RACK) for name in places(go.placements)}
        if demands[go.gang] is IN_RACK:
            assert {(RACK, value) for value in values} == set(go.node_selector.items())
        else:
            assert not go.node_selector
    rng.shuffle(nodes)
    assert decide(world(cluster(*nodes), QUEUES, waiting), 100.0) == plan
