"""Why a gang stays: the books and the room, put into a Reason with the numbers that a person can check.

It asks the very objects that decided, after they decided, so it can't tell another story than they. What always holds:
each sentence is true of the plan as a whole (after all that goes has taken its share), counts of nodes add up to all
nodes, and amounts are written as Kubernetes writes them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final

import msgspec

from startgate.engine import misfit, nodomain, outlook
from startgate.engine.fit import Room, by_shape
from startgate.engine.misfit import Sorted
from startgate.engine.observe import amounts_of
from startgate.engine.quota import Books, Refusal
from startgate.engine.tree import Level
from startgate.engine.world import Batch, Placement
from startgate.model.quantity import format_amount
from startgate.model.reasons import Code, Reason, reason
from startgate.model.resources import PODS, Amounts, scale, shortage, show
from startgate.model.shape import Shape

GROUPS: Final = 6
"""So many queues or gangs are named in a sentence; the rest are counted."""


HOPELESS: Final = frozenset({Code.NEVER_WITHIN_QUOTA, Code.NO_NODE_MATCHES, Code.NEVER_FITS, Code.NEVER_IN_DOMAIN})
"""Nothing that ends will change these: somebody has to change something."""


class Verdict(msgspec.Struct, frozen=True):
    """A reason, and what is missing by resource where that can be said."""

    reason: Reason
    shortage: Amounts = {}

    @property
    def hopeless(self) -> bool:
        return self.reason.code in HOPELESS


def no_such_queue(queue: str, queues: Iterable[str]) -> Verdict:
    """There is no queue of this name; the nearest that there is, if any is near."""
    near = get_close_matches(queue, sorted(queues), n=1)
    return Verdict(reason(Code.NO_SUCH_QUEUE, queue=queue, hint=f" (is it {near[0]}?)" if near else ""))


def refused(books: Books, room: Room, queue: str, batches: Sequence[Batch], until: Callable[[], str] = str) -> Verdict:
    """Why these pods, which were refused, can't go: quota first, then nodes. `until`: as in `no_room`."""
    asks = amounts_of(batches)
    never = books.refusal(queue, asks, idle=True)
    if never is not None:
        return _never_within_quota(never, asks)
    now = books.refusal(queue, asks)
    if now is None:
        return no_room(room, batches, until)
    if now.level is not books.root:
        return _capability(books, queue, now, asks)
    # What could not go with every node empty doesn't wait for anybody to end.
    return _never(room, batches) or _cluster(books, queue, now, asks, until)


def held(asks: Amounts, gang: str, why: str) -> Verdict:
    """It would fit but for what is kept for this gang."""
    return Verdict(reason(Code.OTHERS_FIRST, asks=show(asks), gang=gang, why=why))


def making_room(victims: Iterable[str], pods: int) -> Verdict:
    """Its turn has come, and others are on their way out for it."""
    return Verdict(
        reason(Code.MAKING_ROOM, victims=_list(sorted(victims)), pods=_pods(pods, 0) if pods else "the slots")
    )


def no_room(room: Room, batches: Sequence[Batch], until: Callable[[], str] = str) -> Verdict:
    """Why these pods, which have quota, have no nodes. `until`: when they would, if anybody can say; else ""."""
    counts = by_shape(batches)
    verdict = _volumes(room, counts) or _never(room, batches)
    if verdict is not None:
        return verdict
    if scattered := nodomain.too_few_in_one(room, batches, until):
        return Verdict(*scattered)
    for shape, count in counts.items():
        if (found := misfit.sort_out(room, shape, count)) is not None:
            return _too_few(room, Batch(shape, count), sum(counts.values()), found, until())
    return _not_together(room, counts, until())


def _never_within_quota(never: Refusal, asks: Amounts) -> Verdict:
    part = {resource: asks[resource] for resource in never.left}
    return Verdict(
        reason(Code.NEVER_WITHIN_QUOTA, asks=show(part), queue=never.level.name, ceiling=show(never.left)),
        shortage(part, never.left),
    )


