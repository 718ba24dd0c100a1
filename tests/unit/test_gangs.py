"""From objects to the World: each pod in one place, work under way counted, books that agree with a recount."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.cache import Cache
from controller.state import Flight
from startgate.engine.lifecycle import Do
from startgate.engine.observe import amounts_of
from startgate.engine.world import ClaimKind
from startgate.model import names, objects
from startgate.model.gang import Admission, Phase
from startgate.model.objects import rfc3339
from startgate.model.reasons import Code
from startgate.model.resources import add
from tests.unit.feed import NOW, Feed, Q, claimed, empty_cache, one_cpu


@pytest.fixture
async def cache(tmp_path: Path) -> AsyncIterator[Cache]:
    async with empty_cache(tmp_path) as made:
        yield made


async def test_a_gang_that_has_its_pods_asks_to_start(cache: Cache) -> None:
    feed = Feed(cache)
    feed.job("x")
    feed.pod("x", 0)
    assert feed.world().waiting == ()
    feed.pod("x", 1)
    (asks,) = feed.world().waiting
    assert (asks.gang, asks.queue, sum(batch.count for batch in asks.minimum)) == ("n/job-x", "q", 2)


async def test_work_under_way_is_charged_and_has_its_room_and_is_not_decided_on_again(cache: Cache) -> None:
    feed = Feed(cache)
    feed.job("x")
    feed.pod("x", 0)
    feed.pod("x", 1)
    feed.world()
    state = feed.state("x")
    state.flight = Flight(Phase.RELEASING, None, Admission(id="a", at=rfc3339(NOW), slots=2))
    state.flight.pods = {pod.uid: pod for pod in state.facts.gated}
    world = feed.world()
    assert world.waiting == ()
    assert claimed(world) == [(ClaimKind.BIND, 2)]
    assert world.used["q"] == {"cpu": 2000, "pods": 2}


async def test_a_reservation_is_on_its_node_and_nowhere_else(cache: Cache) -> None:
    feed = Feed(cache)
    feed.job("x", pods=1)
    feed.pod("x", 0)
    feed.world()
    state = feed.state("x")
    (pod,) = state.facts.gated
    state.flight = Flight(Phase.RESERVED, None)
    state.flight.pods = {pod.uid: pod}
    cache.reserve(pod, "node")
    slot = cache.cluster.slots["node"]
    assert cache.cluster.used[cache.cluster.rows["cpu"], slot] == 1000
    assert claimed(feed.world()) == []
    cache.unreserve(pod)
    assert cache.cluster.used[cache.cluster.rows["cpu"], slot] == 0


async def test_slots_without_a_pod_are_held_and_pods_at_the_gate_follow(cache: Cache) -> None:
    """Case 44: what follows takes the slots of what ended; case 31: a lost pod's slot is kept."""
    feed = Feed(cache)
    feed.job("x", pods=4)
    feed.gang("x", slots=4)
    feed.pod("x", 0, gated=False, node="a", phase="Running")
    feed.pod("x", 1, gated=False)
    feed.pod("x", 2)
    assert claimed(feed.world()) == [(ClaimKind.BIND, 1), (ClaimKind.FOLLOW, 1), (ClaimKind.HOLD, 1)]


async def test_slots_that_a_flight_does_not_fill_stay_held(cache: Cache) -> None:
    """Else another gang took their quota, and the pods that follow would break the ceiling."""
    feed = Feed(cache)
    feed.job("x", pods=3)
    feed.gang("x", slots=3)
    feed.pod("x", 0, gated=False, node="a", phase="Running")
    feed.pod("x", 1)
    feed.world()
    state = feed.state("x")
    state.flight = Flight(Phase.RELEASING, None)
    state.flight.pods = {pod.uid: pod for pod in state.facts.gated}
    assert claimed(feed.world()) == [(ClaimKind.BIND, 1), (ClaimKind.HOLD, 1)]


async def test_the_slot_of_a_pod_that_leaves_is_paid_for_once(cache: Cache) -> None:
    """Case 34: its replacement goes early only where quota has room for both."""
    feed = Feed(cache)
    feed.job("x", pods=2)
    feed.gang("x", slots=2)
    feed.pod("x", 0, gated=False, node="a", phase="Running")
    feed.pod("x", 1, gated=False, node="a", phase="Running", leaving=True)
    world = feed.world()
    assert claimed(world) == []
    assert world.used["q"] == {"cpu": 2000, "pods": 2}
    feed.pod("x", 1, suffix="-new")
    assert claimed(feed.world()) == [(ClaimKind.REPLACE, 1)]


async def test_a_resumed_gang_is_held_for_until_it_has_its_pods(cache: Cache) -> None:
    feed = Feed(cache)
    feed.job("x")
    feed.gang("x", slots=2, gathering=True)
    feed.pod("x", 0)
    assert claimed(feed.world()) == [(ClaimKind.HOLD, 2)]
    feed.pod("x", 1)
    assert claimed(feed.world()) == [(ClaimKind.GATHER, 2)]


