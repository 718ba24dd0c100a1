"""A Service in front of several replicas of a program: one TCP address, each connection to one that is ready.

Stands in for kube-proxy, which can't point at processes of this machine. What always holds: a new connection goes to
a replica that said yes when its /readyz was last asked, in turn; one that refuses it is out until it says yes again,
and the next one gets it; a connection that is open stays with its replica, ready or not, and ends when that ends it.
Where nobody is ready, a connection is reset. TLS passes through it untouched.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from localcluster.ports import LOOPBACK

PROBE_EVERY: Final = 0.2
"""Seconds. The Deployment's own probe looks every 5."""
PROBE_TIMEOUT: Final = 1.0


@dataclass(eq=False)
class Endpoint:
    """One replica: where it serves, and where it says whether it is ready."""

    port: int
    health_port: int
    ready: bool = False
    taken: int = 0
    """Connections that went there."""
    open: set[asyncio.StreamWriter] = field(default_factory=set)
    """Our side of those that are open."""


class Balancer:
    """Listens on this port of loopback for as long as its context lasts."""

    def __init__(self, port: int, endpoints: Iterable[Endpoint]) -> None:
        self.port = port
        self.endpoints = list(endpoints)
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, LOOPBACK, self.port)
        for endpoint in self.endpoints:
            self._spawn(asyncio.create_task(self._probe(endpoint)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for endpoint in self.endpoints:
            for writer in endpoint.open:
                writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait(self, ready: int) -> None:
        """Returns when exactly so many replicas are ready."""
        while sum(endpoint.ready for endpoint in self.endpoints) != ready:
            self._changed.clear()
            await self._changed.wait()

    def _spawn(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _probe(self, endpoint: Endpoint) -> None:
        while True:
            self._mark(endpoint, ready=await _says_yes(endpoint.health_port))
            await asyncio.sleep(PROBE_EVERY)

    def _mark(self, endpoint: Endpoint, *, ready: bool) -> None:
        if endpoint.ready != ready:
            endpoint.ready = ready
            self._changed.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while candidates := [endpoint for endpoint in self.endpoints if endpoint.ready]:
            self._turn += 1
            endpoint = candidates[self._turn % len(candidates)]
            try:
                there_reader, there_writer = await asyncio.open_connection(LOOPBACK, endpoint.port)
            except OSError:
                self._mark(endpoint, ready=False)
                continue
            endpoint.taken += 1
            endpoint.open |= {writer, there_writer}
            self._spawn(asyncio.create_task(_pass(endpoint, reader, there_writer)))
            self._spawn(asyncio.create_task(_pass(endpoint, there_reader, writer)))
            return
        writer.transport.abort()


async def _pass(endpoint: Endpoint, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """One direction, until its end, which is passed on: an end as an end, a reset as a reset."""
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        sink.close()
    except ConnectionError:
        sink.transport.abort()
    finally:
        endpoint.open.discard(sink)


async def _says_yes(port: int) -> bool:
    """Whether /readyz answers 200, as a kubelet would see it."""
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(PROBE_TIMEOUT):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    return False
