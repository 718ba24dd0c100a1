"""Who keeps a claimant's pods from nodes by more than the amounts that its own take: host ports, anti-affinity, spread.

For whoever looks for those who have to give way: of two nodes with a taken host port the one helps whose holder can be
taken. What always holds: a node is closed only where it stays so whoever of those who could go has gone; what other
pods' going does to affinity, to spread and to volumes isn't foreseen, so it closes none.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from msgspec.structs import replace

from startgate.engine.fit import Room
from startgate.engine.nodes import Bools, Ints
from startgate.engine.ports import clash
from startgate.engine.topology import NONE
from startgate.engine.world import Placement
from startgate.model.shape import PodTerm, Shape


class Blockers:
    """Whose pods are in the way of pods with these shapes."""

    def __init__(self, room: Room, shapes: Iterable[Shape]) -> None:
        self._room = room
        self._shapes = [shape for shape in shapes if room.concern(shape)]
        self._known: dict[Shape, tuple[bool, frozenset[str]]] = {}

    def __bool__(self) -> bool:
        """Whether any could be."""
        return bool(self._shapes)

    def takes_without(self, placements: Iterable[Placement], shape: Shape, fits: Ints) -> Ints:
        """By slot: of so many such pods how many it takes, with none of those pods there."""
        around = self._room.around.copy()
        for placement in placements:
            if any(self._ways(placement.shape)):
                slots, counts = self._where(placement)
                around.add(placement.shape, slots, -counts)
        lasting = replace(shape, together=(), spread=(), claims=(), ephemeral=())
        takes = around.caps(lasting, fits)
        for _, closed in around.obstacles(lasting):
            takes[closed] = 0
        return takes

    def close(self, placements: Iterable[Placement], inside: Bools) -> bool:
        """Whether any of those pods closes one of these nodes, be it from another in the same domain."""
        for placement in placements:
            itself, keys = self._ways(placement.shape)
            if not itself and not keys:
                continue
            slots, _ = self._where(placement)
            if itself and inside[slots].any():
                return True
            for key in keys:
                of = self._room.cluster.company.topology.domains(key, len(inside)).of
                if np.isin(of[inside], of[slots][of[slots] != NONE]).any():
                    return True
        return False

    def _where(self, placement: Placement) -> tuple[Ints, Ints]:
        slots = self._room.cluster.slots
        there = [(slots[name], count) for name, count in placement.nodes if name in slots]
        columns = np.array(there, dtype=np.int64).reshape(-1, 2)
        return columns[:, 0], columns[:, 1]

    def _ways(self, other: Shape) -> tuple[bool, frozenset[str]]:
        """How such a pod is in the way of ours: on its own node, and in its domain of each of these labels."""
        if other not in self._known:
            namespaces = self._room.cluster.company.namespaces
            keys = {key for shape in self._shapes for key in _between(shape, other, namespaces)}
            self._known[other] = (any(clash(shape, other) for shape in self._shapes), frozenset(keys))
        return self._known[other]


def _between(shape: Shape, other: Shape, namespaces: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    def picks(term: PodTerm, one: Shape) -> bool:
        return term.picks(one.namespace, one.label_map, namespaces)

    yield from (term.topology_key for term in shape.apart if picks(term, other))
    yield from (term.topology_key for term in other.apart if picks(term, shape))
    for each in shape.spread:
        if picks(PodTerm("", each.selector, (shape.namespace,)), other):
            yield each.topology_key
