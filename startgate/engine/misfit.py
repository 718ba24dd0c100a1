"""Why nodes don't take the pods of a gang: each node by the first thing that rules it out for one more of them.

It asks the room that decided, when as many of the pods as fit have their places; so what their own anti-affinity or
spread does is seen too. What always holds:

* Each node that is known is in one group, so the counts add up to all nodes.
* What is named is in the way: without it the node would be in another group, or take a pod.
* The room is left as it was.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from startgate.engine.filters import demand
from startgate.engine.fit import Room
from startgate.engine.hurdles import NONE as PASSES
from startgate.engine.hurdles import Hurdle
from startgate.engine.nodes import Bools, Ints
from startgate.engine.wording import lacks_volumes
from startgate.model.quantity import LARGEST
from startgate.model.reasons import shortened
from startgate.model.resources import FIRST, PODS, show
from startgate.model.shape import Shape

ASKED: Final = 256
"""So many nodes are asked one by one which of the pod's volumes they can't have; the others have words in common."""

BITS: Final = 62
"""So many resources that a node may lack are told apart."""

FEW: Final = 10
"""Of so many it is quicker to count all sets than to look for those that occur."""

LENGTH: Final = 260
"""Characters that the groups take in a sentence, at most; those left out are counted."""

LEAST: Final = 80
"""So many they have, whatever else is in the sentence."""


class Sorted(Struct, frozen=True, dict=True):
    """The nodes by what rules them out for one more pod."""

    fit: int
    """How many of the pods fit."""
    takes: Ints
    """By slot: how many of these it takes."""
    of: Ints
    """By slot: the number of its words; negative where there is no node."""
    words: Sequence[str]
    """They go on from "3 nodes …"."""

    def groups(self) -> list[tuple[int, str]]:
        """How many nodes there are of each kind, the most first; at last those that take pods."""
        return [*self._ordered(self.takes == 0), *self._ordered(self.takes > 0)]

    def sentence(self, length: int = LENGTH) -> str:
        """As "of 64 nodes: 40 without nvidia.com/gpu, 14 cordoned, 10 with room for 1 each and then short of free cpu".
        What makes it longer than that is counted."""
        if length not in self._said:
            self._said[length] = self._sentence(length)
        return self._said[length]

    @cached_property
    def _said(self) -> dict[int, str]:
        """By length: many gangs of one kind ask for the same."""
        return {}

    def _sentence(self, length: int) -> str:
        closed, taking = self._ordered(self.takes == 0), self._ordered(self.takes > 0)
        nodes = int(np.count_nonzero(self.of >= 0))
        if not nodes:
            return "the cluster has no nodes"
        start = f"of {nodes} node{'s' if nodes > 1 else ''}: "
        length = min(LENGTH, max(LEAST, length - len(start)))
        some = _shown(taking, length // 2, "with room for some")
        parts = _shown(closed, length - len(", ".join(some)) - 2, "for other causes")
        if taking:
            parts += _shown(taking, length - len(", ".join(parts)) - 2, "with room for some")
        return start + ", ".join(parts)

    @property
    def lacks_volumes(self) -> bool:
        """Whether there are nodes that have no volume for the pods, or too few."""
        there = self.of[self.of >= 0]
        return any(lacks_volumes(self.words[number]) for number in np.unique(there).tolist())

    def seen_from(self, key: str, value: str) -> "Sorted":
        """The same for pods that have been given this label to go to, and don't ask for it themselves."""
        asked, outside = f"without label {key}={value}", f"outside {key}={value}"
        return replace(self, words=[outside if each == asked else each for each in self.words])

    def _ordered(self, mask: Bools) -> list[tuple[int, str]]:
        there = (self.of >= 0) & mask
        counts = np.bincount(self.of[there], minlength=len(self.words))
        groups = [(int(counts[number]), self._text(number, there)) for number in np.flatnonzero(counts).tolist()]
        return sorted(groups, key=lambda group: (-group[0], group[1]))

    def _text(self, number: int, there: Bools) -> str:
        pods = self.takes[there & (self.of == number)]
        text = self.words[number]
        return f"{_room_for(pods)} and then {text}" if pods.any() else text


