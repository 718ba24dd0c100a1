"""What would let a gang start for which the cluster has no room: who has to end, or which nodes would have to come.

Proved on a copy of books and room, which costs: it is asked for few gangs of a decision, those whose turn comes first.
What always holds: what is said is enough if nothing else comes in between; it needn't be the least that would be; and
what is held for others stays held.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from operator import attrgetter
from typing import Final

import numpy as np

from startgate.engine.fit import Room, by_shape
from startgate.engine.ground import Hold, Unit, View
from startgate.engine.observe import amounts_of
from startgate.engine.within import within_of
from startgate.engine.world import NEVER, Batch, Holder
from startgate.model.objects import rfc3339
from startgate.model.resources import PODS
from startgate.model.shape import Shape

GANGS: Final = 4
"""So many gangs of a decision are looked into."""

HOLDERS: Final = 32
"""So many gangs that run are looked at for one that waits, of those that end soonest, and of the largest."""

PLACES: Final = 2048
"""And to find these, so many of the places that gangs have pods on."""

ALONE: Final = 16
"""So many of them are tried one by one: is the end of that one enough?"""

PRUNED: Final = 8
"""Of several whose end is enough together, so many are asked whether it is without them too."""

NAMED: Final = 3
"""So many are named in a sentence; the rest are counted."""


class Outlook:
    """Of one decision, when all is decided."""

    def __init__(self, view: View, holders: Iterable[Holder], holds: Sequence[Hold]) -> None:
        """`view` is used up: how it will be when what leaves is gone. `holds`: what is held for gangs."""
        self._view = view
        self._holds = holds
        self._holders = [each for each in holders if each.pods]

    @cached_property
    def _soonest_first(self) -> list[Holder]:
        return sorted([each for each in self._holders if each.ends < NEVER], key=lambda each: (each.ends, each.gang))

    @cached_property
    def _smallest_first(self) -> list[Holder]:
        return sorted(self._holders, key=attrgetter("size"))

    @cached_property
    def _largest_first(self) -> list[Holder]:
        return sorted(self._smallest_first, key=lambda each: -each.charge.get(PODS, 0))

    def until(self, gang: str, queue: str, batches: Sequence[Batch], *, leaving: bool) -> str:
        """When these pods of this gang could start, in words that go on from "it starts when …"; "" where nobody can
        say. `leaving`: whether pods are on their way out, which may be enough."""
        others = [hold for hold in self._holds if hold.gang != gang]
        for hold in others:
            self._view.hold(hold)
        words = self._until(_Trial(self._view, queue, batches), leaving=leaving)
        for hold in others:
            self._view.lift(hold)
        return words

    def _until(self, trial: "_Trial", *, leaving: bool) -> str:
        if leaving and trial.fits():
            return "the pods that are on their way out are gone"
        ends = self._who_ends(trial)
        more = trial.more_nodes()
        nodes = f"{more} {'is' if more.startswith('1 ') else 'are'} added" if more else "nodes are added"
        return f"{ends}, or {nodes}" if ends else (f"enough pods end or {nodes}" if more else "")

    def _who_ends(self, trial: "_Trial") -> str:
        ending = trial.enough(trial.near(self._soonest_first))
        if ending:
            others = f" and {len(ending) - 1} more" if len(ending) > 1 else ""
            return f"{ending[-1].gang}{others} {'have' if others else 'has'} ended, by {rfc3339(ending[-1].ends)}"
        for each in islice(trial.near(trial.singly(self._smallest_first)), ALONE):
            if trial.enough([each]):
                return f"{_named([each])} ends"
        some = trial.needed(trial.enough(trial.near(self._largest_first)))
        return f"{_named(some)} end{'s' if len(some) == 1 else ''}" if some else ""


class _Trial:
    """Pods that would start, and a view in which to try it; each try leaves the view as it was."""

    def __init__(self, view: View, queue: str, batches: Sequence[Batch]) -> None:
        self._view = view
        self._queue = queue
        self._batches = batches
        self._asks = amounts_of(batches)
        self._within = within_of(batches)
        self._freeing: dict[tuple[Shape, int], int] = {}
        counts = by_shape(batches)
        self._alone: tuple[Shape, int] | None = next(iter(counts.items())) if len(counts) == 1 else None
        """The shape and how many, where they are of one kind."""
        refusal = view.books.refusal(queue, self._asks)
        left = {} if refusal is None else refusal.left
        self._missing = {resource: self._asks[resource] - most for resource, most in left.items()}
        """What the queue has too little of."""

    def fits(self) -> bool:
        if self._alone is None:
            return self._view.fits(self._queue, self._batches, self._asks)
        shape, count = self._alone
        if self._view.books.refusal(self._queue, self._asks) is not None:
            return False
        room = self._view.room
        if room.fits(shape, count, self._within) < count:
            return False
        # Where other pods have a say, who decides is asked: that they fit needn't mean that they can be let go.
        return not room.concern(shape) or self._view.fits(self._queue, self._batches, self._asks)

    def near(self, holders: Iterable[Holder]) -> Iterator[Holder]:
        """The first few with pods on nodes where some of these could go."""
        masks = [self._view.room.matching(batch.shape) for batch in self._batches]
        mask, slots, found, places = np.logical_or.reduce(masks), self._view.room.cluster.slots, 0, PLACES
        for holder in holders:
            for name, _ in (node for placement in holder.pods for node in placement.nodes):
                places -= 1
                slot = slots.get(name)
                if slot is not None and mask[slot]:
                    found += 1
                    yield holder
                    break
            if found >= HOLDERS or places <= 0:
                return

    def enough(self, holders: Iterable[Holder]) -> list[Holder]:
        """As many of these as have to end, in this order, before they fit; none where all of them aren't enough."""
        gone: list[Unit] = []
        fits = False
        for holder in holders:
            gone.append(_unit(holder))
            self._view.remove(gone[-1])
            fits = self.fits()
            if fits:
                break
        for unit in gone:
            self._view.restore(unit)
        return [unit.holder for unit in gone] if fits else []

    def needed(self, holders: Sequence[Holder]) -> list[Holder]:
        """Of those whose end is enough, all but some without whom it is, too."""
        gone = [_unit(holder) for holder in holders]
        for unit in gone:
            self._view.remove(unit)
        for unit in gone[:-1][:PRUNED]:
            self._view.restore(unit)
            if self.fits():
                gone.remove(unit)
            else:
                self._view.remove(unit)
        for unit in gone:
            self._view.restore(unit)
        return [unit.holder for unit in gone]

    def singly(self, holders: Iterable[Holder]) -> Iterable[Holder]:
        """Those of whom it can be enough that one alone ends; a cheap no for the others."""
        for resource, count in self._missing.items():
            holders = _with(holders, resource, count)
        if self._alone is None or self._view.room.concern(self._alone[0]):
            return holders
        shape, count = self._alone
        missing = count - self._view.room.fits(shape)
        return (each for each in holders if self._most_freed(each, shape) >= missing)

    def _most_freed(self, holder: Holder, shape: Shape) -> int:
        """One more pod on each of its nodes, and as many as what it frees there has room for: so many more at most."""
        more = 0
        for placement in holder.pods:
            for pods, nodes in Counter([pods for _, pods in placement.nodes]).items():
                more += nodes * (1 + self._freed(placement.shape, pods, shape))
        return more

    def _freed(self, held: Shape, pods: int, shape: Shape) -> int:
        """For how many pods of the one shape so many of the other have what they ask for, at most."""
        found = self._freeing.get((held, pods))
        if found is None:
            asks, there = shape.amounts, held.amounts
            found = max((pods * there.get(each, 0) // amount for each, amount in asks.items() if amount > 0), default=0)
            self._freeing[held, pods] = found
        return found

    def more_nodes(self) -> str:
        """Which nodes would do, where nodes are all that is missing and decide for themselves."""
        room = self._view.room
        if self._alone is None or (self._within is not None and self._within.key) or room.concern(self._alone[0]):
            return ""
        if self._view.books.refusal(self._queue, self._asks) is not None:
            return ""
        shape, count = self._alone
        return more_nodes(room, shape, count - room.fits(shape))


def more_nodes(room: Room, shape: Shape, pods: int) -> str:
    """The smallest nodes that would do for so many more of these pods: "2 more nodes like a"; "" if none is there like
    it. For pods of which the node alone decides whether it takes them."""
    takes = room.cluster.stocks.of(shape.plain).empty().by_slot
    if pods <= 0 or not takes.any():
        return ""
    enough = takes >= pods
    size = np.where(enough, takes, np.iinfo(np.int64).max) if enough.any() else -takes
    slot = int(np.lexsort((room.cluster.ranks(), size))[0])
    number = -(-pods // int(takes[slot]))
    return f"{number} more node{'' if number == 1 else 's'} like {room.cluster.names[slot]}"


def remedy(room: Room, shape: Shape) -> str:
    """What could be done for pods that no node can take."""
    cluster = room.cluster
    there = np.array([known is not None for known in cluster.facts], dtype=np.bool_)
    large = there.copy()
    for resource, amount in shape.request:
        row = cluster.rows.get(resource)
        large &= (cluster.offers[row, : len(there)] >= amount) if row is not None else amount <= 0
    matching = room.matching(shape).any()
    if matching and large.any():
        return "ask for less or for other nodes, or add one that meets both"
    if matching:
        return "ask for less, or add a node that has as much"
    if large.any():
        return "change what it asks of nodes, or add one that meets it"
    return "add a node that has as much and meets what it asks of nodes"


def _unit(holder: Holder) -> Unit:
    return Unit(holder=holder, surplus=0, charge=holder.charge, placements=holder.pods)


def _with(holders: Iterable[Holder], resource: str, count: int) -> Iterator[Holder]:
    """Those that have so much."""
    return (each for each in holders if each.charge.get(resource, 0) >= count)


def _size(holder: Holder) -> int:
    return sum(count for placement in holder.pods for _, count in placement.nodes)


def _named(holders: Sequence[Holder]) -> str:
    """As "a (8 pods), b (1 pod) and 2 more gangs (6 pods)"."""
    parts = [f"{each.gang} ({_pods(_size(each))})" for each in holders[:NAMED]]
    if rest := holders[NAMED:]:
        parts.append(f"{len(rest)} more gang{'' if len(rest) == 1 else 's'} ({_pods(sum(map(_size, rest)))})")
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _pods(count: int) -> str:
    return f"{count} pod{'' if count == 1 else 's'}"
