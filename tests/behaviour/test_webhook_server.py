"""The webhook's server alone, over real TLS on loopback: its limits, its answers to nonsense, its
certificates."""

import asyncio
import gc
import io
import json
import ssl
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from certs import authority
from certs.authority import Material
from certs.rotation import load
from startgate.audit.journal import Journal
from startgate.model.queue import QueueSpec
from tests.unit.test_webhook_review import Known, admission, envelope
from tests.unit.webhook_objects import QUEUE, job_json
from webhook import endpoints
from webhook.server import Limits, Listener
from webhook.submission import Facts

NAMES: Final = authority.server_names("startgate-webhook", "startgate-system")
NAME: Final = NAMES[2]
HOST: Final = "127.0.0.1"
QUICK: Final = Limits(
    header_seconds=0.3, body_seconds=0.5, handshake_seconds=0.3, idle_seconds=0.6, linger_seconds=0.1, connections=8
)
PATIENT: Final = Limits()

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    """A listener with the real endpoints, its certificate, and a client that trusts it."""

    def __init__(self, limits: Limits) -> None:
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.material = authority.create(NAMES, time.time())
        load(self.tls, self.material)
        desk = admission(Known(Facts(queue=QueueSpec())), io.BytesIO())
        self.listener: Listener = Listener(endpoints.reviews(desk, lambda: self.listener), limits=limits)

    async def connect(self, material: Material | None = None) -> Stream:
        client = ssl.create_default_context(cadata=(material or self.material).bundle.decode())
        return await asyncio.open_connection(HOST, self.listener.port, ssl=client, server_hostname=NAME)

    async def raw(self) -> Stream:
        return await asyncio.open_connection(HOST, self.listener.port)


@asynccontextmanager
async def served(limits: Limits = PATIENT) -> AsyncIterator[Served]:
    one = Served(limits)
    one.listener.start(0, host=HOST, tls=one.tls)
    try:
        yield one
    finally:
        await one.listener.stop(0)


