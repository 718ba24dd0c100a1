"""A large cluster: what a pod costs the controller in memory, and how soon it decides after a start.

`python -m bench.scale`; what is measured and how to read it is in bench/README.md. Always holds: the two programs that
are compared are started in turn, on the same cluster, each with the other one stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from bench import population
from bench.costs import Cpu
from bench.inside import Sizes, resident
from bench.parallel import in_parallel
from bench.planting import plant
from localcluster.cluster import Cluster
from localcluster.deploy import Startgate
from localcluster.errors import ClusterError
from startgate.kube import kinds
from startgate.kube.client import Client
from startgate.kube.election import LEASES
from startgate.kube.reflector import Reflector
from startgate.kube.store import Change
from startgate.model import names
from startgate.model.pods import Pod, pod_of

MEMORY_MARK: Final = 6000
"""Bytes for each pod."""
START_MARK: Final = 2.0
"""Times kube-scheduler's own start."""

TRIAL: Final = "trial"
"""The namespace in which something waits for the program that starts."""
SCHEDULER: Final = "kube-scheduler"
SERVER: Final = "kube-apiserver"
FLAGS: Final = {
    # As it ships: it elects a leader too. (`localcluster` saves itself that.)
    SCHEDULER: ["--leader-elect=true"],
    # What runs is planted, and nobody else has to do anything with it.
    "kube-controller-manager": ["--controllers=serviceaccount-controller"],
}
WITHIN: Final = 120.0
SETTLE: Final = 3.0
"""Seconds after which what is resident counts."""


class Start(msgspec.Struct):
    """One start: seconds from the process's start until what waited for it is let go, one pod bound by kube-scheduler
    or all gates of a gang lifted by the controller."""

    program: str
    seconds: float
    cpu: float
    """Seconds of CPU of the process until then."""
    server: float
    """The same of the API server, meanwhile."""
    resident: int
    """KiB, some seconds later."""
    peak: int


class Scale(msgspec.Struct):
    """All figures, as they are in the JSON file."""

    inside: Sizes
    unlike: Sizes
    empty: int
    """KiB that the controller has resident on a cluster without nodes and pods."""
    starts: list[Start]
    crashed: list[Start]
    """Starts at once after SIGKILL: the lease of the one before is still running."""


class Trials:
    """The cluster, and what happens to the pods of the namespace `trial`."""

    def __init__(self, cluster: Cluster, startgate: Startgate, client: Client) -> None:
        self._cluster = cluster
        self._controller = startgate.controller
        self._client = client
        self._changed = asyncio.Event()
        self._number = 0
        self.pods = Reflector(client, kinds.PODS, view=pod_of, namespace=TRIAL, on_change=self._note)

    def _note(self, _: Change[Pod]) -> None:
        self._changed.set()

    async def scheduler(self) -> Start:
        """Starts kube-scheduler while a pod waits for it."""
        name = self._name()
        pod = population.pod_of_job(name, 0)
        pod["metadata"] = {"name": name}
        await self._client.create(kinds.PODS, pod, TRIAL)
        return await self._start(SCHEDULER, self._cluster.start_process(SCHEDULER), lambda pod: pod.bound, 1)

    async def controller(self) -> Start:
        """Starts the controller while a gang waits for it."""
        name = self._name()
        job = population.job(name)
        job["metadata"] = {"name": name, "labels": job["metadata"]["labels"]}
        del job["spec"]["selector"], job["spec"]["template"]["metadata"]
        made = await self._client.create(kinds.JOBS, job, TRIAL)

        async def make(index: int) -> None:
            pod = population.pod_of_job(name, index)
            meta = pod["metadata"]
            owner = meta["ownerReferences"][0] | {"uid": made.metadata.uid}
            pod["metadata"] = {key: meta[key] for key in ("name", "labels", "annotations")} | {
                "ownerReferences": [owner]
            }
            pod["spec"]["schedulingGates"] = [{"name": names.GATE}]
            await self._client.create(kinds.PODS, pod, TRIAL)

        await in_parallel(range(population.SIZE), make)
        return await self._start(
            self._controller.name, self._start_controller(), lambda pod: not pod.gated, population.SIZE
        )

    async def stop(self, program: str, *, crash: bool = False) -> None:
        """Stops it, and takes its lease away unless it is to look like a crash."""
        if crash:
            os.kill(self._cluster.pids[program], signal.SIGKILL)
        await self._cluster.stop_process(program)
        if not crash:
            await self.take_leases()

    async def take_leases(self) -> None:
        await self._client.delete(LEASES, SCHEDULER, "kube-system")
        await self._client.delete(LEASES, names.LEASE, names.SYSTEM_NAMESPACE)

    async def clear(self) -> None:
        """Takes away what the last trial has left."""

        async def remove(pod: Pod) -> None:
            await self._client.delete(kinds.PODS, pod.name, TRIAL, grace=0)

        await in_parallel(list(self.pods.store), remove)
        for job in await self._client.list_all(kinds.JOBS, TRIAL):
            await self._client.delete(kinds.JOBS, job.metadata.name, TRIAL)
        for gang in await self._client.list_all(kinds.GANGS, TRIAL):
            await self._client.delete(kinds.GANGS, gang.metadata.name, TRIAL)
        await self._until(lambda: not len(self.pods.store))

    async def _start_controller(self) -> None:
        await self._controller.start()
        await self._controller.wait_ready(WITHIN)

    async def _start(self, program: str, starting: Awaitable[None], done: Callable[[Pod], bool], pods: int) -> Start:
        await self._until(lambda: len(self.pods.store) == pods)
        before = self._cpu(SERVER)
        began = time.perf_counter()
        ready = asyncio.ensure_future(starting)
        await self._until(lambda: all(done(pod) for pod in self.pods.store))
        seconds = time.perf_counter() - began
        cpu, server = self._cpu(program), self._cpu(SERVER) - before
        await ready
        await asyncio.sleep(SETTLE)
        pid = self._cluster.pids[program]
        return Start(program, seconds, cpu, server, resident(pid, "VmRSS"), resident(pid, "VmHWM"))

    def _cpu(self, program: str) -> float:
        return Cpu.read({program: self._cluster.pids[program]}).processes[program]

    async def _until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN):
            while not done():
                self._changed.clear()
                await self._changed.wait()

    def _name(self) -> str:
        self._number += 1
        return f"waiting-{self._number}"


