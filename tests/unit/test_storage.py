"""Volumes: the engine says of each node what kube-scheduler's plugins would, and what it places can be bound."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from startgate.engine.catalogue import UNLIMITED
from startgate.engine.volumes import Allowed, Volumes
from tests.unit.volume_reference import Json, Reference, RefusedError
from tests.unit.volume_worlds import WIDTH, another, loaded, pods, shape_of, turn, worlds

UNHURRIED = settings(deadline=None, max_examples=150)  # the machine may be busy with other things


def passes(allowed: Allowed, slot: int) -> int:
    """How many pods this node takes, as far as these say."""
    if allowed.mask is not None and not allowed.mask[slot]:
        return 0
    return min(allowed.most, int(allowed.caps[slot]) if allowed.caps is not None else UNLIMITED)


def place(volumes: Volumes, pod: Json, count: int, order: list[int]) -> list[int]:
    """Places so many such pods, one slot each, as the API is meant to be used; slots in the order of the pods."""
    placed: list[int] = []
    while True:
        allowed = volumes.allows(shape_of(pod))
        slots = [slot for slot in order if passes(allowed, slot)]
        if allowed.domains is not None and slots:
            slots = [slot for slot in slots if allowed.domains[slot] == allowed.domains[slots[0]]]
        counts, left = [], min(count - len(placed), allowed.most)
        for slot in slots:
            counts.append(min(left, passes(allowed, slot)))
            left -= counts[-1]
        got = volumes.take(shape_of(pod), slots, counts)
        assert got == counts or not allowed.independent
        placed += [slot for slot, number in zip(slots, got, strict=True) for _ in range(number)]
        if not any(got):
            return placed


@UNHURRIED
@given(world=worlds(), pod=pods("new"))
def test_a_pod_passes_where_it_passes_kube_schedulers_filters(world: Reference, pod: Json) -> None:
    volumes = Volumes(loaded(world), WIDTH)
    allowed = volumes.allows(shape_of(pod))
    for slot, name in enumerate(world.nodes):
        assert (passes(allowed, slot) > 0) == world.accepts(pod, name), name
        if not allowed.obstacle:
            assert (volumes.why(shape_of(pod), slot) is None) == world.accepts(pod, name), name


@UNHURRIED
@given(world=worlds(), gang=pods("new"), other=pods("other"), count=st.integers(1, 5), data=st.data())
def test_what_is_placed_can_be_bound(
    world: Reference, gang: Json, other: Json, count: int, data: st.DataObject
) -> None:
    names = list(world.nodes)
    order = data.draw(st.permutations(range(len(names))))
    volumes = Volumes(loaded(world), WIDTH)
    for pod in (gang, other):
        for index, slot in enumerate(place(volumes, pod, count, order)):
            world.place(another(pod, f"{pod['name']}{index}"), names[slot])


@UNHURRIED
@given(world=worlds(), pod=pods("new"), data=st.data())
def test_a_node_takes_as_many_as_kube_scheduler_would_put_there(
    world: Reference, pod: Json, data: st.DataObject
) -> None:
    slot = data.draw(st.integers(0, len(world.nodes) - 1))
    volumes = Volumes(loaded(world), WIDTH)
    cap = passes(volumes.allows(shape_of(pod)), slot)
    bound = 0
    try:
        while bound < 6:
            world.place(another(pod, f"new{bound}"), list(world.nodes)[slot])
            bound += 1
    except RefusedError:
        pass
    assert min(cap, 6) == bound
    assert volumes.take(shape_of(pod), [slot], [min(cap, 6)]) == [bound]


def answers(volumes: Volumes, asked: list[Json], world: Reference) -> list[object]:
    """All that can be said about these pods."""
    found: list[object] = []
    for pod in asked:
        allowed = volumes.allows(shape_of(pod))
        slots = range(len(world.nodes))
        domains = [int(allowed.domains[slot]) for slot in slots] if allowed.domains is not None else None
        found += [allowed.obstacle, allowed.most, allowed.independent, domains]
        found += [(passes(allowed, slot), volumes.why(shape_of(pod), slot)) for slot in slots]
    return found


GANGS = st.lists(pods("new"), min_size=1, max_size=3)


@UNHURRIED
@given(old=worlds(), new=worlds(), asked=GANGS, same=st.booleans(), order=st.randoms(use_true_random=False))
def test_what_was_before_and_in_which_order_things_came_makes_no_difference(
    old: Reference, new: Reference, asked: list[Json], same: bool, order: random.Random
) -> None:
    if same:
        new.pods = [(pod, node) for pod, node in old.pods if node in new.nodes]
    held = loaded(old)
    Volumes(held, WIDTH, bare=True)
    answers(Volumes(held, WIDTH), asked, old)  # all that is remembered is of the old world
    twin = held.copy()
    turn(held, old, new, order)
    expected = answers(Volumes(loaded(new), WIDTH), asked, new)
    assert answers(Volumes(held, WIDTH), asked, new) == expected
    assert answers(Volumes(loaded(new, order), WIDTH), asked, new) == expected
    assert answers(Volumes(twin, WIDTH), asked, old) == answers(Volumes(loaded(old), WIDTH), asked, old)


@UNHURRIED
@given(world=worlds(), gang=pods("new"), others=GANGS, count=st.integers(1, 4), forced=st.booleans())
def test_what_is_given_back_leaves_no_trace(
    world: Reference, gang: Json, others: list[Json], count: int, forced: bool
) -> None:
    volumes = Volumes(loaded(world), WIDTH)
    place(volumes, others[0], 1, list(range(len(world.nodes))))
    asked = [gang, *others]
    before = answers(volumes, asked, world)
    twin = volumes.copy()
    if forced:
        volumes.put(shape_of(gang), 0, count)
        volumes.give(shape_of(gang), 0, count)
    else:
        placed = place(volumes, gang, count, list(range(len(world.nodes))))
        assert answers(twin, asked, world) == before
        for slot in placed:
            volumes.give(shape_of(gang), slot, 1)
    assert answers(volumes, asked, world) == before


@UNHURRIED
@given(world=worlds(), asked=GANGS)
def test_without_the_pods_that_are_there_no_fewer_fit(world: Reference, asked: list[Json]) -> None:
    """What is said of an empty cluster never rules out what goes now, or would if all pods were given away."""
    held = loaded(world)
    now, empty = Volumes(held, WIDTH), Volumes(held, WIDTH, bare=True)
    for each, node in world.pods:
        now.give(shape_of(each), list(world.nodes).index(node), 1)
    for pod in asked:
        some, most = now.allows(shape_of(pod)), empty.allows(shape_of(pod))
        assert all(passes(some, slot) <= passes(most, slot) for slot in range(len(world.nodes)))