async def test_pods_past_the_gate_without_a_record_are_adopted(cache: Cache) -> None:
    """A gang of one whose patch was the record, seen by a controller that has just started."""
    feed = Feed(cache)
    feed.job("x", pods=1)
    feed.pod("x", 0, gated=False, node="a", phase="Running")
    assert feed.world().waiting == ()
    state = feed.state("x")
    assert state.admission is not None
    assert (state.admission.slots, state.phase) == (1, Phase.RUNNING)


@pytest.mark.parametrize("seen", ["leaving", "gone"])
async def test_what_was_adopted_and_then_went_leaves_nothing_to_those_that_come(cache: Cache, seen: str) -> None:
    """Suspended and resumed before the Job controller had deleted the last pod: the others have no turn by that."""
    feed = Feed(cache)
    feed.job("x", pods=2)
    feed.pod("x", 0, gated=False, node="a", phase="Running")
    assert claimed(feed.world()) == [(ClaimKind.HOLD, 1)]
    if seen == "leaving":
        feed.pod("x", 0, gated=False, node="a", phase="Running", leaving=True)
    else:
        feed.gone("x", 0)
    feed.pod("x", 0, suffix="-anew")
    feed.pod("x", 1)
    world = feed.world()
    assert claimed(world) == []
    (asks,) = world.waiting
    assert sum(batch.count for batch in asks.minimum) == 2


async def test_pods_of_a_job_that_is_gone_are_charged_until_they_are_gone_too(cache: Cache) -> None:
    """Case 33: an older Job's pods, still terminating."""
    feed = Feed(cache)
    feed.pod("x", 0, gated=False, node="a", phase="Running")
    assert feed.world().used["q"] == {"cpu": 1000, "pods": 1}
    feed.pod("x", 0, gated=False, node="a", phase="Failed")
    assert feed.world().used.get("q", {}).get("cpu", 0) == 0


async def test_slots_that_a_job_has_given_up_are_not_its_own_any_more(cache: Cache) -> None:
    """Scaled down and up again: others may have started in between, so the pods that are new ask to join."""
    feed = Feed(cache)
    feed.job("x", pods=3)
    feed.gang("x", slots=3)
    feed.pod("x", 0, gated=False, node="a", phase="Running")
    feed.world()
    feed.job("x", pods=1)
    feed.world()
    feed.job("x", pods=3)
    feed.pod("x", 1)
    feed.pod("x", 2)
    world = feed.world()
    assert claimed(world) == []
    (asks,) = world.waiting
    assert (asks.minimum, sum(batch.count for batch in asks.extra)) == ((), 2)


async def test_a_loss_is_counted_from_the_moment_at_which_the_minimum_was_lost(cache: Cache) -> None:
    """A gang that has started with less than it might have: it has the whole time to mend, however old it is."""
    feed = Feed(cache)
    feed.job("x", pods=3, minimum=2)
    feed.gang("x", slots=3, at=NOW - 3600)
    for index in (0, 1):
        feed.pod("x", index, gated=False, node="a", phase="Running")
    feed.pod("x", 2, gated=False)
    feed.world()
    feed.pod("x", 1, gated=False, node="a", phase="Failed")
    feed.world()
    state = feed.state("x")
    assert (state.standing.do, state.standing.deadline) == (Do.NOTHING, NOW + names.DEFAULT_START_TIMEOUT)


async def test_times_that_somebody_wrote_into_a_gang_and_nobody_can_read(cache: Cache) -> None:
    """They count as none: one Gang that was edited by hand never stops the others."""
    feed = Feed(cache)
    feed.job("x")
    feed.gang("x", slots=2)
    gang = cache.gangs.store.get("job-x", "n")
    assert gang is not None
    gang.status.since = gang.status.not_before = "tomorrow"
    assert isinstance(gang.status.admission, Admission)
    gang.status.admission.at = "2030-02-31T00:00:00Z"
    feed.pod("x", 0)
    feed.pod("x", 1)
    feed.world()
    assert feed.state("x").since == NOW - 60


async def test_a_job_of_another_api_group_is_an_owner_like_any_other(cache: Cache) -> None:
    """Its pods' gang has another name than that of a Job, and a reference that the garbage collector understands."""
    feed = Feed(cache)
    version = "batch.volcano.sh/v1alpha1"
    owner = objects.OwnerReference(api_version=version, kind="Job", name="x", uid="uid-x", controller=True)
    meta = feed._meta("x-0", labels=Q, owner_references=(owner,))
    spec = one_cpu(gates=(names.GATE,))
    cache.pods.store.put(objects.Pod(metadata=meta, spec=spec, status=objects.PodStatus(phase="Pending")))
    (asks,) = feed.world().waiting
    assert asks.gang == "n/job.batch.volcano.sh-x"
    facts = feed.state("x").facts
    assert (facts.owner_version, facts.owner_kind, facts.owner_name) == (version, "Job", "x")


