"""The webhook program: puts its parts together, and takes them apart again on SIGTERM.

Arguments and environment are those that manifests/ gives the Deployment. What always holds: reviews are taken only
with a certificate that the API server trusts; on SIGTERM the program first says that it isn't ready, goes on
answering while word of that spreads, and ends with 0.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import ssl
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import structlog
import uvloop

from certs import authority, rotation
from certs.authority import Material
from startgate.audit.journal import Journal, open_file
from startgate.kube.client import Client, KubeError
from startgate.model import names
from webhook import endpoints, metrics
from webhook.admission import Admission
from webhook.facts import Lookup
from webhook.server import Listener

log = logging.getLogger("webhook")

SPREAD_SECONDS: Final = 3.0
"""From unready to the end of listening: until API servers have heard that the endpoint is gone."""
FINISH_SECONDS: Final = 10.0
"""For the reviews that are under way then; together well below a terminationGracePeriodSeconds of 30."""


def run() -> None:
    """`python -m webhook`; the exit status is 0 after SIGTERM or SIGINT, 1 when it can't start or go on."""
    parser = argparse.ArgumentParser(prog="webhook", description="Startgate's admission webhook.")
    parser.add_argument("--host", default="", help="the address to listen on; without it, all of the machine's")
    parser.add_argument("--port", type=int, default=8443, help="reviews, over TLS (8443)")
    parser.add_argument("--health-port", type=int, default=8080, help="/healthz, /readyz and /metrics (8080)")
    parser.add_argument("--audit-file", type=Path, help="the audit log, beside standard output")
    options = parser.parse_args()
    _log_to_stderr()
    failed = False
    try:
        uvloop.run(_serve(options))
    except* (KubeError, OSError) as group:
        failed = True
        for error in group.exceptions:
            log.critical("The webhook can't run: %s", error)
    sys.exit(1 if failed else 0)


async def _serve(options: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    journal = _journal(options.audit_file)
    async with await Client.connect() as client:
        webhook = Webhook(client, journal, namespace=os.environ.get("POD_NAMESPACE") or names.SYSTEM_NAMESPACE)
        async with webhook.background():
            await webhook.serve(options.host, options.port, options.health_port, stopping)


class Webhook:
    """The parts, and whether they are ready."""

    def __init__(self, client: Client, journal: Journal, *, namespace: str) -> None:
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._certified = asyncio.Event()
        self._stopping = False
        self._lookup = Lookup(client)
        self._keeper = rotation.Keeper(client, self._take, namespace=namespace)
        controller = f"system:serviceaccount:{namespace}:{names.CONTROLLER_ACCOUNT}"
        admission = Admission(self._lookup, journal, controller=controller)
        self._reviews = Listener(endpoints.reviews(admission, lambda: self._reviews))
        self._health = Listener(endpoints.health(self._unready))

    @asynccontextmanager
    async def background(self) -> AsyncIterator[None]:
        """Keeps the facts and the certificate inside the context; if one of them breaks, the program ends."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._lookup.run()), group.create_task(self._keeper.run())]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def serve(self, host: str, port: int, health_port: int, stopping: asyncio.Event) -> None:
        """Until `stopping` is set. OSError if a port is taken."""
        self._health.start(health_port, host=host)
        log.info("Health and metrics on port %d", health_port)
        certified = asyncio.create_task(self._certified.wait())
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait((certified, stopped), return_when=asyncio.FIRST_COMPLETED)
        if certified.done():
            self._reviews.start(port, host=host, tls=self._tls)
            log.info("Reviews on port %d", port)
            await stopped
            log.info("Stopping")
            self._stopping = True
            self._reviews.draining = True
            await asyncio.sleep(SPREAD_SECONDS)
            await self._reviews.stop(FINISH_SECONDS)
        certified.cancel()
        await self._health.stop(0)

    def _take(self, material: Material) -> None:
        rotation.load(self._tls, material)
        metrics.CERTIFICATE_ENDS.set(authority.ends(material))
        self._certified.set()

    def _unready(self) -> str:
        if self._stopping:
            return "stopping"
        if not self._certified.is_set():
            return "no certificate yet"
        return "" if self._lookup.synced else "the caches are not in touch with the API server"


def _journal(file: Path | None) -> Journal:
    streams = [sys.stdout.buffer]
    if file is not None:
        stream, left = open_file(file)
        streams.append(stream)
        if left.malformed:
            log.warning("%s has %d lines that are no records", file, len(left.malformed))
    name = os.environ.get("POD_NAME") or socket.gethostname()
    return Journal(streams, "webhook", f"{name}-{uuid.uuid4().hex[:8]}")


def _log_to_stderr() -> None:
    """JSON lines, for our own words and those of the libraries; standard output is the audit log's."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.format_exc_info,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])
