"""Which demand of a pod each node doesn't meet: the answer of `filters` by node, kept from decision to decision.

A mask (`Nodes.matching`) is enough to decide; this is for saying why. What always holds: what `Hurdles.of` gives says
what `filters.obstacle` says of each node as it is now, and is not to be written into.
"""

from typing import Final, NamedTuple

import numpy as np

from startgate.engine.filters import Demand, obstacle, words
from startgate.engine.nodes import Ints, Nodes

NONE: Final = -1
"""Nothing is in the pod's way."""

NOBODY: Final = -2
"""There is no node in this slot, or none that is known."""

KEPT: Final = 128
"""Demands whose hurdles are kept; beyond that all are forgotten, and worked out again where needed."""


class Hurdle(NamedTuple):
    """What keeps pods with one demand from the nodes."""

    of: Ints
    """By slot: the number of its words; or NONE, or NOBODY."""
    words: list[str]
    """They go on from "3 nodes …"."""


class _Kept:
    def __init__(self, slots: int) -> None:
        self.of = np.full(slots, NOBODY, dtype=np.int64)
        self.words: list[str] = []
        self.numbers: dict[str, int] = {}
        self.seen = -1

    def number(self, text: str) -> int:
        number = self.numbers.setdefault(text, len(self.words))
        if number == len(self.words):
            self.words.append(text)
        return number


class Hurdles:
    """Of all demands that were asked about, as the nodes are now."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._known: dict[Demand, _Kept] = {}

    def of(self, demand: Demand) -> Hurdle:
        """What keeps pods with this demand from the nodes."""
        nodes, slots = self._nodes, self._nodes.offers.shape[1]
        kept = self._known.get(demand)
        if kept is None or len(kept.of) != slots or len(kept.words) > 2 * len(nodes.names) + 64:
            if len(self._known) >= KEPT:
                self._known = {}
            kept = self._known[demand] = _Kept(slots)
        if kept.seen < nodes.version:
            self._refresh(demand, kept)
        return Hurdle(kept.of, kept.words)

    def _refresh(self, demand: Demand, kept: _Kept) -> None:
        nodes = self._nodes
        passes = nodes.matching(demand)
        for slot in np.flatnonzero(nodes.stamps > kept.seen).tolist():
            known = nodes.facts[slot] if slot < len(nodes.facts) else None
            if known is None:
                kept.of[slot] = NOBODY
            elif passes[slot]:
                kept.of[slot] = NONE
            else:
                found = obstacle(demand, known)
                assert found is not None
                kept.of[slot] = kept.number(words(found))
        kept.seen = nodes.version
