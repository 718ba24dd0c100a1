"""The tree of queues, as it can be read from what admins wrote: never an error, always one meaning.

A queue that is badly written never stops another one. What is bad is said in `Tree.problems`, and means:

* an amount of `capability` that can't be read, or is negative: 0, since a ceiling in doubt lets nothing through;
* one of `guarantee`: none; one of `deserved`: left out; a weight below 1: 1;
* a parent that doesn't exist: the queue is a child of the root; likewise each queue in a circle of parents, while
  those that only hang below the circle keep theirs;
* a queue that is charged and doesn't exist (any more): a child of the root without limits, so that what runs counts.

What contradicts itself or the cluster (the webhook refuses it, but two writes at once, or lost nodes, get by) keeps its
meaning by the formulas, and is said likewise: see `_Judge`.

What always holds: each level but the root has a parent, and following parents ends at the root, however deep; a
level's guarantee is at least the sum of its children's (design: "Quota").
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Final

from startgate.model.quantity import QuantityError
from startgate.model.queue import QueueSpec
from startgate.model.resources import Amounts, add, amount, largest, show

ROOT: Final = ""
"""The name of the implicit root; no queue can have it."""


class Level:
    """One queue in the tree, or the root. Amounts by resource; what is left out is 0 (no ceiling, for `ceiling`)."""

    __slots__ = (
        "ceiling",
        "children",
        "floor",
        "given",
        "idle",
        "inner",
        "name",
        "own",
        "parent",
        "reclaimable",
        "stopped",
        "weight",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.parent: Level | None = None
        self.children: list[Level] = []
        self.stopped = False
        self.weight = 1
        self.reclaimable = True
        self.ceiling: dict[str, int] = {}
        """The capability; at the root what the cluster has, and none of what it hasn't."""
        self.floor: dict[str, int] = {}
        """The guarantee, raised to the sum of the children's."""
        self.given: dict[str, int] = {}
        """What it deserves as given; what is left out is worked out by weight (engine.fair), what is 0 is not."""
        self.own: dict[str, int] = {}
        """What runs in this queue itself."""
        self.inner: dict[str, int] = {}
        """Own use + the sum of the children's charges."""
        self.idle: dict[str, int] = {}
        """What `inner` is when nothing runs at all: the sum of the children's guarantees."""

    def copy(self) -> "Level":
        """Another one with the same in it, and the same neighbours."""
        twin = copy(self)
        twin.own, twin.inner = dict(self.own), dict(self.inner)
        return twin

    def limit(self, resource: str) -> int | None:
        """The ceiling in this resource, if there is one; the root has one for every resource."""
        return self.ceiling.get(resource, 0 if self.parent is None else None)

    def within_limits(self, resource: str, count: int) -> int:
        """So much of this resource, but at least the guarantee and else at most the ceiling."""
        ceiling = self.limit(resource)
        return max(self.floor.get(resource, 0), count if ceiling is None else min(count, ceiling))

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
        ahead = [self]
        while ahead:
            level = ahead.pop()
            yield level
            ahead.extend(reversed(level.children))


class Tree:
    """The levels by queue, with nothing running in them."""

    def __init__(self, queues: Mapping[str, QueueSpec], total: Amounts) -> None:
        self.root = Level(ROOT)
        self.root.ceiling = dict(total)
        self.problems: dict[str, list[str]] = {name: [] for name in sorted(queues)}
        """By queue: what can't hold as it is written, in sentences."""
        self._levels = {name: self._read(name, queues[name]) for name in sorted(queues)}
        self._join({name: queues[name].parent for name in sorted(queues)})
        order = list(self.root.below())
        for level in reversed(order):
            _raise_floor(level)
        _Judge(order, self.problems).judge()

    def copy(self) -> "Tree":
        """Another tree with the same in it; what is charged in either isn't seen in the other."""
        twin = Tree.__new__(Tree)
        twin.problems = self.problems
        twins = {level: level.copy() for level in self.root.below()}
        twin.root = twins[self.root]
        for level, made in twins.items():
            made.children = [twins[child] for child in level.children]
            made.parent = None if level.parent is None else twins[level.parent]
        twin._levels = {name: twins[level] for name, level in self._levels.items()}
        return twin

    def level(self, queue: str) -> Level:
        """The queue's level; for one that doesn't exist, a child of the root without limits."""
        level = self._levels.get(queue) if queue else self.root
        if level is None:
            level = self._levels[queue] = Level(queue)
            _hang(level, self.root)
        return level

    def _read(self, name: str, spec: QueueSpec) -> Level:
        level = Level(name)
        level.stopped, level.reclaimable = spec.stopped, spec.reclaimable
        level.weight = max(spec.weight, 1)
        if spec.weight < 1:
            self.problems[name].append(f"its weight is {spec.weight}, below 1; it counts as 1")
        ceiling = self._amounts(name, "capability", spec.capability, "nothing of it is given out until that is mended")
        level.ceiling = {resource: count or 0 for resource, count in ceiling.items()}
        floor = self._amounts(name, "guarantee", spec.guarantee, "none of it is guaranteed until that is mended")
        level.floor = {resource: count for resource, count in floor.items() if count}
        given = self._amounts(name, "deserved", spec.deserved, "it counts as left out until that is mended")
        level.given = {resource: count for resource, count in given.items() if count is not None}
        return level

    def _amounts(self, name: str, field: str, written: Mapping[str, str | int], outcome: str) -> dict[str, int | None]:
        """What is written; None for what can't be read or is below zero."""
        read: dict[str, int | None] = {}
        for resource in sorted(written):
            try:
                count = amount(resource, written[resource])
            except QuantityError as error:
                self.problems[name].append(f"{field} of {resource}: {error}; {outcome}")
                read[resource] = None
                continue
            if count < 0:
                self.problems[name].append(f"{field} of {resource}: {written[resource]} is below zero; {outcome}")
            read[resource] = count if count >= 0 else None
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


