"""Where drivers say that they have room for a volume that isn't made yet.

As kube-scheduler's plugin VolumeBinding reads CSIStorageCapacity: each claim by itself, beside what the driver said
last. It keeps no account of what it has asked for, so neither does this: several claims may count on the same room, and
then one of them is refused by its driver, not here. What always holds: a change costs what it touches; an array that is
handed out is right until something changes, and not to be written into.
"""

from typing import TypeAlias

import numpy as np

from startgate.engine.nodes import Ints
from startgate.engine.places import Places
from startgate.model.drivers import Capacity

Key: TypeAlias = tuple[str, str]
"""Namespace and name of a CSIStorageCapacity."""


class Capacities:
    """What all of them say."""

    def __init__(self) -> None:
        self.held: dict[Key, Capacity] = {}
        self._classes: dict[str, _OfClass] = {}

    def copy(self) -> "Capacities":
        """Another one like this; a change to either isn't seen in the other."""
        twin = Capacities()
        twin.held = dict(self.held)
        twin._classes = {name: each.copy() for name, each in self._classes.items()}
        return twin

    def put(self, capacity: Capacity) -> bool:
        """Whether that changed anything."""
        key = (capacity.namespace, capacity.name)
        before = self.held.get(key)
        if before == capacity:
            return False
        if before is not None and before.storage_class != capacity.storage_class:
            self.drop(*key)
        self.held[key] = capacity
        self._classes.setdefault(capacity.storage_class, _OfClass()).put(key, capacity)
        return True

    def drop(self, namespace: str, name: str) -> bool:
        """Whether there was one of this name."""
        before = self.held.pop((namespace, name), None)
        if before is not None:
            self._classes[before.storage_class].put((namespace, name), None)
        return before is not None

    def stamp(self, storage_class: str) -> int:
        """Another one: what is said of this class has changed."""
        return self._classes[storage_class].stamp if storage_class in self._classes else 0

    def largest(self, storage_class: str, places: Places, nodes_stamp: int, width: int) -> Ints:
        """By slot, the largest volume of this class that can be made for the node there; 0 for none."""
        found = self._classes.setdefault(storage_class, _OfClass())
        return found.settle(places, nodes_stamp, width)


class _OfClass:
    """What is said of one storage class."""

    def __init__(self) -> None:
        self.stamp = 0
        self._held: dict[Key, Capacity] = {}
        self._stale: set[Key] = set()
        self._nodes = -1
        self._slots: dict[Key, list[int]] = {}
        self._at: dict[int, dict[Key, int]] = {}
        self._largest: Ints = np.zeros(0, dtype=np.int64)

    def copy(self) -> "_OfClass":
        twin = _OfClass()
        twin.stamp, twin._held = self.stamp, dict(self._held)
        return twin

    def put(self, key: Key, capacity: Capacity | None) -> None:
        if capacity is None:
            del self._held[key]
        else:
            self._held[key] = capacity
        self._stale.add(key)
        self.stamp += 1

    def settle(self, places: Places, nodes_stamp: int, width: int) -> Ints:
        """Takes in what has changed; all anew where nodes have."""
        if self._nodes != nodes_stamp:
            self._nodes, self._slots, self._at = nodes_stamp, {}, {}
            self._largest = np.zeros(width, dtype=np.int64)
            self._stale = set(self._held)
        elif self._stale:
            self._largest = self._largest.copy()
        for key in self._stale:
            before, capacity = self._slots.pop(key, ()), self._held.get(key)
            for slot in before:
                del self._at[slot][key]
            if capacity is not None and capacity.topology is not None:
                self._slots[key] = places.picked(capacity.topology).tolist()
                for slot in self._slots[key]:
                    self._at.setdefault(slot, {})[key] = capacity.largest
            for slot in {*before, *self._slots.get(key, ())}:
                self._largest[slot] = max(self._at[slot].values(), default=0)
        self._stale.clear()
        return self._largest
