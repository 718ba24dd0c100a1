"""The plan in the making: who goes and who stays, before it is known what the rest of the decision leaves.

What always holds: a gang has one Go at most, to which pods that come along later are added; where pods are placed here,
their quota and room are taken from the ground.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache

import msgspec

from startgate.engine.constraints import crowd, pinnable
from startgate.engine.explain import Verdict
from startgate.engine.ground import Ground
from startgate.engine.observe import amounts_of
from startgate.engine.within import settled
from startgate.engine.world import Batch, ClaimKind, Go, Placement, Within
from startgate.model.resources import Amounts
from startgate.model.shape import Shape


class Trial(msgspec.Struct, frozen=True, cache_hash=True, dict=True):
    """A queue and the pods that would have to go together: equal trials have equal answers."""

    queue: str
    batches: tuple[Batch, ...]

    @cached_property
    def asks(self) -> Amounts:
        """What such pods ask for together."""
        return amounts_of(self.batches)


@lru_cache(maxsize=4096)
def trial_of(queue: str, batches: tuple[Batch, ...]) -> Trial:
    """One object for all that are equal, from decision to decision."""
    return Trial(queue, batches)


class Draft(msgspec.Struct, eq=False):
    """A Go, before it is known whether it is tight."""

    gang: str
    kind: ClaimKind | None
    placements: tuple[Placement, ...]
    batches: tuple[Batch, ...]
    numbers: dict[str, str]
    within: Within | None
    """With the domain in which its pods have their places."""
    follows: bool
    """Whether its pods are to go near others that are there."""

    @property
    def count(self) -> int:
        """How many pods go."""
        return sum(batch.count for batch in self.batches)


class Drafts:
    """What is decided so far."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._drafts: list[Draft] = []
        self._joining: dict[str, Draft] = {}
        self.stays: list[tuple[str, Verdict | tuple[Trial, ...]]] = []
        """With the answer, or with all that was tried and will have to be explained."""

    def add(
        self,
        gang: str,
        kind: ClaimKind | None,
        placements: Iterable[Placement],
        numbers: dict[str, str],
        within: Within | None,
    ) -> tuple[Batch, ...]:
        """Notes who goes; nothing where nobody does."""
        placed = tuple(placement for placement in placements if placement.nodes)
        batches = batches_of(placed)
        before = self._joining.get(gang) if kind is None else None
        if before is not None:
            before.placements += placed
            before.batches += batches
        elif batches:
            follows = within is not None and within.near is not None
            if within is not None:
                within = settled(self._ground.now.room.cluster, within, placed)
            draft = Draft(gang, kind, placed, batches, numbers, within, follows)
            self._drafts.append(draft)
            if kind is None:
                self._joining[gang] = draft
        return batches

    def gangs(self) -> frozenset[str]:
        """Of whom somebody goes."""
        return frozenset(draft.gang for draft in self._drafts)

    def cancel(self, gang: str) -> None:
        """It doesn't start after all; what was taken for it has been given back."""
        self._drafts.remove(self._joining.pop(gang))

    def extras(self, queue: str, batches: Iterable[Batch]) -> list[Placement]:
        """Places as many of these pods as quota and nodes have room for."""
        placements = []
        for batch in batches:
            most = self._ground.now.books.times(queue, batch.shape.amounts, batch.count)
            placement = self._ground.place_some(Batch(batch.shape, most, batch.within))
            if placement.nodes:
                self._ground.take(queue, amounts_of(batches_of((placement,))))
                placements.append(placement)
        return placements

    def numbers(self, queue: str, asks: Amounts, fits: Iterable[int]) -> dict[str, str]:
        """For the audit log: what the rule saw, in plain integers (cpu in milli-units).

        `asks`; for each level from the queue up, `level NAME` (and `cluster`, the root), in those resources in which
        it has a ceiling: what it was charged from within, its guarantee and its ceiling, as 2000/0/64000, before this
        gang; `fits`: by batch of the minimum, how many such pods the nodes could take, before this gang.
        """
        numbers = {"asks": plain(asks), "fits": ",".join([str(count) for count in fits])}
        for level in self._ground.now.books.level(queue).path():
            inner, floor, ceiling = level.inner, level.floor, level.ceiling
            charged = [
                f"{each}={inner.get(each, 0)}/{floor.get(each, 0)}/{ceiling[each]}" for each in asks if each in ceiling
            ]
            numbers[f"level {level.name}" if level.parent is not None else "cluster"] = " ".join(charged)
        return numbers

    def finish(self, rivals: Sequence[Batch], one_by_one: frozenset[ClaimKind]) -> tuple[Go, ...]:
        """All who go, with whether somebody else could take their room: to be asked when all of the plan is placed."""
        slack = _Slack(self._ground, rivals)
        return tuple(
            Go(
                gang=draft.gang,
                kind=draft.kind,
                placements=draft.placements,
                count=draft.count,
                tight=slack.is_tight(draft, one_by_one=draft.kind in one_by_one),
                numbers=_with_domain(draft),
                node_selector=_selector(draft.within),
                pinned=slack.is_pinned(draft, one_by_one=draft.kind in one_by_one),
            )
            for draft in self._drafts
        )


