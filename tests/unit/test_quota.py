"""Quota on a tree: against the design's formulas, written out plainly, and each bad queue's one outcome."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from startgate.engine.quota import Books
from startgate.model.queue import QueueSpec
from tests.unit.reference import Formulas
from tests.unit.worlds import GPU

UNHURRIED = settings(deadline=None)  # the machine may be busy with other things
CPUS = {"cpu": 9000}


def queue(parent: str = "", *, cap: Any = None, floor: Any = None, due: Any = None, stopped: bool = False) -> QueueSpec:
    return QueueSpec(parent=parent, capability=cap or {}, guarantee=floor or {}, deserved=due or {}, stopped=stopped)


def family() -> dict[str, QueueSpec]:
    """The design's check: a parent of 9c and three children that are guaranteed 2c each."""
    return {"p": queue(cap={"cpu": "9"}), **{f"q{i}": queue("p", floor={"cpu": 2}) for i in (1, 2, 3)}}


def test_what_is_guaranteed_to_one_is_kept_from_the_others() -> None:
    books = Books(family(), {"cpu": 100_000})
    taken = 0
    for name in ("q1", "q2") * 9:
        if books.refusal(name, {"cpu": 1000}) is None:
            books.take(name, {"cpu": 1000})
            taken += 1
    assert taken == 7
    refusal = books.refusal("q1", {"cpu": 1000})
    assert refusal is not None
    assert (refusal.level.name, refusal.left) == ("p", {"cpu": 0})
    assert books.refusal("q3", {"cpu": 2000}) is None
    assert books.headroom("q3") == {"cpu": 2000}
    assert books.kept("q1", books.level("p")) == {"cpu": 2000}
    assert books.keepers("q1", books.level("p"), ["cpu"]) == ["q3"]


def test_a_floor_holds_even_when_nodes_are_lost() -> None:
    books = Books({"q": queue(floor={"cpu": 4}), "r": queue()}, {"cpu": 2000})
    books.take("r", {"cpu": 2000})
    assert books.refusal("q", {"cpu": 4000}) is None
    assert books.refusal("q", {"cpu": 4001}) is not None
    assert books.headroom("q") == {"cpu": 4000}
    assert books.headroom("r") == {"cpu": 0}


def test_what_a_gang_does_not_ask_for_cannot_block_it() -> None:
    books = Books({"q": queue(cap={"cpu": 1, GPU: 9999, "rdma/hca": "9999"})}, {"cpu": 1000})
    assert books.refusal("q", {"cpu": 1000}) is None
    books.take("q", {GPU: 20_000})
    assert books.refusal("q", {"cpu": 1000}) is None
    assert books.headroom("q") == {"cpu": 1000, GPU: 0, "rdma/hca": 0}


def test_the_lowest_level_that_is_in_the_way_is_named() -> None:
    queues = {"top": queue(cap={"cpu": 4}), "mid": queue("top", cap={"cpu": 3}), "q": queue("mid", cap={"cpu": 2})}
    books = Books(queues, {"cpu": 100_000, GPU: 1})
    for asked, level, left in ((5, "q", 2), (3, "q", 2)):
        refusal = books.refusal("q", {"cpu": asked * 1000, GPU: 2})
        assert refusal is not None
        assert (refusal.level.name, refusal.left) == (level, {"cpu": left * 1000})
    books.take("mid", {"cpu": 2000})
    refusal = books.refusal("q", {"cpu": 2000})
    assert refusal is not None
    assert (refusal.level.name, refusal.left) == ("mid", {"cpu": 1000})
    refusal = books.refusal("q", {GPU: 2})
    assert refusal is not None
    assert (refusal.level, refusal.left) == (books.root, {GPU: 1})


def test_never_is_what_an_empty_cluster_of_any_size_would_refuse() -> None:
    books = Books(family(), {"cpu": 1000})
    books.take("q1", {"cpu": 9000})
    assert books.refusal("q1", {"cpu": 5000}, idle=True) is None
    never = books.refusal("q1", {"cpu": 6000}, idle=True)
    assert never is not None
    assert (never.level.name, never.left) == ("p", {"cpu": 5000})  # 9c, less what two others are guaranteed


