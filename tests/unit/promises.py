"""One decision on one state of `engine_model.Model`, held against the promises of the design and against its own words.

With plain arithmetic (tests.unit.reference, sums over lists), never with the engine's.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from msgspec.structs import replace

from startgate.engine.cycle import decide
from startgate.engine.world import Batch, ClaimKind, Evict, Plan, Rule, Stay
from startgate.model.reasons import Code, Reason
from startgate.model.resources import add, scale, subtract
from startgate.model.shape import Shape
from tests.unit.engine_model import Gang, Model, asks_of, batches_of, counted, pods_of, summed
from tests.unit.reference import Fairness, Formulas, Place
from tests.unit.worlds import node

WHOLE = 1_000_000
QUOTA = frozenset({Code.QUEUE_CAPABILITY, Code.PARENT_CAPABILITY, Code.GUARANTEE_KEPT, Code.CLUSTER_IN_USE})
NODES = frozenset({Code.NO_ROOM, Code.FRAGMENTED, Code.NO_NODE_MATCHES, Code.NEVER_FITS, Code.NOT_SURE})


class Judge:
    """One decision on one state of the model, held against the promises."""

    def __init__(self, model: Model, plan: Plan) -> None:
        self.model, self.plan = model, plan
        self.gangs = model.gangs
        self.asking = {asks.gang: asks for gang in model.gangs.values() if (asks := gang.asks()) is not None}
        self.stays = {stay.gang: stay for stay in plan.stay}

    def books(self) -> Formulas:
        """What was admitted before this decision."""
        plain = Formulas(self.model.queues, self.model.total())
        for name, asks in self.model.used().items():
            plain.take(name, asks)
        for gang in self.gangs.values():
            for claim in gang.claims():
                if claim.kind not in (ClaimKind.BIND, ClaimKind.REPLACE):
                    plain.take(gang.queue, summed(claim.batches))
        return plain

    def all_or_none(self) -> None:
        claims = {(claim.gang, claim.kind): claim for gang in self.gangs.values() for claim in gang.claims()}
        for go in self.plan.go:
            pods = pods_of(go)
            assert go.count == pods.total() > 0
            if go.kind is None:
                asks = self.asking[go.gang]
                assert counted(asks.minimum) <= pods <= counted((*asks.minimum, *asks.extra))
            elif go.kind is ClaimKind.GATHER:
                assert pods == counted(claims[go.gang, go.kind].batches)
            else:
                assert pods <= counted(claims[go.gang, go.kind].batches)

    def everybody_is_answered_once(self) -> None:
        went = Counter(go.gang for go in self.plan.go if go.kind is None)
        stays = Counter(stay.gang for stay in self.plan.stay)
        for key in self.asking:
            assert went[key] + min(stays[key], 1) >= 1
            assert went[key] <= 1
        waiting = [key for key in self.asking if not self.gangs[key].started]
        assert all(went[key] + stays[key] == 1 for key in waiting)
        assert set(stays) <= set(self.gangs)

    def no_ceiling_is_broken(self) -> None:
        plain = self.books()
        for go in self.plan.go:
            if go.kind in (None, ClaimKind.REPLACE):
                asks = summed(batches_of(pods_of(go)))
                assert plain.within(self.gangs[go.gang].queue, asks)
                plain.take(self.gangs[go.gang].queue, asks)
        self.after = plain

    def no_floor_is_taken(self) -> None:
        """Who asks within its guarantee, or within all that the formulas leave, isn't refused for quota."""
        for key, stay in self.stays.items():
            gang = self.gangs[key]
            if not gang.started and stay.reason.code in QUOTA:
                asks = summed(gang.minimum)
                assert not self.after.within(gang.queue, asks), stay.reason.message
                assert not all(
                    self.after.own[gang.queue].get(each, 0)
                    + sum(self.after.charge(child, each) for child in self.after.children(gang.queue))
                    + count
                    <= self.after.floor(gang.queue, each)
                    for each, count in asks.items()
                )

    def no_node_gives_more_than_it_has(self) -> None:
        left = self.left = {name: self.model.free(name) for name in self.model.nodes}
        for go in self.plan.go:
            for placement in go.placements:
                for name, count in placement.nodes:
                    assert count > 0
                    assert self.model.takes(name, placement.shape)
                    for resource, each in placement.shape.amounts.items():
                        left[name][resource] = left[name].get(resource, 0) - each * count
                        assert left[name][resource] >= 0

    def evictions_are_just(self) -> None:
        """In the order of the plan, each by the rule that it names, whoever else goes or gives way."""
        going = {name: asks_of(pod for gang in self._of(name) for pod in gang.leaving) for name in self.model.queues}
        asks = {name: add(*(self._wants(gang) for gang in self._of(name))) for name in self.model.queues}
        books = self.books()
        books.total = self.model.shareable()
        lines = Fairness(books, going, asks)
        came = [
            (self.gangs[go.gang].queue, batches_of(pods_of(go)))
            for go in self.plan.go
            if go.kind in (None, ClaimKind.REPLACE)
        ]
        came += [
            (gang.queue, gang.minimum)
            for key, gang in self.gangs.items()
            if key in self.stays and (gang.victims or self._has_room_ahead(gang))
        ]
        went = {go.gang for go in self.plan.go}
        claimants: list[str] = []
        gone: Counter[str] = Counter()
        for evict, following in zip_longest(self.plan.evict, self.plan.evict[1:]):
            victim, claimant = self.gangs[evict.gang], self.gangs[evict.claimant]
            assert victim.takeable and victim.started and not victim.gathering
            assert not claimant.started and evict.claimant in self.stays
            assert not {evict.gang, evict.claimant} & went
            if evict.rule is Rule.PRIORITY:
                assert victim.queue == claimant.queue
                assert victim.priority < claimant.priority
                assert claimant.preempts
            else:
                self._is_reclaimed_by_right(evict, lines, came)
            lines.quota.take(victim.queue, scale(self._frees(evict, victim, gone), -1))
            if following is None or following.claimant != evict.claimant:
                claimants.append(evict.claimant)
                lines.quota.take(claimant.queue, summed(claimant.minimum))
        assert len(set(claimants)) == len(claimants)

    def _has_room_ahead(self, gang: Gang) -> bool:
        """Whether what leaves already may be held for it."""
        if gang.started or any(evict.claimant == gang.key for evict in self.plan.evict):
            return False
        held = self.plan.queues[gang.queue].reserved
        return all(count <= held.get(each, 0) for each, count in summed(gang.minimum).items())

    def _frees(self, evict: Evict, victim: Gang, gone: Counter[str]) -> dict[str, int]:
        """What the victim's queue is charged less for it; `gone`: how many of its surplus went before, by gang."""
        before, surplus = gone[victim.key], victim.surplus()
        gone[victim.key] = evict.pods or WHOLE
        assert before < gone[victim.key] and evict.pods <= len(surplus)
        holder = victim.holder()
        assert holder is not None
        if evict.pods:
            return asks_of(surplus[before : evict.pods])
        return subtract(holder.charge, asks_of(surplus[:before]))

    def _of(self, queue: str) -> list[Gang]:
        return [gang for gang in self.gangs.values() if gang.queue == queue]

    def _wants(self, gang: Gang) -> dict[str, int]:
        """What it asks for that makes others deserve less: to start, to be joined, in place of a pod that leaves."""
        replaced = [claim.batches for claim in gang.claims() if claim.kind is ClaimKind.REPLACE]
        asks = self.asking.get(gang.key)
        tried = asks is not None and asks.obstacle is None and not self._stopped(gang.queue)
        return add(*map(summed, replaced), summed((*asks.minimum, *asks.extra)) if asks and tried else {})

    def _stopped(self, queue: str) -> bool:
        above = self.model.queues[queue].parent
        return self.model.queues[queue].stopped or bool(above and self._stopped(above))

    def _is_reclaimed_by_right(
        self, evict: Evict, lines: Fairness, came: Sequence[tuple[str, tuple[Batch, ...]]]
    ) -> None:
        victim, claimant = self.gangs[evict.gang], self.gangs[evict.claimant]
        assert self.model.queues[victim.queue].reclaimable
        mine, theirs = _branches(lines, claimant.queue, victim.queue)
        asks = summed(claimant.minimum)
        claimed = {each for each in asks if evict.rule is Rule.DESERVED or lines.floor(mine, each)}
        assert claimed

        def line(place: Place, resource: str) -> int:
            guaranteed = evict.rule is Rule.GUARANTEE and resource in claimed
            return lines.floor(place, resource) if guaranteed else lines.due[place].get(resource, 0)

        assert all(lines.use(mine, each) + count <= line(mine, each) for each, count in asks.items())
        more = add(*(summed(batches) for queue, batches in came if theirs in lines.path(queue)))
        assert any(lines.use(theirs, each) + more.get(each, 0) > line(theirs, each) for each in claimed)

    def who_stays_has_cause(self) -> None:
        """What is said of other gangs is so; and who is said to have no nodes has none, each pod counted."""
        told = {evict.claimant for evict in self.plan.evict}
        for key, stay in self.stays.items():
            gang, code = self.gangs[key], stay.reason.code
            if code is Code.MAKING_ROOM:
                assert key in told or gang.victims
            elif code is Code.OTHERS_FIRST:
                first = self.gangs[str(dict(stay.reason.facts)["gang"])]
                overdue = self.model.now - first.since >= self.model.patience
                assert first.key in self.stays and first is not gang
                assert overdue or told or any(each.leaving for each in self.gangs.values())
            elif code in (Code.NO_ROOM, Code.FRAGMENTED) and self._is_plain(gang):
                assert self._places(gang.minimum[0].shape) < gang.minimum[0].count
            if gang.obstacle is not None and not gang.started:
                assert stay.reason == gang.obstacle

    def _is_plain(self, gang: Gang) -> bool:
        """Whether each pod counts for itself: one kind, and no room that pods without a node have on paper."""
        return not gang.started and len(gang.minimum) == 1 and not any(each.claims() for each in self.gangs.values())

    def _places(self, shape: Shape) -> int:
        """How many such pods the nodes have room for after the plan."""
        return sum(
            min(self.left[name].get(each, 0) // count for each, count in shape.amounts.items())
            for name in self.model.nodes
            if self.model.takes(name, shape)
        )

    def judge(self) -> None:
        self.all_or_none()
        self.everybody_is_answered_once()
        self.no_ceiling_is_broken()
        self.no_floor_is_taken()
        self.no_node_gives_more_than_it_has()
        self.evictions_are_just()
        self.who_stays_has_cause()


def _branches(lines: Fairness, one: str, other: str) -> tuple[Place, Place]:
    """Where the ways from the root to two queues part."""
    both = zip(reversed(lines.path(one)), reversed(lines.path(other)), strict=False)
    return next((left, right) for left, right in both if left != right)


class Course:
    """Decisions that follow one another while nobody arrives, ends or is changed: nobody goes to and fro.

    Who starts isn't told to give way by what comes next. It may be once

    * somebody else has given way: that frees more than was free, and the victim may have a claim of its own;
    * what is deserved has moved: who goes uses more and asks for less;

    nor does it count who starts

    * in the room that others made for it. That is held for it whoever comes meanwhile; so who did come meanwhile takes
      it afterwards;
    * while kube-scheduler is late. It may bind pods elsewhere than was foreseen;
    * while somebody has lost patience. What is kept for that gang moves as others start.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.some_left = any(gang.leaving for gang in model.gangs.values())
        self.came: dict[str, dict[str, Any]] = {}
        """Who got pods, with what was deserved then."""

    def goes_on(self, plan: Plan) -> None:
        """The next plan; not carried out yet."""
        model = self.model
        deserved = {name: view.deserved for name, view in plan.queues.items()}
        if not self.some_left:
            assert not any(self.came.get(evict.gang) == deserved for evict in plan.evict), plan.evict
        self.some_left |= bool(plan.evict)
        overdue = any(not gang.started and model.now - gang.since >= model.patience for gang in model.gangs.values())
        for go in plan.go:
            if go.kind is None and not (model.gangs[go.gang].victims or model.late or overdue):
                self.came[go.gang] = deserved


# A reason is true: without what it names, the answer is another one.


def _named(reason: Reason) -> tuple[Any, ...]:
    facts = dict(reason.facts)
    return reason.code, facts.get("queue"), facts.get("parent"), facts.get("gang")


def answer(model: Model, key: str) -> tuple[Any, ...]:
    plan = decide(model.world(), model.now)
    return next((_named(stay.reason) for stay in plan.stay if stay.gang == key), ("goes",))


def _alone(model: Model, key: str) -> Model:
    """Nobody else asks."""
    twin = model.copy()
    for gang in model.gangs.values():
        if gang.key != key and not gang.started:
            if gang.pods:
                twin.gangs[gang.key].minimum = ()
                twin.gangs[gang.key].extra = ()
            else:
                del twin.gangs[gang.key]
        elif gang.started:
            twin.gangs[gang.key].extra = ()
    return twin


def _without_the_obstacle(model: Model, stay: Stay) -> Model | None:
    facts, code = dict(stay.reason.facts), stay.reason.code
    twin = model.copy()
    if code in (Code.QUEUE_CAPABILITY, Code.PARENT_CAPABILITY):
        name = str(facts["queue" if code is Code.QUEUE_CAPABILITY else "parent"])
        twin.queues[name] = replace(twin.queues[name], capability={})
    elif code is Code.GUARANTEE_KEPT:
        twin.queues = {name: replace(spec, guarantee={}) for name, spec in twin.queues.items()}
    elif code is Code.NEVER_WITHIN_QUOTA:
        twin.queues = {name: replace(spec, guarantee={}, capability={}) for name, spec in twin.queues.items()}
    elif code is Code.QUEUE_STOPPED:
        name = str(facts["queue"])
        twin.queues[name] = replace(twin.queues[name], stopped=False)
    elif code in (Code.CLUSTER_IN_USE, Code.NO_ROOM, Code.FRAGMENTED):
        twin.gangs = {stay.gang: twin.gangs[stay.gang]}
        twin.others = {} if code in NODES else twin.others
    elif code in (Code.NO_NODE_MATCHES, Code.NEVER_FITS, Code.NOT_SURE):
        for i in range(8):
            twin.nodes[f"more{i}"] = node(f"more{i}", cpu="64m", gpu="64", labels={"zone": "a"})
    else:
        return None
    return twin


def reasons_are_true(model: Model, plan: Plan) -> None:
    """On a state that nothing more will change."""
    seen: set[Code] = set()
    for stay in plan.stay:
        gang = model.gangs[stay.gang]
        mixed = len(gang.minimum) > 1 and stay.reason.code in NODES  # where the engine may say no without need
        if gang.started or gang.pods or mixed or stay.reason.code in seen:
            continue
        seen.add(stay.reason.code)
        alone = _alone(model, stay.gang)
        without = _without_the_obstacle(alone, stay)
        if without is not None:
            said = answer(alone, stay.gang)
            # Where the others ask for nothing more they deserve less, and may have to give way for it.
            assert said == _named(stay.reason) or said[0] is Code.MAKING_ROOM, stay.reason.message
            assert answer(without, stay.gang) != _named(stay.reason), stay.reason.message
        elif stay.reason.code is Code.OTHERS_FIRST:
            twin = model.copy()
            twin.gangs.pop(str(dict(stay.reason.facts)["gang"]))
            assert answer(twin, stay.gang) != _named(stay.reason), stay.reason.message
        elif stay.reason.code is Code.MAKING_ROOM:
            assert any(each.leaving for each in model.gangs.values()), stay.reason.message


def victims_are_needed(model: Model, plan: Plan) -> None:
    """When they are gone the claimants start; were one of them spared, somebody couldn't who then can.

    Asked of a single claimant's victims: of what one claimant's free beside its need, a later one's is not counted off.
    """
    start = _who_goes_without(model, plan, plan.evict)
    claimants = {evict.claimant for evict in plan.evict}
    assert claimants <= start
    if len(claimants) == 1:
        for i, spared in enumerate(plan.evict):
            others = _who_goes_without(model, plan, (*plan.evict[:i], *plan.evict[i + 1 :]))
            assert not start - {spared.gang} <= others, spared


def _who_goes_without(model: Model, plan: Plan, evicts: Sequence[Evict]) -> set[str]:
    """Who goes when the plan is carried out with these victims alone, and all pods that leave are gone."""
    twin = model.copy()
    twin.apply(replace(plan, evict=tuple(evicts)))
    for gang in twin.gangs.values():
        twin.pods_gone(gang)
    for evict in plan.evict:
        twin.gangs[evict.claimant].victims = (evict.gang,)
    return {go.gang for go in decide(twin.world(), twin.now).go}
