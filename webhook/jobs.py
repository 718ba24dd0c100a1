"""Jobs: labels and gate into the pod template, and a refusal for what could never be kept.

Pure rules from a request and facts to a Verdict. What always holds: a Job that is let in with our label has
our label and our gate in its template, so that its pods are born behind the gate whether or not this webhook
is up when they are made (docs/adr/0001-gate-in-the-template.md); the mark `startgate.dev/parked` is on a Job
only if we suspended it and nobody has resumed it; each patch says only what differs.
"""

from collections.abc import Mapping
from typing import Final

from startgate.audit.record import Decision
from startgate.model import duration, labels, names, reasons
from startgate.model.gang import Phase
from webhook.objects import Job, PodSpec, Template
from webhook.review import NOTHING_OF_OURS, Operation, Refusal, Verdict, pointer, put, refuse
from webhook.submission import Facts, check_labels, check_queue, warnings

PASSED: Final = (Phase.RELEASING, Phase.RUNNING)
DEADLINE_PARKED: Final = str(reasons.Code.DEADLINE_PARKED)
DEEP_QUEUE: Final = str(reasons.Code.DEEP_QUEUE)
OURS: Final = (names.QUEUE, names.MIN_AVAILABLE, names.KUEUE_QUEUE)
KEYS: Final = (names.TOPOLOGY, names.PREFER_TOPOLOGY)
TUNING: Final = (names.START_TIMEOUT, names.HOLD, *KEYS)
LABELS: Final = pointer("spec", "template", "metadata", "labels")
GATES: Final = pointer("spec", "template", "spec", "schedulingGates")
ANNOTATIONS: Final = pointer("metadata", "annotations")

STAYS_PARKED: Final = (
    "it stays suspended until its turn comes in its queue, so that activeDeadlineSeconds does not run while it waits"
)
MARK_KEPT: Final = (
    f"the annotation {names.PARKED} is Startgate's own and stays as it was; to keep the Job from starting, set "
    f'{names.HOLD}: "true"'
)


def create(job: Job, namespace: str, facts: Facts) -> Verdict:
    """A new Job. Without our label it isn't ours."""
    if names.QUEUE not in job.labels:
        return NOTHING_OF_OURS
    refusal = (
        check_labels(job.labels)
        or _check_minimum(job)
        or _check_tuning(job, TUNING)
        or _check_node(job)
        or check_queue(job.queue, namespace, job.spec.template.spec.priority_class_name, facts)
    )
    if refusal is not None:
        return refusal
    parked = _parked_at_creation(job, facts)
    patch = [
        *_template_patch(job),
        *put(
            ANNOTATIONS,
            job.metadata.annotations,
            {names.PARKED: parked or None, names.PARKED_MESSAGE: None},
        ),
    ]
    if parked and not job.suspended:
        patch.append(Operation("add", pointer("spec", "suspend"), value=True))
    return Verdict(
        decision=Decision.PARK if parked else Decision.GATE,
        reason=parked,
        patch=tuple(patch),
        warnings=warnings(job.queue, facts) + _deadline_warning(job),
        queue=job.queue,
        seen=_numbers(job) | ({"waitingPods": facts.waiting} if parked == DEEP_QUEUE else {}),
    )


def comes_to_wait(job: Job) -> int:
    """How many more pods wait in its queue once it is let in: none if its user has suspended it, or if it was asked
    about before (reinvocation), so that it has our gate."""
    return 0 if job.suspended or job.spec.template.spec.gated else job.most_pods


def needs_phase(old: Job, new: Job) -> bool:
    """Whether the verdict on an update depends on how far its gang is."""
    changed = _changed(old.labels, new.labels, OURS[:2])
    return bool(changed) and names.QUEUE in old.labels and not (old.suspended and new.suspended)


def update(old: Job, new: Job, namespace: str, facts: Facts, *, phase: Phase | None, ours: bool) -> Verdict:
    """A change to a Job. `ours`: made by our controller; `phase`: of its gang, if `needs_phase`.

    What the request leaves as it was is never a reason to refuse: an older Job may have come in while we were
    down.
    """
    if names.QUEUE not in new.labels:
        return _label_removed(old) if names.QUEUE in old.labels else NOTHING_OF_OURS
    refusal = _refuse_update(old, new, namespace, facts, phase)
    if refusal is not None:
        return refusal
    parked = _parked_after(old, new, ours=ours)
    patch = [
        *_template_kept(old, new),
        *put(
            ANNOTATIONS,
            new.metadata.annotations,
            {names.PARKED: parked, names.PARKED_MESSAGE: _message_after(old, new, parked, ours=ours)},
        ),
    ]
    again = parked is not None and not new.suspended
    if again:
        patch.append(Operation("add", pointer("spec", "suspend"), value=True))
    changed = _changed(old.labels, new.labels, OURS)
    if not (patch or changed):
        return NOTHING_OF_OURS
    said = warnings(new.queue, facts) if names.QUEUE in changed else ()
    if again:
        said += (STAYS_PARKED,)
    elif new.suspended and new.annotations.get(names.PARKED) != parked:
        said += (MARK_KEPT,)
    return Verdict(
        decision=Decision.PARK if again else Decision.CHANGE,
        reason=DEADLINE_PARKED if again else "",
        patch=tuple(patch),
        warnings=said,
        queue=new.queue,
        seen=_numbers(new),
    )


