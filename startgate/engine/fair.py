"""Fair shares: what each queue deserves, and how much of that it has. The design's section "Quota", nothing else.

* deserved, from the root down, resource by resource. The root deserves the total, without what pods that are nobody's
  hold of it. A child with a given amount deserves that, at least its guarantee and else at most its capability. What
  then remains of the parent's is filled by weight over the other children: weight x level each, the same level for
  all, at least the guarantee and at most what is asked for, so that nothing is lost while anybody asks. Where all that
  is asked for can be had, what nobody asks for is shared out on top of it in the same way, at most to the capability;
* what is asked for: of a queue its use and what its waiting gangs ask for; of a parent what its children could deserve
  or ask for, each within its capability;
* share = the greatest, over resources with allocation, of allocated / deserved. NOTHING, which comes after every other,
  for who deserves nothing, or nothing of what it has.

What always holds: amounts and shares are exact; what is deserved stays as it is while a decision goes on (a gang that
starts moves from what is asked to what is used, and the sum of the two is the same); only `take` changes the use.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from startgate.engine.quota import Books
from startgate.engine.tree import Level
from startgate.engine.world import Rule
from startgate.model.resources import Amounts, add, subtract

EVEN: Final = 1 << 256
"""The share of who has just what it deserves."""

Share: TypeAlias = int
"""To be compared as it is: in parts of EVEN, rounded down. No two ratios of amounts come out the same that aren't, and
none changes places with another: they differ by more than a part while amounts are below 2 to the power of 127."""

NOTHING: Final[Share] = EVEN << 256


class Seat:
    """Who takes part in sharing: a queue; or the gangs that an inner queue (one with children) has itself.

    Those stand beside its children as one more child (`own`): weight 1, no guarantee, nothing given, under the queue's
    own capability. So all gangs are at the ends of the tree. Amounts by resource, without zeros (except in `given`).
    """

    __slots__ = (
        "_share",
        "children",
        "deserved",
        "floor",
        "given",
        "level",
        "own",
        "parent",
        "path",
        "request",
        "use",
        "weight",
    )

    def __init__(self, level: Level, parent: "Seat | None", *, own: bool = False) -> None:
        self.level = level
        self.parent = parent
        self.own = own
        self.path: tuple[Seat, ...] = (self, *(() if parent is None else parent.path))
        """This seat and all above it, the root last."""
        self.children: list[Seat] = []
        self.weight = 1 if own else level.weight
        self.floor: Mapping[str, int] = {} if own or parent is None else level.floor
        self.given: Mapping[str, int] = {} if own else level.given
        self.deserved: dict[str, int] = {}
        self.use: dict[str, int] = {}
        """What it is charged for, without what is on its way out."""
        self.request: dict[str, int] = {}
        """What it has and asks for."""
        self._share: Share | None = None
        if parent is not None:
            parent.children.append(self)

    @property
    def name(self) -> str:
        """The queue's; "" for the root."""
        return self.level.name

    @property
    def reclaimable(self) -> bool:
        return self.level.reclaimable

    def limit(self, resource: str) -> int | None:
        """The capability in this resource, if there is one."""
        return self.level.limit(resource)

    def share(self) -> Share:
        """The greatest of allocated / deserved; worked out when it is asked for."""
        if self._share is None:
            self._share = _share(self.use, self.deserved)
        return self._share

    def take(self, amounts: Amounts) -> None:
        self._share = None
        for resource, count in amounts.items():
            after = self.use.get(resource, 0) + count
            if after:
                self.use[resource] = after
            else:
                self.use.pop(resource, None)

    def least(self, resource: str) -> int:
        """What it deserves whether it asks or not: the given amount, or the guarantee."""
        given = self.given.get(resource)
        return self.floor.get(resource, 0) if given is None else self.level.within_limits(resource, given)

    def wanted(self, resource: str) -> int:
        """The most that it could make use of, with what it deserves in any case."""
        limit, request = self.limit(resource), self.request.get(resource, 0)
        return max(self.least(resource), request if limit is None else min(request, limit))


