"""The webhook as it ships, among clients that mean it ill or know no better: the API server's questions are answered in
time all along, and in the end it has the memory and the connections that it had before.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from certs import authority
from localcluster.ports import LOOPBACK
from startgate.kube.kinds import JOBS, SECRETS
from startgate.model import names
from tests.behaviour.kit import Field, eventually, job_of
from tests.behaviour.test_webhook_server import CHUNKED, Stream, post, response
from tests.fuzz.reviews import deep

SERVER_NAME: Final = authority.server_names(names.WEBHOOK_SERVICE, names.SYSTEM_NAMESPACE)[2]
AT_ONCE: Final = 20
"""Clients of each kind."""
ROUNDS: Final = 2
IN_TIME: Final = 5.0
"""Seconds: timeoutSeconds of the configurations, after which the API server gives a review up."""
GROWTH: Final = 64
"""MiB that the last round may have left beyond the first. malloc keeps some of what large bodies took; where refused
bodies were kept until Python looked for circles, it was 200 and more."""
BIG: Final = b'{"apiVersion":"admission.k8s.io/v1","filler":"' + b"x" * (6 * 2**20) + b'"}'

Connect = Callable[[], Awaitable[Stream]]
Attack = Callable[[Connect], Awaitable[None]]


def sends(data: bytes, *statuses: int) -> Attack:
    """Sends this, and gets one of these answers."""

    async def attack(connect: Connect) -> None:
        stream = await connect()
        stream[1].write(data)
        status, _ = await response(stream, 30)
        assert status in statuses
        stream[1].transport.abort()

    return attack


def stalls(data: bytes) -> Attack:
    """Sends this, nothing more for a second, and goes away."""

    async def attack(connect: Connect) -> None:
        stream = await connect()
        stream[1].write(data)
        await asyncio.sleep(1)
        stream[1].transport.abort()

    return attack


async def trickles(connect: Connect) -> None:
    """Sends a byte at a time."""
    stream = await connect()
    for byte in post(b"{}")[:20]:
        stream[1].write(bytes([byte]))
        await asyncio.sleep(0.05)
    stream[1].transport.abort()


async def never_reads(connect: Connect) -> None:
    """Asks and asks on one connection, and takes no answer."""
    stream = await connect()
    stream[1].transport.pause_reading()  # type: ignore[attr-defined]
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(1):
            while True:
                stream[1].write(post(b"{}") * 100)
                await stream[1].drain()
    stream[1].transport.abort()


async def endless(connect: Connect) -> None:
    """A body of unknown length that doesn't end."""
    stream = await connect()
    stream[1].write(CHUNKED)
    with contextlib.suppress(ConnectionError):
        for _ in range(200):
            stream[1].write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
            await stream[1].drain()
    stream[1].transport.abort()


ATTACKS: Final[tuple[Attack, ...]] = (
    sends(post(deep("/jobs", 100_000)), 400),
    sends(post(BIG), 400),
    sends(post(b"{" * 1000), 400),
    sends(post(b'{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"u"}}'), 400),
    sends(b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99999999\r\n\r\n", 413),
    stalls(b""),
    stalls(post(b"{}")[:30]),
    stalls(post(BIG)[: 2**20]),
    trickles,
    never_reads,
    endless,
)


def memory(pid: int) -> float:
    """MiB that the process has in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def sockets(pid: int) -> int:
    """How many files the process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def test_among_hostile_clients_it_answers_and_keeps_its_size(
    field: Field, record_property: Callable[[str, object], None]
) -> None:
    webhook = field.startgate.webhook
    secret = await field.client.get(SECRETS, names.CERTIFICATE_SECRET, names.SYSTEM_NAMESPACE)
    assert secret.data
    trusting = ssl.create_default_context(cadata=secret.data["ca.crt"].decode())
    queue = await field.queue()
    over = asyncio.Event()
    taken: list[float] = []

    async def connect() -> Stream:
        return await asyncio.open_connection(LOOPBACK, webhook.port, ssl=trusting, server_hostname=SERVER_NAME)

    async def honest() -> None:
        while not over.is_set():
            started = time.monotonic()
            await field.client.create(JOBS, job_of("a", pods=1, queue=queue), field.namespace, dry_run=True)
            taken.append(time.monotonic() - started)
            await asyncio.sleep(0.02)

    async def one_round() -> float:
        for attack in ATTACKS:
            few = 8 if attack is ATTACKS[1] or attack is endless else AT_ONCE
            await asyncio.gather(*(attack(connect) for _ in range(few)))
        return memory(webhook.pid)

    asking = asyncio.create_task(honest())
    await one_round()  # whatever is loaded, cached and kept by malloc at the first time
    opened = sockets(webhook.pid)
    sizes = [await one_round() for _ in range(ROUNDS)]
    over.set()
    await asking
    record_property("seconds", max(taken))
    record_property("MiB", sizes)
    assert len(taken) > 20
    assert max(taken) < IN_TIME
    assert sizes[-1] - sizes[0] < GROWTH, sizes

    async def left() -> int:
        return sockets(webhook.pid)

    await eventually(left, lambda now: now <= opened + 2, "their connections are gone")
    log = webhook.log.read_text(errors="replace")
    assert '"level": "error"' not in log
    assert "Traceback" not in log
    print(f"\nslowest {max(taken):.2f} s of {len(taken)}; MiB after each round: {sizes}")
