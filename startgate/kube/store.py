"""What we hold of one kind: the newest version of each object that a watch or an answer to a write has shown.

Always holds: an object never goes back to an older version, and what is gone stays gone. Both follow from the
order of resourceVersions alone, which are comparable within a resource since Kubernetes 1.35 (KEP-5504): the
watch has told everything up to `seen`, so a version at or below it that isn't held is of an object that was
deleted (or that the selector leaves out), and a version above it is news, wherever it comes from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from startgate.kube.kinds import Metadata, T, Versioned

log = logging.getLogger(__name__)

V = TypeVar("V")

Key = tuple[str, str]
"""Namespace ("" for a cluster-scoped kind) and name."""


@dataclass(frozen=True, slots=True)
class Change(Generic[V]):
    """One object came (`old` is None), went (`new` is None) or changed. Both are of the same uid."""

    old: V | None
    new: V | None


@dataclass(slots=True)
class _Held(Generic[V]):
    version: int
    uid: str
    value: V


class Store(Generic[T, V]):
    """By namespace and name. `view` makes of an object what is held; `on_change` hears of each change.

    `on_change` is called in the middle of the update, after the store itself has changed; what it raises goes
    to whoever brought the news. An object that `view` raises ValueError for (or that has no version) is left
    out, or left as it was before, with a line in the log, and counted in `unreadable`.
    """

    def __init__(self, view: Callable[[T], V], on_change: Callable[[Change[V]], None] | None = None) -> None:
        self._view = view
        self._on_change = on_change
        self._held: dict[Key, _Held[V]] = {}
        self._forgotten: dict[str, int] = {}
        """By uid: the version in which it was held."""
        self.seen = 0
        """The resourceVersion up to which list and watch have told everything; 0 before the first list."""
        self.learned = 0
        """The newest version that an answer to a write has shown; a watch that is in touch tells of it, too."""
        self.unreadable = 0

    def get(self, name: str, namespace: str = "") -> V | None:
        """What is held of the object; None if there is none."""
        held = self._held.get((namespace, name))
        return None if held is None else held.value

    def values(self) -> Iterator[V]:
        """In no order that means anything. The store must not change while this is used."""
        return (held.value for held in self._held.values())

    __iter__ = values

    def __len__(self) -> int:
        return len(self._held)

    def learn(self, obj: T) -> None:
        """Takes in the answer to a write of ours, if it is newer than what is held and what the watch told.

        The object must be one that the reflector's selectors choose.
        """
        version = version_of(obj.metadata)
        if version > self.seen:
            self.learned = max(self.learned, version)
            self.put(obj)

    def forget(self, name: str, namespace: str, uid: str) -> None:
        """After an answer that says that the object is gone: not merely marked for deletion."""
        held = self._held.get((namespace, name))
        if held is not None and held.uid == uid:
            self._forgotten[uid] = held.version  # until a watch or a list says so too
            self._remove((namespace, name))

    def put(self, obj: T) -> None:
        """From a watch: the object exists, or existed, in this version."""
        meta = obj.metadata
        self._put((meta.namespace, meta.name), obj)

    def _put(self, key: Key, obj: T) -> None:
        meta = obj.metadata
        version = version_of(meta)
        held = self._held.get(key)
        if meta.uid in self._forgotten or (held is not None and held.version >= version):
            return
        if not version:
            self.skip(meta, ValueError("it has no version that is a number"))
            return
        try:
            value = self._view(obj)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            self.skip(meta, error)
            return
        if held is not None and held.uid != meta.uid:  # the name's next owner, before word that the last one went
            self._remove(key)
            held = None
        self._held[key] = _Held(version, meta.uid, value)
        self._tell(Change(None if held is None else held.value, value))

    def skip(self, meta: Metadata, error: Exception) -> None:
        """Leaves the object as it was, if it was held at all: it can't be read."""
        self.unreadable += 1
        log.error("Skipped %s/%s (%s), which can't be read: %s", meta.namespace, meta.name, meta.uid, error)

    def drop(self, meta: Metadata) -> None:
        """From a watch: the object is gone, or the selector no longer chooses it, as of this version."""
        self._forgotten.pop(meta.uid, None)
        key = (meta.namespace, meta.name)
        held = self._held.get(key)
        if held is not None and held.uid == meta.uid and held.version <= version_of(meta):
            self._remove(key)

    def listing(self, version: int) -> Listing[T, V]:
        """Begins to take in a list: of everything that there was at `version`."""
        if version < self.seen:  # only an etcd restored from a backup goes back; what is held is of another history
            for held in self._held.values():
                held.version = 0
        return Listing(self, version)

    def _remove(self, key: Key) -> None:
        self._tell(Change(self._held.pop(key).value, None))

    def _tell(self, change: Change[V]) -> None:
        if self._on_change is not None:
            self._on_change(change)


class Listing(Generic[T, V]):
    """A list that is taken in page by page, so that nobody has to hold all of it in the form in which it came.

    What it has shown counts at once, as what a watch shows does. What it lacks goes when it is `done`, but for what was
    learned from writes after its version: the watch that follows will tell of its end. One that is never done has done
    no harm.
    """

    def __init__(self, store: Store[T, V], version: int) -> None:
        self._store = store
        self._version = version
        self._keys: set[Key] = set()
        self._uids: set[str] = set()
        """Of those that we have seen go, and that it shows still."""

    def add(self, obj: T) -> None:
        """The object was there."""
        meta = obj.metadata
        key = (meta.namespace, meta.name)
        self._keys.add(key)
        if meta.uid in self._store._forgotten:
            self._uids.add(meta.uid)
        self._store._put(key, obj)

    def keep(self, key: Key) -> None:
        """An object of this name was there, and can't be decoded."""
        self._keys.add(key)

    def done(self) -> None:
        """That was all."""
        store, version = self._store, self._version
        # Of the others no event will come any more; but for those that are younger than the list.
        store._forgotten = {uid: held for uid, held in store._forgotten.items() if uid in self._uids or held > version}
        for key in [k for k, held in store._held.items() if held.version <= version and k not in self._keys]:
            store._remove(key)
        store.seen = version


def version_of(meta: Versioned) -> int:
    """The resourceVersion as the number that it is (KEP-5504); 0 if it isn't."""
    text = meta.resource_version
    return int(text) if text.isascii() and text.isdecimal() else 0
