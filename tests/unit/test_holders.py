"""What gangs hold and would free, and for whom: read from facts, from what is under way, and from the Gangs' claims."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from controller.cache import Cache
from controller.state import Flight
from startgate.engine.world import Evict, Holder, Rule, World
from startgate.model import objects
from startgate.model.gang import Phase, Pledge
from startgate.model.objects import rfc3339
from startgate.model.reasons import Code, reason
from tests.unit.feed import NOW, Feed, claimed, empty_cache


@pytest.fixture
async def cache(tmp_path: Path) -> AsyncIterator[Cache]:
    async with empty_cache(tmp_path) as made:
        yield made


def held(world: World, job: str) -> Holder:
    (holder,) = [each for each in world.holders if each.gang == f"n/job-{job}"]
    return holder


async def test_a_gang_that_runs_says_what_it_would_free(cache: Cache) -> None:
    feed = Feed(cache)
    feed.running("x", pods=3)
    found = held(feed.world(), "x")
    assert found.charge == {"cpu": 3000, "pods": 3}
    assert [placement.nodes for placement in found.pods] == [(("a", 3),)]
    assert (found.takeable, found.surplus, found.leaving, found.leaving_charge) == (True, (), (), {})


async def test_pods_that_are_being_deleted_leave(cache: Cache) -> None:
    """Charged still, but nobody's to take: they go anyway."""
    feed = Feed(cache)
    feed.running("x", pods=3, leaving=1)
    found = held(feed.world(), "x")
    assert (found.charge, found.leaving_charge) == ({"cpu": 2000, "pods": 2}, {"cpu": 1000, "pods": 1})
    assert [placement.nodes for placement in found.leaving] == [(("a", 1),)]


async def test_all_pods_of_a_suspended_job_leave(cache: Cache) -> None:
    """Those that the Job controller hasn't come to as well."""
    feed = Feed(cache)
    feed.running("x", suspend=True, parked="Reclaimed")
    found = held(feed.world(), "x")
    assert (found.takeable, found.charge, found.leaving_charge) == (False, {}, {"cpu": 2000, "pods": 2})


async def test_a_gang_that_is_being_parked_leaves_and_holds_no_slot(cache: Cache) -> None:
    """From the decision on: else it would be told twice, or its slot be kept while it goes."""
    feed = Feed(cache)
    feed.running("x", pods=3)
    feed.gone("x", 2)
    feed.world()
    state = feed.state("x")
    state.flight = Flight(Phase.RUNNING, None)
    state.flight.leaves = True
    cache.touch(state.uid)
    world = feed.world()
    assert claimed(world) == []
    assert held(world, "x").leaving_charge == {"cpu": 2000, "pods": 2}
    assert not held(world, "x").takeable


async def test_a_gang_resumed_behind_our_back_holds_no_slot(cache: Cache) -> None:
    """Its pods are not those that were admitted."""
    feed = Feed(cache)
    feed.job("x", started=NOW + 1)
    feed.gang("x", slots=2)
    feed.pod("x", 0)
    feed.pod("x", 1)
    world = feed.world()
    assert claimed(world) == []
    assert world.holders == ()


async def test_pods_of_a_job_that_is_gone_leave(cache: Cache) -> None:
    """Nobody is made to give way for what is about to be free."""
    feed = Feed(cache)
    feed.pod("x", 0, gated=False, node="a", phase="Running")
    (found,) = feed.world().holders
    assert (found.takeable, found.charge, found.leaving_charge) == (False, {}, {"cpu": 1000, "pods": 1})


async def test_a_gang_whose_turn_has_come_holds_what_it_gathers(cache: Cache) -> None:
    feed = Feed(cache)
    feed.job("x")
    feed.gang("x", slots=2, gathering=True)
    found = held(feed.world(), "x")
    assert (found.takeable, found.charge, found.pods) == (False, {"cpu": 2000, "pods": 2}, ())


def ignores(action: str = "Ignore", kind: str = "DisruptionTarget") -> objects.PodFailurePolicy:
    rule = objects.PodFailureRule(action=action, on_pod_conditions=(objects.OnPodCondition(type=kind),))
    return objects.PodFailurePolicy(rules=(rule,))


