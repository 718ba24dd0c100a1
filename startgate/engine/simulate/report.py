"""What a simulation tells: each thing that happened to a gang, and how all stands in the end.

The format of `kubectl gang simulate -o json` (docs/reference/simulate.md), which programs read. What always holds: the
same input gives the same bytes; amounts are Kubernetes quantities; fields are only ever added.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeAlias

import msgspec

from startgate.engine.simulate.manifests import MICRO
from startgate.engine.world import QueueView, Rule
from startgate.model.quantity import format_amount
from startgate.model.resources import Amounts

Seconds: TypeAlias = int | float


class Happened(StrEnum):
    """What can happen to a gang."""

    WAITING = "Waiting"
    RELEASED = "Released"
    RECLAIMED = "Reclaimed"
    PREEMPTED = "Preempted"
    TAKEN_BACK = "TakenBack"
    FINISHED = "Finished"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened."""

    at: Seconds
    """Since the beginning."""
    gang: str
    """ "namespace/name"; of a Job, its own name."""
    event: Happened
    reason: str = ""
    message: str = ""
    pods: Mapping[str, str] = {}
    """The pods that it is about, each with its node ("" where it has none)."""


class GangEnd(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """A gang in the end."""

    phase: str
    reason: str
    message: str
    released: int
    """Pods past the gate; of a gang that has completed, as many as it had."""
    min_available: int


class QueueEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A queue in the end, its children in it."""

    allocated: Mapping[str, str]
    deserved: Mapping[str, str]
    headroom: Mapping[str, str]
    share: float | None
    """The greatest of allocated / deserved; None where something is used that isn't deserved at all."""


class Final(msgspec.Struct, frozen=True, kw_only=True):
    """How all stands in the end."""

    gangs: Mapping[str, GangEnd]
    queues: Mapping[str, QueueEnd]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The document."""

    events: list[Event]
    final: Final


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one gang beside its events, for those who compare."""

    queue: str
    came: Seconds


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """Who took the place of a gang that gave way."""

    claimant: str
    """Named as `Event.gang` is."""
    rule: Rule


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """A simulation that is over."""

    told: Told
    notes: tuple[str, ...]
    """What the user should know beside the answer."""
    ended: Seconds
    """When it was left off."""
    gangs: Mapping[str, Course]
    """Those that hadn't ended before."""
    parents: Mapping[str, str]
    """Of each queue in `told.final` ("" for a child of the root)."""
    taken: Mapping[int, Taken]
    """What stands in the sentences of those who give way, by the event's place in `told.events`."""


def seconds(moment: int) -> Seconds:
    """A moment as a number that reads well: 90 rather than 90.0."""
    whole, rest = divmod(moment, MICRO)
    return moment / MICRO if rest else whole


def clock(time: Seconds) -> str:
    """As people write it, nothing left out: 1h30m, 1m30.5s."""
    micros = round(time * MICRO)
    minutes, rest = divmod(micros, 60 * MICRO)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours}h"] if hours else []
    parts += [f"{minutes}m"] if minutes else []
    parts += [f"{seconds(rest)}s"] if rest or not parts else []
    return "".join(parts)


def queue_end(view: QueueView) -> QueueEnd:
    """A queue as the last plan has it."""
    return QueueEnd(
        allocated=quantities(view.allocated),
        deserved=quantities(view.deserved),
        headroom=quantities(view.headroom),
        share=view.share,
    )


def quantities(amounts: Amounts) -> dict[str, str]:
    """As Kubernetes writes them; a zero that is said is kept."""
    return {resource: format_amount(resource, amounts[resource]) for resource in sorted(amounts)}


def in_order(views: Mapping[str, QueueView]) -> dict[str, QueueEnd]:
    """All queues, by name."""
    return {name: queue_end(views[name]) for name in sorted(views)}


def by_name(gangs: Iterable[tuple[str, GangEnd]]) -> dict[str, GangEnd]:
    """All gangs, by name."""
    return dict(sorted(gangs, key=lambda each: each[0]))
