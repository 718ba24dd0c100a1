"""Jobs and pods as an admission request has them, with the few fields that our rules read.

Not model.objects: a JSON patch has to know whether a map is there at all, which a reader of stored objects
never asks. What always holds: None means that the map is missing or null, and a patch must then add it whole;
what isn't read isn't decoded.
"""

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from startgate.model import names
from webhook.review import decode

Int32: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class Owner(Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class ObjectMeta(Struct, rename="camel"):
    """None where the map is missing or null: a patch must then add it whole."""

    name: str = ""
    generate_name: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[Owner] | None = None

    @property
    def controller(self) -> Owner | None:
        return next((owner for owner in self.owner_references or () if owner.controller), None)


class Gate(Struct):
    name: str = ""


class PodSpec(Struct, rename="camel"):
    node_name: str = ""
    scheduling_gates: list[Gate] | None = None
    priority_class_name: str = ""
    priority: Int32 | None = None

    @property
    def gated(self) -> bool:
        return any(gate.name == names.GATE for gate in self.scheduling_gates or ())


class Template(Struct):
    metadata: ObjectMeta | None = None
    spec: PodSpec = msgspec.field(default_factory=PodSpec)

    @property
    def labels(self) -> Mapping[str, str]:
        return (self.metadata.labels if self.metadata else None) or {}


class JobSpec(Struct, rename="camel"):
    suspend: bool | None = None
    parallelism: Int32 | None = None
    completions: Int32 | None = None
    active_deadline_seconds: int | None = None
    managed_by: str | None = None
    template: Template = msgspec.field(default_factory=Template)


class Job(Struct):
    metadata: ObjectMeta
    spec: JobSpec

    @property
    def labels(self) -> Mapping[str, str]:
        return self.metadata.labels or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.annotations or {}

    @property
    def queue(self) -> str:
        return self.labels.get(names.QUEUE, "")

    @property
    def suspended(self) -> bool:
        return bool(self.spec.suspend)

    @property
    def belongs_to(self) -> str:
        """Who else sees to it, "" if nobody does but Kubernetes: such a Job is never suspended by us."""
        if self.spec.managed_by not in (None, "", names.JOB_CONTROLLER):
            return f"controller {self.spec.managed_by}"
        owner = self.metadata.controller
        return "" if owner is None or owner.kind == "CronJob" else f"{owner.kind} {owner.name}"

    @property
    def waits_parked(self) -> bool:
        """Whether it may not run its deadline down at the gate, and we may suspend it meanwhile."""
        return self.spec.active_deadline_seconds is not None and not self.belongs_to

    @property
    def most_pods(self) -> int:
        """How many pods it runs at once at most."""
        parallelism = 1 if self.spec.parallelism is None else self.spec.parallelism
        return max(0, parallelism if self.spec.completions is None else min(parallelism, self.spec.completions))


class Pod(Struct):
    metadata: ObjectMeta
    spec: PodSpec = msgspec.field(default_factory=PodSpec)

    @property
    def labels(self) -> Mapping[str, str]:
        return self.metadata.labels or {}

    @property
    def of_job(self) -> bool:
        """Whether a Job controls it."""
        owner = self.metadata.controller
        return owner is not None and owner.kind == "Job"


_job = msgspec.json.Decoder(Job)
_pod = msgspec.json.Decoder(Pod)


def read_job(raw: Raw) -> Job:
    """ReviewError for what is no Job."""
    return decode(_job, raw)


def read_pod(raw: Raw) -> Pod:
    """ReviewError for what is no pod."""
    return decode(_pod, raw)
