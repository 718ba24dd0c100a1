"""Every write that the controller makes to the API server, each in one function, each fenced by leadership.

What always holds: no write leaves a process that isn't sure to be the leader; each names the uid (or the version) that
it is meant for, so that it can't hit an object of the same name; and the answer is taken into the store at once, so
that the next decision sees it without waiting for the watch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from controller.cache import Cache
from startgate.kube.client import Client, Patch
from startgate.kube.errors import ApiError, Unreachable
from startgate.kube.kinds import GANGS, JOBS, PODS, QUEUES
from startgate.model import names
from startgate.model.gang import Gang
from startgate.model.objects import Job
from startgate.model.pods import Pod

LIFTS_AT_ONCE = 32
"""Requests under way together. More only queue in the API server, whose CPU is the limit (design §10a)."""

SECONDS = 4.0
"""For one attempt. Below the gap between the election's renew deadline and its lease duration, so that a write which
was sent while leading has ended before another can lead."""

ATTEMPTS = 3
"""All writes here may be sent again: they name what they are for, and doing them twice is the same as once."""

UNMARKED: Final = {names.PARKED: None, names.PARKED_MESSAGE: None}
"""Annotations without our marks."""

T = TypeVar("T")


class ChangedError(Exception):
    """The object isn't any more as it was when this was decided: look again."""


class NotLeadingError(Exception):
    """The lease is lost, or may be: this process must not write."""


