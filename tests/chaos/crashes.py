"""Kills our programs at their writes, before the API server hears of one or after it has carried it out.

Which write is the last is drawn as writes come: rarely of the kinds that were chosen often, readily of those that
weren't, so that all kinds get their crashes however many writes they have. What was killed starts again at once, as a
kubelet would start it; of controllers it is drawn whether the same process goes on (it takes its own lease) or the
other replica takes over. Always holds: one crash at a time; and whoever waits for `all_up` has all programs back.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Final, NamedTuple

from localcluster.deploy import Program, Startgate
from startgate.kube.client import Client
from startgate.kube.election import LEASES
from startgate.kube.errors import ApiError
from startgate.model import names
from tests.behaviour.kit import eventually
from tests.faults import Call, Cut, Gateway

BETWEEN: Final = "no write"
"""For a program that is killed from outside, whatever it does."""

READILY: Final = 0.4
"""The chance of a write to be the last where its kind was chosen least."""

SELDOM: Final = 0.04
"""The same at least, however often it was chosen."""

LOST: Final = 10.0
"""Seconds after which a write that was drawn and never came to its crash is given up."""

RESTS: Final = (0.0, 0.0, 0.5, 2.0)
"""Seconds after a crash without another one, as drawn: some hit what comes back, some hit what it does later."""

LOOKS_EACH: Final = 0.05
LONG: Final = 60.0
TAKES_OVER: Final = 8.0
"""Seconds that the other replica has to take a lease that was given up, before the first one is started again."""


class Point(NamedTuple):
    """Where a program was killed."""

    program: str
    kind: str
    after: bool


class Crashes:
    """See the module. `controllers`: two replicas; of the webhook there is one."""

    def __init__(
        self, gateway: Gateway, startgate: Startgate, controllers: Sequence[Program], client: Client, random: Random
    ) -> None:
        self.counts: Counter[Point] = Counter()
        self.handed_over = 0
        """How many of them were followed by another replica."""
        self._gateway = gateway
        self._client = client
        self._programs: Mapping[str, Program] = {each.name: each for each in (*controllers, startgate.webhook)}
        self._cluster = startgate.cluster
        self._controllers = [each.name for each in controllers]
        self._random = random
        self._left = 0
        self._rests_until = 0.0
        self._drawn: tuple[Call, Point, float] | None = None
        self._down: set[str] = set()
        self._seen: set[Point] = set()

    @property
    def many(self) -> int:
        """So many until now."""
        return sum(self.counts.values())

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Kills (once `arm` has said how many), and starts again whatever has ended."""
        tasks = [asyncio.create_task(self._keep(program)) for program in self._programs.values()]
        rules = [
            self._gateway.on(lambda call, after=after: self._hits(call, after=after), Cut(after, then=self._strike))  # type: ignore[misc]
            for after in (True, False)  # the newest is asked first: that draws
        ]
        try:
            yield
        finally:
            for rule in rules:
                rule.take_away()
            await self.all_up()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def arm(self, most: int) -> None:
        """From now on so many writes at most are somebody's last."""
        self._left = most

    def kill(self, program: Program) -> None:
        """Now, whatever it does; it starts again."""
        if program.name not in self._down:
            self._end(program.name, Point(_role(program.name), BETWEEN, after=False))

    async def all_up(self) -> None:
        """Ends the killing; returns when all programs are ready, and the controllers have a leader."""
        self._left = 0
        await eventually(self._quiet, bool, "whoever was killed is back", LONG)
        for program in self._programs.values():
            await program.wait_ready()
        await eventually(self._holder, bool, "a controller leads", LONG)

    async def _quiet(self) -> bool:
        return not self._down and not self._under_way()

    # --- which write ----------------------------------------------------------------------------------------------

    def _hits(self, call: Call, *, after: bool) -> bool:
        """Whether the program dies of this call; asked twice for each, once for either side of it."""
        if not call.write or call.program not in self._programs or call.program in self._down:
            return False
        ready = self._left > 0 and time.monotonic() > self._rests_until
        if not after and ready and not self._under_way():
            self._draw(call)
        return self._drawn is not None and self._drawn[0] is call and self._drawn[1].after is after

    def _under_way(self) -> bool:
        if self._drawn is not None and time.monotonic() - self._drawn[2] > LOST:
            self._drawn = None
        return self._drawn is not None

    def _draw(self, call: Call) -> None:
        points = [Point(_role(call.program), call.kind, after) for after in (False, True)]
        self._seen.update(points)
        point = min(points, key=lambda each: (self.counts[each], self._random.random()))
        least = min(self.counts[each] for each in self._seen)
        chance = READILY * ((1 + least) / (1 + self.counts[point])) ** 2
        if self._random.random() < max(chance, SELDOM):
            self._drawn = (call, point, time.monotonic())

    def _strike(self, call: Call) -> None:
        if self._drawn is not None and self._drawn[0] is call:
            _, point, _ = self._drawn
            self._drawn = None
            self._left -= 1
            self._end(call.program, point)

    def _end(self, name: str, point: Point) -> None:
        self._down.add(name)
        self._rests_until = time.monotonic() + self._random.choice(RESTS)
        os.kill(self._programs[name].pid, signal.SIGKILL)
        self.counts[point] += 1

    # --- what comes after -------------------------------------------------------------------------------------------

    async def _keep(self, program: Program) -> None:
        """Starts it whenever it has ended."""
        while True:
            if program.name in self._down:
                await self._cluster.stop_process(program.name)  # it is dead: this takes it off the list
                if program.name in self._controllers and self._random.random() < 0.5:
                    await self._hand_over(program.name)
                await program.start()
                self._down.discard(program.name)
            elif program.name not in self._cluster.pids:
                await program.start()
            await asyncio.sleep(LOOKS_EACH)

    async def _hand_over(self, dead: str) -> None:
        """The other replica leads next. That the holder is dead is known: nobody waits until its lease has passed."""
        held = await self._holder()
        if not held.startswith(f"{dead}_"):
            return  # it didn't lead
        given_up = {"holderIdentity": "", "leaseDurationSeconds": 1}
        with suppress(ApiError):
            await self._client.patch(LEASES, names.LEASE, {"spec": given_up}, names.SYSTEM_NAMESPACE)
        end = time.monotonic() + TAKES_OVER
        while time.monotonic() < end:
            if await self._holder():
                self.handed_over += 1
                return
            await asyncio.sleep(LOOKS_EACH)

    async def _holder(self) -> str:
        try:
            lease = await self._client.get(LEASES, names.LEASE, names.SYSTEM_NAMESPACE)
        except ApiError as error:
            if error.not_found:
                return ""
            raise
        return lease.spec.holder_identity or ""


def _role(program: str) -> str:
    """Whichever replica it is."""
    return program.removeprefix("startgate-").rpartition("-")[0]
