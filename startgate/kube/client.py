"""Requests to one API server: bytes in, bytes out, typed where a `Kind` says into what.

Always holds: whatever the outside does comes out as a `KubeError`; each request has an end in time; a request
is sent once unless its caller says that it may be sent again (`attempts`), because after a broken connection
nobody knows whether a write took effect. CPU counts here: bodies are decoded once, from bytes, and only where
somebody asks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import urlencode

import aiohttp
import msgspec
from yarl import URL

from startgate.kube.errors import ApiError, ConfigurationError, KubeError, Unreachable, Unreadable
from startgate.kube.kinds import Kind, T
from startgate.kube.transport import Translated, error_of, lines, open_socket

if TYPE_CHECKING:
    from startgate.kube.configuration import Target

__all__ = ["ApiError", "Client", "ConfigurationError", "KubeError", "Patch", "Unreachable", "Unreadable"]

PAGE = 500
"""Objects in one page of a list, as kubectl asks (--chunk-size)."""

LONGEST_WAIT = 10.0
"""Seconds at most between two attempts, whatever Retry-After says."""

BEGIN = 30.0
"""Seconds in which the answer to a watch has to begin, like that to any request; its lines may then be far between."""


class Patch(StrEnum):
    """The kinds of patch, as content types (Kubernetes API concepts, "Patch and apply")."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


_encode = msgspec.json.Encoder().encode


