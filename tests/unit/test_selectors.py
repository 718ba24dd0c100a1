"""Selectors, against a plain reading of the rules."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from startgate.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement, integer

LABELS = {"zone": "eu-1", "cores": "64", "empty": ""}


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        (Requirement("zone", "In", ("eu-1", "eu-2")), True),
        (Requirement("zone", "In", ("us-1",)), False),
        (Requirement("absent", "In", ("",)), False),
        (Requirement("empty", "In", ("",)), True),
        (Requirement("zone", "NotIn", ("us-1",)), True),
        (Requirement("zone", "NotIn", ("eu-1",)), False),
        (Requirement("absent", "NotIn", ("eu-1",)), True),
        (Requirement("empty", "Exists"), True),
        (Requirement("absent", "Exists"), False),
        (Requirement("absent", "DoesNotExist"), True),
        (Requirement("empty", "DoesNotExist"), False),
        (Requirement("cores", "Gt", ("63",)), True),
        (Requirement("cores", "Gt", ("64",)), False),
        (Requirement("cores", "Gt", ("9",)), True),  # by number, not by letter
        (Requirement("cores", "Lt", ("65",)), True),
        (Requirement("cores", "Lt", ("64",)), False),
        (Requirement("zone", "Gt", ("0",)), False),
        (Requirement("absent", "Lt", ("0",)), False),
        (Requirement("absent", "Gt", ("-1",)), False),
        # What the API server would refuse picks nothing.
        (Requirement("zone", "In"), False),
        (Requirement("zone", "NotIn"), False),
        (Requirement("zone", "Exists", ("eu-1",)), False),
        (Requirement("absent", "DoesNotExist", ("eu-1",)), False),
        (Requirement("cores", "Gt", ("1", "2")), False),
        (Requirement("cores", "Gt"), False),
        (Requirement("cores", "Gt", ("1.5",)), False),
        (Requirement("zone", "in", ("eu-1",)), False),
        (Requirement("zone", "Equals", ("eu-1",)), False),
    ],
)
def test_a_requirement(requirement: Requirement, *, expected: bool) -> None:
    assert requirement.matches(LABELS) is expected


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5),
        ("+5", 5),
        ("-5", -5),
        ("007", 7),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("-9223372036854775808", -(2**63)),
        ("", None),
        (" 5", None),
        ("5\n", None),
        ("1_0", None),
        ("1.0", None),
        ("٣", None),
        ("1" * 5000, None),
    ],
)
def test_integers_are_those_of_go(text: str, number: int | None) -> None:
    assert integer(text) == number


def test_an_empty_label_selector_picks_everything() -> None:
    assert LabelSelector().matches({})
    assert LabelSelector().matches(LABELS)


def test_a_label_selector_knows_no_numbers() -> None:
    assert not LabelSelector(match_expressions=(Requirement("cores", "Gt", ("1",)),)).matches(LABELS)


KEYS = st.sampled_from("abc")
VALUES = st.sampled_from(["1", "2", "x"])
MAPS = st.dictionaries(KEYS, VALUES)
SETS = st.lists(VALUES, min_size=1, max_size=2).map(tuple)
REQUIREMENTS = st.builds(Requirement, KEYS, st.sampled_from(["In", "NotIn"]), SETS) | st.builds(
    Requirement, KEYS, st.sampled_from(["Exists", "DoesNotExist"])
)


def holds(requirement: Requirement, labels: dict[str, str]) -> bool:
    """By sets: the values that a label may have, with None for its absence."""
    allowed: dict[str, set[str | None]] = {
        "In": {*requirement.values},
        "NotIn": {"1", "2", "x", None} - {*requirement.values},
        "Exists": {"1", "2", "x"},
        "DoesNotExist": {None},
    }
    return labels.get(requirement.key) in allowed[requirement.operator]


@given(MAPS, st.lists(REQUIREMENTS, max_size=3).map(tuple), MAPS)
def test_a_label_selector_ands_all_that_it_has(
    wanted: dict[str, str], expressions: tuple[Requirement, ...], labels: dict[str, str]
) -> None:
    selector = LabelSelector(wanted, expressions)
    assert selector.matches(labels) == (
        wanted.items() <= labels.items() and all(holds(each, labels) for each in expressions)
    )


@given(st.lists(st.lists(REQUIREMENTS, max_size=3).map(tuple), max_size=3), MAPS)
def test_a_node_selector_ors_its_terms(terms: list[tuple[Requirement, ...]], labels: dict[str, str]) -> None:
    selector = NodeSelector(tuple(NodeSelectorTerm(each) for each in terms))
    assert selector.matches(labels, "n1") == any(
        bool(term) and all(holds(each, labels) for each in term) for term in terms
    )


def test_an_empty_term_picks_no_node() -> None:
    assert not NodeSelector().matches(LABELS, "n1")
    assert not NodeSelector((NodeSelectorTerm(),)).matches(LABELS, "n1")
    assert NodeSelector((NodeSelectorTerm(), NodeSelectorTerm((Requirement("zone", "Exists"),)))).matches(LABELS, "n1")


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (Requirement("metadata.name", "In", ("n1",)), True),
        (Requirement("metadata.name", "In", ("n2",)), False),
        (Requirement("metadata.name", "NotIn", ("n2",)), True),
        (Requirement("metadata.name", "NotIn", ("n1",)), False),
        (Requirement("metadata.name", "In", ("n1", "n2")), False),  # exactly one value
        (Requirement("metadata.name", "Exists"), False),
        (Requirement("metadata.uid", "In", ("n1",)), False),
    ],
)
def test_fields_of_a_node(field: Requirement, *, expected: bool) -> None:
    assert NodeSelectorTerm(match_fields=(field,)).matches(LABELS, "n1") is expected
    both = NodeSelectorTerm((Requirement("zone", "In", ("us-1",)),), (field,))
    assert not both.matches(LABELS, "n1")


def test_equal_selectors_hash_alike_and_nulls_are_empty() -> None:
    wire = b'{"matchLabels":{"b":"2","a":"1"},"matchExpressions":null}'
    selector = msgspec.json.decode(wire, type=LabelSelector)
    assert selector == LabelSelector({"a": "1", "b": "2"})
    assert len({selector, LabelSelector({"a": "1", "b": "2"}), LabelSelector({"a": "1"})}) == 2
    assert msgspec.json.decode(b'{"matchLabels":null}', type=LabelSelector) == LabelSelector()
    wire = (
        b'{"nodeSelectorTerms":[{"matchFields":null,'
        b'"matchExpressions":[{"key":"a","operator":"Exists","values":null}]}]}'
    )
    assert msgspec.json.decode(wire, type=NodeSelector) == NodeSelector(
        (NodeSelectorTerm((Requirement("a", "Exists"),)),)
    )
    assert msgspec.json.decode(b'{"nodeSelectorTerms":null}', type=NodeSelector) == NodeSelector()