class Shares:
    """The tree of seats, with what each deserves and has."""

    def __init__(
        self,
        books: Books,
        going: Mapping[str, Amounts],
        asks: Mapping[str, Amounts],
        outside: Amounts = MappingProxyType({}),
    ) -> None:
        """`going`: by queue, what of its charge is on its way out; that doesn't count as use here. `asks`: by queue,
        what its waiting gangs ask for (only those that could start: what others deserve is less for it). `outside`:
        what pods that are nobody's hold of the total; it can't be shared out.
        """
        self._books = books
        for queue in (*going, *asks):
            books.level(queue)
        self._seats: dict[str, Seat] = {}
        """By queue: where its gangs sit."""
        order = self._build()
        self.root = order[0]
        for queue, seat in self._seats.items():
            seat.use = _positive(subtract(seat.level.own, going.get(queue, {})))
            seat.request = _positive(add(seat.use, asks.get(queue, {})))
        for seat in reversed(order):
            if seat.children:
                seat.use = add(*(child.use for child in seat.children))
                seat.request = _requested(seat.children)
        self.root.deserved = _positive(subtract(books.root.ceiling, outside))
        for seat in order:
            _share_out(seat)

    def _build(self) -> list[Seat]:
        """All seats, parents first."""
        seats: dict[Level, Seat] = {}
        order: list[Seat] = []
        for level in self._books.root.below():
            parent = level.parent
            seat = seats[level] = Seat(level, None if parent is None else seats[parent])
            order.append(seat)
            if parent is not None:
                self._seats[level.name] = seat
                if level.children:
                    self._seats[level.name] = Seat(level, seat, own=True)
                    order.append(self._seats[level.name])
        return order

    def seat(self, queue: str) -> Seat:
        """Where the gangs of this queue sit; for a queue that doesn't exist, a child of the root without limits."""
        seat = self._seats.get(queue)
        if seat is None:
            seat = self._seats[queue] = Seat(self._books.level(queue), self.root)
        return seat

    def take(self, queue: str, amounts: Amounts) -> None:
        """So much more is used by this queue (less, where it is negative), and so by each above it."""
        for seat in self.seat(queue).path:
            seat.take(amounts)

    def share(self, seat: Seat, more: Amounts | None = None) -> Share:
        """The seat's share; with `more`, what it would be with so much more in use."""
        return _share(add(seat.use, more), seat.deserved) if more else seat.share()

    def branches(self, queue: str, other: str) -> tuple[Seat, Seat] | None:
        """The two branches in which these queues' gangs are, below the lowest queue above both; None for one seat."""
        left, right = self.seat(queue), self.seat(other)
        if left is right:
            return None
        for mine, theirs in zip(reversed(left.path), reversed(right.path), strict=False):
            if mine is not theirs:
                return mine, theirs
        raise AssertionError("gangs sit at the ends of the tree: neither seat is above the other")

    def claimed(self, seat: Seat, asks: Amounts, line: Rule) -> set[str]:
        """The resources that these asks could claim from others by this line.

        GUARANTEE: those of which the seat has a guarantee; DESERVED: all that are asked for.
        """
        return {
            each for each, count in asks.items() if count > 0 and (line is not Rule.GUARANTEE or each in seat.floor)
        }

    def within(self, seat: Seat, asks: Amounts, line: Rule) -> bool:
        """Whether the seat stays within this line with these asks in use.

        DESERVED: within what it deserves, in all that is asked for. GUARANTEE: within its guarantee where it has one,
        which has to be so for something that is asked for, and within what it deserves in the rest.
        """
        if line is Rule.GUARANTEE and not seat.floor:
            return False
        claims = False
        for each, count in asks.items():
            if count > 0:
                guaranteed = line is Rule.GUARANTEE and each in seat.floor
                if seat.use.get(each, 0) + count > (seat.floor if guaranteed else seat.deserved).get(each, 0):
                    return False
                claims = claims or guaranteed or line is Rule.DESERVED
        return claims

    def above(self, seat: Seat, resources: Iterable[str], line: Rule) -> set[str]:
        """In which of these resources the seat uses more than this line: those that the claimant has `claimed`."""
        use, kept = seat.use, seat.floor if line is Rule.GUARANTEE else seat.deserved
        return {each for each in resources if use.get(each, 0) > kept.get(each, 0)}


