"""What one line of the audit log says.

A third party re-checks our promises from these lines alone, long after the cluster has forgotten (design:
"The audit log"), so each says who decided what, by which rule and with which numbers. What always holds: a
line is one JSON object with its schema first, and the set of decisions is closed. docs/reference/audit-log.md
has the same as a table; a test fails where they drift.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import msgspec

SCHEMA: Final = "startgate.dev/audit/v1"
DONE: Final = "done"
"""The outcome of an effect that took place. Otherwise "failed: " or "unknown: " and a sentence."""


class Stage(StrEnum):
    """Where in the life of a decision a record was written."""

    INTENT = "intent"
    """Decided, and about to be done by the program itself. Comes before the first write to the API server."""
    EFFECT = "effect"
    """What came of an intent, joined to it by id and decision."""
    VERDICT = "verdict"
    """The webhook's answer to a request, before it is sent. Others may still refuse what we allow."""


class Decision(StrEnum):
    """Everything that Startgate decides."""

    # The webhook's verdicts.
    GATE = "Gate"  # a Job or pod comes in, behind our gate
    PARK = "Park"  # a Job is suspended by us, at creation (webhook) or later (controller)
    CHANGE = "Change"  # a Job's queue, minimum or parking mark changes
    REFUSE = "Refuse"
    QUEUE_CREATED = "QueueCreated"
    QUEUE_UPDATED = "QueueUpdated"
    QUEUE_DELETED = "QueueDeleted"
    # The controller's decisions.
    RESERVE = "Reserve"  # room is kept by nominating nodes
    ADMIT = "Admit"  # the whole gang may pass: recorded in the Gang
    RELEASE = "Release"  # gates are lifted
    RESUME = "Resume"  # a parked Job makes its pods again
    TAKE_BACK = "TakeBack"  # a gang that passed is parked whole
    RECLAIM = "Reclaim"  # a gang, or some of its pods, gives way to another queue that is below its share
    PREEMPT = "Preempt"  # likewise to a gang of a higher priority in its own queue
    ADOPT = "Adopt"  # a gang without a usable record is taken over as it was found
    FINISH = "Finish"  # its quota is free again


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema", tag=SCHEMA):
    """One line. Fields that say nothing are left out."""

    seq: int
    """Per process (`instance`), from 1. A gap in a file means that a line of that file was lost."""
    at: str
    """RFC 3339, UTC, milliseconds."""
    program: str
    """webhook or controller."""
    instance: str
    """Which process: unique to one start of a program."""
    id: str
    """Joins intent and effect, and an admission with its Gang (status.admission.id); the request's uid in a
    verdict."""
    stage: Stage
    decision: Decision
    user: str = ""
    """Who asked: the user of the request. Empty where the program acts of its own accord."""
    namespace: str = ""
    gang: str = ""
    job: str = ""
    pod: str = ""
    queue: str = ""
    reason: str = ""
    """The rule: a code of model.reasons, or of the webhook's refusals."""
    message: str = ""
    seen: dict[str, str | int] = {}
    """The numbers that the rule saw, by what they count."""
    old: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """A Queue's spec before, as the API server sent it."""
    new: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """A Queue's spec after."""
    outcome: str = ""
    """Of an effect: "done", or "failed: …" or "unknown: …"."""


DECODER: Final = msgspec.json.Decoder(Record)


def moment(at: float) -> str:
    """Epoch seconds as a record has them."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
