"""A Gang as `list` and `why` show it: the document behind -o json and -o yaml.

A contract with scripts (docs/reference/cli.md). What always holds: each field is always there; a field is only ever
added; None stands where there is nothing to say, empty text and empty lists where there is nothing in it.
"""

import msgspec
from msgspec import UNSET

from startgate.model.gang import Admission, Gang, Pledge, Transition, Yielded
from startgate.model.objects import Condition, timestamp


class Document(msgspec.Struct, rename="camel", kw_only=True):
    """camelCase, nothing left out."""


class Owner(Document):
    """What the pods of the gang belong to."""

    kind: str
    name: str


class CountsView(Document):
    """Pods of the gang, each counted once; ended ones not at all."""

    gated: int
    pending: int
    bound: int
    terminating: int


class AdmissionView(Document):
    """The record that the gang may pass."""

    id: str
    at: str
    slots: int
    gathering: bool
    node_selector: dict[str, str]


class ClaimView(Document):
    """The record that others give way for the gang."""

    id: str
    at: str
    rule: str
    victims: list[str]


class YieldedView(Document):
    """That the gang, or some of its pods, gave way to another, the last time that it did."""

    at: str
    reason: str
    message: str


class ConditionView(Document):
    """One condition, as Kubernetes has them."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str | None


class TransitionView(Document):
    """One change of phase."""

    at: str
    phase: str
    reason: str


class GangView(Document):
    """All that a Gang says."""

    namespace: str
    name: str
    owner: Owner | None
    queue: str
    priority: int
    min_available: int
    pods: int
    phase: str
    reason: str
    message: str
    bound: str
    counts: CountsView
    shortage: dict[str, str]
    since: str | None
    admission: AdmissionView | None
    claim: ClaimView | None
    yielded: YieldedView | None
    taken_back: int
    not_before: str | None
    conditions: list[ConditionView]
    transitions: list[TransitionView]


def view(gang: Gang) -> GangView:
    """The document of a Gang."""
    status = gang.status
    controller = gang.metadata.controller
    return GangView(
        namespace=gang.metadata.namespace,
        name=gang.metadata.name,
        owner=None if controller is None else Owner(kind=controller.kind, name=controller.name),
        queue=gang.spec.queue,
        priority=gang.spec.priority,
        min_available=gang.spec.min_available,
        pods=gang.spec.pods,
        phase=status.phase.value,
        reason=status.reason,
        message=status.message,
        bound=status.bound,
        counts=CountsView(
            gated=status.counts.gated,
            pending=status.counts.pending,
            bound=status.counts.bound,
            terminating=status.counts.terminating,
        ),
        shortage={resource: str(amount) for resource, amount in sorted(status.shortage.items())},
        since=status.since or gang.metadata.creation_timestamp,
        admission=None if status.admission is UNSET else _admission(status.admission),
        claim=None if status.claim is UNSET else _claim(status.claim),
        yielded=None if status.yielded is UNSET else _yielded(status.yielded),
        taken_back=status.taken_back,
        not_before=status.not_before or None,
        conditions=[_condition(each) for each in status.conditions],
        transitions=[_transition(each) for each in status.transitions],
    )


def waited(gang: GangView, now: float) -> float | None:
    """Seconds since it began to wait; None if that can't be read."""
    if gang.since is None:
        return None
    try:
        return now - timestamp(gang.since)
    except ValueError:
        return None


def _admission(made: Admission) -> AdmissionView:
    return AdmissionView(
        id=made.id, at=made.at, slots=made.slots, gathering=made.gathering, node_selector=dict(made.node_selector)
    )


def _claim(made: Pledge) -> ClaimView:
    return ClaimView(id=made.id, at=made.at, rule=made.rule, victims=list(made.victims))


def _yielded(made: Yielded) -> YieldedView:
    return YieldedView(at=made.at, reason=made.reason, message=made.message)


def _condition(each: Condition) -> ConditionView:
    return ConditionView(
        type=each.type,
        status=each.status,
        reason=each.reason,
        message=each.message,
        last_transition_time=each.last_transition_time,
    )


def _transition(each: Transition) -> TransitionView:
    return TransitionView(at=each.at, phase=each.phase.value, reason=each.reason)