def _capability(books: Books, queue: str, now: Refusal, asks: Amounts) -> Verdict:
    level, left = now.level, now.left
    part = {resource: asks[resource] for resource in left}
    facts = {
        "asks": show(part),
        "left": " and ".join(
            f"{format_amount(resource, left[resource])} of {_named(resource, level.ceiling[resource])}"
            for resource in left
        ),
    }
    if level.name == queue:
        made = reason(Code.QUEUE_CAPABILITY, queue=queue, **facts)
    else:
        kept = _keepers(books, level, queue, left)
        made = reason(
            Code.PARENT_CAPABILITY,
            parent=level.name,
            queue=queue,
            kept=f" ({kept})" if kept else "",
            **facts,
        )
    return Verdict(made, shortage(part, left))


def _cluster(books: Books, queue: str, now: Refusal, asks: Amounts, until: Callable[[], str]) -> Verdict:
    """The root is in the way: the guarantees of others where usage alone would let it pass, else usage."""
    used = books.use(books.root)
    total = books.root.ceiling
    in_use = [each for each in now.left if used.get(each, 0) + asks[each] > total.get(each, 0)]
    named = in_use or list(now.left)
    part = {each: asks[each] for each in named}
    alone = all(asks[each] <= books.left(queue, each, idle=True) for each in named)
    facts = {"asks": show(part), "used": _bare(used, named), "total": _bare(total, named)}
    if in_use:
        some_day = "enough of them end or nodes are added"
        made = reason(Code.CLUSTER_IN_USE, until=until() or some_day if alone else "nodes are added", **facts)
    else:
        some_day = "enough gangs end or nodes are added" if alone else "nodes are added or a guarantee is lowered"
        made = reason(
            Code.GUARANTEE_KEPT,
            kept=_bare(books.kept(queue, books.root), named),
            queues=_list(books.keepers(queue, books.root, named)),
            until=some_day,
            **facts,
        )
    return Verdict(made, shortage(part, now.left))


def _keepers(books: Books, level: Level, queue: str, resources: Iterable[str]) -> str:
    """What is kept below this level for the guarantees of other queues, for a sentence; or nothing."""
    kept = books.kept(queue, level)
    part = {resource: kept[resource] for resource in resources if kept.get(resource, 0)}
    if not part:
        return ""
    return f"{show(part)} kept for the guarantee of {_list(books.keepers(queue, level, part))}"


def _never(room: Room, batches: Sequence[Batch]) -> Verdict | None:
    """What could not go with every node empty."""
    found = _never_fits(room, by_shape(batches))
    if found is None and (apart := nodomain.never_in_one(room, batches)):
        return Verdict(apart)
    return found


def _volumes(room: Room, counts: Mapping[Shape, int]) -> Verdict | None:
    """A volume or a claim that keeps too many of these pods from every node."""
    for shape, count in counts.items():
        if not (shape.claims or shape.ephemeral):
            continue
        allowed = room.around.volumes(shape)
        if not allowed.obstacle:
            continue
        pods = _pods(count, sum(counts.values()))
        ever = room.emptied().around.volumes(shape)
        if 0 < ever.most < count:
            facts = {"each": _each(shape), "nodes": ever.obstacle, "remedy": "give each pod a claim of its own"}
            return Verdict(reason(Code.NEVER_FITS, fit=ever.most, pods=pods, **facts))
        if allowed.most == 0:
            return Verdict(reason(Code.VOLUMES, pods=pods, why=allowed.obstacle))
    return None


def _never_fits(room: Room, counts: Mapping[Shape, int]) -> Verdict | None:
    """A shape of which too few would fit on empty nodes; exact for each shape alone."""
    for shape, count in counts.items():
        fit, lasts = misfit.fits_at_most(room, shape, count, alone=len(counts) == 1)
        if fit >= count:
            continue
        found = misfit.sort_out(room.emptied(), lasts, count)
        if found is None:
            continue
        facts = {"each": _each(shape), "nodes": found.sentence}
        if fit == 0:
            return Verdict(reason(Code.NO_NODE_MATCHES, remedy=outlook.remedy(room, shape), **facts))
        pods = _pods(count, sum(counts.values()))
        there = room.offered(room.matching(shape), shape.amounts)
        missing = shortage(scale(shape.amounts, count), there)
        if not missing and lasts is shape.plain:
            missing = scale(shape.amounts, count - fit)
        more = outlook.more_nodes(room, shape, count - fit) if lasts is shape.plain and len(counts) == 1 else ""
        remedy = f"ask for less, or add {more or 'nodes'}"
        return Verdict(reason(Code.NEVER_FITS, fit=fit, pods=pods, remedy=remedy, **facts), missing)
    return None


