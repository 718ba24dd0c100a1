"""The way of a gang: one table of what may follow what, and one function that says where a gang stands.

Everything that changes a phase goes through `standing`. It is pure and level-based: from the facts (observe), the
record of the admission (if there is one) and the time, it says the phase, the reason and the one thing to do next. The
controller does that one thing, sees what came of it, and asks again; so a crash at any point is just another state to
be asked about (promise 6).
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final
from zlib import crc32

import msgspec

from startgate.engine.observe import Facts
from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.objects import rfc3339
from startgate.model.reasons import Code, Reason, reason

FOLLOWS: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.WAITING: frozenset({Phase.RESERVED, Phase.RELEASING, Phase.RUNNING, Phase.PARKED, Phase.FINISHED}),
    Phase.RESERVED: frozenset({Phase.WAITING, Phase.RELEASING, Phase.RUNNING, Phase.PARKED, Phase.FINISHED}),
    Phase.PARKED: frozenset({Phase.GATHERING, Phase.WAITING, Phase.FINISHED}),
    Phase.GATHERING: frozenset({Phase.RELEASING, Phase.RUNNING, Phase.WAITING, Phase.PARKED, Phase.FINISHED}),
    Phase.RELEASING: frozenset({Phase.RUNNING, Phase.WAITING, Phase.PARKED, Phase.FINISHED}),
    Phase.RUNNING: frozenset({Phase.RELEASING, Phase.WAITING, Phase.PARKED, Phase.FINISHED}),
    Phase.FINISHED: frozenset({Phase.WAITING}),  # an owner without an end, scaled to nothing and up again
}
"""The transition table. A phase may also stay as it is."""

BACK_OFF: Final = (10, 600)
"""Seconds before a gang that was taken back is tried again: at first, and at most; doubled each time. Up to half as
much comes on top, by the gang, so that those that were taken back together don't come again together."""

SEVERAL: Final = 3
"""Take-backs after which its reason says where to look: it isn't chance any more."""

RAN_WELL: Final = 600
"""Seconds at a stretch that a gang has to run for its take-backs to be over: those after it are counted anew."""

GAVE_WAY: Final = frozenset({Code.RECLAIMED, Code.PREEMPTED})
"""Why a gang is parked whose place another one has: no back-off, nothing was wrong with it."""


AT_THE_GATE: Final = frozenset({Code.GATHERING, Code.RELEASING})
"""What is said of a gang whose pods have a turn, as long as the engine has nothing to say of them."""


NOT_BOUND: Final = "not all of its pods were bound in time"


class Do(Enum):
    """The next thing to do for a gang, if there is one."""

    NOTHING = "nothing"
    DECIDE = "decide"  # it waits for a decision: hand it to the engine
    RESUME = "resume"  # its turn is recorded, its Job still suspended: let its pods be made
    PARK = "park"  # suspend its Job, marked as ours
    PREPARE = "prepare"  # put our label and gate into the template of its suspended Job
    UNMARK = "unmark"  # somebody resumed the Job: take our mark off
    FORGET = "forget"  # its admission no longer holds: take the record off
    ADOPT = "adopt"  # pods have passed without a record of ours: record what is


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """An admission as the lifecycle needs it."""

    slots: int
    at: float
    """Epoch seconds."""
    gathering: bool = False
    node_selector: Mapping[str, str] = {}
    """What its pods' node selectors get: the domain in which they are to be."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a gang is, why, and what to do about it."""

    phase: Phase
    do: Do
    reason: Reason | None
    """None where the engine's verdict is the reason."""
    park_as: Code | None = None
    deadline: float = 0.0
    """Epoch seconds at which this standing changes by the clock alone; 0: it doesn't."""


def standing(
    facts: Facts,
    grant: Grant | None,
    *,
    lost_at: float | None,
    back_off: Reason | None,
    now: float,
    hopeless: bool = False,
) -> Standing:
    """Where the gang stands.

    lost_at: since when fewer than its minimum are bound although they once were; None if it never was whole.
    back_off: set while a gang that was taken back isn't to be tried yet.
    hopeless: whether the engine has said of its pods, as they were made, that they can never go.
    """
    if facts.outcome:
        do = Do.RESUME if facts.kept_from_ending else Do.NOTHING
        return _at(Phase.FINISHED, reason(Code.FINISHED, outcome=facts.outcome), do)
    if facts.suspended_by and not facts.ready_template:
        return _at(_suspended_phase(facts), _suspended_reason(facts), Do.PREPARE)
    if grant is not None and _outlived(facts, grant):
        return _at(Phase.WAITING, _missing(facts), Do.FORGET)
    if facts.parked_as and not facts.suspended_by:
        return _at(Phase.WAITING, _missing(facts), Do.UNMARK)
    if grant is None:
        return _without_grant(facts, back_off)
    if grant.gathering:
        return _gathering(facts, grant, now, hopeless=hopeless)
    return _released(facts, grant, lost_at, now)


