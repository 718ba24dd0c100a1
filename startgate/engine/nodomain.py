"""Why a gang that has to be in one topology domain isn't let go, where that is what keeps it (world.Within).

What always holds: it is said only where the gang would have room, or more room, if its pods could be anywhere; the
numbers are those of the domain with room for the most of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from startgate.engine import misfit
from startgate.engine.ever import most_ever
from startgate.engine.fit import Room, by_shape
from startgate.engine.misfit import Sorted
from startgate.engine.within import Best, within_of
from startgate.engine.wording import each_of, pods_of
from startgate.engine.world import Batch
from startgate.model.reasons import Code, Reason, reason
from startgate.model.shape import Shape, narrowed


class Apart(NamedTuple):
    """The domain with room for the most of a gang's pods, which isn't enough."""

    fit: int
    where: str
    """For a sentence that goes on with how many fit there."""
    nodes: Sorted | None
    """What keeps the rest out, where that is known."""


def never_in_one(room: Room, batches: Sequence[Batch]) -> Reason | None:
    """Of one of its kinds of pods more are asked for than any domain would take if it were empty, though others would
    have places elsewhere."""
    within, counts = within_of(batches), by_shape(batches)
    if within is None or not within.key or within.value is not None:
        return None
    for shape, count in counts.items():
        best = most_ever(room, shape, count, alone=len(counts) == 1, within=within)
        if best.pods >= count:
            continue
        anywhere = most_ever(room, shape, count, alone=len(counts) == 1).pods
        if anywhere > best.pods:
            what = f"{best.pods} of {pods_of(count, sum(counts.values()))} of {each_of(shape)}"
            most = f"{within.key}={best.value} would take {what}, the most of {best.domains}"
            other = "name another label, " if anywhere >= count else ""
            return reason(
                Code.NEVER_IN_DOMAIN,
                key=within.key,
                most="no node that could take any has it" if best.value is None else most,
                remedy=f"ask for less, {other}or add nodes",
            )
    return None


def too_few_in_one(room: Room, batches: Sequence[Batch]) -> Apart | None:
    """No domain has room for all of them now, though more would fit without that demand."""
    within, counts = within_of(batches), by_shape(batches)
    if within is None or not within.key:
        return None
    best = _best(room, batches)
    if best.pods >= room.fits_together([Batch(shape, count) for shape, count in counts.items()]):
        return None
    if within.value is not None:
        where = f"in {within.key}={within.value}, which was chosen for its gang,"
    elif best.pods:
        where = f"no {within.key} has room for all; in {within.key}={best.value}, the best of {best.domains},"
    else:
        where = f"no {within.key} has room for any:"
    found = None
    if len(counts) == 1 and best.value is not None:
        found = sort_out(room, *next(iter(counts.items())), (within.key, best.value))
    return Apart(best.pods, where, found)


def sort_out(room: Room, shape: Shape, count: int, inside: tuple[str, str] | None) -> Sorted | None:
    """`misfit.sort_out` for pods that are to be in this domain, if any."""
    if inside is None:
        return misfit.sort_out(room, shape, count)
    found = misfit.sort_out(room, narrowed(shape, dict([inside])), count)
    return found.seen_from(*inside) if found is not None else None


def best_of(room: Room, batches: Sequence[Batch]) -> tuple[str, str] | None:
    """Label and value of the domain with room for the most of them; None where they needn't be in one, or none has."""
    within = within_of(batches)
    value = _best(room, batches).value if within is not None and within.key else None
    return None if within is None or value is None else (within.key, value)


def _best(room: Room, batches: Sequence[Batch]) -> Best:
    known = ("best domain", tuple(batches))
    if known not in room.memo:
        found = room.best_domain(batches)
        room.memo[known] = found  # after it was asked: that changes the room, and forgets
    best: Best = room.memo[known]
    return best
