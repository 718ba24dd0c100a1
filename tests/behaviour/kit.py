"""The stage of the behaviour tests: a field on the shared cluster, with what a user would do and see there.

A `Field` is one namespace of its own, the nodes that the test asks for, and queues that nobody else uses. It follows
pods, Jobs and Gangs of its namespace by watches, so that a test reads what is there now, and also what was seen on the
way. Resource versions of all kinds come from one counter, so what was seen can be put in order across kinds.

What always holds: nothing here decides or repairs anything; whoever waits, waits for a condition and says on failure
what was seen; and a field leaves the cluster without Jobs, pods and queues of its own.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar
from uuid import uuid4

from localcluster.deploy import Startgate
from localcluster.nodes import GPU, Node
from startgate.kube.client import Client
from startgate.kube.errors import ApiError
from startgate.kube.kinds import GANGS, JOBS, NAMESPACES, NODES, PODS, QUEUES
from startgate.kube.reflector import Reflector
from startgate.kube.store import Change
from startgate.model import names
from startgate.model.gang import Gang, Phase
from startgate.model.objects import Job
from startgate.model.pods import Pod, pod_of
from startgate.model.queue import Queue
from startgate.model.reasons import Code

LIFTED: Final = "has(oldObject.spec.schedulingGates) && !has(object.spec.schedulingGates)"
"""For `Field.policy`: this update of a pod takes its last gate off."""

Manifest = dict[str, Any]

IGNORES_DISRUPTION: Final[Manifest] = {
    "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
}
"""Fields of a Job's spec: an eviction counts as no failure, so that pods beyond its minimum may go alone."""

T = TypeVar("T")

WITHIN: Final = 30.0
"""Seconds that a test waits for what must happen: far more than it takes, since machines are busy at times."""

CONTROLLER: Final = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.CONTROLLER_ACCOUNT}"
READS: Final = frozenset({"get", "list", "watch"})
SIMULATE: Final = "simulate.startgate.dev"

ASIDE: Final = Node(
    name="aside",
    cpu="1",
    gpus=0,
    labels={"aside": "yes"},
    taints=[{"key": "aside", "value": "yes", "effect": "NoSchedule"}],
)
"""A node for a gang that shows that decisions go on, while nothing must happen to another."""

PLURALS: Final[Mapping[str, str]] = {
    "CSIStorageCapacity": "csistoragecapacities",
    "CronJob": "cronjobs",
    "Deployment": "deployments",
    "LimitRange": "limitranges",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "RoleBinding": "rolebindings",
}
"""For `Field.put`: kinds in a namespace, as the API's paths call them."""

