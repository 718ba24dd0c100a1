"""Who is where: what the terms of inter-pod affinity, anti-affinity and topology spread are about.

Kept by the cluster, for all pods that are on nodes; a what-if counts what it adds and takes away in a Scratch of its
own. What always holds:

* A pod counts from `add` to `add` with a negative count, whether or not its node is known.
* Pods that are being deleted count like others, but not for topology spread, as in kube-scheduler.
* Nothing is looked for term by term and shape by shape: both are found by a label that the selector demands.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from startgate.engine.counts import Counts
from startgate.engine.topology import Topology
from startgate.model.selectors import LabelSelector
from startgate.model.shape import PodTerm, Shape

Ints: TypeAlias = npt.NDArray[np.int64]
Namespaces: TypeAlias = Mapping[str, Mapping[str, str]]
Label: TypeAlias = tuple[str, str]
Where: TypeAlias = tuple[Ints, Ints]
"""Slots and how many pods in each. A slot may come more than once, then sums count."""

UNNAMED: Final[Label] = ("", "")
"""Stands for the label that a selector demands where it demands none by value."""

PICKS: Final = 4096
"""Picks of which the pods are kept counted; beyond that all are forgotten, and counted again where needed."""


class Pick(NamedTuple):
    """The pods that all of these terms pick, whatever their topology key."""

    terms: tuple[PodTerm, ...]
    staying: bool = False
    """Without those that are being deleted: topology spread."""

    def takes(self, shape: Shape, namespaces: Namespaces) -> bool:
        return all(term.picks(shape.namespace, shape.label_map, namespaces) for term in self.terms)


def demanded(selector: LabelSelector | None) -> list[tuple[Label, ...]]:
    """For each requirement that names its values: the labels of which a pod must have one to be picked."""
    if selector is None:
        return [()]
    named: list[tuple[Label, ...]] = [((key, value),) for key, value in selector.match_labels.items()]
    return named + [
        tuple(dict.fromkeys((each.key, value) for value in each.values))
        for each in selector.match_expressions
        if each.operator == "In"
    ]


def _entries(terms: Iterable[PodTerm]) -> tuple[Label, ...]:
    """The labels under which something with these terms is to be found."""
    options = [labels for term in terms for labels in demanded(term.selector)]
    return min(options, key=len) if options else (UNNAMED,)


class Crowd:
    """Pods by shape and slot, and by what can be asked about them."""

    __slots__ = ("_labelled", "bearers", "held", "terms")

    def __init__(self) -> None:
        self.held: Counts[Shape, int] = Counts()
        """By shape and slot: pods."""
        self._labelled: Counts[Label, Shape] | None = None
        """The shapes that have each label; None until somebody asks, in many clusters nobody ever does."""
        self.bearers: Counts[PodTerm, Shape] = Counts()
        """The shapes that carry each term of anti-affinity."""
        self.terms: Counts[Label, PodTerm] = Counts()
        """Terms of anti-affinity by a label that they demand."""

    def add(self, shape: Shape, slot: int, count: int) -> None:
        before = shape in self.held
        self.held.add(shape, slot, count)
        after = shape in self.held
        if before != after:
            self._enlist(shape, 1 if after else -1)

    def _enlist(self, shape: Shape, sign: int) -> None:
        if self._labelled is not None:
            for label in shape.labels:
                self._labelled.add(label, shape, sign)
        for term in shape.apart:
            self.bearers.add(term, shape, sign)
            for label in _entries((term,)):
                self.terms.add(label, term, sign)

    def picked(self, pick: Pick, namespaces: Namespaces) -> list[Shape]:
        """The shapes here that it picks."""
        options = [labels for term in pick.terms for labels in demanded(term.selector)]
        found: Iterable[Shape] = self.held
        if options:
            labelled = self._by_label()
            labels = min(options, key=lambda each: sum(len(labelled[label]) for label in each))
            found = (shape for label in labels for shape in labelled[label])
        return [shape for shape in found if pick.takes(shape, namespaces)]

    def has(self, label: Label) -> bool:
        """Whether any pod has this label."""
        return label in self._by_label()

    def against(self, shape: Shape, namespaces: Namespaces) -> Iterator[PodTerm]:
        """Terms of anti-affinity that pods here carry and that pick such pods."""
        if not self.terms:
            return
        for label in (*shape.labels, UNNAMED):
            for term in self.terms[label]:
                if term.picks(shape.namespace, shape.label_map, namespaces):
                    yield term

    def copy(self) -> "Crowd":
        twin = Crowd()
        twin.held = self.held.copy()
        twin._labelled = None if self._labelled is None else self._labelled.copy()
        twin.bearers, twin.terms = self.bearers.copy(), self.terms.copy()
        return twin

    def _by_label(self) -> Counts[Label, Shape]:
        if self._labelled is None:
            self._labelled = Counts()
            for shape in self.held:
                for label in shape.labels:
                    self._labelled.add(label, shape, 1)
        return self._labelled


class _Tally:
    """Where the pods of one pick are, kept up to date."""

    __slots__ = ("_where", "pick", "slots")

    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        self.slots: dict[int, int] = {}
        self._where: Where | None = None

    def add(self, slot: int, count: int) -> None:
        now = self.slots.get(slot, 0) + count
        if now:
            self.slots[slot] = now
        else:
            self.slots.pop(slot, None)
        self._where = None

    def where(self) -> Where:
        if self._where is None:
            self._where = _arrays(self.slots)
        return self._where


class Company:
    """The pods on the cluster's nodes, the nodes' labels, the namespaces'."""

    def __init__(self) -> None:
        self.topology = Topology()
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.crowd = Crowd()
        self.leaving: Counts[Shape, int] = Counts()
        """The part of them that is being deleted."""
        self._tallies: dict[Pick, _Tally] = {}
        self._asked: Counts[Label, Pick] = Counts()
        """What was asked about, by a label that it demands."""
        self._watched: dict[Shape, list[_Tally]] = {}
        """By shape that is here: the tallies that count it."""

    def set_node(self, slot: int, labels: Mapping[str, str] | None) -> None:
        """The labels of the node in this slot; None: there is none, or none that is known."""
        self.topology.set_node(slot, labels)

    def set_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Takes a namespace's labels in, or what has changed of them."""
        if self.namespaces.get(name) != labels:
            self.namespaces[name] = dict(labels)
            self._forget()

    def remove_namespace(self, name: str) -> None:
        """Forgets its labels; one that isn't known is no error."""
        if self.namespaces.pop(name, None) is not None:
            self._forget()

    def add(self, shape: Shape, slot: int, count: int = 1, *, leaving: bool = False) -> None:
        """Counts pods on the node in this slot; negative: fewer. `leaving`: they are being deleted.

        A pod that begins to leave is taken away as one that stays and added as one that leaves.
        """
        before = shape in self.crowd.held
        self.crowd.add(shape, slot, count)
        if leaving:
            self.leaving.add(shape, slot, count)
        if not before:
            self._watch(shape)
        for tally in self._watched.get(shape, ()):
            if not (leaving and tally.pick.staying):
                tally.add(slot, count)
        if shape not in self.crowd.held:
            self._watched.pop(shape, None)

    def over(self) -> "Scratch":
        """For a what-if. The company must not change while it is in use."""
        return Scratch(self)

    def concerns(self, shape: Shape) -> bool:
        """Whether other pods have a say in where such pods go."""
        return _has_terms(shape) or any(True for _ in self.crowd.against(shape, self.namespaces))

    def where(self, pick: Pick) -> Where:
        """The slots that these pods are on, and how many."""
        tally = self._tallies.get(pick)
        if tally is None:
            if len(self._tallies) >= PICKS:
                self._forget()
            tally = self._tallies[pick] = self._count(pick)
            for label in _entries(pick.terms):
                self._asked.add(label, pick, 1)
        return tally.where()

    def copy(self) -> "Company":
        """Another one like this; a change to either isn't seen in the other."""
        twin = Company()
        twin.topology = self.topology.copy()
        twin.namespaces = dict(self.namespaces)
        twin.crowd, twin.leaving = self.crowd.copy(), self.leaving.copy()
        return twin

    def bare(self) -> "Company":
        """The same nodes and namespaces without any pods, for a what-if: what is known of them is shared."""
        twin = Company()
        twin.topology, twin.namespaces = self.topology, self.namespaces
        return twin

    def _count(self, pick: Pick) -> _Tally:
        tally = _Tally(pick)
        for shape in self.crowd.picked(pick, self.namespaces):
            for slot, count in self.crowd.held[shape].items():
                tally.add(slot, count)
            if pick.staying:
                for slot, count in self.leaving[shape].items():
                    tally.add(slot, -count)
            self._watched.setdefault(shape, []).append(tally)
        return tally

    def _watch(self, shape: Shape) -> None:
        if not self._asked:
            return
        counting = [
            self._tallies[pick]
            for label in (*shape.labels, UNNAMED)
            for pick in self._asked[label]
            if pick.takes(shape, self.namespaces)
        ]
        if counting:
            self._watched[shape] = counting

    def _forget(self) -> None:
        self._tallies, self._watched, self._asked = {}, {}, Counts()


