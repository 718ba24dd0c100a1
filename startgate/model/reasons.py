"""Why a gang is where it is: a closed list of codes, each with its one sentence.

The same code and sentence stand in the Gang, the Event, the metric, the audit log and the command line, so that
nobody has to put an answer together from several places (promise 5). A sentence has the numbers and the next thing to
do. Whoever finds a new cause adds a code here, and nowhere else.

What always holds: a sentence has LONGEST characters at most, whatever names people have given to their things.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec


class Code(StrEnum):
    """The codes, as they are written into a Gang's `status.reason`."""

    # It waits, for something that isn't ours to give.
    PODS_MISSING = "PodsMissing"
    ON_HOLD = "OnHold"
    SUSPENDED = "Suspended"
    NO_SUCH_QUEUE = "NoSuchQueue"
    NAMESPACE_NOT_ADMITTED = "NamespaceNotAdmitted"
    PRIORITY_NOT_ADMITTED = "PriorityNotAdmitted"
    QUEUE_STOPPED = "QueueStopped"
    BACKING_OFF = "BackingOff"
    # It waits for quota.
    QUEUE_CAPABILITY = "QueueCapability"
    PARENT_CAPABILITY = "ParentCapability"
    GUARANTEE_KEPT = "GuaranteeKept"
    CLUSTER_IN_USE = "ClusterInUse"
    NEVER_WITHIN_QUOTA = "NeverWithinQuota"
    # It could go, and others come first.
    MAKING_ROOM = "MakingRoom"
    OTHERS_FIRST = "OthersFirst"
    # It has quota, and waits for nodes.
    NO_ROOM = "NoRoom"
    FRAGMENTED = "Fragmented"
    NO_NODE_MATCHES = "NoNodeMatches"
    NEVER_FITS = "NeverFits"
    NO_DOMAIN = "NoDomain"
    NEVER_IN_DOMAIN = "NeverInDomain"
    NOT_SURE = "NotSure"
    VOLUMES = "Volumes"
    CANNOT_CHECK = "CannotCheck"
    # On its way.
    RESERVING = "Reserving"
    GATHERING = "Gathering"
    RELEASING = "Releasing"
    BINDING = "Binding"
    FOREIGN_GATE = "ForeignGate"
    RELEASE_REFUSED = "ReleaseRefused"
    WRITE_REFUSED = "WriteRefused"
    BELOW_MINIMUM = "BelowMinimum"
    # Where it is.
    RUNNING = "Running"
    ENDING = "Ending"
    PASSED_BEFORE_LABEL = "PassedBeforeLabel"
    FINISHED = "Finished"
    # Parked.
    DEADLINE_PARKED = "DeadlineParked"
    DEEP_QUEUE = "DeepQueue"
    LABELLED_LATER = "LabelledLater"
    NOT_BOUND_IN_TIME = "NotBoundInTime"
    CANNOT_PARK = "CannotPark"
    RECLAIMED = "Reclaimed"
    PREEMPTED = "Preempted"


