"""One trial: the gangs of one scenario, submitted in one mode, watched until all are bound or have ended.

Always holds: every mode is timed by this one watcher, from the first create request on; the requests that the bench
sends of its own (Jobs; for the bare loop, gates; the ends of pods) are bounded in number; what fails is counted and
said, and never mistaken for speed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

import msgspec

from bench.gang import Gang
from bench.parallel import WIDTH, in_parallel
from bench.scenarios import NAMESPACE, Mode, Scenario, job
from startgate.kube import kinds
from startgate.kube.client import Client, KubeError, Patch
from startgate.kube.transport import status_of
from startgate.model import names

QUIET = 90.0
"""Seconds without a byte after which the watch is dead: bookmarks come each minute."""


class _Owner(msgspec.Struct):
    name: str


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""
    owner_references: list[_Owner] = []


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Status(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    """No more of a pod than the bench looks at: the watcher shares the machine with what it measures."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _List(msgspec.Struct):
    metadata: _Meta


class Trial:
    """Use once: `await Trial(…).run()`, then read what it has seen."""

    def __init__(self, client: Client, scenario: Scenario, mode: Mode, number: int) -> None:
        self.scenario = scenario
        self.mode = mode
        # New names each time: whoever backs off by name, or remembers one, must not carry that into the next trial.
        prefix = f"{scenario.key.lower()}-{mode}-{number}"
        self.gangs = {f"{prefix}-{index:04}": Gang(scenario.pods) for index in range(scenario.gangs)}
        self.began = 0.0
        self.jobs_created: float | None = None
        """This and those below: seconds since the first create request; None: never."""
        self.pods_created: float | None = None
        self.all_bound: float | None = None
        self.all_ended: float | None = None
        self.lost = 0
        """Pods that were gone before their end."""
        self.watches_ended = 0
        self.failures: list[str] = []
        self._client = client
        self._patches: asyncio.Queue[tuple[str, object, Patch]] = asyncio.Queue()
        self._seen = self._bound = self._ended = 0
        self._watching = asyncio.Event()
        self._done = asyncio.Event()

    async def run(self, at_start: Callable[[], None], at_end: Callable[[], None]) -> None:
        """Calls `at_start` right before the first request, `at_end` as soon as the last thing was seen."""
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(self._watch())]
            background += [group.create_task(self._patch()) for _ in range(WIDTH)]
            await self._watching.wait()
            at_start()
            self.began = time.perf_counter()
            await in_parallel(self.gangs.items(), self._submit)
            self.jobs_created = self._now()
            try:
                async with asyncio.timeout(max(0.0, self.scenario.limit - self._now())):
                    await self._done.wait()
            except TimeoutError:
                pass  # what is missing is seen in the figures
            at_end()
            for task in background:
                task.cancel()
        for gang in self.gangs.values():
            gang.close(time.perf_counter())

    def _now(self) -> float:
        return time.perf_counter() - self.began

    async def _submit(self, item: tuple[str, Gang]) -> None:
        name, gang = item
        body = job(self.scenario, self.mode, name)
        gang.created = time.perf_counter()
        try:
            await self._client.request("POST", kinds.JOBS.path(NAMESPACE), body=body)
        except KubeError as error:
            self._failed(error)

    async def _patch(self) -> None:
        """One of those that send the bench's own patches."""
        while True:
            pod, patch, how = await self._patches.get()
            subresource = "status" if how is Patch.MERGE else ""
            try:
                await self._client.request(
                    "PATCH", kinds.PODS.path(NAMESPACE, pod, subresource), body=patch, content_type=how
                )
            except KubeError as error:
                self._failed(error)

    def _failed(self, error: KubeError) -> None:
        self.failures.append(str(error))
        if len(self.failures) == 1:  # the others will mostly be the same
            sys.stderr.write(f"  a request failed: {error}\n")

    async def _watch(self) -> None:
        path = kinds.PODS.path(NAMESPACE)
        listed = msgspec.json.decode(await self._client.request("GET", path, query={"limit": "1"}), type=_List)
        version = listed.metadata.resource_version
        events = msgspec.json.Decoder(_Event)
        pods = msgspec.json.Decoder(_Pod)
        while True:
            query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
            async with self._client.stream(path, query=query, idle=QUIET) as lines:
                self._watching.set()
                async for line in lines:
                    event = events.decode(line)
                    if event.type == "ERROR":
                        raise RuntimeError(f"The watch of pods failed: {status_of(event.object).message}")
                    pod = pods.decode(event.object)
                    version = pod.metadata.resource_version
                    if event.type != "BOOKMARK":
                        self._see(event.type, pod)
            # The API server ends a watch that keeps it waiting, as it may where cores are few. Nothing is missed by
            # going on where it ended.
            self.watches_ended += 1

    def _see(self, change: str, pod: _Pod) -> None:
        owners = pod.metadata.owner_references
        gang = self.gangs.get(owners[0].name) if owners else None
        if gang is None:
            return
        name = pod.metadata.name
        if change == "DELETED":
            if name not in gang.ended:
                self._see_lost(gang, name)
            return
        if name not in gang.seen:
            self._see_made(gang, name)
        if pod.spec.node_name and name not in gang.bound:
            self._see_bound(gang, name)
        if pod.status.phase == "Succeeded" and name not in gang.ended:
            self._see_ended(gang, name)

    def _see_made(self, gang: Gang, pod: str) -> None:
        gang.seen.add(pod)
        self._seen += 1
        if self._seen == self.scenario.total and self.pods_created is None:
            self.pods_created = self._now()
        if self.mode is Mode.FLOOR and len(gang.seen) == gang.size:
            path = "/spec/schedulingGates/0"
            for each in gang.seen:
                patch = [{"op": "test", "path": f"{path}/name", "value": names.GATE}, {"op": "remove", "path": path}]
                self._patches.put_nowait((each, patch, Patch.JSON))

    def _see_bound(self, gang: Gang, pod: str) -> None:
        gang.bind(pod, time.perf_counter())
        self._bound += 1
        if self._bound == self.scenario.total and self.all_bound is None:
            self.all_bound = self._now()
            if self.scenario.lasts is None:
                self._done.set()
        if self.scenario.lasts is not None and gang.whole:
            asyncio.get_running_loop().call_later(self.scenario.lasts, self._end, list(gang.bound))

    def _end(self, pods: list[str]) -> None:
        """Plays the kubelets, which say of each pod that it has done its work."""
        for pod in pods:
            self._patches.put_nowait((pod, {"status": {"phase": "Succeeded"}}, Patch.MERGE))

    def _see_ended(self, gang: Gang, pod: str) -> None:
        gang.ended.add(pod)
        self._ended += 1
        if self._ended == self.scenario.total:
            self.all_ended = self._now()
            self._done.set()

    def _see_lost(self, gang: Gang, pod: str) -> None:
        self.lost += 1
        self._seen -= 1
        if pod in gang.bound:
            self._bound -= 1
        gang.lose(pod, time.perf_counter())