def test_of_a_copy_never_is_told_with_its_own_level() -> None:
    books = Books(family(), {"cpu": 100_000})
    for each in (books, books.copy(), books.copy().copy()):
        refusal = each.refusal("q1", {"cpu": 10_000}, idle=True)
        assert refusal is not None
        assert refusal.level is each.level("p")


def test_how_many_times() -> None:
    books = Books(family(), {"cpu": 8000, "memory": 3})
    assert books.times("q1", {"cpu": 1500}, 100) == 2  # 8c in all, 4c kept for others
    assert books.times("q1", {"cpu": 1500}, 1) == 1
    assert books.times("q1", {"cpu": 10, "memory": 2}, 100) == 1
    assert books.times("q1", {GPU: 1}, 5) == 0


def test_a_stopped_queue_stops_those_below() -> None:
    books = Books({"p": queue(stopped=True), "q": queue("p"), "r": queue()}, {})
    assert [books.stopped_by(name) for name in ("p", "q", "r")] == ["p", "p", None]


def test_charged_queues_that_are_gone_count_at_the_root() -> None:
    books = Books({"q": queue()}, CPUS)
    books.take("gone", {"cpu": 8000})
    assert books.headroom("q") == {"cpu": 1000}
    assert list(books.problems) == ["q"]


def test_numbers_beyond_an_int64_are_exact() -> None:
    books = Books({"q": queue(cap={"memory": str(2**63 - 1)})}, {"memory": 2**70})
    books.take("q", {"memory": 2**63 - 3})
    assert books.headroom("q") == {"memory": 2}
    assert books.times("q", {"memory": 1}, 10) == 2
    assert books.refusal("q", {"memory": 2**63}) is not None


@pytest.mark.parametrize("bad", ["lots", "-1", "NaN", "1_000", " 5"])
def test_a_ceiling_in_doubt_lets_nothing_through_and_a_floor_in_doubt_keeps_nothing(bad: str) -> None:
    books = Books({"bad": queue(cap={"cpu": bad}, floor={GPU: bad}), "good": queue()}, {"cpu": 4000, GPU: 4})
    refusal = books.refusal("bad", {"cpu": 1})
    assert refusal is not None
    assert refusal.level.name == "bad"
    assert books.refusal("bad", {GPU: 4}) is None
    assert books.headroom("good") == {"cpu": 4000, GPU: 4}
    assert [sentence.split(":")[0] for sentence in books.problems["bad"]] == [
        "capability of cpu",
        f"guarantee of {GPU}",
    ]
    assert books.problems["good"] == []


def test_parents_that_cannot_be() -> None:
    queues = {
        "orphan": queue("nobody", cap={"cpu": 1}),
        "a": queue("b", cap={"cpu": 1}),
        "b": queue("c"),
        "c": queue("a"),
        "below": queue("a"),
        "self": queue("self"),
        "fine": queue(),
    }
    books = Books(queues, CPUS)
    above = {name: books.level(name).parent for name in queues}
    assert {name for name, parent in above.items() if parent is books.root} == set(queues) - {"below"}
    assert above["below"] is books.level("a")
    assert books.problems["orphan"] == ["there is no queue nobody to be its parent; it counts as a child of the root"]
    assert books.problems["b"] == ["its parents go in a circle (a → b → c → a); it counts as a child of the root"]
    assert books.problems["self"] == ["its parents go in a circle (self → self); it counts as a child of the root"]
    assert books.problems["below"] == books.problems["fine"] == []
    assert books.refusal("below", {"cpu": 2000}) is not None  # what it hangs below still holds