def post(body: bytes, path: str = "/jobs", *extra: str, kind: str = "application/json") -> bytes:
    head = [f"POST {path} HTTP/1.1", f"Host: {NAME}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *extra]
    return "\r\n".join([*head, "", ""]).encode() + body


REVIEW: Final = post(envelope(job_json(QUEUE)), "/jobs?timeout=5s")


CHUNKED: Final = (
    b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)


async def response(stream: Stream, within: float = 5) -> tuple[int, bytes]:
    """Status and body of the next answer on the connection."""
    head = (await asyncio.wait_for(stream[0].readuntil(b"\r\n\r\n"), within)).decode()
    length = next(int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length"))
    return int(head.split()[1]), await stream[0].readexactly(length)


async def ask(stream: Stream, request: bytes) -> tuple[int, bytes]:
    stream[1].write(request)
    await stream[1].drain()
    return await response(stream)


async def seconds_until_closed(stream: Stream) -> float:
    started = time.monotonic()
    try:
        while await asyncio.wait_for(stream[0].read(4096), 5):
            pass
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        stream[1].transport.abort()
    return time.monotonic() - started


async def test_a_review_is_answered_and_the_connection_kept() -> None:
    async with served() as one:
        stream = await one.connect()
        for _ in range(3):
            status, body = await ask(stream, REVIEW)
            assert status == 200
            assert json.loads(body)["response"]["allowed"] is True


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post(b""), 400),
        (post(b"{"), 400),
        (post(b"\x00\xff" * 100), 400),
        (post(b'{"a":' * 100_000), 400),
        (post(envelope(job_json(QUEUE), uid="")), 400),
        (post(envelope(None).replace(b"/v1", b"/v1beta1")), 400),
        (post(b"{}", kind="text/plain"), 415),
        (post(b"{}", "/jobs", "Content-Encoding: gzip"), 415),
        (post(b"{}", "/elsewhere"), 404),
        (post(b"{}", "/jobs/../pods"), 404),
        (b"GET /jobs HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n", 400),
        (CHUNKED + b"2\r\n{}zz\r\n", 400),
        (b"POST /jobs HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 400),
        (b"POST /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"POST /jobs HTTP/1.1\r\n" + b"".join(b"X%d: 1\r\n" % n for n in range(100)) + b"\r\n", 400),
    ],
)
async def test_nonsense_is_a_clean_4xx_and_the_server_goes_on(
    request_: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as one:
        found, body = await ask(await one.connect(), request_)
        assert found == status
        assert b"Traceback" not in body
        assert (await ask(await one.connect(), REVIEW))[0] == 200
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("sent", [post(b"{" * 100)[:-50], CHUNKED + b"10\r\n{}", REVIEW[:60], REVIEW])
async def test_a_client_that_goes_away_leaves_no_trace(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with served() as one:
        stream = await one.connect()
        stream[1].write(sent)
        await stream[1].drain()
        await asyncio.sleep(0.05)
        stream[1].transport.abort()
        await asyncio.sleep(0.05)
        assert (await ask(await one.connect(), REVIEW))[0] == 200
    assert "Traceback" not in caplog.text


async def test_a_body_that_is_too_long_is_refused_before_it_is_read() -> None:
    async with served() as one:
        stream = await one.connect()
        stream[1].write(post(b"")[:-4].replace(b"Length: 0", b"Length: 99999999") + b"\r\n\r\n")
        assert (await response(stream))[0] == 413


async def test_a_body_of_unknown_length_ends_at_the_limit() -> None:
    async with served(Limits(body=200_000)) as one:
        stream = await one.connect()
        stream[1].write(CHUNKED)
        for _ in range(4):
            stream[1].write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        assert (await response(stream))[0] == 413


@pytest.mark.parametrize(
    "request_", [post(b"{" * 10**6), CHUNKED + (b"10000\r\n" + b" " * 0x10000 + b"\r\n") * 20], ids=["400", "413"]
)
async def test_a_body_that_is_refused_is_let_go_at_once(request_: bytes) -> None:
    async with served(Limits(body=10**6)) as one:
        await ask(await one.connect(), REVIEW)
        gc.collect()
        gc.disable()  # what is in a circle stays now
        tracemalloc.start()
        try:
            for _ in range(10):
                stream = await one.connect()
                assert (await ask(stream, request_))[0] in (400, 413)
                stream[1].transport.abort()
                await asyncio.sleep(0.01)
            assert tracemalloc.get_traced_memory()[0] < 5 * 10**6
        finally:
            tracemalloc.stop()
            gc.enable()


async def test_the_largest_review_fits() -> None:
    async with served() as one:
        filler = "x" * (3 * 2**20)
        body = envelope(job_json(QUEUE, {"filler": filler}), "UPDATE", oldObject=job_json(QUEUE, {"filler": filler}))
        status, answer = await ask(await one.connect(), post(body))
        assert (status, json.loads(answer)["response"]["allowed"]) == (200, True)


@pytest.mark.parametrize("first", [b"", REVIEW])
async def test_a_header_that_trickles_is_cut(first: bytes) -> None:
    async with served(QUICK) as one:
        stream = await one.connect()
        if first:
            await ask(stream, first)

        async def trickle() -> None:
            for byte in post(b"{}"):
                stream[1].write(bytes([byte]))
                await asyncio.sleep(0.05)

        task = asyncio.create_task(trickle())
        taken = await seconds_until_closed(stream)
        task.cancel()
        assert QUICK.header_seconds * 0.9 < taken < QUICK.header_seconds + 0.25


async def test_a_body_that_stalls_is_a_408() -> None:
    async with served(QUICK) as one:
        stream = await one.connect()
        stream[1].write(post(b"{" * 100)[:-50])
        assert (await response(stream))[0] == 408
        assert await seconds_until_closed(stream) < 1


@pytest.mark.parametrize("first", [b"", REVIEW])
async def test_an_idle_connection_ends(first: bytes) -> None:
    async with served(QUICK) as one:
        stream = await one.connect()
        if first:
            await ask(stream, first)
        assert QUICK.idle_seconds * 0.9 < await seconds_until_closed(stream) < QUICK.idle_seconds + 0.5


async def test_idle_connections_outlive_those_of_the_api_server() -> None:
    assert PATIENT.idle_seconds > 90


@pytest.mark.parametrize("hello", [b"", b"\x16\x03\x01\x02\x00"])
async def test_a_handshake_that_stalls_is_cut(hello: bytes) -> None:
    async with served(QUICK) as one:
        stream = await one.raw()
        stream[1].write(hello)
        assert QUICK.handshake_seconds * 0.9 < await seconds_until_closed(stream) < QUICK.handshake_seconds + 0.5


async def test_plain_text_on_the_tls_port_is_cut() -> None:
    async with served() as one:
        stream = await one.raw()
        stream[1].write(REVIEW)
        assert await seconds_until_closed(stream) < 1
        assert (await ask(await one.connect(), REVIEW))[0] == 200


async def test_when_all_connections_are_taken_the_idlest_makes_room() -> None:
    async with served(Limits(connections=4, handshake_seconds=0.3)) as one:
        streams = [await one.connect() for _ in range(4)]
        for stream in streams[1:]:
            await ask(stream, REVIEW)
        await asyncio.sleep(0.05)
        assert (await ask(await one.connect(), REVIEW))[0] == 200
        assert await seconds_until_closed(streams[0]) < 0.5
        assert (await ask(streams[3], REVIEW))[0] == 200, "the others stay"


async def test_stalled_handshakes_count_and_make_room_when_they_are_cut() -> None:
    async with served(Limits(connections=4, handshake_seconds=0.3)) as one:
        stalled = [await one.raw() for _ in range(4)]
        await asyncio.sleep(0.05)
        started = time.monotonic()
        assert (await ask(await one.connect(), REVIEW))[0] == 200
        assert time.monotonic() - started < 1
        for stream in stalled:
            stream[1].transport.abort()


async def test_a_new_certificate_is_used_from_the_next_handshake_on_and_no_connection_is_dropped() -> None:
    async with served() as one:
        before = await one.connect()
        assert (await ask(before, REVIEW))[0] == 200
        fresh = authority.create(NAMES, time.time())
        load(one.tls, fresh)
        after = await one.connect(fresh)
        assert (await ask(after, REVIEW))[0] == 200
        assert (await ask(before, REVIEW))[0] == 200, "the old connection lives on"
        with pytest.raises(ssl.SSLCertVerificationError):
            await one.connect()


async def test_no_request_fails_while_certificates_change() -> None:
    async with served() as one:
        both = authority.create(NAMES, time.time())
        trusting = Material(b"", b"", one.material.bundle + both.bundle, b"")
        stop = asyncio.Event()

        async def client() -> int:
            count = 0
            while not stop.is_set():
                stream = await one.connect(trusting)
                for _ in range(3):
                    assert (await ask(stream, REVIEW))[0] == 200
                    count += 1
                stream[1].close()
            return count

        clients = [asyncio.create_task(client()) for _ in range(4)]
        for number in range(20):
            load(one.tls, (one.material, both)[number % 2])
            await asyncio.sleep(0.02)
        stop.set()
        assert sum(await asyncio.gather(*clients)) > 20


async def test_what_is_under_way_is_answered_when_it_stops() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Known):
        async def live(self, *_: str) -> Any:
            asked.set()
            await go_on.wait()
            return Facts(queue=QueueSpec())

    one = Served(PATIENT)
    desk = admission(Slow(), io.BytesIO())
    one.listener = Listener(endpoints.reviews(desk, lambda: one.listener))
    one.listener.start(0, host=HOST, tls=one.tls)
    stream, idle = await one.connect(), await one.connect()
    stream[1].write(REVIEW)
    await asked.wait()
    stopping = asyncio.create_task(one.listener.stop(5))
    await asyncio.sleep(0.05)
    with pytest.raises(OSError, match=r"."):
        await one.connect()
    go_on.set()
    assert (await response(stream))[0] == 200
    await asyncio.wait_for(stopping, 2)
    assert await seconds_until_closed(idle) < 0.5


async def plain(unready: Callable[[], str], request: bytes) -> tuple[int, bytes]:
    listener = Listener(endpoints.health(unready))
    listener.start(0, host=HOST)
    try:
        return await ask(await asyncio.open_connection(HOST, listener.port), request)
    finally:
        await listener.stop(0)


@pytest.mark.parametrize(
    ("path", "why", "status", "words"),
    [
        ("/healthz", "no certificate yet", 200, b"ok"),
        ("/readyz", "no certificate yet", 503, b"no certificate yet"),
        ("/readyz", "", 200, b"ok"),
        ("/metrics", "", 200, b"startgate_webhook_reviews_total"),
        ("/jobs", "", 404, b"/readyz"),
    ],
)
async def test_health_is_plain_http(path: str, why: str, status: int, words: bytes) -> None:
    found, body = await plain(lambda: why, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert found == status
    assert words in body


async def test_what_cannot_be_recorded_is_a_denial_not_an_error() -> None:
    closed = io.BytesIO()
    closed.close()
    one = Served(PATIENT)
    desk = admission(Known(Facts(queue=QueueSpec())), closed)
    assert isinstance(desk._journal, Journal)
    one.listener = Listener(endpoints.reviews(desk, lambda: one.listener))
    one.listener.start(0, host=HOST, tls=one.tls)
    status, body = await ask(await one.connect(), REVIEW)
    assert (status, json.loads(body)["response"]["allowed"]) == (200, False)
    await one.listener.stop(0)
