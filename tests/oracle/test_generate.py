"""Cases: the same from the same seed, written and read back, made smaller."""

from pathlib import Path

import pytest

from tests.oracle.case import Case
from tests.oracle.generate import FEATURES, generate


def test_a_seed_and_a_number_are_a_case() -> None:
    assert generate(7, 3) == generate(7, 3)
    assert generate(7, 3) != generate(7, 4)
    assert generate(7, 3) != generate(8, 3)


def test_every_feature_is_drawn() -> None:
    drawn = {feature for number in range(300) for feature in generate(1, number).features}
    assert drawn == set(FEATURES)


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_alone_makes_a_difference(feature: str) -> None:
    """Not in every case: some of the choices leave it out."""
    assert any(
        (case.objects, case.gang) != (bare.objects, bare.gang)
        for case, bare in ((generate(1, number, (feature,)), _bare(number)) for number in range(20))
    )


def _bare(number: int) -> Case:
    """What `generate` starts from, whatever features there are."""
    from random import Random

    from tests.oracle.draft import Draft

    rng = Random(f"1/{number}")
    draft = Draft(rng)
    rng.sample(["one"], min(rng.choice((1, 2, 2, 3, 4)), 1))
    return Case(f"1-{number}", (), draft.objects(), draft.gang())


def test_a_case_is_read_as_it_was_written(tmp_path: Path) -> None:
    case = generate(1, 1)
    case.write(tmp_path / "case.yaml", outcome="agreed")
    assert Case.read(tmp_path / "case.yaml") == case


def test_names_of_its_own_are_in_all_that_refers_to_them() -> None:
    for number in range(50):
        case = generate(2, number)
        named = case.renamed("again")
        nodes = {it["metadata"]["name"] for it in named.objects if it["kind"] == "Node"}
        assert all(name.endswith("-again") for name in nodes)
        for it in named.objects:
            if it["kind"] == "Pod" and "nodeName" in it["spec"]:
                assert it["spec"]["nodeName"] in nodes


def test_what_is_less_has_less_in_it() -> None:
    case = generate(3, 5)
    less = [*case.lesser(), case.without("objects", 0, 1), case.without("gang", 2, 3)]
    assert len(less) > 2
    assert all(len(str((it.objects, it.gang))) < len(str((case.objects, case.gang))) for it in less)
