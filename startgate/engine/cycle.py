"""One decision: who may go now, who gives way, who stays and why. `decide(world, now) -> Plan`, pure and level-based.

First what was admitted before takes its room; then gangs for which others are giving way already; then those who wait,
in fair order, each whole or not at all; then pods beyond the minimum. What always holds:

* The same world gives the same plan, in whatever order its parts were put together.
* A gang's minimum goes whole or not at all, and only within quota and room that nothing before it in the plan has.
* Each waiting gang that asks for pods is answered, by a Go or by a Stay.
* Carried out, a plan leaves little for the next one, and soon nothing: what frees no room leaves nothing to start, and
  who starts isn't told to give way as long as nobody else is (`tests.unit.promises.Course` says when it may be).
* Reasons are worked out when all is decided, so that their numbers are those that hold after the plan.
"""

from collections import Counter
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from startgate.engine import explain
from startgate.engine.admitted import ONE_BY_ONE, Admitted
from startgate.engine.draft import Drafts, Trial, less, some, trial_of
from startgate.engine.explain import Verdict
from startgate.engine.fair import EVEN, NOTHING, Seat
from startgate.engine.ground import Ground, Hold
from startgate.engine.observe import amounts_of
from startgate.engine.order import Turns
from startgate.engine.patience import Patience
from startgate.engine.reclaim import Reclaim
from startgate.engine.verdicts import Verdicts
from startgate.engine.victims import Victims
from startgate.engine.within import joining, within_of
from startgate.engine.world import Batch, Evict, Plan, QueueView, Stay, Waiting, World
from startgate.model.reasons import Code, reason
from startgate.model.resources import PODS, Amounts, add, subtract
from startgate.model.shape import Shape

CANCELS: Final = 2
"""So often a gang may have its start taken from it in one decision, by gangs that would reclaim its place."""


def decide(world: World, now: float) -> Plan:
    """The plan for this world at this time (epoch seconds)."""
    decision = _Decision(world, now)
    decision.hold_for_heirs()
    decision.start()
    decision.join()
    return decision.plan()


