"""How deep a queue is, between one count of the controller and the next."""

from webhook.depth import LATE, Depths


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_what_was_let_in_counts_until_a_status_has_it() -> None:
    """One that comes right after may have been written before; the next would have come by now, had it been."""
    clock = Clock()
    depths = Depths(clock)
    depths.let_in("q", 3)
    clock.now += LATE
    depths.let_in("q", 4)
    assert depths.waiting("q", 0) == 7
    depths.status_came("q")
    assert depths.waiting("q", 0) == 4
    clock.now += LATE
    assert depths.waiting("q", 0) == 0


def test_time_alone_makes_nothing_less() -> None:
    """The controller may be away."""
    clock = Clock()
    depths = Depths(clock)
    depths.let_in("q", 1)
    depths.status_came("q")
    clock.now += LATE / 2
    depths.let_in("q", 5)
    clock.now += 100 * LATE
    assert depths.waiting("q", 0) == 5
    depths.status_came("q")
    assert depths.waiting("q", 0) == 0


def test_what_is_in_the_status_already_is_not_counted_twice() -> None:
    depths = Depths(Clock())
    depths.let_in("q", 10)
    depths.status_came("q")
    assert [depths.waiting("q", counted) for counted in (0, 10, 12)] == [10, 10, 12]
    assert depths.waiting("r", 3) == 3


def test_queues_are_counted_each_by_itself() -> None:
    depths = Depths(Clock())
    depths.let_in("q", 3)
    depths.let_in("r", 2)
    depths.forget("q")
    depths.status_came("other")
    assert (depths.waiting("q", 0), depths.waiting("r", 0)) == (0, 2)


def test_nothing_piles_up_while_no_status_comes() -> None:
    clock = Clock()
    depths = Depths(clock)
    for _ in range(1000):
        depths.let_in("q", 1)
        clock.now += 0.1
    assert depths.waiting("q", 0) == 1000
    assert len(depths._since["q"].recent) <= LATE / 0.1 + 1