def test_guarantees_that_cannot_all_be_kept_are_said() -> None:
    queues = {
        "p": queue(cap={"cpu": 3}),
        "a": queue("p", floor={"cpu": 2}),
        "b": queue("p", floor={"cpu": 2}),
        "c": queue(cap={GPU: 1}, floor={GPU: 2}),
        "d": queue(),
    }
    books = Books(queues, {"cpu": 3000, GPU: 2})
    assert books.problems == {
        "p": [
            "the guarantees of its children add up to 4 cpu, above its capability of 3 cpu",
            "all guarantees together are 4 cpu and the cluster has 3 cpu: not all of them can be kept at once",
        ],
        "a": ["all guarantees together are 4 cpu and the cluster has 3 cpu: not all of them can be kept at once"],
        "b": ["all guarantees together are 4 cpu and the cluster has 3 cpu: not all of them can be kept at once"],
        "c": [f"its guarantee is 2 {GPU}, above its capability of 1 {GPU}"],
        "d": [],
    }
    assert books.refusal("a", {"cpu": 2000}) is None
    assert books.refusal("b", {"cpu": 2000}) is None
    assert books.refusal("a", {"cpu": 2001}) is not None


def test_deserved_that_cannot_hold_is_said() -> None:
    queues = {
        "low": queue(floor={"cpu": 2}, due={"cpu": 1}),
        "raised": queue(due={"cpu": 1}),
        "child": queue("raised", floor={"cpu": 2}),
        "high": queue(cap={"cpu": 3}, due={"cpu": "3500m"}),
        "fine": queue(cap={"cpu": 3}, floor={"cpu": 3}, due={"cpu": 3}),
    }
    assert Books(queues, {"cpu": 100_000}).problems == {
        "low": ["its deserved is 1 cpu, below its guarantee of 2 cpu; it counts as 2 cpu"],
        "raised": ["its deserved is 1 cpu, below its guarantee of 2 cpu; it counts as 2 cpu"],
        "child": [],
        "high": ["its deserved is 3500m cpu, above its capability of 3 cpu; it counts as 3 cpu"],
        "fine": [],
    }


def test_deserved_of_children_beyond_what_the_parent_can_have_is_said() -> None:
    queues = {
        "p": queue(due={"cpu": 4, GPU: 2}),
        "mid": queue("p", cap={"cpu": 5}),
        "a": queue("mid", due={"cpu": 3, GPU: 1}),
        "b": queue("mid", due={"cpu": 3, GPU: 1}),
        "c": queue("mid", cap={"cpu": 0}, due={"cpu": 3}),
    }
    books = Books(queues, {"cpu": 100_000, GPU: 8})
    assert books.problems["p"] == ["the deserved of its children add up to 6 cpu, above its own of 4 cpu"]
    assert books.problems["mid"] == ["the deserved of its children add up to 6 cpu, above its capability of 5 cpu"]
    assert books.problems["a"] == books.problems["b"] == []


def test_deserved_beyond_the_cluster_is_said_to_each_who_has_a_part_in_it() -> None:
    queues = {
        "p": queue(due={"cpu": 4}),
        "a": queue("p", due={"cpu": 4}),
        "b": queue(due={GPU: 1}),
        "c": queue(),
        "d": queue("c", due={"cpu": 2, GPU: 0}),
    }
    said = "all that is given as deserved is 6 cpu and the cluster has 5 cpu: not all of them can have it at once"
    assert Books(queues, {"cpu": 5000, GPU: 1}).problems == {"p": [said], "a": [said], "b": [], "c": [], "d": [said]}
    assert not any(Books(queues, {"cpu": 6000, GPU: 1}).problems.values())


def test_a_capability_above_that_of_a_parent_is_said_and_the_lowest_holds() -> None:
    queues = {
        "p": queue(cap={"cpu": 2}),
        "mid": queue("p"),
        "q": queue("mid", cap={"cpu": 3, GPU: 9999}),
        "r": queue("mid", cap={"cpu": 2}),
    }
    books = Books(queues, {"cpu": 100_000, GPU: 1})
    assert books.problems["q"] == ["its capability is 3 cpu, above that of p, 2 cpu, which holds"]
    assert books.problems["r"] == []
    assert books.headroom("q") == {"cpu": 2000, GPU: 1}


