"""Whatever is sent to the webhook, it answers, and in time: found by hypothesis, over TLS, with the real server.

`make fuzz` does the same for as long as one likes, led by what the inputs reach.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.behaviour.test_webhook_server import CHUNKED, REVIEW
from tests.fuzz.reviews import PATHS, Sent, deep, reviews
from tests.fuzz.target import Target, target
from tests.unit.test_webhook_review import envelope

Stage = tuple[asyncio.Runner, Target]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """One server for all examples: what one leaves behind, the next would meet."""
    with asyncio.Runner() as runner:
        context = target()
        made = runner.run(context.__aenter__())
        yield runner, made
        runner.run(context.__aexit__(None, None, None))


MANY = settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])


QUEUE: Final = envelope({"metadata": {"name": "new"}, "spec": {"weight": 1, "x": "y"}}, name="new")


@MANY
@given(sent=reviews())
@example(Sent("/queues", json.dumps(json.loads(QUEUE), indent=1).encode(), 0))  # on several lines
@example(Sent("/queues", QUEUE.replace(b'"y"', b'"\xff"'), 0))  # no text, in what isn't read
def test_any_review_is_answered(stage: Stage, sent: Sent) -> None:
    runner, made = stage
    runner.run(made.send(sent))


@MANY
@given(path=st.sampled_from(PATHS), body=st.binary(max_size=200), cluster=st.integers(0, 3))
def test_any_bytes_are_answered(stage: Stage, path: str, body: bytes, cluster: int) -> None:
    runner, made = stage
    runner.run(made.send(Sent(path, body, cluster)))


@settings(MANY, max_examples=200)
@given(data=st.binary(max_size=200), start=st.sampled_from([b"", b"POST /jobs HTTP/1.1\r\n", CHUNKED, REVIEW]))
def test_after_any_bytes_the_next_client_is_served(stage: Stage, start: bytes, data: bytes) -> None:
    runner, made = stage
    runner.run(made.raw(start + data))


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"request":{"object":', b'"\\ud800', b"\xff"])
def test_what_never_ends_is_answered(stage: Stage, opening: bytes) -> None:
    runner, made = stage
    for path in PATHS:
        runner.run(made.send(Sent(path, opening * (1_000_000 // len(opening)), 0)))


@pytest.mark.parametrize("depth", [10, 400, 600, 100_000])
@pytest.mark.parametrize("path", PATHS)
def test_depth_is_answered(stage: Stage, path: str, depth: int) -> None:
    runner, made = stage
    runner.run(made.send(Sent(path, deep(path, depth), 0)))
