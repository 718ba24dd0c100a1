"""What pods ask for by way of volumes, and which nodes that leaves, before other pods have a say.

A plan is made once for all pods with the same needs. What always holds: it depends on the catalogue alone, and is
right until the catalogue changes.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from startgate.engine.catalogue import Catalogue, Key, driver_of_class, driver_of_volume
from startgate.engine.nodes import Bools, Ints
from startgate.model.shape import Ephemeral, Shape
from startgate.model.storage import READ_WRITE_ONCE_POD, Volume, VolumeClaim, VolumeClass


class Needs(NamedTuple):
    """What of a shape is about volumes."""

    namespace: str
    claims: tuple[str, ...]
    ephemeral: tuple[Ephemeral, ...]


NOTHING: Final = Needs("", (), ())


def needs_of(shape: Shape) -> Needs:
    if not shape.claims and not shape.ephemeral:
        return NOTHING
    return Needs(shape.namespace, shape.claims, shape.ephemeral)


class Offers:
    """Volumes that a claim could be bound to, in groups of those that can be used from the same nodes."""

    def __init__(self, volumes: list[Volume], kept: Volume | None, catalogue: Catalogue) -> None:
        self.kept = kept
        """The one that is kept for this claim: then no other will do."""
        self.groups: list[list[Volume]] = []
        """Each sorted by size: the smallest that is large enough is taken."""
        self.reach: list[Ints | None] = []
        self.group_of: dict[str, int] = {}
        self.kept_mask = catalogue.mask(catalogue.reach(kept)) if kept is not None else None
        self._at: dict[int, list[int]] | None = None
        known: dict[object, int] = {}
        for volume in sorted(volumes, key=lambda each: (each.capacity, each.name)):
            group = known.setdefault(volume.affinity, len(self.groups))
            if group == len(self.groups):
                self.groups.append([])
                self.reach.append(catalogue.reach(volume))
            self.groups[group].append(volume)
            self.group_of[volume.name] = group
        self.counts = np.zeros(catalogue.width, dtype=np.int64)
        """By slot, how many of the groups' volumes can be used there."""
        for group_volumes, reach in zip(self.groups, self.reach, strict=True):
            self.counts[slice(None) if reach is None else reach] += len(group_volumes)

    def __bool__(self) -> bool:
        return self.kept is not None or bool(self.groups)

    @property
    def somewhere(self) -> Bools:
        """By slot, whether any can be used there."""
        found = self.counts > 0
        return found if self.kept_mask is None else self.kept_mask

    def at(self, slot: int) -> list[int]:
        """The groups whose volumes can be used there."""
        if self._at is None:
            self._at = {}
            for group, reach in enumerate(self.reach):
                for each in reach.tolist() if reach is not None else (-1,):
                    self._at.setdefault(each, []).append(group)
        return self._at.get(slot, []) + self._at.get(-1, [])


class Wish(Struct, frozen=True, eq=False):
    """A claim without a volume, which gets one when its first pod has a node."""

    claim: Key | None
    """None: of an ephemeral volume, so that each pod has one of its own."""
    name: str
    """For a sentence."""
    made: VolumeClass
    made_at: Bools
    """By slot, whether a volume can be made for it."""
    segments: Ints
    """By slot: nodes that share a number can share what is made."""
    size: int
    now: Offers
    """What it could be bound to now."""
    ever: Offers
    """What it could be bound to if nobody else had anything."""


class Rule(NamedTuple):
    """Where the pods can go by one of their volumes, and what the other nodes are, in words that go on from
    "3 nodes …"."""

    mask: Bools
    words: str


class Plan(Struct, frozen=True, eq=False):
    """What a volume or a claim has to say about where such pods can go."""

    obstacle: str = ""
    """A clause that says why they can't go anywhere."""
    rules: tuple[Rule, ...] = ()
    alone: tuple[str, ...] = ()
    """Claims that one pod at a time can use."""
    shared: tuple[Wish, ...] = ()
    """Claims without a volume that all of the pods use."""
    own: tuple[Wish, ...] = ()
    """The same of each pod."""

    def mask(self) -> Bools | None:
        """What all rules allow; None: every node."""
        return np.logical_and.reduce([rule.mask for rule in self.rules]) if self.rules else None


class HopelessError(Exception):
    """Such pods can't go anywhere; the text says why, as a clause."""


def make_plan(needs: Needs, catalogue: Catalogue) -> Plan:
    """What these needs come to."""
    rules: list[Rule] = []
    shared: list[Wish] = []
    try:
        alone = []
        for name in needs.claims:
            claim = _usable(needs.namespace, name, catalogue)
            if READ_WRITE_ONCE_POD in claim.modes:
                alone.append(name)
            if claim.bound:
                rules += _bound(claim, catalogue)
            else:
                wish = _delayed(claim, catalogue)
                if claim.node:
                    rules.append(_being_made(claim, wish, catalogue))
                else:
                    insort(shared, wish, key=lambda each: each.size)
        own = sorted((_ephemeral(each, catalogue) for each in needs.ephemeral), key=lambda each: each.size)
    except HopelessError as hopeless:
        return Plan(obstacle=str(hopeless))
    for driver in sorted(set(dict(attached_by(needs, catalogue)[0])) | set(attached_by(needs, catalogue)[1])):
        if driver in catalogue.everywhere and catalogue.everywhere[driver].required:
            rules.append(Rule(catalogue.having(driver), f"without the CSI driver {driver}"))
    return Plan(rules=tuple(rules), alone=tuple(alone), shared=tuple(shared), own=tuple(own))


