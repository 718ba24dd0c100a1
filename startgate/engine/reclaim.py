"""Who gives way for whom: reclaim between queues, preemption within one. By whole gangs, and only with proof.

Design: "Reclaim" and "Preemption in a queue". What always holds:

* Nothing gives way unless the claimant then fits, on nodes and within quota: proved on the ground itself, without
  those who would go, and with all that others are owed in its place; and none of them could stay.
* Between queues the two branches below their lowest common ancestor are compared: the claimant's stays within its line,
  the victim's is above its own in something that is asked for. The last of its gangs may take it below only if the
  claimant's share is then less than its own was before, so two queues can't take the same room in turn.
* What goes keeps its quota and room in the books until its pods are gone; what it frees is held for the claimant.
* The same ground gives the same answer.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from startgate.engine.fair import Seat, Share
from startgate.engine.fit import by_shape
from startgate.engine.ground import Ground, Hold, Unit
from startgate.engine.scope import scopes
from startgate.engine.victims import Victims
from startgate.engine.within import within_of
from startgate.engine.world import Evict, Rule, Waiting
from startgate.model.quantity import format_amount
from startgate.model.reasons import Code, Reason, reason
from startgate.model.resources import PODS, Amounts, show

LINES: Final = {Rule.GUARANTEE: "guarantee", Rule.DESERVED: "deserved share"}


class Found(NamedTuple):
    """A way to make room for a claimant."""

    hold: Hold | None
    """Its quota and room, kept until those who leave are gone; None where nobody has to leave."""
    evictions: tuple[Evict, ...]
    pods: int
    """How many pods leave."""
    cancelled: tuple[str, ...]
    """Gangs that would have started in this decision and wait instead."""
    queues: frozenset[str]
    """Whose all these are."""


class _Case(NamedTuple):
    """Why one unit may be taken: what was compared, at that moment."""

    rule: Rule
    mine: Seat | None
    theirs: Seat | None
    above: tuple[str, ...]
    """The resources in which the victim's branch is above its line."""
    used: tuple[Amounts, Amounts]
    """What the two branches had in use then."""


class Reclaim:
    """Looks for those who give way, for one claimant after the other."""

    def __init__(self, ground: Ground, victims: Victims) -> None:
        self._ground = ground
        self._victims = victims

    def find(self, gang: Waiting, asks: Amounts, *, fresh: bool = False) -> Found | None:
        """Room for the gang's minimum from those who may have to give way; None, with nothing changed, if that is not
        enough. Else they count as going, and the claimant's quota and room as taken (looking ahead).

        With `fresh`, room now, from those alone who would start in this decision.
        """
        ways, room, within = list(self._ways(gang, asks)), self._ground.ahead.room, within_of(gang.minimum)
        counts = by_shape(gang.minimum)
        if not ways or any(room.fits_cleared(shape, within) < count for shape, count in counts.items()):
            return None
        for rules in ways:
            search = _Search(self._ground, gang, asks, rules, now=fresh)
            queues = frozenset(queue for queue in self._victims.queues() if search.opens(queue))
            if not queues or not self._victims.could_do(queues, gang.queue, gang.minimum, asks):
                continue
            turn = self._victims.fresh if fresh else self._victims.in_turn
            chosen, tried = search.run(turn(queues))
            if tried and not chosen:
                # Those who are no help may have used up what may be taken before those who are had their turn.
                narrower = scopes(room, gang.minimum, self._victims.freed(queues), turn(queues))
                tries = (search.run(filter(scope.has, turn(queues))) for scope in narrower)
                chosen = next((found for found, _ in tries if found), {})
            if chosen:
                return self._settle(gang, asks, chosen, fresh=fresh)
        return None

    def by_right(self, gang: Waiting, asks: Amounts) -> bool:
        """Whether there is a rule by which others may have to give way for it."""
        return next(self._ways(gang, asks), None) is not None

    def _ways(self, gang: Waiting, asks: Amounts) -> Iterator[frozenset[Rule]]:
        """The rules in the order in which they are tried."""
        shares = self._ground.shares
        lines = [
            rule
            for rule in (Rule.GUARANTEE, Rule.DESERVED)
            if any(shares.within(seat, asks, rule) for seat in shares.seat(gang.queue).path if seat.parent)
        ]
        for rule in lines:
            yield frozenset({rule})
        lowest = self._victims.lowest(gang.queue)
        if gang.preempts and lowest is not None and lowest < gang.priority:
            yield frozenset({Rule.PRIORITY})
            if lines:
                yield frozenset({lines[-1], Rule.PRIORITY})

    def _settle(self, gang: Waiting, asks: Amounts, chosen: "dict[Unit, _Case]", *, fresh: bool) -> Found:
        """They are off the ground for the proof, and stay so as one looks ahead: takes the claimant's room."""
        if not fresh:
            self._ground.leave(list(chosen))
        self._victims.take(chosen)
        leaving = {unit: case for unit, case in chosen.items() if not unit.fresh}
        hold = None
        if leaving:
            owed = self._ground.others_owed(gang.gang)
            placements = self._ground.place_ahead(gang.queue, gang.minimum, asks)
            self._ground.ahead.room.free_up(owed)
            assert placements is not None
            hold = Hold(gang=gang.gang, queue=gang.queue, asks=asks, placements=placements)
        return Found(
            hold=hold,
            evictions=self._evictions(gang, asks, leaving, _places(hold)),
            pods=sum(unit.pods for unit in leaving),
            cancelled=tuple(unit.holder.gang for unit in chosen if unit.fresh),
            queues=frozenset(unit.holder.queue for unit in chosen),
        )

    def _evictions(
        self, gang: Waiting, asks: Amounts, chosen: "dict[Unit, _Case]", places: tuple[tuple[str, int], ...]
    ) -> tuple[Evict, ...]:
        """One for each victim: whole, or so many of its surplus."""
        made: dict[str, Evict] = {}
        for unit, case in chosen.items():
            before = made.get(unit.holder.gang)
            pods = 0 if unit.surplus == 0 or (before and before.pods == 0) else unit.surplus
            made[unit.holder.gang] = Evict(
                gang=unit.holder.gang,
                claimant=gang.gang,
                rule=case.rule,
                pods=max(pods, before.pods) if before and pods else pods,
                reason=_reason(gang, unit, case),
                numbers=_numbers(asks, case),
                places=places,
            )
        return tuple(made.values())