def _shown(groups: Sequence[tuple[int, str]], length: int, rest: str) -> list[str]:
    """As many of them as there is room for, one at least; the others as a count."""
    shown: list[str] = []
    left = sum(count for count, _ in groups)
    for count, text in groups:
        left -= count
        others = [f"{left} {rest}"] if left else []
        room = length - len(", ".join(["", *others])) - len(", ".join([*shown, ""]))
        if shown and len(f"{count} {text}") > room:
            return [*shown, f"{left + count} {rest}"]
        shown.append(shortened(f"{count} {text}", room))
    return shown


class _Sorting:
    """Nodes that are put into groups, the first that takes one keeps it."""

    def __init__(self, hurdle: Hurdle) -> None:
        """Begins with what the nodes' own filters say."""
        self.of = hurdle.of.copy()
        self.words = list(hurdle.words)
        self.numbers = {text: number for number, text in enumerate(self.words)}

    @property
    def open(self) -> Bools:
        still: Bools = self.of == PASSES
        return still

    def put(self, text: str, mask: Bools | np.bool_) -> None:
        """These, as far as they are open, are in this group."""
        self.of[mask & self.open] = self.number(text)

    def done(self, takes: Ints) -> Sorted:
        """`takes`: how many of the pods have their place in each slot."""
        self.put("closed by the rest of its pods", self.open)
        return Sorted(int(takes.sum()), takes, self.of, self.words)

    def number(self, text: str) -> int:
        number = self.numbers.setdefault(text, len(self.words))
        if number == len(self.words):
            self.words.append(text)
        return number


def sort_out(room: Room, shape: Shape, count: int) -> Sorted | None:
    """The nodes as they are for so many of these pods; None where all of them fit."""
    # Where nothing but the node decides, it is the same for any number of pods.
    known = ("misfit", shape, count) if room.concern(shape) else ("misfit", shape.plain, 0)
    if known not in room.memo:
        room.memo[known] = _among_others(room, shape, count) if known[2] else _alone(room, shape)
    found: Sorted = room.memo[known]
    return found if found.fit < count else None


def _alone(room: Room, shape: Shape) -> Sorted:
    takes = room.takes(shape)
    sorting = _Sorting(room.cluster.hurdles.of(demand(shape)))
    _by_amounts(room, shape, sorting, takes)
    return sorting.done(takes)


def _among_others(room: Room, shape: Shape, count: int) -> Sorted:
    """With as many of the pods in their places as fit."""
    placed = room.around.arrange(shape, count, room.takes(shape), room.cluster.ranks())
    takes = np.zeros(room.cluster.offers.shape[1], dtype=np.int64)
    np.add.at(takes, placed.slots, placed.counts)
    sorting = _Sorting(room.cluster.hurdles.of(demand(shape)))
    if placed.total < count:
        _by_amounts(room, shape, sorting, takes)
        if sorting.open.any():
            room.around.add(shape, placed.slots, placed.counts)
            for text, mask in room.around.obstacles(shape):
                sorting.put(text, mask)
            _by_volumes(room, shape, sorting)
            room.around.add(shape, placed.slots, -placed.counts)
    return sorting.done(takes)


def _room_for(pods: Ints) -> str:
    """`pods`: how many each of some nodes takes."""
    least, most = int(pods.min()), int(pods.max())
    number = f"{least}" if least == most else f"{least} {'or' if most == least + 1 else 'to'} {most}"
    return f"with room for {number}{' each' if len(pods) > 1 else ''}"


