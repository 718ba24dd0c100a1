"""Back-off: grows, is bounded, is spread, and starts again after a success."""

from hypothesis import given
from hypothesis import strategies as st

from startgate.kube.backoff import Backoff


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=20, max_size=20))
def test_waits_double_up_to_the_longest_and_keep_at_least_half_of_their_step(rands: list[float]) -> None:
    rest = iter(rands)
    backoff = Backoff(0.1, 30.0, rand=lambda: next(rest))
    for attempt in range(20):
        step = min(0.1 * 2**attempt, 30.0)
        assert step / 2 <= backoff.next() <= step


def test_a_success_starts_it_again() -> None:
    backoff = Backoff(0.1, 30.0, rand=lambda: 1.0)
    for _ in range(5):
        backoff.next()
    backoff.reset()
    assert backoff.next() == 0.1