@contextlib.asynccontextmanager
async def ground() -> AsyncIterator[tuple[Cluster, Startgate, Client]]:
    """A control plane with Startgate installed; of what is compared nothing runs yet."""
    async with Cluster.start(flags=FLAGS, progress=say) as cluster:
        await cluster.stop_process("kwok")
        await cluster.stop_process(SCHEDULER)
        startgate = await Startgate.install(cluster)
        await startgate.webhook.start()
        await startgate.webhook.wait_ready()
        await startgate.wait_effective()
        async with await Client.connect(kubeconfig=str(cluster.kubeconfig)) as client:
            for name in (TRIAL, population.NAMESPACE):
                namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
                await client.create(kinds.NAMESPACES, namespace)
            await client.create(kinds.QUEUES, population.queue())
            yield cluster, startgate, client
        await startgate.down()


async def fill(cluster: Cluster, client: Client, jobs: int, deployments: int, nodes: int) -> None:
    """Plants everything, and returns when the API server has it."""
    await plant(cluster.etcd, population.nodes(nodes))
    await plant(cluster.etcd, population.jobs(jobs))
    await plant(cluster.etcd, population.gangs(jobs))
    planted = await plant(cluster.etcd, population.pods_of_jobs(jobs, nodes))
    planted += await plant(cluster.etcd, population.pods_of_deployments(deployments, nodes))
    deadline = time.monotonic() + WITHIN
    while (there := await _count(client, kinds.PODS)) != planted:
        if time.monotonic() > deadline:
            raise ClusterError(f"The API server tells of {there} of {planted} pods.")
        await asyncio.sleep(1.0)


async def _count(client: Client, kind: kinds.Kind[Any]) -> int:
    body = await client.request("GET", kind.path(population.NAMESPACE), query={"limit": "1"})
    page = msgspec.json.decode(body)
    return len(page["items"] or ()) + int(page["metadata"].get("remainingItemCount", 0))


async def measure(options: argparse.Namespace, inside: Sizes, unlike: Sizes) -> Scale:
    sizes = options.jobs, options.deployments, options.nodes
    async with ground() as (cluster, startgate, client):
        trials = Trials(cluster, startgate, client)
        following = asyncio.create_task(trials.pods.run())
        controller = startgate.controller
        await controller.start()
        await controller.wait_ready()
        await asyncio.sleep(SETTLE)
        empty = resident(controller.pid, "VmRSS")
        await trials.stop(controller.name)
        say("Planting.")
        await fill(cluster, client, *sizes)
        await trials.take_leases()
        results = Scale(inside, unlike, empty, [], [])
        programs = (trials.scheduler, trials.controller)
        for _ in range(options.runs):
            for program in programs:
                results.starts.append(await _trial(trials, program))
        for program in programs:
            await _trial(trials, program, crash=True)
            results.crashed.append(await _trial(trials, program))
        following.cancel()
        return results


