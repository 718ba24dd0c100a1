"""Patience where more than amounts keeps the overdue gang waiting: ports, affinity and spread of others.

What is asked of it is what it promises: whoever starts meanwhile, the overdue gang can start once those are gone that
were there.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from startgate.engine.cluster import Cluster
from startgate.engine.cycle import decide
from startgate.engine.world import Go, Waiting
from startgate.model.queue import QueueSpec
from startgate.model.reasons import Code
from startgate.model.selectors import LabelSelector
from startgate.model.shape import HostPort, PodTerm, Shape, Spread
from tests.unit.test_giving_way import ANY, Field
from tests.unit.worlds import cluster, gang, node, shape, stay_of, went

UNHURRIED = settings(deadline=None)  # the machine may be busy with other things
HOST, ZONE = "kubernetes.io/hostname", "zone"
X: dict[str, Any] = {"namespace": "ns", "labels": (("app", "x"),)}
THE_XS = LabelSelector(match_labels={"app": "x"})

PORT = shape(cpu=1, ports=(HostPort(8080),))
APART = shape(cpu=1, apart=(PodTerm(HOST, THE_XS, ("ns",)),), **X)
SPREAD = shape(cpu=1, spread=(Spread(HOST, 1, THE_XS),), **X)
NEAR = shape(cpu=1, together=(PodTerm(ZONE, THE_XS, ("ns",)),), namespace="ns")
PLAIN_X = shape(cpu=1, **X)


def nodes(*cpus: int) -> Cluster:
    """Those with even numbers are in zone a, the others in zone b."""
    return cluster(
        *(node(f"n{i}", cpu=str(each), labels={HOST: f"n{i}", ZONE: "ab"[i % 2]}) for i, each in enumerate(cpus))
    )


@pytest.mark.parametrize("each", [PORT, APART], ids=["port", "apart"])
def test_who_is_kept_waiting_by_more_than_amounts_is_protected(each: Shape) -> None:
    field = Field(nodes(8, 8, 8), ANY)
    field.runs("old", "q", each, {"n0": 1})
    big, small = gang("big", "q", (3, each)), gang("small", "q", (1, each), since=500.0)
    assert went(decide(field.with_waiting(big, small), 599.0)) == ["small"]
    plan = decide(field.with_waiting(big, small, gang("plain", "q", (1, shape(cpu=1)), since=500.0)), 600.0)
    assert went(plan) == ["plain"]
    assert stay_of(plan, "small").reason.code is Code.OTHERS_FIRST


def test_the_zone_where_it_will_have_company_is_kept() -> None:
    """n0 is full with a gang; there alone, beside the pod in zone a that isn't a gang's, big can go once that ends."""
    field = Field(nodes(3, 3), ANY)
    field.nodes.add_pod("x", "n0", PLAIN_X)
    field.runs("old", "q", shape(cpu=1), {"n0": 1})
    big = gang("big", "q", (2, NEAR))
    smalls = [gang(f"s{i}", "q", (1, shape(cpu=1)), since=500.0 + i) for i in range(4)]
    assert went(decide(field.with_waiting(big, *smalls), 600.0)) == ["s0", "s1", "s2"]


@pytest.mark.parametrize(
    ("outsider", "how"),
    [
        (shape(ports=(HostPort(8080),)), {}),
        (shape(ports=(HostPort(8080),)), {"nominated": True}),
        (shape(apart=(PodTerm(HOST, THE_XS, ("ns",)),), namespace="ns"), {}),
    ],
    ids=["port", "port to be", "apart"],
)
def test_who_is_kept_waiting_by_others_than_gangs_is_not(outsider: Shape, how: dict[str, bool]) -> None:
    """Nobody knows whether those ever end. The small one would have all of n0."""
    each = shape(cpu=1, ports=(HostPort(8080),), **X)
    field = Field(nodes(8, 8), ANY)
    field.nodes.add_pod("other", "n0", outsider, **how)
    field.runs("old", "q", each, {"n1": 1})
    small = gang("small", "q", (1, shape(cpu=8)), since=500.0)
    assert went(decide(field.with_waiting(gang("big", "q", (2, each)), small), 600.0)) == ["small"]


def test_who_is_kept_waiting_by_what_is_on_its_way_out_is_protected() -> None:
    field = Field(nodes(8, 8), ANY)
    field.nodes.add_pod("other", "n0", shape(ports=(HostPort(8080),)), leaving=True)
    field.runs("old", "q", PORT, {"n1": 1})
    small = gang("small", "q", (1, shape(cpu=8)), since=500.0)
    assert went(decide(field.with_waiting(gang("big", "q", (2, PORT)), small), 600.0)) == []


def test_who_can_never_fit_is_not_protected() -> None:
    """Two kinds of pods that want the same port, and one node."""
    field = Field(nodes(4), ANY)
    field.runs("old", "q", PORT, {"n0": 1})
    big = gang("big", "q", (1, PORT), (1, shape(cpu=2, ports=(HostPort(8080),))))
    assert went(decide(field.with_waiting(big, gang("small", "q", (3, shape(cpu=1)), since=500.0)), 600.0)) == ["small"]


def test_one_with_two_kinds_of_pods_is_protected_whichever_has_the_larger_choice() -> None:
    """Those that need company have n0 alone."""
    field = Field(nodes(3, 1), ANY)
    field.nodes.add_pod("x", "n0", PLAIN_X)
    field.runs("old", "q", shape(cpu=1), {"n0": 1})
    big = gang("big", "q", (1, shape(cpu=1)), (2, NEAR))
    assert went(decide(field.with_waiting(big, gang("small", "q", (1, shape(cpu=1)), since=500.0)), 600.0)) == []


TWICE_SPREAD = shape(cpu=1, spread=(Spread(HOST, 1, THE_XS), Spread(ZONE, 1, THE_XS, min_domains=2)), **X)
NEAR_ITS_OWN = shape(cpu=2, together=(PodTerm(HOST, THE_XS, ("ns",)),), **X)


@pytest.mark.parametrize(
    ("cores", "minimum", "less"),
    [(2, [(4, TWICE_SPREAD)], 1), (4, [(2, NEAR_ITS_OWN), (1, shape(cpu=2, **X))], 3)],
    ids=["two spreads", "two kinds"],
)
def test_nobody_waits_for_who_is_not_sure_to_go_on_an_empty_cluster(
    cores: int, minimum: list[tuple[int, Shape]], less: int
) -> None:
    field = Field(nodes(cores, cores), ANY)
    big, small = gang("big", "q", *minimum), gang("small", "q", (1, shape(cpu=less)), since=500.0)
    alone = decide(field.with_waiting(big), 600.0)
    assert stay_of(alone, "big").reason.code is Code.NOT_SURE
    assert went(decide(field.with_waiting(big, small), 600.0)) == ["small"]


def test_nobody_waits_for_who_would_need_what_is_kept_for_others() -> None:
    """As when a node is lost: until it is back, nothing that ends lets big go."""
    queues = {"a": QueueSpec(deserved={"cpu": "8"}), "c": QueueSpec(guarantee={"cpu": "4"})}
    for cores, waits in ((4, ["small"]), (8, [])):
        field = Field(nodes(4, cores), queues)
        field.runs("old", "a", shape(cpu=1), {"n0": 1})
        big, small = gang("big", "a", (8, shape(cpu=1))), gang("small", "a", (1, shape(cpu=1)), since=500.0)
        assert went(decide(field.with_waiting(big, small), 600.0)) == waits


def test_who_is_sure_to_have_given_its_port_back_in_time_may_pass() -> None:
    field = Field(nodes(4, 4), ANY)
    field.runs("old", "q", PORT, {"n0": 1}, ends=2000.0)
    field.runs("plain", "q", shape(cpu=1), {"n1": 1}, ends=1500.0)
    big = gang("big", "q", (2, PORT))
    for lasts, goes in ((900.0, ["s"]), (1100.0, [])):
        assert (
            went(decide(field.with_waiting(big, gang("s", "q", (1, PORT), since=700.0, lasts=lasts)), 1000.0)) == goes
        )


def test_it_starts_when_the_first_are_gone_that_are_enough() -> None:
    field = Field(nodes(4, 4, 4), ANY)
    for i, ends in ((1, 2000.0), (2, 1500.0)):
        field.runs(f"old{i}", "q", PORT, {f"n{i}": 1}, ends=ends)
    big = gang("big", "q", (2, PORT))
    for lasts, passes in ((400.0, ["s"]), (900.0, [])):
        small = gang("s", "q", (1, PORT), since=700.0, lasts=lasts)
        assert went(decide(field.with_waiting(big, small), 1000.0)) == passes


def test_those_who_will_have_ended_are_still_there_for_all_others() -> None:
    field = Field(nodes(4, 4), ANY)
    field.runs("old", "q", PORT, {"n0": 1}, ends=2000.0)
    small = [gang(f"s{i}", "q", (1, PORT), since=700.0 + i, lasts=900.0) for i in range(2)]
    assert went(decide(field.with_waiting(gang("big", "q", (2, PORT)), *small), 1000.0)) == ["s0"]


def test_no_other_queue_waits_for_who_would_take_its_own_above_what_it_deserves() -> None:
    queues = {"a": QueueSpec(deserved={"cpu": "4"}), "b": QueueSpec(deserved={"cpu": "2"})}
    for running, passes in ((1, []), (2, ["other"])):
        field = Field(nodes(6), queues)
        field.runs("a", "a", shape(cpu=1), {"n0": running}, takeable=False)
        field.runs("b", "b", shape(cpu=1), {"n0": 3}, takeable=False)
        waiting = gang("big", "a", (1, shape(cpu=3))), gang("other", "b", (1, shape(cpu=1)), since=500.0)
        assert went(decide(field.with_waiting(*waiting), 600.0)) == passes


# --- whoever starts meanwhile -----------------------------------------------------------------------------------


class Story(NamedTuple):
    """Gangs that run, one that is overdue, and others that come after it; all of one queue."""

    cpus: tuple[int, ...]
    outsiders: tuple[tuple[int, Shape], ...]
    old: tuple[tuple[int, Shape], ...]
    big: tuple[int, Shape]
    small: tuple[tuple[int, Shape], ...]

    def field(self, *running: Sequence[Go]) -> Field:
        """What isn't a gang's, and these gangs."""
        field = Field(nodes(*self.cpus), {"q": QueueSpec(deserved={"cpu": str(sum(self.cpus))})})
        for i, (slot, each) in enumerate(self.outsiders):
            field.nodes.add_pod(f"o{i}", f"n{slot % len(self.cpus)}", each)
        for go in (go for gone in running for go in gone):
            for placement in go.placements:
                field.runs(go.gang.removeprefix("ns/"), "q", placement.shape, dict(placement.nodes))
        return field

    def overdue(self) -> Waiting:
        return gang("big", "q", self.big)

    def started(self) -> tuple[Go, ...]:
        """The old ones, one after the other, as far as there is room."""
        gone: list[Go] = []
        for i, asks in enumerate(self.old):
            gone += decide(self.field(gone).with_waiting(gang(f"old{i}", "q", asks)), 0.0).go
        return tuple(gone)


def goes(field: Field, waiting: Iterable[Waiting], now: float) -> tuple[Go, ...]:
    return decide(field.with_waiting(*waiting), now).go


SHAPES = st.sampled_from([shape(cpu=1), shape(cpu=2), PORT, APART, SPREAD, NEAR, PLAIN_X])
GANGS = st.tuples(st.integers(1, 3), SHAPES)


STORIES = st.builds(
    Story,
    cpus=st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple),
    outsiders=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([PORT, APART, PLAIN_X])), max_size=1).map(tuple),
    old=st.lists(GANGS, min_size=1, max_size=4).map(tuple),
    big=GANGS,
    small=st.lists(GANGS, min_size=1, max_size=4).map(tuple),
)


@UNHURRIED
@given(STORIES)
def test_once_those_who_were_there_are_gone_the_overdue_gang_can_start_whoever_came_meanwhile(story: Story) -> None:
    big, old = story.overdue(), story.started()
    small = [gang(f"small{i}", "q", asks, since=5000.0 + i) for i, asks in enumerate(story.small)]
    came = goes(story.field(old), (big, *small), 6000.0)
    if goes(story.field(), (big,), 6000.0) and all(go.gang != big.gang for go in came):
        assert goes(story.field(came), (big,), 6000.0)
