"""How many of each item there are under each key: sparse, exact, and cheap to copy.

For what a what-if has to copy often and changes little of. What always holds: what is there no times isn't stored, and
a copy shares with its original whatever neither has changed since.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")

NOTHING: Final[Mapping[Any, int]] = MappingProxyType({})


class Counts(Generic[Key, Item]):
    """Numbers by key and item; negative ones too, where somebody counts what went away."""

    __slots__ = ("_all", "_shared")

    def __init__(self) -> None:
        self._all: dict[Key, dict[Item, int]] = {}
        self._shared: set[Key] = set()
        """Keys of which a copy may have the same inner dict."""

    def __getitem__(self, key: Key) -> Mapping[Item, int]:
        """What there is under this key; not to be kept across changes."""
        return self._all.get(key, NOTHING)

    def __contains__(self, key: Key) -> bool:
        return key in self._all

    def __iter__(self) -> Iterator[Key]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def add(self, key: Key, item: Item, number: int) -> None:
        """So many more; negative: fewer."""
        items = self._all.get(key)
        if items is None:
            if number:
                self._all[key] = {item: number}
            return
        if key in self._shared:
            items = self._all[key] = dict(items)
            self._shared.discard(key)
        now = items.get(item, 0) + number
        if now:
            items[item] = now
        else:
            items.pop(item, None)
            if not items:
                del self._all[key]

    def copy(self) -> "Counts[Key, Item]":
        """Another one like this; a change to either isn't seen in the other."""
        twin: Counts[Key, Item] = Counts()
        twin._all = dict(self._all)
        self._shared = set(self._all)
        twin._shared = set(self._all)
        return twin
