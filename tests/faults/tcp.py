"""Network faults on purpose: a TCP proxy before a server, which can fall silent, cut and refuse.

TLS passes through it untouched, so what is behind it is the real server.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import yaml


class Proxy:
    """Listens on loopback for as long as its context lasts; `port` is where."""

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 443)
        self._writers: set[asyncio.StreamWriter] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.refusing = False
        self.accepted = 0

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def silence(self) -> None:
        """Not a byte passes from now on, in either direction; connections stay open, new ones are taken."""
        self._passing.clear()

    def restore(self) -> None:
        """All passes again, also what was held back."""
        self._passing.set()

    def cut(self) -> None:
        """Resets all connections that are open now."""
        for writer in self._writers:
            writer.transport.abort()

    def kubeconfig(self, original: Path, folder: Path) -> Path:
        """The same configuration by way of this proxy."""
        config = yaml.safe_load(original.read_text())
        for cluster in config["clusters"]:
            cluster["cluster"]["server"] = f"https://127.0.0.1:{self.port}"
        path = folder / f"by-proxy-{self.port}"
        path.write_text(yaml.safe_dump(config))
        return path

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refusing:
            writer.transport.abort()
            return
        self._writers.add(writer)
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        if writer.is_closing():  # cut meanwhile
            there_writer.transport.abort()
            return
        self._writers.add(there_writer)
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._pass(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                await self._passing.wait()
                sink.write(data)
                await sink.drain()
        self._writers.discard(sink)
        sink.close()
