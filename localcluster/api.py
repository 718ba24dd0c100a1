"""The few calls that the launcher itself makes to the API server, as admin.

Blocking and bound to no event loop: a cluster that one loop started is used from many (each test has
its own), so callers put these calls in a thread. A connection serves one errand.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from localcluster.errors import ApiError
from localcluster.ports import LOOPBACK

TIMEOUT = 30.0


class Session:
    def __init__(self, connection: http.client.HTTPSConnection) -> None:
        self._connection = connection

    def text(self, path: str) -> tuple[int, str]:
        """Status and body of a plain GET, whatever they are."""
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")

    def call(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> dict[str, Any]:
        headers: Mapping[str, str] = {"Content-Type": content_type, "Accept": "application/json"}
        self._connection.request(method, path, None if body is None else json.dumps(body), dict(headers))
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                content = json.loads(content)["message"].encode()
            raise ApiError(answer.status, f"The API server refused {method} {path}: {content.decode(errors='replace')}")
        decoded: dict[str, Any] = json.loads(content)
        return decoded


class Api:
    def __init__(self, port: int, authority: Path, certificate: Path, key: Path) -> None:
        self._port = port
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._tls.load_cert_chain(certificate, key)

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        connection = http.client.HTTPSConnection(LOOPBACK, self._port, context=self._tls, timeout=TIMEOUT)
        try:
            yield Session(connection)
        finally:
            connection.close()
