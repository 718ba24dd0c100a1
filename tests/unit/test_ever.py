"""Never, some day, not sure: each is so, shown by all ways in which the pods on small random clusters can end."""

import re
from collections.abc import Iterator
from itertools import chain, combinations
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from startgate.engine.cycle import decide
from startgate.engine.ever import most_ever
from startgate.engine.explain import HOPELESS
from startgate.engine.fit import Room
from startgate.engine.world import Batch, Plan, Stay, Within
from startgate.model.queue import QueueSpec
from startgate.model.reasons import Code
from startgate.model.shape import HostPort, Shape, Spread
from tests.unit.misfits import HOST, JOB, ZONE, Scene, gangs, near, places, pods_there, selecting
from tests.unit.worlds import cluster, gang, in_order, node, shape, stay_of, went, world

ANY = {"q": QueueSpec()}
THOROUGH = settings(deadline=None, max_examples=300)

WITHIN = st.sampled_from([None, Within(key=ZONE), Within(key=ZONE), Within(prefer=ZONE)])
FLOORS = st.sampled_from([1, 1, 1, 2, 3])


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Scene, tuple[Batch, ...]]:
    """A few pods on a few nodes, and a gang of one kind, or of two."""
    nodes = draw(places())
    names = st.sampled_from([place.name for place in nodes])
    there = draw(st.lists(st.tuples(pods_there(), names), max_size=4))
    within, batches = draw(WITHIN), []
    for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
        made = draw(gangs())
        spread = tuple(
            replace(each, min_domains=draw(FLOORS), honors_affinity=draw(st.booleans())) for each in made.spread
        )
        asked = replace(made, spread=spread, request=(("cpu", draw(st.integers(1, 3)) * 1000), ("pods", 1)))
        batches.append(Batch(asked, draw(st.integers(1, 5)), within))
    return Scene(nodes, there, batches[0].shape, batches[0].count), tuple(batches)


def plan_of(scene: Scene, batches: tuple[Batch, ...], there: tuple[tuple[Shape, str], ...]) -> Plan:
    waiting = replace(gang("g", "q"), minimum=batches)
    left = Scene(scene.places, list(there), scene.shape, scene.count)
    return decide(world(left.cluster(), ANY, [waiting]), 0)


def ends(scene: Scene) -> Iterator[tuple[tuple[Shape, str], ...]]:
    """Who is still there, in every way in which some can have ended: none of them first."""
    return chain.from_iterable(combinations(scene.there, size) for size in range(len(scene.there) + 1))


def could_go(scene: Scene, batches: tuple[Batch, ...]) -> bool:
    return any(went(plan_of(scene, batches, there)) for there in ends(scene))


@THOROUGH
@given(crowds())
def test_never_is_never_and_when_pods_end_is_when_they_have_ended(case: tuple[Scene, tuple[Batch, ...]]) -> None:
    scene, batches = case
    plan = plan_of(scene, batches, tuple(scene.there))
    if not plan.stay:
        return
    told = stay_of(plan, "g").reason
    event(told.code)
    if told.code in HOPELESS:
        assert not could_go(scene, batches), told.message
    elif "pods end" in told.message or "enough is free" in told.message or "enough of them end" in told.message:
        assert could_go(scene, batches), told.message
    elif "with every node empty none are found" in told.message:
        assert not went(plan_of(scene, batches, ())), told.message
    else:
        assert "affinity asks for" in told.message or told.code is Code.CLUSTER_IN_USE, told.message


@THOROUGH
@given(crowds())
def test_the_numbers_of_a_sentence_agree(case: tuple[Scene, tuple[Batch, ...]]) -> None:
    scene, batches = case
    for stay in plan_of(scene, batches, tuple(scene.there)).stay:
        message = stay.reason.message
        if (found := re.search(r"of (\d+) nodes?: (.*?)(?:;|$)", message)) is not None:
            groups = re.findall(r"(?:^|, )(\d+) ", found[2])
            assert int(found[1]) == sum(map(int, groups)) == len(scene.places), message
        for fit, pods in re.findall(r"(\d+) of (?:its )?(\d+) pods? fit now", message):
            assert int(fit) < int(pods), message


@THOROUGH
@given(crowds())
def test_what_no_empty_node_would_take_is_never_placed(case: tuple[Scene, tuple[Batch, ...]]) -> None:
    """No way of placing them gets beyond it, whoever is there."""
    scene, batches = case
    for batch in batches:
        room = scene.room()
        most = most_ever(room, batch.shape, batch.count, alone=len(batches) == 1, within=batch.within)
        for there in ends(scene):
            now = Room(Scene(scene.places, list(there), batch.shape, batch.count).cluster())
            assert min(now.fits(batch.shape, batch.count, batch.within), batch.count) <= most.pods


