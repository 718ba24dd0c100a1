"""Where the story plays: one cluster, the people in it, and what a watch shows of their pods.

Everything that is said about the cluster comes from its API server: kubectl for what people do, our own client for
what is awaited and checked. What always holds: a wait has an end, and says what it was for.
"""

import asyncio
import contextlib
import os
import sysconfig
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, Self, TypeVar

import yaml

from demo import work
from demo.checks import Checks
from demo.screen import Screen
from localcluster import tools
from localcluster.cluster import Cluster
from localcluster.deploy import Startgate
from startgate.kube.client import ApiError, Client, Patch
from startgate.kube.kinds import GANGS, JOBS, PODS, QUEUES
from startgate.kube.reflector import Reflector
from startgate.kube.store import Change
from startgate.model import names, objects
from startgate.model.gang import Gang
from startgate.model.pods import Pod, pod_of
from startgate.model.queue import Queue

POLL: Final = 0.05
PATIENCE: Final = 40.0
"""Seconds for anything that should take a moment: this machine may have other things to do."""

T = TypeVar("T")


class StoryError(Exception):
    """The cluster didn't come to where the story goes on; its text says what was awaited."""


class Stage:
    """The cluster, the screen and the checks, for all chapters."""

    def __init__(
        self, cluster: Cluster, startgate: Startgate, client: Client, user: Path, told: tuple[Screen, Checks]
    ) -> None:
        self.cluster = cluster
        self.startgate = startgate
        self.client = client
        self.screen, self.checks = told
        self.user_kubeconfig = user
        self.listeners: list[Callable[[Change[Pod]], None]] = []
        """Called for each change of a pod, in the API server's order."""
        self._pods = Reflector(client, PODS, view=pod_of, on_change=self._hear)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, cluster: Cluster, startgate: Startgate, screen: Screen, checks: Checks) -> AsyncIterator[Self]:
        """The stage, with a watch on pods."""
        user = await cluster.user_kubeconfig(work.USER)
        async with await Client.connect(kubeconfig=str(cluster.kubeconfig)) as client:
            stage = cls(cluster, startgate, client, user, (screen, checks))
            watch = asyncio.create_task(stage._pods.run())
            try:
                await stage._pods.wait_synced()
                yield stage
            finally:
                watch.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watch

    def _hear(self, change: Change[Pod]) -> None:
        for listener in self.listeners:
            listener(change)

    def claim(self, sentence: str, holds: bool, seen: str) -> None:
        """Counts a claim and prints it."""
        self.screen.claim(self.checks.claim(sentence, holds, seen))

    # --- what people do -----------------------------------------------------------------------------------------

    async def kubectl(self, *arguments: str, stdin: str = "", admin: bool = False) -> tuple[int, str]:
        """The real kubectl, with our plugin beside it, in the cluster's directory; exit status and all that it said."""
        kubeconfig = self.cluster.kubeconfig if admin else self.user_kubeconfig
        path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
        process = await asyncio.create_subprocess_exec(
            str(tools.kubectl()),
            *arguments,
            cwd=self.cluster.dir,
            env={
                "PATH": path,
                "HOME": str(self.cluster.dir),
                "KUBECONFIG": str(kubeconfig),
                **self.screen.terminal(),
            },
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate(stdin.encode())
        return process.returncode or 0, said.decode(errors="replace").strip("\n")

    async def apply(self, *manifests: work.Manifest, admin: bool = False) -> str:
        """`kubectl apply`; StoryError with its answer where that fails."""
        status, said = await self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests), admin=admin)
        if status:
            raise StoryError(f"kubectl apply failed: {said}")
        return said

    async def submit_at_once(self, *jobs: work.Manifest) -> None:
        """Creates Jobs in the same moment, as the user: each by a request of its own."""
        async with await Client.connect(kubeconfig=str(self.user_kubeconfig)) as user:
            # A connection for each, so that none of the requests has to wait for its own.
            await asyncio.gather(*(user.list_all(JOBS, work.EVAL) for _ in jobs))
            await asyncio.gather(*(user.create(JOBS, job, work.EVAL) for job in jobs))

    async def delete_jobs(self, *jobs: str, namespace: str = work.EVAL) -> None:
        """Deletes Jobs and awaits that their pods are gone."""
        for name in jobs:
            await self.client.delete(JOBS, name, namespace)

        async def gone() -> bool:
            left = await self.client.list_all(PODS, namespace)
            return not any(owner_of(pod) in jobs for pod in left)

        await self.until(f"the pods of {', '.join(jobs)} to be gone", gone)

    async def finish(self, pod: Pod) -> None:
        """The pod's container ends well: what its kubelet would report."""
        patch = {"metadata": {"uid": pod.uid}, "status": {"phase": "Succeeded"}}
        with contextlib.suppress(ApiError):  # it is gone, or another of this name
            await self.client.patch(
                PODS, pod.name, patch, pod.namespace, how=Patch.STRATEGIC, subresource="status", attempts=3
            )

    # --- what is seen -------------------------------------------------------------------------------------------

    def pods(self, job: str) -> list[Pod]:
        """The pods of a Job as the watch has them, by index. No two Jobs of the story have one name."""
        found = [pod for pod in self._pods.store if pod.owner and pod.owner.name == job]
        return sorted(found, key=lambda pod: (pod.index, pod.name))

    async def read_pods(self, job: str, namespace: str = work.EVAL) -> list[objects.Pod]:
        """The pods of a Job, read from the API server now."""
        found = await self.client.list_all(PODS, namespace)
        return sorted((pod for pod in found if owner_of(pod) == job), key=lambda pod: pod.metadata.name)

    async def gang(self, job: str, namespace: str = work.EVAL) -> Gang | None:
        """The Gang of a Job, read from the API server now."""
        try:
            return await self.client.get(GANGS, names.gang_of_job(job), namespace)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def job(self, name: str, namespace: str = work.EVAL) -> objects.Job:
        """A Job, read from the API server now."""
        return await self.client.get(JOBS, name, namespace)

    async def queue(self, name: str) -> Queue:
        """A Queue, read from the API server now."""
        return await self.client.get(QUEUES, name)

    async def until(self, what: str, ready: Callable[[], Awaitable[T | None]], within: float = PATIENCE) -> T:
        """What `ready` reads from the API server, as soon as that is true; StoryError after `within` seconds."""
        deadline = time.monotonic() + within
        while not (found := await ready()):
            if time.monotonic() > deadline:
                raise StoryError(f"waited {within:.0f} s in vain for {what}")
            await asyncio.sleep(POLL)
        return found

    async def see(self, what: str, shown: Callable[[], bool], within: float = PATIENCE) -> None:
        """Returns as soon as the watch has shown it; StoryError after `within` seconds."""

        async def ready() -> bool:
            return shown()

        await self.until(what, ready, within)

    def show_pods(self, job: str) -> None:
        """A table: who runs where, who waits and why."""
        rows = [(pod.name, *_state(pod)) for pod in self.pods(job)]
        self.screen.table(("POD", "STATE", "NODE", "WHY"), rows)


def owner_of(pod: objects.Pod) -> str:
    """The name of what controls the pod."""
    owner = pod.metadata.controller
    return owner.name if owner else ""


def gated(pod: objects.Pod) -> bool:
    """Whether it stands at our gate."""
    return any(gate.name == names.GATE for gate in pod.spec.scheduling_gates)


def on_nodes(pods: list[objects.Pod]) -> list[str]:
    """The nodes of those that are on one."""
    return [pod.spec.node_name for pod in pods if pod.spec.node_name]


def _state(pod: Pod) -> tuple[str, str, str]:
    if pod.ended:
        return ("ended", pod.node, "")
    if pod.node:
        return ("on a node", pod.node, "")
    if pod.gated:
        return ("at the gate", "-", "Startgate holds it")
    words = pod.unschedulable.partition(" preemption:")[0]
    return ("pending", "-", f"kube-scheduler: {words}" if words else "")
