"""The Job controller, as far as it decides which pods there are: what it makes, counts, gives up and ends.

From Kubernetes' documentation of Jobs, and measured where that is silent. What always holds: a pod that leaves because
its Job is suspended counts as no failure; one that is deleted or lost does, unless the Job's podFailurePolicy ignores
disruptions; a Job that has ended makes no more pods. Not followed: success policies, back-off limits by index.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from startgate.engine.observe import template_shape
from startgate.engine.simulate import admission
from startgate.engine.simulate.manifests import MICRO, Life
from startgate.engine.simulate.merge import merge, without_nulls
from startgate.engine.simulate.owners import MADE_UP, Group, LiveJob, Loss, Owners, created_at
from startgate.engine.simulate.pods import Actor, Mold, from_mold, mold
from startgate.engine.simulate.scene import Scene
from startgate.model import names, objects
from startgate.model.objects import Condition, JobStatus, OwnerReference, rfc3339, timestamp
from startgate.model.shape import Shape

BACKOFF_LIMIT: Final = 6
BACK_OFF: Final = (10 * MICRO, 600 * MICRO)
"""Before pods are made again after a failure: at first, and at most; doubled with each failure since a success."""

TRACKED: Final = "batch.kubernetes.io/job-tracking"
"""Kubernetes' finalizer on pods that their Job hasn't counted yet."""


class Jobs:
    """All Jobs, and the pods of all owners."""

    def __init__(self, stage: Scene) -> None:
        self._stage = stage
        self._owners = Owners()
        self.groups = self._owners.groups
        """By the owner's uid."""
        self._unsettled: dict[str, None] = {}
        self._ended: list[LiveJob] = []

    # --- what the files, and our controller, do to Jobs ---------------------------------------------------------

    def create(self, life: Life) -> None:
        """A Job appears."""
        raw = admission.whole(life.raw)
        old = admission.stored(raw)
        raw = raw if old else admission.create_job(raw)
        metadata = {"uid": f"{MADE_UP}{life.order}", "namespace": life.key.namespace, **raw["metadata"]}
        since = created_at(metadata, self._stage.timeline.epoch)
        metadata["creationTimestamp"] = rfc3339(since)
        raw = {**raw, "metadata": metadata}
        group = self._owners.job(metadata["uid"], life.key.namespace, life.key.name)
        group.order, group.since, group.stored = life.order, since, old
        job = group.job = LiveJob(group, raw, life.where)
        self._recall(job, raw.get("status") or {})
        job.was_over = job.ended
        self._unsettle(job)

    def _recall(self, job: LiveJob, status: dict[str, Any]) -> None:
        """What a stored Job says of its past."""
        held = msgspec.convert(without_nulls(status), JobStatus)
        job.succeeded, job.failed, job.failed_indexes = held.succeeded, held.failed, held.failed_indexes or ""
        job.done = _indexes(held.completed_indexes, job.spec.completions or 0)
        if held.start_time:
            job.started = self._stage.timeline.moment(timestamp(held.start_time))
            self._plan_deadline(job)
        for kind in ("Complete", "Failed"):
            found = objects.condition(held.conditions, kind)
            if found is not None and found.status == "True":
                job.outcome, job.ended = found, True

    def change(self, namespace: str, name: str, patch: dict[str, Any], where: str) -> None:
        """A Job is changed by its user."""
        job = self.named(namespace, name)
        if job is None:
            return
        template = (patch.get("spec") or {}).get("template")
        if template and not job.suspended:
            patch = {**patch, "spec": {key: each for key, each in patch["spec"].items() if key != "template"}}
            self._stage.notes[f"{where}: the pod template of a Job that isn't suspended can't be changed"] = None
        job.where, ran = where, self._mold(job).runs
        self.rewrite(job, admission.update_job(job.raw, admission.whole(merge(job.raw, patch))))
        for actor in job.group.actors.values() if self._mold(job).runs != ran else ():
            self._stage.run_on(actor)
        if patch.get("status"):
            self._recall(job, job.raw["status"])
            if job.ended:
                self._ended.append(job)

    def rewrite(self, job: LiveJob, raw: dict[str, Any]) -> None:
        """The object is another one from now on."""
        was = job.suspended
        job.set_raw(raw)
        if was and not job.suspended:
            job.retry_at = job.failures = 0
        self._unsettle(job)

    def delete(self, namespace: str, name: str) -> None:
        """A Job is deleted, and its pods with it."""
        group = self._owners.named(namespace, name)
        if group is None:
            return
        self._owners.unname(group)
        for actor in list(group.actors.values()):
            self._stage.delete(actor, Loss.SURPLUS)
        group.job = None
        self._unsettled.pop(group.uid, None)
        self._stage.dirty[group.uid] = None
        self._forget_if_empty(group)

    def named(self, namespace: str, name: str) -> LiveJob | None:
        """The Job of this name."""
        group = self._owners.named(namespace, name)
        return group.job if group else None

    def recast(self) -> None:
        """What templates come to has changed."""
        for group in self.groups.values():
            if group.job:
                group.job.mold = group.job.template = None
                self._stage.dirty[group.uid] = None

    def template(self, job: LiveJob) -> Shape:
        """What its template asks for, as long as it has no pods."""
        if job.template is None:
            job.template = template_shape(job.wire(self._stage.timeline.begin), self._stage.classes)
        return job.template

    def mold_of(self, actor: Actor) -> Mold | None:
        """What this pod was made from, or would be now."""
        group = self._owners.of(actor)
        return self._mold(group.job) if group and group.job else None

    # --- pods ---------------------------------------------------------------------------------------------------

    def join(self, actor: Actor) -> None:
        """A pod is there."""
        self._owners.join(actor)

    def touch(self, actor: Actor) -> None:
        """Something about a pod has changed."""
        if group := self._owners.of(actor):
            self._stage.dirty[group.uid] = None
            if group.job:
                self._unsettled[group.uid] = None

    def leave(self, actor: Actor) -> None:
        """A pod is gone."""
        self.touch(actor)
        if group := self._owners.of(actor):
            group.actors.pop(actor.pod.uid, None)
            self._forget_if_empty(group)

    def _forget_if_empty(self, group: Group) -> None:
        if group.job is None and not group.actors:
            self._stage.dirty[group.uid] = None
            self.groups.pop(group.uid, None)

    def ended(self, actor: Actor) -> None:
        """A pod's containers have ended."""
        job, pod = self._job_of(actor), actor.pod
        if job is None or job.outcome is not None:
            return
        if pod.phase == "Succeeded":
            job.succeeded += 1
            job.failures = 0
            if pod.index >= 0:
                job.done.add(pod.index)
        else:
            self._fail(job)
        job.changed()

    def found_ended(self, actor: Actor, raw: dict[str, Any]) -> None:
        """A pod that had ended before the simulation; its Job may have counted it already."""
        job = self._job_of(actor)
        if job is None:
            return
        tracked = TRACKED in (raw["metadata"].get("finalizers") or ())
        if actor.pod.phase == "Succeeded":
            if actor.pod.index >= 0:
                job.done.add(actor.pod.index)
            if tracked or not admission.stored(job.raw):
                job.succeeded += 1
        elif tracked:
            job.failed += 1
        job.changed()

    def lost(self, actor: Actor, loss: Loss) -> None:
        """A pod is on its way out though it hasn't ended."""
        job = self._job_of(actor)
        if job is None or job.outcome is not None or actor.pod.deleting or loss in (Loss.SUSPENDED, Loss.SURPLUS):
            return
        action = _policy(job.spec) if loss is Loss.DISRUPTED else ""
        if action == "Ignore":
            return
        if action == "FailJob":
            self._end(job, "Failed", "PodFailurePolicy", "a pod was disrupted, which its podFailurePolicy lets fail it")
            return
        self._fail(job)

    def _fail(self, job: LiveJob) -> None:
        job.failed += 1
        job.failures += 1
        first, most = BACK_OFF
        job.retry_at = self._stage.timeline.now + min(most, first << min(job.failures - 1, 10))
        self._stage.timeline.at(job.retry_at, (), lambda: self._unsettle(job))
        job.changed()
        limit = BACKOFF_LIMIT if job.spec.backoff_limit is None else job.spec.backoff_limit
        if job.spec.backoff_limit_per_index is None and job.failed > limit:
            self._end(job, "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")

    def _job_of(self, actor: Actor) -> LiveJob | None:
        group = self._owners.of(actor)
        return group.job if group else None

    # --- the controller -----------------------------------------------------------------------------------------

    def _unsettle(self, job: LiveJob) -> None:
        if job.group.job is job:
            self._unsettled[job.group.uid] = None
            self._stage.dirty[job.group.uid] = None

    def settle(self) -> list[LiveJob]:
        """Brings all Jobs to what they should be; those that have ended by that."""
        while self._unsettled:
            uid = next(iter(self._unsettled))
            del self._unsettled[uid]
            job = self.groups[uid].job if uid in self.groups else None
            if job is not None and not job.ended and job.spec.managed_by in (None, names.JOB_CONTROLLER):
                self._sync(job)
                if job.ended:
                    self._ended.append(job)
        ended, self._ended = self._ended, []
        return ended

    def _sync(self, job: LiveJob) -> None:
        actors = [each for each in job.group.actors.values() if not each.pod.ended]
        alive = [each for each in actors if not each.pod.deleting]
        if job.outcome is None:
            self._judge(job, alive)
        if job.outcome is not None:
            for actor in alive:
                self._stage.delete(actor, Loss.SURPLUS)
            if not job.group.actors:
                job.ended = True
                job.changed()
                self._stage.dirty[job.group.uid] = None
            return
        if job.suspended:
            for actor in alive:
                self._stage.delete(actor, Loss.SUSPENDED)
            job.started = None
            job.changed()
            return
        if job.started is None:
            job.started = self._stage.timeline.now
            job.changed()
            self._plan_deadline(job)
        self._scale(job, alive, leaving=len(actors) - len(alive))

    def _judge(self, job: LiveJob, alive: list[Actor]) -> None:
        """Whether it has reached its end."""
        spec, now = job.spec, self._stage.timeline.now
        completions = spec.completions
        if completions is None:
            complete = job.succeeded > 0 and not alive
        else:
            complete = (len(job.done) if job.indexed else job.succeeded) >= completions
        if complete:
            self._end(job, "Complete", "CompletionsReached", "Reached expected number of succeeded pods")
        elif _overdue(job, now):
            self._end(job, "Failed", "DeadlineExceeded", "Job was active longer than specified deadline")

    def _end(self, job: LiveJob, kind: str, why: str, message: str) -> None:
        job.outcome = Condition(type=kind, status="True", reason=why, message=message)
        job.changed()
        self._unsettle(job)

    def _plan_deadline(self, job: LiveJob) -> None:
        seconds = job.spec.active_deadline_seconds
        if seconds is not None and job.started is not None:
            self._stage.timeline.at(job.started + seconds * MICRO, (), lambda: self._unsettle(job))

    def _scale(self, job: LiveJob, alive: list[Actor], leaving: int) -> None:
        spec = job.spec
        most = 1 if spec.parallelism is None else spec.parallelism
        if spec.completions is None:
            want = len(alive) if job.succeeded else most
        else:
            left = spec.completions - (len(job.done) if job.indexed else job.succeeded)
            want = min(most, left)
        if len(alive) > want:
            for actor in sorted(alive, key=_first_to_go)[: len(alive) - max(0, want)]:
                self._stage.delete(actor, Loss.SURPLUS)
            return
        late = spec.pod_replacement_policy == "Failed" or (
            spec.pod_failure_policy is not None and spec.pod_replacement_policy is None
        )
        missing = want - len(alive) - (leaving if late else 0)
        if missing > 0 and self._stage.timeline.now >= job.retry_at:
            self._make(job, missing, late=late)

    def _make(self, job: LiveJob, count: int, *, late: bool) -> None:
        stage, group = self._stage, job.group
        made = self._mold(job)
        owner = OwnerReference("batch/v1", "Job", group.name, group.uid, controller=True)
        created = timestamp(rfc3339(stage.timeline.epoch))
        for index in self._free_indexes(job, count, late=late) if job.indexed else [-1] * count:
            order = stage.order()
            actor = from_mold(
                made,
                namespace=group.namespace,
                name=self._name(job, index),
                uid=f"{group.uid}-{order}",
                owner=owner,
                index=index,
                created=created,
                order=order,
            )
            stage.add(actor)
            if made.node:
                stage.bind(actor, made.node)

    def _free_indexes(self, job: LiveJob, count: int, *, late: bool) -> list[int]:
        held = {each.pod.index for each in job.group.actors.values() if late or not each.pod.deleting}
        free = (index for index in range(job.spec.completions or 0) if index not in held and index not in job.done)
        return [index for index, _ in zip(free, range(count), strict=False)]

    def _name(self, job: LiveJob, index: int) -> str:
        """train-0, train-1, …; an index that is made again has another number behind it."""
        if index < 0:
            job.serial += 1
            return f"{job.group.name}-{job.serial - 1}"
        tried = job.tries.get(index, 0)
        job.tries[index] = tried + 1
        return f"{job.group.name}-{index}" + (f"-{tried}" if tried else "")

    def _mold(self, job: LiveJob) -> Mold:
        if job.mold is None:
            stage = self._stage
            stage.check_class(job.spec.template.spec.priority_class_name)
            job.mold = mold(job.where, job.raw, stage.limits(job.group.namespace), stage.classes)
        return job.mold


def _overdue(job: LiveJob, now: int) -> bool:
    seconds = job.spec.active_deadline_seconds
    if seconds is None or job.started is None or job.suspended:
        return False
    return now >= job.started + seconds * MICRO


def _first_to_go(actor: Actor) -> tuple[bool, float, int]:
    """Who hasn't a node goes first, then the youngest, then (measured) the lowest index."""
    return actor.pod.bound, -actor.pod.created, actor.order


def _policy(spec: objects.JobSpec) -> str:
    """What the first rule of its podFailurePolicy that matches does about a disruption; "" where none does."""
    for rule in spec.pod_failure_policy.rules if spec.pod_failure_policy else ():
        if any(each.type == "DisruptionTarget" and each.status == "True" for each in rule.on_pod_conditions):
            return rule.action
    return ""


def _indexes(text: str, most: int) -> set[int]:
    """The indexes that "1,3-5" names."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), min(int(last or first) + 1, most)))
    return found
