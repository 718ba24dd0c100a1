"""Why a gang that has quota has no nodes, with the numbers that a person can check.

What always holds: "never" is said only where no end of any pods would help; that pods have to end, only where the gang
could go once they have (`ever`). Where neither is known, it says that, and what would change it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from startgate.engine import misfit, nodomain, outlook
from startgate.engine.ever import awaits, beside_others, could_go, most_ever
from startgate.engine.fit import Room, by_shape
from startgate.engine.misfit import Sorted
from startgate.engine.within import within_of
from startgate.engine.wording import each_of, pods_of
from startgate.engine.world import Batch, Placement, Within
from startgate.model.reasons import LONGEST, Code, Reason, reason
from startgate.model.resources import PODS, Amounts, scale, shortage, show
from startgate.model.shape import Shape, narrowed

Answer: TypeAlias = tuple[Reason, Amounts]
"""A reason, and what is missing by resource where that can be said."""

SOME_DAY: Final = "enough pods end or nodes are added"

MAKE_VOLUMES: Final = "make volumes that they can use, or add nodes where there are some"

NONE_EITHER: Final = "; with every node empty none are found for all of them either"

OUT_OF_TURN: Final = (
    ", but kube-scheduler takes pods one by one, in any order, and could put some where the rest then have no place"
)
NOT_TOLD: Final = (
    "; more fit where each takes the right one of several nodes, and kube-scheduler, which takes pods one by one, "
    "can't be told which"
)


def no_room(room: Room, batches: Sequence[Batch], until: Callable[[], str]) -> Answer:
    """Why these pods, which have quota, have no nodes. `until`: when they would, if anybody can say; else ""."""
    counts = by_shape(batches)
    answer = _volumes(room, batches) or never(room, batches)
    if answer is not None:
        return answer
    lack = _apart(room, batches)
    inside = nodomain.best_of(room, batches) if len(counts) == 1 else None
    for shape, count in counts.items():
        if lack is None and (found := nodomain.sort_out(room, shape, count, inside)) is not None:
            lack = _too_few(room, Batch(shape, count), sum(counts.values()), found, inside)
    return _waiting(room, batches, lack or _not_together(room, batches), until)


def never(room: Room, batches: Sequence[Batch]) -> Answer | None:
    """What could not go with every node empty."""
    apart = nodomain.never_in_one(room, batches)
    return (apart, {}) if apart else _never_fits(room, batches)


def _volumes(room: Room, batches: Sequence[Batch]) -> Answer | None:
    """A volume or a claim that keeps too many of these pods from every node; or volumes that there aren't."""
    within, counts = within_of(batches), by_shape(batches)
    for shape, count in counts.items():
        if not (shape.claims or shape.ephemeral):
            continue
        allowed = room.around.volumes(shape)
        pods = pods_of(count, sum(counts.values()))
        ever = room.emptied().around.volumes(shape)
        if allowed.obstacle and 0 < ever.most < count:
            facts = {"each": each_of(shape), "nodes": ever.obstacle, "remedy": "give each pod a claim of its own"}
            return reason(Code.NEVER_FITS, fit=ever.most, pods=pods, **facts), {}
        if allowed.obstacle and allowed.most == 0:
            return reason(Code.VOLUMES, pods=pods, why=allowed.obstacle), {}
        found = misfit.sort_out(room, shape, count)
        without = replace(shape, claims=(), ephemeral=())
        if found is not None and found.lacks_volumes and room.fits(without, count, within) >= count:
            why = _Nodes(
                found, f"{found.fit} would get theirs now; ", "; it starts when there are volumes for all of them"
            )
            return _reason(Code.VOLUMES, pods=pods, why=why), {}
    return None


