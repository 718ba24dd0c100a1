"""From which nodes a volume can be used: the slots that its selectors pick, each found once.

A cluster with local disks has a selector for each node: an index by label keeps that from costing the square of the
cluster. What always holds: what is answered is of the labels as they are now, sorted, and not to be written into.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, TypeAlias

import numpy as np

from startgate.engine.nodes import Ints
from startgate.model.selectors import LabelSelector, NodeSelector
from startgate.model.storage import ZONES, VolumeClass

KEPT: Final = 2**16
"""Selectors whose slots are remembered; beyond that all are forgotten, and worked out again where needed."""

Zones: TypeAlias = tuple[tuple[str, frozenset[str]], ...]
Labels: TypeAlias = Mapping[str, str]
Wanted: TypeAlias = Iterable[tuple[str, Iterable[str]]]
"""Labels with values of which a node must have one, or it can't be picked; enough to look at few nodes."""

CURRENT: Final = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""The names that labels of old volumes have on nodes today."""


class Places:
    """The labels of the known nodes, by slot."""

    def __init__(self) -> None:
        self.labels: dict[int, Labels] = {}
        self._index: dict[str, dict[str, set[int]]] = {}
        """Slots by label and value, for the labels that were asked about."""
        self._found: dict[Hashable, Ints] = {}

    def copy(self) -> "Places":
        """Another one like this; a change to either isn't seen in the other."""
        twin = Places()
        twin.labels = dict(self.labels)
        twin._found = dict(self._found)
        return twin

    def put(self, slot: int, labels: Labels | None) -> None:
        """The labels of the node in this slot; None: there is none."""
        before = self.labels.get(slot)
        if before == labels:
            return
        for key, slots in self._index.items():
            if before is not None and key in before:
                slots[before[key]].discard(slot)
            if labels is not None and key in labels:
                slots.setdefault(labels[key], set()).add(slot)
        if labels is None:
            del self.labels[slot]
        else:
            self.labels[slot] = labels
        self._found = {}

    def reached(self, selector: NodeSelector) -> Ints:
        """Where a volume with this node affinity can be used. It sees labels alone (CheckNodeAffinity)."""

        def search() -> Iterable[int]:
            wanted = [
                next(((each.key, each.values) for each in term.match_expressions if each.operator == "In"), None)
                for term in selector.node_selector_terms
            ]
            looked_at = self._having(each for each in wanted if each) if all(wanted) else self.labels
            return (slot for slot in looked_at if selector.matches(self.labels[slot], ""))

        return self._kept(selector, search)

    def picked(self, selector: LabelSelector) -> Ints:
        """The nodes that it picks."""

        def search() -> Iterable[int]:
            wanted: list[tuple[str, tuple[str, ...]]] = [
                (key, (value,)) for key, value in selector.match_labels.items()
            ]
            wanted += [(each.key, each.values) for each in selector.match_expressions if each.operator == "In"]
            looked_at = self._having(wanted[:1]) if wanted else self.labels
            return (slot for slot in looked_at if selector.matches(self.labels[slot]))

        return self._kept(selector, search)

    def zoned(self, zones: Zones) -> Ints:
        """Where a volume with such zone labels can be used (plugin VolumeZone): a node without any zone takes all."""
        return self._kept(zones, lambda: (slot for slot, labels in self.labels.items() if _in_zones(zones, labels)))

    def provisioned(self, made: VolumeClass) -> Ints:
        """Where the class makes volumes (allowedTopologies)."""

        def search() -> Iterable[int]:
            wanted = [term[0] for term in made.topologies if term]
            looked_at = self._having(wanted) if made.topologies else self.labels
            return (slot for slot in looked_at if made.reaches(self.labels[slot]))

        return self._kept((made.topologies,), search)

    def _kept(self, key: Hashable, search: Callable[[], Iterable[int]]) -> Ints:
        slots = self._found.get(key)
        if slots is None:
            if len(self._found) >= KEPT:
                self._found = {}
            slots = self._found[key] = np.array(sorted(search()), dtype=np.int64)
        return slots

    def _having(self, wanted: Wanted) -> set[int]:
        """The slots that have one of these labels with one of its values."""
        found: set[int] = set()
        for key, values in wanted:
            index = self._index.get(key)
            if index is None:
                index = self._index[key] = {}
                for slot, labels in self.labels.items():
                    if key in labels:
                        index.setdefault(labels[key], set()).add(slot)
            for value in values:
                found |= index.get(value, set())
        return found


def _in_zones(zones: Zones, labels: Labels) -> bool:
    if not any(key in labels for key in ZONES):
        return True
    return all(labels.get(key, labels.get(CURRENT.get(key, key))) in values for key, values in zones)
