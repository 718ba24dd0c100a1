"""The tree of queues, as it can be read from what admins wrote: never an error, always one meaning.

A queue that is badly written never stops another one. What is bad is said in `Tree.problems`, and means:

* an amount of `capability` that can't be read, or is negative: 0, since a ceiling in doubt lets nothing through;
* one of `guarantee`: none. `deserved` isn't counted here, but a bad one is said;
* a parent that doesn't exist: the queue is a child of the root; likewise each queue in a circle of parents, while
  those that only hang below the circle keep theirs;
* a queue that is charged and doesn't exist (any more): a child of the root without limits, so that what runs counts.

What always holds: each level but the root has a parent, and following parents ends at the root; a level's guarantee
is at least the sum of its children's (design: "Quota").
"""

from collections.abc import Iterator, Mapping
from typing import Final

from startgate.model.quantity import QuantityError
from startgate.model.queue import QueueSpec
from startgate.model.resources import Amounts, add, amount, show

ROOT: Final = ""
"""The name of the implicit root; no queue can have it."""


class Level:
    """One queue in the tree, or the root. Amounts by resource; what is left out is 0 (no ceiling, for `ceiling`)."""

    __slots__ = ("ceiling", "children", "floor", "idle", "inner", "name", "own", "parent", "stopped")

    def __init__(self, name: str) -> None:
        self.name = name
        self.parent: Level | None = None
        self.children: list[Level] = []
        self.stopped = False
        self.ceiling: dict[str, int] = {}
        """The capability; at the root what the cluster has, and none of what it hasn't."""
        self.floor: dict[str, int] = {}
        """The guarantee, raised to the sum of the children's."""
        self.own: dict[str, int] = {}
        """What runs in this queue itself."""
        self.inner: dict[str, int] = {}
        """Own use + the sum of the children's charges."""
        self.idle: dict[str, int] = {}
        """What `inner` is when nothing runs at all: the sum of the children's guarantees."""

    def limit(self, resource: str) -> int | None:
        """The ceiling in this resource, if there is one; the root has one for every resource."""
        return self.ceiling.get(resource, 0 if self.parent is None else None)

    def unused(self) -> dict[str, int]:
        """What of the guarantee nothing in the queue or below it takes up."""
        left = {resource: floor - self.inner.get(resource, 0) for resource, floor in self.floor.items()}
        return {resource: count for resource, count in left.items() if count > 0}

    def path(self) -> "Iterator[Level]":
        """This level and all above it, the root last."""
        level: Level | None = self
        while level is not None:
            yield level
            level = level.parent

    def below(self) -> "Iterator[Level]":
        """This level and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.below()


class Tree:
    """The levels by queue, with nothing running in them."""

    def __init__(self, queues: Mapping[str, QueueSpec], total: Amounts) -> None:
        self.root = Level(ROOT)
        self.root.ceiling = dict(total)
        self.problems: dict[str, list[str]] = {name: [] for name in sorted(queues)}
        """By queue: what can't hold as it is written, in sentences."""
        self._levels = {name: self._read(name, queues[name]) for name in sorted(queues)}
        self._join({name: queues[name].parent for name in sorted(queues)})
        for top in self.root.children:
            self._raise_floors(top)
        self.root.idle = add(*(top.floor for top in self.root.children))
        self.root.inner = dict(self.root.idle)
        self._judge_total()

    def level(self, queue: str) -> Level:
        """The queue's level; for one that doesn't exist, a child of the root without limits."""
        level = self._levels.get(queue)
        if level is None:
            level = self._levels[queue] = Level(queue)
            _hang(level, self.root)
        return level

    def _read(self, name: str, spec: QueueSpec) -> Level:
        level = Level(name)
        level.stopped = spec.stopped
        level.ceiling = self._amounts(
            name, "capability", spec.capability, "nothing of it is given out until that is mended"
        )
        guarantee = self._amounts(name, "guarantee", spec.guarantee, "none of it is guaranteed until that is mended")
        level.floor = {resource: count for resource, count in guarantee.items() if count}
        self._amounts(name, "deserved", spec.deserved, "it counts as left out until that is mended")
        return level

    def _amounts(self, name: str, field: str, written: Mapping[str, str | int], outcome: str) -> dict[str, int]:
        read = {}
        for resource in sorted(written):
            count = 0
            try:
                count = amount(resource, written[resource])
            except QuantityError as error:
                self.problems[name].append(f"{field} of {resource}: {error}; {outcome}")
            if count < 0:
                self.problems[name].append(f"{field} of {resource}: {written[resource]} is below zero; {outcome}")
            read[resource] = max(count, 0)
        return read

    def _join(self, parents: Mapping[str, str]) -> None:
        circles = _circles(parents)
        for name, parent in parents.items():
            above = self._levels.get(parent, self.root)
            if name in circles:
                above = self.root
                self.problems[name].append(
                    f"its parents go in a circle ({' → '.join(circles[name])}); it counts as a child of the root"
                )
            elif parent and above is self.root:
                self.problems[name].append(
                    f"there is no queue {parent} to be its parent; it counts as a child of the root"
                )
            _hang(self._levels[name], above)

    def _raise_floors(self, level: Level) -> None:
        """Guarantees of parents from those of their children, from below."""
        for child in level.children:
            self._raise_floors(child)
        level.idle = add(*(child.floor for child in level.children))
        level.inner = dict(level.idle)
        for field, kept in (
            ("its guarantee is", level.floor),
            ("the guarantees of its children add up to", level.idle),
        ):
            for resource, count in sorted(kept.items()):
                ceiling = level.ceiling.get(resource)
                if ceiling is not None and count > ceiling:
                    self.problems[level.name].append(
                        f"{field} {show({resource: count})}, above its capability of {show({resource: ceiling})}"
                    )
        for resource, count in level.idle.items():
            level.floor[resource] = max(level.floor.get(resource, 0), count)

    def _judge_total(self) -> None:
        """Guarantees that add up to more than the cluster has: each queue that has a part in it says so."""
        for resource, kept in sorted(self.root.idle.items()):
            have = self.root.ceiling.get(resource, 0)
            if kept <= have:
                continue
            for level in self.root.below():
                if level.floor.get(resource, 0):
                    self.problems[level.name].append(
                        f"all guarantees together are {show({resource: kept})} and the cluster has "
                        f"{show({resource: have})}: not all of them can be kept at once"
                    )


def _hang(level: Level, parent: Level) -> None:
    level.parent = parent
    parent.children.append(level)


def _circles(parents: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Each queue that is its own ancestor, with the way round from the first name in order."""
    found: dict[str, tuple[str, ...]] = {}
    done: set[str] = set()
    for start in parents:
        way: dict[str, None] = {}
        name = start
        while name in parents and name not in done and name not in way:
            way[name] = None
            name = parents[name]
        if name in way:
            circle = list(way)[list(way).index(name) :]
            first = circle.index(min(circle))
            circle = [*circle[first:], *circle[: first + 1]]
            found.update(dict.fromkeys(circle, tuple(circle)))
        done.update(way)
    return found
