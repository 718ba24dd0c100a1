"""A scenario played on the real control plane: its manifests applied in their order, and what came of them.

`Play` puts the manifests of tests/scenarios on a field, under names that no other test uses, and tells what happened in
the words of the simulator. What always holds: a step is taken only once what was due before it has been seen and all
gangs have come to rest, so that a slow machine changes when things happen, never in which order; and the order of
events is that of the API server's resource versions.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping
from typing import Any, Final

from localcluster.nodes import GPU, Node
from startgate.engine.simulate.merge import merge
from startgate.kube.kinds import JOBS, PODS
from startgate.kube.store import Change
from startgate.model import names
from startgate.model.gang import Gang, GangStatus, Phase, Yielded
from startgate.model.pods import Pod
from startgate.model.reasons import Code
from tests.behaviour.kit import SIMULATE, WITHIN, Field, Manifest
from tests.scenario import Event, Happening, Scenario, appears, gang_key, seconds, simulated

RESTS: Final = frozenset({Phase.WAITING, Phase.PARKED, Phase.RUNNING, Phase.FINISHED})
NO_EVENT: Final = frozenset({"", Code.PODS_MISSING, Code.RECLAIMED, Code.PREEMPTED})
"""Reasons of gangs that wait which the simulator has no Waiting for: their pods are being made, or it has another."""


class Play:
    """One scenario on one field."""

    def __init__(self, field: Field, scenario: Scenario) -> None:
        self.field = field
        self.scenario = scenario
        self.started = time.monotonic()
        self._nodes: dict[str, Manifest] = {}
        self._here: dict[tuple[str, str], Manifest] = {}
        self._told: list[Happening] = []
        self._read = (0, 0)
        """How many changes of pods and of Gangs have been told."""
        self._waits: dict[str, tuple[str, str]] = {}
        self._opened: set[str] = set()
        """The pods whose gate has been seen open."""
        self._past: dict[str, set[str]] = {}
        """By gang: those of them that passed since it last gave way."""
        self._leaves: dict[str, Happening] = {}
        """By gang: when the first of those pods was on its way out."""
        self._ended: dict[str, Happening] = {}

    @property
    def now(self) -> float:
        return time.monotonic() - self.started

    def story(self) -> list[Happening]:
        """What has happened, in order."""
        return sorted(self._told, key=lambda each: each.order)

    async def run(self) -> None:
        """Returns when everything has come as it must; fails with all that is wrong otherwise."""
        self.started = time.monotonic()
        for at, manifests in self._steps():
            if at > 0:
                await self._ready_for(at)
            await self._apply(manifests, at)
        end = self.scenario.plane
        while True:
            await self._look(self.now + 0.1)
            problems = await self._problems()
            if not problems and not (self.now < end and self.scenario.open(self.story(), self.now)):
                return
            if self.now > end + WITHIN:
                raise AssertionError("\n".join([*problems, *map(str, self.story()), self.field.sight()]))

    # --- doing --------------------------------------------------------------------------------------------------

    def _steps(self) -> list[tuple[float, list[tuple[str, Manifest]]]]:
        steps: dict[float, list[tuple[str, Manifest]]] = {}
        for manifest in self.scenario.manifests:
            steps.setdefault(appears(manifest), []).append(("put", manifest))
            if gone := simulated(manifest, "gone"):
                steps.setdefault(seconds(gone), []).append(("delete", manifest))
        return sorted(steps.items())

    async def _ready_for(self, at: float) -> None:
        """Returns when it is time, what was due has been seen, and nothing is on its way."""

        def ready() -> bool:
            self._tell()
            due = self.scenario.due(at)
            return self._rests() and not self.scenario.failures(self.story(), exact=False, of=due)

        await self._look(at)
        try:
            await self.field.until(ready, f"what is due before {at:g} s has happened")
        except AssertionError as error:
            due = self.scenario.failures(self.story(), exact=False, of=self.scenario.due(at))
            raise AssertionError("\n".join([*due, *map(str, self.story()), str(error)])) from None

    def _rests(self) -> bool:
        """Whether each gang is where it will stay by itself."""
        for kind, name in self._here:
            if kind == "Job" and gang_key(name) in self.scenario.gangs:
                gang = self.field.gang(name)
                if gang is None or gang.status.phase not in RESTS or gang.status.reason == Code.PODS_MISSING:
                    return False
        return True

    async def _apply(self, manifests: list[tuple[str, Manifest]], at: float) -> None:
        if any(manifest["kind"] == "Node" for _, manifest in manifests) or at == 0:
            for verb, manifest in manifests:
                if manifest["kind"] == "Node":
                    name = manifest["metadata"]["name"]
                    self._nodes[name] = merge(self._nodes.get(name, {}), manifest)
                    if verb == "delete":
                        del self._nodes[name]
            await self.field.cluster.set_nodes([_node(each) for each in self._nodes.values()])
            if at == 0:
                self.started = time.monotonic()
        for verb, manifest in manifests:
            if manifest["kind"] != "Node":
                await (self._delete(manifest) if verb == "delete" else self._put(manifest))

    async def _put(self, manifest: Manifest) -> None:
        key = (manifest["kind"], manifest["metadata"]["name"])
        before = self._here.get(key)
        mine = self._mine(manifest)
        self._here[key] = manifest
        match key:
            case ("Queue", name) if before is None:
                await self.field.queue(name, **mine["spec"])
            case ("Queue", name):
                await self.field.change_queue(self._real(name), **mine["spec"])
            case ("Job", _) if before is None:
                await self.field.client.create(JOBS, mine, self.field.namespace)
            case ("Job", name) if before is not None:
                spec = {field: value for field, value in mine["spec"].items() if before["spec"].get(field) != value}
                spec.pop("template", None)
                await self.field.change_job(name, {"metadata": {"labels": mine["metadata"]["labels"]}, "spec": spec})
            case ("Pod", _) if before is None:
                await self.field.client.create(PODS, mine, self.field.namespace)
            case ("Pod", name):
                await self._resize(name, mine["spec"]["containers"])
            case _ if before is None:
                await self.field.put(mine)
            case _:
                raise AssertionError(f"a {key[0]} can't be changed on the control plane by a scenario")

    async def _resize(self, pod: str, containers: list[Manifest]) -> None:
        """In place: of a running pod nothing else can be changed. First it says what a kubelet that can do so says."""
        await self.field.until(lambda: (it := self.field.named(pod)) and it.phase == "Running", f"pod {pod} runs")
        path, merging = PODS.path(self.field.namespace, pod), "application/merge-patch+json"
        running = json.loads(await self.field.client.request("GET", path))
        asked = {each["name"]: each["resources"] for each in running["spec"]["containers"]}
        told = [{**each, "resources": asked[each["name"]]} for each in running["status"]["containerStatuses"]]
        await self.field.client.request(
            "PATCH", f"{path}/status", body={"status": {"containerStatuses": told}}, content_type=merging
        )
        wanted = {each["name"]: each["resources"] for each in containers}
        resized = [{**each, "resources": wanted[each["name"]]} for each in running["spec"]["containers"]]
        await self.field.client.request(
            "PATCH", f"{path}/resize", body={"spec": {"containers": resized}}, content_type=merging
        )

    async def _delete(self, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        match manifest["kind"]:
            case "Job":
                await self.field.delete_job(name)
            case "Pod":
                await self.field.delete_pod(name)
            case kind:
                raise AssertionError(f"a {kind} can't be deleted on the control plane by a scenario")
        del self._here[manifest["kind"], name]

    def _mine(self, manifest: Manifest) -> Manifest:
        """The manifest with the names that it has on this field."""
        mine = copy.deepcopy(manifest)
        meta, spec = mine["metadata"], mine.setdefault("spec", {})
        meta.pop("namespace", None)
        labels = meta.setdefault("labels", {})
        if names.QUEUE in labels:
            labels[names.QUEUE] = self._real(labels[names.QUEUE])
        if mine["kind"] == "Queue" and spec.get("parent"):
            spec["parent"] = self._real(spec["parent"])
        if mine["kind"] in ("PersistentVolume", "PriorityClass", "StorageClass"):
            meta["name"] = self._real(meta["name"])
        if mine["kind"] in ("PriorityClass", "StorageClass"):
            del mine["spec"]
        if "storageClassName" in spec:
            spec["storageClassName"] = self._real(spec["storageClassName"])
        if mine["kind"] == "Job":
            pod = spec["template"]
            if "priorityClassName" in pod["spec"]:
                pod["spec"]["priorityClassName"] = self._real(pod["spec"]["priorityClassName"])
            said = {f"{SIMULATE}/{key}": simulated(manifest, key) for key in ("runs", "terminates")}
            pod.setdefault("metadata", {})["annotations"] = {key: value for key, value in said.items() if value}
        return mine

    def _real(self, name: str) -> str:
        return f"{name}-{self.field.namespace}"

    def _said(self, text: str) -> str:
        """A sentence with the names that the scenario knows."""
        return text.replace(f"-{self.field.namespace}", "").replace(f"{self.field.namespace}/", "default/")

    # --- seeing -------------------------------------------------------------------------------------------------

    async def _look(self, until: float) -> None:
        """Takes note of what happens by then, when it does."""

        def over() -> bool:
            self._tell()
            return self.now >= until

        await self.field.until(over, "time passes")

    def _tell(self) -> None:
        """Turns what is new into events."""
        pods, gangs = self._read
        self._read = (len(self.field.pod_changes), len(self.field.gang_changes))
        for pod in self.field.pod_changes[pods:]:
            self._tell_pod(pod)
        for gang in self.field.gang_changes[gangs:]:
            self._tell_gang(gang)

    def _tell_pod(self, change: Change[Pod]) -> None:
        old, new = change.old, change.new
        pod = new or old
        if pod is None or pod.owner is None or pod.owner.kind != "Job":
            return
        key = gang_key(pod.owner.name)
        past = self._past.setdefault(key, set())
        if new is None:
            return
        at = Happening(at=self.now, order=new.version, gang=key, event=Event.RELEASED)
        if not new.gated and new.uid not in self._opened:
            if not past:
                self._leaves.pop(key, None)
                self._told.append(at)
            self._opened.add(new.uid)
            past.add(new.uid)
        if new.deleting and not new.ended and new.uid in past:
            self._leaves.setdefault(key, at)
        if new.ended and not (old and old.ended):
            self._ended[key] = at

    def _tell_gang(self, change: Change[Gang]) -> None:
        new = change.new
        if new is None or not new.metadata.name.startswith("job-"):
            return
        key, status = gang_key(new.metadata.name.removeprefix("job-")), new.status
        before = change.old.status if change.old else None
        version = int(new.metadata.resource_version)
        if status.yielded and status.yielded != (before and before.yielded):
            assert isinstance(status.yielded, Yielded)
            self._gave_way(key, version, Event(status.yielded.reason), status.yielded.message)
        if before is not None and status.taken_back > before.taken_back:
            self._gave_way(key, version, Event.TAKEN_BACK, status.message)
        if status.phase is Phase.FINISHED and (before is None or before.phase is not Phase.FINISHED):
            last = self._ended.get(key)
            at, order = (last.at, last.order) if last else (self.now, version)
            self._told.append(Happening(at=at, order=order, gang=key, event=Event.FINISHED, reason=status.reason))
        waits = (str(status.phase), status.reason)
        is_news = status.phase in (Phase.WAITING, Phase.PARKED) and self._waits.get(key) != waits
        if is_news and status.reason not in NO_EVENT:
            self._told.append(self._waiting(key, version, status))
        self._waits[key] = waits

    def _waiting(self, key: str, version: int, status: GangStatus) -> Happening:
        return Happening(
            at=self.now,
            order=version,
            gang=key,
            event=Event.WAITING,
            reason=status.reason,
            message=self._said(status.message),
        )

    def _gave_way(self, key: str, version: int, event: Event, message: str) -> None:
        """That it did shows first in its pods: what the Gang says of it may be written later."""
        left = self._leaves.pop(key, None)
        at, order = (left.at, min(left.order, version)) if left else (self.now, version)
        self._told.append(
            Happening(at=at, order=order, gang=key, event=event, reason=str(event), message=self._said(message))
        )
        self._past[key] = set()

    async def _problems(self) -> list[str]:
        """What isn't as it must be, by now."""
        return [
            *self.scenario.failures(self.story(), exact=False),
            *self.scenario.final_failures(await self._final(), exact=False),
        ]

    async def _final(self) -> Mapping[str, Any]:
        """How all stands, as simulate prints it."""
        final = self.scenario.document.final
        gangs: dict[str, Any] = {}
        for name in final.gangs:
            if gang := self.field.gang(name):
                gangs[gang_key(name)] = {
                    "phase": gang.status.phase,
                    "reason": gang.status.reason,
                    "message": self._said(gang.status.message),
                    "released": sum(1 for pod in self.field.pods(name) if not pod.gated and not pod.deleting),
                    "minAvailable": gang.spec.min_available,
                }
        queues: dict[str, Any] = {}
        for name in final.queues:
            status = (await self.field.read_queue(self._real(name))).status
            queues[name] = {"allocated": status.allocated, "headroom": status.headroom}
        return {"gangs": gangs, "queues": queues}


def _node(manifest: Manifest) -> Node:
    """The fake node that this manifest is about."""
    offers = dict(manifest["status"]["allocatable"])
    node = Node(
        name=manifest["metadata"]["name"],
        cpu=offers.pop("cpu", "0"),
        memory=offers.pop("memory", "64Gi"),
        gpus=int(offers.pop(GPU, "0")),
        pods=int(offers.pop("pods", "110")),
        labels=manifest["metadata"].get("labels") or {},
    )
    assert not offers and not manifest.get("spec"), f"node {node.name} has what the control plane's nodes don't"
    return node
