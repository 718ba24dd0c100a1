"""Whose turn it is: by share from the root down, by priority, age and name where shares are equal and in a queue."""

from collections.abc import Mapping

from startgate.engine.fair import Shares
from startgate.engine.order import Turns
from startgate.engine.quota import Books
from startgate.engine.world import Waiting
from startgate.model.queue import QueueSpec
from startgate.model.resources import Amounts
from tests.unit.worlds import GPU, gang


def queue(parent: str = "", due: int | None = None) -> QueueSpec:
    return QueueSpec(parent=parent, deserved={} if due is None else {GPU: due})


def shares(queues: Mapping[str, QueueSpec], used: Mapping[str, int]) -> Shares:
    books = Books(queues, {GPU: 1000})
    for name, count in used.items():
        books.take(name, {GPU: count})
    return Shares(books, {}, {})


def rest(turns: Turns) -> list[str]:
    """All whose turn is still to come, by name."""
    found = []
    while (following := turns.pop()) is not None:
        found.append(following.gang.removeprefix("ns/"))
    return found


def order(queues: Mapping[str, QueueSpec], used: Mapping[str, int], *waiting: Waiting) -> list[str]:
    found = rest(Turns(shares(queues, used), waiting))
    assert found == rest(Turns(shares(queues, used), reversed(waiting))), "the same, however they come"
    return found


def test_in_a_queue_by_priority_then_age_then_name() -> None:
    assert order(
        {"q": queue(due=1)},
        {},
        gang("young", "q", since=9.0),
        gang("b", "q", since=1.0),
        gang("a", "q", since=1.0),
        gang("high", "q", since=99.0, priority=7),
        gang("low", "q", since=0.5, priority=-7),
    ) == ["high", "a", "b", "young", "low"]


def test_the_queue_of_least_share_comes_first_whatever_its_gangs_are() -> None:
    queues = {"half": queue(due=8), "third": queue(due=12), "over": queue(due=2)}
    assert order(
        queues,
        {"half": 4, "third": 4, "over": 3},
        gang("h", "half", since=1.0),
        gang("t1", "third", since=8.0),
        gang("t2", "third", since=9.0),
        gang("o", "over", priority=100),
    ) == ["t1", "t2", "h", "o"]


def test_shares_are_compared_level_by_level_from_the_root() -> None:
    queues = {
        "p": queue(due=10),
        "p-busy": queue("p", due=5),
        "p-idle": queue("p", due=5),
        "q": queue(due=10),
        "q-only": queue("q", due=10),
    }
    used = {"p-busy": 6, "q-only": 5}
    assert order(queues, used, gang("p1", "p-busy"), gang("p2", "p-idle"), gang("q", "q-only")) == ["q", "p2", "p1"]


def test_gangs_of_an_inner_queue_have_their_turn_beside_its_children() -> None:
    queues = {"p": queue(due=10), "a": queue("p", due=4)}
    inner, child = gang("inner", "p", since=1.0), gang("child", "a", since=2.0)
    books = Books(queues, {GPU: 10})
    made = Shares(books, {}, {"p": {GPU: 6}})
    turns = Turns(made, [inner, child])
    assert rest(turns) == ["inner", "child"]
    turns = Turns(made, [inner, child])
    made.take("p", {GPU: 1})
    turns.moved("p")
    assert rest(turns) == ["child", "inner"]


def test_equal_shares_by_the_turn_of_their_next_gang() -> None:
    queues = {"b": queue(due=1), "a": queue(due=1), "c": queue(due=1)}
    assert order(
        queues,
        {},
        gang("a1", "a", since=3.0),
        gang("a2", "a", since=4.0),
        gang("b1", "b", since=2.0),
        gang("b2", "b", since=5.0),
        gang("c1", "c", since=9.0, priority=1),
        gang("c2", "c", since=1.0),
    ) == ["c1", "c2", "b1", "a1", "a2", "b2"]


def test_who_deserves_nothing_comes_last() -> None:
    queues = {"nothing": queue(due=0), "over": queue(due=1), "used": queue(due=0)}
    waiting = (gang("n", "nothing", priority=9), gang("o", "over"), gang("g", "gone", since=7.0), gang("u", "used"))
    assert order(queues, {"over": 999, "used": 1}, *waiting) == ["o", "n", "u", "g"]


def test_who_starts_moves_back_and_so_do_those_above() -> None:
    """Two tenants in turn, and in each its queues in turn, though one has two queues and the other one."""
    queues = {
        "p": queue(due=20),
        "p1": queue("p", due=10),
        "p2": queue("p", due=10),
        "q": queue(due=20),
        "q1": queue("q", due=20),
    }
    made = shares(queues, {})
    waiting = [gang(f"{name}-{i}", name, since=float(i)) for name in ("p1", "p2", "q1") for i in range(3)]
    turns, found = Turns(made, waiting), []
    while (following := turns.pop()) is not None:
        found.append(following.queue)
        made.take(following.queue, {GPU: 2})
        turns.moved(following.queue)
    assert found == ["p1", "q1", "p2", "q1", "p1", "q1", "p2", "p1", "p2"]


def test_a_parent_whose_own_share_stays_is_moved_by_what_it_would_give() -> None:
    """In p the turn passes from a to b, whose gang is younger than that of q; the share of p is as it was."""
    due: dict[str, str | int] = {"cpu": 2, GPU: 100}
    queues = {
        "p": QueueSpec(deserved=due),
        "a": queue("p", due=4),
        "b": queue("p", due=4),
        "q": QueueSpec(deserved=due),
    }
    books = Books(queues, {"cpu": 9000, GPU: 1000})
    for name in ("b", "q"):
        books.take(name, {"cpu": 1000})
    made = Shares(books, {}, {"b": {"cpu": 1000}})
    turns = Turns(made, [gang("a1", "a", since=1.0), gang("b1", "b", since=3.0), gang("q1", "q", since=2.0)])
    made.take("a", {GPU: 4})
    turns.moved("a")
    assert rest(turns) == ["q1", "b1", "a1"]


def test_a_share_that_falls_moves_forward() -> None:
    made = shares({"a": queue(due=4), "b": queue(due=4)}, {"a": 3, "b": 1})
    turns = Turns(made, [gang("a1", "a"), gang("a2", "a"), gang("b1", "b"), gang("b2", "b")])
    first = turns.pop()
    assert first is not None
    assert first.gang == "ns/b1"
    amounts: Amounts = {GPU: -3}
    made.take("a", amounts)
    turns.moved("a")
    assert rest(turns) == ["a1", "a2", "b2"]


def test_what_moves_and_has_no_gangs_changes_nothing() -> None:
    made = shares({"p": queue(due=9), "a": queue("p"), "b": queue("p"), "c": queue(due=2)}, {"c": 1})
    turns = Turns(made, [gang("b1", "b"), gang("c1", "c")])
    made.take("a", {GPU: 8})
    turns.moved("a")
    assert rest(turns) == ["c1", "b1"], "p has 8 of 9 now"
    turns.moved("a")
    assert turns.pop() is None