class _Decision:
    """The ground, used up as the decision goes on, and what came of it so far."""

    def __init__(self, world: World, now: float) -> None:
        self.world = world
        self.ground = Ground(world)
        self.drafts = Drafts(self.ground)
        self.admitted = Admitted(self.ground, self.drafts)
        claimants = [gang for gang in world.waiting if gang.victims]
        self.admitted.run(world.claims, sorted(claimants, key=attrgetter("turn")))
        busy = self.drafts.gangs()  # pods of theirs go right now; another decision may ask them to give way
        self.victims = Victims(self.ground, [each for each in world.holders if each.gang not in busy])
        self.reclaim = Reclaim(self.ground, self.victims)
        self.patience = Patience(self.ground, world.holders, now, world.patience)
        self.holds: list[Hold] = []
        """For gangs whose room is being made, in the order in which it was found."""
        self.evictions: list[Evict] = []
        self.joining: list[Waiting] = []
        """Gangs that have started and have pods beyond their minimum."""
        self.started: dict[str, Waiting] = {}
        """Those that start now."""
        self.cancelled: Counter[str] = Counter()
        """How often a gang had its start taken from it in this decision."""
        self.closed: dict[str, Verdict | None] = {}
        """By queue: why it releases nothing."""
        self.asking = self._asking()
        self.turns = Turns(self.ground.shares, self.asking)
        self.back: list[Waiting] = []
        """Those among them that wait again."""
        self.heads: dict[str, str] = {}
        """By queue: the gang of it or of those below it that stays and would be next."""
        self.refused: set[object] = set()
        """Trials that had no room, by whether what is held for the protected gang was lifted."""
        self.barren: set[object] = set()
        """Claimants for whom it is no use that others give way."""

    def _asking(self) -> list[Waiting]:
        """Gangs whose minimum may be tried. What keeps others is not quota or nodes, or they have started."""
        asking = []
        for gang in sorted(self.world.waiting, key=attrgetter("turn")):
            if not gang.asked[1]:
                continue
            verdict = self._barred(gang)
            if verdict is not None:
                self.drafts.stays.append((gang.gang, verdict))
            elif gang.plain:
                asking.append(gang)
            else:
                self.joining.append(gang)
        return asking

    def _barred(self, gang: Waiting) -> Verdict | None:
        """What keeps a gang from being tried at all."""
        if gang.obstacle is not None:
            return Verdict(gang.obstacle)
        if gang.queue not in self.closed:
            self.closed[gang.queue] = self._closed(gang.queue)
        return self.closed[gang.queue]

    def _closed(self, queue: str) -> Verdict | None:
        """Why this queue releases nothing, if so."""
        if queue not in self.world.queues:
            return explain.no_such_queue(queue, self.world.queues)
        stopped = self.ground.now.books.stopped_by(queue)
        return None if stopped is None else Verdict(reason(Code.QUEUE_STOPPED, queue=stopped))

    def hold_for_heirs(self) -> None:
        """Those for whom others were told to give way: they start if they can by now, else what is freed is held."""
        going = [holder for holder in self.world.holders if holder.leaving_charge]
        heirs = self.ground.so_that_all_fit([gang for gang in self.asking if gang.victims])
        if not heirs:
            return
        for gang in heirs:
            asks, minimum = amounts_of(gang.minimum), some(gang.minimum)
            if self._admit(gang, minimum, asks):
                self.asking.remove(gang)
                continue
            # Also where others than its victims are leaving still: it was proved that it fits once they are gone too,
            # and a victim that is gone before them would be back at once, to be told to go again.
            placements = self.ground.place_ahead(gang.queue, minimum, asks, gang.places)
            if placements is None:
                self.ground.owe(gang.gang, minimum)
            else:
                self.asking.remove(gang)
                self._hold(Hold(gang=gang.gang, queue=gang.queue, asks=asks, placements=placements))
                self._note_next(gang)
                leaving = [holder for holder in going if holder.gang in gang.victims]
                pods = sum(holder.leaving_charge.get(PODS, 0) for holder in leaving or going)
                victims = {holder.gang for holder in leaving} or set(gang.victims)
                self.drafts.stays.append((gang.gang, explain.making_room(victims, pods)))
        self.turns = Turns(self.ground.shares, self.asking)

    def _hold(self, hold: Hold) -> None:
        """What has been taken for a gang whose place is being made stays taken."""
        self.holds.append(hold)
        self.ground.settle(hold.gang)
        self.admitted.reserved[hold.queue] = add(self.admitted.reserved.get(hold.queue, {}), hold.asks)

    def start(self) -> None:
        """Those who wait, in turn. Where somebody gave way, or what is held has moved, others may fit by now that
        didn't before; where somebody started, others who had their turn earlier may have a claim on its place, which
        it had better not have then. So those left have another turn."""
        while True:
            before, started = self._made_room(), len(self.started)
            left: list[tuple[Waiting, Trial]] = []
            while (gang := self.turns.pop()) is not None:
                trial = self._trial(gang)
                if self._is_lost(gang, trial) or not self._turn(gang, trial):
                    left.append((gang, trial))
            left += [(gang, self._trial(gang)) for gang in self.back]
            self.back = []
            more_room = self._made_room() != before
            if not left or not (more_room or len(self.started) != started):
                break
            if more_room:
                self.refused.clear()
            self.heads.clear()
            self.barren.clear()
            self.turns = Turns(self.ground.shares, [gang for gang, _ in left])
        for gang, trial in left:
            self._note_next(gang)
            self.drafts.stays.append((gang.gang, (trial,)))

    def _made_room(self) -> tuple[int, int, int]:
        """Changes when others may fit by now that didn't before."""
        return len(self.evictions), self.patience.moves, self.cancelled.total()

    def _note_next(self, gang: Waiting) -> None:
        if gang.queue not in self.heads:
            for seat in self.ground.shares.seat(gang.queue).path:
                self.heads.setdefault(seat.name, gang.gang)

    def _is_lost(self, gang: Waiting, trial: Trial) -> bool:
        """Whether one like it had its turn, and all that was looked at then is as it was."""
        return trial in self.refused and self.patience.ignores(gang) and _claimant(gang, trial) in self.barren

    def _turn(self, gang: Waiting, trial: Trial) -> bool:
        """Lets the gang go, or makes room for it; False, with nothing changed for others, where neither can be."""
        if gang is not self.patience.gang:
            return self._try(gang, trial)
        held = self.patience.lift()  # it doesn't stand in its own way; in that of those like it, it may have stood
        assert held is not None
        self.refused.discard(trial)
        self.barren.discard(_claimant(gang, trial))
        if self._try(gang, trial):
            self.patience.over()
            return True
        self.patience.put_back(held)
        return False

    def _try(self, gang: Waiting, trial: Trial) -> bool:
        minimum, asks = gang.minimum, trial.asks
        if trial not in self.refused:
            if self._admit(gang, minimum, asks):
                return True
            self.refused.add(trial)
        if self.patience.may_pass(gang, asks) and (trial, gang.lasts) not in self.refused:
            if self._admit_past(gang, minimum, asks):
                return True
            self.refused.add((trial, gang.lasts))
        if self._claim(gang, trial, asks):
            return True
        self.patience.protect(gang, asks)
        return False

    def _trial(self, gang: Waiting) -> Trial:
        """What is asked for it, and for all that are alike."""
        room = self.ground.now.room
        kinds = room.kinds(gang.minimum) if gang.constrained or room.keeps_out else gang.plain
        return trial_of(gang.queue, kinds)

    def _admit(self, gang: Waiting, minimum: tuple[Batch, ...], asks: Amounts) -> bool:
        """Lets the minimum go, whole; what comes with it has its turn later."""
        if self.ground.now.books.refusal(gang.queue, asks) is not None:
            return False
        fits = [self.ground.now.room.fits(batch.shape, within=batch.within) for batch in minimum]
        placements = self.ground.place(minimum, gang.places)
        if placements is None:
            return False
        numbers = self.drafts.numbers(gang.queue, asks, fits)
        self.ground.take(gang.queue, asks)
        self.ground.settle(gang.gang)
        self.drafts.add(gang.gang, None, placements, numbers, within_of(minimum))
        self.turns.moved(gang.queue)
        self.started[gang.gang] = joining(self.world.cluster, gang, placements)
        if not gang.victims and self.cancelled[gang.gang] < CANCELS:
            self.victims.start(gang, placements)
        return True

    def _admit_past(self, gang: Waiting, minimum: tuple[Batch, ...], asks: Amounts) -> bool:
        """The same, with what is held for the protected gang."""
        held = self.patience.lift()
        assert held is not None
        if self._admit(gang, minimum, asks):
            self.patience.keep_again(held)
            return True
        self.patience.put_back(held)
        return False

    def _claim(self, gang: Waiting, trial: Trial, asks: Amounts) -> bool:
        """Whether others give way for the gang."""
        claimant = _claimant(gang, trial)
        if claimant in self.barren:
            return False
        found = None
        if self.ground.parted and self.reclaim.by_right(gang, asks):
            found = self.reclaim.find(gang, asks, fresh=True)
            if found is None and self._wait_ahead(gang, trial, asks):
                return True  # what leaves already is enough
        found = found or self.reclaim.find(gang, asks)
        if found is None:
            self.barren.add(claimant)
            return False
        for other in found.cancelled:
            self.drafts.cancel(other)
            self.cancelled[other] += 1
            self.back.append(self.started.pop(other))
        for queue in found.queues:
            self.turns.moved(queue)
        if found.hold is None:
            return self._admit(gang, gang.minimum, asks) or self._wait_ahead(gang, trial, asks)
        self.turns.moved(gang.queue)
        self._hold(found.hold)
        self._note_next(gang)
        self.evictions += found.evictions
        victims = [each.gang for each in found.evictions]
        self.drafts.stays.append((gang.gang, explain.making_room(victims, found.pods)))
        return True

    def _wait_ahead(self, gang: Waiting, trial: Trial, asks: Amounts) -> bool:
        """It starts when what leaves is gone, which nobody else may have meanwhile."""
        placements = self.ground.place_ahead(gang.queue, gang.minimum, asks)
        if placements is None:
            return False
        self._hold(Hold(gang=gang.gang, queue=gang.queue, asks=asks, placements=placements))
        self._note_next(gang)
        self.drafts.stays.append((gang.gang, (trial,)))
        return True

    def join(self) -> None:
        """Pods beyond the minimum, as many as fit: in fair order, first what their queues deserve, then beyond that."""
        leaving = {evict.gang: Verdict(evict.reason) for evict in self.evictions}
        self.drafts.stays += [(each.gang, leaving[each.gang]) for each in self.joining if each.gang in leaving]
        self.joining = [each for each in self.joining if each.gang not in leaving]
        self.joining += [gang for gang in self.started.values() if some(gang.extra)]
        joined: dict[str, Counter[Shape]] = {gang.gang: Counter() for gang in self.joining}
        for bounded in (True, False) if self.joining else ():
            turns = Turns(self.ground.shares, self.joining)
            while (gang := turns.pop()) is not None:
                self._join(gang, joined[gang.gang], bounded=bounded)
                turns.moved(gang.queue)
        for gang in self.joining:
            if not joined[gang.gang] and not some(gang.minimum):
                kinds = {batch.shape: Batch(batch.shape, 1, batch.within) for batch in gang.extra}
                self.drafts.stays.append((gang.gang, tuple(Trial(gang.queue, (each,)) for each in kinds.values())))

    def _join(self, gang: Waiting, came: "Counter[Shape]", *, bounded: bool) -> None:
        """Lets come along what fits, beside those that do already, and counts it."""
        wanted = less(gang.extra, came)
        if bounded:
            wanted = _affordable(self.ground.shares.seat(gang.queue), wanted)
        if not wanted:
            return
        passes = self.patience.may_pass(gang, wanted[0].shape.amounts)
        held = self.patience.lift() if passes else None
        fits = [self.ground.now.room.fits(batch.shape, within=batch.within) for batch in wanted]
        numbers = self.drafts.numbers(gang.queue, amounts_of(wanted), fits)
        placed = self.drafts.extras(gang.queue, wanted)
        batches = self.drafts.add(gang.gang, None, placed, numbers, within_of(wanted))
        if held is not None:
            (self.patience.keep_again if batches else self.patience.put_back)(held)
        for batch in batches:
            came[batch.shape] += batch.count

    def plan(self) -> Plan:
        """What is decided, with what only the whole of it can tell: who is tight, and why the others stay."""
        go = self.drafts.finish((*self.admitted.adrift, *some(self.world.pending)), ONE_BY_ONE)
        views = self._views()
        gone = {evict.gang for evict in self.evictions}
        holders = [each for each in self.world.holders if each.gang not in gone]
        verdicts = Verdicts(self.ground, self.patience, self.holds, holders)
        stay = []
        for gang, why in self.drafts.stays:
            verdict = why if isinstance(why, Verdict) else verdicts.of(gang, why)
            stay.append(Stay(gang=gang, reason=verdict.reason, shortage=verdict.shortage))
        return Plan(go=go, stay=tuple(stay), evict=tuple(self.evictions), queues=views)

    def _views(self) -> dict[str, QueueView]:
        books, views = self.ground.now.books, {}
        lifted = self.patience.lift()
        for name in sorted(self.world.queues):
            level = books.level(name)
            reserved = add(*(self.admitted.reserved.get(each.name, {}) for each in level.below()))
            seat = self.ground.shares.seat(name)
            seat = seat.parent if seat.own and seat.parent else seat
            share = seat.share()
            views[name] = QueueView(
                allocated=_positive(subtract(books.use(level), reserved)),
                reserved=_positive(reserved),
                headroom=books.headroom(name),
                deserved=_positive(seat.deserved),
                share=None if share == NOTHING and seat.use else (0.0 if share == NOTHING else share / EVEN),
                next=self.heads.get(name, ""),
                problems=tuple(books.problems[name]),
            )
        if lifted is not None:
            self.patience.put_back(lifted)
        return views


def _claimant(gang: Waiting, trial: Trial) -> object:
    """One and the same for all whose claims come out alike."""
    return trial, gang.priority, gang.preempts


def _affordable(seat: Seat, batches: Iterable[Batch]) -> tuple[Batch, ...]:
    """As many of these, the first first, as the queue may have within what it deserves."""
    left = {each: seat.deserved.get(each, 0) - seat.use.get(each, 0) for each in {*seat.deserved, *seat.use}}
    fits = []
    for batch in batches:
        times = min(
            (left.get(each, 0) // asked for each, asked in batch.shape.request if asked > 0), default=batch.count
        )
        count = max(0, min(batch.count, times))
        fits.append(Batch(batch.shape, count, batch.within))
        for each, asked in batch.shape.request:
            left[each] = left.get(each, 0) - asked * count
    return some(fits)


def _positive(amounts: Amounts) -> dict[str, int]:
    return {resource: amounts[resource] for resource in sorted(amounts) if amounts[resource] > 0}
