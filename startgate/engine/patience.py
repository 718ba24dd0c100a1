"""Patience: what the first overdue gang is owed by those behind it. Design: "Patience".

A gang that can't start yet blocks nobody, until it has waited for `patience`. From then on the nodes on which it will
start, and its quota, are kept for it: as its own part of what is free now, and of what will be when gangs there end.
So what others take can't move its start back. What always holds:

* Only one gang is protected: the first overdue one, in the order of the decision, that fits once gangs end and asks for
  no more than its queue deserves. It is sure to go if all end (`ever.could_go`), and then has quota, whatever is kept
  for the guarantees of others: else it could block others for ever.
* Its own queue waits for it. Another queue that is below what it deserves is never held back; nor is one at all as long
  as the protected gang's own queue would be above what it deserves.
* A gang that is sure to have ended before the protected one could start anyway may go.
"""

from collections.abc import Sequence

from startgate.engine.ever import could_go
from startgate.engine.ground import Ground, Hold, Unit
from startgate.engine.world import NEVER, Holder, Rule, Waiting
from startgate.model.resources import Amounts


class Patience:
    """Whom it protects, if anybody, and what is held for that gang."""

    def __init__(self, ground: Ground, holders: Sequence[Holder], now: float, patience: float) -> None:
        self._ground = ground
        self._holders = holders
        self._now = now
        self._patience = patience
        self._helpless: set[object] = set()
        self._starts_by: float | None = None
        self.gang: Waiting | None = None
        self.hold: Hold | None = None
        """What is on the ground for it; None while it is lifted, too."""
        self.moves = 0
        """How often what is held has moved: then others may fit that didn't."""

    def protect(self, gang: Waiting, asks: Amounts) -> None:
        """Protects this gang, which could not start, if it is its turn to be protected."""
        trial = (gang.queue, gang.minimum)
        if self.gang is not None or self._now - gang.since < self._patience or trial in self._helpless:
            return
        seat = self._ground.shares.seat(gang.queue)
        can_be = (
            self._ground.now.books.could_be(gang.queue, asks)
            and all(count <= seat.deserved.get(resource, 0) for resource, count in asks.items())
            and could_go(self._ground.now.room, gang.minimum)
        )
        if not (can_be and self._keep(gang, asks)):
            self._helpless.add(trial)

    def ignores(self, gang: Waiting) -> bool:
        """Whether it has nothing to say of this gang: nobody is protected, nor is it overdue itself."""
        return self.gang is None and self._now - gang.since < self._patience

    def may_pass(self, gang: Waiting, asks: Amounts) -> bool:
        """Whether this gang may take what is held for the protected one."""
        protected, shares = self.gang, self._ground.shares
        if protected is None or self.hold is None:
            return False
        if self._now + gang.lasts <= self._start():
            return True
        mine, theirs = shares.seat(protected.queue), shares.seat(gang.queue)
        if mine is theirs:
            return False
        return shares.within(theirs, asks, Rule.DESERVED) or not shares.within(mine, self.hold.asks, Rule.DESERVED)

    def lift(self) -> Hold | None:
        """Takes what is held off the ground, for a try."""
        hold = self.hold
        if hold is not None:
            self._ground.lift(hold)
            self.hold = None
        return hold

    def put_back(self, hold: Hold) -> None:
        """Nothing was taken: as it was."""
        self._ground.hold(hold)
        self.hold = hold

    def keep_again(self, hold: Hold) -> None:
        """Some of it was taken: looks for the next best place."""
        assert self.gang is not None
        self._starts_by = None
        self.moves += 1
        if not self._keep(self.gang, hold.asks):
            self.put_back(Hold(gang=hold.gang, queue=hold.queue, asks=hold.asks, placements=()))

    def over(self) -> None:
        """The protected gang has its place, and its hold is lifted: the next overdue one may be protected."""
        self.gang = self._starts_by = None
        self.moves += 1

    def _keep(self, gang: Waiting, asks: Amounts) -> bool:
        hold = self._ground.keep_ahead(gang.gang, gang.queue, gang.minimum, asks)
        if hold is not None:
            self.gang, self.hold = gang, hold
        return hold is not None

    def _start(self) -> float:
        """Epoch seconds by which it is sure to be able to start, since enough gangs have a deadline by then. Where
        there aren't enough of those, 0: nobody is sure to have ended before."""
        if self._starts_by is None:
            self._starts_by = self._bound()
        return self._starts_by

    def _bound(self) -> float:
        gang, hold = self.gang, self.lift()
        if gang is None or hold is None:
            return 0.0
        ends = sorted((each for each in self._holders if each.ends < NEVER), key=lambda each: (each.ends, each.gang))
        units = [Unit(holder=each, surplus=0, charge=each.charge, placements=each.pods) for each in ends]
        gone: list[Unit] = []
        found, step, growing = 0.0, 1, True
        while units and not found:
            some = units[:step]
            self._ground.remove(some)
            if not self._ground.ahead.fits(gang.queue, gang.minimum, hold.asks):
                gone += some
                units = units[step:]
                step *= 2 if growing else 1
            elif len(some) > 1:  # one of these is enough: which?
                self._ground.restore(some)
                step, growing = len(some) // 2, False
            else:
                gone += some
                found = some[0].holder.ends
        self._ground.restore(gone)
        self.put_back(hold)
        return found
