"""A cluster in memory that does what a plan says, as the controller, the Job controller and kube-scheduler would.

For tests that let many decisions follow one another. What always holds: `world` is made anew from plain lists each
time, in the order given or in a random one, so that nothing but the objects can matter; and a pod is in one place.
"""

import copy
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from startgate.engine.cluster import Cluster
from startgate.engine.world import (
    NEVER,
    PATIENCE,
    Batch,
    Claim,
    ClaimKind,
    Evict,
    Go,
    Holder,
    Placement,
    Plan,
    Waiting,
    World,
)
from startgate.model import objects
from startgate.model.queue import QueueSpec
from startgate.model.reasons import Reason
from startgate.model.resources import add, amounts, scale, subtract
from startgate.model.shape import Shape

T = TypeVar("T")


class Pod(msgspec.Struct):
    """A pod of a gang, past its gate."""

    uid: str
    shape: Shape
    node: str = ""
    """Empty until kube-scheduler has bound it."""
    leaving: bool = False


class Gang(msgspec.Struct, kw_only=True):
    """A gang, from its arrival until it has ended."""

    key: str
    queue: str
    priority: int = 0
    since: float = 0.0
    minimum: tuple[Batch, ...]
    extra: tuple[Batch, ...] = ()
    preempts: bool = True
    lasts: float = NEVER
    obstacle: Reason | None = None
    takeable: bool = True
    harmless: bool = False
    """Pods beyond its minimum may go alone."""
    parked: bool = False
    """It has no pods until its turn comes: then they are made first."""
    started: bool = False
    ends: float = NEVER
    gathering: bool = False
    slots: Counter[Shape] = msgspec.field(default_factory=Counter)
    """What it was admitted for."""
    at_gate: Counter[Shape] = msgspec.field(default_factory=Counter)
    """Pods made for slots that nothing fills."""
    pods: list[Pod] = []
    victims: tuple[str, ...] = ()
    places: tuple[tuple[str, int], ...] = ()

    @property
    def there(self) -> list[Pod]:
        """Its pods without those that leave."""
        return [pod for pod in self.pods if not pod.leaving]

    @property
    def leaving(self) -> list[Pod]:
        return [pod for pod in self.pods if pod.leaving]

    @property
    def missing(self) -> Counter[Shape]:
        """Slots that no pod past the gate fills."""
        return self.slots - Counter(pod.shape for pod in self.there)

    def copy(self) -> "Gang":
        pods = [msgspec.structs.replace(pod) for pod in self.pods]
        twin: Gang = msgspec.structs.replace(self, pods=pods, slots=Counter(self.slots), at_gate=Counter(self.at_gate))
        return twin

    def claims(self) -> list[Claim]:
        """The admitted pods without a node (as in engine.roster)."""
        found = [(ClaimKind.BIND, Counter(pod.shape for pod in self.pods if not pod.node))]
        missing = self.missing
        here = list((self.at_gate & missing).elements())
        absent = list((missing - self.at_gate).elements())
        if self.gathering:
            found.append((ClaimKind.HOLD if absent else ClaimKind.GATHER, missing))
        else:
            free = max(0, missing.total() - len(self.leaving))
            found += [
                (ClaimKind.FOLLOW, Counter(here[:free])),
                (ClaimKind.REPLACE, Counter(here[free:])),
                (ClaimKind.HOLD, Counter(absent[: max(0, free - len(here))])),
            ]
        return [
            Claim(
                gang=self.key,
                queue=self.queue,
                kind=kind,
                batches=batches_of(what),
                priority=self.priority,
                since=self.since,
            )
            for kind, what in found
            if what
        ]

    def asks(self) -> Waiting | None:
        minimum, extra = self.minimum, self.extra
        if self.started:
            joining = counted((*self.minimum, *self.extra)) - self.slots
            minimum, extra = (), () if self.gathering else batches_of(joining)
            if not extra:
                return None
        return Waiting(
            gang=self.key,
            queue=self.queue,
            namespace="ns",
            priority=self.priority,
            since=self.since,
            minimum=minimum,
            extra=extra,
            preempts=self.preempts,
            lasts=self.lasts,
            obstacle=None if self.started else self.obstacle,
            victims=self.victims,
            places=self.places if self.victims else (),
        )

    def surplus(self) -> list[Pod]:
        """Pods that may go alone, the last first."""
        left, found = counted(self.minimum), []
        for pod in self.there:
            if left[pod.shape] > 0:
                left[pod.shape] -= 1
            elif pod.node:
                found.append(pod)
        return found[::-1] if self.harmless and not left.total() else []

    def holder(self) -> Holder | None:
        if not self.started and not self.pods:
            return None
        held = [each for each in self.claims() if each.kind in (ClaimKind.HOLD, ClaimKind.FOLLOW, ClaimKind.GATHER)]
        return Holder(
            gang=self.key,
            queue=self.queue,
            priority=self.priority,
            since=self.since,
            charge=add(asks_of(self.there), *(summed(each.batches) for each in held)),
            pods=_placed(self.there),
            takeable=self.takeable and self.started and not self.gathering,
            surplus=tuple(Placement(pod.shape, ((pod.node, 1),)) for pod in self.surplus()),
            leaving=_placed(self.leaving),
            leaving_charge=asks_of(self.leaving),
            ends=self.ends if self.started else NEVER,
        )