def _never_fits(room: Room, batches: Sequence[Batch]) -> Answer | None:
    """A shape of which too few would fit on empty nodes; sure for each shape alone."""
    within, counts = within_of(batches), by_shape(batches)
    for shape, count in counts.items():
        best = anywhere = most_ever(room, shape, count, alone=len(counts) == 1)
        if within is not None and within.key:
            one = most_ever(room, shape, count, alone=len(counts) == 1, within=within)
            best = one if one.pods and one.pods >= anywhere.pods else anywhere
        if best.pods >= count:
            continue
        found = misfit.sort_out(room.emptied(), best.shape, count)
        if found is None:
            continue
        if within is not None and best.value is not None:
            found = found.seen_from(within.key, best.value)
        facts: dict[str, Fact] = {"each": each_of(shape), "nodes": _Nodes(found)}
        if best.pods == 0:
            remedy = MAKE_VOLUMES if found.lacks_volumes else outlook.remedy(room, shape)
            return _reason(Code.NO_NODE_MATCHES, remedy=remedy, **facts), {}
        plain = best.shape.plain is best.shape and best.value is None
        there = room.offered(room.matching(best.shape), shape.amounts)
        missing = shortage(scale(shape.amounts, count), there)
        if not missing and plain:
            missing = scale(shape.amounts, count - best.pods)
        more = outlook.more_nodes(room, shape, count - best.pods) if plain and len(counts) == 1 else ""
        remedy = MAKE_VOLUMES if found.lacks_volumes else f"ask for less, or add {more or 'nodes'}"
        pods = pods_of(count, sum(counts.values()))
        return _reason(Code.NEVER_FITS, fit=best.pods, pods=pods, remedy=remedy, **facts), missing
    return None


class _Nodes(NamedTuple):
    """The nodes by what rules them out, as part of a fact: as much of it as the sentence has room for."""

    found: Sorted
    before: str = ""
    after: str = ""

    def within(self, length: int) -> str:
        inside = self.found.sentence(length - len(self.before) - len(self.after))
        return f"{self.before}{inside}{self.after}"


Fact: TypeAlias = str | int | _Nodes


def _reason(code: Code, **facts: Fact) -> Reason:
    """All facts but for the nodes say themselves how long they are."""
    known = {name: "" if isinstance(fact, _Nodes) else fact for name, fact in facts.items()}
    left = LONGEST - len(reason(code, **known).message)
    said = {name: fact.within(left) if isinstance(fact, _Nodes) else fact for name, fact in facts.items()}
    return reason(code, **said)


class _Lack(Struct, frozen=True, kw_only=True):
    """What a gang lacks that could go once others have ended."""

    code: Code
    facts: dict[str, Fact]
    """Of the code's sentence, but for when it starts."""
    until: str
    """When it does, where all of it could go with every node empty."""
    missing: Amounts = {}


def _waiting(room: Room, batches: Sequence[Batch], lack: _Lack, until: Callable[[], str]) -> Answer:
    """That pods have to end is said only where that would help."""
    counts, within = by_shape(batches), within_of(batches)
    affinity = any(awaits(room, shape) for shape in counts)
    some_day = "pods that its affinity asks for run" if affinity else until()
    if some_day or could_go(room, batches):
        if not some_day and any(beside_others(room, shape) for shape in counts):
            some_day = "there is room beside the pods that its affinity asks for"
        return _reason(lack.code, until=some_day or lack.until, **lack.facts), lack.missing
    if within is not None and within.value is not None and lack.code is Code.NO_DOMAIN:
        some_day = f"nodes with {within.key}={within.value} are added"
        return _reason(lack.code, until=some_day, **lack.facts), lack.missing
    nodes = lack.facts.get("why") or lack.facts["nodes"]
    if isinstance(nodes, _Nodes):
        nodes = nodes._replace(before="; " + nodes.before.removeprefix("; "), after=NONE_EITHER)
    facts = {each: lack.facts[each] for each in ("fit", "pods", "each")} | {
        "where": f"{lack.facts['where']} " if lack.code is Code.NO_DOMAIN else "",
        "why": nodes if isinstance(nodes, _Nodes) else f"{nodes}{NONE_EITHER}",
        "until": f"nodes are added, or {_less(counts)}",
    }
    return _reason(Code.NOT_SURE, **facts), lack.missing


def _less(counts: Iterable[Shape]) -> str:
    """What else would help pods for which no places are found on empty nodes."""
    if any(shape.claims or shape.ephemeral for shape in counts):
        return "its claims have their volumes"
    if any(shape.constrained for shape in counts):
        return "its pods ask less of where others are"
    return "it asks for less"


