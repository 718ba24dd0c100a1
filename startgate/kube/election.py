"""Leader election on a Lease, for one leader at a time even when machines stop, sleep or lose the network.

Always holds: a leader leads only for `renew_deadline` seconds from the moment when it *sent* its last
successful renewal, and another takes over only after it has itself seen the Lease unchanged for
`lease_duration` seconds, which is longer. Each counts on its own clock, that no setting of the time moves;
two machines' clocks are never compared (the times in the Lease are for people). The gap between the two
numbers is what a write that is under way has to land in: bound its timeout by it.

The Lease is coordination.k8s.io/v1, used as client-go uses it, so that kubectl and other tools read it right.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import sys
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import msgspec

from startgate.kube.client import Client, Patch
from startgate.kube.errors import ApiError, KubeError
from startgate.kube.kinds import Kind
from startgate.model.objects import ObjectMeta

log = logging.getLogger(__name__)

LOOKS = 4
"""How often a candidate looks at the Lease in one `retry`, while it can be read."""


class LeaseSpec(msgspec.Struct, rename="camel", frozen=True):
    """Who leads; null, as the API allows for each field, is the same as left out."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True):
    """coordination.k8s.io/v1 Lease."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease", True, Lease)


class LeadershipLostError(KubeError):
    """Another may lead now."""


def steady() -> float:
    """Seconds on a clock that nobody sets and that goes on while the machine sleeps.

    Linux's CLOCK_MONOTONIC stands still during suspend: a laptop or a suspended VM would wake up as a leader
    whose lease others have long seen expire. CLOCK_BOOTTIME doesn't (clock_gettime(2)). Where it is missing
    (macOS), the monotonic clock has to do. A hypervisor that freezes a guest may freeze both: nothing inside
    can tell.
    """
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Watchman:
    """What one candidate has seen of a Lease, on its own clock: decides when it may be taken."""

    def __init__(self, identity: str, lease_duration: float) -> None:
        self._identity = identity
        self._lease_duration = lease_duration
        self._seen: LeaseSpec | None = None
        self._since = 0.0

    def wait(self, spec: LeaseSpec | None, now: float) -> float:
        """Seconds until this Lease may be taken, should it stay as it is; 0: now.

        `spec` was read by an answer that was complete at `now`, None if there is no Lease. One that vanishes
        while its holder may still lead is waited for like one that stands still.
        """
        if spec is not None and spec != self._seen:
            self._seen = spec
            self._since = now
        if self._seen is None or not self._seen.holder_identity:
            return 0.0
        if spec is not None and spec.holder_identity == self._identity:
            return 0.0  # our own name, from before this process: a restarted container of the same pod
        lasts = max(self._lease_duration, float(self._seen.lease_duration_seconds or 0))
        return max(0.0, self._since + lasts - now)


class Election:
    """One candidate. `identity` must be of one process only: a pod's name and uid, not a host's.

    All times in seconds. `leading` is the one thing to ask before each act of a leader.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        lease_duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry: float = 2.0,
        clock: Callable[[], float] = steady,
    ) -> None:
        if not identity:
            raise ValueError("a candidate needs an identity")
        if not lease_duration > renew_deadline > retry > 0:
            raise ValueError("lease_duration must be above renew_deadline, and that above retry, above 0")
        self.identity = identity
        self._client = client
        self._namespace = namespace
        self._name = name
        self._lease_duration = lease_duration
        self._renew_deadline = renew_deadline
        self._retry = retry
        self._clock = clock
        self._until = -math.inf
        self._version = ""
        self._transitions = 0
        self._watchman = Watchman(identity, lease_duration)
        self.holder = ""
        """Who leads, as last read; may be out of date, for people."""

    @property
    def leading(self) -> bool:
        """Whether no other can lead now."""
        return self.remaining > 0

    @property
    def remaining(self) -> float:
        """Seconds for which leading is certain without another renewal; 0 if it isn't certain now."""
        return max(0.0, self._until - self._clock())

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Waits for leadership, then runs `work`, renewing beside it; returns when `work` does.

        When leadership is lost, `work` is cancelled and LeadershipLostError raised: what it had in memory may
        be wrong, so start afresh. When `run` is cancelled, `work` is, and once it has ended the Lease is
        given up, so that the next candidate needn't wait.
        """
        await self.acquire()
        keeper = asyncio.create_task(self._keep())
        worker = asyncio.create_task(work())
        try:
            await asyncio.wait((keeper, worker), return_when=asyncio.FIRST_COMPLETED)
            lost = keeper.done() and not worker.done()
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)  # still renewing while it winds up
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            await self.release()
        if lost:
            keeper.result()  # a bug of ours in there must not pass for a lost lease
            raise LeadershipLostError(f"{self.identity} no longer leads; {self.holder or 'nobody'} may.")
        await worker

    async def acquire(self) -> None:
        """Returns when we lead: for `renew_deadline` seconds at most, unless it is renewed as `run` does."""
        while True:
            wait = most = self._retry
            try:
                wait, most = await self._try(), self._retry / LOOKS
            except KubeError as error:
                log.warning("The lease %s/%s can't be read or taken: %s", self._namespace, self._name, error)
            if self.leading:
                log.info("%s leads", self.identity)
                return
            # Look often, since a holder that shuts down gives the Lease up; spread candidates.
            await asyncio.sleep(min(max(wait, 0.05), most) * random.uniform(1.0, 1.2))  # noqa: S311

    async def release(self) -> None:
        """Gives the Lease up if it is ours, in a moment or not at all. All work must have ended before."""
        held = self.leading
        self._until = -math.inf
        if not held:
            return
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
        try:
            await self._patch_ours(spec, min(self._retry, 2.0))
        except KubeError as error:
            log.info("The lease wasn't given up, and will expire: %s", error)

    async def _keep(self) -> None:
        """Renews; returns when leadership is lost."""
        pause = self._retry
        while self.leading:
            await asyncio.sleep(min(pause, self.remaining))
            if not self.leading:
                break
            try:
                await self._renew()
                pause = self._retry
            except KubeError as error:
                pause = self._retry / 4
                log.warning("The lease can't be renewed (%.1f s left): %s", self.remaining, error)
        self._until = -math.inf

    async def _renew(self) -> None:
        start = self._clock()
        patience = min(self._renew_deadline / 2, max(self.remaining, 0.05))
        try:
            await self._patch_ours({"holderIdentity": self.identity, "renewTime": _now()}, patience)
        except ApiError as error:
            if error.not_found:  # deleted by hand: the next candidate may take a new one at once
                self._until = -math.inf
            raise
        self._until = start + self._renew_deadline

    async def _patch_ours(self, spec: dict[str, object], patience: float) -> None:
        """Writes into the Lease that we hold; if it is another's by now we don't lead any more. ApiError."""
        try:
            await self._patch(spec, patience)
        except ApiError as error:
            if not error.conflict:
                raise
            # Somebody else's write, or an earlier one of ours whose answer was lost: see whose it is now.
            lease = await self._client.get(LEASES, self._name, self._namespace, timeout=patience)
            self._note(lease)
            if lease.spec.holder_identity != self.identity:
                self._until = -math.inf
                raise
            await self._patch(spec, patience)

    async def _try(self) -> float:
        """Takes the Lease if it may be taken; else the seconds until it may be."""
        lease: Lease | None = None
        try:
            lease = await self._client.get(LEASES, self._name, self._namespace, timeout=self._renew_deadline / 2)
            self._note(lease)
        except ApiError as error:
            if not error.not_found:
                raise
        wait = self._watchman.wait(None if lease is None else lease.spec, self._clock())
        if wait > 0:
            return wait
        start = self._clock()
        try:
            await self._take(lease)
        except ApiError as error:
            if error.conflict:  # another was faster
                return 0.0
            raise
        self._until = start + self._renew_deadline
        return 0.0

    async def _take(self, lease: Lease | None) -> None:
        before = LeaseSpec() if lease is None else lease.spec
        transitions = before.lease_transitions or 0
        spec: dict[str, object] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": math.ceil(self._lease_duration),
            "renewTime": _now(),
        }
        if before.holder_identity != self.identity:
            spec["acquireTime"] = _now()
            spec["leaseTransitions"] = transitions + (lease is not None)
        patience = self._renew_deadline / 2
        if lease is not None:
            await self._patch(spec, patience)
            return
        body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }
        self._note(await self._client.create(LEASES, body, self._namespace, timeout=patience))

    async def _patch(self, spec: dict[str, object], timeout: float) -> None:  # noqa: ASYNC109
        """Writes if the Lease is still in the version that we know; ApiError (`conflict`) if it isn't."""
        patch = {"metadata": {"resourceVersion": self._version}, "spec": spec}
        self._note(
            await self._client.patch(LEASES, self._name, patch, self._namespace, how=Patch.MERGE, timeout=timeout)
        )

    def _note(self, lease: Lease) -> None:
        self._version = lease.metadata.resource_version
        self.holder = lease.spec.holder_identity or ""


def _now() -> str:
    """MicroTime, for people."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