CLUSTER_WIDE: Final[Mapping[str, str]] = {
    "CSIDriver": "csidrivers",
    "ClusterRoleBinding": "clusterrolebindings",
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "PersistentVolume": "persistentvolumes",
    "PriorityClass": "priorityclasses",
    "StorageClass": "storageclasses",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
"""The same for kinds without one."""

ON_ASIDE: Final[Manifest] = {"nodeSelector": {"aside": "yes"}, "tolerations": [{"operator": "Exists"}]}
ON_N1: Final[Manifest] = {"nodeSelector": {"kubernetes.io/hostname": "n1"}}
"""Fields of a pod's spec."""


def pod_spec(*, cpu: str = "1", memory: str = "", gpu: int = 0, gates: tuple[str, ...] = (), **spec: Any) -> Manifest:
    """The spec of a pod with one container that asks for this; `spec` adds fields."""
    requests = {"cpu": cpu, "memory": memory, GPU: gpu}
    asked = {resource: amount for resource, amount in requests.items() if amount}
    limits = {"limits": {GPU: gpu}} if gpu else {}
    container = {"name": "main", "image": "example.invalid/main", "resources": {"requests": asked, **limits}}
    behind = {"schedulingGates": [{"name": gate} for gate in gates]} if gates else {}
    return {"restartPolicy": "Never", "containers": [container], **behind, **spec}


def simulated(runs: str | None = None, fails: str | None = None, terminates: str | None = None) -> dict[str, str]:
    """Annotations that say how a pod goes on once it runs (localcluster/stages/pod.yaml); without: for ever."""
    said = {"runs": runs, "fails": fails, "terminates": terminates}
    return {f"{SIMULATE}/{key}": value for key, value in said.items() if value}


def job_of(
    name: str,
    *,
    pods: int = 4,
    queue: str = "",
    minimum: int | None = None,
    completions: int | None = None,
    runs: str | None = None,
    fails: str | None = None,
    terminates: str | None = None,
    suspend: bool | None = None,
    deadline: int | None = None,
    annotations: Mapping[str, str] | None = None,
    owner: Manifest | None = None,
    spec: Mapping[str, Any] | None = None,
    **pod: Any,
) -> Manifest:
    """A Job as a user writes it: Indexed, `backoffLimit: 0`. `spec` adds fields to the Job's, `pod` is `pod_spec`'s."""
    labels = {names.QUEUE: queue} if queue else {}
    if minimum is not None:
        labels[names.MIN_AVAILABLE] = str(minimum)
    fields: Manifest = {
        "parallelism": pods,
        "completions": pods if completions is None else completions,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "suspend": suspend,
        "activeDeadlineSeconds": deadline,
        "template": {
            "metadata": {"annotations": simulated(runs, fails, terminates)},
            "spec": pod_spec(**pod),
        },
        **(spec or {}),
    }
    metadata: Manifest = {"name": name, "labels": labels, "annotations": dict(annotations or {})}
    if owner:
        metadata["ownerReferences"] = [owner]
    if name.endswith("-"):
        metadata["generateName"] = metadata.pop("name")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {key: value for key, value in fields.items() if value is not None},
    }


@dataclass(frozen=True)
class Write:
    """One write that the API server has answered, by its own audit log."""

    user: str
    verb: str
    what: str
    """As "pods", "pods/status", "gangs"."""
    name: str
    code: int
    note: Mapping[str, str]
    """The annotations, with those of our webhook."""


