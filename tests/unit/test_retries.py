"""What was refused is tried again: soon at first, then ever more rarely, never all at once."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from controller.retries import PAUSES, REMEMBERED, Retries, pause

HOUR = 3600.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(st.floats(0, 10 * HOUR), st.floats(0, 0.999))
def test_whoever_mends_what_refuses_waits_for_a_part_of_what_it_took(refused_for: float, chance: float) -> None:
    seconds = pause(refused_for, lambda: chance)
    assert 2 <= seconds <= 90
    assert seconds <= max(3.0, refused_for * 3 / 8)


def test_tries_in_an_hour_of_refusals() -> None:
    now, tries, random = 0.0, 0, Random(1)
    while now < HOUR:
        now += pause(now, random.random)
        tries += 1
    assert 40 <= tries <= 80, "a try a minute or so, where one in two seconds were 1800"


def test_those_that_are_refused_together_come_apart() -> None:
    assert len({pause(HOUR) for _ in range(20)}) == 20


def test_each_thing_rests_for_itself_and_begins_anew_once_it_went_well() -> None:
    clock = Clock()
    retries = Retries(clock)
    assert not retries.rests("a")
    retries.refused("a")
    assert retries.rests("a")
    assert not retries.rests("b")
    for _ in range(200):
        clock.now = retries.until("a")
        assert not retries.rests("a")
        retries.refused("a")
    assert retries.until("a") - clock.now >= PAUSES[1]
    retries.went_well("a")
    assert not retries.rests("a")
    retries.refused("a")
    assert retries.until("a") - clock.now <= 1.5 * PAUSES[0]


def test_what_is_gone_is_forgotten_by_itself() -> None:
    clock = Clock()
    retries = Retries(clock)
    for number in range(100):
        retries.refused(str(number))
    clock.now += REMEMBERED[1] + 1
    retries.refused("other")
    assert len(retries._since) == 1
