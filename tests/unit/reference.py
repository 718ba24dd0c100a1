"""The formulas of quota and fair shares, slowly and plainly: what the engine's answers are compared with.

Written from the sentences alone (docs/explanation/quota.md, the docstrings of engine.quota, engine.fair and
engine.order), and from nothing of the engine: everything is worked out anew at each question, by recursion, with
fractions. What is shared is how an amount is read.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import floor, inf
from typing import TypeAlias

from startgate.engine.world import Waiting
from startgate.model.queue import QueueSpec
from startgate.model.resources import Amounts, amount


class Formulas:
    """Charge and quota. The root is ""; queues whose parent can't be are its children, and so are unknown ones."""

    def __init__(self, queues: Mapping[str, QueueSpec], total: Amounts) -> None:
        self.queues, self.total = dict(queues), total
        self.own: dict[str, dict[str, int]] = {name: {} for name in queues}

    def read(self, written: Mapping[str, str | int], resource: str) -> int | None:
        return amount(resource, written[resource]) if resource in written else None

    def parent(self, name: str) -> str:
        above = self.queues[name].parent
        seen = []
        while above in self.queues and above not in seen:
            seen.append(above)
            above = self.queues[above].parent
        parent = self.queues[name].parent
        return "" if name in seen or parent not in self.queues else parent

    def children(self, name: str) -> list[str]:
        return [each for each in self.queues if self.parent(each) == name]

    def floor(self, name: str, resource: str) -> int:
        own = self.read(self.queues[name].guarantee, resource) or 0
        return max(own, sum(self.floor(child, resource) for child in self.children(name)))

    def ceiling(self, name: str, resource: str) -> int | None:
        return self.read(self.queues[name].capability, resource) if name else self.total.get(resource, 0)

    def charge(self, name: str, resource: str) -> int:
        below = sum(self.charge(child, resource) for child in self.children(name))
        if not name:
            return below
        return max(self.floor(name, resource), self.own[name].get(resource, 0) + below)

    def charges(self, name: str, resource: str) -> list[tuple[int, int | None]]:
        """(charge, ceiling) of the queue and each level above."""
        found: list[tuple[int, int | None]] = []
        while name:
            found.append((self.charge(name, resource), self.ceiling(name, resource)))
            name = self.parent(name)
        return [*found, (self.charge("", resource), self.ceiling("", resource))]

    def within(self, name: str, asks: Amounts) -> bool:
        before = {each: self.charges(name, each) for each in asks}
        self.take(name, asks)
        after = {each: self.charges(name, each) for each in asks}
        self.take(name, {each: -count for each, count in asks.items()})
        return all(
            asks[each] == 0 or new == old or ceiling is None or new <= ceiling
            for each in asks
            for (old, _), (new, ceiling) in zip(before[each], after[each], strict=True)
        )

    def take(self, name: str, asks: Amounts) -> None:
        self.queues.setdefault(name, QueueSpec())
        own = self.own.setdefault(name, {})
        for each, count in asks.items():
            own[each] = own.get(each, 0) + count


Place: TypeAlias = tuple[str, bool]
"""A queue, or with True the gangs that a queue with children has itself."""

ROOT: Place = ("", False)


