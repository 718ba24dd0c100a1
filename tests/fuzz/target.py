"""The real server over TLS, and what must hold whatever is sent to it.

What always holds, or `Broken` says what doesn't: each review is answered in time, by an AdmissionReview with its uid or
by a 400 with a sentence; a denial says why; a patch is one that the API server can apply; the audit log has one
readable line for each decision; nothing is logged as an error of ours; and the next client is served. Only the facts of
the cluster are made up: `CLUSTERS`.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import msgspec
from aiohttp import web

from startgate.audit.journal import Journal
from startgate.audit.record import DECODER
from startgate.model.gang import Phase
from startgate.model.queue import QueueSpec
from tests.behaviour.test_webhook_server import HOST, PATIENT, REVIEW, Served, Stream, post, response
from tests.fuzz.reviews import Sent
from tests.unit.test_webhook_review import CONTROLLER
from webhook import endpoints
from webhook.admission import Admission
from webhook.facts import FactsError, Lookup
from webhook.server import Listener
from webhook.submission import Facts

IN_TIME: Final = 1.0
"""Seconds. The API server waits 5."""


class Broken(AssertionError):  # noqa: N818
    """Something that must hold didn't."""


class Slow(Broken):
    """An answer that took longer than IN_TIME."""


class Cluster(msgspec.Struct, frozen=True):
    """What the cluster says, in the place of webhook.facts.Lookup."""

    facts: Facts | None
    live_facts: Facts | None = None
    queues: Mapping[str, QueueSpec] | None = None
    passed: Phase | None = None

    def let_in(self, queue: str, pods: int) -> None:
        pass

    def cached(self, *_: str) -> Facts | None:
        return self.facts

    async def live(self, *_: str) -> Facts:
        if self.live_facts is None:
            raise FactsError("the API server can't be asked")
        return self.live_facts

    def cached_queues(self) -> Mapping[str, QueueSpec] | None:
        return self.queues

    async def live_queues(self) -> Mapping[str, QueueSpec]:
        if self.queues is None:
            raise FactsError("the API server can't be asked")
        return self.queues

    async def phase(self, *_: str) -> Phase | None:
        return self.passed


def _spec(**fields: Any) -> QueueSpec:
    return msgspec.convert(fields, QueueSpec)


_TREE: Final = {
    "q": _spec(parent="p", guarantee={"cpu": "1"}, capability={"cpu": "8"}),
    "p": _spec(capability={"cpu": "10"}),
    "4": _spec(parent="true"),
    "true": _spec(parent="4"),
}
CLUSTERS: Final = (
    Cluster(Facts(queue=QueueSpec()), Facts(queue=QueueSpec()), _TREE),
    Cluster(None, None, None),
    Cluster(None, Facts(queue=None, nearest="q"), {}, Phase.RUNNING),
    Cluster(
        Facts(queue=_spec(maxPriority=5, namespaces={"matchLabels": {"a": "b"}}), priority=7, waiting=10**6),
        Facts(queue=_spec(parkBeyond=0), namespace={"a": "b"}, waiting=10**6, priority=None),
        _TREE,
        Phase.WAITING,
    ),
)


class Target:
    """A server, and a client of it that keeps its connection."""

    def __init__(self, one: Served, out: io.BytesIO, errors: list[str]) -> None:
        self.one = one
        self._out = out
        self._errors = errors
        self._stream: Stream | None = None
        desks = [
            Admission(cast("Lookup", cluster), Journal([out], "webhook", "w"), controller=CONTROLLER, clock=lambda: 0.0)
            for cluster in CLUSTERS
        ]
        self._handlers = [endpoints.reviews(desk, lambda: one.listener) for desk in desks]
        self.cluster = 0
        one.listener = Listener(self._handle, limits=PATIENT)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._handlers[self.cluster](request)

    async def send(self, sent: Sent) -> None:
        """One review; Broken where its answer isn't as it must be."""
        self.cluster = sent.cluster
        status, body = await self._ask(post(sent.body, sent.path))
        self._check_trace(1 if status == 200 else 0)
        if status == 200:
            _check_answer(body, sent)
        elif status != 400 or not body.strip():
            raise Broken(f"HTTP {status}: {body[:200]!r}")

    async def raw(self, data: bytes) -> None:
        """Bytes that needn't be HTTP, from a client that then goes away; Broken if the next one isn't served."""
        self.cluster = 0
        _, writer = await self.one.connect()
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(0)
        writer.transport.abort()
        status, _ = await self._ask(REVIEW)
        if status != 200:
            raise Broken(f"the next review: HTTP {status}")
        self._check_trace(2)  # the bytes may have been a review

    async def _ask(self, request: bytes) -> tuple[int, bytes]:
        started = time.monotonic()
        try:
            if self._stream is None or self._stream[1].is_closing():
                self._stream = await self.one.connect()
            self._stream[1].write(request)
            await self._stream[1].drain()
            answer = await response(self._stream)
        except (OSError, EOFError, TimeoutError) as error:
            self._stream = None
            raise Broken(f"no answer: {error!r}") from error
        taken = time.monotonic() - started
        if taken > IN_TIME:
            raise Slow(f"{taken:.1f} s for {len(request)} bytes: {request[:200]!r}")
        return answer

    def _check_trace(self, most: int) -> None:
        lines = self._out.getvalue().splitlines()
        self._out.seek(0)
        self._out.truncate()
        if len(lines) > most:
            raise Broken(f"one decision makes {len(lines)} lines of the audit log: {lines[:3]}")
        for line in lines:
            try:
                DECODER.decode(line)
                json.loads(line)
            except (ValueError, RecursionError) as error:
                raise Broken(f"the audit log can't be read: {error}: {line[:300]!r}") from error
        if self._errors:
            said, self._errors[:] = "; ".join(self._errors), []
            raise Broken(f"logged as our own error: {said}")


class _Request(msgspec.Struct):
    uid: str


class _Review(msgspec.Struct):
    request: _Request


_asked = msgspec.json.Decoder(_Review).decode


def _check_answer(body: bytes, sent: Sent) -> None:
    answer = json.loads(body)
    made = answer["response"]
    if (answer["apiVersion"], answer["kind"]) != ("admission.k8s.io/v1", "AdmissionReview"):
        raise Broken(f"no AdmissionReview: {body[:200]!r}")
    if made["uid"] != _asked(sent.body).request.uid:
        raise Broken("the answer is for another request")
    if not made["allowed"] and not 0 < len(made["status"]["message"]) <= 4000:
        raise Broken(f"a denial without a reason, or with an endless one: {body[:200]!r}")
    if "patch" in made:
        operations = json.loads(base64.b64decode(made["patch"]))
        if not operations or any(each["op"] not in ("add", "remove") or not each["path"] for each in operations):
            raise Broken(f"no patch: {operations}")


class _Errors(logging.Handler):
    """Keeps what the server says of itself that it shouldn't have to."""

    def __init__(self, into: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        self._into.append(self.format(record))


@asynccontextmanager
async def target() -> AsyncIterator[Target]:
    """A server for as long as the context lasts."""
    errors: list[str] = []
    handler = _Errors(errors)
    logging.getLogger().addHandler(handler)
    one = Served(PATIENT)
    made = Target(one, io.BytesIO(), errors)
    one.listener.start(0, host=HOST, tls=one.tls)
    try:
        yield made
    finally:
        await one.listener.stop(0)
        logging.getLogger().removeHandler(handler)
