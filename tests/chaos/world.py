"""The load: small stories of users, each with queues of its own, played at once; which and how is made from a seed.

Together they make our programs write all that they ever write: gangs in a line, tight room that is reserved, Jobs
parked for their deadline, start timeouts that pass, gangs that give way whole or by pods beyond their minimum, racks,
labels that come later, Jobs suspended and resumed, deleted and made anew, certificates lost. Always holds: a story
ends when its Jobs have completed, except for gangs that stay to be looked at; and where a webhook that is down refuses
something, its user tries again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, Final, TypeVar

from localcluster.nodes import Node
from startgate.kube.client import Patch
from startgate.kube.errors import ApiError
from startgate.kube.kinds import JOBS, PODS, SECRETS
from startgate.model import names
from startgate.model.objects import Job
from tests.behaviour.kit import IGNORES_DISRUPTION, Field
from tests.chaos.crashes import Crashes

NODES: Final = [
    *(Node(name=f"{r}{i}", cpu="4", gpus=0, labels={"pool": "wide", "rack": r}) for r in ("a", "b") for i in (1, 2, 3)),
    *(Node(name=f"t{i}", cpu="2", gpus=0, labels={"pool": "tight"}) for i in (1, 2, 3)),
]

LONG: Final = 120.0
"""Seconds for what a story waits for: most of it are crashes."""

HOLD_UP: Final = "chaos.example/hold-up"
"""A gate of somebody else's, which keeps pods from being bound once ours is open."""

WIDE: Final = {"nodeSelector": {"pool": "wide"}}
TIGHT: Final = {"nodeSelector": {"pool": "tight"}}

T = TypeVar("T")


