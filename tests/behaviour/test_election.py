"""Elections on a real API server: one leader at a time, whatever happens to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from localcluster.cluster import Cluster
from startgate.kube.client import Client
from startgate.kube.election import LEASES, Election, LeadershipLostError, steady
from tests.faults import Proxy

NAMESPACE = "default"


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with await Client.connect(kubeconfig=str(cluster.kubeconfig)) as connected:
        yield connected


@pytest.fixture
def lease() -> str:
    return f"lease-{uuid4().hex[:8]}"


class Candidate:
    """A process that works while it leads, and notes when that was."""

    def __init__(self, client: Client, lease: str, identity: str, duration: float = 4.0) -> None:
        self.election = Election(
            client,
            namespace=NAMESPACE,
            name=lease,
            identity=identity,
            lease_duration=duration,
            renew_deadline=duration / 2,
            retry=duration / 10,
        )
        self.began = asyncio.Event()
        self.began_at = 0.0
        self.ended_at = 0.0
        self.task: asyncio.Task[None] | None = None

    async def work(self) -> None:
        assert self.election.leading
        self.began_at = steady()
        self.began.set()
        try:
            while True:
                await asyncio.sleep(0.01)
                if self.election.leading:
                    self.ended_at = steady()
        finally:
            self.began.clear()

    def start(self) -> None:
        self.task = asyncio.create_task(self.election.run(self.work))

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)


@contextlib.asynccontextmanager
async def started(*candidates: Candidate) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for candidate in candidates:
            await candidate.stop()


async def test_on_shutdown_the_next_leads_at_once(client: Client, lease: str) -> None:
    first, second = Candidate(client, lease, "first", 30.0), Candidate(client, lease, "second", 30.0)
    async with started(first, second):
        first.start()
        await asyncio.wait_for(first.began.wait(), 5)
        second.start()
        await asyncio.sleep(1)
        assert not second.election.leading
        assert second.election.holder == "first"
        await first.stop()
        assert not first.election.leading
        await asyncio.wait_for(second.began.wait(), 5)  # of a lease that lasts 30
        assert second.began_at >= first.ended_at
        kept = await client.get(LEASES, lease, NAMESPACE)
        assert (kept.spec.holder_identity, kept.spec.lease_transitions) == ("second", 1)


async def test_a_leader_that_is_cut_off_has_stopped_before_another_leads(
    cluster: Cluster, client: Client, lease: str, tmp_path: Path
) -> None:
    async with Proxy(cluster.server) as proxy:
        config = proxy.kubeconfig(cluster.kubeconfig, tmp_path)
        async with await Client.connect(kubeconfig=str(config)) as far:
            first, second = Candidate(far, lease, "first"), Candidate(client, lease, "second")
            async with started(first, second):
                first.start()
                await asyncio.wait_for(first.began.wait(), 5)
                second.start()
                await asyncio.sleep(1)
                proxy.silence()
                assert first.task is not None
                with pytest.raises(LeadershipLostError):
                    await asyncio.wait_for(first.task, 10)
                assert not second.election.leading
                await asyncio.wait_for(second.began.wait(), 10)
                assert second.began_at - first.ended_at > 1.0  # a write under way had time to land


async def test_a_leader_renews_and_stays(client: Client, lease: str) -> None:
    first, second = Candidate(client, lease, "first", 2.0), Candidate(client, lease, "second", 2.0)
    async with started(first, second):
        first.start()
        await asyncio.wait_for(first.began.wait(), 5)
        second.start()
        await asyncio.sleep(6)
        assert first.election.leading
        assert not second.election.leading
        kept = await client.get(LEASES, lease, NAMESPACE)
        assert (kept.spec.holder_identity, kept.spec.lease_transitions) == ("first", 0)


async def test_a_restarted_container_of_the_same_pod_leads_at_once(client: Client, lease: str) -> None:
    first, again = Candidate(client, lease, "pod-1", 30.0), Candidate(client, lease, "pod-1", 30.0)
    async with started(first, again):
        await first.election.acquire()  # and is killed: nobody renews, nobody gives up
        again.start()
        await asyncio.wait_for(again.began.wait(), 2)


async def test_a_leader_that_slept_knows_at_once_that_it_may_not_lead(client: Client, lease: str) -> None:
    """SIGSTOP, a suspended machine: the first thing that it does when it wakes must not be a leader's act."""
    slept = 0.0
    election = Election(client, namespace=NAMESPACE, name=lease, identity="me", clock=lambda: steady() + slept)
    await election.acquire()
    assert 9.0 < election.remaining <= 10.0
    slept = 10.0
    assert not election.leading
    assert election.remaining == 0


async def test_a_leader_whose_lease_another_took_stops_at_once(client: Client, lease: str) -> None:
    first = Candidate(client, lease, "first", 10.0)
    async with started(first):
        first.start()
        await asyncio.wait_for(first.began.wait(), 5)
        await client.patch(LEASES, lease, {"spec": {"holderIdentity": "thief"}}, NAMESPACE)
        assert first.task is not None
        with pytest.raises(LeadershipLostError, match="thief may"):
            await asyncio.wait_for(first.task, 3)
        kept = await client.get(LEASES, lease, NAMESPACE)
        assert kept.spec.holder_identity == "thief"


async def test_a_stranger_s_edit_of_the_lease_costs_nothing(client: Client, lease: str) -> None:
    first = Candidate(client, lease, "first", 4.0)
    async with started(first):
        first.start()
        await asyncio.wait_for(first.began.wait(), 5)
        for turn in range(5):
            await client.patch(LEASES, lease, {"metadata": {"labels": {"turn": f"t{turn}"}}}, NAMESPACE)
            await asyncio.sleep(0.5)
        assert first.election.leading


async def test_a_write_that_it_knows_nothing_of_doesn_t_keep_a_leader_from_giving_the_lease_up(
    client: Client, lease: str
) -> None:
    """Such as its own last renewal, if it was ended in the middle of it."""
    first = Candidate(client, lease, "first", 30.0)
    async with started(first):
        first.start()
        await asyncio.wait_for(first.began.wait(), 5)
        await client.patch(LEASES, lease, {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}, NAMESPACE)
        await first.stop()
        kept = await client.get(LEASES, lease, NAMESPACE)
        assert not kept.spec.holder_identity


async def test_what_the_work_raises_comes_out_and_the_lease_is_given_up(client: Client, lease: str) -> None:
    async def fail() -> None:
        raise RuntimeError("a bug")

    first = Candidate(client, lease, "first", 30.0)
    with pytest.raises(RuntimeError, match="a bug"):
        await first.election.run(fail)
    kept = await client.get(LEASES, lease, NAMESPACE)
    assert not kept.spec.holder_identity
