"""Users who come and go: about a Job a second, of many kinds, in queues that have too little for all of them.

Always holds: at most `MOST` Jobs are alive; each but those that stay can end by itself, so that a pause empties the
queues; and where the API server refuses because the webhook is away, a user tries again or goes home.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any, Final

from startgate.kube.client import Client
from startgate.kube.errors import ApiError
from startgate.kube.kinds import JOBS, NAMESPACES, QUEUES
from startgate.kube.reflector import Reflector
from startgate.model import names
from startgate.model.objects import Job, condition
from tests.behaviour.kit import IGNORES_DISRUPTION, Manifest, job_of
from tests.chaos.world import TIGHT, WIDE

NAMESPACE: Final = "soak"
MOST: Final = 60
EACH: Final = 1.0
"""Seconds from Job to Job, on average."""

KEPT: Final = 3.0
"""Seconds that users look at a Job that has ended before they delete it."""

LONG: Final = 120.0

QUEUES_OF_ALL: Final[tuple[tuple[str, Manifest], ...]] = (
    ("all", {"capability": {"cpu": "20"}}),
    ("red", {"parent": "all", "deserved": {"cpu": "12"}}),
    ("blue", {"parent": "all", "deserved": {"cpu": "6"}}),
    ("rest", {"parent": "all", "deserved": {"cpu": "0"}, "capability": {"cpu": "8"}}),
    ("tight", {}),
    ("stays", {"capability": {"cpu": "3"}}),
)
"""Parents first."""

PRIORITY: Final = "scheduling.k8s.io/v1"
PRIORITIES: Final = {"soak-low": -10, "soak-high": 10}
ENDS: Final = ("Complete", "Failed")

STAY: Final[dict[str, Manifest]] = {
    "stays": {"pods": 2, "queue": "stays", "cpu": "500m", **WIDE},
    "toobig": {"pods": 4, "queue": "stays", **WIDE},
}
"""One that runs on and one that can never start: to be looked at in each pause."""


def _runs(random: Random) -> str:
    return f"{random.randint(500, 6000)}ms"


def _plain(random: Random) -> Manifest:
    mode = random.choice(("Indexed", "NonIndexed"))
    return {"pods": random.choice((1, 1, 2, 3, 4, 6)), "spec": {"completionMode": mode}, **WIDE}


def _rounds(random: Random) -> Manifest:
    pods = random.randint(1, 3)
    return {"pods": pods, "completions": pods * random.randint(2, 3), **WIDE}


def _elastic(random: Random) -> Manifest:
    spec = {**IGNORES_DISRUPTION, "backoffLimit": 0}
    return {"pods": 4, "completions": 8, "minimum": random.randint(1, 2), "spec": spec, **WIDE}


def _parked(random: Random) -> Manifest:
    return {"pods": random.randint(1, 4), "deadline": 600, **WIDE}


def _rack(random: Random) -> Manifest:
    return {"pods": random.randint(2, 4), "annotations": {names.TOPOLOGY: "rack"}, **WIDE}


def _ranked(random: Random) -> Manifest:
    return {"pods": random.randint(1, 4), "priorityClassName": random.choice([*PRIORITIES]), **WIDE}


def _fails(random: Random) -> Manifest:
    return {"pods": random.randint(1, 3), "fails": _runs(random), **WIDE}


def _tidy(random: Random) -> Manifest:
    return {"pods": random.randint(1, 3), "spec": {"ttlSecondsAfterFinished": 2}, **WIDE}


def _tight(random: Random) -> Manifest:
    return {"pods": random.randint(2, 4), "queue": "tight", **TIGHT}


KINDS: Final[tuple[Callable[[Random], Manifest], ...]] = (
    *(_plain, _plain, _rounds, _elastic, _parked, _rack, _ranked, _fails, _tidy, _tight),
)


class Churn:
    """See the module. `submitted` counts Jobs by kind, `refused` what users had to try again."""

    def __init__(self, client: Client, random: Random) -> None:
        self.submitted: Counter[str] = Counter()
        self.refused = 0
        self.faults: list[str] = []
        """What users were told that they should never be told."""
        self._client = client
        self._random = random
        self._jobs = Reflector(client, JOBS, namespace=NAMESPACE)
        self._ended: dict[str, float] = {}
        """By uid: since when."""
        self._users: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Makes queues and those that stay; then users come whenever it is `open`."""
        await self._set_up()
        tasks = [asyncio.create_task(each()) for each in (self._jobs.run, self._come, self._tidy_up)]
        try:
            await self._jobs.wait_synced()
            yield
        finally:
            for task in (*tasks, *self._users):
                task.cancel()
            await asyncio.gather(*tasks, *self._users, return_exceptions=True)

    def open(self) -> None:
        """Users come from now on."""
        self._open.set()

    def close(self) -> None:
        """No more of them."""
        self._open.clear()

    async def drained(self, within: float) -> list[str]:
        """Returns when all that can end has ended and no user is at work; who is after so many seconds, a line each."""
        end = time.monotonic() + within
        while True:
            left = [job.metadata for job in self._jobs.store if not _over(job) and job.metadata.name not in STAY]
            if not left and not self._users:
                return []
            if time.monotonic() > end:
                users = [f"{len(self._users)} users still try"] if self._users else []
                return [*users, *(f"Job {each.name} of {each.labels} has not ended" for each in left)]
            await asyncio.sleep(0.5)

    async def _set_up(self) -> None:
        await self._client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        for name, spec in QUEUES_OF_ALL:
            body = {"apiVersion": names.API_VERSION, "kind": "Queue", "metadata": {"name": name}, "spec": spec}
            await self._insist(lambda body=body: self._client.create(QUEUES, body))  # type: ignore[misc]
        for name, value in PRIORITIES.items():
            head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
            await self._client.request(
                "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body=head | {"value": value}
            )
        for name, job in STAY.items():
            await self._insist(
                lambda name=name, job=job: self._client.create(JOBS, job_of(name, **job), NAMESPACE)  # type: ignore[misc]
            )

    async def _insist(self, act: Callable[[], Awaitable[Any]]) -> bool:
        """Tries until it is done; False where the object is gone. The webhook may be away, or new to a queue."""
        end = time.monotonic() + LONG
        while True:
            try:
                await act()
            except ApiError as error:
                if error.not_found:
                    return False
                if error.status in (400, 422) or time.monotonic() > end:
                    self.faults.append(f"a user was told: {error}")
                    return False
                self.refused += 1
                await asyncio.sleep(0.5)
            else:
                return True

    # --- users ----------------------------------------------------------------------------------------------------

    async def _come(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0, 2 * EACH))
            await self._open.wait()
            if sum(not _over(job) for job in self._jobs.store) < MOST:
                task = asyncio.create_task(self._user())
                self._users.add(task)
                task.add_done_callback(self._gone)

    def _gone(self, user: asyncio.Task[None]) -> None:
        self._users.discard(user)
        if not user.cancelled() and (error := user.exception()) is not None:
            self.faults.append(f"a user met {error!r}")

    async def _user(self) -> None:
        """One Job, and what its user does to it: mostly nothing."""
        random, kind = self._random, self._random.choice(KINDS)
        sort = kind.__name__.strip("_")
        name = f"{sort}-{sum(self.submitted.values())}"
        self.submitted[sort] += 1
        fields = {"queue": random.choice(("red", "blue", "rest")), "runs": _runs(random), **kind(random)}
        if "fails" in fields:
            del fields["runs"]
        queue = fields["queue"]
        whim = random.choice((None, None, None, None, self._sleep, self._delete, self._label_later, self._resize))
        if whim == self._resize and kind is not _elastic:
            whim = None
        if whim == self._label_later:
            fields |= {"queue": "", "suspend": True}
        if await self._insist(lambda: self._client.create(JOBS, job_of(name, **fields), NAMESPACE)) and whim:
            await asyncio.sleep(random.uniform(0, 6))
            await whim(name, queue)

    async def _sleep(self, name: str, _: str) -> None:
        for suspend in (True, False):
            await self._change(name, {"spec": {"suspend": suspend}})
            await asyncio.sleep(self._random.uniform(0, 4))

    async def _delete(self, name: str, _: str) -> None:
        await self._insist(lambda: self._client.delete(JOBS, name, NAMESPACE))

    async def _label_later(self, name: str, queue: str) -> None:
        await self._change(name, {"metadata": {"labels": {names.QUEUE: queue}}})
        end = time.monotonic() + LONG
        while not self._prepared(name):
            if time.monotonic() > end:
                self.faults.append(f"Job {name} was labelled, and its template was not")
                return
            await asyncio.sleep(0.2)
        await self._change(name, {"spec": {"suspend": False}})

    async def _resize(self, name: str, _: str) -> None:
        for parallelism in (6, 3):
            await self._change(name, {"spec": {"parallelism": parallelism}})
            await asyncio.sleep(self._random.uniform(0, 4))

    async def _change(self, name: str, patch: Manifest) -> None:
        await self._insist(lambda: self._client.patch(JOBS, name, patch, NAMESPACE))

    def _prepared(self, name: str) -> bool:
        job = self._jobs.store.get(name, NAMESPACE)
        return job is not None and names.QUEUE in job.spec.template.metadata.labels

    async def _tidy_up(self) -> None:
        while True:
            now = time.monotonic()
            over = {job.metadata.uid: job.metadata.name for job in self._jobs.store if _over(job)}
            self._ended = {uid: self._ended.get(uid, now) for uid in over}
            for uid, name in over.items():
                if now - self._ended[uid] > KEPT:
                    with suppress(ApiError):
                        await self._client.delete(JOBS, name, NAMESPACE)
            await asyncio.sleep(1.0)


def _over(job: Job) -> bool:
    return any(condition(job.status.conditions, kind) for kind in ENDS)
