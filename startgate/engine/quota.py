"""Quota: the arithmetic of who may have how much, on a tree of queues. The design's section "Quota", nothing else.

* charge(queue) = max(its guarantee, its own use + the sum of its children's charges), resource by resource;
* within quota: with the gang added, charge <= capability for its queue and each ancestor, and <= total at the root,
  in every resource that the gang asks for. A level whose charge it doesn't raise can't block it.

What always holds: amounts are exact integers, so no sum overflows or drifts; a question, and an answer taken, cost the
depth of the tree times the resources asked for; what the queues have is changed by `take` alone.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from startgate.engine.tree import Level, Tree
from startgate.model.queue import QueueSpec
from startgate.model.resources import Amounts, add


class Refusal(msgspec.Struct, frozen=True):
    """The lowest level that has too little left, and all the resources in which it has."""

    level: Level
    left: dict[str, int]
    """What the asking queue could still have as far up as this level."""


_Bounds: TypeAlias = tuple[tuple[Level, int], ...]
_Chain: TypeAlias = tuple[tuple[Level, int, int | None], ...]
"""Levels from below, each with its guarantee and its ceiling."""


class Books:
    """Who has how much: the tree with what runs in it."""

    def __init__(self, queues: Mapping[str, QueueSpec], total: Amounts) -> None:
        self._tree = Tree(queues, total)
        self.root = self._tree.root
        self.problems: Mapping[str, list[str]] = self._tree.problems
        self._now: dict[tuple[str, str], _Bounds] = {}
        self._idle: dict[tuple[str, str], _Bounds] = {}
        """By queue and resource: worked out once, as long as nothing is taken."""
        self._chains: dict[tuple[str, str], _Chain] = {}

    def copy(self) -> "Books":
        """Other books that say the same; what is taken in either isn't seen in the other."""
        twin = Books.__new__(Books)
        twin._tree = self._tree.copy()
        twin.root = twin._tree.root
        twin.problems = self.problems
        twin._now, twin._idle, twin._chains = {}, {}, {}
        return twin

    def level(self, queue: str) -> Level:
        """The queue's level, for reading."""
        return self._tree.level(queue)

    def refusal(self, queue: str, asks: Amounts, *, idle: bool = False) -> Refusal | None:
        """Whether so much more is within quota (None), or which level is in the way.

        With `idle`: if nothing ran at all and the cluster were large enough; None then means that it can be some day.
        """
        blocked: dict[str, tuple[Level, int]] = {}
        for resource, asked in asks.items():
            bounds = self._bounds(queue, resource, idle=idle)
            if asked <= 0 or not bounds or asked <= bounds[-1][1]:
                continue
            for level, most in bounds:
                if asked > most and not (idle and level.parent is None):
                    blocked[resource] = level, most
                    break
        if not blocked:
            return None
        levels = {level for level, _ in blocked.values()}
        lowest = next(each for each in self.level(queue).path() if each in levels)
        return Refusal(lowest, {each: most for each, (level, most) in blocked.items() if level is lowest})

    def could_be(self, queue: str, asks: Amounts) -> bool:
        """Whether so much more would be within quota if nothing ran at all, in a cluster of this size."""
        bounds = {resource: self._bounds(queue, resource, idle=True) for resource, asked in asks.items() if asked > 0}
        return all(not found or asks[resource] <= found[-1][1] for resource, found in bounds.items())

    def times(self, queue: str, each: Amounts, most: int) -> int:
        """How many times so much more is within quota, at most `most`."""
        for resource, asked in each.items():
            if asked > 0:
                most = min(most, max(0, self._bounds(queue, resource, idle=False)[-1][1] // asked))
        return most

    def _bounds(self, queue: str, resource: str, *, idle: bool) -> _Bounds:
        known = self._idle if idle else self._now
        found = known.get((queue, resource))
        if found is None:
            chain = self._chains.get((queue, resource))
            if chain is None:
                chain = self._chains[queue, resource] = _chain(self.level(queue), resource)
            found = known[queue, resource] = _bounds(chain, resource, idle=idle)
        return found

    def take(self, queue: str, amounts: Amounts) -> None:
        """Charges so much to the queue, whatever the limits say."""
        level = self.level(queue)
        self._now.clear()
        for resource, count in amounts.items():
            level.own[resource] = level.own.get(resource, 0) + count
            rise, each = count, level
            while rise:
                inner, floor = each.inner, each.floor.get(resource, 0)
                before = inner.get(resource, 0)
                after = inner[resource] = before + rise
                if each.parent is None:
                    break
                if before < floor or after < floor:
                    rise = max(floor, after) - max(floor, before)
                each = each.parent

    def headroom(self, queue: str, *, idle: bool = False) -> dict[str, int]:
        """What one more gang could ask for and be within quota, in each resource with a ceiling on the way up.

        With `idle`: if nothing ran at all.
        """
        level = self.level(queue)
        resources = {resource for each in level.path() for resource in each.ceiling}
        return {each: self.left(queue, each, idle=idle) for each in sorted(resources)}

    def left(self, queue: str, resource: str, *, idle: bool = False) -> int:
        """The same of one resource, which has a ceiling somewhere on the way up."""
        return self._bounds(queue, resource, idle=idle)[-1][1]

    def closed(self) -> "Books":
        """The same books, closed: nothing is taken from now on, so what is asked often is worked out once."""
        twin = _Closed.__new__(_Closed)
        twin.__dict__.update(self.__dict__)
        twin.known = {}
        return twin

    def state(self) -> object:
        """All that an answer about quota depends on, as a value: equal ones give equal answers."""
        return [
            (
                level.name,
                level.parent and level.parent.name,
                dict(level.ceiling),
                dict(level.floor),
                dict(level.own),
            )
            for level in self.root.below()
        ]

    def use(self, level: Level) -> dict[str, int]:
        """What runs in this queue and in those below it."""
        return add(*(each.own for each in level.below()))

    def kept(self, queue: str, level: Level) -> dict[str, int]:
        """What is kept, below this level, for guarantees of others than this queue and its parents."""
        return add(*(other.unused() for other in self._others(queue, level)))

    def keepers(self, queue: str, level: Level, resources: Iterable[str]) -> list[str]:
        """For whom it is kept: the names of those queues that have an unused guarantee of any of these resources."""
        named = set(resources)
        return sorted(other.name for other in self._others(queue, level) if not named.isdisjoint(other.unused()))

    def stopped_by(self, queue: str) -> str | None:
        """The queue that is stopped: this one, or the nearest above it that is; None where none is.

        A stopped queue stops those below it: who shuts a tenant's gate means all of the tenant's queues.
        """
        return next((each.name for each in self.level(queue).path() if each.stopped), None)

    def _others(self, queue: str, level: Level) -> list[Level]:
        own = {*self.level(queue).path(), level}
        return [each for each in level.below() if each not in own]


class _Closed(Books):
    """Books in which nothing changes any more."""

    known: dict[tuple[str, str, str], dict[str, int]]

    def use(self, level: Level) -> dict[str, int]:
        return self._once(("use", "", level.name), lambda: Books.use(self, level))

    def kept(self, queue: str, level: Level) -> dict[str, int]:
        return self._once(("kept", queue, level.name), lambda: Books.kept(self, queue, level))

    def _once(self, key: tuple[str, str, str], work: Callable[[], dict[str, int]]) -> dict[str, int]:
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = work()
        return found


def _chain(level: Level, resource: str) -> _Chain:
    """Of this level and those above it, those that have something to say of this resource."""
    said = ((each, each.floor.get(resource, 0), each.limit(resource)) for each in level.path())
    return tuple([each for each in said if each[1] or each[2] is not None])


def _bounds(chain: _Chain, resource: str, *, idle: bool) -> _Bounds:
    """What may be asked for as far up as each level that has a ceiling in this resource, from below; each at most what
    the one before it lets through.

    At each level, what its guarantee still covers passes in any case; what is beyond that has to stay below its
    ceiling and to pass the levels above.
    """
    covered, most = 0, None
    found = []
    for each, floor, ceiling in chain:
        inner = (each.idle if idle else each.inner).get(resource, 0)
        slack = floor - inner if floor > inner else 0
        if ceiling is not None:
            here = covered + (slack if slack > ceiling - inner else ceiling - inner)
            if most is None or here < most:
                most = here
            found.append((each, most))
        covered += slack
    return tuple(found)
