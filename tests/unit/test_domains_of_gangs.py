"""In which topology domain a gang's pods have to be, or should: by its record, by where its pods are, by its owner."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from startgate.engine.world import ClaimKind, Within, World
from startgate.model import names
from startgate.model.gang import Admission
from tests.unit.feed import Feed, empty_cache

RACK, ZONE = "rack", "zone"
IN_RACK = {names.TOPOLOGY: RACK}
NEAR_RACK = {names.PREFER_TOPOLOGY: RACK}


@pytest.fixture
async def feed(tmp_path: Path) -> AsyncIterator[Feed]:
    async with empty_cache(tmp_path) as made:
        feed = Feed(made)
        feed.node("n1", rack="r1", zone="z")
        feed.node("n2", rack="r2", zone="z")
        yield feed


def within(world: World) -> dict[ClaimKind | None, set[Within | None]]:
    """By kind of claim what is asked of its pods; None: of pods that wait."""
    found: dict[ClaimKind | None, set[Within | None]] = {}
    for claim in world.claims:
        found.setdefault(claim.kind, set()).update(batch.within for batch in claim.batches)
    for gang in world.waiting:
        found.setdefault(None, set()).update(batch.within for batch in (*gang.minimum, *gang.extra))
    return found


async def test_one_that_waits_is_asked_for_what_its_owner_says(feed: Feed) -> None:
    feed.job("x", annotations={names.TOPOLOGY: ZONE, names.PREFER_TOPOLOGY: RACK})
    feed.pod("x", 0)
    feed.pod("x", 1)
    assert within(feed.world()) == {None: {Within(key=ZONE, prefer=RACK)}}


async def test_one_that_was_half_released_is_completed_where_it_was_admitted(feed: Feed) -> None:
    """By a controller that has only the Gang to go by; what the owner says by now is for the next start."""
    feed.job("x", pods=3, annotations={names.TOPOLOGY: ZONE})
    feed.gang("x", 3, node_selector={RACK: "r2"})
    feed.pod("x", 0, gated=False, node_selector={RACK: "r2"})
    feed.pod("x", 1)
    feed.pod("x", 2)
    assert within(feed.world()) == {
        ClaimKind.BIND: {None},  # its own node selector says it
        ClaimKind.FOLLOW: {Within(key=RACK, value="r2")},
    }


async def test_an_owner_that_asks_after_the_start_changes_nothing(feed: Feed) -> None:
    feed.job("x", annotations=IN_RACK)
    feed.gang("x", 2)
    feed.pod("x", 0, gated=False, node="n1")
    feed.pod("x", 1)
    assert within(feed.world()) == {ClaimKind.FOLLOW: {None}}


async def test_those_that_join_and_those_that_are_not_made_yet(feed: Feed) -> None:
    feed.job("x", pods=4, minimum=2, annotations=IN_RACK)
    feed.gang("x", 3, node_selector={RACK: "r1"})
    for index in (0, 1):
        feed.pod("x", index, gated=False, node="n1", node_selector={RACK: "r1"})
    there = {Within(key=RACK, value="r1")}
    assert within(feed.world()) == {ClaimKind.HOLD: there}
    feed.pod("x", 2)
    feed.pod("x", 3)
    assert within(feed.world()) == {ClaimKind.FOLLOW: there, None: there}


async def test_one_that_gathers_keeps_the_room_that_was_found(feed: Feed) -> None:
    feed.job("x", annotations=IN_RACK, parked="Reclaimed", suspend=True)
    feed.gang("x", 2, gathering=True, node_selector={RACK: "r2"})
    assert within(feed.world()) == {ClaimKind.HOLD: {Within(key=RACK, value="r2")}}


async def test_preferred_is_where_most_of_its_pods_are(feed: Feed) -> None:
    feed.job("x", pods=4, annotations=NEAR_RACK)
    feed.gang("x", 4)
    for index, node in enumerate(("n1", "n2", "n2")):
        feed.pod("x", index, gated=False, node=node)
    feed.pod("x", 3)
    assert within(feed.world()) == {ClaimKind.FOLLOW: {Within(prefer=RACK, near="r2")}}


@pytest.mark.parametrize("bound", [True, False])
async def test_pods_found_past_the_gate_say_where_they_are(feed: Feed, bound: bool) -> None:
    """A gang of one whose controller was killed between its patch and its record."""
    feed.job("x", pods=1, annotations=IN_RACK)
    feed.pod("x", 0, gated=False, node="n2" if bound else "", node_selector={} if bound else {RACK: "r2"})
    feed.world()
    admission = feed.state("x").admission
    assert isinstance(admission, Admission)
    assert admission.node_selector == {RACK: "r2"}
