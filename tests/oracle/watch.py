"""Objects of one kind as a watch shows them, for whoever waits for something to be so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from startgate.kube.client import Client
from tests.oracle.case import Json

QUIET: Final = 3600.0
"""Seconds without a byte. Of some kinds there may be nothing new for long; a dead API server is noticed elsewhere."""


class Watched:
    """`objects` by "namespace/name" ("/name" without a namespace); `on_change` is called after each change."""

    def __init__(self, client: Client, path: str, on_change: Callable[[Json], None]) -> None:
        self.objects: dict[str, Json] = {}
        self._client = client
        self._path = path
        self._on_change = on_change

    async def run(self) -> None:
        """For ever. What was there before isn't shown."""
        listed = msgspec.json.decode(await self._client.request("GET", self._path))
        version = listed["metadata"]["resourceVersion"]
        while True:
            query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
            async with self._client.stream(self._path, query=query, idle=QUIET) as lines:
                async for line in lines:
                    event = msgspec.json.decode(line)
                    it = event["object"]
                    if event["type"] == "ERROR":
                        raise RuntimeError(f"The watch of {self._path} failed: {it}")
                    version = it["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._take(event["type"], it)

    def _take(self, change: str, it: Json) -> None:
        if change == "DELETED":
            self.objects.pop(key(it), None)
        else:
            self.objects[key(it)] = it
        self._on_change(it)


def key(it: Json) -> str:
    """How `Watched.objects` names it."""
    meta = it["metadata"]
    return f"{meta.get('namespace', '')}/{meta['name']}"
