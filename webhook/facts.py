"""What the cluster says about a request: from caches that watches keep, or read afresh.

The I/O beside the pure rules. Queues, namespaces and PriorityClasses are followed by reflectors, so that a
review costs no request. But a cache is a moment behind: `kubectl apply -f queue.yaml -f job.yaml` has the Job
here before the watch tells of the queue. What always holds: nothing is read from a cache that isn't in touch,
and whoever needs certainty (each denial that rests on facts) reads live.
"""

import asyncio
import difflib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from typing import Final

from startgate.kube.client import Client
from startgate.kube.errors import ApiError, KubeError
from startgate.kube.kinds import GANGS, NAMESPACES, PRIORITY_CLASSES, QUEUES, Kind, T
from startgate.kube.reflector import Reflector
from startgate.kube.store import Change
from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.objects import Namespace, PriorityClass
from startgate.model.queue import Queue, QueueSpec
from webhook.depth import Depths
from webhook.submission import Facts

PATIENCE: Final = 2.0
"""Seconds for a live read. A review makes two in a row at most, and the API server gives it 10
(timeoutSeconds)."""
IN_TOUCH: Final = 60.0
"""Seconds for which the caches are relied on without a watch. Queues seldom change, and nothing starts by what a review
says; while to be unready would take the webhook, and with it all labelled Jobs, away for a moment's trouble."""
COMPARED: Final = 2000
"""Names that are looked through for the nearest one, which takes some 10 ms."""


class FactsError(Exception):
    """The API server can't be asked at the moment; the text is a sentence for whoever sent the request."""


class Lookup:
    """The facts of one cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._depths = Depths()
        self._queues: Reflector[Queue, Queue] = Reflector(
            client, QUEUES, on_change=self._queue_changed, stale_after=IN_TOUCH
        )
        self._namespaces: Reflector[Namespace, Namespace] = Reflector(client, NAMESPACES, stale_after=IN_TOUCH)
        self._classes: Reflector[PriorityClass, PriorityClass] = Reflector(
            client, PRIORITY_CLASSES, stale_after=IN_TOUCH
        )

    async def run(self) -> None:
        """Keeps the caches, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in (self._queues, self._namespaces, self._classes):
                group.create_task(reflector.run())

    @property
    def synced(self) -> bool:
        """Whether the caches are complete and in touch."""
        return self._queues.synced and self._namespaces.synced and self._classes.synced

    def cached(self, queue: str, namespace: str, priority_class: str) -> Facts | None:
        """What the caches say about a submission; None while they may not be relied on."""
        if not self.synced:
            return None
        found = self._queues.store.get(queue)
        home = self._namespaces.store.get(namespace)
        if found is None or home is None:
            return None
        return Facts(
            queue=found.spec,
            namespace=home.metadata.labels,
            priority=priority_of(priority_class, self._classes.store.values()),
            waiting=self._waiting(found),
        )

    async def live(self, queue: str, namespace: str, priority_class: str) -> Facts:
        """The same, read afresh. FactsError if that can't be done."""
        async with _in_time():
            found, home, classes = await asyncio.gather(
                self._get(QUEUES, queue),
                self._get(NAMESPACES, namespace),
                self._client.list_all(PRIORITY_CLASSES),
            )
        return Facts(
            queue=None if found is None else found.spec,
            nearest="" if found is not None else self._nearest(queue),
            namespace={} if home is None else home.metadata.labels,
            priority=priority_of(priority_class, classes),
            waiting=0 if found is None else self._waiting(found),
        )

    def let_in(self, queue: str, pods: int) -> None:
        """A Job with so many pods was let in, to wait in this queue."""
        self._depths.let_in(queue, pods)

    def _waiting(self, queue: Queue) -> int:
        return self._depths.waiting(queue.metadata.name, queue.status.waiting_pods)

    def _queue_changed(self, change: Change[Queue]) -> None:
        old, new = change.old, change.new
        if new is None:
            assert old is not None
            self._depths.forget(old.metadata.name)
        elif old is None or old.status != new.status:
            self._depths.status_came(new.metadata.name)

    def cached_queues(self) -> Mapping[str, QueueSpec] | None:
        """All queues by name; None while the cache may not be relied on."""
        return by_name(self._queues.store.values()) if self._queues.synced else None

    async def live_queues(self) -> Mapping[str, QueueSpec]:
        """The same, read afresh. FactsError if that can't be done."""
        async with _in_time():
            return by_name(await self._client.list_all(QUEUES))

    async def phase(self, namespace: str, job: str, uid: str) -> Phase | None:
        """Where the Job's gang is, read afresh; None: it has none yet. FactsError if that can't be done."""
        async with _in_time():
            gang = await self._get(GANGS, names.gang_of_job(job), namespace)
        # A Gang may be left from an older Job of this name.
        if gang is None or all(owner.uid != uid for owner in gang.metadata.owner_references):
            return None
        return gang.status.phase

    async def _get(self, kind: Kind[T], name: str, namespace: str = "") -> T | None:
        try:
            return await self._client.get(kind, name, namespace)
        except ValueError:  # no name that an object could have
            return None
        except ApiError as error:
            if error.not_found:
                return None
            raise

    def _nearest(self, queue: str) -> str:
        known = islice((each.metadata.name for each in self._queues.store.values()), COMPARED)
        return next(iter(difflib.get_close_matches(queue, known, n=1)), "")


def priority_of(name: str, classes: Iterable[PriorityClass]) -> int | None:
    """The priority that a pod with this priorityClassName gets; None: there is no such class.

    Without a name: that of the global default, of several the lowest, else 0 (kubernetes,
    plugin/pkg/admission/priority).
    """
    if name:
        return next((each.value for each in classes if each.metadata.name == name), None)
    return min((each.value for each in classes if each.global_default), default=0)


def by_name(queues: Iterable[Queue]) -> dict[str, QueueSpec]:
    return {queue.metadata.name: queue.spec for queue in queues}


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(PATIENCE):
            yield
    except (KubeError, TimeoutError) as error:
        raise FactsError(
            "Startgate can't read from the API server what it needs to decide on this; try again in a moment "
            f"({str(error) or 'no answer in time'})"
        ) from error
