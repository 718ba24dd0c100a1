"""One watch on its way through the gateway: lines that come from the API server, and go on by the rules.

Always holds: without a rule, each line goes on as it came, in order, at once; with one, none is lost but by the watch's
own end.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from collections.abc import AsyncIterator, Callable
from typing import Final

from tests.faults.calls import Call
from tests.faults.rules import Late, RuleBook, Silent, Twice

GONE: Final = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Failure",
    "message": "too old resource version, by a rule of the test",
    "reason": "Expired",
    "code": 410,
}


class Watching:
    """Takes what comes (`run`), gives what is due (`lines`)."""

    def __init__(self, call: Call, rules: RuleBook, clock: Callable[[], float]) -> None:
        self.call = call
        self._rules = rules
        self._clock = clock
        self._due: list[tuple[float, int, bytes]] = []
        self._count = 0
        self._last = 0.0
        self._ended = False
        self._news = asyncio.Event()

    def rules_changed(self) -> None:
        """What was held back may go now."""
        self._news.set()

    def expire(self) -> None:
        """The watch ends with an ERROR event that says 410, after what is due before."""
        self._put(json.dumps({"type": "ERROR", "object": GONE}).encode() + b"\n", self._last)
        self.end()

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._news.set()

    async def run(self, chunks: AsyncIterator[bytes]) -> None:
        """Takes in what the API server sends, to its end."""
        rest = b""
        try:
            async for chunk in chunks:
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    self._take(line + b"\n")
        finally:
            self.end()

    def _take(self, line: bytes) -> None:
        if self._ended:
            return
        actions = self._rules.for_watch(self.call)
        late = sum(action.seconds for action in actions if isinstance(action, Late))
        self._last = max(self._last, self._clock() + late)
        self._put(line, self._last)
        for action in actions:
            if isinstance(action, Twice):
                self._put(line, self._last + action.later)

    def _put(self, line: bytes, due: float) -> None:
        self._count += 1
        heapq.heappush(self._due, (due, self._count, line))
        self._news.set()

    async def lines(self) -> AsyncIterator[bytes]:
        """What is to go on, when it is to; many lines at once where many are due."""
        while True:
            self._news.clear()
            held = any(isinstance(action, Silent) for action in self._rules.for_watch(self.call))
            now = self._clock()
            ready = b""
            while not held and self._due and self._due[0][0] <= now:
                ready += heapq.heappop(self._due)[2]
            if ready:
                yield ready
                continue
            if self._ended and not self._due:
                return
            wait = None if held or not self._due else max(0.0, self._due[0][0] - now)
            try:
                await asyncio.wait_for(self._news.wait(), wait)
            except TimeoutError:
                continue
