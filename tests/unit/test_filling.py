"""Filling nodes class by class: no fewer pods than by going through all nodes for each of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from startgate.engine.filling import fill
from startgate.engine.limits import Apart, Limit, Skew
from startgate.engine.topology import Domains, Ints


class Case(NamedTuple):
    caps: Ints
    keys: Ints
    limits: list[Limit]


def ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Nodes in racks in zones, and limits on two or all three of these."""
    size = draw(st.integers(4, 14))

    def each_node(values: st.SearchStrategy[int]) -> Ints:
        return ints(draw(st.lists(values, min_size=size, max_size=size)))

    zone = each_node(st.integers(0, 2))
    rack = zone * 3 + each_node(st.integers(0, 2))
    host = np.arange(size)
    limits: list[Limit] = []
    for of in draw(st.permutations((zone, rack, host)))[: draw(st.integers(2, 3))]:
        if draw(st.integers(0, 6)) == 6:
            limits.append(Apart(of))
            continue
        eligible = np.unique(of)
        counts = np.zeros(int(of.max()) + 1, dtype=np.int64)
        if draw(st.booleans()):
            counts[eligible] = [draw(st.sampled_from((0, 0, 0, 1, 2))) for _ in eligible]
        limits.append(Skew(Domains(of, len(counts)), eligible, counts, draw(st.integers(1, 3)), 1))
    return Case(each_node(st.integers(0, 8)), ints(draw(st.permutations(range(size)))), limits)


def one_by_one(case: Case, leading: Limit | None) -> int:
    """How many pods are placed if each goes, of all nodes that let it in, to the one in the emptiest domain of this
    limit, and of several to the one with the lowest key."""
    limits = [limit.copy() for limit in case.limits]
    lead = None if leading is None else limits[case.limits.index(leading)]
    left: list[int] = case.caps.tolist()
    while True:
        where = [slot for slot, room in enumerate(left) if room and all(x.slack(int(x.of[slot])) > 0 for x in limits)]
        if not where:
            return int(case.caps.sum()) - sum(left)
        slot = min(where, key=lambda each: (lead.level(int(lead.of[each])) if lead else 0, case.keys[each]))
        for limit in limits:
            limit.take(int(limit.of[slot]), 1)
        left[slot] -= 1


def skew(of: Sequence[int], most: int, counts: dict[int, int] | None = None) -> Skew:
    there = ints([(counts or {}).get(domain, 0) for domain in range(max(of) + 1)])
    return Skew(Domains(ints(of), len(there)), np.unique(ints(of)), there, most, 1)


WOKEN_TWICE = Case(
    ints((5, 8, 4, 5, 5, 5, 8, 8)),
    ints((2, 6, 7, 1, 0, 4, 3, 5)),
    [skew((2, 2, 2, 1, 1, 1, 0, 0), 2), skew((7, 8, 8, 5, 5, 4, 2, 0), 2)],
)
"""Nodes of one zone are held up by both limits in turn: the zone is let go on while it is going on."""

NOT_AT_ONCE = Case(
    ints((1, 8, 5, 2, 2, 8, 7, 5)),
    ints((3, 7, 6, 5, 0, 2, 1, 4)),
    [skew((7, 2, 1, 7, 3, 2, 2, 2), 3), skew(range(8), 3, {2: 2, 4: 2, 5: 1})],
)
"""An emptiest node that took all it may at once would take what the others of its rack need to follow."""


@settings(deadline=None, max_examples=300)
@example(WOKEN_TWICE)
@example(NOT_AT_ONCE)
@given(cases())
def test_as_many_are_placed_as_in_any_of_the_orders_that_are_tried(case: Case) -> None:
    steps = fill(case.caps, case.keys, case.limits, 1000)
    assert sum(pods for _, pods in steps) >= max(one_by_one(case, each) for each in (None, *case.limits))
    limits = [limit.copy() for limit in case.limits]
    left = case.caps.copy()
    for slot, pods in steps:
        for _ in range(pods):
            for limit in limits:
                assert limit.slack(int(limit.of[slot])) > 0
                limit.take(int(limit.of[slot]), 1)
        left[slot] -= pods
    assert (left >= 0).all()
