"""A what-if: objects that are laid over those of a simulation, file by file, before it is run once more.

What always holds: each file is laid over all that came before it, the what-if's own files included; an object that a
what-if takes away is away from then on, whatever the files below say of its later life.
"""

from collections.abc import Iterable
from itertools import groupby

import msgspec

from startgate.engine.simulate.manifests import Key, Manifest, check_times, decode, times
from startgate.engine.simulate.merge import merge


def overlay(base: Iterable[Manifest], changes: Iterable[Manifest]) -> list[Manifest]:
    """The base with what is to be tried over it. Raises InputError."""
    objects: dict[Key, list[Manifest]] = {}
    for manifest in base:
        objects.setdefault(manifest.key, []).append(manifest)
    for _, file in groupby(changes, key=lambda each: each.file):
        _lay(list(file), objects)
    return [manifest for same in objects.values() for manifest in same]


def _lay(file: list[Manifest], objects: dict[Key, list[Manifest]]) -> None:
    """One file over the others: what is there is merged into its first document, the rest is added."""
    there = set(objects)
    following = 1 + max((each.order for same in objects.values() for each in same), default=-1)
    for change in file:
        if change.key in there:
            objects[change.key] = _merged(objects[change.key], change)
        else:
            added = msgspec.structs.replace(change, order=following + change.order)
            objects.setdefault(change.key, []).append(added)


def _merged(same: list[Manifest], change: Manifest) -> list[Manifest]:
    """All documents of one object, with the change in the first of them."""
    first, *later = same
    raw = merge(first.raw, change.raw)
    at, gone = times(change.where, change.key.kind, raw)
    if change.gone is None:
        check_times(change.where, at, gone)
    else:
        at = min(at, change.gone)  # it never comes
        later = [msgspec.structs.replace(each, gone=None) for each in later if each.at < change.gone]
    decode(change.where, change.key.kind, raw)
    return [msgspec.structs.replace(first, raw=raw, at=at, gone=gone, where=change.where), *later]
