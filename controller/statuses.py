"""What stands in a Gang: composed from a state, and written only when there is news.

`compose` and `changes` are pure; `changes` is the merge patch from what is there to what should be. Always holds: a
Gang's phase, reason and message are those of the same instant; the transitions list each change of phase once; an
admission is never dropped by a status write that doesn't mean to.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from controller.state import State, moment
from controller.writes import Writes
from startgate.engine.lifecycle import GAVE_WAY, RAN_WELL, Do, steps
from startgate.engine.observe import COMPLETED
from startgate.model import names
from startgate.model.gang import (
    MOST_TRANSITIONS,
    Admission,
    Counts,
    Gang,
    GangSpec,
    GangStatus,
    Phase,
    Pledge,
    Transition,
    Yielded,
)
from startgate.model.objects import Condition, rfc3339
from startgate.model.reasons import Code
from startgate.model.resources import quantities

Said: TypeAlias = tuple[GangSpec, GangStatus]


def compose(state: State, now: float) -> Said:
    """The Gang as it should be read now."""
    facts = state.facts
    old = state.record.status if state.record else GangStatus()
    phase = state.phase
    why = state.reason
    admission = (state.flight and state.flight.admission) or state.admission
    code, message = (str(why.code), why.message) if why else ("", "")
    if why is None and phase is Phase.PARKED and facts.parked_as in GAVE_WAY:
        code, message = facts.parked_as, facts.parked_message  # until the engine has decided on it anew
    spec = GangSpec(queue=facts.queue, min_available=facts.minimum, pods=facts.wanted, priority=facts.priority)
    if state.record and (phase is Phase.FINISHED or not facts.wanted):
        spec = state.record.spec  # a Job at its end wants nothing; what it did want is what people look for
    way = steps(old.transitions[-1].phase, phase) if old.transitions else (phase,)
    passed = [Transition(at=rfc3339(now), phase=each, reason=code if each is phase else "") for each in way]
    transitions = [*old.transitions, *passed][-MOST_TRANSITIONS:]
    status = GangStatus(
        phase=phase,
        reason=code,
        message=message,
        bound=_bound(state, phase, old),
        counts=Counts(
            gated=len(facts.gated),
            pending=len(facts.pending),
            bound=len(facts.bound),
            terminating=len(facts.leaving),
        ),
        shortage=quantities(state.verdict.shortage) if state.verdict and why is state.verdict.reason else {},
        since=old.since or rfc3339(facts.created),
        admission=admission if admission and phase is not Phase.FINISHED else msgspec.UNSET,
        claim=_claim(state, admission),
        yielded=_yielded(state, old) if phase is not Phase.FINISHED else msgspec.UNSET,
        taken_back=take_backs(old, phase, now),
        not_before=old.not_before,
        conditions=_conditions(old, state, phase, code, now),
        transitions=transitions,
    )
    return spec, status


def take_backs(old: GangStatus, phase: Phase, now: float) -> int:
    """How often in a row it was taken back, now that it is in this phase: what it ran well after doesn't count."""
    last = old.transitions[-1] if old.transitions else None
    ran = last is not None and last.phase is Phase.RUNNING and phase is not Phase.RUNNING
    return 0 if last and ran and now - moment(last.at) >= RAN_WELL else old.taken_back


async def write(writes: Writes, state: State, compose_now: Callable[[], Said]) -> GangStatus | None:
    """Creates or patches the Gang so that it says what is composed at that moment; what was written, or None.

    A Gang left from an older owner of the name goes first.
    """
    async with state.writing:
        if state.stale is not None:
            await writes.delete_gang(state.stale)
            state.stale = None
        spec, status = compose_now()
        if state.record is None:
            state.record = await writes.create_gang(state.facts.namespace, birth(state, spec, status))
        elif patch := changes(state.record, spec, status):
            state.record = await writes.patch_gang(state.record, patch)
        else:
            return None
        return status


def birth(state: State, spec: GangSpec, status: GangStatus) -> dict[str, Any]:
    """The body that creates the Gang, owned by its owner so that it goes with it."""
    facts = state.facts
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Gang",
        "metadata": {
            "name": facts.name,
            "namespace": facts.namespace,
            "labels": {names.QUEUE: facts.queue},
            "ownerReferences": [
                {
                    "apiVersion": facts.owner_version,
                    "kind": facts.owner_kind,
                    "name": facts.owner_name,
                    "uid": facts.owner_uid,
                    "controller": True,
                }
            ],
        },
        "spec": spec,
        "status": status,
    }


def changes(gang: Gang, spec: GangSpec, status: GangStatus) -> dict[str, Any]:
    """The merge patch (RFC 7396) that makes the Gang say this; empty if it does already."""
    patch: dict[str, Any] = {}
    for part, old, new in (("spec", gang.spec, spec), ("status", gang.status, status)):
        if found := _difference(msgspec.to_builtins(old), msgspec.to_builtins(new)):
            patch[part] = found
    return patch


def urgent(patch: Mapping[str, Any]) -> bool:
    """Whether it is news that people wait for, rather than numbers that moved."""
    spec, status = patch.get("spec", {}), patch.get("status", {})
    news = {"phase", "reason", "admission", "conditions", "takenBack", "yielded"} & status.keys()
    return bool(news or {"queue", "priority"} & spec.keys())


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := _difference(before, value):
                found[key] = inner
        elif value != before:
            found[key] = value
    return found


def _claim(state: State, admission: Admission | None) -> Pledge | msgspec.UnsetType:
    """Stands while the gang waits for those that make room for it; one that has started or given up has none."""
    if state.flight and state.flight.pledge:
        return state.flight.pledge
    asks = admission is None and state.standing.do is Do.DECIDE
    return state.pledge if asks and state.victims and state.pledge else msgspec.UNSET


def _yielded(state: State, old: GangStatus) -> Yielded | msgspec.UnsetType:
    """To whom it gave way last, kept as history."""
    return state.flight.yielded if state.flight and state.flight.yielded else old.yielded


def _bound(state: State, phase: Phase, old: GangStatus) -> str:
    """As 3/4. At its end a Job wants fewer and fewer pods: then the slots that it had are counted, all or none."""
    facts, admission = state.facts, state.admission
    if phase is not Phase.FINISHED:
        return f"{len(facts.bound)}/{facts.wanted}"
    if admission is None:
        return old.bound
    return f"{admission.slots if facts.outcome == COMPLETED else 0}/{admission.slots}"


def _conditions(old: GangStatus, state: State, phase: Phase, code: str, now: float) -> list[Condition]:
    """Released, Running, Finished, for `kubectl wait`; each keeps the time at which it last changed."""
    facts = state.facts
    admission = state.admission
    released = (
        isinstance(admission, Admission)
        and not admission.gathering
        and state.flight is None
        and not (facts.gated and facts.past < min(admission.slots, facts.wanted))
    )
    before = {each.type: each for each in old.conditions}
    was_released = "Released" in before and before["Released"].status == "True"
    truths = {
        "Released": phase is Phase.RUNNING
        or (phase is Phase.RELEASING and released)
        or (phase is Phase.FINISHED and (was_released or admission is not None)),
        "Running": phase is Phase.RUNNING,
        "Finished": phase is Phase.FINISHED,
    }
    made: list[Condition] = []
    for kind, truth in truths.items():
        status = "True" if truth else "False"
        was = before.get(kind)
        at = was.last_transition_time if was and was.status == status else rfc3339(now)
        reason = code or str(Code.RELEASING)
        if was and was.status == status:
            reason = was.reason
        made.append(Condition(type=kind, status=status, reason=reason, last_transition_time=at))
    return made