SENTENCES: Final[Mapping[Code, str]] = MappingProxyType(
    {
        Code.PODS_MISSING: "{have} of {want} pods exist{why}",
        Code.ON_HOLD: "held by the annotation startgate.dev/hold; remove it and the gang takes its turn",
        Code.SUSPENDED: "the Job is suspended by its user; set spec.suspend to false and the gang takes its turn",
        Code.NO_SUCH_QUEUE: "there is no queue {queue}{hint}; create it, or change the label startgate.dev/queue",
        Code.NAMESPACE_NOT_ADMITTED: "queue {queue} does not admit namespace {namespace}; "
        "ask its admin, or use another queue",
        Code.PRIORITY_NOT_ADMITTED: "its priority is {priority}, and queue {queue} takes none above {highest}; "
        "use a lower PriorityClass, or another queue",
        Code.QUEUE_STOPPED: "queue {queue} is stopped: it takes Jobs and releases none until its admin sets "
        "spec.stopped to false",
        Code.BACKING_OFF: "taken back {times} times, last because {last}{look}; tries again at {until}",
        Code.QUEUE_CAPABILITY: "needs {asks}; queue {queue} has {left} left; "
        "it starts when enough of the queue's gangs end, or its capability is raised",
        Code.PARENT_CAPABILITY: "needs {asks}; parent queue {parent} has {left} left for queue {queue}{kept}; "
        "it starts when enough of the gangs below {parent} end, or its capability is raised",
        Code.GUARANTEE_KEPT: "needs {asks}; of {total} in the cluster {used} are in use and {kept} are kept for the "
        "guarantee of {queues}; it starts when {until}",
        Code.CLUSTER_IN_USE: "needs {asks}; {used} of {total} in the cluster are in use by gangs; "
        "it starts when {until}",
        Code.NEVER_WITHIN_QUOTA: "asks {asks}, and queue {queue} may never have more than {ceiling}; "
        "ask for less, or have the capability raised",
        Code.MAKING_ROOM: "its turn has come: {victims} gave way, and it waits for {pods}; "
        "what they free is held for it",
        Code.OTHERS_FIRST: "needs {asks}, which is free but held for {gang}, {why}; it starts when that has started, "
        "or more is free",
        Code.NO_ROOM: "has quota and waits for nodes: {fit} of {pods} fit now ({each} each); {nodes}; "
        "it starts when {until}",
        Code.FRAGMENTED: "has quota and waits for nodes: {free} is free, enough in sum for {pods} of {each}, but "
        "in pieces where only {fit} fit; {nodes}; it starts when {until}",
        Code.NO_NODE_MATCHES: "no node can take its pods ({each} each), however empty; {nodes}; {remedy}",
        Code.NEVER_FITS: "can never fit: with every node empty, {fit} of {pods} would fit ({each} each); {nodes}; "
        "{remedy}",
        Code.NO_DOMAIN: "has quota and waits for nodes together: {where} {fit} of {pods} fit now ({each} each)"
        "{nodes}; it starts when {until}",
        Code.NEVER_IN_DOMAIN: "can never fit: its pods have to be on nodes with one value of the label {key} "
        "(startgate.dev/topology), and with every node empty {most}; {remedy}",
        Code.NOT_SURE: "has quota and waits until it is sure that all of its pods get a node: {where}places are found "
        "for {fit} of {pods} ({each} each){why}; it starts when {until}",
        Code.VOLUMES: "waits for the volumes of {pods}: {why}",
        Code.CANNOT_CHECK: "asks for {what}, which Startgate does not check yet: it waits, rather than be let through "
        "unchecked; make the Job anew without the label startgate.dev/queue to run it without a gang",
        Code.RESERVING: "room is reserved on {nodes} nodes; released once the reservations stand",
        Code.GATHERING: "its turn has come: quota and room are held while its pods are made ({have} of {want})",
        Code.RELEASING: "admitted: {lifted} of {want} gates lifted",
        Code.BINDING: "released: {bound} of {want} pods are bound{why}",
        Code.FOREIGN_GATE: "released by us, but held by the scheduling gate {gates} on {count} pods; "
        "whoever set that gate has to lift it",
        Code.RELEASE_REFUSED: "lifting the gate of pod {pod} was refused: {error}; trying again",
        Code.WRITE_REFUSED: "{act} was refused: {error}; trying again",
        Code.BELOW_MINIMUM: "{bound} of {want} pods are bound after a loss{why}; "
        "taken back whole unless mended by {until}",
        Code.RUNNING: "{bound} of {want} pods are bound",
        Code.ENDING: "its pods have ended; the Job has yet to say how",
        Code.PASSED_BEFORE_LABEL: "its pods were bound before the label came: charged to queue {queue}, not gated",
        Code.FINISHED: "the Job has ended: {outcome}",
        Code.DEADLINE_PARKED: "suspended until its turn comes, so that activeDeadlineSeconds does not run while "
        "it waits",
        Code.DEEP_QUEUE: "suspended until its turn comes, since many pods waited in its queue when it came; "
        "meanwhile it has none",
        Code.LABELLED_LATER: "suspended until its turn comes, since the label came after its pods were made",
        Code.NOT_BOUND_IN_TIME: "taken back whole: {bound} of {want} pods were bound within {timeout}{why}; "
        "it keeps its place in the queue",
        Code.CANNOT_PARK: "not all of its pods were bound in time ({bound} of {want}), and it belongs to "
        "{owner}, so it is not suspended by us; delete or mend it by hand",
        Code.RECLAIMED: "gave its place to {gang} of queue {queue}, which is within its {line}, while {above} is above "
        "its own ({numbers}); it keeps its age and starts again in its turn",
        Code.PREEMPTED: "gave its place to {gang} of the same queue, whose priority is {priority} and its own {own}; "
        "it keeps its age and starts again in its turn",
    }
)


LONGEST: Final = 400
"""Characters of a sentence, at most."""

LEAST: Final = 16
"""So many of each fact stay, however long the others are."""


class Reason(msgspec.Struct, frozen=True):
    """A code with the facts of its sentence; equal facts, equal reasons."""

    code: Code
    facts: tuple[tuple[str, str | int], ...] = ()

    @property
    def message(self) -> str:
        """The sentence, with its numbers."""
        return SENTENCES[self.code].format(**dict(self.facts))


def reason(code: Code, **facts: str | int) -> Reason:
    """Makes a Reason; a fact that the code's sentence does not name, or one that it lacks, is a KeyError at once.

    The longest facts are cut where the sentence would be too long.
    """
    made = Reason(code, tuple(sorted(facts.items())))
    longest = LONGEST
    while len(made.message) > LONGEST and longest > LEAST:
        longest -= LEAST
        cut = {name: shortened(fact, longest) if isinstance(fact, str) else fact for name, fact in facts.items()}
        made = Reason(code, tuple(sorted(cut.items())))
    return made


def shortened(text: str, length: int) -> str:
    """So much of it as has room, with a mark where some is missing."""
    return text if len(text) <= length else f"{text[: max(0, length - 1)]}…"
