"""What counts as flat: the sums behind the last line of `make soak`."""

from __future__ import annotations

import os
from itertools import pairwise

from tests.soak.footprint import FEWEST, GROWS, MORE_FILES, WARM_AFTER, Footprints, Sample, growth


def life(*memory: int, files: int = 10) -> list[Sample]:
    """A process with these samples once it is warm, after one that is far larger than all of them."""
    cold = Sample(0.0, 10 * GROWS, 10 * MORE_FILES)
    return [cold, *(Sample(WARM_AFTER + 10.0 * at, each, files) for at, each in enumerate(memory))]


def test_one_that_grows_while_it_is_cold_is_flat() -> None:
    steady = growth("p", life(*[50 * GROWS] * FEWEST))
    assert steady is not None
    assert steady.flat
    assert steady.memory == (50 * GROWS, 50 * GROWS)


def test_one_that_grows_bit_by_bit_isn_t() -> None:
    leaking = growth("p", life(*range(0, 80 * GROWS, GROWS // 10)))
    assert leaking is not None
    assert not leaking.flat
    assert str(leaking).endswith("it grows")


def test_a_peak_is_no_growth() -> None:
    peak = growth("p", life(*[GROWS] * FEWEST, 90 * GROWS, *[GROWS] * FEWEST))
    assert peak is not None
    assert peak.flat


def test_files_that_stay_open_are_growth() -> None:
    samples = [each._replace(files=at) for at, each in enumerate(life(*[GROWS] * 40))]
    leaking = growth("p", samples)
    assert leaking is not None
    assert not leaking.flat


def test_one_that_ended_young_isn_t_compared() -> None:
    assert growth("p", life(*[GROWS] * (FEWEST - 1))) is None


def test_processes_of_this_machine_are_measured_and_those_that_ended_are_left_out() -> None:
    footprints = Footprints()
    nobody = 2**22 + 1  # above the largest process id there can be
    for at in range(40):
        footprints.look({"mine": os.getpid(), "gone": nobody}, 10.0 * at)
    (mine,) = footprints.grown()
    assert mine.program == "mine"
    assert mine.seconds == 390.0
    assert mine.memory[0] > 2**20


def test_the_longest_lived_of_a_program_comes_last() -> None:
    footprints = Footprints()
    for at in range(60):
        footprints.look({"p": os.getpid()}, 10.0 * at)
        if at > 20:
            footprints.look({"p": os.getppid()}, 10.0 * at)
    lives = [each.seconds for each in footprints.grown()]
    assert len(lives) == 2
    assert all(first < second for first, second in pairwise(lives))
