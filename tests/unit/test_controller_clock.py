"""The controller's clock: machines' clocks are set while it measures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.clock import Clock

HOUR = 3600.0


class Machine:
    def __init__(self) -> None:
        self.passed = 500.0
        self.set_by = 1_800_000_000.0

    def clock(self) -> Clock:
        return Clock(lambda: self.passed + self.set_by, lambda: self.passed)


def test_it_says_what_the_machine_says() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.passed += 100
    assert clock() == 1_800_000_600


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(-HOUR, HOUR)), max_size=20))
def test_about_as_much_passes_as_has_passed_however_the_machine_is_set(story: list[tuple[float, float]]) -> None:
    machine = Machine()
    clock = machine.clock()
    before = clock()
    for seconds, jump in story:
        machine.passed += seconds
        machine.set_by += jump
        now = clock()
        assert 0.5 * seconds - 1e-3 <= now - before <= 1.25 * seconds + 1e-3
        before = now


@pytest.mark.parametrize(("by", "hours"), [(HOUR, 4), (-HOUR, 2)])
def test_a_clock_that_was_put_right_is_followed_in_hours(by: float, hours: int) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.set_by += by
    for _ in range(hours * 60 - 1):
        machine.passed += 60
        clock()
    assert clock() != machine.passed + machine.set_by
    machine.passed += 60
    assert clock() == machine.passed + machine.set_by
