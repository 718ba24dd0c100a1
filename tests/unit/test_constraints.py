"""Pods that other pods have a say in: what is placed can be bound in its order, and is as much as any order could."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from startgate.engine.cluster import Cluster
from startgate.engine.company import Company, Scratch
from startgate.engine.constraints import arrange, most
from startgate.engine.filters import demand
from startgate.engine.nodes import Ints
from startgate.model.selectors import LabelSelector, Requirement
from startgate.model.shape import PodTerm, Shape, Spread
from startgate.model.taints import Taint, Toleration
from tests.unit.scheduler_rules import Scene, Spot, There, let_in_one_by_one, most_in_any_order
from tests.unit.worlds import node

UNHURRIED = settings(deadline=None, max_examples=150)  # the machine may be busy with other things

ZONE, RACK, HOST = "zone", "rack", "host"
OURS, THEIRS, ALL, NOBODY = (
    LabelSelector(match_labels={"app": "ours"}),
    LabelSelector(match_expressions=(Requirement("app", "In", ("theirs",)),)),
    LabelSelector(),
    LabelSelector(match_expressions=(Requirement("app", "In", ("nobody",)),)),
)
TAINT = Taint("dedicated", "x", "NoSchedule")


class Stage:
    """A scene, as the engine sees it."""

    def __init__(self, scene: Scene, shape: Shape) -> None:
        self.scene = scene
        self.nodes = Cluster()
        self.company = Company()
        for spot in scene.spots:
            self.nodes.set_node(node(spot.name, labels=spot.labels, taints=spot.taints))
            self.company.set_node(self.nodes.slots[spot.name], spot.labels)
        for name, labels in scene.namespaces.items():
            self.company.set_namespace(name, labels)
        for pod in scene.pods:
            self.company.add(pod.shape, self.nodes.slots[pod.node], leaving=pod.leaving)
        self.caps: Ints = np.zeros(self.nodes.offers.shape[1], dtype=np.int64)
        for spot in scene.spots:
            self.caps[self.nodes.slots[spot.name]] = spot.takes
        self.caps *= self.nodes.matching(demand(shape))
        self.scratch: Scratch = self.company.over()

    def arrange(self, shape: Shape, count: int) -> list[tuple[str, int]]:
        found = arrange(shape, count, caps=self.caps, keys=self.nodes.ranks(), nodes=self.nodes, scratch=self.scratch)
        assert found.total == int(found.counts.sum()) <= count
        pairs = zip(found.slots.tolist(), found.counts.tolist(), strict=True)
        return [(self.nodes.names[slot], pods) for slot, pods in pairs]

    def most(self, shape: Shape, up_to: int) -> int:
        return most(shape, up_to, caps=self.caps, nodes=self.nodes, scratch=self.scratch)


def spot(name: str, takes: int = 9, **labels: str) -> Spot:
    return Spot(name, labels, takes=takes)


def pod(**constraints: Any) -> Shape:
    return Shape(namespace="ns", labels=(("app", "ours"),), **constraints)


def near(key: str, selector: LabelSelector | None = OURS, **more: Any) -> PodTerm:
    return PodTerm(key, selector, **({"namespaces": ("ns",)} | more))


def placed(shape: Shape, count: int, *spots: Spot, there: tuple[There, ...] = ()) -> dict[str, int]:
    stage = Stage(Scene(spots, there), shape)
    steps = stage.arrange(shape, count)
    assert let_in_one_by_one(stage.scene, shape, steps)
    sums: dict[str, int] = {}
    for name, pods in steps:
        sums[name] = sums.get(name, 0) + pods
    assert stage.most(shape, count) == sum(sums.values())
    return sums


def test_without_constraints_the_first_nodes_are_filled() -> None:
    assert placed(pod(), 12, spot("a"), spot("b"), spot("c")) == {"a": 9, "b": 3}


def test_one_pod_a_node_where_they_are_to_be_apart() -> None:
    shape = pod(apart=(near(HOST),))
    assert placed(shape, 5, spot("a", host="a"), spot("b", host="b")) == {"a": 1, "b": 1}
    # A node without the label is no domain: any number may go there.
    assert placed(shape, 5, spot("a", host="a"), spot("b")) == {"a": 1, "b": 4}


def test_one_pod_a_rack() -> None:
    spots = (spot("a", rack="1"), spot("b", rack="1"), spot("c", rack="2"))
    assert placed(pod(apart=(near(RACK),)), 5, *spots) == {"a": 1, "c": 1}


def test_pods_that_are_there_keep_others_away_and_are_kept_away_from() -> None:
    spots = (spot("a", zone="1"), spot("b", zone="2"), spot("c", zone="3"))
    unsocial = Shape(namespace="ns", labels=(("app", "theirs"),), apart=(near(ZONE),))
    assert placed(pod(), 9, *spots, there=(There(unsocial, "a"),)) == {"b": 9}
    avoided = Shape(namespace="ns", labels=(("app", "theirs"),))
    assert placed(pod(apart=(near(ZONE, THEIRS),)), 30, *spots, there=(There(avoided, "b"),)) == {"a": 9, "c": 9}


def test_pods_that_follow_others_go_where_those_are() -> None:
    spots = (spot("a", zone="1"), spot("b", zone="2"), spot("c", zone="2"), spot("d"))
    shape = pod(together=(near(ZONE, THEIRS),))
    theirs = Shape(namespace="ns", labels=(("app", "theirs"),))
    assert placed(shape, 20, *spots) == {}
    assert placed(shape, 20, *spots, there=(There(theirs, "c"),)) == {"b": 9, "c": 9}


def test_pods_that_stay_together_go_to_the_tightest_domain_that_has_room_for_all() -> None:
    spots = (spot("a", 9, zone="1"), spot("b", 2, zone="2"), spot("c", 4, zone="2"), spot("d", 3, zone="3"), spot("e"))
    shape = pod(together=(near(ZONE),))
    assert placed(shape, 3, *spots) == {"d": 3}
    assert placed(shape, 6, *spots) == {"b": 2, "c": 4}
    assert placed(shape, 20, *spots) == {"a": 9}
    assert placed(shape, 20, *spots, there=(There(pod(), "d"),)) == {"d": 3}
    # A pod of theirs on a node that has none of the labels counts for nothing: the first one may begin anywhere.
    assert placed(shape, 20, *spots, there=(There(pod(), "e"),)) == {"a": 9}


def test_one_and_the_same_pod_has_to_meet_all_terms() -> None:
    spots = (spot("a", zone="1", rack="1"), spot("b", zone="1", rack="2"), spot("c", zone="2", rack="1"))
    shape = pod(together=(near(ZONE, THEIRS), near(RACK, LabelSelector(match_labels={"tier": "db"}))))
    half = Shape(namespace="ns", labels=(("app", "theirs"),))
    other_half = Shape(namespace="ns", labels=(("tier", "db"),))
    whole = Shape(namespace="ns", labels=(("app", "theirs"), ("tier", "db")))
    assert placed(shape, 1, *spots, there=(There(half, "a"), There(other_half, "a"))) == {}
    assert placed(shape, 99, *spots, there=(There(whole, "a"),)) == {"a": 9}


def test_one_domain_that_has_room_for_all_is_found_among_many_that_have_not() -> None:
    spots = [spot(f"{number:03}", 9 if number == 77 else 2, host=str(number)) for number in range(100)]
    assert placed(pod(together=(near(HOST),)), 5, *spots) == {"077": 5}


def test_a_pod_that_has_part_of_the_labels_under_it_is_joined_by_nobody() -> None:
    spots = (spot("a", zone="1", rack="1"), spot("b", zone="1"), spot("c"))
    shape = pod(together=(near(ZONE), near(RACK)))
    assert placed(shape, 5, *spots) == {"a": 5}
    assert placed(shape, 5, *spots, there=(There(pod(), "c"),)) == {"a": 5}
    assert placed(shape, 5, *spots, there=(There(pod(), "b"),)) == {}


def test_zones_are_filled_evenly() -> None:
    shape = pod(spread=(Spread(ZONE, 1, OURS),))
    spots = (spot("a", zone="1"), spot("b", zone="2"), spot("c", 2, zone="3"), spot("d"))
    assert placed(shape, 6, *spots) == {"a": 2, "b": 2, "c": 2}
    # The third zone is full at 2: the others may have one more each.
    assert placed(shape, 30, *spots) == {"a": 3, "b": 3, "c": 2}
    assert placed(shape, 30, *spots, there=(There(pod(), "a"), There(pod(), "a"))) == {"a": 1, "b": 3, "c": 2}
    # One that is being deleted isn't counted.
    assert placed(shape, 30, *spots, there=(There(pod(), "a", leaving=True),)) == {"a": 3, "b": 3, "c": 2}


def test_with_fewer_domains_than_demanded_each_takes_no_more_than_the_skew() -> None:
    spots = (spot("a", zone="1"), spot("b", zone="2"))
    assert placed(pod(spread=(Spread(ZONE, 2, OURS, min_domains=3),)), 30, *spots) == {"a": 2, "b": 2}
    assert placed(pod(spread=(Spread(ZONE, 2, OURS, min_domains=2),)), 30, *spots) == {"a": 9, "b": 9}
    small = [spot(zone + name, 1, zone=zone) for zone in "12" for name in "abcd"]
    assert sorted(placed(pod(spread=(Spread(ZONE, 2, OURS, min_domains=3),)), 30, *small)) == ["1a", "1b", "2a", "2b"]


def test_nodes_that_the_pod_cannot_go_to_are_domains_or_not_as_the_policies_say() -> None:
    tainted = Spot("t", {"zone": "2"}, (TAINT,), 9)
    unselected = spot("u", zone="3")
    free = spot("a", zone="1", ok="y")
    tolerant = (Toleration(key="dedicated", operator="Exists"),)

    def spread(**policies: Any) -> Shape:
        return pod(spread=(Spread(ZONE, 1, OURS, **policies),))

    assert placed(spread(), 9, free, tainted) == {"a": 1}
    assert placed(spread(honors_taints=True), 9, free, tainted) == {"a": 9}
    selecting = {"node_selector": (("ok", "y"),)}
    assert placed(pod(spread=(Spread(ZONE, 1, OURS),), **selecting), 9, free, unselected) == {"a": 9}
    assert placed(pod(spread=(Spread(ZONE, 1, OURS, honors_affinity=False),), **selecting), 9, free, unselected) == {
        "a": 1
    }
    both = placed(pod(spread=(Spread(ZONE, 1, OURS, honors_taints=True),), tolerations=tolerant), 9, free, tainted)
    assert sorted(both.values()) == [4, 5]


def test_pods_on_nodes_that_are_no_domains_are_not_counted() -> None:
    tainted = Spot("t", {"zone": "1"}, (TAINT,), 9)
    spots, there = (spot("a", zone="1"), spot("b", 2, zone="2"), tainted), (There(pod(), "t"), There(pod(), "t"))
    assert placed(pod(spread=(Spread(ZONE, 1, OURS),)), 9, *spots, there=there) == {"a": 1, "b": 2}
    assert placed(pod(spread=(Spread(ZONE, 1, OURS, honors_taints=True),)), 9, *spots, there=there) == {"a": 3, "b": 2}


def test_a_spread_about_others_closes_their_zones_for_good() -> None:
    spots = (spot("a", zone="1"), spot("b", zone="2"))
    theirs = Shape(namespace="ns", labels=(("app", "theirs"),))
    there = (There(theirs, "a"), There(theirs, "a"))
    assert placed(pod(spread=(Spread(ZONE, 1, THEIRS),)), 30, *spots, there=there) == {"b": 9}


def test_an_empty_selector_of_a_spread_counts_nobody() -> None:
    spots = (spot("a", zone="1"), spot("b", zone="2"), spot("c"))
    assert placed(pod(spread=(Spread(ZONE, 1, ALL),)), 30, *spots) == {"a": 9, "b": 9}
    assert placed(pod(spread=(Spread(ZONE, 1, None),)), 30, *spots) == {"a": 9, "b": 9}


def test_pods_of_other_namespaces_count_where_the_term_says_so() -> None:
    elsewhere = Shape(namespace="team", labels=(("app", "ours"),))
    scene = Scene((spot("a", host="a"), spot("b", host="b")), (There(elsewhere, "a"),), {"team": {"kind": "team"}})
    by_label = near(HOST, namespaces=(), namespace_selector=LabelSelector(match_labels={"kind": "team"}))
    for term, steps in ((near(HOST), [("a", 1), ("b", 1)]), (by_label, [("b", 9)])):
        assert Stage(scene, pod(apart=(term,))).arrange(pod(apart=(term,)), 30) == steps


def test_it_is_said_when_the_nodes_must_not_be_left_to_chance() -> None:
    spots = (spot("a", 2, zone="1", host="a"), spot("b", 5, zone="2", host="b"))

    def steered(shape: Shape, there: tuple[There, ...] = ()) -> bool:
        stage = Stage(Scene(spots, there), shape)
        return arrange(
            shape, 2, caps=stage.caps, keys=stage.nodes.ranks(), nodes=stage.nodes, scratch=stage.scratch
        ).steered

    assert not steered(pod())
    assert not steered(pod(spread=(Spread(ZONE, 1, OURS),), apart=(near(HOST),)))
    assert steered(pod(spread=(Spread(ZONE, 1, OURS), Spread(HOST, 1, OURS))))
    # The first pod's zone is everyone's; where there is one already, there is nothing left to choose.
    assert steered(pod(together=(near(ZONE),)))
    assert not steered(pod(together=(near(ZONE),)), there=(There(pod(), "a"),))


def test_what_a_what_if_places_counts_for_the_next() -> None:
    shape = pod(apart=(near(HOST),))
    stage = Stage(Scene((spot("a", host="a"), spot("b", host="b"))), shape)
    before = stage.scratch.copy()
    found = arrange(shape, 1, caps=stage.caps, keys=stage.nodes.ranks(), nodes=stage.nodes, scratch=stage.scratch)
    stage.scratch.add(shape, found.slots.tolist(), found.counts.tolist())
    assert stage.arrange(shape, 5) == [("b", 1)]
    stage.scratch.add(shape, found.slots.tolist(), (-found.counts).tolist())
    assert stage.arrange(shape, 5) == [("a", 1), ("b", 1)]
    stage.scratch = before
    assert stage.arrange(shape, 5) == [("a", 1), ("b", 1)]


def test_of_pods_that_a_what_if_takes_away_those_that_leave_go_first() -> None:
    shape = pod(spread=(Spread(ZONE, 1, OURS),))
    stage = Stage(
        Scene(
            (spot("a", zone="1"), spot("b", 1, zone="2")),
            (There(pod(), "a", leaving=True), There(pod(), "a")),
        ),
        shape,
    )
    assert stage.most(shape, 9) == 2
    stage.scratch.add(pod(), [stage.nodes.slots["a"]], [-1])
    assert stage.most(shape, 9) == 2
    stage.scratch.add(pod(), [stage.nodes.slots["a"]], [-1])
    assert stage.most(shape, 9) == 3


# --- any case, against the scheduler's own rules -----------------------------------------------------------------

LABELS = st.fixed_dictionaries(
    {},
    optional={
        ZONE: st.sampled_from("12"),
        RACK: st.sampled_from("123"),
        "ok": st.just("y"),
    },
)
SELECTORS = st.sampled_from((OURS, THEIRS, ALL, NOBODY, None))
KEYS = st.sampled_from((ZONE, RACK, HOST))
TERMS = st.builds(
    PodTerm,
    KEYS,
    SELECTORS,
    st.sampled_from((("ns",), ("other",), ("ns", "other"), ())),
    st.sampled_from((None, None, ALL, LabelSelector(match_labels={"kind": "team"}))),
)


@st.composite
def spots(draw: st.DrawFn) -> tuple[Spot, ...]:
    made = []
    for name in "abcde"[: draw(st.integers(1, 5))]:
        labels = draw(LABELS) | ({HOST: name} if draw(st.integers(0, 5)) else {})
        taints = (TAINT,) if not draw(st.integers(0, 5)) else ()
        made.append(Spot(name, labels, taints, draw(st.integers(0, 3))))
    return tuple(made)


SPREADS = st.builds(
    Spread,
    KEYS,
    st.integers(1, 3),
    SELECTORS,
    st.sampled_from((1, 1, 2, 3)),
    st.booleans(),
    st.booleans(),
)
OTHERS = st.builds(
    Shape,
    namespace=st.sampled_from(("ns", "other")),
    labels=st.sampled_from(((("app", "ours"),), (("app", "theirs"),), ())),
    apart=st.lists(TERMS, max_size=1).map(tuple),
)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    places = draw(spots())
    names = st.sampled_from([spot.name for spot in places])
    pods = draw(st.lists(st.builds(There, OTHERS, names, st.booleans()), max_size=4))
    return Scene(places, tuple(pods), draw(st.sampled_from(({}, {"other": {"kind": "team"}, "ns": {}}))))


BASES = st.fixed_dictionaries(
    {
        "node_selector": st.sampled_from(((), (), (("ok", "y"),))),
        "tolerations": st.sampled_from(((), (Toleration(key="dedicated", operator="Exists"),))),
    }
)


def about_others(scene: Scene, terms: tuple[PodTerm, ...]) -> tuple[PodTerm, ...]:
    return tuple(term for term in terms if not scene.picks(term, pod()))


@st.composite
def simple(draw: st.DrawFn) -> tuple[Scene, Shape]:
    """Any constraints about others, and at most one that the pods themselves change."""
    scene = draw(scenes())
    few = st.lists(TERMS, max_size=2).map(tuple)
    apart, together = about_others(scene, draw(few)), about_others(scene, draw(few))
    spread = tuple(each for each in draw(st.lists(SPREADS, max_size=2)) if each.selector is not OURS)
    own = near(draw(KEYS))
    match draw(st.sampled_from(("none", "apart", "together", "spread"))):
        case "apart":
            apart = (*apart, own)
        case "together":
            together = (own, *([own] if draw(st.booleans()) else []), near(draw(KEYS)))
        case "spread":
            spread = (*spread, Spread(**{**_fields(draw(SPREADS)), "selector": OURS}))
    return scene, pod(apart=apart, together=together, spread=spread, **draw(BASES))


def _fields(spread: Spread) -> dict[str, Any]:
    return {name: getattr(spread, name) for name in spread.__struct_fields__}


@st.composite
def mixed(draw: st.DrawFn) -> tuple[Scene, Shape]:
    few = st.lists(TERMS, max_size=2).map(tuple)
    shape = pod(
        apart=draw(few),
        together=draw(few),
        spread=tuple(draw(st.lists(SPREADS, max_size=3))),
        **draw(BASES),
    )
    return draw(scenes()), shape


@UNHURRIED
@given(simple(), st.integers(1, 7))
def test_under_one_constraint_of_their_own_as_many_are_placed_as_any_order_could(
    case: tuple[Scene, Shape], count: int
) -> None:
    scene, shape = case
    stage = Stage(scene, shape)
    steps = stage.arrange(shape, count)
    assert let_in_one_by_one(scene, shape, steps)
    possible = most_in_any_order(scene, shape, count)
    assert sum(pods for _, pods in steps) == possible
    assert stage.most(shape, count) == possible


@UNHURRIED
@given(mixed(), st.integers(1, 7))
def test_under_any_constraints_what_is_placed_can_be_bound(case: tuple[Scene, Shape], count: int) -> None:
    scene, shape = case
    steps = Stage(scene, shape).arrange(shape, count)
    assert let_in_one_by_one(scene, shape, steps)


@st.composite
def nested(draw: st.DrawFn) -> tuple[Scene, Shape]:
    """Nodes in racks in zones, with pods that are spread over two of these, or over one and apart in another."""
    places = []
    for name in "abcde"[: draw(st.integers(2, 5))]:
        zone = draw(st.sampled_from("12"))
        places.append(
            spot(name, draw(st.integers(0, 3)), zone=zone, rack=zone + draw(st.sampled_from("xy")), host=name)
        )
    inner, outer = draw(st.sampled_from(((RACK, ZONE), (HOST, ZONE), (HOST, RACK))))
    spread = Spread(outer, draw(st.integers(1, 2)), OURS)
    if draw(st.booleans()):
        shape = pod(spread=(spread, Spread(inner, draw(st.integers(1, 2)), OURS)))
    else:
        shape = pod(spread=(spread,), apart=(near(inner),))
    there = draw(st.lists(st.sampled_from([each.name for each in places]), max_size=3))
    return Scene(tuple(places), tuple(There(shape, name) for name in there)), shape


@UNHURRIED
@given(nested(), st.integers(1, 7))
def test_under_two_constraints_of_which_one_is_within_the_other_nothing_is_missed(
    case: tuple[Scene, Shape], count: int
) -> None:
    scene, shape = case
    stage = Stage(scene, shape)
    steps = stage.arrange(shape, count)
    assert let_in_one_by_one(scene, shape, steps)
    assert sum(pods for _, pods in steps) == stage.most(shape, count) == most_in_any_order(scene, shape, count)


def test_a_thousand_pods_on_five_thousand_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    spots = tuple(spot(f"n{each}", 8, zone=str(each % 3), host=str(each), rack=str(each // 20)) for each in range(5000))
    zones, hosts = Spread(ZONE, 1, OURS), Spread(HOST, 1, OURS)
    stage = Stage(Scene(spots), pod())
    for shape in (pod(spread=(zones,), apart=(near(HOST),)), pod(spread=(zones, hosts)), pod(together=(near(ZONE),))):
        began = time.process_time()
        found = stage.arrange(shape, 1000)
        with capsys.disabled():
            print(f" {1000 * (time.process_time() - began):.0f} ms", end="")
        by_node = {name: 0 for name, _ in found}
        by_zone = dict.fromkeys("012", 0)
        for name, pods in found:
            by_node[name] += pods
            by_zone[stage.scene.spots[int(name[1:])].labels[ZONE]] += pods
        if shape.spread:
            assert set(by_node.values()) == {1}
            assert sorted(by_zone.values()) == [333, 333, 334]
        else:
            assert sorted(by_zone.values()) == [0, 0, 1000]
