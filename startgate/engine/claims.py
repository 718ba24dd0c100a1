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

from startgate.engine.catalogue import Asked, Catalogue, Key, driver_of_class, driver_of_volume
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


class Attaches(NamedTuple):
    """What a node has attached for pods with the same needs."""

    shared: tuple[tuple[str, str], ...]
    """(driver, which) of the volumes of claims: once however many pods there are."""
    each: Counter[str]
    """By driver, how many for each pod."""

    def drivers(self) -> list[str]:
        return sorted({driver for driver, _ in self.shared} | set(self.each))


class Wish(Struct, frozen=True, eq=False):
    """A claim without a volume, which gets one when its first pod has a node."""

    claim: Key | None
    """None: of an ephemeral volume, so that each pod has one of its own."""
    name: str
    """For a sentence."""
    made: VolumeClass
    made_at: Bools
    """By slot, whether a volume can be made for it."""
    made_ever: Bools
    """The same if there were room for any volume."""
    segments: Ints
    """By slot: nodes that share a number can share what is made."""
    now: Asked
    """What it could be bound to now."""
    ever: Asked
    """What it could be bound to if nobody else had anything."""
    kept: Volume | None = None
    """The volume that is kept for it: then no other will do."""
    kept_at: Bools | None = None
    """By slot, where that can be used."""

    @property
    def size(self) -> int:
        return self.now.size

    @property
    def too_large(self) -> str:
        """What nodes are where there is no room for it, in words that go on from "3 nodes …"."""
        return f"without enough free storage for {self.name}"


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
    passing: tuple[Rule, ...] = ()
    """Those that others' volumes decide: if nobody else had anything, they wouldn't hold."""
    alone: tuple[str, ...] = ()
    """Claims that one pod at a time can use."""
    shared: tuple[Wish, ...] = ()
    """Claims without a volume that all of the pods use."""
    own: tuple[Wish, ...] = ()
    """The same of each pod."""


class HopelessError(Exception):
    """Such pods can't go anywhere; the text says why, as a clause."""


def make_plan(needs: Needs, catalogue: Catalogue) -> Plan:
    """What these needs come to."""
    rules: list[Rule] = []
    passing: list[Rule] = []
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
                    passing.append(Rule(wish.made_at | ~wish.made_ever, wish.too_large))
                else:
                    insort(shared, wish, key=lambda each: each.size)
        own = sorted((_ephemeral(each, catalogue) for each in needs.ephemeral), key=lambda each: each.size)
    except HopelessError as hopeless:
        return Plan(obstacle=str(hopeless))
    for driver in attached_by(needs, catalogue).drivers():
        if driver in catalogue.everywhere and catalogue.everywhere[driver].required:
            rules.append(Rule(catalogue.having(driver), f"without the CSI driver {driver}"))
    return Plan(rules=tuple(rules), passing=tuple(passing), alone=tuple(alone), shared=tuple(shared), own=tuple(own))


def attached_by(needs: Needs, catalogue: Catalogue) -> Attaches:
    """What pods with these needs have attached; what isn't known isn't counted."""
    shared = []
    for name in needs.claims:
        claim = catalogue.claims.get((needs.namespace, name))
        if claim is None:
            continue
        volume = catalogue.volumes.get(claim.volume)
        if volume is None:
            made = catalogue.classes.get(claim.storage_class)
            driver, which = driver_of_class(made), f"claim {claim.namespace}/{name}"
        else:
            driver, which = driver_of_volume(volume), f"volume {volume.name}" if volume.in_tree else volume.handle
        if driver and which:
            shared.append((driver, which))
    each = Counter(driver_of_class(_class_of(volume, catalogue)) for volume in needs.ephemeral)
    del each[""]
    return Attaches(tuple(dict.fromkeys(shared)), each)


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
    if volume.affinity is not None:
        yield Rule(catalogue.reach(volume), f"that can't reach the volume of claim {claim.name}")
    if volume.zones:
        zoned = catalogue.mask(catalogue.places.zoned(volume.zones))
        yield Rule(zoned, f"outside the zone of the volume of claim {claim.name}")


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
        mask[slot] = wish.made_ever[slot]
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
    def asked(*, free: bool) -> Asked:
        return Asked(
            storage_class=made.name,
            size=claim.request,
            block=claim.block,
            modes=claim.modes,
            selector=claim.selector,
            attributes_class=claim.attributes_class,
            free=free,
        )

    key = (claim.namespace, claim.name)
    now = asked(free=True)
    kept = [
        volume
        for volume in catalogue.held_by.get(key, {}).values()
        if now.sized(volume) and volume.claim is not None and volume.claim[2] in ("", claim.uid)
    ]
    ours = min(kept, key=lambda each: each.name, default=None) if claim.name else None
    ever, roomy = catalogue.made_ever(made), catalogue.roomy(made, claim.request)
    return Wish(
        claim=key if claim.name else None,
        name=name,
        made=made,
        made_at=ever if roomy is None else ever & roomy,
        made_ever=ever,
        segments=catalogue.segments(driver_of_class(made)),
        now=now,
        ever=asked(free=False),
        kept=ours,
        kept_at=catalogue.reach(ours) if ours is not None else None,
    )


def basis(needs: Needs, catalogue: Catalogue) -> tuple[object, ...]:
    """All that a plan for these needs, or what they attach, depends on; what drivers say of their room aside."""
    found: list[object] = [catalogue.nodes_stamp, catalogue.classes_stamp]
    for name in needs.claims:
        key = (needs.namespace, name)
        claim = catalogue.claims.get(key)
        found += (claim, catalogue.volumes.get(claim.volume) if claim is not None else None)
        found += catalogue.held_by.get(key, {}).values()
    return tuple(found)


def room_basis(needs: Needs, catalogue: Catalogue) -> tuple[int, ...]:
    """What a plan for these needs depends on besides: the room for volumes that are to be made."""
    claims = (catalogue.claims.get((needs.namespace, name)) for name in needs.claims)
    names = [claim.storage_class for claim in claims if claim is not None and not claim.bound]
    names += [made.name for each in needs.ephemeral if (made := _class_of(each, catalogue)) is not None]
    return tuple(catalogue.capacities.stamp(name) for name in names)
