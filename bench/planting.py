"""Thirty thousand running pods in seconds: objects written straight into etcd, in the form in which they are stored.

Through the API server it would take minutes, and statuses and managed fields would have to come from kubelets that
aren't there. Always holds: what is planted, the API server reads, lists and tells of like anything that it has written.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Iterable
from typing import Final

import aiohttp
import msgspec

from bench.population import Manifest

TOGETHER: Final = 100
"""Objects in one transaction; etcd takes 128 operations (--max-txn-ops) and 1.5 MiB."""

DIRECTORIES: Final = {"Node": "minions", "Gang": "startgate.dev/gangs"}
"""Where the API server keeps what isn't below its plural."""


async def plant(etcd: str, objects: Iterable[Manifest]) -> int:
    """Writes all of them; how many."""
    planted = 0
    left = iter(objects)
    async with aiohttp.ClientSession() as session:
        while some := list(itertools.islice(left, TOGETHER)):
            async with session.post(f"{etcd}/v3/kv/txn", data=_transaction(some)) as answer:
                if answer.status != 200:
                    raise RuntimeError(f"etcd took no objects: {await answer.text()}")
            planted += len(some)
            await asyncio.sleep(0)
    return planted


def _transaction(objects: Iterable[Manifest]) -> bytes:
    puts = [
        {"requestPut": {"key": _base64(_key(each)), "value": _base64(msgspec.json.encode(each))}} for each in objects
    ]
    return msgspec.json.encode({"success": puts})


def _key(manifest: Manifest) -> bytes:
    kind, meta = manifest["kind"], manifest["metadata"]
    directory = DIRECTORIES.get(kind, f"{kind.lower()}s")
    return "/".join(filter(None, ("/registry", directory, meta.get("namespace"), meta["name"]))).encode()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
