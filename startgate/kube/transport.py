"""What happens below a request: sockets, lines, and what their failures are called.

Always holds: what the network does to us leaves this module as `Unreachable`, what the server answers as
`ApiError`.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any

import aiohttp
import msgspec

from startgate.kube.errors import ApiError, Unreachable, Unreadable

LONGEST_LINE = 32 * 2**20
"""Bytes of one watch event. etcd refuses objects of more than 1.5 MiB (--max-request-bytes)."""


class _Details(msgspec.Struct, rename="camel", frozen=True):
    retry_after_seconds: int | None = None


class Status(msgspec.Struct, frozen=True):
    """metav1.Status, as far as it tells what went wrong."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_decode_status = msgspec.json.Decoder(Status).decode


def status_of(body: bytes | msgspec.Raw) -> Status:
    """The Status, or an empty one with what was said instead: a proxy's page, plain text."""
    try:
        return _decode_status(body)
    except (msgspec.DecodeError, RecursionError):
        return Status(message=bytes(body)[:200].decode("utf-8", "replace").strip())


def error_of(answer: aiohttp.ClientResponse, body: bytes) -> ApiError:
    """The error that an answer without success stands for."""
    status = status_of(body)
    after: float | None = None
    header = answer.headers.get("Retry-After", "")
    if header.isascii() and header.isdecimal():
        after = float(header)
    elif status.details is not None and status.details.retry_after_seconds:
        after = float(status.details.retry_after_seconds)
    message = status.message or answer.reason or "The API server gave no reason"
    asked = f"{answer.method} {answer.url.path}"
    return ApiError(answer.status, status.reason, message, retry_after=after, asked=asked)


class Translated:
    """Makes Unreachable of whatever aiohttp and the operating system raise when the network fails."""

    __slots__ = ("server",)

    def __init__(self, server: str) -> None:
        self.server = server

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, TimeoutError):
            raise Unreachable(f"No answer in time from the API server at {self.server}.") from error
        if isinstance(error, (aiohttp.ClientError, OSError)):
            said = str(error) or type(error).__name__
            raise Unreachable(f"The API server at {self.server} can't be reached: {said}") from error


async def lines(content: aiohttp.StreamReader, server: str) -> AsyncGenerator[bytes]:
    """The lines as they come; Unreachable where the connection fails. For an empty line, empty bytes."""
    # Not StreamReader's own lines: they fail at 128 KiB, and one object may be over a megabyte.
    begun: list[bytes] = []
    size = 0
    while True:
        with Translated(server):
            chunk = await content.readany()
        if not chunk:
            break
        first, *others = chunk.split(b"\n")
        begun.append(first)
        size += len(first)
        if size > LONGEST_LINE:
            raise Unreadable(f"The API server sent a line of more than {LONGEST_LINE} bytes.")
        if others:
            yield b"".join(begun)
            for line in others[:-1]:
                yield line
            begun, size = [others[-1]], len(others[-1])
    if size:
        yield b"".join(begun)


def open_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices a dead peer in about half a minute, also while it only listens (watches)."""
    family, kind, protocol, _, _ = address
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)
    return opened
