"""Why a gang that has to be in one topology domain isn't let go, where that is what keeps it (world.Within).

What always holds: it is said only where the gang would have room, or more room, if its pods could be anywhere; the
numbers are those of the domain with room for the most of them.
"""

from collections.abc import Callable, Sequence

from startgate.engine.fit import Room, by_shape
from startgate.engine.within import within_of
from startgate.engine.world import Batch
from startgate.model.reasons import Code, Reason, reason
from startgate.model.resources import PODS, Amounts, scale, show
from startgate.model.shape import Shape


def never_in_one(room: Room, batches: Sequence[Batch]) -> Reason | None:
    """Of one of its kinds of pods more are asked for than any domain would take if it were empty."""
    within, counts = within_of(batches), by_shape(batches)
    if within is None or not within.key or within.value is not None:
        return None
    for shape, count in counts.items():
        best = room.best_empty(shape, within)
        if best.pods < count:
            what = f"{best.pods} of {_pods(count, counts)} of {_each(shape)}"
            most = f"{within.key}={best.value} would take {what}, the most of {best.domains}"
            return reason(
                Code.NEVER_IN_DOMAIN, key=within.key, most=most if best.pods else "no node that could take any has it"
            )
    return None


def too_few_in_one(
    room: Room, batches: Sequence[Batch], until: Callable[[], str] = str
) -> tuple[Reason, Amounts] | None:
    """No domain has room for all of them now, though more would fit without that demand. With what is missing.
    `until`: when one would have, if anybody can say; else ""."""
    within, counts = within_of(batches), by_shape(batches)
    if within is None or not within.key:
        return None
    best, whole = room.best_domain(batches), sum(counts.values())
    if best.pods >= room.fits_together([Batch(shape, count) for shape, count in counts.items()]):
        return None
    if within.value is not None:
        where = f"in {within.key}={within.value}, where the others of its gang are,"
    elif best.pods:
        where = f"no {within.key} has room for all; in {within.key}={best.value}, the best of {best.domains},"
    else:
        where = f"no {within.key} has room for any:"
    each = "; ".join(_each(shape) if len(counts) == 1 else f"{n} of {_each(shape)}" for shape, n in counts.items())
    some_day = until() or "enough pods end in one place or nodes are added to it"
    made = reason(Code.NO_DOMAIN, where=where, fit=best.pods, pods=_pods(whole, counts), each=each, until=some_day)
    missing = scale(next(iter(counts)).amounts, whole - best.pods) if len(counts) == 1 else {}
    return made, missing


def _pods(count: int, counts: dict[Shape, int]) -> str:
    plain = f"{count} pod{'' if count == 1 else 's'}"
    whole = sum(counts.values())
    return plain if whole == count else f"its {plain} of one kind ({whole} in all)"


def _each(shape: Shape) -> str:
    return show({resource: amount for resource, amount in shape.request if resource != PODS})
