"""What a Gang says: written only with news, and nothing dropped that wasn't meant to be."""

from typing import Any

import msgspec
import pytest

from controller import statuses
from controller.state import Flight, State
from startgate.engine.lifecycle import Grant, standing
from startgate.engine.observe import COMPLETED, Facts
from startgate.engine.world import Stay
from startgate.model.gang import Admission, Gang, GangSpec, GangStatus, Phase, Pledge, Transition, Yielded
from startgate.model.objects import ObjectMeta, rfc3339
from startgate.model.pods import Pod
from startgate.model.reasons import Code, reason
from startgate.model.shape import Shape

NOW = 1_800_000_000.0
SHAPE = Shape(request=(("cpu", 1000), ("pods", 1)))
ADMISSION = Admission(id="a", at=rfc3339(NOW), slots=2)


def pods(count: int, **fields: Any) -> tuple[Pod, ...]:
    made = range(count)
    return tuple(
        Pod(namespace="n", name=f"x-{i}{fields}", uid=f"{i}{fields}", version=1, shape=SHAPE, **fields) for i in made
    )


def state(*, gated: int = 0, bound: int = 0, admission: Admission | None = None, **fields: Any) -> State:
    wanted = fields.pop("wanted", 2)
    facts = Facts(
        namespace="n",
        name="job-x",
        queue="q",
        priority=0,
        owner_kind="Job",
        owner_version="batch/v1",
        owner_name="x",
        owner_uid="u",
        created=NOW - 60,
        wanted=wanted,
        minimum=wanted,
        gated=pods(gated, gated=True),
        bound=pods(bound, node="a"),
        **fields,
    )
    grant = Grant(slots=admission.slots, at=NOW) if admission else None
    stands = standing(facts, grant, lost_at=None, back_off=None, now=NOW)
    return State(uid="u", facts=facts, standing=stands, unrecorded=admission)


def recorded(made: State) -> State:
    """As it is once its Gang has been written, by way of the wire."""
    spec, status = statuses.compose(made, NOW)
    body = msgspec.json.encode(statuses.birth(made, spec, status))
    made.record = msgspec.json.decode(body, type=Gang)
    made.unrecorded = None
    return made


def test_what_has_been_written_is_no_news() -> None:
    made = recorded(state(bound=2, admission=ADMISSION))
    assert made.record is not None
    assert statuses.changes(made.record, *statuses.compose(made, NOW + 60)) == {}


def test_a_patch_names_what_changes_and_what_goes() -> None:
    gang = Gang(
        metadata=ObjectMeta(),
        spec=GangSpec(queue="q", min_available=2, pods=2),
        status=GangStatus(phase=Phase.WAITING, reason="NoRoom", shortage={"cpu": "2"}, admission=ADMISSION),
    )
    now = GangStatus(phase=Phase.PARKED, reason="NoRoom")
    patch = statuses.changes(gang, gang.spec, now)
    assert patch == {"status": {"phase": "Parked", "shortage": None, "admission": None}}


def test_numbers_alone_are_not_urgent() -> None:
    assert not statuses.urgent({"status": {"counts": {"bound": 3}, "message": "3 of 4"}, "spec": {"pods": 3}})
    assert statuses.urgent({"status": {"reason": "NoRoom"}})
    assert statuses.urgent({"spec": {"queue": "other"}})


@pytest.mark.parametrize(
    ("made", "conditions"),
    [
        (state(gated=2), {"Released": "False", "Running": "False", "Finished": "False"}),
        (state(gated=1, bound=1, admission=ADMISSION), {"Released": "False", "Running": "False", "Finished": "False"}),
        (state(bound=2, admission=ADMISSION), {"Released": "True", "Running": "True", "Finished": "False"}),
        (
            state(wanted=0, admission=ADMISSION, outcome=COMPLETED),
            {"Released": "True", "Running": "False", "Finished": "True"},
        ),
        # Deleted while it waited: it was never released.
        (state(gated=2, outcome="it was deleted"), {"Released": "False", "Running": "False", "Finished": "True"}),
    ],
)
def test_conditions_for_kubectl_wait(made: State, conditions: dict[str, str]) -> None:
    _, status = statuses.compose(made, NOW)
    assert {each.type: each.status for each in status.conditions} == conditions


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    made = recorded(state(gated=2))
    _, later = statuses.compose(made, NOW + 100)
    assert {each.last_transition_time for each in later.conditions} == {rfc3339(NOW)}


PLEDGE = Pledge(id="p", at=rfc3339(NOW), rule="deserved", victims=["n/job-y"])
YIELDED = Yielded(at=rfc3339(NOW), reason="Reclaimed", message="gave its place to n/job-y")


def claimant(**fields: Any) -> State:
    """A gang for which another is giving way, as it is on record."""
    made = state(gated=2)
    made.flight = Flight(Phase.WAITING, None)
    made.flight.pledge = PLEDGE
    made = recorded(made)
    made.flight, made.victims = None, ("n/job-y",)
    again = state(**{"gated": 2, **fields})
    again.record, again.victims = made.record, made.victims
    return again


