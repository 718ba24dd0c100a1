"""Events: clipped to what the API server takes, within the budget."""

from hypothesis import given
from hypothesis import strategies as st

from startgate.kube.events import LONGEST_NOTE, Budget, _clipped


@given(st.text(max_size=2000))
def test_a_note_is_never_longer_than_allowed_and_begins_as_the_message(message: str) -> None:
    note = _clipped(message)
    assert len(note.encode()) <= LONGEST_NOTE
    assert note == message or message.startswith(note.removesuffix("…"))


def test_the_budget_allows_a_burst_and_then_its_rate() -> None:
    now = 0.0
    budget = Budget(2.0, 3, clock=lambda: now)
    assert [budget.take() for _ in range(4)] == [True, True, True, False]
    now = 1.0
    assert [budget.take() for _ in range(3)] == [True, True, False]
