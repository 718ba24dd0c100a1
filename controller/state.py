"""What the controller knows of one gang beyond the objects: its admission, what is under way, since when it stands.

Small on purpose, and rebuilt from the objects after a restart: all of it is either derived in `Gangs.refresh`, or may
be lost without harm (promise 6).
"""

import asyncio
from collections.abc import Mapping

import msgspec

from startgate.audit.record import Record
from startgate.engine.lifecycle import Do, Grant, Standing, told
from startgate.engine.observe import Facts
from startgate.engine.world import Claim, Holder, Stay, Waiting
from startgate.model.gang import Admission, Gang, Phase, Pledge, Yielded
from startgate.model.objects import timestamp
from startgate.model.pods import Pod
from startgate.model.reasons import Reason
from startgate.model.resources import Amounts


class Flight:
    """Work on one gang that is under way: at most one at a time (kopf: one sequential worker for each object)."""

    __slots__ = (
        "act",
        "admission",
        "going",
        "intent",
        "leaves",
        "nodes",
        "phase",
        "pins",
        "pledge",
        "pods",
        "reason",
        "yielded",
    )

    def __init__(self, phase: Phase, reason: Reason | None, admission: Admission | None = None) -> None:
        self.phase = phase
        self.reason = reason
        self.admission = admission
        """What it is about to record, if anything."""
        self.pods: dict[str, Pod] = {}
        """By uid: pods whose gate it will lift. Charged, and room kept for them, from the decision on."""
        self.nodes: dict[str, str] = {}
        """By pod uid: the node that the plan gave it, while it is being reserved."""
        self.pins: dict[str, Mapping[str, str]] = {}
        """By pod uid: what its node selector gets, to keep it to the node that the plan gave it."""
        self.act = ""
        """What is being written, for the sentence if it is refused; empty: what the lifecycle asked for."""
        self.intent: Record | None = None
        """What it has put on record, and not settled yet."""
        self.leaves = False
        """Whether its Job is being suspended: all of its pods are on their way out."""
        self.going: frozenset[str] = frozenset()
        """Pods (uids) that are being evicted."""
        self.yielded: Yielded | None = None
        """That it gives up pods, to be recorded with its fewer slots."""
        self.pledge: Pledge | None = None
        """Set where others are being told to give way for it: it goes on asking meanwhile."""


class State(msgspec.Struct, kw_only=True, gc=True):
    """One gang in the controller's memory."""

    uid: str
    """Of the owner."""
    facts: Facts
    record: Gang | None = None
    """The Gang object, if it is of this owner."""
    stale: Gang | None = None
    """A Gang of the same name, left from another owner: to be deleted."""
    cut: Admission | None = None
    """The admission with fewer slots than are on record: the owner has been scaled down since."""
    unrecorded: Admission | None = None
    """An admission that the Gang will have with its next write: of a gang of one, or of pods found past the gate."""
    writing: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    """Held while its Gang is written, so that two writes never start from the same version."""
    flight: Flight | None = None
    standing: Standing
    verdict: Stay | None = None
    """What the engine said when it last decided on it."""
    lost_at: float | None = None
    whole: bool = False
    """Whether it was seen whole since its admission."""
    claims: tuple[Claim, ...] = ()
    asks: Waiting | None = None
    holds: Holder | None = None
    """What it puts into the World while nothing is under way."""
    victims: tuple[str, ...] = ()
    """The gangs that were told to give way for it; while some of them are still leaving, only those."""
    makes_room: bool = False
    """Whether any of them is leaving still."""
    victims_of: str = ""
    """The pledge that these are of."""
    charge: tuple[str, Amounts] = ("", {})
    """The queue that pays, and for how much: pods past the gate. What is in flight comes on top."""
    recheck_at: float = 0.0
    """Epoch seconds at which to look at it again though nothing changed; 0: never."""
    retry_at: float = 0.0
    """Epoch seconds before which no gate is tried again, after a refusal."""
    refused: Reason | None = None
    refused_since: float = 0.0
    """Epoch seconds from which on its writes have been refused; 0: the last one wasn't."""
    balks: int = 0
    """How often in a row it was told to give way and something refused that."""
    spared_until: float = 0.0
    """Epoch seconds before which it isn't told again."""
    ended: bool = False
    """Whether its end is on record."""

    @property
    def key(self) -> str:
        """ "namespace/name" of the Gang."""
        return self.facts.key

    @property
    def admission(self) -> Admission | None:
        """The one that holds: the record's, else one that is about to be recorded."""
        written = self.record.status.admission if self.record else None
        found = written if isinstance(written, Admission) else self.unrecorded
        cut = self.cut
        return cut if found and cut and cut.id == found.id and cut.slots < found.slots else found

    @property
    def pledge(self) -> Pledge | None:
        """That others give way for it: the record's, or one that is being recorded. None once its queue has changed."""
        if self.flight and self.flight.pledge:
            return self.flight.pledge
        record = self.record
        if record is None or record.spec.queue != self.facts.queue:
            return None
        found = record.status.claim
        return found if isinstance(found, Pledge) else None

    @property
    def phase(self) -> Phase:
        """Where it stands now, work that is under way included."""
        return self.flight.phase if self.flight else self.standing.phase

    @property
    def reason(self) -> Reason | None:
        """Why: what is under way, what was refused, what the lifecycle says, or else the engine's verdict."""
        if self.flight and self.flight.reason:
            return self.flight.reason
        if self.refused:
            return self.refused
        return told(self.facts, self.standing.reason, self.verdict.reason if self.verdict else None)

    @property
    def quiet(self) -> bool:
        """Whether a decision has nothing to do with it, but for its charge."""
        facts = self.facts
        if self.flight:
            return False
        if facts.outcome:
            return True
        if self.admission is None:
            return not facts.pending and self.standing.do is not Do.DECIDE
        return self.standing.phase is Phase.RUNNING and not facts.gated and not facts.pending

    @property
    def since(self) -> float:
        """Epoch seconds from which it waits; a gang that was taken back keeps its age."""
        written = self.record.status.since if self.record else ""
        return moment(written) or self.facts.created


def grant_of(admission: Admission | None) -> Grant | None:
    """The admission as the lifecycle reads it."""
    if admission is None:
        return None
    return Grant(
        slots=admission.slots,
        at=moment(admission.at),
        gathering=admission.gathering,
        node_selector=admission.node_selector,
    )


def moment(text: str) -> float:
    """A time in a Gang in epoch seconds; 0 for none, and for what somebody else has written and nobody can read."""
    try:
        return timestamp(text)
    except ValueError:
        return 0.0