def _by_amounts(room: Room, shape: Shape, sorting: _Sorting, spent: Ints) -> None:
    """What the node has too little of: none at all, less than a pod asks for, or too little of it free, when so many
    of the pods (by slot) have theirs."""
    cluster = room.cluster
    asks = {resource: amount for resource, amount in shape.request if amount > 0}
    order = sorted(asks, key=lambda each: (each in FIRST or each == PODS, each))  # what is special first
    if not sorting.open.any():
        return
    asked = np.array([[min(asks[each], LARGEST)] for each in order], dtype=np.int64).reshape(-1, 1)
    beyond = np.array([[asks[each] > LARGEST] for each in order], dtype=np.bool_).reshape(-1, 1)
    # What no node has ever named is as what one named once and none does now: words tell of no past.
    named = [each in cluster.rows for each in order]
    offers = np.zeros((len(order), cluster.offers.shape[1]), dtype=np.int64)
    offers[named] = cluster.offers[[cluster.rows[each] for each in order if each in cluster.rows]]
    _lacking(sorting, order, offers == 0, lambda which: f"without {_and(which)}")
    _lacking(sorting, order, (offers < asked) | beyond, lambda which: f"with less than {show(_part(asks, which))}")
    if not sorting.open.any():
        return
    place = [list(asks).index(each) for each in order]  # `left` has all of them: some node does
    needed = asked * (spent + 1)
    lacks = room.left(shape)[place] < needed
    really = room.left(shape, nominated=False)[place] < needed
    sorting.put("with their room kept for nominated pods", lacks.any(axis=0) & ~really.any(axis=0))
    _lacking(sorting, order, lacks, lambda which: f"short of free {_and(which)}")


def _lacking(sorting: _Sorting, order: Sequence[str], lacks: Bools, words: Callable[[list[str]], str]) -> None:
    """Puts nodes together that lack the same. `lacks`: resources x slots."""
    slots = np.flatnonzero(lacks.any(axis=0) & sorting.open)
    if not len(slots):
        return
    bits = 1 << np.minimum(np.arange(len(order)), BITS)
    codes = np.bitwise_or.reduce(np.where(lacks[:, slots], bits[:, None], 0), axis=0)
    kinds = np.flatnonzero(np.bincount(codes)) if len(order) <= FEW else np.unique(codes)
    for code in kinds.tolist():
        alike = slots[codes == code]
        number = sorting.number(words([order[each] for each in np.flatnonzero(lacks[:, alike[0]]).tolist()]))
        sorting.of[alike] = number


def _by_volumes(room: Room, shape: Shape, sorting: _Sorting) -> None:
    """Which volumes that are within reach the pod can't have on the node."""
    if not (shape.claims or shape.ephemeral):
        return
    slots = _in_order(room, sorting.open)
    for slot in slots[:ASKED]:
        text = room.around.volume_obstacle(shape, slot)
        if text is not None:
            sorting.of[slot] = sorting.number(text)
    if len(slots) > ASKED or room.around.volumes(shape).most == 0:
        sorting.put("that can't have its volumes", sorting.open)


def without_volumes(room: Room, shape: Shape) -> bool:
    """Whether nodes have no volumes for such pods, whatever else may be in the way; of many nodes some are asked."""
    if not (shape.claims or shape.ephemeral):
        return False
    slots = _in_order(room, room.matching(shape))[:ASKED]
    found = [room.around.volume_obstacle(shape, slot) for slot in slots]
    return bool(found) and all(text is not None and lacks_volumes(text) for text in found)


def _in_order(room: Room, mask: Bools) -> list[int]:
    """These slots by the names of their nodes, whichever came first."""
    slots = np.flatnonzero(mask)
    ordered: list[int] = slots[np.argsort(room.cluster.ranks()[slots])].tolist()
    return ordered


def _part(asks: Mapping[str, int], which: Iterable[str]) -> dict[str, int]:
    return {each: asks[each] for each in which}


def _and(which: Sequence[str]) -> str:
    called = ["places for pods" if each == PODS else each for each in which]
    return " and ".join([", ".join(called[:-1]), called[-1]] if len(called) > 1 else called)
