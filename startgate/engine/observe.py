"""What can be seen of one gang: its owner, its pods and its Gang object, boiled down to facts.

Level-based: facts come from what exists now, never from the order in which it was seen. The controller and the
simulator feed the same objects in here and get the same facts. What always holds: each pod is counted once, as one of
gated, pending, bound or leaving; a pod that has ended is not counted at all.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from startgate.engine.world import NEVER, Batch, Within
from startgate.model import names
from startgate.model.duration import DurationError, parse_seconds
from startgate.model.objects import Job, ObjectMeta, PodTemplateSpec, PriorityClass, condition, timestamp
from startgate.model.pods import Pod
from startgate.model.resources import Amounts
from startgate.model.shape import Shape, shape_of

COMPLETED: Final = "it completed"
"""The outcome of a Job that reached its end."""

ENDS: Final = ("Complete", "Failed")
SETTLED: Final = ("SuccessCriteriaMet", "FailureTarget")
"""Conditions that a Job ends with; and those that come before them."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One gang as it is now."""

    namespace: str
    name: str
    """Of the Gang."""
    queue: str
    priority: int
    owner_kind: str
    owner_version: str
    """Its apiVersion, for references to it."""
    owner_name: str
    owner_uid: str
    created: float
    """Epoch seconds of the owner's creation: the gang's age until its Gang says otherwise."""
    wanted: int
    """How many pods the owner runs at once from now on."""
    minimum: int
    """How many of them start together: min(label, parallelism, completions - succeeded)."""
    parallelism: int | None = None
    """How many pods its spec lets it run at once; None where the owner doesn't say."""
    suspended_by: str = ""
    """"", "user" or "us"."""
    parked_as: str = ""
    """The parking reason in our annotation, whether suspended or not."""
    parked_message: str = ""
    """To whom it gave way and by which rule, or what kept it until it was taken back: in our other annotation."""
    parkable: bool = False
    """Whether we may suspend the owner."""
    belongs_to: str = ""
    """The owner's own controller, as "JobSet x"; "" without one."""
    made_by: str = ""
    """Who makes its pods, if not Kubernetes' own controllers (managedBy)."""
    ready_template: bool = True
    """Whether the owner's pods are born with our label and so with our gate."""
    outcome: str = ""
    """How the owner ended; empty while it lives."""
    kept_from_ending: bool = False
    """Whether what a Job comes to is settled and it can't end for being suspended by us: Kubernetes wants a startTime
    of one that has ended, and takes it off one that is suspended."""
    hold: bool = False
    preempts: bool = True
    """False with preemptionPolicy Never."""
    sheds: bool = False
    """Whether pods beyond its minimum may be evicted one by one: no failure is counted, and others take their place."""
    lasts: float = NEVER
    """Seconds after its start at which it has ended for sure (activeDeadlineSeconds)."""
    started: float = 0.0
    """Epoch seconds of the owner's start, from which `lasts` counts; 0 while it hasn't started."""
    start_timeout: float = names.DEFAULT_START_TIMEOUT
    topology: str = ""
    """The node label of which its pods must have one value, once it starts."""
    prefer_topology: str = ""
    """The one of which they should have one value."""
    template: Shape | None = None
    gated: tuple[Pod, ...] = ()
    """Behind our gate, lowest completion index first."""
    pending: tuple[Pod, ...] = ()
    """Past our gate, on no node."""
    bound: tuple[Pod, ...] = ()
    leaving: tuple[Pod, ...] = ()
    """Being deleted: not members any more, charged until they are gone."""

    @property
    def key(self) -> str:
        """ "namespace/name", as the engine knows the gang."""
        return f"{self.namespace}/{self.name}"

    @property
    def ends(self) -> float:
        """Epoch seconds at which it has ended for sure."""
        return self.started + self.lasts if self.started else NEVER

    @property
    def past(self) -> int:
        """How many members have passed our gate."""
        return len(self.pending) + len(self.bound)

    @property
    def members(self) -> int:
        """How many pods it has, wherever they stand."""
        return len(self.gated) + self.past