def test_a_claim_stands_while_the_gang_waits_for_those_that_make_room() -> None:
    assert statuses.compose(claimant(), NOW)[1].claim == PLEDGE


@pytest.mark.parametrize(
    "made",
    [
        claimant(hold=True),
        claimant(suspended_by="user"),
        claimant(gated=1, wanted=2),
        claimant(gated=0, bound=2, admission=ADMISSION),
    ],
)
def test_a_claim_goes_with_the_next_news(made: State) -> None:
    assert made.record is not None
    assert statuses.changes(made.record, *statuses.compose(made, NOW))["status"]["claim"] is None


def test_a_claim_of_which_nothing_came_is_taken_off_though_there_is_no_other_news() -> None:
    """Else the next leader would take it for one that stands."""
    made = claimant()
    made.victims = ()
    assert made.record is not None
    patch = statuses.changes(made.record, *statuses.compose(made, NOW))
    assert patch == {"status": {"claim": None}}
    assert not statuses.urgent(patch)


def test_a_gang_that_gave_way_says_so_until_it_is_decided_on_again() -> None:
    made = state(suspended_by="us", parked_as="Reclaimed", parked_message="gave its place to n/job-y")
    assert statuses.compose(made, NOW)[1].reason == "Reclaimed"
    assert statuses.compose(made, NOW)[1].message == "gave its place to n/job-y"
    made.verdict = Stay(gang="n/job-x", reason=reason(Code.QUEUE_STOPPED, queue="q"))
    assert statuses.compose(made, NOW)[1].reason == Code.QUEUE_STOPPED


def test_to_whom_a_gang_gave_way_is_kept_until_it_has_finished() -> None:
    made = recorded(state(bound=2, admission=ADMISSION))
    made.flight = Flight(Phase.RUNNING, None)
    made.flight.yielded = YIELDED
    assert made.record is not None
    assert statuses.urgent(statuses.changes(made.record, *statuses.compose(made, NOW)))
    made = recorded(made)
    made.flight = None
    assert statuses.compose(made, NOW + 60)[1].yielded == YIELDED
    ended = state(wanted=0, admission=ADMISSION, outcome=COMPLETED)
    ended.record = made.record
    assert statuses.compose(ended, NOW)[1].yielded is msgspec.UNSET


def test_pods_of_an_ended_gang_are_all_or_none() -> None:
    for outcome, bound in ((COMPLETED, "2/2"), ("it failed", "0/2")):
        _, status = statuses.compose(state(wanted=0, admission=ADMISSION, outcome=outcome), NOW)
        assert (status.phase, status.bound) == (Phase.FINISHED, bound)


def test_a_shortage_stands_only_while_it_is_the_reason() -> None:
    made = state(gated=2)
    made.verdict = Stay(gang="n/job-x", reason=reason(Code.QUEUE_STOPPED, queue="q"), shortage={"cpu": 2000})
    assert statuses.compose(made, NOW)[1].shortage == {"cpu": "2"}
    held = state(gated=2, hold=True)
    held.verdict = made.verdict
    assert statuses.compose(held, NOW)[1].shortage == {}


def history(*steps: tuple[Phase, float], taken_back: int = 3) -> GangStatus:
    """A Gang whose last changes of phase are these, so many seconds ago."""
    passed = [Transition(at=rfc3339(NOW - ago), phase=phase, reason="") for phase, ago in steps]
    return GangStatus(phase=steps[-1][0] if steps else Phase.WAITING, taken_back=taken_back, transitions=passed)


@pytest.mark.parametrize(
    ("steps", "phase", "count"),
    [
        # It left Running after ten minutes, however it did: what comes now is the first time again.
        (((Phase.RUNNING, 600),), Phase.RELEASING, 0),
        (((Phase.RELEASING, 900), (Phase.RUNNING, 601)), Phase.PARKED, 0),
        (((Phase.RUNNING, 3600),), Phase.FINISHED, 0),
        # It hasn't run for so long.
        (((Phase.RUNNING, 599),), Phase.RELEASING, 3),
        (((Phase.RELEASING, 3600),), Phase.PARKED, 3),
        ((), Phase.WAITING, 3),
        # As long as it runs, it says what it came through.
        (((Phase.RUNNING, 3600),), Phase.RUNNING, 3),
        # Two short runs aren't a long one.
        (((Phase.RUNNING, 900), (Phase.RELEASING, 500), (Phase.RUNNING, 400)), Phase.PARKED, 3),
    ],
)
def test_take_backs_of_a_gang_that_ran_well_are_over(
    steps: tuple[tuple[Phase, float], ...], phase: Phase, count: int
) -> None:
    assert statuses.take_backs(history(*steps), phase, NOW) == count


def test_a_gang_that_stops_running_says_so_and_how_often_it_was_taken_back() -> None:
    made = recorded(state(bound=2, admission=ADMISSION))
    assert made.record is not None
    made.record.status.taken_back = 3
    lost = state(bound=1, admission=ADMISSION)
    lost.record, lost.unrecorded = made.record, None
    for seconds, count in ((599, 3), (600, 0)):
        _, status = statuses.compose(lost, NOW + seconds)
        assert (status.phase, status.taken_back) == (Phase.RELEASING, count)
