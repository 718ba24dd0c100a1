"""The fault proxy: HTTPS from our programs, HTTPS to the real API server, and rules in between.

It has a certificate of its own, by an authority of its own, which stands in the kubeconfigs that it makes; a program's
bearer token passes through, so that the API server knows it for who it is. (A client certificate can't pass.) Which
program asks is told by the first part of the path, which its kubeconfig has and the API server never sees.

Always holds: without a rule every request, answer and watch event passes unchanged; every request is in the log, in the
order in which it came; and once a write has begun to go to the API server it goes there whole, whoever dies meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import yaml
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from localcluster.pki import Authority
from tests.faults.calls import Call, Log, Match, call_of, which
from tests.faults.rules import REASONS, Action, Cut, Delay, Expire, Hang, Hook, Refuse, Rule, RuleBook, Silent
from tests.faults.watching import GONE, Watching

HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "host", "content-length", "transfer-encoding", "te", "trailer", "upgrade"}
)
"""RFC 9110, 7.6.1: of one connection, not of the message."""


EVERYTHING: Final = which()


class _Broken(Exception):  # noqa: N818
    """The connection to the program is to break, without an answer."""


class Gateway:
    """Use it as a context manager; `folder` is for its keys and its kubeconfigs, `authority` is the cluster's CA."""

    def __init__(self, server: str, authority: Path, folder: Path) -> None:
        self.log = Log()
        self.clock: Callable[[], float] = time.monotonic
        self.rules = RuleBook(self._rules_changed)
        self._server = server
        self._upstream_tls = ssl.create_default_context(cafile=str(authority))
        self._folder = folder
        self._own = Authority(folder / "pki")
        self._open: dict[Call, asyncio.Transport | None] = {}
        self._watches: set[Watching] = set()
        self._changed = asyncio.Condition()
        self._session: aiohttp.ClientSession
        self._runner: web.ServerRunner
        self._under_way: set[asyncio.Future[Any]] = set()

    async def __aenter__(self) -> Self:
        pair = self._own.files("gateway", self._own.server(["localhost"], ["127.0.0.1"]))
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(*pair)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._upstream_tls),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
            skip_auto_headers=("User-Agent", "Content-Type", "Accept", "Accept-Encoding"),
            read_bufsize=2**18,
        )
        # A program that dies takes its watches along.
        self._runner = web.ServerRunner(web.Server(self._serve, handler_cancellation=True), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        self.port: int = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        for each in self._under_way:
            each.cancel()
        await self._runner.cleanup()
        await self._session.close()

    def kubeconfig(self, original: Path, program: str) -> Path:
        """The same configuration by way of this gateway, for the program that the log shall call so."""
        config = yaml.safe_load(original.read_text())
        for each in config["clusters"]:
            each["cluster"] = {
                "server": f"https://127.0.0.1:{self.port}/{program}",
                "certificate-authority-data": base64.b64encode(self._own.certificate).decode(),
            }
        path = self._folder / f"{program}.kubeconfig"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            yaml.safe_dump(config, file)
        return path

    # --- what a test does ---------------------------------------------------------------------------------------

    def on(self, match: Match, action: Action, *, skip: int = 0, times: int | None = None) -> Rule:
        """From now on this is done to the calls that match: after the first `skip`, and to so many (None: all)."""
        return self.rules.add(match, action, skip=skip, times=times)

    def before_write(self, number: int, call_me: Hook, program: str = "") -> Rule:
        """Calls when this write of the program (as it is numbered) has come; it never reaches the API server."""
        return self.on(self._write(number, program), Cut(then=call_me), times=1)

    def after_write(self, number: int, call_me: Hook, program: str = "") -> Rule:
        """Calls when the API server has carried this write out; its answer never gets back."""
        return self.on(self._write(number, program), Cut(after=True, then=call_me), times=1)

    @staticmethod
    def _write(number: int, program: str) -> Match:
        return lambda call: call.write == number and call.program.startswith(program)

    def cut(self, match: Match = EVERYTHING) -> None:
        """Breaks the connections by which such calls are under way now, watches too."""
        for call, transport in list(self._open.items()):
            if match(call) and transport is not None:
                transport.abort()

    def expire(self, match: Match = EVERYTHING) -> int:
        """Ends such watches by a 410; how many there were."""
        hit = [each for each in self._watches if match(each.call)]
        for each in hit:
            each.expire()
        return len(hit)

    @contextmanager
    def outage(self, match: Match = EVERYTHING, *, silent: bool = False) -> Iterator[Rule]:
        """For as long as the context lasts: nothing gets through, and what was open breaks; or all is `silent`."""
        with self.on(match, Hang() if silent else Cut()) as rule:
            if silent:
                with self.on(match, Silent()):
                    yield rule
            else:
                self.cut(match)
                yield rule
        if silent:
            self.cut(match)

    async def seen(self, match: Match, count: int = 1, since: int = 0, within: float = 30.0) -> list[Call]:
        """Returns when so many calls that match have come to their end since call number `since`."""

        def there() -> list[Call]:
            return [call for call in self.log.of(match, since) if call.took is not None]

        async with asyncio.timeout(within), self._changed:
            await self._changed.wait_for(lambda: len(there()) >= count)
        return there()

    def _rules_changed(self) -> None:
        for each in self._watches:
            each.rules_changed()

    # --- what happens to a request ------------------------------------------------------------------------------

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        program, _, rest = request.path.lstrip("/").partition("/")
        body = await request.content.read()
        call = call_of(self.log.numbered + 1, program, request.method, f"/{rest}", request.query, body)
        call.agent = request.headers.get("User-Agent", "")
        call.at = self.clock()
        self.log.enter(request.method, call)
        transport = request.transport
        self._open[call] = transport
        try:
            answer = await self._treat(call, request, body)
            call.status = answer.status
            return answer
        except (_Broken, aiohttp.ClientError, ConnectionError):
            if transport is not None:
                transport.abort()
            return web.Response(status=502)  # to nobody
        finally:
            self._open.pop(call, None)
            call.took = self.clock() - call.at
            async with self._changed:
                self._changed.notify_all()

    async def _treat(self, call: Call, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        rule = self.rules.for_request(call)
        match rule.action if rule else None:
            case Refuse(status, retry_after, message):
                return _refusal(status, message, retry_after)
            case Expire():
                return await self._expired(call, request)
            case Delay(seconds, lands):
                later = self._later(seconds, call, request, body)
                return await (self._to_its_end(later) if lands else later)
            case Cut(after, then):
                if after:
                    await self._pass(call, request, body)
                if then is not None and (waits := then(call)) is not None:
                    await waits
                raise _Broken
            case Hang(after):
                if after:
                    await self._pass(call, request, body)
                assert rule is not None
                await rule.taken_away.wait()
                raise _Broken
        return await self._pass(call, request, body)

    async def _later(self, seconds: float, call: Call, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await self._pass(call, request, body)

    async def _expired(self, call: Call, request: web.BaseRequest) -> web.StreamResponse:
        if call.verb != "watch":
            return _refusal(410, str(GONE["message"]), None)
        answer = await _begin(request, 200, {"Content-Type": "application/json"})
        await answer.write(json.dumps({"type": "ERROR", "object": GONE}).encode() + b"\n")
        await answer.write_eof()
        return answer

    async def _pass(self, call: Call, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        if call.verb == "watch":
            return await self._watch(call, request)
        call.reached = True
        if not call.write:
            return await self._forward(call, request, body)
        return await self._to_its_end(self._forward(call, request, body))

    async def _to_its_end(self, work: Any) -> web.StreamResponse:
        """Awaits it; if we are given up meanwhile, it goes on all the same."""
        task: asyncio.Task[web.StreamResponse] = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # who waits for it hears of it; else nobody is there to tell

    def _url(self, call: Call, request: web.BaseRequest) -> URL:
        query = request.rel_url.raw_query_string
        raw = request.rel_url.raw_path.removeprefix(f"/{call.program}")
        return URL(f"{self._server}{raw}{'?' + query if query else ''}", encoded=True)

    async def _forward(self, call: Call, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        async with self._session.request(
            request.method, self._url(call, request), headers=_passing(request.headers), data=body or None
        ) as answer:
            payload = await answer.read()
        return web.Response(status=answer.status, headers=_passing(answer.headers), body=payload)

    async def _watch(self, call: Call, request: web.BaseRequest) -> web.StreamResponse:
        call.reached = True
        async with self._session.get(self._url(call, request), headers=_passing(request.headers)) as upstream:
            if upstream.status != 200:
                payload = await upstream.read()
                return web.Response(status=upstream.status, headers=_passing(upstream.headers), body=payload)
            answer = await _begin(request, 200, _passing(upstream.headers))
            watching = Watching(call, self.rules, self.clock)
            self._watches.add(watching)
            taking = asyncio.ensure_future(watching.run(upstream.content.iter_any()))
            try:
                async for lines in watching.lines():
                    await answer.write(lines)
                await answer.write_eof()
            finally:
                self._watches.discard(watching)
                taking.cancel()
                with suppress(asyncio.CancelledError, aiohttp.ClientError):
                    await taking
        return answer


async def _begin(request: web.BaseRequest, status: int, headers: Mapping[str, str]) -> web.StreamResponse:
    answer = web.StreamResponse(status=status, headers=headers)
    await answer.prepare(request)
    return answer


def _passing(headers: Mapping[str, str]) -> CIMultiDict[str]:
    return CIMultiDict((key, value) for key, value in headers.items() if key.lower() not in HOP_BY_HOP)


def _refusal(status: int, message: str, retry_after: int | None) -> web.Response:
    said: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": REASONS.get(status, ""),
        "code": status,
    }
    headers = {}
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
        said["details"] = {"retryAfterSeconds": retry_after}
    return web.json_response(said, status=status, headers=headers)
