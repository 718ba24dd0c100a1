"""Events: what we tell users about their objects, in `kubectl describe`.

Always holds: telling never delays or breaks what is told of. The same thing isn't told again within ten
minutes, no more is told than the limit allows, and what can't be told is counted and dropped: the Gang's
status has it anyway.

API: events.k8s.io/v1 (KEP-383).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal
from uuid import uuid4

import msgspec
from cachetools import TTLCache

from startgate.kube.client import Client
from startgate.kube.errors import KubeError
from startgate.kube.kinds import Kind
from startgate.model.objects import ObjectMeta

log = logging.getLogger(__name__)

AGAIN_AFTER = 600.0
"""Seconds before the same event is posted again."""

REMEMBERED = 8_192
"""More than the limit lets through in that time."""
WAITING = 1_000
LONGEST_NOTE = 1024  # pkg/apis/core/validation/events.go
LONGEST_WORD = 128


class Regarding(msgspec.Struct, rename="camel", frozen=True):
    """core/v1 ObjectReference: what an event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class Event(msgspec.Struct, rename="camel", frozen=True):
    """events.k8s.io/v1 Event, as far as it is read."""

    metadata: ObjectMeta
    regarding: Regarding | None = None
    type: str = ""
    reason: str = ""
    note: str | None = None
    event_time: str | None = None


EVENTS = Kind("events.k8s.io", "v1", "events", "Event", True, Event)


class Budget:
    """A token bucket: `rate` a second in the long run, `burst` at once."""

    def __init__(self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._left = float(burst)
        self._at = clock()

    def take(self) -> bool:
        """Whether one more fits; then it is spent."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Recorder:
    """Posts events while `run` runs; `event` only notes them down. `dropped` counts those not posted."""

    def __init__(
        self,
        client: Client,
        reporter: str,
        instance: str,
        *,
        rate: float = 10.0,
        burst: int = 100,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`reporter` is a qualified name (startgate.dev/controller); `instance` is its pod."""
        self.dropped = 0
        self._client = client
        self._reporter = reporter
        self._instance = instance[:LONGEST_WORD]
        self._budget = Budget(rate, burst, clock=clock)
        self._told: TTLCache[bytes, None] = TTLCache(REMEMBERED, AGAIN_AFTER, timer=clock)
        self._waiting: asyncio.Queue[tuple[str, dict[str, object]]] = asyncio.Queue(WAITING)

    def event(
        self, regarding: Regarding, kind: Literal["Normal", "Warning"], reason: str, message: str, action: str
    ) -> None:
        """Notes an event down. `reason` and `action` are words in CamelCase; `message` is a sentence."""
        key = _digest((regarding, reason, message))
        if key in self._told:
            return
        if self._waiting.full() or not self._budget.take():
            self.dropped += 1
            return
        self._told[key] = None
        namespace = regarding.namespace or "default"  # for a cluster-scoped object, as client-go has it
        event: dict[str, object] = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {
                "name": f"{regarding.name[:200]}.{uuid4().hex}",
                "namespace": namespace,
            },
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": self._reporter,
            "reportingInstance": self._instance,
            "action": action[:LONGEST_WORD],
            "reason": reason[:LONGEST_WORD],
            "regarding": regarding,
            "note": _clipped(message),
            "type": kind,
        }
        self._waiting.put_nowait((namespace, event))

    async def run(self) -> None:
        """Posts what was noted down, one after the other, until cancelled."""
        while True:
            namespace, event = await self._waiting.get()
            try:
                await self._client.create(EVENTS, event, namespace, timeout=10.0)
            except KubeError as error:  # a namespace that is going, a server that is down
                self.dropped += 1
                log.info("An event wasn't posted: %s", error)


def _digest(told: tuple[Regarding, str, str]) -> bytes:
    """Remembered in place of the sentences: a thousand of them are a megabyte."""
    return hashlib.blake2b(msgspec.json.encode(told), digest_size=16).digest()


def _clipped(message: str) -> str:
    """At most as many bytes as the API server takes."""
    whole = message.encode()
    return message if len(whole) <= LONGEST_NOTE else whole[: LONGEST_NOTE - 3].decode("utf-8", "ignore") + "…"