def test_kinds_that_keep_one_another_away_don_t_speak_for_those_that_do_not() -> None:
    """Two gangs of two kinds, alike but for a label that matters within the gang alone."""
    alone = shape(cpu=1, namespace="ns", labels=(("app", "web"),), apart=(near(HOST, selecting(app="cache")),))
    cache, other = (shape(cpu=1, namespace="ns", labels=(("app", app),)) for app in ("cache", "other"))
    waiting = in_order(gang("first", "q", (1, cache), (1, alone)), gang("second", "q", (1, other), (1, alone)))
    made = world(cluster(node("n", cpu="4", labels={HOST: "n"}), node("full", cpu="0")), ANY, waiting)
    assert went(decide(made, 0)) == ["second"]


def test_gangs_of_two_kinds_that_differ_in_the_name_of_their_job_alone_are_judged_once() -> None:
    room = Room(cluster(node("n", cpu="4", labels={HOST: "n"})))

    def kinds(job: str) -> tuple[Batch, ...]:
        labels, apart = ((JOB, job),), (near(HOST, selecting(job=job)),)
        leader = shape(cpu=1, namespace="ns", labels=labels)
        return room.kinds((Batch(leader, 1), Batch(replace(leader, apart=apart), 2)))

    assert kinds("a") == kinds("b")
    first, second = kinds("a")
    assert second.shape.apart[0].picks("ns", first.shape.label_map, {})


# The kinds of gangs that were told something else.


def racks(*sizes: float) -> list[tuple[str, float]]:
    """Two nodes in each rack, with so much cpu each."""
    return [(f"r{rack}-{place}", cpu) for rack, cpu in enumerate(sizes, 1) for place in (1, 2)]


def told(nodes: list[tuple[str, float]], count: int, asked: Shape, *there: tuple[str, Shape]) -> Stay:
    made = cluster(*(node(name, cpu=f"{cpu}", labels={HOST: name, "rack": name[:2]}) for name, cpu in nodes))
    for number, (name, each) in enumerate(there):
        made.add_pod(f"p{number}", name, each)
    waiting = replace(gang("g", "q"), minimum=(Batch(asked, count, Within(key="rack")),))
    return stay_of(decide(world(made, ANY, [waiting]), 0), "g")


def own(**demands: Any) -> Shape:
    return shape(cpu=1, namespace="ns", labels=(("app", "web"), (JOB, "g")), **demands)


def test_what_is_judged_in_a_rack_is_told_of_a_rack() -> None:
    """Over the nodes of all racks the spread could never be kept."""
    spread = own(spread=(Spread(HOST, 1, selecting(job="g")),))
    stay = told(racks(2, 0.5), 4, spread, ("r1-1", shape(cpu=1)))
    assert stay.reason.code is Code.NO_ROOM
    assert stay.reason.message.startswith(
        "has quota and waits for nodes: 3 of 4 pods fit now (1 cpu each); of 4 nodes: 2 outside rack=r1, "
        "2 with room for 1 or 2 each and then short of free cpu; it starts when enough pods end"
    )


def test_more_than_a_rack_takes_by_other_things_than_amounts_is_never() -> None:
    demands = {
        "host ports": own(ports=(HostPort(80),)),
        "apart": own(apart=(near(HOST, selecting(app="web")),)),
        "floor": own(spread=(Spread(HOST, 1, selecting(app="web"), min_domains=3),)),
    }
    for name, asked in demands.items():
        stay = told(racks(2, 2), 3, asked)
        assert stay.reason.code is Code.NEVER_IN_DOMAIN, name
        assert "with every node empty rack=r1 would take 2 of 3 pods of 1 cpu, the most of 2" in stay.reason.message
        assert stay.reason.message.endswith("; ask for less, name another label, or add nodes")


def test_another_label_is_proposed_only_where_it_could_help() -> None:
    stay = told(racks(2, 2), 5, own(ports=(HostPort(80),)))
    assert stay.reason.code is Code.NEVER_IN_DOMAIN
    assert stay.reason.message.endswith("; ask for less, or add nodes")


def test_what_no_domain_is_lacking_is_said_node_by_node() -> None:
    stay = told(racks(2, 1), 4, own(), ("r1-1", shape(cpu=2)))
    assert stay.reason.message == (
        "has quota and waits for nodes together: no rack has room for all; in rack=r1, the best of 2, 2 of 4 pods fit "
        "now (1 cpu each); of 4 nodes: 2 outside rack=r1, 1 short of free cpu, 1 with room for 2 and then short of "
        "free cpu; it starts when enough pods end in one place or nodes are added to it"
    )
