"""Whom it helps to look at, where all who may have to give way are too many: those who are where the claimant may go.

What may be taken of a queue ends at its line. Victims in turn, wherever they are, can use that up without being of any
help: on nodes that the claimant can't go to, or some in this domain and some in that where it has to be in one. What
always holds: a scope only leaves candidates out; what is proved of those who are chosen is the search's affair.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from startgate.engine.fit import Room, by_shape
from startgate.engine.ground import Unit
from startgate.engine.nodes import Bools, Ints
from startgate.engine.within import Need, soonest, within_of
from startgate.engine.world import Batch

DOMAINS: Final = 8
"""So many domains are tried, those first in which the most of the claimant's pods have room already."""


class Scope:
    """Nodes, and whoever has pods on them."""

    def __init__(self, room: Room, inside: Bools) -> None:
        names = room.cluster.names
        self._names = {names[slot] for slot in np.flatnonzero(inside).tolist()}

    def has(self, unit: Unit) -> bool:
        """Whether its gang has pods there. Not the unit: pods of a surplus go in their order, whoever is of help."""
        return any(name in self._names for placement in unit.holder.pods for name, _ in placement.nodes)


def scopes(room: Room, batches: Sequence[Batch], freed: Ints) -> Iterator[Scope]:
    """Where these pods could go if so much more (resources x slots) were free; none that leaves nobody out."""
    counts, within = by_shape(batches), within_of(batches)
    mask = np.logical_or.reduce([room.matching(shape) for shape in counts])
    if within is None or not within.key:
        regions: Iterator[Bools] = iter((mask,))
    else:
        needs = [Need(count, room.takes_with(shape, freed), room.cluster.ranks()) for shape, count in counts.items()]
        found = soonest(room.cluster, within, needs, [room.takes(shape) for shape in counts])
        regions = (region.inside & mask for region in islice(found, DOMAINS))
    known = np.array([facts is not None for facts in room.cluster.facts])
    for inside in regions:
        if not inside[: len(known)][known].all():
            yield Scope(room, inside)