class _Search:
    """One try by some rules: takes one after another off until the claimant fits, then spares those who can stay."""

    def __init__(self, ground: Ground, gang: Waiting, asks: Amounts, rules: frozenset[Rule], *, now: bool) -> None:
        self._ground = ground
        self._now = now
        self._gang = gang
        self._asks = asks
        self._rules = rules
        self._line = next((rule for rule in (Rule.GUARANTEE, Rule.DESERVED) if rule in rules), None)
        self._pairs: dict[str, tuple[Seat, Seat, frozenset[str]]] = {}
        """By queue that may have to give: the branches, and the resources in which theirs is compared."""
        self._claims: dict[Seat, frozenset[str]] = {}
        """By branch of the claimant: what it may claim from others, before anybody goes."""
        self._after: dict[Seat, Share] = {}
        """By branch of the claimant: its share with the claimant in it, before anybody goes: who is taken of that
        branch may be spared in the end."""
        self._above: dict[tuple[Seat, Seat], bool] = {}
        """By the two branches: whether theirs is above its line in something that is claimed, before anybody goes."""
        self._over: dict[str, frozenset[str]] = {}
        """By queue: what `_gives` says, as long as nobody else is taken."""
        self._taken: dict[Unit, _Case] = {}

    def opens(self, queue: str) -> bool:
        """Whether gangs of this queue may have to give way, by what the branches have before any does."""
        if queue == self._gang.queue:
            return Rule.PRIORITY in self._rules
        shares = self._ground.shares
        pair = shares.branches(self._gang.queue, queue) if self._line else None
        if self._line is None or pair is None:
            return False
        mine, theirs = pair
        if mine not in self._claims:
            within = shares.within(mine, self._asks, self._line)
            self._claims[mine] = frozenset(shares.claimed(mine, self._asks, self._line) if within else ())
            self._after[mine] = shares.share(mine, self._asks)
        claimed = self._claims[mine]
        if pair not in self._above:
            self._above[pair] = bool(shares.above(theirs, claimed, self._line))
        if self._above[pair]:
            self._pairs[queue] = (mine, theirs, claimed)
        return self._above[pair]

    def run(self, candidates: Iterator[Unit]) -> tuple[dict[Unit, _Case], bool]:
        """Those who have to go, off the ground; empty, with all on it, where it can't be done. And whether there was
        anybody who could be taken."""
        self._taken, check_at = {}, 1
        self._over.clear()
        for unit in candidates:
            case = self._case(unit)
            if case is None:
                continue
            self._ground.remove((unit,), now=self._now)
            self._over.clear()
            self._taken[unit] = case
            if len(self._taken) >= check_at:
                if self._fits():
                    self._spare_all()
                    return self._taken, True
                check_at *= 2
        if self._taken and self._fits():
            self._spare_all()
            return self._taken, True
        self._ground.restore(self._taken, now=self._now)
        return {}, bool(self._taken)

    def _fits(self) -> bool:
        if self._now:
            return self._ground.now.fits(self._gang.queue, self._gang.minimum, self._asks)
        owed = self._ground.others_owed(self._gang.gang)
        fits = self._ground.ahead.fits(self._gang.queue, self._gang.minimum, self._asks)
        self._ground.ahead.room.free_up(owed)
        return fits

    def _spare_all(self) -> None:
        """Puts back all that needn't go. Pods beyond a minimum go in their order: those before one that is needed go
        too, and all of them with their gang."""
        cases = dict(self._taken)
        self._spare(list(cases))
        for unit, case in cases.items():
            if not unit.surplus or unit in self._taken:
                continue
            after = [each for each in self._taken if each.holder is unit.holder]
            if any(not each.surplus or each.surplus > unit.surplus for each in after):
                self._ground.remove((unit,), now=self._now)
                self._taken[unit] = case

    def _spare(self, units: list[Unit]) -> None:
        """Puts back all that needn't go, those first who would go last. With fewer gone it never fits better, so
        what is needed once stays needed."""
        self._ground.restore(units, now=self._now)
        if self._fits():
            for unit in units:
                del self._taken[unit]
            return
        self._ground.remove(units, now=self._now)
        if len(units) > 1:
            middle = len(units) // 2
            self._spare(units[middle:])
            self._spare(units[:middle])

    def _case(self, unit: Unit) -> _Case | None:
        """Whether this one may be taken now, those before it being gone."""
        holder = unit.holder
        if Rule.PRIORITY in self._rules and holder.queue == self._gang.queue:
            return _Case(Rule.PRIORITY, None, None, (), ({}, {})) if holder.priority < self._gang.priority else None
        queue, shares, line = holder.queue, self._ground.shares, self._line
        mine, theirs, _ = self._pairs[queue]
        if queue not in self._over:
            self._over[queue] = self._gives(queue)
        above = self._over[queue]
        if line is None or above.isdisjoint(unit.charge):
            return None
        if self._falls_below(theirs, unit, above, line) and not self._after[mine] < shares.share(theirs):
            return None
        return _Case(line, mine, theirs, tuple(sorted(above)), (dict(mine.use), dict(theirs.use)))

    def _gives(self, queue: str) -> frozenset[str]:
        """In what the branch of this queue is above its line, if the queue is among those that have to give."""
        shares, line = self._ground.shares, self._line
        assert line is not None
        _, theirs, claimed = self._pairs[queue]
        above = frozenset(shares.above(theirs, claimed, line))
        return above if above and self._may_give(shares.seat(queue), theirs, above) else frozenset()

    def _may_give(self, seat: Seat, branch: Seat, above: frozenset[str]) -> bool:
        """All queues from the branch down are reclaimable; and below the branch, where some are above their line, only
        those."""
        line = self._line
        assert line is not None
        for each in seat.path:
            if not each.reclaimable:
                return False
            if each is branch:
                return True
            parent = each.parent
            assert parent is not None
            over = [other for other in parent.children if self._ground.shares.above(other, above, line)]
            if over and each not in over:
                return False
        return False

    def _falls_below(self, branch: Seat, unit: Unit, above: frozenset[str], line: Rule) -> bool:
        kept = _kept(branch, line)
        return any(branch.use.get(each, 0) - unit.charge.get(each, 0) < kept.get(each, 0) for each in above)


