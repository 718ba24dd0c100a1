"""kube-scheduler's answer to a case: the same objects on a real API server, and what gets bound.

No kubelet and no controller touches what is put there, but for those of volumes. What always holds: nothing
is waited for by the clock. Whether kube-scheduler has seen what was made, and whether it will try no more, is known
from a pod that can never be placed (a probe) and from the lengths of its queues:

* Changes of pods, and changes of nodes, reach it in the order in which they were made. So when it says of a probe that
  asks for the newest node what it lacks there, it knows all nodes; what happened to pods before the probe was made, it
  knows too.
* When then nothing is left in its queues but pods that it has found unschedulable, it has tried all of them with all
  that happened, and nothing will change until something else does.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import msgspec

from localcluster import build
from localcluster.cluster import Cluster
from startgate.kube.client import ApiError, Client, Patch
from startgate.model import names
from tests.oracle.binder import Binder
from tests.oracle.case import HOME, NAMESPACES, PRIORITIES, Case, Json
from tests.oracle.watch import Watched, key

FLAGS: Final = {
    # Accounts, conditions as taints, and finalizers on volumes are matters of controllers that don't run here.
    # Nobody reads the audit log, and there is nobody to be fair to.
    "kube-apiserver": [
        "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,StorageObjectInUseProtection",
        "--audit-log-path=",
        "--enable-priority-and-fairness=false",
    ],
    "kube-controller-manager": ["--controllers=serviceaccount-controller,ephemeral-volume-controller"],
    # How fast it may write, and who may read its metrics, has no influence on what it decides.
    "kube-scheduler": [
        "--kube-api-qps=2000",
        "--kube-api-burst=2000",
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
    ],
}

PATHS: Final = {
    "Node": "/api/v1/nodes",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PersistentVolumeClaim": f"/api/v1/namespaces/{HOME}/persistentvolumeclaims",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "CSIDriver": "/apis/storage.k8s.io/v1/csidrivers",
    "CSINode": "/apis/storage.k8s.io/v1/csinodes",
    "CSIStorageCapacity": f"/apis/storage.k8s.io/v1/namespaces/{HOME}/csistoragecapacities",
    "VolumeAttachment": "/apis/storage.k8s.io/v1/volumeattachments",
    "RuntimeClass": "/apis/node.k8s.io/v1/runtimeclasses",
}
FIRST: Final = (
    "RuntimeClass",
    "StorageClass",
    "PersistentVolumeClaim",
    "PersistentVolume",
    "CSIDriver",
    "CSINode",
    "CSIStorageCapacity",
    "VolumeAttachment",
)
"""Made before the nodes, in this order; pods come last."""

PROBE: Final = "startgate.dev/never"
"""A resource that no node has."""
LACKS: Final = f"Insufficient {PROBE}"

SECONDS: Final = 20.0
"""For kube-scheduler to get to a point where it must get; a cluster that takes longer is an error, not an answer."""
POLL: Final = 0.003
WIDTH: Final = 16

QUEUES: Final = re.compile(rb'^scheduler_pending_pods\{queue="(\w+)"\} (\d+)', re.MULTILINE)


class RefusedError(Exception):
    """The API server doesn't take this case."""