def attached_by(needs: Needs, catalogue: Catalogue) -> tuple[tuple[tuple[str, str], ...], Counter[str]]:
    """What a node that has such pods has attached for them: (driver, which) of the volumes that they share, and by
    driver how many more for each pod. What isn't known isn't counted."""
    shared = []
    for name in needs.claims:
        claim = catalogue.claims.get((needs.namespace, name))
        if claim is None:
            continue
        volume = catalogue.volumes.get(claim.volume)
        if volume is not None:
            driver, which = (
                driver_of_volume(volume),
                volume.handle or (f"volume {volume.name}" if volume.in_tree else ""),
            )
        else:
            driver, which = (
                driver_of_class(catalogue.classes.get(claim.storage_class)),
                f"claim {needs.namespace}/{name}",
            )
        if driver and which:
            shared.append((driver, which))
    each = Counter(driver_of_class(_class_of(volume, catalogue)) for volume in needs.ephemeral)
    del each[""]
    return tuple(dict.fromkeys(shared)), each


def _usable(namespace: str, name: str, catalogue: Catalogue) -> VolumeClaim:
    claim = catalogue.claims.get((namespace, name))
    if claim is None:
        raise HopelessError(f"volume claim {name} doesn't exist")
    if claim.lost:
        raise HopelessError(f"volume claim {name} has lost its volume")
    if claim.deleting:
        raise HopelessError(f"volume claim {name} is being deleted")
    return claim


def _bound(claim: VolumeClaim, catalogue: Catalogue) -> Iterator[Rule]:
    volume = catalogue.volumes.get(claim.volume)
    if volume is None:
        raise HopelessError(f"volume {claim.volume} of claim {claim.name} doesn't exist")
    reach = catalogue.reach(volume)
    if reach is not None:
        yield Rule(catalogue.mask(reach), f"that can't reach the volume of claim {claim.name}")
    if volume.zones:
        yield Rule(
            catalogue.mask(catalogue.places.zoned(volume.zones)),
            f"outside the zone of the volume of claim {claim.name}",
        )


def _delayed(claim: VolumeClaim, catalogue: Catalogue) -> Wish:
    """A claim that isn't bound: it has to be one that waits for its first pod."""
    made = catalogue.classes.get(claim.storage_class)
    if claim.volume or not claim.storage_class:
        raise HopelessError(f"volume claim {claim.name} isn't bound to a volume")
    if made is None:
        raise HopelessError(f"storage class {claim.storage_class} of volume claim {claim.name} doesn't exist")
    if not made.waits:
        raise HopelessError(f"volume claim {claim.name} isn't bound to a volume")
    return _wish(claim, f"claim {claim.name}", made, catalogue)


def _being_made(claim: VolumeClaim, wish: Wish, catalogue: Catalogue) -> Rule:
    slot = catalogue.slots.get(claim.node)
    mask = np.zeros(catalogue.width, dtype=np.bool_)
    if slot is not None:
        mask[slot] = wish.made_at[slot]
    return Rule(mask, f"other than {claim.node}, where the volume of claim {claim.name} is being made")


def _class_of(volume: Ephemeral, catalogue: Catalogue) -> VolumeClass | None:
    return catalogue.default_class() if volume.storage_class is None else catalogue.classes.get(volume.storage_class)


def _ephemeral(volume: Ephemeral, catalogue: Catalogue) -> Wish:
    """Each pod's own claim, which is as the pod's template says."""
    made = _class_of(volume, catalogue)
    if made is None:
        raise HopelessError(
            f"storage class {volume.storage_class} of an ephemeral volume doesn't exist"
            if volume.storage_class
            else "an ephemeral volume has no storage class"
        )
    if not made.waits:
        raise HopelessError(
            f"an ephemeral volume of storage class {made.name} is bound before its pod has a node, so that nobody can"
            " say where (it takes a class with WaitForFirstConsumer)"
        )
    asked = VolumeClaim(
        namespace="",
        name="",
        modes=volume.modes,
        request=volume.request,
        selector=volume.selector,
        block=volume.block,
        attributes_class=volume.attributes_class,
    )
    return _wish(asked, f"class {made.name}", made, catalogue)


def _wish(claim: VolumeClaim, name: str, made: VolumeClass, catalogue: Catalogue) -> Wish:
    found = [
        volume
        for volume in catalogue.by_class.get(made.name, {}).values()
        if volume.capacity >= claim.request
        and volume.block == claim.block
        and volume.attributes_class == claim.attributes_class
        and not volume.deleting
    ]
    kept = [volume for volume in found if claim.name and _kept_for(claim, volume)]
    others = [
        volume
        for volume in found
        if set(claim.modes) <= set(volume.modes)
        and (claim.selector is None or claim.selector.matches(dict(volume.labels)))
    ]
    ours = min(kept, key=lambda each: each.name, default=None)
    free = [volume for volume in others if volume.phase == "Available" and volume.claim is None] if not kept else []
    return Wish(
        claim=(claim.namespace, claim.name) if claim.name else None,
        name=name,
        made=made,
        made_at=catalogue.mask(catalogue.places.provisioned(made))
        if made.makes
        else np.zeros(catalogue.width, np.bool_),
        segments=catalogue.segments(driver_of_class(made)),
        size=claim.request,
        now=Offers(free, ours, catalogue),
        ever=Offers(others if not kept else [], ours, catalogue),
    )


def _kept_for(claim: VolumeClaim, volume: Volume) -> bool:
    return (
        volume.claim is not None
        and volume.claim[:2] == (claim.namespace, claim.name)
        and (volume.claim[2] in ("", claim.uid))
    )
