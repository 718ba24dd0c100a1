"""Each node by what rules it out: counts add up, what is named is in the way, and never means never."""

from collections import Counter
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from startgate.engine import explain
from startgate.engine.filters import Demand, demand, obstacle, words
from startgate.engine.fit import Room
from startgate.engine.hurdles import NOBODY, NONE
from startgate.engine.misfit import Sorted, sort_out
from startgate.engine.world import Batch
from startgate.model.selectors import LabelSelector
from startgate.model.shape import OWN, HostPort, Shape
from tests.unit.misfits import JOB, ZONE, Place, Scene, places, pods_there, scenes
from tests.unit.worlds import GPU

THOROUGH = settings(deadline=None, max_examples=300)


def misfits(scene: Scene) -> tuple[Room, Sorted | None]:
    room = scene.room()
    return room, sort_out(room, scene.shape, scene.count)


def said_of(found: Sorted, room: Room) -> dict[str, tuple[int, str]]:
    """By node: how many pods it takes, and what rules it out for one more."""
    slots = room.cluster.slots
    return {name: (int(found.takes[slot]), found.words[found.of[slot]]) for name, slot in slots.items()}


@THOROUGH
@given(scenes())
def test_counts_add_up_to_all_nodes_and_what_fits_is_what_the_room_says(scene: Scene) -> None:
    room, found = misfits(scene)
    fits = room.fits(scene.shape, scene.count)
    if found is None:
        assert fits >= scene.count
        return
    assert found.fit == fits < scene.count
    assert sum(count for count, _ in found.groups()) == len(scene.places)
    said = Counter(text for takes, text in said_of(found, room).values() if not takes)
    assert said == Counter({text: count for count, text in found.groups() if " and then " not in text})
    assert room.fits(scene.shape, scene.count) == fits  # the room is as it was
    assert room.place((Batch(scene.shape, scene.count),)) is None


def _eased(scene: Scene, place: Place, text: str) -> None:
    """Takes away what the words name, there or everywhere."""
    if "affinity)" in text or text.startswith(("without label", "with host port")) or "topology spread" in text:
        _demand_less(scene, place, text)
    elif text == "cordoned":
        place.cordoned = False
    elif text.startswith("with taint"):
        place.taints = tuple(each for each in place.taints if f" {each.key}" not in text)
    elif text == "outside the node affinity":
        place.labels["arch"] = "arm"
    elif text.startswith(("without ", "with less than", "short of free")):
        place.cpu += 100 * ("cpu" in text)
        place.gpu += 100 * (GPU in text)
    elif "nominated pods" in text:
        scene.nominated = []
    else:
        pytest.fail(f"nobody knows what {text!r} means")


def _demand_less(scene: Scene, place: Place, text: str) -> None:
    if text.startswith("without label"):
        place.labels.setdefault(ZONE, "a")
        place.labels |= {ZONE: "a"} if f"{ZONE}=a" in text else {}
    elif "(anti-affinity)" in text:
        scene.there = [(replace(each, apart=()), name) for each, name in scene.there]
        scene.shape = replace(scene.shape, apart=())
    elif "(its anti-affinity)" in text:
        scene.shape = replace(scene.shape, apart=())
    elif "affinity)" in text:
        scene.shape = replace(scene.shape, together=())
    elif "topology spread" in text:
        scene.shape = replace(scene.shape, spread=())
    else:
        scene.shape = replace(scene.shape, ports=())


@THOROUGH
@given(scenes(), st.data())
def test_without_what_is_named_the_node_takes_a_pod_or_something_else_is_named(
    scene: Scene, data: st.DataObject
) -> None:
    room, found = misfits(scene)
    if found is None:
        return
    said = said_of(found, room)
    name = data.draw(st.sampled_from(sorted(said)))
    takes, text = said[name]
    eased = deepcopy(scene)
    _eased(eased, eased.place(name), text)
    room, after = misfits(eased)
    if after is not None:
        assert said_of(after, room)[name] != (takes, text)