def charged(facts: Facts) -> Amounts:
    """What a queue is charged for: every pod without our gate, until it has ended or is gone."""
    leaving = (pod for pod in facts.leaving if not pod.gated)
    return amounts_of(batches([*facts.pending, *facts.bound, *leaving]))


def amounts_of(what: Iterable[Batch]) -> Amounts:
    """What all these pods ask for together."""
    sums: dict[str, int] = {}
    for batch in what:
        for resource, amount in batch.shape.request:
            sums[resource] = sums.get(resource, 0) + amount * batch.count
    return sums


def batches(pods: Iterable[Pod], within: Within | None = None) -> tuple[Batch, ...]:
    """Runs of equal shape, in the order of the pods."""
    made: list[Batch] = []
    for pod in pods:
        if made and made[-1].shape is pod.shape:
            made[-1] = Batch(pod.shape, made[-1].count + 1, within)
        else:
            made.append(Batch(pod.shape, 1, within))
    return tuple(made)


def observe_job(job: Job, pods: Iterable[Pod], template: Shape, *, preempts: bool = True) -> Facts:
    """The facts of the gang of a labelled Job. `pods` are those that its uid controls; `template`: template_shape;
    `preempts`: template_preempts.
    """
    members = _sort(pods)
    wanted = _wanted(job, members)
    meta = job.metadata
    controller = meta.controller
    manager = _manager(job)
    suspended = bool(job.spec.suspend)
    parked_as = meta.annotations.get(names.PARKED, "")
    deadline = job.spec.active_deadline_seconds
    labels = _labels(job)
    return Facts(
        namespace=meta.namespace,
        name=names.gang_of_job(meta.name),
        queue=labels.get(names.QUEUE, ""),
        priority=_priority(members, template),
        owner_kind="Job",
        owner_version="batch/v1",
        owner_name=meta.name,
        owner_uid=meta.uid,
        created=timestamp(meta.creation_timestamp) if meta.creation_timestamp else 0.0,
        wanted=wanted,
        minimum=min(_minimum(labels, wanted), wanted),
        parallelism=_parallelism(job),
        suspended_by=("us" if parked_as else "user") if suspended else "",
        parked_as=parked_as,
        parked_message=meta.annotations.get(names.PARKED_MESSAGE, ""),
        parkable=not manager and (controller is None or controller.kind == "CronJob"),
        belongs_to=manager or (f"{controller.kind} {controller.name}" if controller else ""),
        made_by=manager,
        ready_template=names.QUEUE in job.spec.template.metadata.labels,
        outcome=_outcome(job),
        kept_from_ending=suspended and bool(parked_as) and _settled(job),
        hold=meta.annotations.get(names.HOLD) == "true",
        preempts=members.alive[0].preempts if members.alive else preempts,
        sheds=_sheds(job, members),
        lasts=NEVER if deadline is None else float(deadline),
        started=timestamp(job.status.start_time) if job.status.start_time and not suspended else 0.0,
        start_timeout=_start_timeout(meta),
        topology=meta.annotations.get(names.TOPOLOGY, ""),
        prefer_topology=meta.annotations.get(names.PREFER_TOPOLOGY, ""),
        template=template,
        gated=members.gated,
        pending=members.pending,
        bound=members.bound,
        leaving=members.leaving,
    )