def _parked_at_creation(job: Job, facts: Facts) -> str:
    """Why we suspend a new Job, or have done so when the API server asks again (reinvocation); "" if we don't."""
    if job.belongs_to:
        return ""
    if job.suspended:
        mark = job.annotations.get(names.PARKED, "")
        return mark if mark == DEEP_QUEUE or (mark == DEADLINE_PARKED and job.waits_parked) else ""
    if job.waits_parked:
        return DEADLINE_PARKED
    deep = facts.queue is not None and facts.waiting >= facts.queue.park_beyond
    return DEEP_QUEUE if deep and job.most_pods else ""


def _refuse_update(old: Job, new: Job, namespace: str, facts: Facts, phase: Phase | None) -> Verdict | None:
    changed = _changed(old.labels, new.labels, OURS)
    refusal = (
        (check_labels(new.labels) if changed else None)
        or (_check_minimum(new) if changed else None)
        or _check_tuning(new, _changed(old.annotations, new.annotations, TUNING))
        or (
            check_queue(new.queue, namespace, new.spec.template.spec.priority_class_name, facts)
            if names.QUEUE in changed
            else None
        )
    )
    if refusal is not None:
        return refusal
    if needs_phase(old, new) and phase in PASSED:
        return refuse(
            Refusal.ALREADY_RELEASED,
            f"its pods have passed the gate (the gang is {phase}), charged to queue {old.queue}: "
            f"{' and '.join(changed)} can be changed while the Job waits or is suspended; set spec.suspend to true "
            "first",
            by_facts=True,
            queue=old.queue,
        )
    return None


def _label_removed(old: Job) -> Verdict:
    template = old.spec.template
    if template.spec.gated or names.QUEUE in template.labels:
        return refuse(
            Refusal.LABEL_REMOVED,
            f"the label {names.QUEUE} can't be taken off this Job: its pods are made behind the gate {names.GATE}, "
            "and without the label nobody would open it; delete the Job and create it without the label",
            queue=old.queue,
        )
    return Verdict(decision=Decision.CHANGE, queue=old.queue)


def _parked_after(old: Job, new: Job, *, ours: bool) -> str | None:
    """What the parking mark has to be after the update; None: none."""
    if not new.suspended:
        # Resumed: the mark goes, lest a later suspend of the user be taken for ours. But a deadline would run at
        # the gate, so that such a Job waits for its turn as it does at creation.
        resumed = old.suspended and not ours
        return DEADLINE_PARKED if resumed and new.waits_parked else None
    if old.suspended and new.waits_parked and new.annotations.get(names.PARKED) == DEADLINE_PARKED:
        return DEADLINE_PARKED  # our own answer to a resume, when the API server asks again (reinvocation)
    return (new if ours else old).annotations.get(names.PARKED)


def _message_after(old: Job, new: Job, parked: str | None, *, ours: bool) -> str | None:
    """The sentence beside the mark: our controller's, for as long as the mark is the one that it came with."""
    said = (new if ours else old).annotations
    return said.get(names.PARKED_MESSAGE) if parked and said.get(names.PARKED) == parked else None


def _check_minimum(job: Job) -> Verdict | None:
    text = job.labels.get(names.MIN_AVAILABLE)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) >= 1):
        return refuse(
            Refusal.LABEL_INVALID,
            f"the label {names.MIN_AVAILABLE} is {text[:63]!r}, and has to be a whole number from 1 on: the pods "
            "that must start together",
            code=422,
            queue=job.queue,
        )
    numbers = _numbers(job)
    most = min(numbers["parallelism"], numbers.get("completions", numbers["parallelism"]))
    # With parallelism 0 nothing runs yet, and there is nothing to hold the minimum against.
    if int(text) > most and numbers["parallelism"]:
        bound = "parallelism" if most == numbers["parallelism"] else "completions"
        return refuse(
            Refusal.MINIMUM_TOO_HIGH,
            f"the label {names.MIN_AVAILABLE} is {text}, and the Job never runs more than {most} pods at once "
            f"(spec.{bound}): lower the label to at most {most}, or raise spec.{bound}",
            code=422,
            queue=job.queue,
            seen=numbers,
        )
    return None