def _apart(room: Room, batches: Sequence[Batch]) -> _Lack | None:
    """No domain has room for all of them."""
    found, counts = nodomain.too_few_in_one(room, batches), by_shape(batches)
    if found is None:
        return None
    whole = sum(counts.values())
    return _Lack(
        code=Code.NO_DOMAIN,
        facts={
            "where": found.where,
            "fit": found.fit,
            "pods": pods_of(whole, 0),
            "each": _each(counts),
            "nodes": _Nodes(found.nodes, "; ") if found.nodes is not None else "",
        },
        until="enough pods end in one place or nodes are added to it",
        missing=scale(next(iter(counts)).amounts, whole - found.fit) if len(counts) == 1 else {},
    )


def _too_few(room: Room, batch: Batch, whole: int, found: Sorted, inside: tuple[str, str] | None) -> _Lack:
    """`whole`: how many pods the gang has of all kinds. `inside`: the domain to which they are kept, if any."""
    shape, want = batch.shape, batch.count
    there = shape if inside is None else narrowed(shape, dict([inside]))
    known = ("free", there.plain)
    if known not in room.memo:
        room.memo[known] = room.free(room.matching(there), shape.amounts)
    free: Amounts = room.memo[known]
    asks = scale(shape.amounts, want)
    lacks = shortage(asks, free)
    facts: dict[str, Fact] = {
        "fit": found.fit,
        "pods": pods_of(want, whole),
        "each": each_of(shape),
        "nodes": _Nodes(found),
    }
    if not lacks and room.fits(there.plain, want) < want:
        facts |= {"free": _free(free, shape, want)}
        missing = scale(shape.amounts, want - found.fit)
        return _Lack(code=Code.FRAGMENTED, facts=facts, until="enough is free in one place", missing=missing)
    some_day = "enough pods end, or nodes or volumes are added" if found.lacks_volumes else SOME_DAY
    if misfit.without_volumes(room, there):
        some_day = "enough pods end and there are volumes for its claims"
    return _Lack(code=Code.NO_ROOM, facts=facts, until=some_day, missing=lacks)


def _not_together(room: Room, batches: Sequence[Batch]) -> _Lack:
    """Each kind of its pods fits by itself, all of them together don't; or those that fit can't be kept to their nodes
    (`fit.Room._take`)."""
    counts, inside = by_shape(batches), nodomain.best_of(room, batches)
    there = None if inside is None else Within(key=inside[0], value=inside[1])
    placed: list[Placement] = []
    left: Sorted | None = None
    for shape, count in counts.items():
        some = room.place_some(shape, count, there)
        if left is None and _count(some) < count:
            room.free_up((some,))
            left = nodomain.sort_out(room, shape, count, inside)
            some = room.place_some(shape, count, there)
        placed.append(some)
    fit, whole = sum(_count(each) for each in placed), sum(counts.values())
    room.free_up(placed)
    facts: dict[str, Fact] = {"fit": fit, "pods": pods_of(whole, 0), "each": _each(counts)}
    if left is not None:
        facts |= {"nodes": _Nodes(left, "with the others placed, ")}
        return _Lack(code=Code.NO_ROOM, facts=facts, until=SOME_DAY)
    facts |= {"where": "", "why": OUT_OF_TURN if fit == whole else NOT_TOLD}
    return _Lack(code=Code.NOT_SURE, facts=facts, until=SOME_DAY)


def _count(placement: Placement) -> int:
    return sum(pods for _, pods in placement.nodes)


def _each(counts: Mapping[Shape, int]) -> str:
    if len(counts) == 1:
        return each_of(next(iter(counts)))
    return "; ".join(f"{count} of {each_of(shape)}" for shape, count in counts.items())


def _free(free: Amounts, shape: Shape, want: int) -> str:
    """What is free of what the pods ask for; places for pods are named only where there are too few."""
    return show({each: free[each] for each in shape.amounts if each != PODS or free[PODS] < want})
