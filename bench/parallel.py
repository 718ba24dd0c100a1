"""Many requests, a few at a time: what the bench asks of the API server is always bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

WIDTH: Final = 32
"""Requests of one sort under way together, as in the published measurements."""

T = TypeVar("T")


async def in_parallel(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Awaits work(item) for each item, in their order, at most WIDTH of them at once. Stops at the first failure."""
    left = iter(items)

    async def one_after_the_other() -> None:
        for item in left:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(WIDTH):
            group.create_task(one_after_the_other())