class Stories:
    """Those of one round."""

    def __init__(self, field: Field, crashes: Crashes, random: Random) -> None:
        self._field = field
        self._crashes = crashes
        self._random = random

    def choose(self) -> list[Callable[[], Awaitable[None]]]:
        """Some that are played in each round, and some by the seed."""
        often = [self.line, self.tight, self.stays]
        others = [
            self.taken_back,
            self.gives_way,
            self.sheds,
            self.priority,
            self.racks,
            self.labelled_later,
            self.suspended,
            self.deleted,
            self.certificates,
        ]
        return [*often, *self._random.sample(others, 4)]

    # --- stories --------------------------------------------------------------------------------------------------

    async def line(self) -> None:
        """Gangs of all sizes in one queue that takes a few at a time; some come parked."""
        queue = await self._queue("line", capability={"cpu": "8"})
        jobs = [f"line{number}" for number in range(self._random.randint(4, 6))]
        for job in jobs:
            spec = {} if self._random.random() < 0.7 else {"completionMode": "NonIndexed"}
            await self._submit(
                job,
                pods=self._random.choice((1, 1, 2, 3, 5)),
                queue=queue,
                runs=self._ms(300, 1500),
                deadline=self._random.choice((None, None, 300)),
                spec=spec,
                **WIDE,
            )
            await asyncio.sleep(self._random.uniform(0, 0.5))
        await self._complete(*jobs)

    async def tight(self) -> None:
        """Room for one and a half: each reserves. The user of one holds it back for a moment, perhaps just then."""
        queue = await self._queue("tight")
        jobs = [f"tight{number}" for number in range(3)]
        for job in jobs:
            await self._submit(job, queue=queue, runs=self._ms(300, 1000), **TIGHT)
        one = self._random.choice(jobs)
        for hold in ("true", None):
            await asyncio.sleep(self._random.uniform(0, 2))
            held = {"metadata": {"annotations": {names.HOLD: hold}}}
            await self._persist(lambda held=held: self._field.change_job(one, held))  # type: ignore[misc]
        await self._complete(*jobs)

    async def stays(self) -> None:
        """One that runs on and one that can never start: whole and gated whole at the end of the round."""
        queue = await self._queue("stays", capability={"cpu": "3"})
        await self._submit("stays", pods=2, queue=queue, cpu="500m", **WIDE)
        await self._submit("toobig", pods=4, queue=queue, **WIDE)
        await self._field.runs("stays", 2, LONG)

    async def taken_back(self) -> None:
        """Somebody's gate keeps the pods from being bound, the first time that they are released."""
        queue = await self._queue("late")
        soon = {names.START_TIMEOUT: "2s"}
        await self._submit("late", pods=3, queue=queue, runs="300ms", annotations=soon, gates=(HOLD_UP,), **WIDE)
        await self._field.until(
            lambda: (gang := self._field.gang("late")) and gang.status.taken_back, "it is taken back", LONG
        )
        await self._let_through("late")

    async def gives_way(self) -> None:
        """A gang of a queue above its share gives way whole, and completes later."""
        both = await self._queue("both", capability={"cpu": "4"})
        mine = await self._queue("mine", parent=both, deserved={"cpu": "4"})
        theirs = await self._queue("theirs", parent=both, deserved={"cpu": "0"})
        await self._submit("victim", pods=4, queue=theirs, runs="6s", **WIDE)
        await self._begins("victim", 4)
        await self._submit("claimant", pods=self._random.choice((2, 4)), queue=mine, runs="500ms", **WIDE)
        await self._complete("claimant", "victim")

    async def sheds(self) -> None:
        """An elastic gang gives what it has beyond its minimum."""
        both = await self._queue("all", capability={"cpu": "4"})
        mine = await self._queue("few", parent=both, deserved={"cpu": "2"})
        theirs = await self._queue("elastic", parent=both, deserved={"cpu": "2"})
        elastic = {**IGNORES_DISRUPTION, "backoffLimit": 0}
        await self._submit("elastic", pods=4, minimum=2, queue=theirs, runs="6s", spec=elastic, **WIDE)
        await self._begins("elastic", 4)
        await self._submit("few", pods=2, queue=mine, runs="500ms", **WIDE)
        await self._complete("few", "elastic")

    async def priority(self) -> None:
        """A gang of a higher priority takes the place of two of its own queue."""
        queue = await self._queue("ranks", capability={"cpu": "4"})
        low, high = await self._field.priority("low", -10), await self._field.priority("high", 10)
        for job in ("low1", "low2"):
            await self._submit(job, pods=2, queue=queue, runs="6s", priorityClassName=low, **WIDE)
        await self._begins("low1", 2)
        await self._submit("high", pods=4, queue=queue, runs="500ms", priorityClassName=high, **WIDE)
        await self._complete("high", "low1", "low2")

    async def racks(self) -> None:
        """Gangs that are kept to one rack."""
        queue = await self._queue("racks")
        jobs = ("rack1", "rack2", "rack3")
        for job in jobs:
            await self._submit(
                job, pods=3, queue=queue, runs=self._ms(300, 1000), annotations={names.TOPOLOGY: "rack"}, **WIDE
            )
        await self._complete(*jobs)

    async def labelled_later(self) -> None:
        """A Job that runs already, as far as it can, is labelled; another is suspended by its user meanwhile."""
        queue = await self._queue("later")
        label = {"metadata": {"labels": {names.QUEUE: queue}}}
        await self._submit("ran", pods=2, runs="300ms", gates=(HOLD_UP,), **WIDE)
        await self._submit("slept", pods=2, suspend=True, runs="300ms", **WIDE)
        await self._field.until(lambda: len(self._field.pods("ran")) == 2, "its pods are made", LONG)
        for job in ("ran", "slept"):
            await self._persist(lambda job=job: self._field.change_job(job, label))  # type: ignore[misc]
        await self._field.until(lambda: self._prepared("slept"), "its template has the label", LONG)
        await self._persist(lambda: self._field.change_job("slept", {"spec": {"suspend": False}}))
        await self._field.until(lambda: self._prepared("ran"), "its template has the label", LONG)
        await self._let_through("ran")
        await self._complete("slept")

    async def suspended(self) -> None:
        """Its user suspends it, wherever it stands by then, and resumes it: it takes its turn anew."""
        queue = await self._queue("slept", capability={"cpu": "4"})
        await self._submit("before", pods=4, queue=queue, runs="1s", **WIDE)
        await self._submit("dozes", pods=4, queue=queue, runs="5s", **WIDE)
        await asyncio.sleep(self._random.uniform(0, 4))
        for suspend in (True, False):
            await self._persist(lambda to=suspend: self._field.change_job("dozes", {"spec": {"suspend": to}}))  # type: ignore[misc]
            await asyncio.sleep(self._random.uniform(0, 2))
        await self._complete("before", "dozes")

    async def deleted(self) -> None:
        """Deleted and made anew under its name, before or after its pods have passed; one loses its Gang's owner."""
        queue = await self._queue("anew", capability={"cpu": "4"})
        for runs in (None, "300ms"):
            await self._submit("anew", pods=4, queue=queue, runs=runs, **WIDE)
            if runs is None:
                await asyncio.sleep(self._random.uniform(0, 2))
                await self._field.client.delete(JOBS, "anew", self._field.namespace)
        await self._submit("orphan", pods=1, queue=queue, runs="300ms", **WIDE)
        await self._complete("anew", "orphan")
        path, body = JOBS.path(self._field.namespace, "orphan"), {"propagationPolicy": "Orphan"}
        await self._field.client.request("DELETE", path, body=body)
        await self._field.until(lambda: self._field.gang("orphan") is None, "its Gang is gone", LONG)

    async def certificates(self) -> None:
        """The webhook's Secret is lost, or spoiled, and the webhook killed: it makes a new one, and has it trusted."""
        path = SECRETS.path(names.SYSTEM_NAMESPACE, names.CERTIFICATE_SECRET)
        if self._random.random() < 0.5:
            await self._field.client.request("DELETE", path)
        else:
            spoiled = {"data": {"tls.crt": "eA=="}}
            await self._field.client.patch(SECRETS, names.CERTIFICATE_SECRET, spoiled, names.SYSTEM_NAMESPACE)
        self._crashes.kill(self._field.startgate.webhook)
        await self._field.startgate.wait_effective(LONG)

    # --- what they have in common ---------------------------------------------------------------------------------

    def _ms(self, least: int, most: int) -> str:
        return f"{self._random.randint(least, most)}ms"

    async def _queue(self, name: str, **spec: Any) -> str:
        return await self._persist(lambda: self._field.queue(name, **spec))

    async def _submit(self, name: str, **job: Any) -> Job:
        return await self._persist(lambda: self._field.submit(name, **job))

    async def _persist(self, act: Callable[[], Awaitable[T]]) -> T:
        """Tries again while the webhook is down (or not trusted yet), or an older object of the name is still there."""
        end = time.monotonic() + LONG
        while True:
            try:
                return await act()
            except ApiError as error:
                down = error.status >= 500 or "being deleted" in error.message or error.conflict
                if not down and "parent" not in error.message:
                    raise
                if time.monotonic() > end:
                    raise AssertionError(f"not within {LONG:.0f} s: {error}") from error
            await asyncio.sleep(0.2)

    async def _complete(self, *jobs: str) -> None:
        for job in jobs:
            await self._field.completes(job, LONG)

    async def _begins(self, job: str, pods: int) -> None:
        """Returns when so many of its pods run; or it is over, having begun bit by bit between crashes."""

        def begun() -> bool:
            found = self._field.job(job)
            return len(self._field.bound(job)) == pods or (found is not None and found.status.succeeded > 0)

        await self._field.until(begun, f"{pods} pods of {job} run", LONG)

    async def _let_through(self, job: str) -> None:
        """Takes the other gate off its pods, until it has completed."""

        async def lift() -> None:
            while True:
                for pod in self._field.pods(job):
                    if HOLD_UP in pod.foreign_gates and pod.queue:
                        gates = {"spec": {"schedulingGates": [{"name": HOLD_UP, "$patch": "delete"}]}}
                        with suppress(ApiError):
                            await self._field.client.patch(PODS, pod.name, gates, pod.namespace, how=Patch.STRATEGIC)
                await asyncio.sleep(0.2)

        lifting = asyncio.create_task(lift())
        try:
            await self._complete(job)
        finally:
            lifting.cancel()
            await asyncio.gather(lifting, return_exceptions=True)

    def _prepared(self, job: str) -> bool:
        found = self._field.job(job)
        return found is not None and names.QUEUE in found.spec.template.metadata.labels
