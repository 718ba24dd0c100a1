"""Where a gang stands: the table of transitions, and the one thing to do next (design: "The way of a gang")."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from startgate.engine.lifecycle import (
    FOLLOWS,
    Do,
    Grant,
    Standing,
    back_off,
    backing_off,
    standing,
    steps,
    taken_back_for,
    told,
)
from startgate.engine.observe import Facts
from startgate.model.gang import Phase
from startgate.model.pods import Pod
from startgate.model.reasons import Code, Reason, reason
from startgate.model.shape import Shape

SHAPE = Shape(request=(("cpu", 1000), ("pods", 1)))
NOW = 1_000_000.0


def pods(count: int, **fields: object) -> tuple[Pod, ...]:
    made = []
    for index in range(count):
        values: dict[str, object] = {"namespace": "n", "name": f"x-{index}", "uid": f"u{index}{fields}", "version": 1}
        made.append(Pod(**{**values, "shape": SHAPE, "index": index, **fields}))  # type: ignore[arg-type]
    return tuple(made)


def facts(*, gated: int = 0, pending: int = 0, bound: int = 0, wanted: int = 4, **fields: object) -> Facts:
    values: dict[str, object] = {
        "namespace": "n",
        "name": "job-x",
        "queue": "q",
        "priority": 0,
        "owner_kind": "Job",
        "owner_version": "batch/v1",
        "owner_name": "x",
        "owner_uid": "u",
        "created": NOW - 60,
        "wanted": wanted,
        "minimum": wanted,
        "parkable": True,
        "template": SHAPE,
        "gated": pods(gated, gated=True),
        "pending": pods(pending),
        "bound": pods(bound, node="a"),
    }
    return Facts(**{**values, **fields})  # type: ignore[arg-type]


def stand(seen: Facts, grant: Grant | None = None, *, lost_at: float | None = None, now: float = NOW) -> Standing:
    return standing(seen, grant, lost_at=lost_at, back_off=None, now=now)


def brief(made: Standing) -> tuple[Phase, Do, Code | None]:
    return made.phase, made.do, made.reason.code if made.reason else None


GRANT = Grant(slots=4, at=NOW - 10)
GATHER = Grant(slots=4, at=NOW - 10, gathering=True)


@pytest.mark.parametrize(
    ("seen", "grant", "expected"),
    [
        # Waiting.
        (facts(gated=2), None, (Phase.WAITING, Do.NOTHING, Code.PODS_MISSING)),
        (facts(gated=4), None, (Phase.WAITING, Do.DECIDE, None)),
        (facts(gated=4, hold=True), None, (Phase.WAITING, Do.NOTHING, Code.ON_HOLD)),
        (facts(wanted=0), None, (Phase.WAITING, Do.NOTHING, Code.PODS_MISSING)),
        (facts(suspended_by="user"), None, (Phase.WAITING, Do.NOTHING, Code.SUSPENDED)),
        # Parked: decided on without pods, or held.
        (facts(suspended_by="us", parked_as="DeadlineParked"), None, (Phase.PARKED, Do.DECIDE, None)),
        (
            facts(suspended_by="us", parked_as="DeadlineParked", hold=True),
            None,
            (Phase.PARKED, Do.NOTHING, Code.ON_HOLD),
        ),
        # Gathering.
        (facts(suspended_by="us", parked_as="X"), GATHER, (Phase.GATHERING, Do.RESUME, Code.GATHERING)),
        (facts(suspended_by="us", parked_as="X", bound=2), GATHER, (Phase.GATHERING, Do.NOTHING, Code.GATHERING)),
        (facts(pending=2), GATHER, (Phase.GATHERING, Do.PARK, Code.GATHERING)),
        (replace(facts(), pending=pods(2, queue="q")), GATHER, (Phase.GATHERING, Do.NOTHING, Code.GATHERING)),
        (facts(gated=3), GATHER, (Phase.GATHERING, Do.NOTHING, Code.GATHERING)),
        (facts(suspended_by="user"), GATHER, (Phase.WAITING, Do.FORGET, Code.SUSPENDED)),
        # Released.
        (facts(gated=2, pending=2), GRANT, (Phase.RELEASING, Do.NOTHING, Code.RELEASING)),
        (facts(pending=1, bound=3), GRANT, (Phase.RELEASING, Do.NOTHING, Code.BINDING)),
        (facts(bound=4), GRANT, (Phase.RUNNING, Do.NOTHING, Code.RUNNING)),
        (facts(suspended_by="us", parked_as="NotBoundInTime"), GRANT, (Phase.PARKED, Do.FORGET, None)),
        (facts(suspended_by="user"), GRANT, (Phase.WAITING, Do.FORGET, Code.SUSPENDED)),
        # Suspended and resumed meanwhile, so that its pods are others than those that were admitted.
        (facts(gated=4, started=NOW - 5), GRANT, (Phase.WAITING, Do.FORGET, Code.PODS_MISSING)),
        (facts(gated=4, started=NOW - 5, parked_as="Reclaimed"), GRANT, (Phase.WAITING, Do.FORGET, Code.PODS_MISSING)),
        (facts(gated=4, started=NOW - 10), GRANT, (Phase.RELEASING, Do.NOTHING, Code.RELEASING)),
        (facts(gated=3, bound=1, started=NOW - 5), GRANT, (Phase.RELEASING, Do.NOTHING, Code.RELEASING)),
        (facts(gated=4, started=NOW - 5), GATHER, (Phase.GATHERING, Do.NOTHING, Code.GATHERING)),
        # Pods past the gate without a record: a gang of one, or a gate that somebody else opened.
        (facts(wanted=1, pending=1), None, (Phase.RELEASING, Do.ADOPT, Code.BINDING)),
        # The label came later.
        (facts(pending=4, ready_template=False), None, (Phase.WAITING, Do.PARK, Code.LABELLED_LATER)),
        (facts(bound=1, pending=3, ready_template=False), None, (Phase.RUNNING, Do.NOTHING, Code.PASSED_BEFORE_LABEL)),
        (
            facts(suspended_by="us", parked_as="LabelledLater", ready_template=False),
            None,
            (Phase.PARKED, Do.PREPARE, Code.LABELLED_LATER),
        ),
        # Somebody else resumed a Job that we had parked.
        (facts(gated=4, parked_as="DeadlineParked"), None, (Phase.WAITING, Do.UNMARK, Code.PODS_MISSING)),
        # The end.
        (facts(outcome="it completed", bound=1), GRANT, (Phase.FINISHED, Do.NOTHING, Code.FINISHED)),
        (
            facts(outcome="it completed", suspended_by="us", parked_as="Preempted", kept_from_ending=True),
            None,
            (Phase.FINISHED, Do.RESUME, Code.FINISHED),
        ),
    ],
)
def test_where_a_gang_stands(seen: Facts, grant: Grant | None, expected: tuple[Phase, Do, Code | None]) -> None:
    assert brief(stand(seen, grant)) == expected


def test_not_bound_in_time_is_taken_back_whole() -> None:
    late = facts(bound=3, pending=1, start_timeout=5.0)
    made = stand(late, GRANT)
    assert (made.phase, made.do, made.park_as) == (Phase.RELEASING, Do.PARK, Code.NOT_BOUND_IN_TIME)
    in_time = stand(facts(bound=3, pending=1, start_timeout=15.0), GRANT)
    assert (in_time.do, in_time.deadline) == (Do.NOTHING, GRANT.at + 15)


def test_a_gang_that_has_its_minimum_is_not_taken_back_for_the_rest() -> None:
    made = stand(facts(bound=3, pending=1, minimum=3, start_timeout=5.0), GRANT)
    assert (made.phase, made.do) == (Phase.RELEASING, Do.NOTHING)


def test_a_loss_has_its_own_time_and_sentence() -> None:
    lost = facts(bound=3, pending=1, start_timeout=60.0)
    made = stand(lost, Grant(slots=4, at=NOW - 9999), lost_at=NOW - 1)
    assert brief(made) == (Phase.RELEASING, Do.NOTHING, Code.BELOW_MINIMUM)
    assert made.deadline == NOW + 59
    assert stand(lost, Grant(slots=4, at=NOW - 9999), lost_at=NOW - 60).do is Do.PARK


def test_a_job_of_another_controller_is_never_suspended() -> None:
    made = stand(facts(bound=3, pending=1, start_timeout=5.0, parkable=False, belongs_to="JobSet x"), GRANT)
    assert brief(made) == (Phase.RELEASING, Do.NOTHING, Code.CANNOT_PARK)
    assert made.reason is not None
    assert "JobSet x" in made.reason.message


def test_a_foreign_gate_is_named() -> None:
    held = facts(bound=2)
    gated = pods(2, foreign_gates=("example.com/wait",))
    seen = facts(bound=2, pending=0)
    made = stand(Facts(**{f: getattr(seen, f) for f in seen.__struct_fields__} | {"pending": gated}), GRANT)
    assert brief(made) == (Phase.RELEASING, Do.NOTHING, Code.FOREIGN_GATE)
    assert made.reason is not None
    assert "example.com/wait" in made.reason.message
    assert stand(held, GRANT).phase is Phase.RELEASING


def test_gathering_that_takes_too_long_gives_its_hold_back() -> None:
    old = Grant(slots=4, at=NOW - 400, gathering=True)
    made = stand(facts(gated=3), old)
    assert (made.phase, made.do) == (Phase.GATHERING, Do.PARK)
    parked = stand(facts(suspended_by="us", parked_as="NotBoundInTime"), old)
    assert (parked.phase, parked.do) == (Phase.PARKED, Do.FORGET)


def test_a_gang_that_was_taken_back_waits_before_it_is_tried_again() -> None:
    pause: Reason = reason(Code.BACKING_OFF, times=1, last="x", look="", until="y")
    seen = facts(suspended_by="us", parked_as="NotBoundInTime")
    made = standing(seen, None, lost_at=None, back_off=pause, now=NOW)
    assert brief(made) == (Phase.PARKED, Do.NOTHING, Code.BACKING_OFF)


def test_the_back_off_doubles_and_sets_those_apart_that_were_taken_back_together() -> None:
    gangs = [facts(owner_uid=f"u{number}") for number in range(50)]
    for times, least in ((1, 10), (2, 20), (3, 40), (7, 600), (99, 600)):
        waits = {back_off(each, times) for each in gangs}
        assert least <= min(waits) < max(waits) <= least * 3 / 2
        assert len(waits) > 4
    assert back_off(gangs[0], 2) == back_off(gangs[0], 2), "a simulation says what the controller does"


def test_after_several_take_backs_the_reason_says_where_to_look() -> None:
    parked = facts(suspended_by="us", parked_as="NotBoundInTime", parked_message="x")
    assert "look at" not in backing_off(parked, 2, NOW).message
    assert backing_off(parked, 3, NOW).message == (
        "taken back 3 times, last because x; look at the Events of its Job and its pods (kubectl get events -n n), at "
        "its pods' schedulerName, and whether startgate.dev/start-timeout is long enough; "
        "tries again at 1970-01-12T13:46:40Z"
    )


FULL = reason(Code.NO_ROOM, fit=0, pods=1, each="1 cpu", nodes="of 2 nodes: 2 full", until="enough pods end")
NEVER = reason(Code.NEVER_FITS, fit=1, pods=4, each="9 cpu", nodes="of 2 nodes: 1 too small", remedy="ask for less")


def sentence(seen: Facts, made: Standing, verdict: Reason | None) -> str:
    why = told(seen, made.reason, verdict)
    assert why is not None
    return why.message


def test_a_replacement_that_waits_at_the_gate_says_for_what() -> None:
    seen = facts(gated=1, bound=3)
    made = stand(seen, GRANT, lost_at=NOW)
    assert sentence(seen, made, FULL) == (
        "3 of 4 pods are bound after a loss; its replacement waits: has quota and waits for nodes: 0 of 1 fit now "
        "(1 cpu each); of 2 nodes: 2 full; it starts when enough pods end; "
        "taken back whole unless mended by 1970-01-12T13:51:40Z"
    )
    two = facts(gated=2, bound=2)
    assert "; 2 replacements wait: has quota" in sentence(two, stand(two, GRANT, lost_at=NOW), FULL)


def test_what_was_said_of_pods_that_would_join_is_not_said_of_a_loss() -> None:
    """Its replacement is through the gate already: those at it are beyond what it was admitted for."""
    seen = facts(gated=2, pending=1, bound=3, wanted=6, minimum=4)
    made = stand(seen, GRANT, lost_at=NOW)
    assert brief(made)[2] is Code.BELOW_MINIMUM
    assert sentence(seen, made, FULL) == sentence(seen, made, None)


def test_the_engines_verdict_is_told_of_pods_at_the_gate_and_not_of_those_that_run() -> None:
    gathered = facts(gated=4)
    assert told(gathered, stand(gathered, GATHER).reason, NEVER) == NEVER
    waiting = facts(gated=4)
    assert told(waiting, stand(waiting).reason, FULL) == FULL
    running = facts(bound=4)
    assert sentence(running, stand(running, GRANT), FULL) == "4 of 4 pods are bound"


def test_gathered_pods_that_can_never_go_are_taken_back_at_once() -> None:
    seen = facts(gated=4)
    made = standing(seen, GATHER, lost_at=None, back_off=None, now=NOW, hopeless=True)
    assert (made.phase, made.do, made.park_as) == (Phase.GATHERING, Do.PARK, Code.NOT_BOUND_IN_TIME)
    # Its pods go with that; resumed again it would be where it was.
    parked = facts(suspended_by="us", parked_as="NotBoundInTime")
    again = standing(parked, GATHER, lost_at=None, back_off=None, now=NOW, hopeless=True)
    assert (again.phase, again.do) == (Phase.PARKED, Do.FORGET)
    # One of them is gone since, and the next may be made otherwise.
    fewer = standing(facts(gated=3), GATHER, lost_at=None, back_off=None, now=NOW, hopeless=True)
    assert (fewer.phase, fewer.do) == (Phase.GATHERING, Do.NOTHING)


@pytest.mark.parametrize(
    ("seen", "grant", "lost_at", "verdict", "cause"),
    [
        (facts(gated=4), GATHER, None, NEVER, f"its pods, as they were made, couldn't go: {NEVER.message}"),
        (facts(gated=3), GATHER, None, None, "3 of 4 pods were made in time"),
        (facts(gated=1, bound=3), GRANT, NOW, FULL, f"not all of its pods were bound in time: {FULL.message}"),
        (facts(gated=1, bound=3), GRANT, None, FULL, f"not all of its pods were bound in time: {FULL.message}"),
        (facts(pending=1, bound=3), GRANT, None, FULL, "not all of its pods were bound in time"),
    ],
)
def test_a_parked_gang_says_what_kept_it(
    seen: Facts, grant: Grant, lost_at: float | None, verdict: Reason | None, cause: str
) -> None:
    stands = stand(seen, grant, lost_at=lost_at).reason
    assert stands is not None
    found = taken_back_for(seen, stands, verdict)
    assert found == cause
    parked = facts(suspended_by="us", parked_as="NotBoundInTime", parked_message=found)
    assert backing_off(parked, 2, NOW).message == (
        f"taken back 2 times, last because {cause}; tries again at 1970-01-12T13:46:40Z"
    )


def test_what_kube_scheduler_said_is_told_of_a_gang_that_was_taken_back() -> None:
    seen = msgspec.structs.replace(facts(bound=3), pending=pods(1, unschedulable="0/2 nodes are available"))
    stands = stand(seen, GRANT).reason
    assert stands is not None
    assert taken_back_for(seen, stands, None) == (
        "not all of its pods were bound in time; kube-scheduler: 0/2 nodes are available"
    )


def test_to_whom_a_gang_gave_way_is_not_why_it_was_taken_back() -> None:
    gave = facts(suspended_by="us", parked_as="Reclaimed", parked_message="gave its place to n/job-y")
    assert "last because not all of its pods were bound in time;" in backing_off(gave, 1, NOW).message


def test_the_shortest_way_through_the_table_where_steps_were_missed() -> None:
    assert steps(Phase.WAITING, Phase.RELEASING) == (Phase.RELEASING,)
    assert steps(Phase.WAITING, Phase.WAITING) == ()
    assert steps(Phase.PARKED, Phase.RUNNING) == (Phase.GATHERING, Phase.RUNNING)


@given(st.sampled_from(Phase), st.sampled_from(Phase))
def test_there_is_a_way_between_any_two_phases_and_it_keeps_to_the_table(before: Phase, after: Phase) -> None:
    at = before
    for phase in steps(before, after):
        assert phase in FOLLOWS[at]
        at = phase
    assert at is after


counts = st.integers(0, 4)


@given(
    gated=counts,
    pending=counts,
    bound=counts,
    wanted=st.integers(0, 5),
    suspended=st.sampled_from(["", "user", "us"]),
    grant=st.one_of(st.none(), st.builds(Grant, slots=st.integers(1, 5), at=st.just(NOW), gathering=st.booleans())),
)
def test_a_gang_is_running_exactly_when_all_its_slots_are_bound(
    gated: int, pending: int, bound: int, wanted: int, suspended: str, grant: Grant | None
) -> None:
    """Case 36: a gang with a pending pod among its slots isn't Running; and nothing is decided on twice."""
    parked = {"suspended_by": suspended, "parked_as": "X" if suspended == "us" else ""}
    seen = facts(gated=gated, pending=pending, bound=bound, wanted=wanted, **parked)
    made = stand(seen, grant)
    if made.phase is Phase.RUNNING:
        assert grant is not None
        assert bound >= min(grant.slots, wanted)
    if made.do is Do.DECIDE:
        assert grant is None
        assert seen.past == 0 or suspended
