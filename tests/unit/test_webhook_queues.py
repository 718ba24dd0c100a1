"""Queues at the door: contradictions refused with the numbers, and nothing refused that was wrong before."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from startgate.audit.record import Decision
from startgate.model.queue import QueueSpec
from webhook import queues
from webhook.review import Verdict


def spec(parent: str = "", **fields: Any) -> QueueSpec:
    """`cap`, `gua`, `des` are amounts of cpu."""
    short = {"cap": "capability", "gua": "guarantee", "des": "deserved"}
    given = {short[key]: {"cpu": fields.pop(key)} for key in list(fields) if key in short}
    return msgspec.convert({"parent": parent, **given, **fields}, QueueSpec)


def create(name: str, new: QueueSpec, **others: QueueSpec) -> Verdict:
    return queues.write(name, None, new, others)


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (spec(gua="9", des="8500m"), "queue q, cpu: guarantee 9 is above deserved 8500m; lower the one"),
        (spec(gua="9", cap="8"), "guarantee 9 is above capability 8"),
        (spec(des="9", cap="8"), "deserved 9 is above capability 8"),
        (
            spec(guarantee={"memory": "2Gi"}, capability={"memory": "1536Mi"}),
            "queue q, memory: guarantee 2Gi is above capability 1536Mi",
        ),
        (spec("p", cap="9"), "queue q, cpu: capability 9 is above the capability of queue p above it 8"),
        (spec("p", gua="7"), "queue p, cpu: the guarantees of its children together, 9 is above deserved 6"),
        (spec("p", des="5"), "queue p, cpu: the deserved of its children together, 8 is above deserved 6"),
        (spec("child", cap="9"), "capability 9 is above the capability of queue p above it 8"),
        (spec("child", gua="7"), "queue child, cpu: the guarantees of its children together, 7 is above deserved 3"),
    ],
)
def test_contradictions_are_refused_with_the_numbers(new: QueueSpec, words: str) -> None:
    verdict = create("q", new, p=spec(cap="8", des="6"), child=spec("p", gua="2", des="3"))
    assert (verdict.decision, verdict.reason) == (Decision.REFUSE, "Contradiction")
    assert words in verdict.message
    assert verdict.seen["excess"]


@pytest.mark.parametrize(
    "new",
    [
        spec(),
        spec(gua="8", des="8", cap="8"),
        spec(gua="0.1", des="100m"),
        spec("p", gua="2", des="3", cap="8"),
        spec("p", guarantee={"nvidia.com/gpu": "99"}),
    ],
)
def test_what_holds_together_is_let_in(new: QueueSpec) -> None:
    verdict = create("q", new, p=spec(cap="8", des="6"), child=spec("p", gua="2", des="3"))
    assert verdict.decision is Decision.QUEUE_CREATED, verdict.message


@pytest.mark.parametrize(
    ("new", "reason", "words"),
    [
        (spec(cap="-1"), "QueueInvalid", "spec.capability, cpu: -1 is below 0"),
        (spec(gua=" 5"), "QueueInvalid", "is not a quantity"),
        (spec(des="NaN"), "QueueInvalid", "is not a quantity"),
        (spec("q"), "ParentCycle", "q → q"),
        (spec("nosuch"), "NoSuchParent", "there is no queue nosuch to be the parent: create it first"),
        (
            spec(namespaces={"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}),
            "QueueInvalid",
            "has to be one of In, NotIn, Exists, DoesNotExist",
        ),
        (
            spec(namespaces={"matchExpressions": [{"key": "a", "operator": "In"}]}),
            "QueueInvalid",
            "needs at least one value",
        ),
        (
            spec(namespaces={"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["1"]}]}),
            "QueueInvalid",
            "takes no values",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(new: QueueSpec, reason: str, words: str) -> None:
    verdict = create("q", new)
    assert (verdict.decision, verdict.reason) == (Decision.REFUSE, reason)
    assert words in verdict.message


def test_a_name_has_to_fit_a_label() -> None:
    assert create("q" * 63, spec()).allowed
    assert "has 64 characters" in create("q" * 64, spec()).message


def test_a_circle_is_shown() -> None:
    verdict = queues.write("a", spec(), spec("c"), {"a": spec(), "b": spec("a"), "c": spec("b")})
    assert verdict.reason == "ParentCycle"
    assert "a → c → b → a" in verdict.message


def test_a_circle_that_was_there_before_blocks_nobody_else() -> None:
    assert create("q", spec("a", cap="1"), a=spec("b", cap="2"), b=spec("a")).allowed


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        (spec("p", gua="9"), spec("p", gua="9", stopped=True), True),
        (spec("p", gua="9"), spec("p", gua="8"), True),
        (spec("p", gua="9"), spec("p", gua="10"), False),
        (spec("p", gua="1 "), spec("p", gua="1 ", stopped=True), True),
        (spec("p", gua="1"), spec("p", gua="1 "), False),
    ],
)
def test_only_what_a_write_makes_worse_is_refused(old: QueueSpec, new: QueueSpec, allowed: bool) -> None:
    others = {"p": spec(cap="4"), "sibling": spec("p", gua="1", cap="99")}
    verdict = queues.write("q", old, new, {**others, "q": old})
    assert verdict.allowed is allowed
    if allowed:
        assert verdict.decision is Decision.QUEUE_UPDATED


def test_a_parent_cannot_shrink_below_its_children() -> None:
    known = {"p": spec(cap="8", des="8"), "c": spec("p", cap="6", des="5", gua="4")}
    assert "queue c, cpu: capability 6 is above" in queues.write("p", known["p"], spec(cap="5", des="5"), known).message
    assert "together, 5 is above deserved 4" in queues.write("p", known["p"], spec(cap="8", des="4"), known).message
    assert queues.write("p", known["p"], spec(cap="6", des="5"), known).allowed


def test_a_queue_that_is_used_is_not_deleted() -> None:
    known = {"p": spec(), **{f"c{number}": spec("p") for number in range(7)}}
    assert "parent of c0, c1, c2, c3, c4 and 2 more" in queues.delete("p", 0, 0, known).message
    verdict = queues.delete("c1", 3, 2, known)
    assert (verdict.reason, verdict.seen) == ("QueueInUse", {"running": 2, "waiting": 3})
    assert "2 gangs running and 3 waiting" in verdict.message
    assert queues.delete("c1", 0, 0, known).decision is Decision.QUEUE_DELETED


NAMES = st.sampled_from(["a", "b", "c", "d"])
AMOUNT = st.sampled_from(["0", "1", "2", "3", "x"])
SPECS = st.builds(
    lambda parent, **fields: spec(parent, **{key: value for key, value in fields.items() if value is not None}),
    st.one_of(st.just(""), NAMES),
    cap=st.none() | AMOUNT,
    gua=st.none() | AMOUNT,
    des=st.none() | AMOUNT,
)


@given(st.dictionaries(NAMES, SPECS), NAMES, SPECS)
def test_whatever_queues_there_are_a_write_gets_an_answer_and_its_repeat_is_let_in(
    known: dict[str, QueueSpec], name: str, new: QueueSpec
) -> None:
    old = known.get(name)
    verdict = queues.write(name, old, new, known)
    if verdict.allowed:
        again = queues.write(name, new, new, {**known, name: new})
        assert again.allowed, again.message
    else:
        assert verdict.message