def steps(before: Phase, after: Phase) -> tuple[Phase, ...]:
    """The phases to be gone through from one to the other, the last included; none if they are the same.

    Usually one. Where more has happened than was seen (nobody watched for a while), the shortest way by the table.
    """
    if before is after:
        return ()
    ways: list[tuple[Phase, ...]] = [(phase,) for phase in sorted(FOLLOWS[before])]
    for way in ways:
        if way[-1] is after:
            return way
        ways += [(*way, phase) for phase in sorted(FOLLOWS[way[-1]]) if phase not in way and phase is not before]
    raise ValueError(f"the table knows no way from {before} to {after}")


def wanted_slots(facts: Facts, grant: Grant) -> int:
    """How many of the slots that it was admitted for the gang still has a use for."""
    return min(grant.slots, facts.wanted)


def back_off(facts: Facts, times: int) -> float:
    """Seconds to wait after having been taken back so many times (at least 1); the same whenever it is asked."""
    first, most = BACK_OFF
    base = min(most, first * 2 ** min(times - 1, 16))
    return float(base + crc32(f"{facts.owner_uid}/{times}".encode()) % (base // 2 + 1))


def backing_off(facts: Facts, times: int, until: float) -> Reason:
    """Why a gang that has been taken back so many times waits until then (epoch seconds)."""
    known = facts.parked_message if facts.parked_as == Code.NOT_BOUND_IN_TIME else ""
    look = _where_to_look(facts) if times >= SEVERAL else ""
    return reason(Code.BACKING_OFF, times=times, last=known or NOT_BOUND, look=look, until=rfc3339(until))


def _where_to_look(facts: Facts) -> str:
    """For one who has to find what the node fit doesn't see."""
    return (
        f"; look at the Events of its {facts.owner_kind} and its pods (kubectl get events -n {facts.namespace}), "
        f"at its pods' schedulerName, and whether {names.START_TIMEOUT} is long enough"
    )


def told(facts: Facts, stands: Reason | None, verdict: Reason | None) -> Reason | None:
    """Why it is where it is, in the end: the engine's verdict where pods are at the gate and yet can't go."""
    if stands is None or verdict is None:
        return stands or verdict
    if stands.code in AT_THE_GATE:
        return verdict
    waiting = _replacements(facts, stands)
    if not waiting:
        return stands
    known = dict(stands.facts)
    who = "its replacement waits" if waiting == 1 else f"{waiting} replacements wait"
    known["why"] = f"{known['why']}; {who}: {verdict.message}"
    return reason(stands.code, **known)


def taken_back_for(facts: Facts, stands: Reason, verdict: Reason | None) -> str:
    """What kept a gang that is taken back now, told as long as it is parked: by then there are no pods to ask about."""
    if stands.code is Code.GATHERING:
        known = dict(stands.facts)
        if verdict is not None:
            return f"its pods, as they were made, couldn't go: {verdict.message}"
        return f"{known['have']} of {known['want']} pods were made in time"
    at_gate = stands.code in AT_THE_GATE or _replacements(facts, stands)
    if verdict is not None and at_gate:
        return f"{NOT_BOUND}: {verdict.message}"
    if stands.code is Code.FOREIGN_GATE:
        return f"{NOT_BOUND}: {stands.message}"
    return NOT_BOUND + _said(facts)


def _replacements(facts: Facts, stands: Reason) -> int:
    """How many pods are at the gate that would mend its loss."""
    if stands.code is not Code.BELOW_MINIMUM:
        return 0
    return max(0, min(len(facts.gated), int(dict(stands.facts)["want"]) - facts.past))


def _without_grant(facts: Facts, pause: Reason | None) -> Standing:
    if facts.suspended_by:
        if facts.suspended_by == "user":
            return _at(Phase.WAITING, reason(Code.SUSPENDED))
        if facts.hold:
            return _at(Phase.PARKED, reason(Code.ON_HOLD))
        return _at(Phase.PARKED, pause, Do.NOTHING if pause else Do.DECIDE)
    if not facts.ready_template:
        if facts.bound:
            return _at(Phase.RUNNING, reason(Code.PASSED_BEFORE_LABEL, queue=facts.queue))
        if facts.parkable:
            return _at(Phase.WAITING, reason(Code.LABELLED_LATER), Do.PARK, park_as=Code.LABELLED_LATER)
    if facts.past:
        # Pods of a gang of one pass first and are recorded after; a break-glass role may also have opened a gate.
        return _at(Phase.RELEASING, _binding(facts, facts.wanted), Do.ADOPT)
    if facts.hold:
        return _at(Phase.WAITING, reason(Code.ON_HOLD))
    if facts.wanted == 0 or facts.members < facts.minimum:
        return _at(Phase.WAITING, _missing(facts))
    return _at(Phase.WAITING, pause, Do.NOTHING if pause else Do.DECIDE)


def _outlived(facts: Facts, grant: Grant) -> bool:
    """Whether the Job was suspended and resumed while nobody watched: its new pods were admitted by nobody. A resumed
    Job starts anew (Kubernetes: "Suspending a Job", startTime)."""
    return not grant.gathering and not facts.past and facts.started > grant.at


def _gathering(facts: Facts, grant: Grant, now: float, *, hopeless: bool) -> Standing:
    """Its turn has come and its pods are being made. Made otherwise than its template says (by a webhook, say) they may
    be such as can never go: then others needn't wait for its start timeout.

    The Job controller may not have seen yet that the Job was suspended, nor its template as it is now: pods from before
    have to go first, and those that it made without our label to go again.
    """
    if facts.suspended_by == "user":
        return _at(Phase.WAITING, reason(Code.SUSPENDED), Do.FORGET)
    need = wanted_slots(facts, grant)
    why = reason(Code.GATHERING, have=len(facts.gated), want=need)
    deadline = grant.at + facts.start_timeout
    # Once it is suspended its pods go, and what was said of them still holds: it isn't to be resumed for that.
    given_up = hopeless and (facts.suspended_by != "" or facts.members >= need)
    if now >= deadline or given_up:
        if facts.suspended_by:
            return _at(Phase.PARKED, why, Do.FORGET)
        return _at(Phase.GATHERING, why, Do.PARK, park_as=Code.NOT_BOUND_IN_TIME)
    if any(not pod.queue for pod in (*facts.pending, *facts.bound)) and not facts.suspended_by:
        return _at(Phase.GATHERING, why, Do.PARK, park_as=Code.LABELLED_LATER)
    resume = facts.suspended_by and not facts.past
    return _at(Phase.GATHERING, why, Do.RESUME if resume else Do.NOTHING, deadline=deadline)


def _released(facts: Facts, grant: Grant, lost_at: float | None, now: float) -> Standing:
    """Its gates are open, or being opened."""
    if facts.suspended_by == "us":
        return _at(Phase.PARKED, None, Do.FORGET)
    if facts.suspended_by:
        return _at(Phase.WAITING, reason(Code.SUSPENDED), Do.FORGET)
    if facts.parallelism == 0 and not facts.past:
        return _at(Phase.WAITING, _missing(facts), Do.FORGET)  # scaled up again it starts whole, not pod by pod
    need = wanted_slots(facts, grant)
    bound = len(facts.bound)
    if bound >= need:
        return _at(Phase.RUNNING, _running(facts, need))
    if bound >= facts.minimum:
        return _at(Phase.RELEASING, _progress(facts, need, None))
    deadline = (grant.at if lost_at is None else lost_at) + facts.start_timeout
    why = _progress(facts, need, None if lost_at is None else deadline)
    if now < deadline:
        return _at(Phase.RELEASING, why, deadline=deadline)
    if not facts.parkable:
        owner = facts.belongs_to or f"{facts.owner_kind} {facts.owner_name}"
        return _at(Phase.RELEASING, reason(Code.CANNOT_PARK, bound=bound, want=need, owner=owner))
    return _at(Phase.RELEASING, why, Do.PARK, park_as=Code.NOT_BOUND_IN_TIME)


def _progress(facts: Facts, need: int, deadline: float | None) -> Reason:
    foreign = sorted({gate for pod in facts.pending for gate in pod.foreign_gates})
    if foreign:
        count = sum(1 for pod in facts.pending if pod.foreign_gates)
        return reason(Code.FOREIGN_GATE, gates=", ".join(foreign), count=count)
    if deadline is not None:
        until = rfc3339(deadline)
        return reason(Code.BELOW_MINIMUM, bound=len(facts.bound), want=need, why=_said(facts), until=until)
    if facts.past < need and facts.gated:
        return reason(Code.RELEASING, lifted=facts.past, want=need)
    return _binding(facts, need)


def _binding(facts: Facts, need: int) -> Reason:
    return reason(Code.BINDING, bound=len(facts.bound), want=need, why=_said(facts))


def _said(facts: Facts) -> str:
    """What kube-scheduler says of the first pod that it couldn't bind."""
    text = next((pod.unschedulable for pod in facts.pending if pod.unschedulable), "")
    return f"; kube-scheduler: {text}" if text else ""


def _running(facts: Facts, need: int) -> Reason:
    if not facts.ready_template:
        return reason(Code.PASSED_BEFORE_LABEL, queue=facts.queue)
    return reason(Code.RUNNING, bound=len(facts.bound), want=need) if need else reason(Code.ENDING)


def _missing(facts: Facts) -> Reason:
    why = f"; they are {facts.made_by}'s to make (managedBy)" if facts.made_by else ""
    if facts.wanted == 0:
        why = "; it asks for none (parallelism 0, or all done)"
    return reason(Code.PODS_MISSING, have=facts.members, want=facts.minimum, why=why)


def _suspended_phase(facts: Facts) -> Phase:
    return Phase.PARKED if facts.suspended_by == "us" else Phase.WAITING


def _suspended_reason(facts: Facts) -> Reason:
    return reason(Code.LABELLED_LATER) if facts.suspended_by == "us" else reason(Code.SUSPENDED)


def _at(
    phase: Phase,
    why: Reason | None,
    do: Do = Do.NOTHING,
    *,
    park_as: Code | None = None,
    deadline: float = 0.0,
) -> Standing:
    return Standing(phase=phase, do=do, reason=why, park_as=park_as, deadline=deadline)