class Client:
    """A connection pool to one API server, under one identity. Made by `connect`, closed by `close`.

    `namespace` is that of the context. At most `connections` requests are under way at once (watches
    included); more wait within their timeout, so callers bound what they send together below it.
    """

    def __init__(self, target: Target, *, connections: int = 64) -> None:
        self.namespace = target.namespace
        self.server = target.server
        self._credential = target.credential
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections, ssl=target.tls, keepalive_timeout=60.0, socket_factory=open_socket
            ),
            # Compression would cost the API server CPU for each list, and that CPU is what limits us.
            headers={"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "startgate"},
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=target.proxy,
            read_bufsize=2**18,
        )
        self._server_hostname = target.tls_server_name

    @classmethod
    async def connect(cls, *, kubeconfig: str | None = None, context: str | None = None, connections: int = 64) -> Self:
        """Reads the configuration; the first request is what really connects.

        Without `kubeconfig`: $KUBECONFIG, else the ServiceAccount of the pod that we run in, else
        ~/.kube/config. ConfigurationError where none of them will do.
        """
        from startgate.kube.configuration import load  # noqa: PLC0415  (takes most of a second; see there)

        return cls(await load(kubeconfig, context), connections=connections)

    async def close(self) -> None:
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object | None = None,
        content_type: str = "application/json",
        timeout: float = 30.0,  # noqa: ASYNC109
        attempts: int = 1,
    ) -> bytes:
        """The body of the answer; KubeError for any other end.

        `body` is sent as it is if it is bytes, else as JSON. `timeout` is in seconds, for each attempt.
        `attempts` above 1 says that the request may take effect twice without harm: it is sent again after a
        429 or 5xx answer or a lost connection, when Retry-After says or after a growing, jittered wait.
        """
        data = body if body is None or isinstance(body, bytes) else _encode(body)
        content = {} if data is None else {"Content-Type": content_type}
        url = self._url(path, query)
        for attempt in range(1, attempts + 1):
            try:
                return await self._send(method, url, data, content, timeout)
            except (ApiError, Unreachable) as error:
                if attempt == attempts or not _passing(error):
                    raise
                await asyncio.sleep(_wait(error, attempt))
        raise ValueError("attempts must be at least 1")

    async def _send(self, method: str, url: URL, data: bytes | None, content: dict[str, str], seconds: float) -> bytes:
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, 10.0))
        refused = False
        while True:
            authorization = await self._credential.header()
            headers = content if authorization is None else {**content, "Authorization": authorization}
            with Translated(self.server):
                async with self._session.request(
                    method,
                    url,
                    data=data,
                    headers=headers,
                    timeout=limits,
                    allow_redirects=False,
                    server_hostname=self._server_hostname,
                ) as answer:
                    payload = await answer.read()
            if answer.status < 300:
                return payload
            if answer.status == 401 and not refused and await self._credential.replace(authorization):
                refused = True  # a request that was refused as unauthenticated has had no effect
                continue
            raise error_of(answer, payload)

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str] | None = None, idle: float
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Lines of an answer that goes on and on, as a watch's. Inside the context the answer has begun with
        200.

        The lines end where the server ends them. Unreachable after `idle` seconds without a byte, or when the
        connection breaks.
        """
        authorization = await self._credential.header()
        with Translated(self.server):
            asked = self._session.get(
                self._url(path, query),
                headers={} if authorization is None else {"Authorization": authorization},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=idle),
                allow_redirects=False,
                server_hostname=self._server_hostname,
            )
            async with asyncio.timeout(BEGIN):
                answer = await asked
        try:
            if answer.status != 200:
                with Translated(self.server):
                    payload = await answer.read()
                if answer.status == 401:
                    await self._credential.replace(authorization)
                raise error_of(answer, payload)
            yield lines(answer.content, self.server)
        finally:
            answer.close()  # what is left of it is of no use, and so its connection can't be used again

    def _url(self, path: str, query: Mapping[str, str] | None) -> URL:
        return URL(f"{self.server}{path}?{urlencode(query)}" if query else self.server + path, encoded=True)

    async def get(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        timeout: float = 30.0,  # noqa: ASYNC109
    ) -> T:
        """One object; ApiError (`not_found`) if there is none."""
        path = kind.path(namespace, name)
        return _decoded(kind, await self.request("GET", path, timeout=timeout, attempts=2))

    async def list_all(
        self,
        kind: Kind[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        page: int = PAGE,
    ) -> list[T]:
        """All objects, as of one moment, read page by page; Unreadable if one of them can't be decoded."""
        query = {"limit": str(page)}
        if label_selector:
            query["labelSelector"] = label_selector
        if field_selector:
            query["fieldSelector"] = field_selector
        found: list[T] = []
        while True:
            body = await self.request("GET", kind.path(namespace), query=query, attempts=2)
            try:
                one = kind.decode_page(body)
            except (msgspec.DecodeError, RecursionError) as error:
                raise Unreadable(f"The list of {kind.plural} can't be read: {error}") from error
            found += one.items or ()
            if not one.metadata.continue_:
                return found
            query["continue"] = one.metadata.continue_

    async def create(
        self,
        kind: Kind[T],
        obj: object,
        namespace: str = "",
        *,
        dry_run: bool = False,
        timeout: float = 30.0,  # noqa: ASYNC109
    ) -> T:
        """As it was stored. `obj` is a Struct or a dict. ApiError (`conflict`) if the name is taken."""
        query = {"dryRun": "All"} if dry_run else None
        path = kind.path(namespace)
        return _decoded(kind, await self.request("POST", path, query=query, body=obj, timeout=timeout))

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: object,
        namespace: str = "",
        *,
        how: Patch = Patch.MERGE,
        subresource: str = "",
        field_manager: str = "",
        force: bool = False,
        dry_run: bool = False,
        timeout: float = 30.0,  # noqa: ASYNC109
        attempts: int = 1,
    ) -> T:
        """The object as it is after the patch.

        A uid or resourceVersion in the patch's metadata is a precondition (ApiError, `conflict`).
        `field_manager` must be given to apply; `force` then takes fields from their owners. Who needs no
        answer decoded calls `request("PATCH", kind.path(…), content_type=how, …)`.
        """
        query: dict[str, str] = {}
        if field_manager:
            query["fieldManager"] = field_manager
        if force:
            query["force"] = "true"
        if dry_run:
            query["dryRun"] = "All"
        body = await self.request(
            "PATCH",
            kind.path(namespace, name, subresource),
            query=query,
            body=patch,
            content_type=how,
            timeout=timeout,
            attempts=attempts,
        )
        return _decoded(kind, body)

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        uid: str | None = None,
        version: str | None = None,
        propagation: str = "Background",
        grace: int | None = None,
        timeout: float = 30.0,  # noqa: ASYNC109
        attempts: int = 1,
    ) -> bool:
        """False if there was no such object. ApiError (`conflict`) if it has another uid or resourceVersion.

        Deletion is asked for, not awaited: finalizers and grace periods (`grace`, in seconds) take their
        time.
        """
        preconditions = {k: v for k, v in (("uid", uid), ("resourceVersion", version)) if v is not None}
        options: dict[str, object] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
        }
        if preconditions:
            options["preconditions"] = preconditions
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            await self.request("DELETE", kind.path(namespace, name), body=options, timeout=timeout, attempts=attempts)
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return True


def _decoded(kind: Kind[T], body: bytes) -> T:
    try:
        return kind.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(f"The answer isn't a {kind.kind} that we can read: {error}") from error


def _passing(error: ApiError | Unreachable) -> bool:
    """Whether the same request may well succeed a little later."""
    return isinstance(error, Unreachable) or error.status == 429 or error.status >= 500


def _wait(error: ApiError | Unreachable, attempt: int) -> float:
    """Seconds before the next attempt."""
    if isinstance(error, ApiError) and error.retry_after is not None:
        return min(error.retry_after, LONGEST_WAIT)
    return min(0.1 * 2.0**attempt, LONGEST_WAIT) * random.uniform(0.5, 1.0)  # noqa: S311  (spreads load)
