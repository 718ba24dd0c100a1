"""The engine's quota, fair shares and order against the slow formulas of tests.unit.reference, on random trees.

Trees are as bad as admins can make them: parents that don't exist or go in a circle, guarantees above capabilities,
amounts given to children beyond their parent's, use of queues that are gone.
"""

from collections.abc import Mapping
from math import inf

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from startgate.engine.fair import EVEN, NOTHING, Seat, Shares
from startgate.engine.order import Turns
from startgate.engine.quota import Books
from startgate.engine.world import Rule, Waiting
from startgate.model.queue import QueueSpec
from tests.unit.reference import Fairness, Formulas, Place
from tests.unit.worlds import GPU

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

RESOURCES = ["cpu", GPU, "memory"]
NAMES = list("abcdefghijkl")
GONE = "zz"

SMALL = st.integers(0, 12)
COUNTS = st.dictionaries(st.sampled_from(RESOURCES), st.one_of(SMALL, SMALL, st.integers(0, 2**62)), max_size=3)


def written(counts: Mapping[str, int]) -> dict[str, str | int]:
    return {resource: f"{count}m" if resource == "cpu" else count for resource, count in counts.items()}


@st.composite
def trees(draw: st.DrawFn) -> dict[str, QueueSpec]:
    """Up to 12 queues, mostly below one before them, at most four deep; a few parents that can't be."""
    queues: dict[str, QueueSpec] = {}
    depth = {"": 0, "nobody": 0}
    for name in NAMES[: draw(st.integers(1, len(NAMES)))]:
        above = [each for each in queues if depth[each] < 4]
        parent = draw(st.sampled_from(["", *above, *above, "nobody"]))
        depth[name] = depth[parent] + 1
        queues[name] = QueueSpec(
            parent=parent,
            weight=draw(st.sampled_from([1, 1, 2, 3, 7, 1_000_000])),
            capability=written(draw(st.one_of(st.just({}), COUNTS))),
            guarantee=written(draw(st.one_of(st.just({}), COUNTS))),
            deserved=written(draw(st.one_of(st.just({}), COUNTS))),
        )
    if draw(st.integers(0, 9)) == 0:
        queues["a"] = QueueSpec(parent=draw(st.sampled_from(list(queues))), weight=2)
    return queues


HELD = st.dictionaries(st.sampled_from([*NAMES, GONE]), COUNTS, max_size=8)


class Case:
    """The engine and the formulas, after the same beginning."""

    def __init__(
        self,
        queues: dict[str, QueueSpec],
        total: dict[str, int],
        used: dict[str, dict[str, int]],
        going: dict[str, dict[str, int]],
        asks: dict[str, dict[str, int]],
    ) -> None:
        known = {*queues, GONE}
        used = {name: held for name, held in used.items() if name in known}
        asks = {name: held for name, held in asks.items() if name in known}
        leaving = {
            name: {each: min(count, used[name].get(each, 0)) for each, count in held.items()}
            for name, held in going.items()
            if name in used
        }
        self.books, self.plain = Books(queues, total), Formulas(queues, total)
        for name, held in used.items():
            self.books.take(name, held)
            self.plain.take(name, held)
        self.shares = Shares(self.books, leaving, asks)
        self.fairness = Fairness(self.plain, leaving, asks)
        self.names = sorted({*queues, *used, *asks})

    def take(self, name: str, asks: dict[str, int]) -> None:
        self.books.take(name, asks)
        self.plain.take(name, asks)
        self.shares.take(name, asks)

    def seats(self) -> dict[Place, Seat]:
        found = {}
        for name in self.names:
            for seat in self.shares.seat(name).path:
                if seat.parent is not None:
                    found[(seat.name, seat.own)] = seat
        return found

    def share(self, place: Place) -> object:
        share = self.fairness.share(place)
        return NOTHING if share == inf else share * EVEN // 1


CASES = st.builds(Case, trees(), COUNTS, HELD, HELD, HELD)