async def test_pods_beyond_the_minimum_may_go_alone_highest_index_first(cache: Cache) -> None:
    feed = Feed(cache)
    feed.job("x", pods=4, minimum=2, pod_failure_policy=ignores())
    feed.gang("x", slots=4)
    for index, node in enumerate("abcd"):
        feed.pod("x", index, gated=False, node=node, phase="Running")
    assert [placement.nodes for placement in held(feed.world(), "x").surplus] == [(("d", 1),), (("c", 1),)]


@pytest.mark.parametrize("policy", [None, ignores("Count"), ignores(kind="Other"), objects.PodFailurePolicy()])
async def test_they_stay_where_an_eviction_counts_as_a_failure(
    cache: Cache, policy: objects.PodFailurePolicy | None
) -> None:
    feed = Feed(cache)
    feed.job("x", pods=4, minimum=2, pod_failure_policy=policy)
    feed.gang("x", slots=4)
    for index in range(4):
        feed.pod("x", index, gated=False, node="a", phase="Running")
    assert held(feed.world(), "x").surplus == ()


async def test_what_has_been_done_with_a_victim_since_is_seen(cache: Cache) -> None:
    """A plan may name a gang that another part of it is busy with already."""
    feed = Feed(cache)
    feed.running("x")
    feed.world()
    why = reason(Code.PREEMPTED, gang="n/job-y", priority=1, own=0)
    evict = Evict(gang="n/job-x", claimant="n/job-y", rule=Rule.PRIORITY, pods=0, reason=why, numbers={})
    assert feed.gangs.can_take(evict)
    feed.state("x").flight = Flight(Phase.RUNNING, None)
    assert not feed.gangs.can_take(evict)
    assert not feed.gangs.can_take(msgspec.structs.replace(evict, gang="n/job-none"))


def waits_for(feed: Feed, job: str) -> tuple[str, ...]:
    (asks,) = [each for each in feed.world().waiting if each.gang == f"n/job-{job}"]
    return asks.victims


def claimant(feed: Feed) -> None:
    """A gang for which x and y gave way; both are leaving."""
    feed.job("c")
    feed.pod("c", 0)
    feed.pod("c", 1)
    feed.claimant("c", "x", "y")
    for victim in "xy":
        feed.running(victim, pods=1, leaving=1, suspend=True, parked="Reclaimed")


async def test_room_is_held_for_a_claimant_by_what_its_gang_says(cache: Cache) -> None:
    feed = Feed(cache)
    claimant(feed)
    assert waits_for(feed, "c") == ("n/job-x", "n/job-y")
    (asks,) = [each for each in feed.world().waiting if each.victims]
    assert asks.places == (("n1", 2),), "where it was proved to have room"


async def test_a_victim_that_is_gone_is_none_any_more(cache: Cache) -> None:
    """Not even if it has started again and leaves for another."""
    feed = Feed(cache)
    claimant(feed)
    feed.world()
    feed.gone("x", 0)
    assert waits_for(feed, "c") == ("n/job-y",)
    feed.running("x", pods=1, leaving=1)
    assert waits_for(feed, "c") == ("n/job-y",)


async def test_when_all_are_gone_the_claimant_has_one_turn_before_others(cache: Cache) -> None:
    feed = Feed(cache)
    claimant(feed)
    feed.world()
    for victim in "xy":
        feed.gone(victim, 0)
    assert waits_for(feed, "c") == ("n/job-x", "n/job-y")
    assert not feed.state("c").makes_room


async def test_a_claimant_that_asks_another_queue_has_no_claim(cache: Cache) -> None:
    feed = Feed(cache)
    claimant(feed)
    feed.claimant("c", "x", "y", queue="other")
    assert waits_for(feed, "c") == ()


async def test_a_claimant_goes_on_asking_while_its_victims_are_told(cache: Cache) -> None:
    """Else others were given what is being freed for it."""
    feed = Feed(cache)
    feed.job("c")
    feed.pod("c", 0)
    feed.pod("c", 1)
    feed.running("x")
    feed.world()
    for job in "cx":
        feed.state(job).flight = Flight(Phase.WAITING, None)
        cache.touch(f"uid-{job}")
    flights = [feed.state(job).flight for job in "cx"]
    assert flights[0] and flights[1]
    flights[0].pledge = Pledge(id="p", at=rfc3339(NOW), rule="deserved", victims=["n/job-x"])
    flights[1].leaves = True
    assert waits_for(feed, "c") == ("n/job-x",)
