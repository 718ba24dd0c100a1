"""Whom it helps to look at, where all who may have to give way are too many: those who are where the claimant may go.

What may be taken of a queue ends at its line. Victims in turn, wherever they are, can use that up without being of any
help: on nodes that the claimant can't go to, some in this domain and some in that where it has to be in one, half of
this node and half of that where a pod needs a whole one. Nor do amounts alone decide: a pod with a host port or an
anti-affinity (`blockers`) closes nodes that have room. What always holds: a scope only leaves candidates out; what is
proved of those who are chosen is the search's affair.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

import numpy as np

from startgate.engine.blockers import Blockers
from startgate.engine.fit import Room, by_shape
from startgate.engine.ground import Unit
from startgate.engine.nodes import Bools, Ints
from startgate.engine.stock import asked_of
from startgate.engine.within import Need, soonest, within_of
from startgate.engine.world import Batch
from startgate.model.shape import Shape

DOMAINS: Final = 8
"""So many domains are tried, those first in which the most of the claimant's pods have room already."""

PARTS: Final = 1024
"""What a node lacks counts in such parts of it."""


class Scope:
    """Nodes, and whoever has pods on them."""

    def __init__(self, room: Room, inside: Bools, *, whole: bool = False, blockers: Blockers | None = None) -> None:
        """`whole`: only gangs with all of their pods there, so that nothing is taken elsewhere. `blockers`: only those
        who close nodes there by more than amounts."""
        names = room.cluster.names
        self._names = {names[slot] for slot in np.flatnonzero(inside).tolist()}
        self._inside = inside
        self._whole = whole
        self._blockers = blockers

    def has(self, unit: Unit) -> bool:
        """Whether its gang is there. Not the unit: pods of a surplus go in their order, whoever is of help."""
        if self._blockers is not None:
            return self._blockers.close(unit.holder.pods, self._inside)
        where = [name in self._names for placement in unit.holder.pods for name, _ in placement.nodes]
        return any(where) and (all(where) or not self._whole)


def scopes(room: Room, batches: Sequence[Batch], freed: Ints, units: Iterable[Unit]) -> Iterator[Scope]:
    """Where these pods could go if so much more (resources x slots) were free and none of the units there: all of that
    first, then in finer looks those alone who are nowhere else, and the nodes with the least to clear. None that leaves
    nobody out."""
    counts = by_shape(batches)
    then = {shape: room.takes_with(shape, freed) for shape in counts}
    blockers = Blockers(room, counts)
    if blockers:
        placements = [placement for unit in units for placement in unit.placements]
        then = {shape: blockers.takes_without(placements, shape, fits) for shape, fits in then.items()}
    regions = list(_regions(room, batches, then, blockers))
    known = np.array([facts is not None for facts in room.cluster.facts])
    smaller = [inside for inside in regions if not inside[: len(known)][known].all()]
    least: list[Bools] = []
    for inside in smaller:
        yield Scope(room, inside)
    for inside in smaller:
        yield Scope(room, inside, whole=True)
    for inside in regions:
        least.append(_least_to_clear(room, counts, {shape: fits * inside for shape, fits in then.items()}))
        yield Scope(room, least[-1])
    for inside in chain(regions, least) if blockers else ():
        yield Scope(room, inside, blockers=blockers)


def _regions(room: Room, batches: Sequence[Batch], then: Mapping[Shape, Ints], blockers: Blockers) -> Iterable[Bools]:
    """The nodes where it could help to clear; where they have to be in one domain, those of one after the other."""
    counts, within = by_shape(batches), within_of(batches)
    open_: Bools = np.logical_or.reduce([fits > _stuck(room, shape, blockers) for shape, fits in then.items()])
    if within is None or not within.key:
        return (open_,)
    needs = [Need(count, then[shape], room.cluster.ranks()) for shape, count in counts.items()]
    found = soonest(room.cluster, within, needs, [room.takes(shape) for shape in counts])
    return (region.inside & open_ for region in islice(found, DOMAINS))


def _stuck(room: Room, shape: Shape, blockers: Blockers) -> Ints:
    """By slot: how many of these pods it takes though clearing it is of no help. As many as now; none where it can be
    of help that pods go from other nodes."""
    takes = room.takes(shape)
    if shape.together or shape.spread or shape.claims or shape.ephemeral:
        return np.zeros_like(takes)
    return blockers.takes_without((), shape, takes) if room.concern(shape) else takes


def _least_to_clear(room: Room, counts: Mapping[Shape, int], then: Mapping[Shape, Ints]) -> Bools:
    """As many nodes as these pods need; first those that lack the least for one of them, as a share of the node."""
    chosen: Bools = np.zeros(room.cluster.offers.shape[1], dtype=np.bool_)
    for shape, count in counts.items():
        rows, asked = asked_of(room.cluster, shape)
        lacks = np.maximum(asked - room.left(shape), 0) * PARTS // np.maximum(room.cluster.offers[rows[:, 0]], 1)
        order = np.lexsort((room.cluster.ranks(), lacks.max(axis=0, initial=0)))
        fits = then[shape][order]
        enough = int(np.searchsorted(np.cumsum(fits), count)) + 1
        chosen[order[:enough][fits[:enough] > 0]] = True
    return chosen