class _Judge:
    """Says what can't hold together, in sentences, to each queue that has a part in it.

    By the formulas a guarantee holds above a capability, a deserved counts within both, and the lowest capability on
    the way up holds.
    """

    def __init__(self, order: Sequence[Level], problems: Mapping[str, list[str]]) -> None:
        """`order`: the root, then all levels below it, parents first."""
        self.root, self.levels = order[0], order[1:]
        self.problems = problems
        self.below: dict[Level, dict[str, int]] = {}
        """By level: what is given to those below it, together."""
        for level in reversed(order):
            self.below[level] = add(*(_given(child, self.below[child]) for child in level.children))

    def judge(self) -> None:
        for level in self.levels:
            say = self.problems[level.name].append
            _judge_guarantee(level, say)
            _judge_capability(level, say)
            _judge_deserved(level, self.below[level], say)
        guarantees = {level: level.floor for level in self.levels}
        self._judge_total("all guarantees together are", self.root.idle, guarantees, "be kept at once")
        deserved = {level: level.given for level in self.levels}
        self._judge_total("all that is given as deserved is", self.below[self.root], deserved, "have it at once")

    def _judge_total(self, what: str, sums: Amounts, parts: Mapping[Level, Amounts], end: str) -> None:
        """Promises that add up to more than the cluster has: each queue that has a part in it says so."""
        for resource, count in sorted(sums.items()):
            have = self.root.limit(resource) or 0
            if count <= have:
                continue
            for level, part in parts.items():
                if part.get(resource, 0):
                    self.problems[level.name].append(
                        f"{what} {show({resource: count})} and the cluster has {show({resource: have})}: "
                        f"not all of them can {end}"
                    )


def _judge_guarantee(level: Level, say: Callable[[str], None]) -> None:
    for resource, count in sorted(level.floor.items()):
        ceiling = level.ceiling.get(resource)
        if ceiling is not None and count > ceiling:
            below = level.idle.get(resource, 0)
            what = "the guarantees of its children add up to" if count == below else "its guarantee is"
            say(f"{what} {show({resource: count})}, above its capability of {show({resource: ceiling})}")


def _judge_capability(level: Level, say: Callable[[str], None]) -> None:
    for resource, count in sorted(level.ceiling.items()):
        above = next((each for each in level.path() if each is not level and resource in each.ceiling), None)
        if above is not None and above.parent is not None and count > above.ceiling[resource]:
            say(
                f"its capability is {show({resource: count})}, above that of {above.name}, "
                f"{show({resource: above.ceiling[resource]})}, which holds"
            )


def _judge_deserved(level: Level, below: Amounts, say: Callable[[str], None]) -> None:
    for resource, count in sorted(level.given.items()):
        counts = level.within_limits(resource, count)
        if counts != count:
            bound = f"below its guarantee of {show({resource: counts})}"
            if counts < count:
                bound = f"above its capability of {show({resource: counts})}"
            say(f"its deserved is {show({resource: count})}, {bound}; it counts as {show({resource: counts})}")
    for resource, count in sorted(below.items()):
        own = level.given.get(resource)
        most = level.ceiling.get(resource) if own is None else level.within_limits(resource, own)
        if most is not None and count > most:
            bound = f"its {'capability' if own is None else 'own'} of {show({resource: most})}"
            say(f"the deserved of its children add up to {show({resource: count})}, above {bound}")


def _given(level: Level, below: Amounts) -> dict[str, int]:
    """What is given to this level, or else to those below it."""
    return {**below, **{resource: level.within_limits(resource, count) for resource, count in level.given.items()}}


def _raise_floor(level: Level) -> None:
    """The guarantee of a parent from those of its children, which are raised already; the root has none."""
    level.idle = add(*(child.floor for child in level.children))
    level.inner = dict(level.idle)
    if level.parent is not None:
        level.floor = largest(level.floor, level.idle)


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
