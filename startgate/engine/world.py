"""What a decision reads and what it answers: the words between the controller (or the simulator) and the engine.

`cycle.decide(world, now) -> Plan`. Both sides are plain values; the same world gives the same plan. The engine knows
gangs by key ("namespace/name") and pods by shape and count only: which pod goes through which gate is the caller's
matter.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum
from functools import cached_property
from typing import Final

import msgspec

from startgate.engine.cluster import Cluster
from startgate.model.queue import QueueSpec
from startgate.model.reasons import Reason
from startgate.model.resources import PODS, Amounts
from startgate.model.shape import Shape


class Within(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """That pods are to be together on nodes which have one and the same value of a label: in one rack, say.

    All pods of a gang that are asked about together have the same one.
    """

    key: str = ""
    """The label of which they must have one value; none: there is no such demand."""
    value: str | None = None
    """This value, since others of the gang are there already."""
    prefer: str = ""
    """The label of which they should have one value, inside what they must have, or else as few as can be."""
    near: str | None = None
    """The value that should come first, since others of the gang are there."""


class Batch(msgspec.Struct, frozen=True, cache_hash=True, dict=True):
    """So many pods of one shape, in the order in which they would be released (lowest completion index first)."""

    shape: Shape
    count: int
    within: Within | None = None

    @cached_property
    def plain(self) -> "Batch":
        """The same as far as the nodes alone decide: so those of many Jobs are alike."""
        return Batch(self.shape.plain, self.count, self.within)


class Placement(msgspec.Struct, frozen=True):
    """Where `count` pods of one shape are, or would go."""

    shape: Shape
    nodes: tuple[tuple[str, int], ...]
    """(node name, how many), in the order in which pods are to be assigned."""


NEVER: Final = float("inf")
"""A time that doesn't come, or isn't known to."""


class ClaimKind(Enum):
    """How far an admitted pod without a node has come."""

    BIND = "bind"  # its gate is open, or is being opened right now: kube-scheduler has yet to bind it
    FOLLOW = "follow"  # it stands at its gate and its gang has a slot for it: goes through as soon as it fits
    REPLACE = (
        "replace"  # like FOLLOW, but a pod that is leaving still pays for the slot: goes if quota has room for both
    )
    GATHER = "gather"  # a resumed gang that has its pods again: goes through whole and below its ceilings, or waits
    HOLD = "hold"  # a slot whose pod isn't made yet: quota and room are kept for it


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Pods that were admitted and have no node yet. Claims take their room before any waiting gang."""

    gang: str
    queue: str
    kind: ClaimKind
    batches: tuple[Batch, ...]
    priority: int = 0
    since: float = 0.0