@pytest.mark.parametrize("bad", ["lots", "-1"])
def test_a_deserved_or_a_weight_in_doubt_counts_as_left_out(bad: str) -> None:
    books = Books({"q": QueueSpec(deserved={"cpu": bad, GPU: "0"}, weight=0)}, CPUS)
    assert (books.level("q").given, books.level("q").weight) == ({GPU: 0}, 1)
    assert len(books.problems["q"]) == 2


def test_what_a_level_says_of_its_queue() -> None:
    books = Books({"q": QueueSpec(weight=3, reclaimable=False, deserved={"cpu": "1500m"})}, CPUS)
    level = books.level("q")
    assert (level.weight, level.reclaimable, level.given) == (3, False, {"cpu": 1500})
    unknown = books.level("unknown")
    assert (unknown.weight, unknown.reclaimable, unknown.given) == (1, True, {})


def test_a_very_deep_tree_stops_nobody() -> None:
    """Whoever may write queues can nest them deeper than Python would recurse."""
    deep = 3000
    queues = {
        "q0": queue(),
        **{f"q{i}": queue(f"q{i - 1}", floor={"cpu": 1}) for i in range(1, deep)},
        "other": queue(),
    }
    books = Books(queues, CPUS)
    books.take(f"q{deep - 1}", {"cpu": 2000})
    assert books.use(books.level("q0")) == {"cpu": 2000}
    assert books.headroom("other") == {"cpu": 7000}


NAMES = ["a", "b", "c", "d", "e"]
COUNTS = st.dictionaries(st.sampled_from(["cpu", GPU]), st.integers(0, 6), max_size=2)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, QueueSpec]:
    """Each queue's parent comes before it, so that the plain formulas end."""
    return {
        name: QueueSpec(
            parent=draw(st.sampled_from(["", *NAMES[:i]])),
            capability={key: f"{count}m" if key == "cpu" else count for key, count in draw(COUNTS).items()},
            guarantee={key: f"{count}m" if key == "cpu" else count for key, count in draw(COUNTS).items()},
        )
        for i, name in enumerate(NAMES)
    }


@UNHURRIED
@given(
    queues=trees(),
    total=COUNTS,
    steps=st.lists(st.tuples(st.sampled_from(NAMES), COUNTS, st.booleans()), max_size=12),
)
def test_as_the_formulas_say(
    queues: dict[str, QueueSpec], total: dict[str, int], steps: list[tuple[str, dict[str, int], bool]]
) -> None:
    books, plain = Books(queues, total), Formulas(queues, total)
    for name, asks, forced in steps:
        within = plain.within(name, asks)
        refusal = books.refusal(name, asks)
        assert (refusal is None) == within
        if refusal is not None:
            assert all(count < asks[each] for each, count in refusal.left.items())
        headroom = books.headroom(name)
        for resource, left in headroom.items():
            assert left == 0 or plain.within(name, {resource: left})
            assert not plain.within(name, {resource: left + 1})
        if asks.get("cpu"):
            times = books.times(name, asks, 4)
            assert times == max(k for k in range(5) if plain.within(name, {r: n * k for r, n in asks.items()}))
        if within or forced:
            books.take(name, asks)
            plain.take(name, asks)
    for name in NAMES:
        for resource in ("cpu", GPU):
            level = books.level(name)
            assert max(level.floor.get(resource, 0), level.inner.get(resource, 0)) == plain.charge(name, resource)


@UNHURRIED
@given(queues=trees(), total=COUNTS, taken=st.lists(st.tuples(st.sampled_from(NAMES), COUNTS), max_size=8))
def test_what_is_guaranteed_is_there_whenever_it_is_asked(
    queues: dict[str, QueueSpec], total: dict[str, int], taken: list[tuple[str, dict[str, int]]]
) -> None:
    books = Books(queues, total)
    for name, asks in taken:
        books.take(name, asks)
    for name in NAMES:
        assert books.refusal(name, books.level(name).unused()) is None
