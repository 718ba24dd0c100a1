"""Quota: who may have how much, on a tree of queues. The formulas of the design's section "Quota", nothing else.

* charge(queue) = max(its guarantee, its own use + the sum of its children's charges), resource by resource;
* a queue's guarantee is at least the sum of its children's;
* within quota: with the gang added, charge <= capability for its queue and each ancestor, and <= total at the root,
  in every resource that the gang asks for. A level whose charge it doesn't raise can't block it.

What always holds: amounts are exact integers, so no sum overflows or drifts; a question costs depth x resources asked;
a queue that is badly written never stops another one. What is bad is said (`problems`) and has one meaning:

* an amount of `capability` that can't be read, or is negative, counts as 0: a ceiling in doubt lets nothing through;
* one of `guarantee` counts as none; `deserved` isn't read on this floor, but said;
* a parent that doesn't exist, and each queue that is in a cycle of parents: a child of the root. Queues that only hang
  below a cycle keep their parents.
* a queue that is charged but no longer exists goes on as a child of the root with no limits, so that what runs counts.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from startgate.model.quantity import QuantityError, format_amount
from startgate.model.queue import QueueSpec
from startgate.model.resources import Amounts, amount

ROOT = ""
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
        self.floor: dict[str, int] = {}
        """The guarantee, raised to the sum of the children's."""
        self.own: dict[str, int] = {}
        self.inner: dict[str, int] = {}
        """Own use + the sum of the children's charges."""
        self.idle: dict[str, int] = {}
        """What `inner` is when nothing runs at all: the sum of the children's guarantees."""

    def limit(self, resource: str) -> int | None:
        """The ceiling in this resource; at the root what the cluster has, so never None there."""
        return self.ceiling.get(resource, 0 if self.parent is None else None)

    def charge(self, resource: str) -> int:
        return max(self.floor.get(resource, 0), self.inner.get(resource, 0))

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


class Refusal(msgspec.Struct, frozen=True):
    """The lowest level that has too little left, and every resource in which it has."""

    level: Level
    left: dict[str, int]
    """What the asking queue could still have as far up as this level."""


