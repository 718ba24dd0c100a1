"""Which nodes are in one domain: those that have the same value of a label.

What always holds: a node without the label, or one that isn't known, is in no domain (-1); the number that a domain has
says nothing, and isn't kept when the domains of a label are numbered anew.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

NONE: Final = -1


class Domains(NamedTuple):
    """The domains of one label."""

    of: Ints
    """By slot; -1 where there is none. Not to be written into."""
    size: int
    """All numbers in `of` are below it."""


class _Label:
    __slots__ = ("numbers", "of")

    def __init__(self, of: Ints, numbers: dict[str, int]) -> None:
        self.of = of
        self.numbers = numbers

    def put(self, slot: int, value: str | None) -> None:
        if slot >= len(self.of):
            more = max(slot + 1 - len(self.of), len(self.of) // 2)
            self.of = np.pad(self.of, (0, more), constant_values=NONE)
        number = NONE if value is None else self.numbers.setdefault(value, len(self.numbers))
        if self.of[slot] != number:
            self.of = self.of.copy()  # somebody may still have it, a copy or an answer
            self.of[slot] = number


class Topology:
    """The nodes' labels, and their domains by every label that was asked about."""

    def __init__(self) -> None:
        self._labels: list[Mapping[str, str] | None] = []
        self._known: dict[str, _Label] = {}

    def set_node(self, slot: int, labels: Mapping[str, str] | None) -> None:
        """The labels of the node in this slot; None: there is none, or none that is known."""
        if slot >= len(self._labels):
            self._labels.extend([None] * (slot + 1 - len(self._labels)))
        self._labels[slot] = labels
        for key, label in list(self._known.items()):
            label.put(slot, None if labels is None else labels.get(key))
            if len(label.numbers) > 2 * len(self._labels) + 64:  # values come and go with nodes
                del self._known[key]

    def domains(self, key: str, slots: int) -> Domains:
        """The domains of this label, for the first so many slots."""
        label = self._known.get(key)
        if label is None:
            label = self._known[key] = self._read(key)
        if len(label.of) < slots:
            label.of = np.pad(label.of, (0, slots - len(label.of)), constant_values=NONE)
        return Domains(label.of[:slots], len(label.numbers))

    def having(self, key: str, value: str, slots: int) -> Bools:
        """By slot, for the first so many: whether the node has the label with this value."""
        domains = self.domains(key, slots)
        number = self._known[key].numbers.get(value)
        return np.zeros(slots, dtype=np.bool_) if number is None else domains.of == number

    def value(self, key: str, slot: int) -> str | None:
        """The label's value of the node in this slot; None without."""
        labels = self._labels[slot] if slot < len(self._labels) else None
        return None if labels is None else labels.get(key)

    def copy(self) -> "Topology":
        """Another one like this; a change to either isn't seen in the other."""
        twin = Topology()
        twin._labels = list(self._labels)
        twin._known = {key: _Label(label.of, dict(label.numbers)) for key, label in self._known.items()}
        return twin

    def _read(self, key: str) -> _Label:
        numbers: dict[str, int] = {}
        of = [
            NONE if labels is None or (value := labels.get(key)) is None else numbers.setdefault(value, len(numbers))
            for labels in self._labels
        ]
        return _Label(np.array(of, dtype=np.int64), numbers)