def observe_owner(kind: str, name: str, uid: str, pods: Iterable[Pod]) -> Facts:
    """The facts of a gang whose pods alone carry the label: of a ReplicaSet, say, or a bare pod.

    Its owner can't be suspended by us, and how many pods it will make is not known: those that exist are wanted, and
    start one by one unless the label says how many together.
    """
    listed = list(pods)
    members = _sort(listed)
    wanted = len(members.alive)
    first = min(listed, key=lambda pod: (pod.created, pod.name))
    label = first.min_available
    least = int(label) if label.isdigit() and int(label) > 0 else 1
    return Facts(
        namespace=first.namespace,
        name=f"{kind.lower()}-{name}",
        queue=first.queue,
        priority=_priority(members, None),
        owner_kind=first.owner.kind if first.owner else kind,
        owner_version=first.owner.api_version if first.owner else "v1",
        owner_name=name,
        owner_uid=uid,
        created=first.created,
        wanted=max(wanted, least) if wanted else 0,
        minimum=least if wanted else 0,
        preempts=members.alive[0].preempts if members.alive else True,
        outcome=_ended_as(first) if first.uid == uid else "",
        gated=members.gated,
        pending=members.pending,
        bound=members.bound,
        leaving=members.leaving,
    )


def _ended_as(pod: Pod) -> str:
    """The outcome of a pod that is a gang by itself; "" while it lives."""
    if not pod.ended:
        return ""
    return COMPLETED if pod.phase == "Succeeded" else "it failed"


def opted_in(job: Job) -> bool:
    """Whether a Job is ours: by its own label, or by that of its pod template."""
    return bool(_labels(job).get(names.QUEUE))


def _labels(job: Job) -> Mapping[str, str]:
    """The Job's own label counts; where it has none, that of the template."""
    return job.metadata.labels if names.QUEUE in job.metadata.labels else job.spec.template.metadata.labels


class _Members(NamedTuple):
    """The pods of one owner, each in one place (an ended one in none, or counted as a success)."""

    gated: tuple[Pod, ...]
    pending: tuple[Pod, ...]
    bound: tuple[Pod, ...]
    leaving: tuple[Pod, ...]
    succeeded: tuple[Pod, ...]

    @property
    def alive(self) -> tuple[Pod, ...]:
        return (*self.gated, *self.pending, *self.bound)


def _sort(pods: Iterable[Pod]) -> _Members:
    places: tuple[list[Pod], ...] = ([], [], [], [], [])
    gated, pending, bound, leaving, succeeded = places
    for pod in sorted(pods, key=lambda each: (each.index, each.created, each.name)):
        if pod.ended:
            if pod.phase == "Succeeded":
                succeeded.append(pod)
        elif pod.deleting:
            leaving.append(pod)
        elif pod.bound:
            bound.append(pod)
        else:
            (gated if pod.gated else pending).append(pod)
    return _Members(*map(tuple, places))


def _wanted(job: Job, members: _Members) -> int:
    """How many pods the Job controller keeps alive from now on (Kubernetes: "Jobs", parallelism and completions).

    The Job's own count of successes lags behind the pods', so the larger of both counts.
    """
    succeeded = members.succeeded
    parallelism = _parallelism(job)
    if job.spec.completions is None:
        # A work queue: once one pod has succeeded, no new ones are made.
        return min(parallelism, len(members.alive)) if succeeded or job.status.succeeded else parallelism
    indexed = job.spec.completion_mode == "Indexed"
    seen = len({pod.index for pod in succeeded}) if indexed else len(succeeded)
    done = max(job.status.succeeded, seen) + _count_indexes(job.status.failed_indexes or "")
    return max(0, min(parallelism, job.spec.completions - done))


def _manager(job: Job) -> str:
    """The controller that sees to the Job in place of Kubernetes' own; "" for that."""
    managed_by = job.spec.managed_by or names.JOB_CONTROLLER
    return "" if managed_by == names.JOB_CONTROLLER else f"controller {managed_by}"


def _sheds(job: Job, members: _Members) -> bool:
    """Whether an eviction is ignored as a failure (Kubernetes: "Pod failure policy"; the first rule that matches
    decides), and the evicted pod is made anew: a work queue that has had its first success makes none.
    """
    if job.spec.completions is None and (members.succeeded or job.status.succeeded):
        return False
    policy = job.spec.pod_failure_policy
    rule = policy.rules[0] if policy and policy.rules else None
    return (
        rule is not None
        and rule.action == "Ignore"
        and any(each.type == "DisruptionTarget" and each.status == "True" for each in rule.on_pod_conditions)
    )


