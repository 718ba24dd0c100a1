"""One decision: who may go now, who stays and why. `decide(world, now) -> Plan`, pure and level-based.

First what was admitted before takes its room, then those who wait have their turn: by priority, then age, then
name. What always holds:

* The same world gives the same plan, in whatever order its parts were put together.
* A gang's minimum goes whole or not at all, and only within quota and room that nothing before it in the plan has.
* Each waiting gang that asks for pods is answered, by a Go or by a Stay.
* Within a plan quota and room only shrink: what has been refused once is not tried again, and the reasons are
  worked out when all is decided, so that their numbers are those that hold after the plan.
"""

from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from startgate.engine import explain
from startgate.engine.explain import Verdict, asks_of
from startgate.engine.fit import Room
from startgate.engine.quota import Books
from startgate.engine.world import (
    Batch,
    Claim,
    ClaimKind,
    Go,
    Placement,
    Plan,
    QueueView,
    Stay,
    Waiting,
    World,
)
from startgate.model.pods import Shape
from startgate.model.reasons import Code, reason
from startgate.model.resources import Amounts, add, subtract


def decide(world: World, now: float) -> Plan:
    """The plan for this world at this time (epoch seconds; nothing on this floor reads it yet)."""
    decision = _Decision(world)
    decision.charge()
    decision.place_claims()
    decision.admit()
    return decision.plan()


ONE_BY_ONE: Final = frozenset({ClaimKind.FOLLOW, ClaimKind.REPLACE})
"""Pods of a gang that has started: there is nothing to split, so nothing is reserved for them."""

UNPAID: Final = frozenset({ClaimKind.BIND, ClaimKind.REPLACE})
"""Claims that nothing is held for: their pods are charged already, or somebody who leaves still pays for the slot."""

Trial: TypeAlias = tuple[str, tuple[Batch, ...]]
"""A queue and the pods that would have to go together: equal trials have equal answers."""


class _Draft(msgspec.Struct, frozen=True):
    """A Go, before it is known what the rest of the plan leaves."""

    gang: str
    kind: ClaimKind | None
    placements: tuple[Placement, ...]
    batches: tuple[Batch, ...]
    numbers: dict[str, str]