class Writes:
    """The writes. `leading` is asked before each of them."""

    def __init__(self, client: Client, cache: Cache, leading: Callable[[], bool]) -> None:
        self._client = client
        self._cache = cache
        self._leading = leading
        self._lifts = asyncio.Semaphore(LIFTS_AT_ONCE)
        self._sent: set[asyncio.Future[Any]] = set()

    async def settled(self) -> None:
        """Returns when no write is on its way any more, in `SECONDS` at most: only then may another lead.

        Whoever waited for one may have been cancelled; what was sent may take effect all the same.
        """
        await asyncio.gather(*self._sent, return_exceptions=True)

    async def _to_its_end(self, write: Awaitable[T]) -> T:
        sent = asyncio.ensure_future(write)
        self._sent.add(sent)
        sent.add_done_callback(self._ended)
        return await asyncio.shield(sent)

    def _ended(self, sent: asyncio.Future[Any]) -> None:
        self._sent.discard(sent)
        if not sent.cancelled():
            sent.exception()  # who waits for it hears of it; else nobody is there to tell

    async def _send(self, write: Callable[[], Awaitable[T]], attempts: int = ATTEMPTS) -> T:
        """The answer to a write; leadership is looked at before each attempt. KubeError, NotLeadingError."""
        for attempt in range(1, attempts + 1):
            if not self._leading():
                raise NotLeadingError("not the leader any more")
            try:
                return await self._to_its_end(write())
            except (ApiError, Unreachable) as error:
                if attempt == attempts or (isinstance(error, ApiError) and error.status not in (429, 500, 503, 504)):
                    raise
                after = error.retry_after if isinstance(error, ApiError) else None
                await asyncio.sleep(0.1 * 2**attempt if after is None else min(after, SECONDS))
        raise AssertionError("no attempt was made")

    async def lift_gate(self, pod: Pod, node_selector: Mapping[str, str]) -> bool:
        """Takes our gate off this very pod, and keeps it to the nodes with these labels; False if the pod is gone.

        A strategic merge patch by uid: never conflicts with other writers, and lifting twice is the same as once. The
        node selector of a pod that has a gate may be added to (KEP-3838), by the patch that lifts the gate too.
        """
        spec: dict[str, Any] = {"schedulingGates": [{"name": names.GATE, "$patch": "delete"}]}
        if more := {key: value for key, value in node_selector.items() if (key, value) not in pod.shape.node_selector}:
            spec["nodeSelector"] = more
        return await self._patch_pod(pod, {"metadata": {"uid": pod.uid}, "spec": spec})

    async def nominate(self, pod: Pod, node: str | None) -> bool:
        """Keeps room for the pod on this node, or with None gives it up; False if the pod is gone.

        status.nominatedNodeName: KEP-5278; kube-scheduler honours it for gated pods too (measured, design §3).
        """
        patch = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}}
        return await self._patch_pod(pod, patch, subresource="status")

    async def _patch_pod(self, pod: Pod, patch: Mapping[str, Any], subresource: str = "") -> bool:
        async with self._lifts:
            try:
                answer = await self._send(
                    lambda: self._client.patch(
                        PODS,
                        pod.name,
                        patch,
                        pod.namespace,
                        how=Patch.STRATEGIC,
                        subresource=subresource,
                        timeout=SECONDS,
                    )
                )
            except ApiError as error:
                if error.not_found or error.conflict:  # gone, or another pod of this name
                    return False
                raise
        self._cache.pods.store.learn(answer)
        return True

    async def evict(self, pod: Pod) -> bool:
        """Has this very pod go by the Eviction API, which keeps to PodDisruptionBudgets; False if it is gone.

        Once: a budget that has nothing to give (429) isn't asked again and again, the next cycle decides anew.
        """
        meta = {"name": pod.name, "namespace": pod.namespace}
        options = {"preconditions": {"uid": pod.uid}}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, "deleteOptions": options}
        path = PODS.path(pod.namespace, pod.name, "eviction")
        async with self._lifts:
            try:
                await self._send(lambda: self._client.request("POST", path, body=body, timeout=SECONDS), attempts=1)
            except ApiError as error:
                if error.not_found or error.conflict:
                    return False
                raise
        return True

    async def suspend(self, job: Job, why: str, message: str | None = None) -> None:
        """Suspends the Job, marked as our doing: its pods go, and no failure is counted (design §3, Parked).

        `message`: to whom it gives way, where it does; what kept a gang that is taken back.
        """
        marks = {names.PARKED: why, names.PARKED_MESSAGE: message}
        await self._patch_job_seen(job, {"metadata": {"annotations": marks}, "spec": {"suspend": True}})

    async def resume(self, job: Job) -> None:
        """Lets the Job make its pods, and takes our mark off in the same write."""
        await self._patch_job_seen(job, {"metadata": {"annotations": UNMARKED}, "spec": {"suspend": False}})

    async def unmark(self, job: Job) -> None:
        """Takes our mark off a Job that somebody else has resumed, so that a later suspend is known for the user's."""
        await self._patch_job(job, {"metadata": {"annotations": UNMARKED}})

    async def prepare_template(self, job: Job) -> None:
        """Puts our labels and gate into the template of a suspended Job (allowed while suspended: KEP-2926)."""
        labels = {
            key: job.metadata.labels[key] for key in (names.QUEUE, names.MIN_AVAILABLE) if key in job.metadata.labels
        }
        template = {"metadata": {"labels": labels}, "spec": {"schedulingGates": [{"name": names.GATE}]}}
        await self._patch_job(job, {"spec": {"template": template}}, how=Patch.STRATEGIC)

    async def _patch_job_seen(self, job: Job, patch: dict[str, Any]) -> None:
        """Only as we have seen it: a suspend of the user's that comes in between must not become ours, or be undone."""
        version = {"resourceVersion": job.metadata.resource_version}
        try:
            await self._patch_job(job, {**patch, "metadata": {**patch["metadata"], **version}})
        except ApiError as error:
            if error.conflict:
                raise ChangedError(f"Job {job.metadata.name} has changed meanwhile") from error
            raise

    async def _patch_job(self, job: Job, patch: dict[str, Any], how: Patch = Patch.MERGE) -> None:
        meta = job.metadata
        patch = {**patch, "metadata": {**patch.get("metadata", {}), "uid": meta.uid}}
        answer = await self._send(
            lambda: self._client.patch(JOBS, meta.name, patch, meta.namespace, how=how, timeout=SECONDS)
        )
        self._cache.jobs.store.learn(answer)

    async def create_gang(self, namespace: str, body: Mapping[str, Any]) -> Gang:
        """ApiError (conflict) if there is one of this name already."""
        # Once: a second attempt would find the first one's Gang in its way.
        answer = await self._send(lambda: self._client.create(GANGS, body, namespace, timeout=SECONDS), attempts=1)
        self._cache.gangs.store.learn(answer)
        return answer

    async def patch_gang(self, gang: Gang, patch: Mapping[str, Any]) -> Gang:
        """With the version that we read as a precondition: ApiError (conflict) if somebody else has written since."""
        meta = gang.metadata
        versioned = {**patch, "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}}
        answer = await self._send(
            lambda: self._client.patch(GANGS, meta.name, versioned, meta.namespace, timeout=SECONDS),
            attempts=1,
        )
        self._cache.gangs.store.learn(answer)
        return answer

    async def delete_gang(self, gang: Gang) -> None:
        """By uid: a Gang left from an older owner of the same name."""
        meta = gang.metadata
        await self._send(lambda: self._client.delete(GANGS, meta.name, meta.namespace, uid=meta.uid, timeout=SECONDS))
        self._cache.gangs.store.forget(meta.name, meta.namespace, meta.uid)

    async def patch_queue_status(self, name: str, status: Mapping[str, Any]) -> None:
        """The status alone; nothing if the queue is gone."""
        try:
            answer = await self._send(
                lambda: self._client.patch(QUEUES, name, {"status": status}, subresource="status", timeout=SECONDS)
            )
        except ApiError as error:
            if not error.not_found:
                raise
            return
        self._cache.queues.store.learn(answer)


async def all_of(work: Iterable[Any]) -> list[Any]:
    """Awaits all, even where one fails; then raises the first failure."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
