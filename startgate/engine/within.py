"""Which nodes a gang may have together: those with one value of a label, the tightest fit first (world.Within).

Here are the sums by domain that rule most domains out, and the order of the rest; whether the pods really have room in
one is the room's affair. What always holds:

* A domain that could take all the pods is among the regions; a node without the label is in none.
* The order depends on amounts and names alone: what is special is spared, then the least is left over.
* Where one domain is only preferred, the last region has all nodes that the pods may have, and says by which domains
  to go so that they are spread over few.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from msgspec.structs import replace

from startgate.engine.cluster import Cluster
from startgate.engine.nodes import Bools, Ints
from startgate.engine.stock import NOWHERE, SPARED
from startgate.engine.topology import NONE
from startgate.engine.world import Batch, Placement, Waiting, Within

NumberOf: TypeAlias = Ints
"""By slot: the number of its domain, NONE where it is in none."""

LAST: Final = np.iinfo(np.int64).max


class Need(NamedTuple):
    """Pods of one kind that are to be placed."""

    want: int
    fits: Ints
    """By slot: how many of them it takes, as far as the node decides that."""
    key: Ints
    """By slot: the order in which nodes are preferred (stock.Stock.key)."""


class Region(NamedTuple):
    """Nodes that the pods may have together."""

    inside: Bools
    """By slot."""
    selector: dict[str, str]
    """What their node selectors get with it."""
    few: NumberOf | None = None
    """Domains of which they should have as few as can be."""
    most: Ints | None = None
    """By slot: no more than so many of them."""


class Best(NamedTuple):
    """The domain that takes the most pods."""

    pods: int
    value: str | None
    """Of the label; None where no node that takes any has it."""
    domains: int
    """How many values the label has, on whatever nodes."""


def within_of(batches: Iterable[Batch]) -> Within | None:
    """That of all these pods, which are of one gang."""
    for batch in batches:
        return batch.within
    return None


def anywhere(batches: Iterable[Batch]) -> tuple[Batch, ...]:
    """The same pods, as if no domain were chosen yet."""
    return tuple(
        Batch(batch.shape, batch.count, batch.within and Within(key=batch.within.key, prefer=batch.within.prefer))
        for batch in batches
    )


def regions(cluster: Cluster, within: Within, needs: Sequence[Need]) -> Iterator[Region]:
    """Where all of these pods may go together, the best first. `needs`: by kind, the hardest first."""
    outer, inner = _outer(cluster, within), _inner(cluster, within)
    if inner is not None:
        both = inner if outer is None else _both(outer, inner)
        for number in _tightest_first(cluster, both, needs):
            yield _region(cluster, within, both == number)
    if outer is None:
        yield _region(cluster, within, np.ones(cluster.offers.shape[1], dtype=np.bool_), inner)
    else:
        for number in _tightest_first(cluster, outer, needs):
            yield _region(cluster, within, outer == number, inner)


def of_places(cluster: Cluster, found: Iterable[Region | None], places: Iterable[tuple[str, int]]) -> Iterator[Region]:
    """What of these regions (None: all nodes) is among these places: (node name, how many)."""
    most = np.zeros(cluster.offers.shape[1], dtype=np.int64)
    for name, count in places:
        if name in cluster.slots:
            most[cluster.slots[name]] = count
    for region in found:
        inside = most > 0 if region is None else region.inside & (most > 0)
        if inside.any():
            yield Region(inside, {}, most=most) if region is None else region._replace(inside=inside, most=most)


def homes(cluster: Cluster, within: Within, need: Need) -> Iterator[Region]:
    """Where as many of these pods as can be may go: those of one region, then, in what is left of it, of the next."""
    outer, inner = _outer(cluster, within), _inner(cluster, within)
    inside = np.ones(cluster.offers.shape[1], dtype=np.bool_)
    if outer is not None:
        largest = next(parts(cluster, within, need.fits), None)
        if largest is None:
            return
        tightest = next(_tightest_first(cluster, outer, (need,)), None)
        inside = largest[1].inside if tightest is None else outer == tightest
    if inner is not None and within.near is not None:
        yield _region(cluster, within, inside & (inner != NONE))
        inner = None
    yield _region(cluster, within, inside, inner)


def soonest(cluster: Cluster, within: Within, needs: Sequence[Need], now: Sequence[Ints]) -> Iterator[Region]:
    """Where all of these pods could go once nodes are cleared: those domains first in which the most of them have room
    already. `now`: by kind and slot, how many fit as it is."""
    outer = _outer(cluster, within)
    if outer is None:
        yield _region(cluster, within, np.ones(cluster.offers.shape[1], dtype=np.bool_))
        return
    numbers = list(_tightest_first(cluster, outer, needs))
    there = np.zeros(int(outer.max(initial=NONE)) + 1, dtype=np.int64)
    for need, fits in zip(needs, now, strict=True):
        there += np.minimum(sums_of(outer, fits), need.want)
    for number in sorted(numbers, key=lambda each: -int(there[each])):
        yield _region(cluster, within, outer == number)


def best(cluster: Cluster, within: Within, fits: Ints) -> Best:
    """In which domain the most such pods fit, by how many each slot takes; of equal ones that of the first node."""
    outer = _outer(cluster, within)
    assert outer is not None
    sums = sums_of(outer, fits)
    domains = len(np.unique(outer[outer != NONE]))
    if not sums.any():
        return Best(0, within.value, domains)
    first = _first_names(cluster, outer, len(sums))
    number = int(np.lexsort((first, -sums))[0])
    value = cluster.company.topology.value(within.key, int(np.argmax(outer == number)))
    return Best(int(sums[number]), value, domains)


def parts(cluster: Cluster, within: Within, fits: Ints) -> Iterator[tuple[int, Region]]:
    """Each domain that takes any such pods, with how many, the most first."""
    outer = _outer(cluster, within)
    assert outer is not None
    sums = sums_of(outer, fits)
    order = np.lexsort((_first_names(cluster, outer, len(sums)), -sums))
    for number in order[: np.count_nonzero(sums)].tolist():
        yield int(sums[number]), _region(cluster, within, outer == number)


def joining(cluster: Cluster, gang: Waiting, placements: Iterable[Placement]) -> Waiting:
    """The gang whose minimum has these places: those beyond it are to follow there."""
    within = within_of(anywhere(gang.extra))
    if within is None:
        return gang
    there = settled(cluster, within, placements)
    return replace(gang, extra=tuple(Batch(batch.shape, batch.count, there) for batch in gang.extra))


def settled(cluster: Cluster, within: Within, placements: Iterable[Placement]) -> Within:
    """The same for those that are to join these pods."""
    topology = cluster.company.topology
    where: Counter[int] = Counter()
    for placement in placements:
        for name, count in placement.nodes:  # a node may come more than once
            where[cluster.slots[name]] += count
    value = within.value
    if within.key and value is None:
        value = next((topology.value(within.key, slot) for slot in where), None)
    pods: dict[str, int] = {}
    for slot, count in where.items() if within.prefer else ():
        if (found := topology.value(within.prefer, slot)) is not None:
            pods[found] = pods.get(found, 0) + count
    return Within(key=within.key, value=value, prefer=within.prefer, near=most_of(pods))


def most_of(pods: Mapping[str, int]) -> str | None:
    """The value that most pods have; of several the first by name."""
    return min(pods, key=lambda value: (-pods[value], value), default=None)


def in_few(cluster: Cluster, few: NumberOf, need: Need) -> Ints:
    """By slot: the order in which nodes are preferred, so that these pods are spread over few domains: the largest
    first, and for the last of them the tightest that takes them. Nodes without a domain come last."""
    fits, keys, want = need.fits, need.key, need.want
    sums = sums_of(few, fits)
    turn = np.full(len(sums) + 1, LAST)
    largest = np.lexsort((_first_names(cluster, few, len(sums)), -sums))
    for rank, number in enumerate(largest.tolist()):
        left = largest[rank:]
        enough = left[sums[left] >= want]
        if len(enough):
            turn[enough[-1]] = rank
            break
        turn[number] = rank
        want -= int(sums[number])
    turn[:-1][turn[:-1] == LAST] = len(sums)
    placed: Ints = np.empty(len(fits), dtype=np.int64)
    placed[np.lexsort((keys, turn[few]))] = np.arange(len(fits))
    return np.where(fits > 0, placed, NOWHERE)


def sums_of(of: NumberOf, counts: Ints) -> Ints:
    """How many there are in each domain."""
    sums = np.zeros(int(of.max(initial=NONE)) + 1, dtype=np.int64)
    known = of != NONE
    np.add.at(sums, of[known], counts[known])
    return sums


def _outer(cluster: Cluster, within: Within) -> NumberOf | None:
    """The domains of which they must have one."""
    return _domains(cluster, within.key, within.value) if within.key else None


def _inner(cluster: Cluster, within: Within) -> NumberOf | None:
    """The domains of which they should have one."""
    prefer = within.prefer if within.prefer != within.key else ""
    return _domains(cluster, prefer, within.near) if prefer else None


def _domains(cluster: Cluster, key: str, value: str | None) -> NumberOf:
    slots = cluster.offers.shape[1]
    of = cluster.company.topology.domains(key, slots).of
    return of if value is None else np.where(cluster.company.topology.having(key, value, slots), of, NONE)


def _both(outer: NumberOf, inner: NumberOf) -> NumberOf:
    """The domains that have one of each in common."""
    pairs = np.where((outer == NONE) | (inner == NONE), NONE, outer * (int(inner.max(initial=NONE)) + 1) + inner)
    numbers = np.unique(pairs[pairs != NONE])
    return np.where(pairs == NONE, NONE, np.searchsorted(numbers, pairs))


def _tightest_first(cluster: Cluster, of: NumberOf, needs: Sequence[Need]) -> Iterator[int]:
    """The domains that may have room for all."""
    size = int(of.max(initial=NONE)) + 1
    enough = np.ones(size, dtype=np.bool_)
    left = []
    special = np.zeros(size, dtype=np.int64)
    for need in needs:
        left.append(sums_of(of, need.fits) - need.want)
        enough &= left[-1] >= 0
        lowest = np.full(size, LAST)
        known = of != NONE
        np.minimum.at(lowest, of[known], need.key[known])
        special += lowest >> SPARED
    order = np.lexsort((_first_names(cluster, of, size), *reversed(left), special))
    yield from order[enough[order]].tolist()


def _first_names(cluster: Cluster, of: NumberOf, size: int) -> Ints:
    """By domain: the place of the first of its nodes among all, by name."""
    first = np.full(size, LAST)
    known = of != NONE
    np.minimum.at(first, of[known], cluster.ranks()[known])
    return first


def _region(cluster: Cluster, within: Within, inside: Bools, few: NumberOf | None = None) -> Region:
    selector = {}
    if within.key and inside.any():
        value = cluster.company.topology.value(within.key, int(np.argmax(inside)))
        assert value is not None
        selector[within.key] = value
    return Region(inside, selector, few)
