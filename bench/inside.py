"""What the controller's memory holds of a large cluster, without one: its own reflectors, fed by a client that answers
from `bench.population`.

`python -m bench.inside` is a process of its own, so that nothing else is in its memory, and prints one JSON object.
Always holds: what is read goes the way of what the API server sends, pages and all.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import linecache
import re
import sys
import time
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

import controller.main  # noqa: F401  (what the program has loaded before it reads anything)
from bench import population
from controller.cache import Cache
from controller.gangs import Gangs
from startgate.engine.cycle import decide
from startgate.kube import kinds
from startgate.kube.client import Client
from startgate.kube.reflector import Reflector

NOW: Final = 1_800_000_000.0
VERSION: Final = "1000000"

Listing = Callable[[], Iterator[population.Manifest]]


class Sizes(msgspec.Struct):
    """What `python -m bench.inside` prints. Memory in KiB."""

    pods: int
    nodes: int
    before: int
    """Resident before anything was read."""
    with_nodes: int
    after: int
    """With everything, gangs observed, and one decision made."""
    peak: int
    """The most while it was read."""
    seconds: float
    """CPU that reading took, without making the objects up."""


class Canned(Client):
    """Answers lists from listings, in pages; a watch of it never says anything."""

    def __init__(self, listings: Mapping[str, Listing]) -> None:
        self._listings = listings
        self._open: dict[str, Iterator[population.Manifest]] = {}
        self.spent = 0.0
        """CPU seconds for making up what was answered."""

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        began = time.process_time()
        query = more["query"]
        cursor = query.get("continue")
        items = self._open[cursor] if cursor else self._listings.get(path, lambda: iter(()))()
        page = list(itertools.islice(items, int(query["limit"])))
        for each in page:
            each["metadata"]["resourceVersion"] = VERSION
        meta = {"resourceVersion": VERSION}
        if len(page) == int(query["limit"]):
            meta["continue"] = cursor or path
            self._open[meta["continue"]] = items
        body = msgspec.json.encode({"metadata": meta, "items": page})
        self.spent += time.process_time() - began
        return body

    @asynccontextmanager
    async def stream(self, path: str, **more: Any) -> AsyncGenerator[AsyncIterator[bytes]]:
        async def silence() -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

        yield silence()


def listings(jobs: int, deployments: int, nodes: int, *, named: bool = False) -> dict[str, Listing]:
    def pods() -> Iterator[population.Manifest]:
        yield from population.pods_of_jobs(jobs, nodes)
        yield from population.pods_of_deployments(deployments, nodes, named=named)

    namespace = {"metadata": {"name": population.NAMESPACE, "labels": {"kubernetes.io/metadata.name": "scale"}}}
    return {
        kinds.NODES.path(): lambda: population.nodes(nodes),
        kinds.JOBS.path(): lambda: population.jobs(jobs),
        kinds.GANGS.path(): lambda: population.gangs(jobs),
        kinds.QUEUES.path(): lambda: iter([population.queue()]),
        kinds.NAMESPACES.path(): lambda: iter([namespace]),
        kinds.PODS.path(): pods,
    }


async def measure(jobs: int, deployments: int, nodes: int, *, named: bool, trace: bool) -> Sizes:
    client = Canned(listings(jobs, deployments, nodes, named=named))
    cache = Cache(client, lambda: None)
    gangs = Gangs(cache)
    gc.collect()
    before = resident("self", "VmRSS")
    if trace:
        tracemalloc.start()
    began = time.process_time()
    async with asyncio.TaskGroup() as group:
        following = [group.create_task(cache.nodes.run())]
        await cache.nodes.wait_synced()
        gc.collect()
        with_nodes = resident("self", "VmRSS")
        others = [each for each in cache.reflectors if each is not cache.nodes]
        following += [group.create_task(each.run()) for each in others]
        for each in others:
            await each.wait_synced()
        gc.collect()
        gc.freeze()
        for uid in cache.take_dirty():
            gangs.refresh(uid, NOW)
        plan = decide(gangs.world(NOW), NOW)
        seconds = time.process_time() - began - client.spent
        assert not plan.go
        _complain_of_missing(cache.pods, (jobs + deployments) * population.SIZE)
        _complain_of_missing(cache.nodes, nodes)
        for task in following:
            task.cancel()
    if trace:
        _explain(len(cache.pods.store))
    return Sizes(
        len(cache.pods.store), nodes, before, with_nodes, resident("self", "VmRSS"), resident("self", "VmHWM"), seconds
    )


def _complain_of_missing(reflector: Reflector[Any, Any], wanted: int) -> None:
    if len(reflector.store) != wanted or reflector.store.unreadable:
        raise RuntimeError(f"{len(reflector.store)} {reflector.kind.plural} are held, of {wanted}")


def resident(pid: int | str, field: str) -> int:
    """A process's memory, in KiB: VmRSS, or VmHWM for the most that it has had."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def _explain(pods: int) -> None:
    """Where what is held was allocated, in bytes for each pod, on standard error."""
    gc.collect()
    snapshot = tracemalloc.take_snapshot()
    statistics = snapshot.statistics("lineno")
    total = sum(each.size for each in statistics)
    print(f"{total / pods:8.0f} bytes a pod, of which", file=sys.stderr)
    for each in statistics[:40]:
        frame = each.traceback[0]
        where = Path(frame.filename)
        line = linecache.getline(frame.filename, frame.lineno).strip()
        print(f"{each.size / pods:8.0f}  {where.parent.name}/{where.name}:{frame.lineno}  {line[:90]}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.inside", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--deployments", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--trace", action="store_true", help="say where what is held was allocated (slow)")
    parser.add_argument("--named", action="store_true", help="pods of Deployments have a label each that no other has")
    options = parser.parse_args()
    sizes = asyncio.run(
        measure(options.jobs, options.deployments, options.nodes, named=options.named, trace=options.trace)
    )
    print(msgspec.json.encode(sizes).decode())


if __name__ == "__main__":
    main()