async def _trial(trials: Trials, program: Callable[[], Awaitable[Start]], *, crash: bool = False) -> Start:
    """One start, and the end of it."""
    made = await program()
    held = f"{made.resident / 1024:.0f} MiB, at most {made.peak / 1024:.0f} MiB"
    say(f"{made.program}: {made.seconds:.2f} s ({made.cpu:.2f} s CPU, API server {made.server:.2f}), {held}")
    await trials.stop(made.program, crash=crash)
    await trials.clear()
    return made


def look_inside(*options: str) -> Sizes:
    """`bench.inside`, in a process of its own."""
    child = subprocess.run([sys.executable, "-m", "bench.inside", *options], stdout=subprocess.PIPE, check=False)
    if child.returncode != 0:
        raise ClusterError("bench.inside has failed; what it says stands above.")
    return msgspec.json.decode(child.stdout, type=Sizes)


def say(sentence: str) -> None:
    """Progress; the results alone go to standard output."""
    sys.stderr.write(f"{sentence}\n")


def memory(inside: Sizes, unlike: Sizes, scale: Scale | None) -> Iterator[str]:
    """The figures of memory, each with what it is held against."""
    yield f"Memory of the controller with {inside.pods:,} pods on {inside.nodes:,} nodes, in bytes for each pod"
    rows = [
        ("in a process of its own", inside.after - inside.before),
        ("  the most while it reads", inside.peak - inside.before),
        ("  without what the nodes take", inside.after - inside.with_nodes),
        ("  no two pods alike", unlike.after - unlike.before),
    ]
    if scale is not None:
        started = [each for each in scale.starts if each.program != SCHEDULER]
        rows += [
            ("the program, on a cluster", max(each.resident for each in started) - scale.empty),
            ("  the most while it reads", max(each.peak for each in started) - scale.empty),
        ]
    for what, kib in rows:
        held = kib * 1024 / inside.pods
        yield f"  {what:32} {held:7,.0f}   {_mark(held, MEMORY_MARK, f'{MEMORY_MARK:,}')}"


def starts(scale: Scale) -> Iterator[str]:
    """Each start beside kube-scheduler's in the same round, and the ratio of the medians."""
    yield "From the process's start until what waits is let go, in seconds (CPU: its own + the API server's)"
    yield f"  {'':10}{'kube-scheduler':>26}{'controller':>26}   ratio"
    ours = [each for each in scale.starts if each.program != SCHEDULER]
    theirs = [each for each in scale.starts if each.program == SCHEDULER]
    for number, (one, other) in enumerate(zip(theirs, ours, strict=True), 1):
        yield _row(f"run {number}", one, other)
    yield _row("crashed", *scale.crashed)
    ratio = _median(ours) / _median(theirs)
    mark = _mark(ratio, START_MARK, f"{START_MARK:g} times kube-scheduler's")
    yield f"  medians: {_median(ours):.2f} / {_median(theirs):.2f} = {ratio:.2f}   {mark}"


def _row(name: str, one: Start, other: Start) -> str:
    cells = (f"{each.seconds:.2f} ({each.cpu:.2f} + {each.server:.2f})" for each in (one, other))
    return f"  {name:10}" + "".join(f"{cell:>26}" for cell in cells) + f"   {other.seconds / one.seconds:5.2f}"


def _median(of: Sequence[Start]) -> float:
    return statistics.median(each.seconds for each in of)


def _mark(figure: float, mark: float, words: str) -> str:
    return f"{'met' if figure <= mark else 'MISSED'}: at most {words}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="gangs of 20 that run (default: %(default)s)")
    parser.add_argument("--deployments", type=int, default=500, help="of 20 pods each (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=5000, help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=3, help="starts of each program (default: %(default)s)")
    parser.add_argument("--inside", action="store_true", help="without a cluster: memory in a process of its own only")
    parser.add_argument("--output", type=Path, help="a file for all figures, as JSON")
    options = parser.parse_args()
    try:
        sizes = [f"--jobs={options.jobs}", f"--deployments={options.deployments}", f"--nodes={options.nodes}"]
        inside = look_inside(*sizes)
        pods = options.jobs + options.deployments
        unlike = look_inside("--named", "--jobs=0", f"--deployments={pods}", f"--nodes={options.nodes}")
        scale = None if options.inside else uvloop.run(measure(options, inside, unlike))
    except (ClusterError, TimeoutError) as problem:
        say(f"The bench could not go on: {problem}")
        return 1
    except KeyboardInterrupt:
        say("Stopped; nothing is left running.")
        return 130
    print("\n".join([*memory(inside, unlike, scale), *(starts(scale) if scale else ())]))
    if options.output:
        options.output.write_bytes(msgspec.json.format(msgspec.json.encode(scale or [inside, unlike]), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
