"""Volumes that exist and that claims could be bound to, in groups of those that can be used from the same nodes.

Volumes come, are bound and go all the time, and a cluster with local disks has a group for each node: what is known of
a group is worked out again only when one of its volumes changes. What always holds: what `Offers` says is up to date
after `sync`.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import numpy as np

from startgate.engine.nodes import Ints
from startgate.model.selectors import NodeSelector
from startgate.model.storage import Volume

Suits: TypeAlias = Callable[[Volume], bool]

LONG: Final = 2**16
"""Changes that are kept for those who ask seldom; beyond that they start anew."""

ANYWHERE: Final = -1
"""In place of a slot."""


class Shelf:
    """The volumes of one storage class."""

    def __init__(self, volumes: Iterable[Volume]) -> None:
        self.groups: list[dict[str, Volume]] = []
        self.log: list[int] = []
        """Groups of which a volume changed, in order."""
        self.era = 0
        """Another one: the log has started anew."""
        self.epoch = 0
        """Another one: from where the groups can be used has changed."""
        self.width = 0
        self._reach: list[Ints | None] = []
        self._numbers: dict[NodeSelector | None, int] = {}
        self._group_of: dict[str, int] = {}
        self._stamp = -1
        self._at: dict[int, list[int]] = {}
        for volume in volumes:
            self.put(volume)

    def put(self, volume: Volume) -> None:
        """Takes a volume in, or what has changed of it."""
        group = self._numbers.setdefault(volume.affinity, len(self.groups))
        if group == len(self.groups):
            self.groups.append({})
            self._stamp = -1
        if self._group_of.get(volume.name, group) != group:
            self.drop(volume.name)
        self.groups[group][volume.name] = volume
        self._group_of[volume.name] = group
        self._note(group)

    def drop(self, name: str) -> None:
        group = self._group_of.pop(name)
        del self.groups[group][name]
        self._note(group)

    def group_of(self, name: str) -> int | None:
        """Which group the volume of this name is in; None: it isn't here."""
        return self._group_of.get(name)

    def settle(self, stamp: int, width: int, reached: Callable[[NodeSelector], Ints]) -> None:
        """Works out from where its volumes can be used, unless that was done for the same nodes."""
        if self._stamp == stamp:
            return
        self._stamp, self.width = stamp, width
        self._reach = [None if affinity is None else reached(affinity) for affinity in self._numbers]
        self.epoch += 1
        self._at = {}
        for group, slots in enumerate(self._reach):
            for slot in slots.tolist() if slots is not None else (ANYWHERE,):
                self._at.setdefault(slot, []).append(group)

    def at(self, slot: int) -> list[int]:
        """The groups whose volumes can be used there."""
        return self._at.get(slot, []) + self._at.get(ANYWHERE, [])

    def reach(self, group: int) -> Ints | slice:
        """The slots from which its volumes can be used, as an index."""
        reach = self._reach[group]
        return slice(None) if reach is None else reach

    def _note(self, group: int) -> None:
        if len(self.log) >= LONG:
            self.log = []
            self.era += 1
        self.log.append(group)


class Offers:
    """Of a shelf those volumes that suit."""

    def __init__(self, shelf: Shelf, suits: Suits) -> None:
        self.shelf = shelf
        self.groups: dict[int, list[Volume]] = {}
        """By group, the smallest first; groups without any are left out."""
        self.counts: Ints = np.zeros(0, dtype=np.int64)
        """By slot, how many of them can be used there. Not to be written into."""
        self._suits = suits
        self._seen = 0
        self._era = -1
        self._epoch = -1

    def sync(self) -> "Offers":
        """Takes in what has changed on the shelf."""
        shelf = self.shelf
        changed = dict.fromkeys(shelf.log[self._seen :]) if self._era == shelf.era else range(len(shelf.groups))
        for group in changed:
            before = len(self.groups.pop(group, ()))
            fresh = sorted(
                filter(self._suits, shelf.groups[group].values()), key=lambda each: (each.capacity, each.name)
            )
            if fresh:
                self.groups[group] = fresh
            if self._epoch == shelf.epoch and len(fresh) != before:
                self.counts[shelf.reach(group)] += len(fresh) - before
        if self._epoch != shelf.epoch:
            self.counts = np.zeros(shelf.width, dtype=np.int64)
            for group, volumes in self.groups.items():
                self.counts[shelf.reach(group)] += len(volumes)
        self._seen, self._era, self._epoch = len(shelf.log), shelf.era, shelf.epoch
        return self

    def left(self, taken: Iterable[str]) -> Ints:
        """By slot, how many there are without these."""
        left = self.counts.copy()
        for name in taken:
            group = self.shelf.group_of(name)
            if group is not None and any(each.name == name for each in self.groups.get(group, ())):
                left[self.shelf.reach(group)] -= 1
        return left

    def at(self, slot: int) -> list[int]:
        """The groups of which there are any there."""
        return [group for group in self.shelf.at(slot) if group in self.groups]