def _too_few(room: Room, batch: Batch, whole: int, found: Sorted, until: str) -> Verdict:
    """`whole`: how many pods the gang has of all kinds."""
    shape, want = batch.shape, batch.count
    if misfit.awaits(room, shape):
        until = "pods that its affinity asks for run"
    known = ("free", shape.plain)
    if known not in room.memo:
        room.memo[known] = room.free(room.matching(shape), shape.amounts)
    free: Amounts = room.memo[known]
    asks = scale(shape.amounts, want)
    lacks = shortage(asks, free)
    facts: dict[str, str | int] = {
        "fit": found.fit,
        "pods": _pods(want, whole),
        "each": _each(shape),
        "nodes": found.sentence,
    }
    if not lacks and room.fits(shape.plain, want) < want:
        facts |= {"free": _free(free, shape, want), "until": until or "enough is free in one place"}
        return Verdict(reason(Code.FRAGMENTED, **facts), scale(shape.amounts, want - found.fit))
    return Verdict(reason(Code.NO_ROOM, until=until or "enough pods end or nodes are added", **facts), lacks)


def _not_together(room: Room, counts: Mapping[Shape, int], until: str) -> Verdict:
    """Each kind of its pods fits by itself, all of them together don't; or those that fit can't be kept to their nodes
    (`fit.Room._take`)."""
    placed: list[Placement] = []
    left: Sorted | None = None
    for shape, count in counts.items():
        some = room.place_some(shape, count)
        if left is None and _count(some) < count:
            room.free_up((some,))
            left = misfit.sort_out(room, shape, count)
            some = room.place_some(shape, count)
        placed.append(some)
    fit = sum(_count(each) for each in placed)
    room.free_up(placed)
    if left is not None:
        nodes = f"with the others placed, {left.sentence}"
    elif len(counts) > 1:
        nodes = "its own pods are in one another's way"
    else:
        nodes = "more could not be kept to the nodes that their topology spread leaves them"
    each = "; ".join(
        f"{count} of {_each(shape)}" if len(counts) > 1 else _each(shape) for shape, count in counts.items()
    )
    facts: dict[str, str | int] = {"fit": fit, "pods": _pods(sum(counts.values()), 0), "each": each, "nodes": nodes}
    return Verdict(reason(Code.NO_ROOM, until=until or "enough pods end or nodes are added", **facts))


def _count(placement: Placement) -> int:
    return sum(pods for _, pods in placement.nodes)


def _pods(count: int, whole: int) -> str:
    """So many pods, for a sentence; said as a part of a gang that has others too."""
    plain = f"{count} pod{'' if count == 1 else 's'}"
    return plain if whole in (0, count) else f"its {plain} of one kind ({whole} in all)"


def _each(shape: Shape) -> str:
    """What one pod asks for; that it is one pod needs no words."""
    return show({resource: amount for resource, amount in shape.request if resource != PODS})


def _free(free: Amounts, shape: Shape, want: int) -> str:
    """What is free of what the pods ask for; places for pods are named only where there are too few."""
    return show({each: free[each] for each in shape.amounts if each != PODS or free[PODS] < want})


def _named(resource: str, amount: int) -> str:
    return show({resource: amount})


def _bare(amounts: Amounts, resources: Sequence[str]) -> str:
    """Amounts of these resources, without the name where there is only one and the sentence has it."""
    if len(resources) == 1:
        return format_amount(resources[0], amounts.get(resources[0], 0))
    return show({resource: amounts.get(resource, 0) for resource in resources})


def _list(names: Sequence[str]) -> str:
    if len(names) <= GROUPS:
        return ", ".join(names)
    return f"{', '.join(names[:GROUPS])} and {len(names) - GROUPS} more"