def _parallelism(job: Job) -> int:
    return 1 if job.spec.parallelism is None else job.spec.parallelism


def _count_indexes(text: str) -> int:
    """How many indexes "1,3-5" names (batch/v1 JobStatus.failedIndexes)."""
    count = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _minimum(labels: Mapping[str, str], wanted: int) -> int:
    """The label's number; a label that isn't one (the webhook refuses it) asks for all, the safe reading."""
    text = labels.get(names.MIN_AVAILABLE, "")
    return int(text) if text.isdigit() and int(text) > 0 else wanted


def _outcome(job: Job) -> str:
    # What it comes to is settled before its last pods are gone (KEP-3998): the second kind of each.
    for kind, words in (
        ("Complete", COMPLETED),
        ("SuccessCriteriaMet", COMPLETED),
        ("Failed", "it failed ({reason}: {message})"),
        ("FailureTarget", "it is ending ({reason})"),
    ):
        found = condition(job.status.conditions, kind)
        if found and found.status == "True":
            return words.format(reason=found.reason, message=found.message)
    return "it was deleted" if job.metadata.deletion_timestamp else ""


def _settled(job: Job) -> bool:
    """Whether only the last word of the Job controller is missing."""
    said = {
        kind for kind in ENDS + SETTLED if (found := condition(job.status.conditions, kind)) and found.status == "True"
    }
    return not said.isdisjoint(SETTLED) and said.isdisjoint(ENDS)


def _start_timeout(meta: ObjectMeta) -> float:
    try:
        return parse_seconds(meta.annotations[names.START_TIMEOUT])
    except (KeyError, DurationError):
        return names.DEFAULT_START_TIMEOUT


def _priority(members: _Members, template: Shape | None) -> int:
    """Of the pods where there are any, since admission has resolved it there; else of the template."""
    if members.alive:
        return members.alive[0].shape.priority
    return template.priority if template else 0


def template_shape(job: Job, classes: Mapping[str, PriorityClass]) -> Shape:
    """What a pod made from the Job's template would ask for. Raises QuantityError."""
    return shape_of(
        job.spec.template.spec,
        priority=priority_of(job.spec.template, classes),
        namespace=job.metadata.namespace,
        labels=template_labels(job),
    )


def template_labels(job: Job) -> Mapping[str, str]:
    """The labels of its pods, without the completion index.

    A Job that was never stored lacks those that the API server puts into the template of a new one.
    """
    labels = job.spec.template.metadata.labels
    if job.metadata.resource_version or job.spec.manual_selector:
        return labels
    meta = job.metadata
    return {**dict.fromkeys(names.JOB_NAME, meta.name), **dict.fromkeys(names.JOB_UID, meta.uid), **labels}


def template_preempts(job: Job, classes: Mapping[str, PriorityClass]) -> bool:
    """Whether its pods may take a lower one's place: preemptionPolicy, the template's own or its PriorityClass's."""
    spec = job.spec.template.spec
    if spec.preemption_policy is not None:
        return spec.preemption_policy != "Never"
    found = classes.get(spec.priority_class_name) if spec.priority_class_name else _default_class(classes)
    return found is None or found.preemption_policy != "Never"


def priority_of(template: PodTemplateSpec, classes: Mapping[str, PriorityClass]) -> int:
    """As the Priority admission plugin resolves it: by name, else the lowest global default, else 0."""
    spec = template.spec
    if spec.priority is not None:
        return spec.priority
    if spec.priority_class_name:
        found = classes.get(spec.priority_class_name)
        return found.value if found else 0
    default = _default_class(classes)
    return default.value if default else 0


def _default_class(classes: Mapping[str, PriorityClass]) -> PriorityClass | None:
    """Of several global defaults the API server takes the lowest."""
    return min((each for each in classes.values() if each.global_default), key=lambda each: each.value, default=None)
