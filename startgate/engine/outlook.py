"""What would let a gang start for which the cluster has no room: who has to end, or which nodes would have to come.

Proved on a copy of books and room, which costs: it is asked for few gangs of a decision, those whose turn comes first.
What always holds: what is said is enough if nothing else comes in between; it needn't be the least that would be; and
what is held for others stays held.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from startgate.engine.fit import Room, by_shape
from startgate.engine.ground import Hold, Unit, View
from startgate.engine.nodes import Bools
from startgate.engine.observe import amounts_of
from startgate.engine.within import within_of
from startgate.engine.world import NEVER, Batch, Holder
from startgate.model.objects import rfc3339
from startgate.model.shape import Shape

GANGS: Final = 4
"""So many gangs of a decision are looked into."""

HOLDERS: Final = 32
"""So many gangs that run are looked at for one that waits, the soonest to end first, then the smallest."""

PLACES: Final = 2048
"""And to find these, so many of the nodes that gangs have pods on."""

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
        self._holders = sorted(
            (each for each in holders if each.pods), key=lambda each: (each.ends, _size(each), each.since, each.gang)
        )

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
        holders = self._near(trial)
        ending = [each for each in holders if each.ends < NEVER]
        if ending and trial.fits_without(ending):
            some = trial.first_enough(ending)
            others = f" and {len(some) - 1} more" if len(some) > 1 else ""
            return f"{some[-1].gang}{others} {'have' if others else 'has'} ended, by {rfc3339(some[-1].ends)}"
        for each in [each for each in holders if trial.may_do_without(each)][:ALONE]:
            if trial.fits_without([each]):
                return f"{_named([each])} ends"
        if len(holders) < 2 or not trial.fits_without(holders):
            return ""
        some = trial.first_enough(sorted(holders, key=lambda each: (-_size(each), each.gang)))
        for each in some[:-1][:PRUNED]:
            fewer = [other for other in some if other is not each]
            if trial.fits_without(fewer):
                some = fewer
        return f"{_named(some)} end{'s' if len(some) == 1 else ''}"

    def _near(self, trial: "_Trial") -> list[Holder]:
        """Those with pods on nodes where some of the pods could go."""
        mask, slots = trial.mask(), self._view.room.cluster.slots
        found, places = [], PLACES
        for holder in self._holders:
            for name, _ in (node for placement in holder.pods for node in placement.nodes):
                places -= 1
                slot = slots.get(name)
                if slot is not None and mask[slot]:
                    found.append(holder)
                    break
            if len(found) >= HOLDERS or places <= 0:
                break
        return found


class _Trial:
    """Pods that would start, and a view in which to try it; each try leaves the view as it was."""

    def __init__(self, view: View, queue: str, batches: Sequence[Batch]) -> None:
        self._view = view
        self._queue = queue
        self._batches = batches
        self._asks = amounts_of(batches)
        self._within = within_of(batches)
        counts = by_shape(batches)
        self._alone: tuple[Shape, int] | None = next(iter(counts.items())) if len(counts) == 1 else None
        """The shape and how many, where they are of one kind."""

    def mask(self) -> Bools:
        """By slot: whether the node's filters let any of them in."""
        masks = [self._view.room.matching(batch.shape) for batch in self._batches]
        mask: Bools = np.logical_or.reduce(masks)
        return mask

    def fits(self) -> bool:
        if self._alone is None:
            return self._view.fits(self._queue, self._batches, self._asks)
        shape, count = self._alone
        if self._view.books.refusal(self._queue, self._asks) is not None:
            return False
        return self._view.room.fits(shape, count, self._within) >= count

    def fits_without(self, holders: Iterable[Holder]) -> bool:
        """Whether they fit when these have ended."""
        units = [Unit(holder=each, surplus=0, charge=each.charge, placements=each.pods) for each in holders]
        for unit in units:
            self._view.remove(unit)
        fits = self.fits()
        for unit in units:
            self._view.restore(unit)
        return fits

    def first_enough(self, holders: Sequence[Holder]) -> list[Holder]:
        """As few of these as are enough, if they end in this order; all of them are."""
        low, high = 0, len(holders)
        while high - low > 1:
            middle = (low + high) // 2
            if self.fits_without(holders[:middle]):
                high = middle
            else:
                low = middle
        return list(holders[:high])

    def may_do_without(self, holder: Holder) -> bool:
        """Whether it can be enough that this one alone ends; a cheap no where it can't be."""
        if self._alone is None or self._view.room.concern(self._alone[0]):
            return True
        shape, count = self._alone
        # One more pod on each of its nodes, and as many as what it frees there has room for, at most.
        asks = [(resource, amount) for resource, amount in shape.request if amount > 0]
        more = 0
        for placement in holder.pods:
            held = placement.shape.amounts
            for _, pods in placement.nodes:
                more += 1 + max((pods * held.get(each, 0) // amount for each, amount in asks), default=0)
        return self._view.room.fits(shape) + more >= count

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