def _numbers(job: Job) -> dict[str, int]:
    spec = job.spec
    numbers = {"parallelism": 1 if spec.parallelism is None else spec.parallelism}
    if spec.completions is not None:
        numbers["completions"] = spec.completions
    text = job.labels.get(names.MIN_AVAILABLE, "")
    if text.isascii() and text.isdecimal() and len(text) <= 9:
        numbers["minAvailable"] = int(text)
    return numbers


def _check_tuning(job: Job, which: tuple[str, ...]) -> Verdict | None:
    annotations = job.annotations
    if names.START_TIMEOUT in which and names.START_TIMEOUT in annotations:
        try:
            duration.parse_seconds(annotations[names.START_TIMEOUT])
        except duration.DurationError as error:
            return refuse(
                Refusal.ANNOTATION_INVALID,
                f"the annotation {names.START_TIMEOUT}: {error}",
                code=422,
                queue=job.queue,
            )
    if names.HOLD in which and annotations.get(names.HOLD, "true") not in ("true", "false"):
        return refuse(
            Refusal.ANNOTATION_INVALID,
            f'the annotation {names.HOLD} is {annotations[names.HOLD][:63]!r}: write "true" (don\'t start it yet) or '
            '"false"',
            code=422,
            queue=job.queue,
        )
    return next((found for key in KEYS if key in which and (found := _check_key(job, key))), None)


def _check_key(job: Job, annotation: str) -> Verdict | None:
    text = job.annotations.get(annotation)
    if text is None or not (problem := labels.key_problem(text)):
        return None
    return refuse(
        Refusal.ANNOTATION_INVALID,
        f"the annotation {annotation} is {text[:80]!r}, and has to be the key of a label of nodes, as "
        f"topology.kubernetes.io/zone: {problem}",
        code=422,
        queue=job.queue,
    )


def _check_node(job: Job) -> Verdict | None:
    node = job.spec.template.spec.node_name
    if not node:
        return None
    return refuse(
        Refusal.NODE_NAME,
        f"the pod template names the node {node}, which would pass by the queue: take off "
        "spec.template.spec.nodeName, and choose nodes by nodeSelector or affinity",
        code=422,
        queue=job.queue,
    )


def _template_patch(job: Job) -> list[Operation]:
    template = job.spec.template
    wanted = {key: job.labels.get(key) for key in OURS[:2]}
    return [*_put_labels(template, wanted), *_put_gate(template)]


def _put_labels(template: Template, wanted: Mapping[str, str | None]) -> list[Operation]:
    if template.metadata is None:
        labels = {key: value for key, value in wanted.items() if value is not None}
        return [Operation("add", pointer("spec", "template", "metadata"), {"labels": labels})] if labels else []
    return put(LABELS, template.metadata.labels, wanted)


def _put_gate(template: Template) -> list[Operation]:
    return put_gate(GATES, template.spec)


def put_gate(base: str, spec: PodSpec) -> list[Operation]:
    """The operations after which the gates at `base` have ours; the gates of others are left alone."""
    gate = {"name": names.GATE}
    if spec.gated:
        return []
    if not spec.scheduling_gates:
        return [Operation("add", base, [gate])]
    return [Operation("add", base + "/-", gate)]


def _template_kept(old: Job, new: Job) -> list[Operation]:
    """What the template had of ours stays in it, or follows the Job's labels: a suspended Job's is mutable."""
    before, after = old.spec.template, new.spec.template
    free = old.suspended and new.suspended
    due = {
        key: new.labels.get(key, value) if free else value for key, value in before.labels.items() if key in OURS[:2]
    }
    wanted = {key: value for key, value in due.items() if after.labels.get(key) != value}
    return [
        *_put_labels(after, wanted),
        *(_put_gate(after) if before.spec.gated else ()),
    ]


def _changed(old: Mapping[str, str], new: Mapping[str, str], keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(key for key in keys if old.get(key) != new.get(key))


def _deadline_warning(job: Job) -> tuple[str, ...]:
    owner = job.belongs_to
    if not owner or job.spec.active_deadline_seconds is None or job.suspended:
        return ()
    return (
        f"activeDeadlineSeconds runs while this Job waits: it belongs to {owner}, so it is not suspended meanwhile",
    )