class Scratch:
    """What a what-if has added to a company and taken from it."""

    def __init__(self, company: Company) -> None:
        self.company = company
        self._moved = Crowd()

    def copy(self) -> "Scratch":
        """Another one like this; a change to either isn't seen in the other."""
        twin = Scratch(self.company)
        twin._moved = self._moved.copy()
        return twin

    def add(self, shape: Shape, slots: Iterable[int], counts: Iterable[int]) -> None:
        """As if so many more such pods were in each of these slots; negative: fewer, those that leave first."""
        for slot, count in zip(slots, counts, strict=True):
            self._moved.add(shape, int(slot), int(count))

    def concerns(self, shape: Shape) -> bool:
        """Whether other pods have a say in where such pods go; now and then true where they wouldn't any more."""
        if self.company.concerns(shape):
            return True
        return any(True for _ in self._moved.against(shape, self.company.namespaces))

    def unheard(self, shape: Shape) -> tuple[str, ...]:
        """Those of its labels that no pod here has with the same value."""
        crowds = (self.company.crowd, self._moved)
        return tuple([label[0] for label in shape.labels if not any(crowd.has(label) for crowd in crowds)])

    def same(self, one: Shape, other: Shape) -> bool:
        """Whether the same pods here want the one and the other kept away."""
        namespaces = self.company.namespaces
        return all(
            set(crowd.against(one, namespaces)) == set(crowd.against(other, namespaces))
            for crowd in (self.company.crowd, self._moved)
            if crowd.terms
        )

    def where(self, pick: Pick) -> Where:
        """The slots that these pods are on, and how many."""
        slots, counts = self.company.where(pick)
        moved: list[tuple[int, int]] = []
        for shape in self._moved.picked(pick, self.company.namespaces):
            leaving = self.company.leaving[shape]
            for slot, count in self._moved.held[shape].items():
                gone_anyway = leaving.get(slot, 0) if pick.staying else 0
                moved.append((slot, min(0, count + gone_anyway) if count < 0 else count))
        if not moved:
            return slots, counts
        more = np.array(moved, dtype=np.int64)
        return np.concatenate((slots, more[:, 0])), np.concatenate((counts, more[:, 1]))

    def against(self, shape: Shape) -> dict[str, Where]:
        """By topology key, in their order: where the pods are that want no such pod in their domain of it."""
        found: dict[str, list[tuple[int, int]]] = {}
        for key, bearer, crowd in self._keepers(shape):
            found.setdefault(key, []).extend(crowd.held[bearer].items())
        return {key: _columns(found[key]) for key in sorted(found)}

    def keepers(self, shape: Shape) -> dict[str, list[Shape]]:
        """By topology key: which pods want no such pod in their domain of it."""
        found: dict[str, dict[Shape, None]] = {}
        for key, bearer, _ in self._keepers(shape):
            found.setdefault(key, {})[bearer] = None
        return {key: list(bearers) for key, bearers in found.items()}

    def _keepers(self, shape: Shape) -> Iterator[tuple[str, Shape, Crowd]]:
        crowds = (self.company.crowd, self._moved)
        terms = dict.fromkeys(term for crowd in crowds for term in crowd.against(shape, self.company.namespaces))
        for term in terms:
            for crowd in crowds:
                for bearer in crowd.bearers[term]:
                    yield term.topology_key, bearer, crowd


def _has_terms(shape: Shape) -> bool:
    return bool(shape.together or shape.apart or shape.spread)


def _arrays(slots: Mapping[int, int]) -> Where:
    size = len(slots)
    return np.fromiter(slots.keys(), np.int64, size), np.fromiter(slots.values(), np.int64, size)


def _columns(pairs: list[tuple[int, int]]) -> Where:
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]