@pytest.mark.parametrize("looked_at", [("uid-old", "uid-new"), ("uid-new", "uid-old")])
async def test_a_job_made_anew_under_its_name_is_the_one_that_is_meant(
    cache: Cache, looked_at: tuple[str, ...]
) -> None:
    """Case 33, both changes in one cycle: they are looked at in no order that means anything."""
    feed = Feed(cache)
    feed.job("x", uid="uid-old")
    feed.world()
    feed.job("x", uid="uid-new")
    assert cache.take_dirty() == set(looked_at)
    for uid in looked_at:
        feed.gangs.refresh(uid, NOW)
    assert feed.gangs.named("n/job-x").uid == "uid-new"


moves = st.lists(
    st.tuples(
        st.sampled_from("xyz"),
        st.integers(0, 3),
        st.sampled_from(["gated", "open", "bound", "leaving", "succeeded", "gone"]),
        st.booleans(),
    ),
    max_size=40,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(moves)
async def test_the_books_agree_with_a_recount_whatever_happens(
    cache: Cache, seen: list[tuple[str, int, str, bool]]
) -> None:
    feed = Feed(cache)
    for key in list(cache.groups):
        cache.touch(key)
    for job in "xyz":
        feed.job(job, pods=4)
    for job, index, what, look in seen:
        if what == "gone":
            held = cache.pods.store.get(f"{job}-{index}", "n")
            if held is not None:
                cache.pods.store.forget(held.name, "n", held.uid)
        else:
            phases = {"succeeded": "Succeeded", "bound": "Running", "leaving": "Running"}
            node, phase = ("a", phases[what]) if what in phases else ("", "Pending")
            feed.pod(job, index, gated=what == "gated", node=node, phase=phase, leaving=what == "leaving")
        if look:
            feed.world()
    feed.world()
    assert feed.gangs.recount()
    expected: dict[str, int] = {}
    for pod in cache.pods.store:
        if not pod.gated and not pod.ended:
            for resource, amount in pod.shape.amounts.items():
                expected[resource] = expected.get(resource, 0) + amount
    world = feed.gangs.world(NOW)
    assert {k: v for k, v in world.used.get("q", {}).items() if v} == expected
    # Each amount in the books is somebody's: it stays, or it leaves.
    paid = [each for each in world.claims if each.kind not in (ClaimKind.BIND, ClaimKind.REPLACE)]
    parts = [amounts for each in world.holders for amounts in (each.charge, each.leaving_charge)]
    assert add(*parts) == add(expected, *(amounts_of(claim.batches) for claim in paid))


async def test_how_many_pods_wait_in_a_queue(cache: Cache) -> None:
    """Made or not; but none of a Job whose user keeps it from making them, and none of one that runs or has ended."""
    feed = Feed(cache)
    feed.job("not-made-yet", pods=3)
    feed.job("at-the-gate", pods=2)
    feed.pod("at-the-gate", 0)
    feed.job("parked", pods=5, suspend=True, parked=Code.DEEP_QUEUE)
    feed.job("suspended", pods=7, suspend=True)
    feed.job("held", pods=11, suspend=True, parked=Code.DEEP_QUEUE, annotations={names.HOLD: "true"})
    feed.running("runs", pods=2)
    feed.world()
    assert feed.gangs.counts() == {"q": (5, 3 + 2 + 5, 1)}


async def test_the_time_to_mend_a_loss_does_not_begin_with_a_wish_for_more(cache: Cache) -> None:
    feed = Feed(cache)
    feed.running("x", pods=2)
    feed.world()
    feed.running("x", pods=3)
    feed.gang("x", slots=2)
    feed.pod("x", 2)
    feed.world()
    assert feed.state("x").standing.phase is Phase.RUNNING
    assert feed.state("x").lost_at is None
    feed.gone("x", 1)
    feed.world()
    assert feed.state("x").lost_at == NOW


async def test_the_gang_of_a_job_that_has_left_is_to_be_deleted(cache: Cache) -> None:
    feed = Feed(cache)
    feed.job("x")
    feed.gang("x", slots=2)
    feed.world()
    assert not cache.ownerless
    (job,) = cache.jobs.store
    bare = msgspec.structs.replace(
        job.spec, template=msgspec.structs.replace(job.spec.template, metadata=objects.ObjectMeta())
    )
    meta = msgspec.structs.replace(job.metadata, labels={}, resource_version=str(10**9))
    cache.jobs.store.put(msgspec.structs.replace(job, metadata=meta, spec=bare))
    feed.world()
    assert [gang.metadata.name for gang in cache.ownerless.values()] == ["job-x"]
