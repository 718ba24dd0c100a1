"""What could go if no pod were on any node: by this the answers "never" and "when pods end" are told apart.

What always holds:

* `most_ever` is never fewer than could be placed by whatever method, once others have come and gone; so that a gang
  which asks for more can't go, whoever ends, unless somebody changes nodes, volumes or the gang.
* `could_go` is a yes only where all of the pods have places with every node empty, all of one gang together.
* What lies between the two nobody promises: neither that it will go some day nor that it won't.
* The room is left as it was.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from startgate.engine.company import Pick
from startgate.engine.fit import TRIES, Room, by_shape
from startgate.engine.within import best, parts, within_of
from startgate.engine.world import Batch, Within
from startgate.model import names
from startgate.model.shape import PodTerm, Shape, Spread, narrowed

FAINT: Final = 2**40
"""A maxSkew that is never reached: what is left of a constraint then is that the node has its label."""

JOB: Final = (*names.JOB_NAME, *names.JOB_UID)
"""Labels that the pods of one Job alone have."""


class Ever(NamedTuple):
    """How many pods of one kind could be placed with every node empty, at most."""

    pods: int
    shape: Shape
    """With those of their demands by which that is so."""
    value: str | None
    """Of the label that they are to have in common, in the domain for the most of them; None where none takes any, or
    where they needn't be in one."""
    domains: int
    """How many values that label has."""


def most_ever(room: Room, shape: Shape, count: int, *, alone: bool, within: Within | None = None) -> Ever:
    """Of so many. `alone`: the gang has no other kinds of pods."""
    known = ("ever", shape if shape.constrained else shape.plain, count, alone, within and (within.key, within.value))
    if known not in room.memo:
        inside = within if within is not None and within.key else None
        room.memo[known] = (
            _anywhere(room, shape, count, alone) if inside is None else _in_one(room, shape, count, alone, inside)
        )
    found: Ever = room.memo[known]
    return found


def could_go(room: Room, batches: Sequence[Batch]) -> bool:
    """Whether all of these pods find places with every node empty, but for the pods that they want to be beside."""
    within, counts = within_of(batches), by_shape(batches)
    if len(counts) == 1:
        shape, count = next(iter(counts.items()))
        if not shape.constrained:
            return most_ever(room, shape, count, alone=True, within=within).pods >= count
    known = ("could go", tuple(batches))
    if known not in room.memo:
        eased = tuple(Batch(_alone(room, batch.shape), batch.count, batch.within) for batch in batches)
        # Their affinity may be to one another: then it isn't to be left out.
        room.memo[known] = _places(room.emptied(), batches) or (
            eased != tuple(batches) and _places(room.emptied(), eased)
        )
    found: bool = room.memo[known]
    return found


def beside_others(room: Room, shape: Shape) -> bool:
    """Whether it has an affinity to pods that aren't like it."""
    namespaces = room.cluster.company.namespaces
    return not all(term.picks(shape.namespace, shape.label_map, namespaces) for term in shape.together)


def awaits(room: Room, shape: Shape) -> bool:
    """Whether it has such an affinity, and there are no such pods anywhere."""
    terms = tuple(replace(term, topology_key="") for term in shape.together)
    return beside_others(room, shape) and not room.around.is_there(Pick(terms))


def lasting(room: Room, shape: Shape, *, alone: bool) -> Shape:
    """The shape with only those demands that hold whatever pods come and go.

    Affinity and spread can be eased by other pods that the selector picks. None will come where it asks for the label
    of the pods' own Job; and none is there, if the gang is of one kind (`alone`) and has nobody on a node yet. Nor do
    others ease a spread that wants more domains than there are: it takes the emptiest for empty, whoever is there.
    """

    def own(term: PodTerm) -> bool:
        selector = term.selector
        if not alone or selector is None or not selector.matches(shape.label_map):
            return False
        if term.namespaces != (shape.namespace,) or term.namespace_selector is not None:
            return False
        if not any(selector.match_labels.get(key) == shape.label_map.get(key, "") for key in JOB):
            return False
        return not room.around.is_there(Pick((replace(term, topology_key=""),)))

    together = tuple(term for term in shape.together if own(term))
    if len(together) < len(shape.together):
        together = ()  # one and the same pod has to meet all terms
    floored = room.emptied().around.floored(shape)
    spread = tuple(
        each for each in shape.spread if each in floored or own(PodTerm("", each.selector, (shape.namespace,)))
    )
    lasts = replace(
        shape,
        together=together,
        spread=(
            *spread,
            *_labelled([term.topology_key for term in shape.together if term not in together]),
            *_labelled([each.topology_key for each in shape.spread if each not in spread]),
        ),
    )
    volumes = room.emptied().around.volumes(shape)
    if volumes.domains is not None or not volumes.independent:
        lasts = replace(lasts, claims=(), ephemeral=())  # where the claims will get their volumes remains to be seen
    return lasts


def _anywhere(room: Room, shape: Shape, count: int, alone: bool) -> Ever:
    empty = room.fits_empty(shape)
    if not shape.constrained or empty == 0:
        return Ever(min(empty, count), shape.plain, None, 0)
    lasts, emptied = lasting(room, shape, alone=alone), room.emptied()
    return Ever(emptied.around.at_most(lasts, count, emptied.takes(lasts)), lasts, None, 0)


def _in_one(room: Room, shape: Shape, count: int, alone: bool, within: Within) -> Ever:
    """In the domain for the most of them; those that aren't looked into count as if their nodes alone decided."""
    emptied, cluster = room.emptied(), room.cluster
    takes = emptied.takes(shape)
    first = best(cluster, within, takes)
    there = _there(shape.plain, within.key, first.value)
    if not shape.constrained or first.pods == 0:
        return Ever(min(first.pods, count), there, first.value, first.domains)
    found = Ever(0, there, first.value, first.domains)
    for number, (bound, region) in enumerate(parts(cluster, within, emptied.around.caps(shape, takes))):
        if found.pods >= min(bound, count):
            break
        lasts = lasting(room, narrowed(shape, region.selector), alone=alone)
        pods = emptied.around.at_most(lasts, count, takes * region.inside) if number < TRIES else min(bound, count)
        if pods > found.pods:
            found = Ever(pods, lasts, region.selector[within.key], first.domains)
        if number == TRIES:
            break
    return found


def _places(emptied: Room, batches: Sequence[Batch]) -> bool:
    found = emptied.place(batches)
    emptied.free_up(found or ())
    return found is not None


def _alone(room: Room, shape: Shape) -> Shape:
    """The same as if pods that it wants to be beside were wherever they can be."""
    if not beside_others(room, shape):
        return shape
    keys = [term.topology_key for term in shape.together]
    return replace(shape, together=(), spread=(*shape.spread, *_labelled(keys)))


def _labelled(keys: Sequence[str]) -> tuple[Spread, ...]:
    """That the node has these labels."""
    return tuple(Spread(key, FAINT, None, honors_affinity=False) for key in dict.fromkeys(keys))


def _there(shape: Shape, key: str, value: str | None) -> Shape:
    labels: Mapping[str, str] = {} if value is None else {key: value}
    return narrowed(shape, labels)