class Books:
    """Who has how much. `take` is the only thing that changes them."""

    def __init__(self, queues: Mapping[str, QueueSpec], total: Amounts) -> None:
        self.total = total
        self.problems: dict[str, list[str]] = {name: [] for name in sorted(queues)}
        self.root = Level(ROOT)
        self.root.ceiling = dict(total)
        self.levels: dict[str, Level] = {}
        for name in sorted(queues):
            self.levels[name] = self._read(name, queues[name])
        self._join(queues)
        for level in self.root.children:
            self._raise_floors(level)
        self.root.idle = self.root.inner = _sum(child.floor for child in self.root.children)
        self.root.inner = dict(self.root.idle)
        self._judge_floors()

    def level(self, queue: str) -> Level:
        """The queue's level; for one that doesn't exist, a child of the root without limits."""
        level = self.levels.get(queue)
        if level is None:
            level = self.levels[queue] = Level(queue)
            self._hang(level, self.root)
        return level

    def refusal(self, queue: str, asks: Amounts, *, idle: bool = False) -> Refusal | None:
        """Whether so much more is within quota (None), or which level is in the way.

        With `idle`: on a cluster where nothing runs, and however large; so None means that it can be within quota.
        """
        found: dict[Level, dict[str, int]] = {}
        level = self.level(queue)
        for resource, asked in asks.items():
            blocked = _blocked(level, resource, asked, idle=idle)
            if blocked is not None:
                found.setdefault(blocked, {})[resource] = 0
        if not found:
            return None
        lowest = next(each for each in level.path() if each in found)
        left = {resource: max(_left(level, resource, lowest, idle=idle) or 0, 0) for resource in found[lowest]}
        return Refusal(lowest, left)

    def times(self, queue: str, each: Amounts, most: int) -> int:
        """How many times so much is within quota, at most `most`."""
        level = self.level(queue)
        for resource, asked in each.items():
            if asked > 0 and _blocked(level, resource, asked * most, idle=False) is not None:
                most = max(_left(level, resource, self.root, idle=False) or 0, 0) // asked
        return most

    def stopped_by(self, queue: str) -> str | None:
        """The queue that is stopped: this one, or the nearest above it that is; None where none is."""
        return next((each.name for each in self.level(queue).path() if each.stopped), None)

    def take(self, queue: str, amounts: Amounts) -> None:
        """Charges so much to the queue, whatever the limits say."""
        level = self.level(queue)
        for resource, count in amounts.items():
            level.own[resource] = level.own.get(resource, 0) + count
            rise = count
            for each in level.path():
                before = each.charge(resource)
                each.inner[resource] = each.inner.get(resource, 0) + rise
                rise = each.charge(resource) - before
                if rise == 0:
                    break

    def headroom(self, queue: str) -> dict[str, int]:
        """What one more gang could ask for and be within quota, in each resource with a ceiling somewhere above it."""
        level = self.level(queue)
        resources = sorted({resource for each in level.path() for resource in each.ceiling})
        left = {resource: _left(level, resource, self.root, idle=False) for resource in resources}
        return {resource: max(amount, 0) for resource, amount in left.items() if amount is not None}

    def kept(self, queue: str, level: Level) -> dict[str, int]:
        """What is kept below this level for guarantees that others than this queue (and its parents) have not used."""
        own = set(self.level(queue).path())
        return _sum(_unused(each) for each in level.below() if each not in own and each is not level)

    def keepers(self, queue: str, level: Level, resources: Iterable[str]) -> list[str]:
        """For whom: the names of those queues, for any of these resources."""
        own, named = set(self.level(queue).path()), set(resources)
        return sorted(
            each.name
            for each in level.below()
            if each not in own and each is not level and not named.isdisjoint(_unused(each))
        )

    def use(self, level: Level) -> dict[str, int]:
        """What runs in this queue and in those below it."""
        return _sum(each.own for each in level.below())

    def _read(self, name: str, spec: QueueSpec) -> Level:
        level = Level(name)
        level.stopped = spec.stopped
        level.ceiling = self._amounts(
            name, "capability", spec.capability, "nothing of it is given out until it is mended"
        )
        level.floor = self._amounts(name, "guarantee", spec.guarantee, "none of it is guaranteed until it is mended")
        self._amounts(name, "deserved", spec.deserved, "it is filled by weight until it is mended")
        if level.ceiling:
            level.ceiling = {resource: max(count, 0) for resource, count in level.ceiling.items()}
        level.floor = {resource: count for resource, count in level.floor.items() if count > 0}
        return level

    def _amounts(self, name: str, field: str, written: Mapping[str, str | int], outcome: str) -> dict[str, int]:
        read = {}
        for resource in sorted(written):
            try:
                read[resource] = amount(resource, written[resource])
            except QuantityError as error:
                read[resource] = 0
                self.problems[name].append(f"{field} of {resource}: {error}; {outcome}")
            else:
                if read[resource] < 0:
                    self.problems[name].append(f"{field} of {resource} is negative ({written[resource]}); {outcome}")
        return read

    def _join(self, queues: Mapping[str, QueueSpec]) -> None:
        """Hangs each queue below its parent."""
        cyclic = _cyclic({name: spec.parent for name, spec in queues.items()})
        for name in sorted(queues):
            level, parent = self.levels[name], queues[name].parent
            if name in cyclic:
                self.problems[name].append(
                    f"its parents go in a circle ({' → '.join(cyclic[name])}); counted as a child of the root"
                )
                parent = ROOT
            elif parent and parent not in queues:
                self.problems[name].append(
                    f"there is no queue {parent} to be its parent; counted as a child of the root"
                )
                parent = ROOT
            self._hang(level, self.levels[parent] if parent else self.root)

    def _hang(self, level: Level, parent: Level) -> None:
        level.parent = parent
        parent.children.append(level)

    def _raise_floors(self, level: Level) -> None:
        """Guarantees of parents, from below; and the books of a tree in which nothing runs yet."""
        for child in level.children:
            self._raise_floors(child)
        level.idle = _sum(child.floor for child in level.children)
        level.inner = dict(level.idle)
        for resource, kept in level.idle.items():
            ceiling = level.ceiling.get(resource)
            if ceiling is not None and kept > ceiling:
                self.problems[level.name].append(
                    f"the guarantees of its children add up to {_text(resource, kept)}, "
                    f"above its capability of {_text(resource, ceiling)}: not all of them can be kept"
                )
        for resource, own in level.floor.items():
            ceiling = level.ceiling.get(resource)
            if ceiling is not None and own > ceiling:
                self.problems[level.name].append(
                    f"its guarantee of {_text(resource, own)} is above its capability of {_text(resource, ceiling)}"
                )
        for resource, kept in level.idle.items():
            level.floor[resource] = max(level.floor.get(resource, 0), kept)

    def _judge_floors(self) -> None:
        """Guarantees that add up to more than the cluster has: each queue that has a part in it says so."""
        for resource, kept in sorted(self.root.idle.items()):
            have = self.total.get(resource, 0)
            if kept <= have:
                continue
            for level in self.root.children:
                for each in level.below():
                    if each.name in self.problems and each.floor.get(resource, 0):
                        self.problems[each.name].append(
                            f"all guarantees together add up to {_text(resource, kept)}, and the cluster has "
                            f"{_text(resource, have)}: not all of them can be kept at once"
                        )