class _Slack:
    """Whether somebody else could take a gang's place and leave it none (design: "Reserve, where it can matter").

    Counted when the whole plan has its room: what is left for pods of this kind, less what released pods without a
    place and other people's pending pods could take of it, must be as much again as the gang.
    """

    def __init__(self, ground: Ground, rivals: Iterable[Batch]) -> None:
        self._room = ground.now.room
        self._left: dict[tuple[Shape, Within | None], int] = {}
        self._rivals: dict[tuple[tuple[str, int], ...], int] = {}
        for rival in rivals:
            request = rival.shape.request
            self._rivals[request] = self._rivals.get(request, 0) + rival.count

    def is_tight(self, draft: Draft, *, one_by_one: bool) -> bool:
        """Pods that go one by one, a gang of one pod among them, never are: there is nothing to split, each is bound or
        it stays pending. Where they should be in one domain, nothing else tells kube-scheduler in which."""
        if _crowds_out(draft):
            return False
        if draft.within is not None and draft.within.prefer and (draft.count > 1 or draft.follows):
            return True
        # Where other pods have a say, the first one's place decides where the others can go.
        concerned = any(self._room.concern(batch.shape) for batch in draft.batches)
        return not one_by_one and draft.count > 1 and (concerned or self._is_scarce(draft))

    def is_pinned(self, draft: Draft, *, one_by_one: bool) -> bool:
        """Where pods can't be reserved and yet have to go where the plan has them: under several limits, since their
        own choices can leave the last of them none, and where room is scarce, since others count on theirs.

        Of those that go one by one none is reserved: they may be what a crash has left of a gang that was pinned.
        """
        crowded = _crowds_out(draft)
        if not crowded and not (one_by_one and draft.count > 1):
            return False
        shapes = {placement.shape for placement in draft.placements}
        cluster = self._room.cluster
        slots = {cluster.slots[name] for placement in draft.placements for name, _ in placement.nodes}
        if not all(map(pinnable, shapes)) or not cluster.have_own_labels(slots):
            return False
        limits = sum(len(shape.spread) + len(shape.apart) + len(shape.together) for shape in shapes)
        return limits > 1 or (crowded and self._is_scarce(draft))

    def _is_scarce(self, draft: Draft) -> bool:
        return any(self._left_for(batch.shape, draft.within) < draft.count for batch in draft.batches)

    def _left_for(self, shape: Shape, within: Within | None) -> int:
        kind = self._room.kind(shape), within
        left = self._left.get(kind)
        if left is None:
            taken = sum(_displaced(shape, request) * count for request, count in self._rivals.items())
            left = self._left[kind] = self._room.fits(shape, within=within) - taken
        return left


def _selector(within: Within | None) -> dict[str, str]:
    """What keeps pods in their domain."""
    return {within.key: within.value} if within is not None and within.key and within.value is not None else {}


def _with_domain(draft: Draft) -> dict[str, str]:
    """What the rule saw, and the domain that it chose."""
    domain = ",".join(f"{key}={value}" for key, value in _selector(draft.within).items())
    return {**draft.numbers, "domain": domain} if domain else draft.numbers


def _crowds_out(draft: Draft) -> bool:
    """Whether its pods, reserved all at once, would keep one another away."""
    where: dict[Shape, Counter[str]] = {}
    for placement in draft.placements:
        for name, count in placement.nodes:  # a node may come more than once
            where.setdefault(placement.shape, Counter())[name] += count
    return crowd(where)


def _displaced(shape: Shape, request: tuple[tuple[str, int], ...]) -> int:
    """How many pods of this shape one pod with this request can cost the node that it lands on, at most."""
    asked = shape.amounts
    return max((-(-amount // asked[each]) for each, amount in request if asked.get(each, 0) > 0), default=0)


def some(batches: Iterable[Batch]) -> tuple[Batch, ...]:
    """Those that aren't empty."""
    return tuple([batch for batch in batches if batch.count > 0])


def less(batches: Iterable[Batch], gone: Mapping[Shape, int]) -> tuple[Batch, ...]:
    """These pods, but for the first so many of each shape."""
    left, skip = [], dict(gone)
    for batch in batches:
        skipped = min(skip.get(batch.shape, 0), batch.count)
        skip[batch.shape] = skip.get(batch.shape, 0) - skipped
        left.append(Batch(batch.shape, batch.count - skipped, batch.within))
    return some(left)


def count_of(placement: Placement) -> int:
    """How many pods it has a place for."""
    return sum(count for _, count in placement.nodes)


def batches_of(placements: Iterable[Placement]) -> tuple[Batch, ...]:
    """The pods that have a place."""
    return tuple(Batch(placement.shape, count_of(placement)) for placement in placements if placement.nodes)


def plain(amounts: Amounts) -> str:
    """As the audit log has them: resource=integer."""
    return " ".join(f"{resource}={count}" for resource, count in amounts.items())