class _Decision:
    """Books and room, both used up as the decision goes on."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.books = Books(world.queues, world.cluster.total())
        self.room = Room(world.cluster)
        self.drafts: list[_Draft] = []
        self.stays: list[tuple[str, Verdict | tuple[Trial, ...]]] = []
        """With the answer, or with all that was tried."""
        self.refused: set[Trial] = set()
        self.verdicts: dict[Trial, Verdict] = {}
        self.reserved: dict[str, Amounts] = {}
        """By queue: in the books, for pods that don't go now."""
        self.adrift: list[Batch] = []
        """Released pods without a place even on paper: they take the next room that comes up."""
        self.stopped_by: dict[str, str] = {}

    def charge(self) -> None:
        """Everything that was admitted before is in the books, whatever the limits say by now."""
        for queue, amounts in self.world.used.items():
            self.books.take(queue, amounts)
        for claim in self.world.claims:
            if claim.kind not in UNPAID:
                self.books.take(claim.queue, asks_of(claim.batches))

    def place_claims(self) -> None:
        """Room for what was admitted: first what kube-scheduler has in hand already, then the others in turn."""
        claims = sorted(self.world.claims, key=_turn)
        released: dict[Shape, int] = {}
        for claim in claims:
            if claim.kind is ClaimKind.BIND:
                for batch in claim.batches:
                    released[batch.shape] = released.get(batch.shape, 0) + batch.count
        for shape, count in released.items():
            placed = _count(self.room.place_some(shape, count))
            if placed < count:
                self.adrift.append(Batch(shape, count - placed))
        for claim in claims:
            if claim.kind is not ClaimKind.BIND:
                self._place(claim)

    def _place(self, claim: Claim) -> None:
        batches = _some(claim.batches)
        gone: tuple[Batch, ...] = ()
        if claim.kind is ClaimKind.REPLACE:
            asks = {"asks": _plain(asks_of(batches))}
            if not self._draft(claim.gang, claim.kind, self._extras(claim.queue, batches), asks):
                self.stays.append((claim.gang, tuple((claim.queue, (Batch(each.shape, 1),)) for each in batches[:1])))
            return
        if claim.kind is ClaimKind.GATHER:
            verdict = self._above_a_ceiling(claim, batches)
            placements = self.room.place(batches) if verdict is None else None
            if placements is None:
                self.stays.append((claim.gang, verdict or explain.no_room(self.room, batches)))
            else:
                gone = self._draft(claim.gang, claim.kind, placements, {"asks": _plain(asks_of(batches))})
        else:
            some = [self.room.place_some(batch.shape, batch.count) for batch in batches]
            if claim.kind is ClaimKind.FOLLOW:
                gone = self._draft(claim.gang, claim.kind, some, {"asks": _plain(asks_of(batches))})
                if not gone:
                    self.stays.append((claim.gang, explain.no_room(self.room, batches)))
        held = subtract(asks_of(batches), asks_of(gone))
        self.reserved[claim.queue] = add(self.reserved.get(claim.queue, {}), held)

    def _above_a_ceiling(self, claim: Claim, batches: tuple[Batch, ...]) -> Verdict | None:
        """Whether a gang that has gathered may go by quota: its pods may ask for more than the template did by which
        its turn came (a LimitRange has filled in), and its queue may be another one by now."""
        asks = asks_of(batches)
        self.books.take(claim.queue, {resource: -count for resource, count in asks.items()})
        refusal = self.books.refusal(claim.queue, asks)
        over = (
            refusal is not None and refusal.level is not self.books.root
        )  # nodes may be lost: it has its room, or not
        verdict = explain.refused(self.books, self.room, claim.queue, batches) if over else None
        self.books.take(claim.queue, asks)
        return verdict

    def admit(self) -> None:
        """Those who wait, in turn."""
        for gang in sorted(self.world.waiting, key=_turn):
            minimum, extra = _some(gang.minimum), _some(gang.extra)
            if not minimum and not extra:
                continue
            verdict = self._barred(gang)
            if verdict is not None:
                self.stays.append((gang.gang, verdict))
                continue
            if minimum:
                if not self._start(gang, minimum, extra):
                    self.stays.append((gang.gang, ((gang.queue, minimum),)))
            elif not self._join(gang, extra):
                kinds = dict.fromkeys(batch.shape for batch in extra)
                self.stays.append((gang.gang, tuple((gang.queue, (Batch(shape, 1),)) for shape in kinds)))

    def _barred(self, gang: Waiting) -> Verdict | None:
        """What keeps a gang from being tried at all."""
        if gang.obstacle is not None:
            return Verdict(gang.obstacle)
        if gang.queue not in self.world.queues:
            return explain.no_such_queue(gang.queue, self.world.queues)
        stopped = self.books.stopped_by(gang.queue)
        if stopped is not None:
            return Verdict(reason(Code.QUEUE_STOPPED, queue=stopped))
        return None

    def _start(self, gang: Waiting, minimum: tuple[Batch, ...], extra: tuple[Batch, ...]) -> bool:
        """Lets the minimum go, whole, and as much more as fits; False, with nothing changed, where it doesn't fit."""
        queue = gang.queue
        trial = (queue, minimum)
        if trial in self.refused:
            return False
        asks = asks_of(minimum)
        numbers: dict[str, str] | None = None
        placements: tuple[Placement, ...] | None = None
        if self.books.refusal(queue, asks) is None:
            numbers = self._numbers(queue, minimum, asks)
            placements = self.room.place(minimum)
        if numbers is None or placements is None:
            self.refused.add(trial)
            return False
        self.books.take(queue, asks)
        self._draft(gang.gang, None, (*placements, *self._extras(queue, extra)), numbers)
        return True

    def _join(self, gang: Waiting, extra: tuple[Batch, ...]) -> bool:
        """Lets as many pods join as fit; False where none does."""
        if not any(
            self.room.fits(batch.shape) and self.books.times(gang.queue, batch.shape.amounts, 1) for batch in extra
        ):
            return False
        numbers = self._numbers(gang.queue, extra, asks_of(extra))
        return bool(self._draft(gang.gang, None, self._extras(gang.queue, extra), numbers))

    def _extras(self, queue: str, extra: tuple[Batch, ...]) -> list[Placement]:
        placements = []
        for batch in extra:
            most = self.books.times(queue, batch.shape.amounts, batch.count)
            placement = self.room.place_some(batch.shape, most)
            if placement.nodes:
                self.books.take(queue, asks_of(_batches((placement,))))
                placements.append(placement)
        return placements

    def _draft(
        self, gang: str, kind: ClaimKind | None, placements: Iterable[Placement], numbers: dict[str, str]
    ) -> tuple[Batch, ...]:
        """Notes who goes; nothing where nobody does."""
        placed = tuple(placement for placement in placements if placement.nodes)
        batches = _batches(placed)
        if batches:
            self.drafts.append(_Draft(gang, kind, placed, batches, numbers))
        return batches

    def _numbers(self, queue: str, batches: tuple[Batch, ...], asks: Amounts) -> dict[str, str]:
        """For the audit log: what the rule saw, in plain integers (cpu in milli-units).

        `asks`; for each level from the queue up, `level NAME` (and `cluster`, the root), in those resources in which
        it has a ceiling: what it was charged from within, its guarantee and its ceiling, as 2000/0/64000, before this
        gang; `fits`: by batch of the minimum, how many such pods the nodes could take, before this gang.
        """
        numbers = {"asks": _plain(asks), "fits": ",".join([str(self.room.fits(batch.shape)) for batch in batches])}
        for level in self.books.level(queue).path():
            inner, floor, ceiling = level.inner, level.floor, level.ceiling
            numbers[f"level {level.name}" if level.parent is not None else "cluster"] = " ".join(
                [
                    f"{each}={inner.get(each, 0)}/{floor.get(each, 0)}/{ceiling[each]}"
                    for each in asks
                    if each in ceiling
                ]
            )
        return numbers

    def plan(self) -> Plan:
        """What is decided, with what only the whole of it can tell: who is tight, and why the others stay."""
        slack = _Slack(self.room, (*self.adrift, *_some(self.world.pending)))
        go = tuple(
            Go(
                gang=draft.gang,
                kind=draft.kind,
                placements=draft.placements,
                count=sum(batch.count for batch in draft.batches),
                tight=draft.kind not in ONE_BY_ONE and slack.is_tight(draft.batches),
                numbers=draft.numbers,
            )
            for draft in self.drafts
        )
        stay = []
        for gang, why in self.stays:
            verdict = why if isinstance(why, Verdict) else self._verdict(why)
            stay.append(Stay(gang=gang, reason=verdict.reason, shortage=verdict.shortage))
        return Plan(go=go, stay=tuple(stay), queues=self._views())

    def _verdict(self, tried: tuple[Trial, ...]) -> Verdict:
        """Why none of these could go: the first that may go some day, before those that never can."""
        for trial in tried:
            if trial not in self.verdicts:
                self.verdicts[trial] = explain.refused(self.books, self.room, *trial)
        found = [self.verdicts[trial] for trial in tried]
        return next((each for each in found if not each.hopeless), found[0])

    def _views(self) -> dict[str, QueueView]:
        views = {}
        for name in sorted(self.world.queues):
            level = self.books.level(name)
            reserved = add(*(self.reserved.get(each.name, {}) for each in level.below()))
            views[name] = QueueView(
                allocated=_positive(subtract(self.books.use(level), reserved)),
                reserved=_positive(reserved),
                headroom=self.books.headroom(name),
                problems=tuple(self.books.problems[name]),
            )
        return views


