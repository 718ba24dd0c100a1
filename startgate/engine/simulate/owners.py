"""Owners of pods in a simulation: whose pods belong together, and what a Job is and has been through so far.

What always holds: `raw` is the object as it stands; what it has been through is counted here, and its `wire` is made of
both, as it would be read from the API server.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import msgspec

from startgate.engine.simulate.manifests import MICRO
from startgate.engine.simulate.pods import Actor, Mold
from startgate.model import objects
from startgate.model.objects import Condition, Job, JobStatus, rfc3339, timestamp
from startgate.model.pods import Pod
from startgate.model.shape import Shape

MADE_UP: Final = "simulate:"
"""Begins the uids of objects that no cluster has given one."""


class Loss(Enum):
    """Why a pod is deleted before it has ended."""

    SUSPENDED = "suspended"  # its Job makes it leave, and counts no failure
    SURPLUS = "surplus"  # its Job has no use for it any more
    DELETED = "deleted"  # by somebody
    DISRUPTED = "disrupted"  # evicted, or its node is gone: condition DisruptionTarget


class Group:
    """The pods of one owner, and the owner if it is a Job."""

    __slots__ = ("actors", "job", "kind", "name", "namespace", "order", "since", "stored", "uid")

    def __init__(self, uid: str, kind: str, namespace: str, name: str) -> None:
        self.uid = uid
        self.kind = kind
        self.namespace = namespace
        self.name = name
        self.order = 0
        """Of the document that it is from, or its first pod is."""
        self.since = 0.0
        """Epoch seconds from which it is there."""
        self.stored = False
        """Whether it comes out of a cluster."""
        self.job: LiveJob | None = None
        self.actors: dict[str, Actor] = {}


class LiveJob:
    """One Job that is there."""

    def __init__(self, group: Group, raw: dict[str, Any], where: str) -> None:
        self.group = group
        self.where = where
        self.raw = raw
        self.succeeded = 0
        self.done: set[int] = set()
        self.failed = 0
        self.failed_indexes = ""
        self.failures = 0
        """Since the last success."""
        self.retry_at = 0
        """Moment before which it makes no pods after a failure."""
        self.started: int | None = None
        self.outcome: Condition | None = None
        """Complete or Failed, as soon as that is sure; it has ended once its pods are gone."""
        self.ended = False
        self.was_over = False
        """Whether it had ended before it came."""
        self.mold: Mold | None = None
        self.template: Shape | None = None
        self.serial = 0
        self.tries: dict[int, int] = {}
        self.spec = _spec(raw)
        self._wire: Job | None = None

    @property
    def indexed(self) -> bool:
        return self.spec.completion_mode == "Indexed" and self.spec.completions is not None

    @property
    def suspended(self) -> bool:
        return bool(self.spec.suspend)

    def set_raw(self, raw: dict[str, Any]) -> None:
        """The object has been changed."""
        self.raw = raw
        self.spec = _spec(raw)
        self._wire = self.mold = self.template = None

    def changed(self) -> None:
        """Its status has."""
        self._wire = None

    def wire(self, begin: float) -> Job:
        """As it would be read from the API server now. `begin`: epoch seconds of moment 0."""
        if self._wire is None:
            made = msgspec.convert({"metadata": self.raw["metadata"], "spec": self.raw["spec"]}, Job)
            started = None if self.started is None else rfc3339(begin + self.started / MICRO)
            conditions: tuple[Condition, ...] = ()
            if self.outcome is not None:
                early = {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}[self.outcome.type]
                kind = self.outcome.type if self.ended else early
                conditions = (msgspec.structs.replace(self.outcome, type=kind),)
            status = JobStatus(
                succeeded=len(self.done) if self.indexed else self.succeeded,
                failed=self.failed,
                failed_indexes=self.failed_indexes,
                start_time=started,
                conditions=conditions,
            )
            self._wire = msgspec.structs.replace(made, status=status)
        return self._wire


class Owners:
    """All of them, and whose each pod is."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        """By the owner's uid."""
        self._names: dict[tuple[str, str], str] = {}
        """Uids of the Jobs that are there, by namespace and name."""

    def job(self, uid: str, namespace: str, name: str) -> Group:
        """The group of a Job that comes, with the pods that came before it."""
        self._names[(namespace, name)] = uid
        return self._group(uid, "Job", namespace, name)

    def named(self, namespace: str, name: str) -> Group | None:
        """Of the Job of this name."""
        uid = self._names.get((namespace, name))
        return self.groups[uid] if uid else None

    def unname(self, group: Group) -> None:
        """The Job is gone, and its name free."""
        del self._names[(group.namespace, group.name)]

    def of(self, actor: Actor) -> Group | None:
        """Whose this pod is, if anybody asks."""
        family = self._family(actor.pod)
        return self.groups.get(family[0]) if family else None

    def join(self, actor: Actor) -> None:
        """A pod is there."""
        pod = actor.pod
        if family := self._family(pod):
            uid, kind, name = family
            if pod.owner is not None and pod.owner.uid != uid:
                pod.owner = msgspec.structs.replace(pod.owner, uid=uid)
            group = self._group(uid, kind, pod.namespace, name)
            if group.job is None and not group.actors:
                group.order, group.since, group.stored = actor.document, actor.since, actor.stored
            group.actors[pod.uid] = actor

    def _group(self, uid: str, kind: str, namespace: str, name: str) -> Group:
        group = self.groups.get(uid)
        if group is None:
            group = self.groups[uid] = Group(uid, kind, namespace, name)
        return group

    def _family(self, pod: Pod) -> tuple[str, str, str] | None:
        """Uid, kind and name of whom it belongs to: its controller, or itself if it is ours; None: nobody asks."""
        owner = pod.owner
        if owner is not None and (pod.queue or owner.kind == "Job"):
            group = owner.api_version.rpartition("/")[0]
            if owner.kind == "Job" and group in ("", "batch"):
                uid = owner.uid or self._names.get((pod.namespace, owner.name), f"job-of-{owner.name}")
                return uid, "Job", owner.name
            return owner.uid or f"{owner.kind}-{owner.name}", owner.kind, owner.name
        return (pod.uid, "Pod", pod.name) if pod.queue else None


def created_at(metadata: dict[str, Any], now: float) -> float:
    """Epoch seconds of an object's creation: as it says, else now."""
    text = metadata.get("creationTimestamp")
    return timestamp(text) if text else now


def _spec(raw: dict[str, Any]) -> objects.JobSpec:
    return msgspec.convert(raw["spec"], objects.JobSpec)
