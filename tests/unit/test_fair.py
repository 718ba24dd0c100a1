"""Fair shares: what queues deserve, how much of it they have, and which lines they are above."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from startgate.engine.fair import EVEN, NOTHING, Seat, Shares
from startgate.engine.quota import Books
from startgate.engine.world import Rule
from startgate.model.queue import QueueSpec
from startgate.model.resources import Amounts
from tests.unit.worlds import GPU

UNHURRIED = settings(deadline=None)  # the machine may be busy with other things


def queue(parent: str = "", *, weight: int = 1, cap: Any = None, floor: Any = None, due: Any = None) -> QueueSpec:
    """Amounts of GPUs, unless a resource is named."""

    def amounts(written: Any) -> dict[str, str | int]:
        return written if isinstance(written, dict) else {} if written is None else {GPU: written}

    return QueueSpec(
        parent=parent, weight=weight, capability=amounts(cap), guarantee=amounts(floor), deserved=amounts(due)
    )


def shares(
    queues: Mapping[str, QueueSpec],
    total: int | Amounts,
    *,
    used: Mapping[str, int | Amounts] | None = None,
    asks: Mapping[str, int | Amounts] | None = None,
    going: Mapping[str, int | Amounts] | None = None,
    outside: Amounts | None = None,
) -> Shares:
    def held(by: Mapping[str, int | Amounts] | None) -> dict[str, Amounts]:
        return {name: {GPU: each} if isinstance(each, int) else each for name, each in (by or {}).items()}

    books = Books(queues, {GPU: total} if isinstance(total, int) else total)
    for name, amounts in held(used).items():
        books.take(name, amounts)
    return Shares(books, held(going), held(asks), outside or {})


def deserved(made: Shares, *names: str) -> list[int]:
    """GPUs that these queues deserve, with all below them."""
    return [_queue(made, name).deserved.get(GPU, 0) for name in names]


def _queue(made: Shares, name: str) -> Seat:
    seat = made.seat(name)
    assert seat.parent is not None
    return seat.parent if seat.own else seat


def test_as_given_whether_it_asks_or_not_and_within_guarantee_and_capability() -> None:
    queues = {
        "idle": queue(due=10),
        "low": queue(due=1, floor=3),
        "high": queue(due=10, cap=7),
        "both": queue(due=10, cap=2, floor=4),
        "none": queue(due=0),
    }
    made = shares(queues, 100, asks={"none": 5})
    assert deserved(made, *queues) == [10, 3, 7, 4, 0]
    assert made.root.deserved == {GPU: 100}


def test_the_rest_by_weight_capped_by_what_is_asked() -> None:
    queues = {"given": queue(due=10), "a": queue(weight=1), "b": queue(weight=3), "modest": queue(weight=100)}
    made = shares(queues, 40, used={"a": 20}, asks={"b": 90, "modest": 2})
    assert deserved(made, *queues) == [10, 7, 21, 2]


def test_one_gang_gives_way_not_ten() -> None:
    """Case 20: weights 1 and 10 on 12 units, where the greater asks for little."""
    made = shares({"qa": queue(weight=1), "qb": queue(weight=10)}, 12, used={"qa": 11}, asks={"qb": 2})
    assert deserved(made, "qa", "qb") == [10, 2]
    assert made.above(made.seat("qa"), [GPU], Rule.DESERVED) == {GPU}
    made.take("qa", {GPU: -1})
    assert made.above(made.seat("qa"), [GPU], Rule.DESERVED) == set()


def test_a_guarantee_is_deserved_without_asking_and_before_weight() -> None:
    queues = {"kept": queue(floor=6), "a": queue(), "b": queue(floor=3, weight=1)}
    assert deserved(shares(queues, 10, asks={"a": 50, "b": 50}), *queues) == [6, 1, 3]
    assert deserved(shares(queues, 10, asks={"a": 1, "b": 50}), *queues) == [6, 1, 3]
    assert deserved(shares(queues, 8, asks={"a": 50, "b": 50}), *queues) == [6, 0, 3], "more than there is, as promised"


def test_no_one_deserves_more_than_the_capability_allows() -> None:
    queues = {"a": queue(cap=3), "b": queue(), "p": queue(cap=2), "c": queue("p", weight=50), "d": queue("p")}
    made = shares(queues, 12, asks=dict.fromkeys(queues, 50))
    assert deserved(made, "a", "b", "p", "c") == [3, 7, 2, 2]


def test_whole_units_and_none_is_lost() -> None:
    queues = {name: queue() for name in "abc"}
    assert deserved(shares(queues, 7, asks=dict.fromkeys("abc", 9)), *"abc") == [3, 2, 2]
    assert deserved(shares(queues, 8, asks=dict.fromkeys("abc", 9)), *"abc") == [3, 3, 2]
    uneven = {"a": queue(weight=1), "b": queue(weight=2)}
    assert deserved(shares(uneven, 4, asks=dict.fromkeys("ab", 9)), *"ab") == [1, 3], "4/3 and 8/3"


def test_a_unit_that_two_deserve_by_half_stays_with_who_has_it() -> None:
    """By name alone, "a" would take the odd unit from "b" by reclaim, each time."""
    queues = {"a": queue(), "b": queue()}
    made = shares(queues, 3, used={"a": 1, "b": 2}, asks={"a": 1, "b": 1})
    assert deserved(made, "a", "b") == [1, 2]
    made = shares(queues, 3, used={"a": 2, "b": 1}, asks={"a": 1, "b": 1})
    assert deserved(made, "a", "b") == [2, 1]


def test_each_resource_is_shared_out_for_itself() -> None:
    made = shares(
        {"a": queue(due={"cpu": 6}), "b": queue()},
        {"cpu": 10_000, GPU: 8},
        asks={"a": {"cpu": 1000, GPU: 8}, "b": {"cpu": 9000, GPU: 8}},
    )
    assert made.seat("a").deserved == {"cpu": 6000, GPU: 4}
    assert made.seat("b").deserved == {"cpu": 4000, GPU: 4}


def test_a_parent_shares_out_what_it_deserves_itself() -> None:
    queues = {"p": queue(due=8), "a": queue("p", due=5), "b": queue("p"), "c": queue("p"), "q": queue()}
    made = shares(queues, 20, asks={"b": 9, "c": 1, "q": 50})
    assert deserved(made, *queues) == [8, 5, 2, 1, 12]


def test_a_parent_asks_for_what_its_children_deserve_without_asking() -> None:
    """Were a parent's request only what its children ask for, each within its capability, it would deserve 10 here,
    and the child that asks would deserve 6 of them, while another tenant that floods its queue has all the rest.
    """
    for idle in (queue("p", floor=4), queue("p", due=4)):
        queues = {"p": queue(), "idle": idle, "asks": queue("p"), "flood": queue()}
        made = shares(queues, 100, asks={"asks": 10, "flood": 500})
        assert deserved(made, "p", "idle", "asks", "flood") == [14, 4, 10, 86]


def test_what_children_ask_for_beyond_what_they_are_given_counts_for_their_parent() -> None:
    queues = {"p": queue(), "a": queue("p", due=8), "q": queue()}
    made = shares(queues, 100, asks={"a": 20, "q": 200})
    assert deserved(made, "p", "a", "q") == [20, 8, 80]


def test_gangs_of_an_inner_queue_stand_beside_its_children() -> None:
    queues = {"p": queue(cap=10, floor=2, weight=9, due=9), "a": queue("p"), "b": queue("p", weight=7)}
    made = shares(queues, 100, used={"p": 4}, asks={"p": 50, "a": 50, "b": 50})
    seat = made.seat("p")
    assert (seat.name, seat.own, seat.weight, seat.deserved) == ("p", True, 1, {GPU: 1})
    assert deserved(made, "p", "a", "b") == [9, 1, 7]
    assert (seat.use, _queue(made, "p").use) == ({GPU: 4}, {GPU: 4})
    assert made.branches("p", "a") == (seat, made.seat("a"))
    assert made.within(seat, {GPU: 1}, Rule.GUARANTEE) is False, "the guarantee is the queue's as a whole"


def test_what_is_used_counts_up_to_the_root_without_what_leaves() -> None:
    queues = {"p": queue(), "a": queue("p"), "b": queue("p")}
    made = shares(queues, 10, used={"a": 5, "b": 2}, going={"a": 3})
    assert [seat.use for seat in made.seat("a").path] == [{GPU: 2}, {GPU: 4}, {GPU: 4}]
    made.take("a", {GPU: 4, "cpu": 1})
    made.take("b", {GPU: -2})
    assert [seat.use for seat in made.seat("a").path] == [{GPU: 6, "cpu": 1}] * 3
    assert made.seat("b").use == {}


def test_the_share_is_the_greatest_of_what_is_used_by_what_is_deserved() -> None:
    made = shares(
        {"q": queue(due={"cpu": 8, GPU: 4, "memory": 10})},
        {"cpu": 100_000, GPU: 8, "memory": 100},
        used={"q": {"cpu": 6000, GPU: 1}},
    )
    seat = made.seat("q")
    assert made.share(seat) == EVEN * 3 // 4
    assert made.share(seat, {GPU: 4}) == EVEN * 5 // 4
    assert made.share(seat) == EVEN * 3 // 4, "asking changes nothing"
    made.take("q", {GPU: 3})
    assert made.share(seat) == EVEN
    made.take("q", {"cpu": -6000, GPU: -4})
    assert made.share(seat) == 0


def test_who_deserves_nothing_of_what_it_has_comes_last() -> None:
    queues = {"none": queue(due={"cpu": 0, GPU: 0}), "no-gpu": queue(due={"cpu": 1, GPU: 0}), "over": queue(due=1)}
    made = shares(queues, {"cpu": 100_000, GPU: 100}, used={"over": 99})
    assert made.share(made.seat("none")) == NOTHING
    assert made.share(made.seat("no-gpu"), {"cpu": 1000}) == EVEN
    assert made.share(made.seat("no-gpu"), {GPU: 1}) == NOTHING
    assert made.share(made.seat("over")) < NOTHING


def test_shares_that_floats_cannot_tell_apart_are_compared_exactly() -> None:
    due = {"memory": 2**62}
    made = shares(
        {"a": queue(due=due), "b": queue(due=due)},
        {"memory": 2**63},
        used={"a": {"memory": 2**62 - 1}, "b": {"memory": 2**62 - 2}},
    )
    a, b = made.share(made.seat("a")), made.share(made.seat("b"))
    assert a / EVEN == b / EVEN == 1.0
    assert b < a < EVEN
    both = shares(
        {"q": queue(due={"memory": 2**62, GPU: 2**62})},
        {"memory": 2**63},
        used={"q": {"memory": 2**62 - 2, GPU: 2**62 - 1}},
    )
    assert both.share(both.seat("q")) == a, "the greater of the two, in whatever order"


AMOUNT = st.integers(1, 2**63 - 1)


@UNHURRIED
@given(AMOUNT, AMOUNT, AMOUNT, AMOUNT)
def test_comparing_shares_is_comparing_ratios(use: int, due: int, other_use: int, other_due: int) -> None:
    made = shares(
        {"a": queue(due={"memory": due}), "b": queue(due={"memory": other_due})},
        {"memory": 1},
        used={"a": {"memory": use}, "b": {"memory": other_use}},
    )
    a, b = made.share(made.seat("a")), made.share(made.seat("b"))
    assert (a < b) == (use * other_due < other_use * due)
    assert (a == b) == (use * other_due == other_use * due)


def test_branches_part_below_the_lowest_queue_above_both() -> None:
    queues = {"p": queue(), "a": queue("p"), "deep": queue("a"), "b": queue("p"), "q": queue()}
    made = shares(queues, 1)
    found = made.branches("deep", "b")
    assert found is not None
    assert [seat.name for seat in found] == ["a", "b"]
    found = made.branches("q", "deep")
    assert found is not None
    assert [seat.name for seat in found] == ["q", "p"]
    assert made.branches("b", "b") is None


def test_a_queue_that_does_not_exist_is_a_child_of_the_root_without_limits() -> None:
    made = shares({"q": queue()}, 10, used={"gone": 8}, asks={"q": 10})
    assert deserved(made, "q", "gone") == [5, 5]
    assert deserved(shares({"q": queue()}, 10, asks={"q": 10, "gone": 3}), "q", "gone") == [7, 3]
    late = made.seat("late")
    assert (late.parent, late.deserved, made.share(late)) == (made.root, {}, NOTHING)
    made.take("late", {GPU: 1})
    assert made.root.use == {GPU: 9}


def test_what_is_borrowed_of_one_resource_does_not_block_another() -> None:
    """Case 18."""
    total = {"cpu": 100_000, GPU: 8}
    made = shares({"q": queue(due={"cpu": 10, GPU: 4})}, total, used={"q": {"cpu": 50_000, GPU: 3}})
    seat = made.seat("q")
    assert made.within(seat, {GPU: 1}, Rule.DESERVED)
    assert not made.within(seat, {GPU: 2}, Rule.DESERVED)
    assert not made.within(seat, {GPU: 1, "cpu": 1}, Rule.DESERVED)
    assert made.above(seat, ["cpu", GPU], Rule.DESERVED) == {"cpu"}
    assert made.above(seat, [GPU], Rule.DESERVED) == set()


def test_within_the_guarantee_where_there_is_one_and_within_the_deserved_in_the_rest() -> None:
    total = {"cpu": 100_000, GPU: 8, "pods": 100}
    made = shares({"q": queue(floor=2, due={"cpu": 10, GPU: 6, "pods": 20})}, total, used={"q": {GPU: 1, "cpu": 8000}})
    seat = made.seat("q")
    assert made.claimed(seat, {GPU: 1, "pods": 1, "cpu": 0}, Rule.GUARANTEE) == {GPU}
    assert made.claimed(seat, {GPU: 1, "pods": 1, "cpu": 0}, Rule.DESERVED) == {GPU, "pods"}
    assert made.within(seat, {GPU: 1, "pods": 1, "cpu": 2000}, Rule.GUARANTEE)
    assert not made.within(seat, {GPU: 1, "pods": 1, "cpu": 2001}, Rule.GUARANTEE)
    assert not made.within(seat, {GPU: 2, "pods": 1}, Rule.GUARANTEE)
    assert not made.within(seat, {"pods": 1, "cpu": 1}, Rule.GUARANTEE), "it has no guarantee of what is asked for"
    made.take("q", {GPU: 2})
    assert made.above(seat, [GPU], Rule.GUARANTEE) == {GPU}
    assert made.above(seat, [GPU], Rule.DESERVED) == set()


def test_a_very_deep_tree() -> None:
    deep = 3000
    queues = {"q0": queue(), **{f"q{i}": queue(f"q{i - 1}") for i in range(1, deep)}}
    made = shares(queues, 5, asks={f"q{deep - 1}": 9})
    assert deserved(made, "q0", f"q{deep - 1}") == [5, 5]


BOUNDS = st.tuples(st.integers(1, 9), st.integers(0, 20), st.integers(0, 40))


@UNHURRIED
@given(st.lists(BOUNDS, min_size=1, max_size=9), st.integers(0, 100))
def test_sharing_out_is_fair_and_leaves_nothing_over(siblings: list[tuple[int, int, int]], total: int) -> None:
    """Said of the outcome, not of the way to it: between two who could have had more or less, by weight to the unit."""
    queues = {f"q{i}": queue(weight=weight, floor=floor) for i, (weight, floor, _) in enumerate(siblings)}
    found = deserved(shares(queues, total, asks={f"q{i}": asks for i, (_, _, asks) in enumerate(siblings)}), *queues)
    most = [max(floor, asks) for _, floor, asks in siblings]
    plenty = sum(most) <= total and any(asks or floor for _, floor, asks in siblings)
    least = [top if plenty else floor for top, (_, floor, _) in zip(most, siblings, strict=True)]
    most = [total if plenty else top for top in most]
    assert all(low <= part <= top for part, low, top in zip(found, least, most, strict=True))
    assert sum(found) == max(sum(least), min(total, sum(most)))
    for part, low, (weight, _, _) in zip(found, least, siblings, strict=True):
        for other, (its, _, _), top in zip(found, siblings, most, strict=True):
            if part > low and other < top:
                assert Fraction(part - 1, weight) < Fraction(other + 1, its), "one had a unit too many"


def test_what_pods_that_are_nobodys_hold_is_not_shared_out() -> None:
    """Of 100 units, pods that are charged to nobody hold 50. Were those in it (design, "Quota", "Total"), both would
    deserve 50: "late" would be within that and "early" not above, so that nothing could be reclaimed for ever."""
    queues = {"early": queue(), "late": queue()}
    used, asks = {"early": 45, "late": 5}, {"early": 50, "late": 50}
    made = shares(queues, 100, used=used, asks=asks, outside={GPU: 50})
    assert deserved(made, "early", "late") == [25, 25]
    assert made.within(made.seat("late"), {GPU: 20}, Rule.DESERVED)
    assert made.above(made.seat("early"), [GPU], Rule.DESERVED) == {GPU}
    assert deserved(shares(queues, 100, used=used, asks=asks), "early", "late") == [50, 50]


def test_what_there_is_plenty_of_says_nothing_of_who_asks_for_much() -> None:
    """Were what is deserved capped by the request here too, each would deserve the pods that it asks for and no more:
    a queue that has all it asks for would have a share of 1, and who floods its queue would lower its own."""
    plenty = {GPU: 16, "pods": 220}
    queues = {"a": queue(due=8), "b": queue(due=8)}
    used = {"a": {GPU: 4, "pods": 4}, "b": {GPU: 6, "pods": 6}}
    made = shares(queues, plenty, used=used, asks={"a": {GPU: 1, "pods": 1}, "b": {GPU: 50, "pods": 50}})
    assert [made.seat(each).share() for each in ("a", "b")] == [EVEN // 2, EVEN * 3 // 4]


def test_counter_example_who_asks_for_little_comes_after_who_asks_for_much() -> None:
    """What is deserved by weight is capped by what is asked for, and so it counts as much in the share: with equal
    weights, who has 10 and wants one more comes after who has 79 and wants 21 more. While all of it can be had, that
    only delays it; where a part can't (pods of nobody, nodes in pieces too small), patience has to help.
    """
    made = shares(
        {"modest": queue(), "greedy": queue()}, 100, used={"modest": 10, "greedy": 79}, asks={"modest": 1, "greedy": 21}
    )
    assert deserved(made, "modest", "greedy") == [11, 89]
    assert made.share(made.seat("greedy")) < made.share(made.seat("modest"))
