"""What was admitted before has its room first: pods past the gate without a node, slots, gangs that have gathered.

They come before any waiting gang, in turn. What always holds: nothing here is decided anew, except that a gang which
has gathered goes through only below its ceilings, and a replacement only where quota has room for it and for the pod
that still leaves. Where there is a choice of nodes, those stay free on which others give way to somebody: else what is
held for that claimant would be gone, and the same gangs would have to give way again.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from startgate.engine import explain
from startgate.engine.draft import Drafts, Trial, count_of, less, plain, some
from startgate.engine.explain import Verdict
from startgate.engine.ground import Ground, negative
from startgate.engine.observe import amounts_of
from startgate.engine.within import anywhere, within_of
from startgate.engine.world import Batch, Claim, ClaimKind, Placement, Waiting, Within
from startgate.model.resources import Amounts, add, subtract
from startgate.model.shape import Shape

ONE_BY_ONE: Final = frozenset({ClaimKind.FOLLOW, ClaimKind.REPLACE})
"""Pods of a gang that has started: there is nothing to split, so nothing is reserved for them."""


class Admitted:
    """Places all claims of a world, in `run`."""

    def __init__(self, ground: Ground, drafts: Drafts) -> None:
        self._ground = ground
        self._drafts = drafts
        self.reserved: dict[str, Amounts] = {}
        """By queue: in the books, for pods that don't go now."""
        self.adrift: list[Batch] = []
        """Released pods without a place even on paper: they take the next room that comes up."""
        self._spared: list[Placement] = []
        """Where claimants will go for whom others give way."""

    def run(self, claims: Iterable[Claim], claimants: Iterable[Waiting]) -> None:
        """First what kube-scheduler has in hand already, then the others in turn.

        `claimants`: those for whom others were told to give way.
        """
        in_turn = sorted(claims, key=lambda each: (-each.priority, each.since, each.gang, each.kind.value))
        released: dict[tuple[Shape, Within | None], int] = {}
        for claim in in_turn:
            if claim.kind is ClaimKind.BIND:
                for batch in claim.batches:
                    alike = batch.shape, batch.within
                    released[alike] = released.get(alike, 0) + batch.count
        for (shape, within), count in released.items():
            placed = count_of(self._ground.place_some(Batch(shape, count, within)))
            if placed < count:
                self.adrift.append(Batch(shape, count - placed))
                self._ground.owe("", (Batch(shape, count - placed, within),))
        in_turn = [claim for claim in in_turn if claim.kind is not ClaimKind.BIND]
        if in_turn:
            for gang in claimants:
                self._spared += self._ground.foresee(some(gang.minimum), gang.places)
        for claim in in_turn:
            if claim.kind is ClaimKind.REPLACE:
                self._replace(claim)
            else:
                self._place(claim)
        self._spare_nothing()

    def _spare_nothing(self) -> bool:
        """Whether there was something that is free from now on."""
        spared, self._spared = self._spared, []
        self._ground.free_up(spared)
        return bool(spared)

    def _whole(self, batches: tuple[Batch, ...]) -> tuple[Placement, ...] | None:
        placements = self._ground.place(batches)
        if placements is None and self._spare_nothing():
            placements = self._ground.place(batches)
        return placements

    def _some(self, batches: tuple[Batch, ...]) -> list[Placement]:
        placed = [self._ground.place_some(batch) for batch in batches]
        if sum(map(count_of, placed)) < sum(batch.count for batch in batches) and self._spare_nothing():
            self._ground.free_up(placed)
            placed = [self._ground.place_some(batch) for batch in batches]
        return placed

    def _replace(self, claim: Claim) -> None:
        batches = some(claim.batches)
        asks = {"asks": plain(amounts_of(batches))}
        placements = self._drafts.extras(claim.queue, batches)
        if not placements and self._spare_nothing():
            placements = self._drafts.extras(claim.queue, batches)
        self._owe(claim, placements)
        if not self._drafts.add(claim.gang, claim.kind, placements, asks, within_of(batches)):
            self._drafts.stays.append(
                (claim.gang, tuple(Trial(claim.queue, (Batch(each.shape, 1, each.within),)) for each in batches[:1]))
            )

    def _place(self, claim: Claim) -> None:
        batches = some(claim.batches)
        asks, ground = amounts_of(batches), self._ground
        gone: tuple[Batch, ...] = ()
        if claim.kind is ClaimKind.GATHER:
            verdict = self._above_a_ceiling(claim, batches)
            placements = self._whole(batches) if verdict is None else None
            if placements is None:
                batches = anywhere(batches)  # none of its pods is in the domain that was chosen for it
                placements = self._whole(batches) if verdict is None else None
            if placements is None:
                if verdict is None:
                    self._owe(claim, ())
                self._drafts.stays.append((claim.gang, verdict or explain.no_room(ground.now.room, batches)))
            else:
                gone = self._drafts.add(claim.gang, claim.kind, placements, {"asks": plain(asks)}, within_of(batches))
        else:
            placed = self._some(batches)
            self._owe(claim, placed)
            if claim.kind is ClaimKind.FOLLOW:
                gone = self._drafts.add(claim.gang, claim.kind, placed, {"asks": plain(asks)}, within_of(batches))
                if not gone:
                    self._drafts.stays.append((claim.gang, explain.no_room(ground.now.room, batches)))
        self.reserved[claim.queue] = add(self.reserved.get(claim.queue, {}), subtract(asks, amounts_of(gone)))

    def _owe(self, claim: Claim, placed: Iterable[Placement]) -> None:
        """What of the claim has no place."""
        have: Counter[Shape] = Counter()
        for placement in placed:
            have[placement.shape] += count_of(placement)
        self._ground.owe(claim.gang, less(claim.batches, have))

    def _above_a_ceiling(self, claim: Claim, batches: tuple[Batch, ...]) -> Verdict | None:
        """Whether a gang that has gathered may go by quota: its pods may ask for more than the template did by which
        its turn came (a LimitRange has filled in), and its queue may be another one by now."""
        books, asks = self._ground.now.books, amounts_of(batches)
        books.take(claim.queue, negative(asks))
        refusal = books.refusal(claim.queue, asks)
        over = refusal is not None and refusal.level is not books.root  # nodes may be lost: it has its room, or not
        verdict = explain.refused(books, self._ground.now.room, claim.queue, batches) if over else None
        books.take(claim.queue, asks)
        return verdict
