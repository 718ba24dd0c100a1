"""Two replicas of the webhook behind one address, under load: one is killed, one is stopped, certificate and authority
run out. What is labelled is gated or refused with a sentence, never let by; what isn't labelled notices nothing.

The replicas are the programs as they ship, but for the lives of their certificates and the pause between two looks at
them, which are seconds here, so that renewal at two thirds of a life takes place by the wall clock while a test looks.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import count, pairwise
from typing import Any, Final

import msgspec
import pytest
import pytest_asyncio
from cryptography import x509

from certs import authority
from localcluster.deploy import Program, Startgate, free_port
from localcluster.ports import LOOPBACK
from startgate.kube.client import Client, Patch
from startgate.kube.errors import ApiError
from startgate.kube.kinds import JOBS, PODS, SECRETS
from startgate.model import names
from tests.behaviour.kit import Field, eventually, job_of, pod_spec
from tests.behaviour.test_webhook_server import REVIEW, ask
from tests.faults.balancer import Balancer, Endpoint

CERTIFICATE_LIVES: Final = 9
AUTHORITY_LIVES: Final = 24
SHORT_LIVED: Final = f"""
from datetime import timedelta
from certs import authority, rotation
authority.SLACK = timedelta(0)
authority.SERVING_LIFE = timedelta(seconds={CERTIFICATE_LIVES})
authority.CA_LIFE = timedelta(seconds={AUTHORITY_LIVES})
rotation.LOOK_EVERY = rotation.RETRY_EVERY = 0.5
from webhook import main
main.run()
"""
"""python -m webhook, with certificates that live for seconds."""

SERVER_NAME: Final = authority.server_names(names.WEBHOOK_SERVICE, names.SYSTEM_NAMESPACE)[2]
CONFIGURATIONS: Final = {
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/{names.WEBHOOK_CONFIGURATION}": webhooks
    for kind, webhooks in (("mutating", ["jobs", "pods"]), ("validating", ["queues"]))
}
PACE: Final = 0.2
"""Seconds between two of one submitter: some tens a second in all."""
CANNOT_ASK: Final = "failed calling webhook"
"""The API server's words where the webhook didn't answer: whoever submits knows that it wasn't taken."""


@dataclasses.dataclass
class Pair:
    """The replicas and the address in front of them."""

    programs: list[Program]
    port: int

    def balancer(self) -> Balancer:
        """What listens there, for as long as its context lasts."""
        return Balancer(self.port, [Endpoint(program.port, program.health_port) for program in self.programs])

    async def both(self, balancer: Balancer) -> None:
        """Both run, and get connections."""
        for program in self.programs:
            if program.name not in program._cluster.pids:
                await program.start()
            await program.wait_ready()
        await asyncio.wait_for(balancer.wait(2), 10)


async def point(client: Client, port: int) -> None:
    """The API server finds the webhook's Service at this port of the machine."""
    for path, webhooks in CONFIGURATIONS.items():
        entries = [{"name": f"{name}.startgate.dev", "clientConfig": {"service": {"port": port}}} for name in webhooks]
        await client.request("PATCH", path, body={"webhooks": entries}, content_type=Patch.STRATEGIC)


async def bundle(client: Client) -> bytes:
    """What the API server trusts as an authority of the webhook at the moment."""
    whole = json.loads(await client.request("GET", next(iter(CONFIGURATIONS))))
    return msgspec.convert(whole["webhooks"][0]["clientConfig"]["caBundle"], bytes)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(startgate: Startgate) -> AsyncIterator[Pair]:
    first = startgate.webhook
    made = Pair([first, first.replica(1)], free_port())
    ships = [program._command for program in made.programs]
    await first.stop()
    async with await Client.connect(kubeconfig=str(startgate.cluster.kubeconfig)) as client:
        await client.delete(SECRETS, names.CERTIFICATE_SECRET, names.SYSTEM_NAMESPACE)
        try:
            for program, command in zip(made.programs, ships, strict=True):
                argv = [command.argv[0], "-c", SHORT_LIVED, *command.argv[3:]]
                program._command = dataclasses.replace(command, argv=argv)
            await point(client, made.port)
            async with made.balancer() as balancer:
                await made.both(balancer)
                await startgate.wait_effective()
            yield made
        finally:
            for program, command in zip(made.programs, ships, strict=True):
                program._command = command
                if program.name in startgate.cluster.pids:
                    await program.stop()
            await client.delete(SECRETS, names.CERTIFICATE_SECRET, names.SYSTEM_NAMESPACE)
            await point(client, first.port)
            await first.start()
            await first.wait_ready()
            await startgate.wait_effective()


@pytest.fixture(autouse=True)
async def balancer(pair: Pair) -> AsyncIterator[Balancer]:
    """On the test's own event loop; both replicas run."""
    async with pair.balancer() as listening:
        await pair.both(listening)
        yield listening