def _places(hold: Hold | None) -> tuple[tuple[str, int], ...]:
    """By node, how many of the claimant's pods."""
    counts: Counter[str] = Counter()
    for placement in hold.placements if hold is not None else ():
        for name, count in placement.nodes:  # a node may come more than once
            counts[name] += count
    return tuple(counts.items())


def _kept(seat: Seat, line: Rule) -> Amounts:
    return seat.floor if line is Rule.GUARANTEE else seat.deserved


def _reason(gang: Waiting, unit: Unit, case: _Case) -> Reason:
    if case.mine is None or case.theirs is None:
        return reason(Code.PREEMPTED, gang=gang.gang, priority=gang.priority, own=unit.holder.priority)
    kept = _kept(case.theirs, case.rule)
    named = [each for each in case.above if each != PODS] or list(case.above)
    numbers = ", ".join(
        f"{format_amount(each, case.used[1].get(each, 0))} of {show({each: kept.get(each, 0)})}" for each in named
    )
    return reason(
        Code.RECLAIMED,
        gang=gang.gang,
        queue=gang.queue,
        line=LINES[case.rule],
        above=f"queue {case.theirs.name}",
        numbers=numbers,
    )


def _numbers(asks: Amounts, case: _Case) -> dict[str, str]:
    """For the audit log, in plain integers: both branches, use/line in what was asked for, before the victim went."""
    seen = {"rule": str(case.rule), "asks": " ".join(f"{each}={count}" for each, count in asks.items())}
    branches = (("claimant", case.mine, case.used[0]), ("victim", case.theirs, case.used[1]))
    for what, seat, used in branches:
        if seat is not None:
            kept = _kept(seat, case.rule)
            seen[f"{what} {seat.name}"] = " ".join(f"{each}={used.get(each, 0)}/{kept.get(each, 0)}" for each in asks)
    return seen