class Plane:
    """`async with Plane.start() as plane`; one case at a time: `prepare`, then `release` once or more, then `clear`."""

    def __init__(self, client: Client, scheduler: Client) -> None:
        self._client = client
        self._scheduler = scheduler
        self._news = asyncio.Event()
        self._watched = Watched(client, "/api/v1/pods", lambda _: self._news.set())
        self._pods = self._watched.objects
        self._binder = Binder(client, self._news)
        self._namespaces: list[Json] = []
        self._numbers = itertools.count(1)
        self._made: set[str] = set()
        """Kinds of which something is there."""
        self._last_node = ""
        self._aside = 0
        """Pods that kube-scheduler has found unschedulable and that are not the gang's."""

    @classmethod
    @asynccontextmanager
    async def start(cls, kubernetes: str = build.NEWEST) -> AsyncIterator[Plane]:
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(Cluster.start(kubernetes=kubernetes, flags=FLAGS))
            await cluster.stop_process("kwok")
            client = await stack.enter_async_context(await Client.connect(kubeconfig=str(cluster.kubeconfig)))
            config = cluster.dir / "users" / "scheduler.kubeconfig"
            config.parent.mkdir(exist_ok=True)
            config.write_text(cluster.kubeconfig.read_text().replace(cluster.server, cluster.scheduler))
            scheduler = await stack.enter_async_context(await Client.connect(kubeconfig=str(config)))
            plane = cls(client, scheduler)
            await plane._furnish()
            group = await stack.enter_async_context(asyncio.TaskGroup())
            watching = [group.create_task(plane._watched.run()), group.create_task(plane._binder.run())]
            yield plane
            for task in watching:
                task.cancel()

    async def _furnish(self) -> None:
        for name, labels in NAMESPACES.items():
            body: Json = {"metadata": {"name": name, "labels": dict(labels)}}
            self._namespaces.append(await self._post("/api/v1/namespaces", body))
        for name, value in PRIORITIES.items():
            body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": "Never"}
            await self._post("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        await self._hush()

    async def _hush(self) -> None:
        """kube-scheduler may write no Events: nobody reads them, and they are a third of its writes."""
        path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:kube-scheduler"
        role = msgspec.json.decode(await self._client.request("GET", path))
        rules = [rule for rule in role["rules"] if "events" not in rule.get("resources", ())]
        await self._client.request("PATCH", path, body={"rules": rules}, content_type=Patch.MERGE)

    async def prepare(self, case: Case) -> tuple[dict[str, list[Json]], list[Json]]:
        """Makes all of it, the gang's pods behind their gate, and awaits that kube-scheduler knows of it.

        The objects by kind and the gang's pods, as the API server has them. RefusedError.
        """
        kinds: dict[str, list[Json]] = {kind: [] for kind in (*FIRST, "Node", "Pod")}
        for it in case.objects:
            kinds[it["kind"]].append(it)
        stored: dict[str, list[Json]] = {"Namespace": self._namespaces}
        for kind in FIRST:
            stored[kind] = [await self._make(_with_uid(it, stored)) for it in kinds[kind]]
        *most, last = kinds["Node"]
        stored["Node"] = [*await self._all(self._make, most), await self._make(last)]
        self._last_node = last["metadata"]["name"]
        stored["Pod"] = await self._all(self._make_other, kinds["Pod"])
        gang = await self.make_gang(case.gang)
        self._aside = 0
        await self._probe(lambda message: LACKS in message)
        wanted = {claim for pod in (*case.objects, *gang) for claim in _claims_made_for(pod)}
        if wanted:
            await self._until(lambda: wanted <= self._binder.claims.objects.keys())
            stored["PersistentVolumeClaim"] = [dict(it) for it in self._binder.claims.objects.values()]
        return stored, gang

    async def make_gang(self, gang: Sequence[Json]) -> list[Json]:
        """The pods behind our gate, under names of their own. RefusedError."""
        number = next(self._numbers)
        made = []
        for index, pod in enumerate(gang):
            spec = {**pod["spec"], "schedulingGates": [{"name": names.GATE}]}
            meta = {**pod["metadata"], "name": f"gang-{number}-{index}", "namespace": HOME}
            made.append({**pod, "metadata": meta, "spec": spec})
        return await self._all(self._make, made)

    async def release(
        self, gang: Sequence[Json], nodes: Sequence[str] = (), pins: Sequence[Mapping[str, str]] = ()
    ) -> list[str]:
        """Lifts the gates of these pods one after the other, where `nodes` are given with their room reserved first,
        where `pins` are with these added to their node selectors; awaits that kube-scheduler has done all that it can.
        What it says of each pod that isn't bound.
        """
        for pod, node in zip(gang, nodes, strict=False):
            await self._patch(pod, {"status": {"nominatedNodeName": node}}, "status")
        for pod, pin in zip(gang, pins or [{}] * len(gang), strict=True):
            spec: Json = {"schedulingGates": [{"name": names.GATE, "$patch": "delete"}]}
            await self._patch(pod, {"spec": {**spec, "nodeSelector": dict(pin)} if pin else spec})
        keys = [key(pod) for pod in gang]
        while True:
            await self._until(lambda: all(self._node(key) or self._unschedulable(key) for key in keys))
            unbound = [key for key in keys if not self._node(key)]
            if not unbound:
                return []
            await self._probe(bool)
            if await self._settled(unbound):
                return [self._unschedulable(key) for key in unbound]

    async def _settled(self, unbound: Sequence[str]) -> bool:
        """Whether kube-scheduler has nothing left to try; False where more is bound than before."""
        until = asyncio.get_running_loop().time() + SECONDS
        while not any(self._node(key) for key in unbound):
            found = QUEUES.findall(await self._scheduler.request("GET", "/metrics"))
            queues = {name.decode(): int(length) for name, length in found}
            if (queues["active"], queues["backoff"], queues["unschedulable"]) == (0, 0, self._aside + len(unbound)):
                return not any(self._node(key) for key in unbound)
            if asyncio.get_running_loop().time() > until:
                raise TimeoutError(f"kube-scheduler's queues don't settle: {queues}, {len(unbound)} pods are unbound")
            await asyncio.sleep(POLL)
        return False

    async def remove(self, gang: Sequence[Json]) -> None:
        """Takes these pods away, bound or not."""
        await self._all(self._delete, gang)
        await self._until(lambda: not any(key(pod) in self._pods for pod in gang))

    async def clear(self) -> None:
        """Takes everything away."""
        for pod in [pod for pod in self._pods.values() if pod["metadata"].get("finalizers")]:
            await self._patch(pod, {"metadata": {"finalizers": None}})
        await self._sweep([f"/api/v1/namespaces/{name}/pods" for name in (*NAMESPACES, "default")])
        await self._until(lambda: not self._pods)
        await self._sweep([PATHS[kind] for kind in sorted(self._made) if kind in PATHS])
        self._made.clear()
        # A claim for a pod that has just gone may still come.
        while self._binder.claims.objects:
            await self._sweep([PATHS["PersistentVolumeClaim"]])
            await self._until(_gone(self._binder.claims.objects))

    async def _sweep(self, paths: Sequence[str]) -> None:
        now = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        await self._all(lambda path: self._client.request("DELETE", path, body=now), paths)

    # --- the probe ----------------------------------------------------------------------------------------------

    async def _probe(self, says: Callable[[str], bool]) -> None:
        """Makes a pod that only the newest node would take, and that lacks something even there; awaits the answer."""
        pod = await self._make(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"probe-{next(self._numbers)}", "namespace": "default"},
                "spec": {
                    "affinity": _on_node(self._last_node),
                    "tolerations": [{"operator": "Exists"}],
                    "preemptionPolicy": "Never",
                    "priorityClassName": "oracle-low",
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "c", "image": "none", "resources": {"limits": {PROBE: "1"}}}],
                },
            }
        )
        self._aside += 1
        await self._until(lambda: says(self._unschedulable(key(pod))))

    # --- what is known of pods ----------------------------------------------------------------------------------

    def _node(self, key: str) -> str:
        pod = self._pods.get(key)
        return pod["spec"].get("nodeName", "") if pod else ""

    def _unschedulable(self, key: str) -> str:
        """What kube-scheduler says of the pod; "" before it has tried."""
        pod = self._pods.get(key)
        for each in pod["status"].get("conditions", ()) if pod else ():
            if each["type"] == "PodScheduled" and each["status"] == "False" and each["reason"] != "SchedulingGated":
                return str(each.get("message") or each["reason"])
        return ""

    async def _until(self, met: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not met():
                self._news.clear()
                await self._news.wait()

    # --- requests -----------------------------------------------------------------------------------------------

    async def _make(self, it: Json) -> Json:
        kind = it["kind"]
        self._made.add(kind)
        if any(_claims_made_for(it)):
            self._made |= {"PersistentVolumeClaim", "PersistentVolume"}
        path = PATHS.get(kind) or f"/api/v1/namespaces/{it['metadata']['namespace']}/pods"
        made = await self._post(path, it)
        if kind.startswith("PersistentVolume") and "status" in it:
            where = f"{path}/{it['metadata']['name']}/status"
            body = {"status": it["status"]}
            made = msgspec.json.decode(await self._client.request("PATCH", where, body=body, content_type=Patch.MERGE))
        return made

    async def _make_other(self, it: Json) -> Json:
        """A pod that isn't the gang's: running, on its way out, or nominated."""
        status, meta = it.get("status", {}), it["metadata"]
        leaves = "deletionTimestamp" in meta
        bare = {**it, "metadata": {key: value for key, value in meta.items() if key != "deletionTimestamp"}}
        made = await self._make(bare)
        if status:
            made = await self._patch(made, {"status": status}, "status")
        if leaves:
            await self._delete(made, grace=3600)
            made["metadata"]["deletionTimestamp"] = meta["deletionTimestamp"]
        return made

    async def _post(self, path: str, body: Json) -> Json:
        try:
            answer = await self._client.request("POST", path, body=body)
        except ApiError as error:
            if error.status in (400, 403, 422):
                raise RefusedError(str(error)) from error
            raise
        decoded: Json = msgspec.json.decode(answer)
        return decoded

    async def _patch(self, pod: Json, patch: Json, subresource: str = "") -> Json:
        path = _path(pod) + (f"/{subresource}" if subresource else "")
        answer = await self._client.request("PATCH", path, body=patch, content_type=Patch.STRATEGIC)
        decoded: Json = msgspec.json.decode(answer)
        return decoded

    async def _delete(self, pod: Json, grace: int = 0) -> None:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace}
        await self._client.request("DELETE", _path(pod), body=options)

    async def _all(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Answers in the order of the items; some at a time."""
        gate = asyncio.Semaphore(WIDTH)

        async def one(item: Any) -> Any:
            async with gate:
                return await work(item)

        results = await asyncio.gather(*(one(item) for item in items), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


def _gone(objects: Mapping[str, Json]) -> Callable[[], bool]:
    """Whether none is left of what is there now."""
    here = set(objects)
    return lambda: not here & objects.keys()


def _with_uid(it: Json, stored: Mapping[str, Sequence[Json]]) -> Json:
    """A volume that is bound names the very claim that was made."""
    if it["kind"] != "PersistentVolume" or it["status"]["phase"] != "Bound":
        return it
    ref = it["spec"]["claimRef"]
    uids = {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in stored["PersistentVolumeClaim"]}
    return {**it, "spec": {**it["spec"], "claimRef": {**ref, "uid": uids.get(ref["name"], "none")}}}


def _claims_made_for(pod: Json) -> Iterator[str]:
    """The claims that are made for a pod's ephemeral volumes."""
    if pod["kind"] == "Pod":
        for volume in pod["spec"].get("volumes", ()):
            if "ephemeral" in volume:
                yield f"{key(pod)}-{volume['name']}"


def _path(pod: Mapping[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _on_node(name: str) -> Json:
    field = {"key": "metadata.name", "operator": "In", "values": [name]}
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [field]}]}
        }
    }