class Model:
    """The cluster. Changed by the methods that are named after what happens."""

    def __init__(self, *, patience: float = PATIENCE) -> None:
        self.now = 0.0
        self.patience = patience
        self.nodes: dict[str, objects.Node] = {}
        self.queues: dict[str, QueueSpec] = {}
        self.others: dict[str, tuple[str, Shape]] = {}
        """Pods that are not ours: (node, shape) by uid."""
        self.gangs: dict[str, Gang] = {}
        self.late = False
        """Whether pods that pass their gate are bound a step later."""
        self._made = 0

    def __repr__(self) -> str:
        """All of it, where a property fails."""
        return f"Model({vars(self)})"

    def copy(self) -> "Model":
        twin = copy.copy(self)
        twin.nodes, twin.queues, twin.others = dict(self.nodes), dict(self.queues), dict(self.others)
        twin.gangs = {key: gang.copy() for key, gang in self.gangs.items()}
        return twin

    def world(self, rng: random.Random | None = None) -> World:
        gangs = _mixed(self.gangs.values(), rng)
        cluster = Cluster()
        for node in _mixed(self.nodes.values(), rng):
            cluster.set_node(node)
        for uid, (name, shape) in _mixed(self.others.items(), rng):
            cluster.add_pod(uid, name, shape)
        for pod in _mixed((pod for gang in gangs for pod in gang.pods if pod.node), rng):
            cluster.add_pod(pod.uid, pod.node, pod.shape, ours=True)
        return World(
            cluster=cluster,
            queues=dict(_mixed(self.queues.items(), rng)),
            used=self.used(),
            claims=tuple(_mixed((claim for gang in gangs for claim in gang.claims()), rng)),
            waiting=tuple(asks for gang in gangs if (asks := gang.asks()) is not None),
            holders=tuple(holder for gang in gangs if (holder := gang.holder()) is not None),
            patience=self.patience,
        )

    def used(self) -> dict[str, dict[str, int]]:
        """By queue: what pods past the gate ask for."""
        found: dict[str, dict[str, int]] = {}
        for gang in self.gangs.values():
            if gang.pods:
                found[gang.queue] = add(found.get(gang.queue, {}), asks_of(gang.pods))
        return found

    def total(self) -> dict[str, int]:
        """What the open nodes have, as the design has it."""
        return add(*(amounts(each.status.allocatable) for each in self.nodes.values() if _open(each)))

    def shareable(self) -> dict[str, int]:
        """Of that what isn't taken by pods that are not ours."""
        left = self.total()
        for name, node in self.nodes.items():
            if _open(node):
                offer = amounts(node.status.allocatable)
                held = add(*(dict(shape.amounts) for where, shape in self.others.values() if where == name))
                left = subtract(left, {each: min(count, offer.get(each, 0)) for each, count in held.items()})
        return left

    def free(self, name: str) -> dict[str, int]:
        """What a node has left; less than nothing where it was made smaller."""
        left = amounts(self.nodes[name].status.allocatable)
        on_it = [shape for where, shape in self.others.values() if where == name]
        on_it += [pod.shape for gang in self.gangs.values() for pod in gang.pods if pod.node == name]
        return add(left, *(scale(shape.amounts, -1) for shape in on_it))

    def takes(self, name: str, shape: Shape) -> bool:
        """Whether kube-scheduler would bind such a pod there now."""
        node, free = self.nodes.get(name), self.free(name) if name in self.nodes else {}
        return (
            node is not None
            and _open(node)
            and all(node.metadata.labels.get(key) == value for key, value in shape.node_selector)
            and all(count <= free.get(resource, 0) for resource, count in shape.amounts.items())
        )

    # What others do.

    def arrive(self, queue: str, *minimum: Batch, **more: Any) -> Gang:
        self._made += 1
        gang = Gang(key=f"ns/g{self._made}", queue=queue, minimum=minimum, **{"since": self.now, **more})
        self.gangs[gang.key] = gang
        return gang

    def end(self, gang: Gang) -> None:
        """Its pods have ended, or somebody deletes it: it is gone."""
        del self.gangs[gang.key]

    def lose_node(self, name: str) -> None:
        """With all pods that are on it; the Job controller hasn't made others yet."""
        del self.nodes[name]
        self.others = {uid: pod for uid, pod in self.others.items() if pod[0] != name}
        for gang in self.gangs.values():
            gang.pods = [pod for pod in gang.pods if pod.node != name]

    def delete_pod(self, gang: Gang, which: int) -> None:
        """By hand; it takes its time to go, and another one is made at once."""
        there = gang.there
        if there:
            there[which % len(there)].leaving = True
            self.make_pods(gang)

    def make_pods(self, gang: Gang) -> None:
        """The Job controller fills the gang's slots with pods, born at the gate."""
        gang.at_gate = gang.missing

    def pods_gone(self, gang: Gang) -> None:
        """Those that leave have gone."""
        gang.pods = gang.there

    def take_back(self, gang: Gang) -> None:
        """Whole: its pods leave, and it waits again, with its age."""
        for pod in gang.pods:
            pod.leaving = True
        gang.pods = [pod for pod in gang.pods if pod.node]
        gang.started, gang.gathering, gang.parked, gang.ends = False, False, True, NEVER
        gang.slots, gang.at_gate, gang.victims = Counter(), Counter(), ()

    def bind(self) -> None:
        """kube-scheduler binds what has passed its gate, where there is room for it."""
        for gang in self.gangs.values():
            for pod in gang.pods:
                if not pod.node:
                    pod.node = next((name for name in self.nodes if self.takes(name, pod.shape)), "")

    # What the controller does.

    def apply(self, plan: Plan) -> None:
        told = {gang.key: gang.victims for gang in self.gangs.values()}
        for go in plan.go:
            self._go(self.gangs[go.gang], go)
        surplus = {evict.gang: self.gangs[evict.gang].surplus() for evict in plan.evict}
        for evict in plan.evict:
            self._evict(evict, surplus[evict.gang][: evict.pods])
        for gang in self.gangs.values():
            # What they freed has had its decision.
            gone = {key for key in told[gang.key] if key not in self.gangs or not self.gangs[key].leaving}
            gang.victims = tuple(key for key in gang.victims if key not in gone)

    def _go(self, gang: Gang, go: Go) -> None:
        pods = pods_of(go)
        if go.kind is None and not gang.started:
            gang.started, gang.slots, gang.victims, gang.ends = True, pods, (), self.now + gang.lasts
            gang.gathering, gang.parked = gang.parked, False
            if gang.gathering:
                return
        elif go.kind is None:
            gang.slots += pods
        else:
            gang.at_gate -= pods
            gang.gathering = False
        for placement in go.placements:
            for name, count in placement.nodes:
                for _ in range(count):
                    self._made += 1
                    gang.pods.append(Pod(f"p{self._made}", placement.shape, "" if self.late else name))

    def _evict(self, evict: Evict, surplus: Iterable[Pod]) -> None:
        gang = self.gangs[evict.gang]
        if not evict.pods:
            self.take_back(gang)
        for pod in surplus:
            if not pod.leaving:  # for another claimant, in the same plan
                pod.leaving = True
                gang.slots[pod.shape] -= 1
        claimant = self.gangs[evict.claimant]
        claimant.victims, claimant.places = (*claimant.victims, evict.gang), evict.places


