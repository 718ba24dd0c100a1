"""When a Lease may be taken: decided on what one candidate saw, on its own clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from startgate.kube.election import Election, LeaseSpec, Watchman


def spec(holder: str, renewed: str = "t0", seconds: int = 15) -> LeaseSpec:
    return LeaseSpec(holder_identity=holder, lease_duration_seconds=seconds, renew_time=renewed)


def test_no_lease_and_a_lease_given_up_are_free() -> None:
    assert Watchman("me", 15.0).wait(None, 0.0) == 0
    assert Watchman("me", 15.0).wait(spec(""), 0.0) == 0
    assert Watchman("me", 15.0).wait(LeaseSpec(), 0.0) == 0


def test_our_own_name_from_an_earlier_process_is_no_obstacle() -> None:
    assert Watchman("me", 15.0).wait(spec("me"), 0.0) == 0


def test_another_holder_is_waited_for_from_when_we_first_saw_it_stand_still() -> None:
    watchman = Watchman("me", 15.0)
    assert watchman.wait(spec("her", "t0"), 100.0) == 15
    assert watchman.wait(spec("her", "t0"), 110.0) == 5
    assert watchman.wait(spec("her", "t1"), 111.0) == 15
    assert watchman.wait(spec("her", "t1"), 126.0) == 0


def test_a_holder_that_promised_itself_longer_gets_it() -> None:
    assert Watchman("me", 15.0).wait(spec("her", seconds=60), 0.0) == 60


def test_a_holder_that_promised_itself_less_gets_what_we_would() -> None:
    assert Watchman("me", 15.0).wait(spec("her", seconds=1), 0.0) == 15
    assert Watchman("me", 15.0).wait(LeaseSpec(holder_identity="her"), 0.0) == 15


def test_a_lease_that_was_deleted_under_its_holder_is_waited_for() -> None:
    watchman = Watchman("me", 15.0)
    watchman.wait(spec("her"), 0.0)
    assert watchman.wait(None, 5.0) == 10
    assert watchman.wait(None, 15.0) == 0


@given(
    st.floats(0, 3),  # how long the renewal's request took to be in effect
    st.floats(0, 5),  # how long after that the candidate first saw it
    st.lists(st.floats(0.1, 3), min_size=1, max_size=40),  # its looks
)
def test_a_leader_that_falls_silent_has_stopped_leading_before_another_may_start(
    landed: float, seen: float, looks: list[float]
) -> None:
    leads_until = 0.0 + 10.0  # from when the request was sent
    watchman = Watchman("me", 15.0)
    now = landed + seen
    while watchman.wait(spec("her"), now) > 0:
        now += looks[int(now) % len(looks)]
    assert now >= leads_until + 5.0


@pytest.mark.parametrize(("lease", "renew", "retry"), [(10, 10, 2), (15, 10, 10), (15, 10, 0)])
def test_times_that_would_allow_two_leaders_are_refused(lease: float, renew: float, retry: float) -> None:
    with pytest.raises(ValueError, match="must be above"):
        Election(
            None,  # type: ignore[arg-type]
            namespace="ns",
            name="lease",
            identity="me",
            lease_duration=lease,
            renew_deadline=renew,
            retry=retry,
        )
