"""Taints and tolerations, as kube-scheduler's TaintToleration and NodeUnschedulable filters read them."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from startgate.model.taints import GIVEN, UNSCHEDULABLE, Taint, Toleration, tolerates, untolerated, with_given

GPU = Taint(key="gpu", value="a100", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (Toleration(key="gpu", operator="Equal", value="a100", effect="NoSchedule"), True),
        (Toleration(key="gpu", value="a100", effect="NoSchedule"), True),  # no operator is Equal
        (Toleration(key="gpu", value="a100"), True),  # no effect is every effect
        (Toleration(key="gpu", value="h100"), False),
        (Toleration(key="gpu"), False),  # Equal to "", not to anything
        (Toleration(key="gpu", operator="Exists"), True),
        (Toleration(operator="Exists"), True),  # no key is every key
        (Toleration(operator="Exists", effect="NoExecute"), False),
        (Toleration(key="gpu", operator="Exists", effect="NoExecute"), False),
        (Toleration(key="cpu", operator="Exists"), False),
        (Toleration(key="gpu", operator="exists"), False),
    ],
)
def test_a_toleration_covers_a_taint(toleration: Toleration, *, expected: bool) -> None:
    assert toleration.tolerates(GPU) is expected
    assert tolerates((toleration,), GPU) is expected
    assert tolerates((Toleration(key="other"), toleration), GPU) is expected


@pytest.mark.parametrize("operator", ["Gt", "Lt"])
def test_numbers_are_not_compared_by_default(operator: str) -> None:
    taint = Taint(key="risk", value="5", effect="NoSchedule")
    assert not any(Toleration(key="risk", operator=operator, value=bound).tolerates(taint) for bound in ("4", "6"))


def test_a_wish_turns_nobody_away() -> None:
    assert untolerated((), [Taint(key="a", effect="PreferNoSchedule")]) is None
    for effect in ("NoSchedule", "NoExecute"):
        assert untolerated((), [Taint(key="a", effect=effect)]) == Taint(key="a", effect=effect)


def test_an_unschedulable_node_is_a_taint() -> None:
    assert untolerated((), (), unschedulable=True) == UNSCHEDULABLE
    assert untolerated((), (), unschedulable=False) is None
    for toleration in (
        Toleration(operator="Exists"),
        Toleration(key="node.kubernetes.io/unschedulable", operator="Exists", effect="NoSchedule"),
    ):
        assert untolerated((toleration,), (UNSCHEDULABLE,), unschedulable=True) is None
    assert untolerated((Toleration(operator="Exists", effect="NoExecute"),), (), unschedulable=True) == UNSCHEDULABLE


TAINTS = st.builds(
    Taint, st.sampled_from("ab"), st.sampled_from(["", "1"]), st.sampled_from(["NoSchedule", "NoExecute"])
)
TOLERATIONS = st.builds(
    Toleration,
    st.sampled_from(["", "a", "b"]),
    st.sampled_from(["", "Equal", "Exists"]),
    st.sampled_from(["", "1"]),
    st.sampled_from(["", "NoSchedule", "NoExecute"]),
)


@given(st.lists(TOLERATIONS, max_size=3), st.lists(TAINTS, max_size=3))
def test_each_taint_needs_a_toleration(tolerations: list[Toleration], taints: list[Taint]) -> None:
    def pairs(one: Toleration) -> set[Taint]:
        """All the taints that it covers, by listing them."""
        keys = [one.key] if one.key else ["a", "b"]
        values = ["", "1"] if one.operator == "Exists" else [one.value]
        effects = [one.effect] if one.effect else ["NoSchedule", "NoExecute"]
        return set(itertools.starmap(Taint, itertools.product(keys, values, effects)))

    covered = set().union(*map(pairs, tolerations))
    first = next((taint for taint in taints if taint not in covered), None)
    assert untolerated(tolerations, taints) == first


def test_reads_the_wire_without_what_it_does_not_need() -> None:
    wire = b'{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}'
    assert msgspec.json.decode(wire, type=Toleration) == Toleration(
        key="node.kubernetes.io/not-ready", operator="Exists", effect="NoExecute"
    )


NOT_READY, UNREACHABLE = GIVEN


@pytest.mark.parametrize(
    ("held", "added"),
    [
        ((), GIVEN),
        ((Toleration(key="gpu", operator="Exists"),), GIVEN),
        ((Toleration(key=NOT_READY.key, operator="Exists"),), (UNREACHABLE,)),  # no effect is every effect
        ((Toleration(key=NOT_READY.key, operator="Exists", effect="NoSchedule"),), GIVEN),
        ((Toleration(operator="Exists", effect="NoExecute"),), ()),
        ((UNREACHABLE, NOT_READY), ()),
    ],
)
def test_what_a_new_pod_is_given(held: tuple[Toleration, ...], added: tuple[Toleration, ...]) -> None:
    assert with_given(held) == (*held, *added)
    assert with_given(with_given(held)) == with_given(held)