class Load:
    """Labelled Jobs and unlabelled pods, several at a time, by people who try again where they are told to."""

    def __init__(self, field: Field, queue: str) -> None:
        self._field = field
        self._queue = queue
        self._numbers = count()
        self.jobs: list[str] = []
        """Let in."""
        self.pods: list[str] = []
        self.refused: list[ApiError] = []
        """Of labelled Jobs, each of which was tried again."""

    @asynccontextmanager
    async def coming(self) -> AsyncIterator[None]:
        """For as long as the context lasts. Whatever fails but a webhook that doesn't answer fails the test."""
        over = asyncio.Event()

        async def again(one: Callable[[str], Coroutine[Any, Any, None]], name: str) -> None:
            while not over.is_set():
                await one(f"{name}-{next(self._numbers)}")
                await asyncio.sleep(PACE)

        async with asyncio.TaskGroup() as tasks:
            for who in range(3):
                tasks.create_task(again(self._job, f"labelled-{who}"))
            tasks.create_task(again(self._pod, "plain"))
            try:
                yield
            finally:
                over.set()

    async def more(self, number: int) -> None:
        """Returns when so many more of each are in."""
        jobs, pods = len(self.jobs) + number, len(self.pods) + number
        await self._field.until(lambda: len(self.jobs) >= jobs and len(self.pods) >= pods, f"{number} more come in")

    async def _job(self, name: str) -> None:
        while True:
            try:
                await self._field.submit(name, pods=1, queue=self._queue)
            except ApiError as error:
                if CANNOT_ASK not in error.message:
                    raise
                self.refused.append(error)
                await asyncio.sleep(0.05)
            else:
                self.jobs.append(name)
                return

    async def _pod(self, name: str) -> None:
        await self._field.pod(name)
        self.pods.append(name)

    async def all_is_well(self) -> None:
        """No labelled Job was lost or let by, and no unlabelled pod touched."""
        field = self._field
        await field.until(lambda: len(field.gated()) == len(self.jobs), "each Job has its pod at the gate")
        assert sorted(job.metadata.name for job in field.jobs()) == sorted(self.jobs)
        born = [change.new for change in field.pod_changes if change.old is None and change.new]
        ours = [pod for pod in born if pod.queue]
        assert all(pod.gated for pod in ours), "each was born behind the gate"
        theirs = {pod.name: pod for pod in born if pod not in ours}
        assert theirs.keys() == {*self.pods}
        assert not any(pod.gated or pod.foreign_gates for pod in theirs.values())
        made = {write.name: write for write in field.writes(user="", what="pods") if write.verb == "create"}
        for name in self.pods:
            assert "startgate" not in str(made[name].note), "the webhook wasn't asked about it"


@pytest.fixture
async def load(field: Field) -> Load:
    """Nothing of it starts: a pod takes more of two cores than many reviews."""
    await field.nodes(0)
    return Load(field, await field.queue())


async def test_a_replica_is_killed_under_load(pair: Pair, balancer: Balancer, load: Load) -> None:
    async with load.coming():
        await load.more(12)
        assert not load.refused
        await pair.programs[1].kill()
        await balancer.wait(1)
        await load.more(5)  # what was under way there has been refused by now
        cut = len(load.refused)
        await load.more(12)
        assert len(load.refused) == cut, "one replica is enough"
        await pair.both(balancer)
        await load.more(12)
    assert cut <= 3, "what was under way with it, and nothing else"
    assert len(load.refused) == cut
    await load.all_is_well()


async def test_a_replica_that_is_stopped_hands_over_without_a_refusal(
    pair: Pair, balancer: Balancer, load: Load
) -> None:
    async with load.coming():
        await load.more(10)
        await pair.programs[1].stop()
        await load.more(10)
        await pair.both(balancer)
        await load.more(10)
    assert not load.refused
    await load.all_is_well()


async def test_certificate_and_authority_run_out_under_load(pair: Pair, field: Field) -> None:
    """Requests by the API server and by clients that connect anew each time: none meets what it can't verify."""
    queue = await field.queue()
    over = asyncio.Event()
    seen: list[set[bytes]] = [set(), set()]
    """Certificates, by replica."""
    authorities = [await bundle(field.client)]
    counts = [0, 0]

    async def submit(name: str) -> None:
        while not over.is_set():
            await field.client.create(JOBS, job_of(name, pods=1, queue=queue), field.namespace, dry_run=True)
            await field.client.create(PODS, pod(name, queue), field.namespace, dry_run=True)
            counts[0] += 1

    async def connect(number: int) -> None:
        while not over.is_set():
            now = await bundle(field.client)
            if now != authorities[-1]:
                authorities.append(now)
            trusting = ssl.create_default_context(cadata=now.decode())
            port = pair.programs[number].port
            stream = await asyncio.open_connection(LOOPBACK, port, ssl=trusting, server_hostname=SERVER_NAME)
            assert (await ask(stream, REVIEW))[0] == 200
            seen[number].add(stream[1].get_extra_info("ssl_object").getpeercert(binary_form=True))
            stream[1].close()
            counts[1] += 1
            await asyncio.sleep(0.02)

    async def renewed() -> bool:
        return min(counts) > 100 and await replaced(authorities, seen)

    async with asyncio.TaskGroup() as tasks:
        for name in ("a", "b"):
            tasks.create_task(submit(name))
        for number in (0, 1):
            tasks.create_task(connect(number))
        try:
            await eventually(renewed, bool, "both replicas have new ones", 90)
        finally:
            over.set()
    assert len(seen[0] & seen[1]) >= 2, "both serve the same, one after the other"
    for before, after in pairwise(authorities):
        assert set(certificates(before)) & set(certificates(after)), "old and new are both trusted in between"


async def replaced(authorities: list[bytes], seen: list[set[bytes]]) -> bool:
    """Whether both replicas have served what an authority issued that wasn't there in the beginning."""
    first = certificates(authorities[0])
    newest = certificates(authorities[-1])[0]
    if newest in first:
        return False
    return all(any(issued_by(newest, each) for each in mine) for mine in seen)


def issued_by(issuer: x509.Certificate, der: bytes) -> bool:
    return x509.load_der_x509_certificate(der).issuer == issuer.subject


def certificates(pem: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(pem)


def pod(name: str, queue: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {names.QUEUE: queue}}, "spec": pod_spec()}
