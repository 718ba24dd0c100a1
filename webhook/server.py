"""An HTTP server in which no client can take more than its share of memory, connections or time.

aiohttp does the HTTP; what it leaves open by default is closed here, since whoever reaches a webhook need not
be the API server:

* body: none that is longer than two objects can be; large ones a few at a time; compressed ones not at all;
* header and body have to come within a time, however steadily they trickle; aiohttp knows neither limit;
* idle connections end (aiohttp: after an hour), but not before the API server's own idle limit, lest it sends
  a review into a connection that we are just closing: Go doesn't repeat a POST;
* the TLS handshake has to come within a time (asyncio: a minute);
* connections are bounded, those in handshake included: the sockets are accepted here, because the event
  loop's own server accepts without end. When all are taken, the one that has been idle longest makes room; if
  none is idle, new ones wait in the kernel's queue.

What always holds: each connection that is accepted is counted until it is closed.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from msgspec import Struct

from webhook import metrics

log = logging.getLogger(__name__)


class Limits(Struct, frozen=True, kw_only=True):
    """In bytes and seconds."""

    body: int = 7 * 2**20
    """A review has the object, up to 3 MiB (kube-apiserver's MaxRequestBodyBytes), the one before, which etcd
    keeps to 1.5 MiB (protobuf; twice that as JSON), and the user's groups and extras."""
    large: int = 256 * 1024
    """Of bodies above this there are `large_at_once` at a time. A Job is some 3 KiB."""
    large_at_once: int = 8
    header_seconds: float = 10.0
    body_seconds: float = 10.0
    """The API server has given up on a review by then (timeoutSeconds)."""
    handshake_seconds: float = 10.0
    idle_seconds: float = 120.0
    """client-go closes its idle connections after 90."""
    linger_seconds: float = 1.0
    """For a client that still sends a body which was refused, so that it gets to read the answer."""
    connections: int = 1024


LINE: Final = 8 * 1024
"""Bytes of a request line and of a header field."""
HEADERS: Final = 64
"""Fields. The API server sends six."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Connection(web.RequestHandler):
    """One client. `busy` while a request of it is handled."""

    __slots__ = ("_late", "_listener", "busy", "idle_since")

    def __init__(self, manager: web.Server, listener: "Listener", limits: Limits) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=limits.idle_seconds,
            lingering_time=limits.linger_seconds,
            max_line_size=LINE,
            max_field_size=LINE,
            max_headers=HEADERS,
            auto_decompress=False,
            access_log=None,  # type: ignore[arg-type]  # what it takes for "none", though it isn't declared so
        )
        self._listener = listener
        self._late: asyncio.TimerHandle | None = None
        self.busy = False
        self.idle_since = loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listener.joined(self)

    def data_received(self, data: bytes) -> None:
        if data and self._late is None and not self.busy:
            self._late = self._loop.call_later(self._listener.limits.header_seconds, self._header_late)
        super().data_received(data)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Without a traceback in the log for what isn't HTTP: anybody could fill the log with it."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        metrics.REJECTED.labels(str(status)).inc()
        response = web.Response(status=status, text=message)
        response.force_close()
        return response

    def begin(self) -> None:
        """A request's header is here, and its handler begins."""
        self.busy = True
        self._in_time()

    def end(self) -> None:
        """The handler has made its answer."""
        self.busy = False
        self.idle_since = self._loop.time()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._in_time()
        super().connection_lost(exc)
        self._listener.left(self)

    def cut(self, limit: str) -> None:
        """Ends the connection at once."""
        metrics.CUT.labels(limit).inc()
        if self.transport is not None:
            self.transport.abort()

    def _header_late(self) -> None:
        self._late = None
        self.cut("header")

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class Listener:
    """One port. `handler` gets requests whose header is whole; their body is read by `body`."""

    def __init__(self, handler: Handler, *, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.draining = False
        """Answers ask for the connection's end, so that clients go elsewhere."""
        self._handler = handler
        self._manager = web.Server(self._handle, request_factory=self._request)
        self._large = asyncio.Semaphore(self.limits.large_at_once)
        self._connections: set[Connection] = set()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._accepting: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None

    @property
    def port(self) -> int:
        """Where it listens, once started."""
        assert self._socket is not None
        port: int = self._socket.getsockname()[1]
        return port

    def start(self, port: int, *, host: str = "", tls: ssl.SSLContext | None = None) -> None:
        """Listens on all addresses of the machine, or on `host` alone. OSError if the port is taken."""
        self._socket = _bind(host, port)
        self._accepting = asyncio.create_task(self._accept(self._socket, tls))

    async def stop(self, seconds: float) -> None:
        """Takes no more connections, and gives what is under way that long to be answered."""
        self.draining = True
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
        for handshake in self._handshakes:
            handshake.cancel()
        self._manager.pre_shutdown()
        await self._manager.shutdown(seconds)

    @asynccontextmanager
    async def body(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        """The whole body. A large one counts until the context ends, since what is made of it refers to it.

        HTTPException (400, 408, 413, 415) if it is none, or a limit is broken.
        """
        if "Content-Encoding" in request.headers:
            raise web.HTTPUnsupportedMediaType(text="Send the body as it is, without Content-Encoding.\n")
        length = request.content_length
        if length is not None and length > self.limits.body:
            raise web.HTTPRequestEntityTooLarge(self.limits.body, length)
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self.limits.body_seconds):
                    if length is None or length > self.limits.large:
                        await stack.enter_async_context(self._large)
                    data = await request.read()
            except (web.RequestPayloadError, ConnectionError) as error:  # the latter: it went away
                request.protocol.close()
                raise web.HTTPBadRequest(text=f"The body can't be read: {error}\n") from error
            except TimeoutError:
                request.protocol.close()
                raise web.HTTPRequestTimeout(
                    text=f"The body has to come within {self.limits.body_seconds:g} seconds.\n"
                ) from None
            yield data

    def joined(self, connection: Connection) -> None:
        self._connections.add(connection)

    def left(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._count()

    def _count(self) -> int:
        taken = len(self._connections) + len(self._handshakes)
        if taken < self.limits.connections:
            self._room.set()
        return taken

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wait_for_room()
            try:
                client, _ = await loop.sock_accept(listening)
            except OSError as error:  # out of file descriptors, or gone again before we took it
                log.warning("A connection can't be accepted: %s", error)
                await asyncio.sleep(0.1)
                continue
            task = loop.create_task(self._greet(client, tls))
            self._handshakes.add(task)
            task.add_done_callback(self._greeted)

    async def _wait_for_room(self) -> None:
        while self._count() >= self.limits.connections:
            idle = min(
                (each for each in self._connections if not each.busy),
                key=lambda each: each.idle_since,
                default=None,
            )
            self._room.clear()
            if idle is not None:
                idle.cut("full")
            await self._room.wait()

    async def _greet(self, client: socket.socket, tls: ssl.SSLContext | None) -> None:
        """The TLS handshake; afterwards the connection is on its own."""
        seconds = self.limits.handshake_seconds if tls is not None else None
        try:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(self._manager, self, self.limits),
                client,
                ssl=tls,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            metrics.CUT.labels("handshake").inc()
            log.debug("A TLS handshake failed: %s", error)
            client.close()

    def _greeted(self, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(task)
        self._count()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("A connection could not be taken over", exc_info=error)

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> web.BaseRequest:
        return web.BaseRequest(
            message, payload, protocol, writer, task, protocol._loop, client_max_size=self.limits.body
        )

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.begin()
        try:
            response = await self._handler(request)
        except web.HTTPException as refusal:
            # Answered, not raised on: aiohttp would keep it, and by its traceback the body, until Python looks for
            # circles, while the next ones come.
            metrics.REJECTED.labels(str(refusal.status)).inc()
            response = web.Response(status=refusal.status, text=refusal.text, headers=refusal.headers)
        finally:
            connection.end()
        if self.draining:
            response.force_close()
        return response


def _bind(host: str, port: int) -> socket.socket:
    """All addresses, of both families where the machine has both."""
    backlog = 1024
    if not host and socket.has_dualstack_ipv6():
        listening = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
    else:
        listening = socket.create_server((host, port), backlog=backlog)
    listening.setblocking(False)
    return listening