def _blocked(level: Level, resource: str, asked: int, *, idle: bool) -> Level | None:
    """The first level from below whose charge this would raise above its ceiling; the root is left out with `idle`."""
    rise = asked
    for each in level.path():
        inner = (each.idle if idle else each.inner).get(resource, 0)
        floor = each.floor.get(resource, 0)
        after = inner + rise
        rise = after - max(floor, inner)
        if rise <= 0:
            return None
        ceiling = each.limit(resource)
        if ceiling is not None and after > ceiling and not (idle and each.parent is None):
            return each
    return None


def _left(level: Level, resource: str, top: Level, *, idle: bool) -> int | None:
    """The most that may be asked for as far up as `top`; None without any ceiling on the way.

    At each level: what its guarantee still covers passes in any case, what is beyond that must be under its ceiling and
    pass the levels above.
    """
    covered, most = 0, None
    for each in level.path():
        inner = (each.idle if idle else each.inner).get(resource, 0)
        slack = max(each.floor.get(resource, 0) - inner, 0)
        ceiling = each.limit(resource)
        if ceiling is not None:
            here = covered + max(slack, ceiling - inner)
            most = here if most is None else min(most, here)
        covered += slack
        if each is top:
            break
    return most


def _unused(level: Level) -> dict[str, int]:
    """What of the guarantee nothing in the queue or below it takes up."""
    unused = {resource: floor - level.inner.get(resource, 0) for resource, floor in level.floor.items()}
    return {resource: count for resource, count in unused.items() if count > 0}


def _cyclic(parents: Mapping[str, str]) -> dict[str, list[str]]:
    """Each queue that is its own ancestor, with the way round, the first name in order first."""
    found: dict[str, list[str]] = {}
    done: set[str] = set()
    for start in sorted(parents):
        way: list[str] = []
        name = start
        while name in parents and name not in done and name not in way:
            way.append(name)
            name = parents[name]
        if name in way:
            circle = way[way.index(name) :]
            first = circle.index(min(circle))
            circle = circle[first:] + circle[:first]
            found.update({name: [*circle, circle[0]] for name in circle})
        done.update(way)
    return found


def _sum(many: Iterable[Amounts]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in many:
        for resource, count in each.items():
            total[resource] = total.get(resource, 0) + count
    return total


def _text(resource: str, count: int) -> str:
    return f"{format_amount(resource, count)} {resource}"