class Waiting(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A gang that asks to start, or (with `minimum` empty) pods that would join a gang that has started.

    It stays the same object from decision to decision, and so keeps what was worked out of it."""

    gang: str
    queue: str
    namespace: str
    priority: int
    since: float
    """Epoch seconds from which it waits."""
    minimum: tuple[Batch, ...]
    """The pods that start together or not at all."""
    extra: tuple[Batch, ...] = ()
    """Pods beyond the minimum: as many as fit come along."""
    obstacle: Reason | None = None
    """Set where something other than quota and nodes keeps it: it is then not tried at all."""
    preempts: bool = True
    """False with preemptionPolicy Never: it takes no lower gang's place in its own queue."""
    lasts: float = NEVER
    """Seconds after which it is sure to have ended if it starts now (its deadline)."""
    victims: tuple[str, ...] = ()
    """Gangs that were told to give way for it. As long as pods are leaving, theirs or others', that it needs gone, what
    they free is held for it; when all are gone it comes before others, until it has started or couldn't."""
    places: tuple[tuple[str, int], ...] = ()
    """(node name, how many): where it was proved to have room once those are gone. Tried before other nodes."""

    @cached_property
    def turn(self) -> tuple[int, float, str]:
        """By what it stands in its queue: priority, then age, then name; the first is the least."""
        return -self.priority, self.since, self.gang

    @cached_property
    def plain(self) -> tuple[Batch, ...]:
        """The batches of the minimum that aren't empty, as far as the nodes alone decide."""
        return tuple([batch.plain for batch in self.minimum if batch.count > 0])

    @cached_property
    def constrained(self) -> bool:
        """Whether more than the nodes decides where its minimum can go, by what the pods ask for themselves."""
        return any(batch.shape.constrained for batch in self.minimum)

    @cached_property
    def asked(self) -> tuple[str, tuple[Batch, ...]]:
        """Its queue and all that it asks for, as far as amounts go."""
        return self.queue, (*self.plain, *(batch.plain for batch in self.extra if batch.count > 0))


class Holder(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A gang that has started: what it would free if it gave way, and what it is about to free already.

    Its pods are on the cluster's nodes and in `used` (or in its claims) all the same: this says which are its.
    """

    gang: str
    queue: str
    priority: int
    since: float
    """Epoch seconds: its age, kept when it is taken back. The youngest gives way first."""
    charge: Amounts
    """What the books have for it (pods past the gate, slots held), without what leaves."""
    pods: tuple[Placement, ...] = ()
    """Its pods on nodes, without those that leave."""
    takeable: bool = False
    """Whether we may take it back whole: its owner can be suspended by us, and nothing is under way with it."""
    surplus: tuple[Placement, ...] = ()
    """Pods beyond its minimum that may go alone without harm, one each, in the order in which they would go."""
    leaving: tuple[Placement, ...] = ()
    """Its pods on nodes that are on their way out: being deleted, or of a Job that we have suspended."""
    leaving_charge: Amounts = {}
    """What the books still have for those that leave."""
    ends: float = NEVER
    """Epoch seconds by which it is sure to have ended (its deadline)."""

    @cached_property
    def size(self) -> tuple[int, float, str]:
        """By what the smaller comes before the larger: pods, then age, then name."""
        return self.charge.get(PODS, 0), self.since, self.gang


PATIENCE: Final = 600.0


class World(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a decision depends on, at one instant."""

    cluster: Cluster
    """Nodes with what is on them, whoever put it there (bound pods, and pods nominated to a node). Not changed."""
    queues: Mapping[str, QueueSpec]
    used: Mapping[str, Amounts]
    """By queue: what pods past our gate ask for, until they have ended or are gone. Claims of kind BIND are in it."""
    claims: tuple[Claim, ...]
    waiting: tuple[Waiting, ...]
    holders: tuple[Holder, ...] = ()
    """Gangs that have started. One that was taken back and asks again can be here and in `waiting`."""
    patience: float = PATIENCE
    """Seconds after which a gang that can't start yet is protected from those behind it."""
    pending: tuple[Batch, ...] = ()
    """Pods that are not ours and wait for kube-scheduler: they may take room before ours get there."""


class Go(msgspec.Struct, frozen=True, kw_only=True):
    """These pods of this gang may pass now."""

    gang: str
    kind: ClaimKind | None
    """None for a waiting gang that is admitted (or pods that join); else the kind of the claim that goes through."""
    placements: tuple[Placement, ...]
    count: int
    """How many pods: the minimum and the extras that came along."""
    tight: bool
    """Whether somebody else could take the room before kube-scheduler has bound them: reserve it first."""
    numbers: Mapping[str, str]
    """What the rule saw, for the audit log."""
    node_selector: Mapping[str, str] = {}
    """What the pods' node selectors get beside what they have, so that kube-scheduler keeps them together."""
    pinned: bool = False
    """Whether each pod is to be kept to its very node: left to choose, kube-scheduler could leave the last of them
    none, and reserved all at once they would keep one another away."""


class Stay(msgspec.Struct, frozen=True, kw_only=True):
    """This gang waits, and why."""

    gang: str
    reason: Reason
    shortage: Amounts = {}
    """What is missing, by resource, where that can be said."""


class Rule(StrEnum):
    """By which a gang gives way (design: "Reclaim", "Preemption in a queue")."""

    GUARANTEE = "guarantee"  # the claimant is within its queue's guarantee, the victim's queue above its own
    DESERVED = "deserved"  # the same by what they deserve
    PRIORITY = "priority"  # a higher PriorityClass in the same queue


class Evict(msgspec.Struct, frozen=True, kw_only=True):
    """This gang gives way now, so that the claimant can start when its pods are gone."""

    gang: str
    claimant: str
    rule: Rule
    pods: int
    """How many of its surplus go, in the order of Holder.surplus; 0: the gang goes whole. Where several claimants of
    one plan take of the same gang, each number has those of the claimants before it in it."""
    reason: Reason
    """For the victim: who took its place, and by which rule."""
    numbers: Mapping[str, str]
    """What the rule saw, for the audit log."""
    places: tuple[tuple[str, int], ...] = ()
    """(node name, how many): where the claimant will go, by the proof."""


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's books after the plan's admissions, its children's in them: what the Queue's status shows."""

    allocated: Amounts
    reserved: Amounts
    headroom: Amounts
    """What one more gang could ask for by quota; only resources with a ceiling above it somewhere."""
    deserved: Amounts = {}
    """As given or worked out by weight; without zeros."""
    share: float | None = 0.0
    """The greatest of allocated / deserved, for reading only; None where some is used of what isn't deserved at all."""
    next: str = ""
    """The waiting gang of this queue, or below it, whose turn comes first."""
    problems: tuple[str, ...] = ()
    """Sentences about a configuration that cannot hold as it is (guarantees above the cluster, …)."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. Order of `go` is the order in which to act; a claimant of `evict` is in `stay`."""

    go: tuple[Go, ...]
    stay: tuple[Stay, ...]
    evict: tuple[Evict, ...] = ()
    queues: Mapping[str, QueueView]
