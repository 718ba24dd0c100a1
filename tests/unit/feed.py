"""What tests of the controller's memory share: stores fed as a reflector would feed them, without an API server."""

import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from controller.cache import Cache
from controller.gangs import Gangs
from controller.state import State
from startgate.engine.world import ClaimKind, World
from startgate.kube.client import Client
from startgate.model import names, objects
from startgate.model.gang import Admission, Gang, GangSpec, GangStatus, Phase, Pledge
from startgate.model.objects import rfc3339

NOW = 1_800_000_000.0
Q = {names.QUEUE: "q"}
VERSIONS = itertools.count(1)


@asynccontextmanager
async def empty_cache(folder: Path) -> AsyncIterator[Cache]:
    """Reflectors that nobody runs."""
    config = folder / "kubeconfig"
    cluster = {"name": "none", "cluster": {"server": "https://127.0.0.1:1"}}
    context = {"name": "none", "context": {"cluster": "none", "user": "none"}}
    user = {"name": "none", "user": {}}
    config.write_text(
        yaml.safe_dump({"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "none"})
    )
    async with await Client.connect(kubeconfig=str(config)) as client:
        yield Cache(client, lambda: None)


class Feed:
    """Objects as the API server would send them, with versions that only grow."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.gangs = Gangs(cache)

    def _meta(self, name: str, **fields: Any) -> objects.ObjectMeta:
        version = next(VERSIONS)
        return objects.ObjectMeta(
            name=name,
            namespace="n",
            uid=fields.pop("uid", f"uid-{name}"),
            resource_version=str(version),
            creation_timestamp=rfc3339(NOW - 60),
            **fields,
        )

    def job(
        self,
        name: str,
        *,
        pods: int = 2,
        minimum: int = 0,
        uid: str = "",
        parked: str = "",
        started: float = NOW - 60,
        annotations: Mapping[str, str] = MappingProxyType({}),
        **spec: Any,
    ) -> None:
        annotations = {**annotations, **({names.PARKED: parked} if parked else {})}
        labels = {**Q, names.MIN_AVAILABLE: str(minimum)} if minimum else Q
        template = objects.PodTemplateSpec(metadata=objects.ObjectMeta(labels=Q), spec=one_cpu())
        made = objects.JobSpec(parallelism=pods, completions=pods, completion_mode="Indexed", template=template, **spec)
        self.cache.jobs.store.put(
            objects.Job(
                metadata=self._meta(name, labels=labels, annotations=annotations, uid=uid or f"uid-{name}"),
                spec=made,
                status=objects.JobStatus(start_time=rfc3339(started)),
            )
        )

    def pod(
        self,
        job: str,
        index: int,
        *,
        gated: bool = True,
        node: str = "",
        phase: str = "Pending",
        leaving: bool = False,
        suffix: str = "",
        node_selector: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        owner = objects.OwnerReference(api_version="batch/v1", kind="Job", name=job, uid=f"uid-{job}", controller=True)
        meta = self._meta(
            f"{job}-{index}{suffix}",
            labels=Q,
            owner_references=(owner,),
            annotations={names.JOB_INDEX: str(index)},
            deletion_timestamp=rfc3339(NOW) if leaving else None,
        )
        spec = one_cpu(node, (names.GATE,) if gated else (), node_selector)
        self.cache.pods.store.put(objects.Pod(metadata=meta, spec=spec, status=objects.PodStatus(phase=phase)))

    def gang(
        self,
        job: str,
        slots: int,
        *,
        gathering: bool = False,
        at: float = NOW,
        node_selector: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        admission = Admission(
            id="a", at=rfc3339(at), slots=slots, gathering=gathering, node_selector=dict(node_selector)
        )
        self._gang(job, slots, GangStatus(phase=Phase.RELEASING, admission=admission))

    def claimant(self, job: str, *victims: str, queue: str = "q") -> None:
        """A Gang that waits, and for which these gave way."""
        pledge = Pledge(
            id="p",
            at=rfc3339(NOW),
            rule="deserved",
            victims=[f"n/job-{victim}" for victim in victims],
            nodes={"n1": 2},
        )
        self._gang(job, 2, GangStatus(claim=pledge), queue)

    def _gang(self, job: str, pods: int, status: GangStatus, queue: str = "q") -> None:
        owner = objects.OwnerReference(api_version="batch/v1", kind="Job", name=job, uid=f"uid-{job}", controller=True)
        meta = self._meta(f"job-{job}", owner_references=(owner,))
        spec = GangSpec(queue=queue, min_available=pods, pods=pods)
        self.cache.gangs.store.put(Gang(metadata=meta, spec=spec, status=status))

    def running(self, job: str, *, pods: int = 2, leaving: int = 0, **spec: Any) -> None:
        """A gang that has started, its pods on node a; the last so many are being deleted."""
        self.job(job, pods=pods, **spec)
        self.gang(job, slots=pods)
        for index in range(pods):
            self.pod(job, index, gated=False, node="a", phase="Running", leaving=index >= pods - leaving)

    def node(self, name: str, **labels: str) -> None:
        self.cache.nodes.store.put(objects.Node(metadata=self._meta(name, labels=labels)))

    def gone(self, job: str, index: int) -> None:
        """The pod is there no more."""
        self.cache.pods.store.forget(f"{job}-{index}", "n", f"uid-{job}-{index}")

    def world(self) -> World:
        for uid in self.cache.take_dirty():
            self.gangs.refresh(uid, NOW)
        return self.gangs.world(NOW)

    def state(self, job: str) -> State:
        return self.gangs.states[f"uid-{job}"]


def one_cpu(
    node: str = "", gates: tuple[str, ...] = (), node_selector: Mapping[str, str] = MappingProxyType({})
) -> objects.PodSpec:
    container = objects.Container(name="c", resources=objects.Resources(requests={"cpu": "1"}))
    return objects.PodSpec(
        node_name=node,
        containers=(container,),
        scheduling_gates=tuple(objects.SchedulingGate(name=g) for g in gates),
        node_selector=dict(node_selector),
    )


def claimed(world: World) -> list[tuple[ClaimKind, int]]:
    return [(claim.kind, sum(batch.count for batch in claim.batches)) for claim in world.claims]
