"""What breaks: one thing at a time, drawn from the seed, 20 to 60 s apart.

Always holds: when `strike` returns, what it did has ended, but for programs that are on their way back.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final

from localcluster.deploy import Program
from localcluster.errors import ClusterError
from startgate.kube.client import Client
from startgate.kube.election import LEASES
from startgate.kube.errors import ApiError
from startgate.model import names
from tests.faults import Cut, Delay, Expire, Gateway, Hang, Late, Refuse, Silent, Twice, which
from tests.faults.calls import Call
from tests.faults.rules import Action

WATCHED: Final = ("pods", "jobs", "gangs", "nodes", "queues")
AWAY: Final = 20.0
"""Seconds without the API server, and asleep: more than a lease."""

A_MOMENT: Final = 5.0
"""The same that a leader survives."""

OFTEN: Final = 0.6
"""The share of deaths, while there are any."""


class Harm:
    """See the module. `counts`: what was done, how often."""

    def __init__(
        self, gateway: Gateway, controllers: Sequence[Program], webhook: Program, client: Client, random: Random
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._gateway = gateway
        self._controllers = controllers
        self._webhook = webhook
        self._client = client
        self._random = random
        self._bags: dict[bool, list[Callable[[], Awaitable[None]]]] = {True: [], False: []}
        """By whether they are deadly: those whose turn comes."""

    async def strike(self, *, deadly: bool) -> str:
        """Does one of them, to its end; `deadly`: perhaps one that a program doesn't survive. What it was."""
        harm = self._draw(deadly and self._random.random() < OFTEN)
        await harm()
        what = harm.__name__
        self.counts[what] += 1
        return what

    def _draw(self, deadly: bool) -> Callable[[], Awaitable[None]]:
        """Each had its turn before any has its second."""
        bag = self._bags[deadly]
        if not bag:
            bag += self._deaths() if deadly else self._nuisances()
            self._random.shuffle(bag)
        return bag.pop()

    def _deaths(self) -> list[Callable[[], Awaitable[None]]]:
        return [self.away, self.only_leases_fail, self.leader_killed, self.webhook_killed, self.leader_sleeps]

    def _nuisances(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            *(self.refused, self.cut_at_writes, self.unanswered, self.slow, self.silent_watch),
            *(self.late_watches, self.too_old, self.connections_cut, self.away_for_a_moment, self.dozes),
        ]

    # --- between the programs and the API server ------------------------------------------------------------------

    async def refused(self) -> None:
        status = self._random.choice((409, 422, 429, 500, 503))
        await self._some_writes(Refuse(status, retry_after=1 if status == 429 else None))

    async def cut_at_writes(self) -> None:
        await self._some_writes(Cut(after=self._random.random() < 0.7))

    async def unanswered(self) -> None:
        await self._some_writes(Hang(after=self._random.random() < 0.5))

    async def slow(self) -> None:
        await self._some_writes(Delay(self._random.uniform(0.2, 3), lands=True))

    async def _some_writes(self, action: Action) -> None:
        share = self._random.uniform(0.2, 1)
        which_ones = Random(self._random.random())  # its own, so that what breaks next is the seed's, not the load's

        def hit(call: Call) -> bool:
            return bool(call.write) and call.kind != "lease" and which_ones.random() < share

        with self._gateway.on(hit, action):
            await asyncio.sleep(self._random.uniform(3, 15))

    async def silent_watch(self) -> None:
        with self._gateway.on(which(verb="watch", what=self._random.choice(WATCHED)), Silent()):
            await asyncio.sleep(AWAY)

    async def late_watches(self) -> None:
        watch = which(verb="watch", what=self._random.choice(WATCHED))
        with self._gateway.on(watch, Late(self._random.uniform(0.2, 3))), self._gateway.on(watch, Twice(1.0)):
            await asyncio.sleep(AWAY)

    async def too_old(self) -> None:
        self._gateway.expire()
        with self._gateway.on(which(verb="list"), Expire(), times=3):
            await asyncio.sleep(A_MOMENT)

    async def connections_cut(self) -> None:
        self._gateway.cut()

    async def away_for_a_moment(self) -> None:
        with self._gateway.outage(silent=self._random.random() < 0.5):
            await asyncio.sleep(A_MOMENT)

    async def away(self) -> None:
        with self._gateway.outage(silent=self._random.random() < 0.5):
            await asyncio.sleep(AWAY)

    async def only_leases_fail(self) -> None:
        with self._gateway.on(which(what="leases"), Refuse(503)):
            await asyncio.sleep(AWAY)

    # --- the programs themselves ----------------------------------------------------------------------------------

    async def leader_killed(self) -> None:
        _signal(await self._leader(), signal.SIGKILL)

    async def webhook_killed(self) -> None:
        _signal(self._webhook, signal.SIGKILL)

    async def leader_sleeps(self) -> None:
        await self._stopped(await self._leader(), AWAY)

    async def dozes(self) -> None:
        await self._stopped(self._random.choice([*self._controllers, self._webhook]), A_MOMENT)

    @staticmethod
    async def _stopped(program: Program, seconds: float) -> None:
        with suppress(ClusterError, ProcessLookupError):
            pid = program.pid
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                os.kill(pid, signal.SIGCONT)

    async def _leader(self) -> Program:
        """Whoever holds the lease by now, alive or not."""
        holder = ""
        with suppress(ApiError):
            lease = await self._client.get(LEASES, names.LEASE, names.SYSTEM_NAMESPACE)
            holder = lease.spec.holder_identity or ""
        return next((each for each in self._controllers if holder.startswith(each.name)), self._controllers[0])


def _signal(program: Program, number: signal.Signals) -> None:
    with suppress(ClusterError, ProcessLookupError):  # it is on its way back already
        os.kill(program.pid, number)