class Fairness:
    """Deserved, share and order, over the books as they are now and what the gangs ask for now."""

    def __init__(self, quota: Formulas, going: Mapping[str, Amounts], asks: Mapping[str, Amounts]) -> None:
        self.quota, self.going, self.asks = quota, going, asks
        for name in (*going, *asks):
            quota.take(name, {})
        self.due: dict[Place, dict[str, int]] = {ROOT: dict(quota.total)}
        self.settle(ROOT)

    def resources(self) -> list[str]:
        specs = self.quota.queues.values()
        held = [self.quota.total, *self.quota.own.values(), *self.asks.values()]
        written = [*(spec.deserved for spec in specs), *(spec.guarantee for spec in specs)]
        return sorted({each for some in (*held, *written) for each in some})

    def places(self, place: Place) -> list[Place]:
        """Those among whom is shared out what this one deserves."""
        name, alone = place
        children = [] if alone else [(child, False) for child in self.quota.children(name)]
        return [*children, (name, True)] if children and name else children

    def place(self, queue: str) -> Place:
        """Where the gangs of this queue are."""
        return (queue, True) if self.quota.children(queue) else (queue, False)

    def above(self, place: Place) -> Place | None:
        name, alone = place
        if alone:
            return (name, False)
        return (self.quota.parent(name), False) if name else None

    def use(self, place: Place, resource: str) -> int:
        if places := self.places(place):
            return sum(self.use(each, resource) for each in places)
        name = place[0]
        return self.quota.own.get(name, {}).get(resource, 0) - self.going.get(name, {}).get(resource, 0)

    def request(self, place: Place, resource: str) -> int:
        if places := self.places(place):
            return sum(self.wanted(each, resource) for each in places)
        return self.use(place, resource) + self.asks.get(place[0], {}).get(resource, 0)

    def floor(self, place: Place, resource: str) -> int:
        return 0 if place[1] else self.quota.floor(place[0], resource)

    def given(self, place: Place, resource: str) -> int | None:
        """As written, at most the capability and at least the guarantee."""
        name, alone = place
        written = None if alone else self.quota.read(self.quota.queues[name].deserved, resource)
        return (
            None if written is None else max(self.floor(place, resource), self.under_ceiling(place, resource, written))
        )

    def under_ceiling(self, place: Place, resource: str, count: int) -> int:
        ceiling = self.quota.ceiling(place[0], resource)
        return count if ceiling is None else min(count, ceiling)

    def wanted(self, place: Place, resource: str) -> int:
        """The most that it could make use of: what it asks for, and what it deserves without asking."""
        given = self.given(place, resource)
        least = self.floor(place, resource) if given is None else given
        return max(least, self.under_ceiling(place, resource, self.request(place, resource)))

    def settle(self, place: Place) -> None:
        """What those below deserve, from the root down."""
        places = self.places(place)
        for each in places:
            self.due[each] = {}
        for resource in self.resources():
            if not any(self.has_to_do_with(each, resource) for each in places):
                continue  # what none of them asks for or is promised is not theirs to share
            rest = self.due[place].get(resource, 0)
            unsaid = []
            for each in places:
                given = self.given(each, resource)
                if given is None:
                    if not each[1] or self.request(each, resource) > 0:  # a parent without own gangs takes no part
                        unsaid.append(each)
                else:
                    self.due[each][resource] = given
                    rest -= given
            for each, count in zip(unsaid, self.fill(unsaid, resource, max(rest, 0)), strict=True):
                self.due[each][resource] = count
        for each in places:
            self.settle(each)

    def has_to_do_with(self, place: Place, resource: str) -> bool:
        given = self.given(place, resource)
        return given is not None or self.floor(place, resource) > 0 or self.request(place, resource) > 0

    def fill(self, places: list[Place], resource: str, rest: int) -> list[int]:
        """Water rises from breakpoint to breakpoint until the rest is used up."""
        low = [self.floor(each, resource) for each in places]
        high = [self.wanted(each, resource) for each in places]
        if sum(high) <= rest:  # nobody goes without: what nobody asks for is shared out on top of what is asked for
            ceilings = [self.under_ceiling(each, resource, rest) for each in places]
            low, high = high, [max(most, top) for most, top in zip(high, ceilings, strict=True)]
        weights = [1 if alone else self.quota.queues[name].weight for name, alone in places]

        def at(level: Fraction) -> list[Fraction]:
            return [
                min(max(level * weight, Fraction(least)), Fraction(most))
                for weight, least, most in zip(weights, low, high, strict=True)
            ]

        steps = sorted(
            {Fraction(bound, weight) for side in (low, high) for bound, weight in zip(side, weights, strict=True)}
        )
        level = Fraction(0)
        for step in steps:
            if sum(at(step)) > rest:
                if sum(at(level)) < rest:
                    slope = (sum(at(step)) - sum(at(level))) / (step - level)
                    level += (rest - sum(at(level))) / slope
                break
            level = step
        parts = at(level)
        whole = [floor(part) for part in parts]
        over = floor(sum(parts)) - sum(whole)
        by_remainder = sorted(
            range(len(places)),
            key=lambda i: (whole[i] - parts[i], whole[i] - self.use(places[i], resource), places[i][0]),
        )
        for i in by_remainder[:over]:
            whole[i] += 1
        return whole

    def share(self, place: Place) -> Fraction | float:
        """Infinite for who deserves nothing, or nothing of what it has."""
        due = {resource: count for resource, count in self.due[place].items() if count}
        if not due:
            return inf
        used = {resource: self.use(place, resource) for resource in self.resources() if self.use(place, resource) > 0}
        if not used.keys() <= due.keys():
            return inf
        return max((Fraction(count, due[resource]) for resource, count in used.items()), default=Fraction(0))

    def next(self, waiting: Iterable[Waiting], place: Place = ROOT) -> Waiting | None:
        """The gang whose turn it is among these."""
        there = [gang for gang in waiting if place in self.path(gang.queue)]
        if not there:
            return None
        places = self.places(place)
        if not places:
            return min(there, key=turn)
        found = [(each, gang) for each in places if (gang := self.next(there, each)) is not None]
        return min(found, key=lambda pair: (self.share(pair[0]), turn(pair[1])))[1]

    def path(self, queue: str) -> list[Place]:
        place: Place | None = self.place(queue)
        found = []
        while place is not None:
            found.append(place)
            place = self.above(place)
        return found


def turn(gang: Waiting) -> tuple[int, float, str]:
    return -gang.priority, gang.since, gang.gang