@UNHURRIED
@given(CASES, st.lists(st.tuples(st.sampled_from([*NAMES, GONE]), COUNTS), max_size=4))
def test_charge_and_quota(case: Case, steps: list[tuple[str, dict[str, int]]]) -> None:
    for name, asks in steps:
        if name not in case.names:
            continue
        within = case.plain.within(name, asks)
        assert (case.books.refusal(name, asks) is None) == within
        if within:
            case.take(name, asks)
    for name in case.names:
        level = case.books.level(name)
        for each in RESOURCES:
            charge = max(level.floor.get(each, 0), level.inner.get(each, 0))
            assert charge == case.plain.charge(name, each)


@UNHURRIED
@given(CASES)
def test_deserved(case: Case) -> None:
    for place, seat in case.seats().items():
        due = {resource: count for resource, count in case.fairness.due[place].items() if count}
        assert (place, seat.deserved) == (place, due)
        assert seat.request == {each: count for each in RESOURCES if (count := case.fairness.request(place, each)) > 0}


@UNHURRIED
@given(CASES, st.lists(st.tuples(st.sampled_from([*NAMES, GONE]), COUNTS), max_size=4))
def test_use_and_share_as_gangs_start(case: Case, steps: list[tuple[str, dict[str, int]]]) -> None:
    for name, asks in steps:
        if name not in case.names:
            continue
        would = {place: case.shares.share(seat, asks) for place, seat in case.seats().items()}
        case.take(name, asks)
        for place in case.fairness.path(name)[:-1]:
            assert would[place] == case.share(place)
    for place, seat in case.seats().items():
        assert seat.use == {each: count for each in RESOURCES if (count := case.fairness.use(place, each))}
        assert seat.share() == case.share(place)


@UNHURRIED
@given(CASES, st.data())
def test_lines_and_branches(case: Case, some: st.DataObject) -> None:
    one, other = some.draw(st.sampled_from(case.names)), some.draw(st.sampled_from(case.names))
    paths = [case.fairness.path(name) for name in (one, other)]
    branches = case.shares.branches(one, other)
    if one == other:
        assert branches is None
        return
    assert branches is not None
    apart = [[place for place in path if place not in paths[1 - i]][-1] for i, path in enumerate(paths)]
    assert [(seat.name, seat.own) for seat in branches] == apart
    asks = {each: count for each, count in some.draw(COUNTS).items() if count}
    for seat, place in zip(branches, apart, strict=True):
        after = {each: case.fairness.use(place, each) + count for each, count in asks.items()}
        now = {each: case.fairness.use(place, each) for each in asks}
        due = {each: case.fairness.due[place].get(each, 0) for each in asks}
        floors = {each: floor for each in asks if (floor := case.fairness.floor(place, each))}
        assert case.shares.within(seat, asks, Rule.DESERVED) == (
            bool(asks) and all(after[each] <= due[each] for each in asks)
        )
        assert case.shares.within(seat, asks, Rule.GUARANTEE) == (
            bool(floors) and all(after[each] <= floors.get(each, due[each]) for each in asks)
        )
        assert case.shares.claimed(seat, asks, Rule.GUARANTEE) == floors.keys()
        assert case.shares.above(seat, asks, Rule.DESERVED) == {each for each in asks if now[each] > due[each]}
        assert case.shares.above(seat, asks, Rule.GUARANTEE) == {
            each for each in asks if now[each] > floors.get(each, 0)
        }


GANGS = st.lists(
    st.tuples(st.sampled_from([*NAMES, GONE]), st.integers(-1, 1), st.integers(0, 3), COUNTS, st.booleans()),
    max_size=10,
)


@UNHURRIED
@given(CASES, GANGS)
def test_order(case: Case, gangs: list[tuple[str, int, int, dict[str, int], bool]]) -> None:
    waiting: list[Waiting] = []
    starts: dict[str, dict[str, int]] = {}
    for i, (name, priority, since, asks, goes) in enumerate(gangs):
        if name in case.names:
            made = Waiting(
                gang=f"ns/{i}", queue=name, namespace="ns", priority=priority, since=float(since), minimum=()
            )
            waiting.append(made)
            if goes:
                starts[made.gang] = asks
    turns = Turns(case.shares, waiting)
    while waiting:
        expected = case.fairness.next(waiting)
        gang = turns.pop()
        assert gang is expected
        assert gang is not None
        waiting.remove(gang)
        if gang.gang in starts:
            case.take(gang.queue, starts[gang.gang])
            turns.moved(gang.queue)
    assert turns.pop() is None