def counted(batches: Iterable[Batch]) -> Counter[Shape]:
    found: Counter[Shape] = Counter()
    for each in batches:
        found[each.shape] += each.count
    return found


def pods_of(go: Go) -> Counter[Shape]:
    found: Counter[Shape] = Counter()
    for placement in go.placements:
        found[placement.shape] += sum(count for _, count in placement.nodes)
    return found


def summed(batches: Iterable[Batch]) -> dict[str, int]:
    """What these ask for together."""
    return add(*(scale(each.shape.amounts, each.count) for each in batches))


def asks_of(pods: Iterable[Pod]) -> dict[str, int]:
    return summed(batches_of(Counter(pod.shape for pod in pods)))


def batches_of(counts: Counter[Shape]) -> tuple[Batch, ...]:
    return tuple(Batch(shape, count) for shape, count in counts.items() if count > 0)


def _placed(pods: Sequence[Pod]) -> tuple[Placement, ...]:
    by_shape: dict[Shape, Counter[str]] = {}
    for pod in pods:
        if pod.node:
            by_shape.setdefault(pod.shape, Counter())[pod.node] += 1
    return tuple(Placement(shape, tuple(sorted(nodes.items()))) for shape, nodes in by_shape.items())


def _open(node: objects.Node) -> bool:
    return node.ready and not node.spec.unschedulable


def _mixed(items: Iterable[T], rng: random.Random | None) -> list[T]:
    mixed = list(items)
    if rng is not None:
        rng.shuffle(mixed)
    return mixed