class Field:
    """See the module. Made by the fixture `field`."""

    def __init__(self, startgate: Startgate, client: Client, namespace: str) -> None:
        self.startgate = startgate
        self.cluster = startgate.cluster
        self.client = client
        self.namespace = namespace
        self.pod_changes: list[Change[Pod]] = []
        """Each change of each pod of the namespace, in order, nothing left out."""
        self.gang_changes: list[Change[Gang]] = []
        self._queues: list[str] = []
        self._others: list[Manifest] = []
        self._audit_from = self.cluster.audit_log.stat().st_size
        self._changed = asyncio.Event()
        self._pods = Reflector(client, PODS, view=pod_of, namespace=namespace, on_change=self._pod)
        self._gangs = Reflector(client, GANGS, namespace=namespace, on_change=self._gang)
        self._jobs = Reflector(client, JOBS, namespace=namespace, on_change=self._job)
        self._tasks: list[asyncio.Task[None]] = []

    # --- setting up ---------------------------------------------------------------------------------------------

    @classmethod
    @asynccontextmanager
    async def on(cls, startgate: Startgate) -> AsyncIterator[Field]:
        """A fresh field, until the context ends."""
        await both_up(startgate)
        async with await Client.connect(kubeconfig=str(startgate.cluster.kubeconfig)) as client:
            field = cls(startgate, client, f"t{uuid4().hex[:8]}")
            await field._open()
            try:
                yield field
            finally:
                await field._close()

    async def _open(self) -> None:
        await self.client.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        for reflector in (self._pods, self._gangs, self._jobs):
            self._tasks.append(asyncio.create_task(reflector.run()))
            await reflector.wait_synced()
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default"
        await eventually(lambda: self._there(path), bool, "the namespace takes pods")

    async def _close(self) -> None:
        try:
            await both_up(self.startgate)
            await self.take_away(*reversed(self._others))
            await self.clear()
            for name in reversed(self._queues):  # children before their parents
                await eventually(partial(self._queue_gone, name), bool, f"queue {name} can be deleted")
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.client.delete(NAMESPACES, self.namespace)

    async def clear(self) -> None:
        """Deletes all Jobs and pods of the namespace, and returns when they are gone."""
        for kind in (JOBS, PODS):
            await self.client.request(
                "DELETE", kind.path(self.namespace), body={"propagationPolicy": "Background", "gracePeriodSeconds": 0}
            )
        await self.until(lambda: not [*self._jobs.store] and not [*self._pods.store], "Jobs and pods are gone")

    async def _there(self, path: str) -> bool:
        with suppress(ApiError):
            await self.client.request("GET", path)
            return True
        return False

    async def _queue_gone(self, name: str) -> bool:
        # Our webhook refuses while the queue has gangs by its status, which lags a second behind: they are gone.
        counts = {"status": {"waiting": None, "running": None}}
        try:
            await self.client.patch(QUEUES, name, counts, subresource="status")
            await self.client.delete(QUEUES, name)
        except ApiError as error:  # its children may still be in the webhook's cache
            return error.not_found
        return True

    # --- doing --------------------------------------------------------------------------------------------------

    async def nodes(self, count: int, *others: Node, cpu: str = "4", memory: str = "64Gi", gpus: int = 0) -> None:
        """Makes the cluster's nodes exactly these: so many equal ones, called n1, n2, …, and the others."""
        equal = [Node(name=f"n{i}", cpu=cpu, memory=memory, gpus=gpus) for i in range(1, count + 1)]
        await self.cluster.set_nodes([*equal, *others])

    async def queue(self, name: str = "q", **spec: Any) -> str:
        """A new queue; its real name, which no other test uses."""
        real = f"{name}-{self.namespace}"
        body = {"apiVersion": names.API_VERSION, "kind": "Queue", "metadata": {"name": real}, "spec": spec}
        # A parent that was made a moment ago may not have reached the webhook's cache.
        await self.client.create(QUEUES, body)
        self._queues.append(real)
        return real

    def takes_over(self, queue: str) -> None:
        """A queue that the test has made some other way goes with the field too."""
        self._queues.append(queue)

    async def change_queue(self, name: str, **spec: Any) -> None:
        """Merges this into the queue's spec."""
        await self.client.patch(QUEUES, name, {"spec": spec})

    async def submit(self, name: str, **job: Any) -> Job:
        """Creates a Job, as `job_of` makes it."""
        return await self.client.create(JOBS, job_of(name, **job), self.namespace)

    async def run(self, name: str, **job: Any) -> None:
        """Creates a Job and waits until its gang runs."""
        await self.submit(name, **job)
        await self.phase(name, Phase.RUNNING)

    async def pod(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        owner: Manifest | None = None,
        runs: str | None = None,
        **spec: Any,
    ) -> None:
        """Creates a pod by itself (`spec` is `pod_spec`'s): without our label, one that Startgate has no say in."""
        metadata: Manifest = {"name": name, "labels": dict(labels or {}), "annotations": simulated(runs)}
        if owner:
            metadata["ownerReferences"] = [owner]
        await self.client.create(PODS, {"metadata": metadata, "spec": pod_spec(**spec)}, self.namespace)

    async def owner(self, name: str) -> Manifest:
        """A ConfigMap, for a controller of a kind that nobody knows; the reference to it that its pods have."""
        path = f"/api/v1/namespaces/{self.namespace}/configmaps"
        made = json.loads(await self.client.request("POST", path, body={"metadata": {"name": name}}))
        uid = made["metadata"]["uid"]
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "controller": True}

    async def change_job(self, name: str, patch: Manifest) -> None:
        """A merge patch, as the admin."""
        await self.client.patch(JOBS, name, patch, self.namespace)

    async def delete_job(self, name: str) -> None:
        """Deletes it and lets its pods be deleted after it."""
        await self.client.delete(JOBS, name, self.namespace)

    async def delete_pod(self, name: str) -> None:
        """As kubectl does, with the grace period that the pod asks for."""
        await self.client.delete(PODS, name, self.namespace)

    async def put(self, *manifests: Manifest) -> None:
        """Creates anything else, in the field's namespace if it has one; it goes with the field."""
        for manifest in manifests:
            await self.client.request("POST", self._path(manifest), query={"fieldValidation": "Strict"}, body=manifest)
            self._others.append(manifest)

    async def take_away(self, *manifests: Manifest) -> None:
        """Deletes what was `put`, now."""
        for manifest in manifests:
            with suppress_missing():
                await self.client.request("DELETE", f"{self._path(manifest)}/{manifest['metadata']['name']}")

    def _path(self, manifest: Manifest) -> str:
        """Where objects of this manifest's kind are; without kubectl, whose every call costs a tenth of a second."""
        version, kind = manifest["apiVersion"], manifest["kind"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if kind in CLUSTER_WIDE:
            return f"{root}/{CLUSTER_WIDE[kind]}"
        return f"{root}/namespaces/{self.namespace}/{PLURALS[kind]}"

    async def priority(self, name: str, value: int, **fields: Any) -> str:
        """A PriorityClass; its real name."""
        real = f"{name}-{self.namespace}"
        head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": real}}
        await self.put({**head, "value": value, **fields})
        return real

    async def policy(
        self, name: str, *, resource: str, group: str = "", version: str = names.VERSION, refuses: str
    ) -> Manifest:
        """A ValidatingAdmissionPolicy that refuses updates here for which this CEL expression holds; it is in force.

        Without a webhook in the way, it stands for whatever an admin may have put before the API server.
        """
        full = f"{name}-{self.namespace}"
        match = {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}},
            "resourceRules": [
                {"apiGroups": [group], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": [resource]}
            ],
        }
        api = "admissionregistration.k8s.io/v1"
        # That it is in force shows in what it does to a probe, a dry run that changes nothing.
        probe = "has(object.metadata.annotations) && 'probe' in object.metadata.annotations"
        policy: Manifest = {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": full},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": match,
                "validations": [{"expression": f"!(({probe}) || ({refuses}))", "message": f"refused by {name}"}],
            },
        }
        binding: Manifest = {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": full},
            "spec": {"policyName": full, "validationActions": ["Deny"]},
        }
        await self.put(policy, binding)
        base = f"/apis/{group}/{version}" if group else "/api/v1"
        await eventually(
            partial(self._refused, f"{base}/namespaces/{self.namespace}/{resource}"), bool, f"{name} is in force"
        )
        return binding

    async def _refused(self, path: str) -> bool:
        """Whether a probe on one of the objects there is refused."""
        page = json.loads(await self.client.request("GET", path, query={"limit": "1"}))
        if not page["items"]:
            return False
        target = f"{path}/{page['items'][0]['metadata']['name']}"
        body = {"metadata": {"annotations": {"probe": "yes"}}}
        try:
            await self.client.request(
                "PATCH", target, query={"dryRun": "All"}, body=body, content_type="application/merge-patch+json"
            )
        except ApiError as error:
            return "refused by" in error.message
        return False

    async def next_second(self) -> None:
        """Returns in the next second of the clock: objects' times have no parts of a second."""
        await asyncio.sleep(1.05 - time.time() % 1)

    @asynccontextmanager
    async def without_scheduler(self) -> AsyncIterator[None]:
        """kube-scheduler is away for as long as the context lasts: the test plays it, by `bind`."""
        await self.cluster.stop_process("kube-scheduler")
        try:
            yield
        finally:
            await self.cluster.start_process("kube-scheduler")

    async def open(self, name: str) -> Pod:
        """The pod with this name when all of its gates are open."""
        await self.until(
            lambda: (it := self.named(name)) and not it.gated and not it.foreign_gates,
            f"the gates of pod {name} are open",
        )
        found = self.named(name)
        assert found is not None
        return found

    async def bind(self, pod: Pod, node: str) -> None:
        """As kube-scheduler does."""
        path = PODS.path(self.namespace, pod.name, "binding")
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        await self.client.request("POST", path, body={"metadata": {"name": pod.name}, "target": target})

    async def evict(self, pod: Pod) -> None:
        """As a drain does: the pod is marked as disrupted."""
        path = PODS.path(self.namespace, pod.name, "eviction")
        await self.client.request("POST", path, body={"metadata": {"name": pod.name, "namespace": self.namespace}})

    async def cordon(self, node: str, *, cordoned: bool = True) -> None:
        """Takes the node from scheduling, or gives it back."""
        await self.client.patch(NODES, node, {"spec": {"unschedulable": cordoned}})

    async def simulate(self, pod: Pod, **how: str) -> None:
        """Changes how a pod goes on: `runs="1ms"` ends it well, now."""
        await self.client.patch(PODS, pod.name, {"metadata": {"annotations": simulated(**how)}}, self.namespace)

    async def kill_controller(self) -> None:
        """SIGKILL, at once."""
        await self.startgate.controller.kill()

    async def start_controller(self) -> None:
        """Starts it again, and returns when its caches are complete."""
        await self.startgate.controller.start()
        await self.startgate.controller.wait_ready()

    # --- seeing -------------------------------------------------------------------------------------------------

    def job(self, name: str) -> Job | None:
        """The Job as it is now."""
        return self._jobs.store.get(name, self.namespace)

    def gang(self, name: str) -> Gang | None:
        """The Gang of the Job with this name."""
        return self._gangs.store.get(names.gang_of_job(name), self.namespace)

    def sure(self, job: str) -> Gang:
        """The same, where it is known to be there."""
        gang = self.gang(job)
        assert gang is not None
        return gang

    def jobs(self) -> list[Job]:
        """All Jobs."""
        return list(self._jobs.store)

    def gangs(self, phase: Phase) -> list[Gang]:
        """All Gangs that are in this phase."""
        return [gang for gang in self._gangs.store if gang.status.phase is phase]

    def gang_named(self, name: str) -> Gang | None:
        """The Gang itself, whatever it is of."""
        return self._gangs.store.get(name, self.namespace)

    async def read_queue(self, name: str) -> Queue:
        """The Queue as it is now."""
        return await self.client.get(QUEUES, name)

    def pods(self, job: str = "") -> list[Pod]:
        """The pods of this Job (or all) that exist and have not ended, lowest completion index first."""
        found = [pod for pod in self._pods.store if not pod.ended and (not job or _owner(pod) == job)]
        return sorted(found, key=lambda pod: (pod.index, pod.created, pod.name))

    def named(self, name: str) -> Pod | None:
        """The pod with this name."""
        return self._pods.store.get(name, self.namespace)

    def bound(self, job: str = "") -> list[Pod]:
        """Those of them that are on a node, and are to stay there."""
        return [pod for pod in self.pods(job) if pod.bound and not pod.deleting]

    def gated(self, job: str = "") -> list[Pod]:
        """Those of them that stand at our gate."""
        return [pod for pod in self.pods(job) if pod.gated]

    def failures(self) -> int:
        """How many failures the Jobs have counted, all together."""
        return sum(job.status.failed for job in self._jobs.store)

    def ended(self, job: str, phase: str = "Succeeded") -> list[Pod]:
        """The pods of this Job that have ended so."""
        return [pod for pod in self._pods.store if pod.phase == phase and _owner(pod) == job]

    def opened(self, job: str) -> dict[str, int]:
        """By pod uid: the resource version at which its gate was first seen open."""
        return self._first(job, lambda pod: not pod.gated)

    def bindings(self, job: str) -> dict[str, int]:
        """By pod uid: the resource version at which it was first seen on a node."""
        return self._first(job, lambda pod: pod.bound)

    def nominations(self, job: str) -> dict[str, int]:
        """By pod uid: the resource version at which it was first seen nominated while at our gate."""
        return self._first(job, lambda pod: pod.gated and pod.nominated != "")

    def nominated_to(self, uid: str) -> str:
        """The node on which room was kept for this pod while it stood at our gate; "" for none."""
        seen = [c.new.nominated for c in self.pod_changes if c.new and c.new.uid == uid and c.new.gated]
        return next(filter(None, seen), "")

    def recorded(self, job: str) -> int:
        """The resource version at which an admission first stood in its Gang."""
        name = names.gang_of_job(job)
        gangs = [change.new for change in self.gang_changes if change.new and change.new.metadata.name == name]
        return min(int(gang.metadata.resource_version) for gang in gangs if gang.status.admission)

    def _first(self, job: str, holds: Callable[[Pod], bool]) -> dict[str, int]:
        found: dict[str, int] = {}
        for change in self.pod_changes:
            if change.new is not None and _owner(change.new) == job and holds(change.new):
                found.setdefault(change.new.uid, change.new.version)
        return found

    def most_at_once(self, holds: Callable[[Pod], bool]) -> int:
        """How many pods of the namespace at most were so at any one time."""
        now: set[str] = set()
        most = 0
        for change in self.pod_changes:
            pod = change.new or change.old
            assert pod is not None
            if change.new is not None and holds(change.new):
                now.add(pod.uid)
            else:
                now.discard(pod.uid)
            most = max(most, len(now))
        return most

    def story(self, job: str) -> list[tuple[Phase, str]]:
        """(phase, reason) of its Gang, one for each time that they changed."""
        told: list[tuple[Phase, str]] = []
        for change in self.gang_changes:
            if change.new is not None and change.new.metadata.name == names.gang_of_job(job):
                said = (change.new.status.phase, change.new.status.reason)
                if not told or told[-1] != said:
                    told.append(said)
        return told

    def writes(self, *, user: str = CONTROLLER, what: str = "", about: str = "") -> list[Write]:
        """What the API server's audit log says was written in this namespace since the field was opened, in order.

        `about`: only objects whose name has this Job's in it.
        """
        with self.cluster.audit_log.open("rb") as log:
            log.seek(self._audit_from)
            lines = log.read().split(b"\n")[:-1]
        found: list[Write] = []
        for line in lines:
            if self.namespace.encode() not in line:
                continue
            entry = json.loads(line)
            thing = entry.get("objectRef", {})
            kind = "/".join(filter(None, (thing.get("resource"), thing.get("subresource"))))
            named = thing.get("name", "")
            mine = thing.get("namespace") == self.namespace and (not user or entry["user"]["username"] == user)
            mine = mine and entry["verb"] not in READS
            mine = mine and (not what or what == kind)
            if mine and (not about or f"-{about}-" in f"-{named}-"):
                code = entry.get("responseStatus", {}).get("code", 0)
                notes = entry.get("annotations", {})
                found.append(Write(entry["user"]["username"], entry["verb"], kind, named, code, notes))
        return found

    # --- waiting ------------------------------------------------------------------------------------------------

    async def until(self, holds: Callable[[], object], what: str, within: float = WITHIN) -> None:
        """Returns when it holds; fails with what there is in the namespace otherwise. Looks at each change."""
        end = time.monotonic() + within
        while not holds():
            left = end - time.monotonic()
            if left <= 0:
                raise AssertionError(f"not within {within:.0f} s: {what}\n{self.sight()}")
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(left, 0.25))

    async def phase(self, job: str, phase: Phase, within: float = WITHIN) -> Gang:
        """Returns its Gang when it is in this phase."""
        await self.until(lambda: self._is(job, phase=phase), f"the gang of Job {job} is {phase}", within)
        return self.sure(job)

    async def waits(self, job: str, code: Code, within: float = WITHIN) -> Gang:
        """Returns its Gang when it says this reason."""
        await self.until(lambda: self._is(job, code=code), f"the gang of Job {job} says {code}", within)
        return self.sure(job)

    async def runs(self, job: str, count: int, within: float = WITHIN) -> None:
        """Returns when so many of its pods are on nodes, no more and no less."""
        await self.until(lambda: len(self.bound(job)) == count, f"{count} pods of Job {job} are bound", within)

    async def lands(self, pod: str, node: str = "") -> Pod:
        """Returns the pod with this name when it is on a node: on this one, if one is given."""
        await self.until(
            lambda: (it := self.named(pod)) and it.bound and node in ("", it.node), f"pod {pod} is on node {node}"
        )
        found = self.named(pod)
        assert found is not None
        return found

    async def turned_away(self, pod: str) -> None:
        """Returns when kube-scheduler has found no node for the pod with this name."""
        await self.until(
            lambda: (it := self.named(pod)) and not it.bound and it.unschedulable, f"no node is found for pod {pod}"
        )

    async def completes(self, job: str, within: float = WITHIN) -> Job:
        """Returns the Job when it has completed."""
        await self.until(lambda: self._ended_as(job, "Complete"), f"Job {job} completes", within)
        found = self.job(job)
        assert found is not None
        return found

    def _is(self, job: str, *, phase: Phase | None = None, code: Code | None = None) -> bool:
        gang = self.gang(job)
        if gang is None:
            return False
        return (phase is None or gang.status.phase is phase) and (code is None or gang.status.reason == code)

    def _ended_as(self, job: str, condition: str) -> bool:
        found = self.job(job)
        return found is not None and any(c.type == condition and c.status == "True" for c in found.status.conditions)

    def sight(self) -> str:
        """What there is now, a line each."""
        lines = [f"  namespace {self.namespace}"]
        for job in self._jobs.store:
            mark = job.metadata.annotations.get(names.PARKED, "")
            status = job.status
            lines.append(
                f"  Job {job.metadata.name}: suspend={job.spec.suspend} parked={mark!r} active={status.active} "
                f"succeeded={status.succeeded} failed={status.failed} {[c.type for c in status.conditions]}"
            )
        for gang in self._gangs.store:
            said = gang.status
            slots = getattr(said.admission, "slots", None)
            lines.append(
                f"  Gang {gang.metadata.name}: {said.phase} {said.reason} {said.bound} slots={slots}: {said.message}"
            )
        for pod in sorted(self._pods.store, key=lambda each: each.name):
            gates = [*([names.GATE] if pod.gated else []), *pod.foreign_gates]
            lines.append(
                f"  Pod {pod.name}: {pod.phase} node={pod.node!r} nominated={pod.nominated!r} gates={gates}"
                f"{' deleting' if pod.deleting else ''} {pod.unschedulable}"
            )
        return "\n".join(lines)

    # --- the watches' side --------------------------------------------------------------------------------------

    def _pod(self, change: Change[Pod]) -> None:
        self.pod_changes.append(change)
        self._changed.set()

    def _gang(self, change: Change[Gang]) -> None:
        self.gang_changes.append(change)
        self._changed.set()

    def _job(self, _: Change[Job]) -> None:
        self._changed.set()


def _owner(pod: Pod) -> str:
    return pod.owner.name if pod.owner else ""


@contextmanager
def suppress_missing() -> Iterator[None]:
    """That an object isn't there is no error."""
    try:
        yield
    except ApiError as error:
        if not error.not_found:
            raise


async def both_up(startgate: Startgate) -> None:
    """Both programs run and do their work, whatever the last test did to them."""
    for program in (startgate.webhook, startgate.controller):
        if program.name not in startgate.cluster.pids:
            await program.start()
        await program.wait_ready()


async def eventually(
    read: Callable[[], Awaitable[T]], holds: Callable[[T], object], what: str, within: float = WITHIN
) -> T:
    """What `read` (awaited) gave when it held; fails with what it gave last otherwise."""
    end = time.monotonic() + within
    while True:
        seen = await read()
        if holds(seen):
            return seen
        if time.monotonic() > end:
            raise AssertionError(f"not within {within:.0f} s: {what}\n  last seen: {seen!r}")
        await asyncio.sleep(0.1)