class _Slack:
    """Whether somebody else could take a gang's place and leave it none (design: "Reserve, where it can matter").

    Counted when the whole plan has its room: what is left for pods of this kind, less what released pods without a
    place and other people's pending pods could take of it, must be as much again as the gang.
    """

    def __init__(self, room: Room, rivals: Iterable[Batch]) -> None:
        self._room = room
        self._left: dict[Shape, int] = {}
        self._rivals: dict[tuple[tuple[str, int], ...], int] = {}
        for rival in rivals:
            request = rival.shape.request
            self._rivals[request] = self._rivals.get(request, 0) + rival.count

    def is_tight(self, batches: tuple[Batch, ...]) -> bool:
        """A gang of one pod never is: there is nothing to split, it is bound or it stays pending."""
        count = sum(batch.count for batch in batches)
        return count > 1 and any(self._left_for(batch.shape) < count for batch in batches)

    def _left_for(self, shape: Shape) -> int:
        left = self._left.get(shape)
        if left is None:
            taken = sum(_displaced(shape, request) * count for request, count in self._rivals.items())
            left = self._left[shape] = self._room.fits(shape) - taken
        return left


def _displaced(shape: Shape, request: tuple[tuple[str, int], ...]) -> int:
    """How many pods of this shape one pod with this request can cost the node that it lands on, at most."""
    asked = shape.amounts
    return max((-(-amount // asked[each]) for each, amount in request if asked.get(each, 0) > 0), default=0)


def _turn(each: Claim | Waiting) -> tuple[int, float, str]:
    """Order within one decision: priority, then age, then name."""
    return -each.priority, each.since, each.gang


def _some(batches: Iterable[Batch]) -> tuple[Batch, ...]:
    return tuple(batch for batch in batches if batch.count > 0)


def _count(placement: Placement) -> int:
    return sum(count for _, count in placement.nodes)


def _batches(placements: Iterable[Placement]) -> tuple[Batch, ...]:
    return tuple(Batch(placement.shape, _count(placement)) for placement in placements if placement.nodes)


def _plain(amounts: Amounts) -> str:
    return " ".join(f"{resource}={count}" for resource, count in amounts.items())


def _positive(amounts: Amounts) -> dict[str, int]:
    return {resource: amounts[resource] for resource in sorted(amounts) if amounts[resource] > 0}