def _positive(held: Amounts) -> dict[str, int]:
    return {resource: count for resource, count in held.items() if count > 0}


def _share(use: Amounts, deserved: Amounts) -> Share:
    if not deserved:
        return NOTHING
    top, bottom = 0, 1
    for resource, count in use.items():
        if count <= 0:
            continue
        due = deserved.get(resource, 0)
        if not due:
            return NOTHING
        if count * bottom > top * due:
            top, bottom = count, due
    return top * EVEN // bottom


def _requested(children: Sequence[Seat]) -> dict[str, int]:
    """What a parent's children ask for together."""
    total: dict[str, int] = {}
    for child in children:
        for resource in child.request.keys() | child.floor.keys() | child.given.keys():
            total[resource] = total.get(resource, 0) + child.wanted(resource)
    return _positive(total)


def _share_out(parent: Seat) -> None:
    """What each child deserves of what the parent deserves."""
    resources = {each for child in parent.children for each in (*child.request, *child.floor, *child.given)}
    for resource in resources:
        rest = parent.deserved.get(resource, 0)
        others = []
        for child in parent.children:
            if resource in child.given:
                _deserves(child, resource, child.least(resource))
                rest -= child.least(resource)
            elif (
                not child.own or resource in child.request
            ):  # a parent without gangs of its own leaves all to the others
                others.append(child)
        for child, part in zip(others, _fill(others, resource, rest), strict=True):
            _deserves(child, resource, part)


def _deserves(seat: Seat, resource: str, count: int) -> None:
    if count:
        seat.deserved[resource] = count


def _fill(seats: Sequence[Seat], resource: str, rest: int) -> list[int]:
    """Shares out `rest` by weight: each gets weight x level, held between its guarantee and what it wants.

    Where less is left than the guarantees (be it below zero), those hold. Else tried is the level at which those that
    are unsettled would use up what is left. If then the guarantees take more than those who want little leave, the
    level can only be lower, and who is at the guarantee stays there; if not, it can only be higher, and who has all it
    wants stays there. Each try settles one at least.
    """
    low = [seat.floor.get(resource, 0) for seat in seats]
    high = [seat.wanted(resource) for seat in seats]
    if sum(low) >= rest:
        return low
    if sum(high) <= rest:
        # Nobody goes without. What nobody asks for is shared out likewise, or a share would tell who asks for much.
        low, ceilings = high, [seat.limit(resource) for seat in seats]
        high = [rest if top is None else max(most, min(top, rest)) for most, top in zip(low, ceilings, strict=True)]
        if sum(high) <= rest:
            return high
    part = list(low)
    unsettled = list(range(len(seats)))
    while True:
        weight = sum(seats[i].weight for i in unsettled)
        raised = [i for i in unsettled if seats[i].weight * rest < low[i] * weight]
        cut = [i for i in unsettled if seats[i].weight * rest > high[i] * weight]
        if not raised and not cut:
            break
        # What the raised ones take above the level and the cut ones leave below it, both times `weight`.
        over = sum(low[i] * weight - seats[i].weight * rest for i in raised)
        under = sum(seats[i].weight * rest - high[i] * weight for i in cut)
        settled, bound = (raised, low) if over >= under else (cut, high)
        for i in settled:
            part[i] = bound[i]
            rest -= bound[i]
        gone = set(settled)
        unsettled = [i for i in unsettled if i not in gone]
    for i, count in zip(unsettled, _apportion([seats[i] for i in unsettled], resource, rest), strict=True):
        part[i] = count
    return part


def _apportion(seats: Sequence[Seat], resource: str, rest: int) -> list[int]:
    """`rest` by weight in whole units: what is over goes to the largest remainders.

    Of equal ones to who uses more beyond its whole units now, then by name: a unit that two deserve by half stays where
    it is.
    """
    weight = sum(seat.weight for seat in seats)
    part = [seat.weight * rest // weight for seat in seats]
    turn = sorted(
        range(len(seats)),
        key=lambda i: (-(seats[i].weight * rest % weight), part[i] - seats[i].use.get(resource, 0), seats[i].name),
    )
    for i in turn[: rest - sum(part)]:
        part[i] += 1
    return part