def _never(scene: Scene) -> bool:
    room = scene.room()
    if sort_out(room, scene.shape, scene.count) is None:
        return False
    return explain.no_room(room, (Batch(scene.shape, scene.count),)).hopeless


@THOROUGH
@given(scenes(), st.data())
def test_never_is_said_only_where_no_coming_and_going_of_pods_would_help(scene: Scene, data: st.DataObject) -> None:
    assume(_never(scene))
    others = deepcopy(scene)
    others.nominated = []
    others.there = data.draw(st.lists(st.sampled_from(scene.there), unique_by=id)) if scene.there else []
    names = st.sampled_from([place.name for place in scene.places])
    others.there += data.draw(st.lists(st.tuples(pods_there(), names), max_size=8))
    assert not others.room().place((Batch(scene.shape, scene.count),)), others.there


@THOROUGH
@given(scenes())
def test_what_fits_on_nodes_with_nothing_on_them_is_not_called_never(scene: Scene) -> None:
    empty = deepcopy(scene)
    empty.there, empty.nominated = [], []
    if empty.room().fits(scene.shape, scene.count) >= scene.count:
        assert not _never(scene)


@THOROUGH
@given(scenes(), st.sampled_from(["a", "b"]))
def test_gangs_that_differ_in_labels_nobody_has_are_of_one_kind(scene: Scene, other: str) -> None:
    """So what was worked out for one holds for the other."""
    room = scene.room()
    kind = room.kind(scene.shape)
    assert room.fits(kind, scene.count) == room.fits(scene.shape, scene.count)
    if kind not in (scene.shape, scene.shape.plain) and kind.label_map[JOB] == OWN:
        renamed = _renamed(scene.shape, other)
        assert room.kind(renamed) == kind
        assert room.fits(renamed, scene.count) == room.fits(kind, scene.count)


def _renamed(shape: Shape, job: str) -> Shape:
    def selector(each: LabelSelector | None) -> LabelSelector:
        assert each is not None
        return LabelSelector({key: job if key == JOB else value for key, value in each.match_labels.items()})

    return replace(
        shape,
        labels=tuple((key, job if key == JOB else value) for key, value in shape.labels),
        together=tuple(replace(each, selector=selector(each.selector)) for each in shape.together),
        apart=tuple(replace(each, selector=selector(each.selector)) for each in shape.apart),
        spread=tuple(replace(each, selector=selector(each.selector)) for each in shape.spread),
    )


@THOROUGH
@given(places(), st.lists(st.tuples(st.integers(0, 6), places()), max_size=6), scenes())
def test_hurdles_follow_the_nodes(nodes: list[Place], changes: list[tuple[int, list[Place]]], scene: Scene) -> None:
    cluster = Scene(nodes, [], scene.shape, 1).cluster()
    asked: Demand = demand(scene.shape)
    cluster.hurdles.of(asked)
    for number, news in changes:
        for place in news[: number + 1]:
            cluster.set_node(place.node())
        cluster.remove_node(f"n{number}")
        found = cluster.hurdles.of(asked)
        for slot, of in enumerate(found.of.tolist()):
            known = cluster.facts[slot] if slot < len(cluster.facts) else None
            if known is None:
                assert of == NOBODY
            else:
                what = obstacle(asked, known)
                assert (found.words[of] if of != NONE else None) == (None if what is None else words(what))


def test_what_a_large_cluster_lacks_is_said_in_short() -> None:
    nodes = [Place(f"n{i}", labels={f"label{i}": "x"}, cpu=1 + i) for i in range(40)]
    scene = Scene(nodes, [], Shape(request=(("cpu", 99_000), ("pods", 1)), ports=(HostPort(1),)), 3)
    _, found = misfits(scene)
    assert found is not None
    assert found.sentence() == "of 40 nodes: 40 with less than 99 cpu"
    assert not np.any(found.takes)
