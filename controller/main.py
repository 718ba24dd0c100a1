"""The controller program: reads the cluster all the time, decides and writes while it leads.

Every replica keeps its caches warm, so that a new leader decides at once. What always holds: losing leadership ends
the process, since what it had in memory may be wrong from then on; a lost audit log ends it too, since a decision
that isn't on record must not be taken.
"""

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import structlog
import uvloop
from aiohttp import web
from prometheus_client import generate_latest

from controller.cache import Cache
from controller.clock import Clock
from controller.evictions import Evictions
from controller.flights import Flights
from controller.gangs import Gangs
from controller.loop import Loop
from controller.metrics import Metrics
from controller.news import News
from controller.under_way import UnderWay
from controller.writes import Writes
from startgate.audit.journal import Journal, JournalError, open_file
from startgate.engine.world import PATIENCE
from startgate.kube.client import Client
from startgate.kube.election import Election
from startgate.kube.errors import KubeError
from startgate.kube.events import Recorder
from startgate.model import names
from startgate.model.duration import DurationError, parse_seconds

log = logging.getLogger(__name__)

YOUNG = 50_000
"""Objects made before the collector looks for cycles among them. Python's own few hundred are for small programs: while
a cluster's pods are read in, it would go through them again and again."""

CONNECTIONS = 64
"""To the API server: lifts, other writes and the watches (see writes.LIFTS_AT_ONCE)."""


def arguments() -> argparse.Namespace:
    """The command line, as the Deployment states it."""
    parser = argparse.ArgumentParser(prog="controller", description="Releases gangs when quota and nodes allow it.")
    parser.add_argument("--health-port", type=int, default=8080, help="for /healthz, /readyz and /metrics (plain HTTP)")
    parser.add_argument("--host", default="", help="the address to listen on; without it, all of the machine's")
    parser.add_argument("--audit-file", type=Path, required=True, help="audit log, added to; also on standard output")
    parser.add_argument(
        "--patience",
        type=_duration,
        default=PATIENCE,
        help="how long those behind a gang that waits may start before it, as 10m; then they may not delay it",
    )
    return parser.parse_args()


def _duration(text: str) -> float:
    try:
        return parse_seconds(text)
    except DurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


class Program:
    """One run of the controller."""

    def __init__(self, client: Client, lease_client: Client, journal: Journal, *, patience: float) -> None:
        pod = os.environ.get("POD_NAME", "controller")
        identity = f"{pod}_{os.environ.get('POD_UID') or uuid.uuid4()}"
        # On connections of its own: a renewal must not stand in line behind a thousand gates.
        self.election = Election(
            lease_client,
            namespace=os.environ.get("POD_NAMESPACE", names.SYSTEM_NAMESPACE),
            name=names.LEASE,
            identity=identity,
        )
        clock = Clock()
        self.recorder = Recorder(client, "startgate.dev/controller", pod)
        self.cache = Cache(client, self._wake)
        self.gangs = Gangs(self.cache, patience=patience)
        self.metrics = Metrics(self.gangs.states.values, self.cache.reflectors)
        self.writes = Writes(client, self.cache, lambda: self.election.leading)
        self.news = News(self.cache, self.gangs, self.writes, self.recorder, clock=clock)
        self.under_way = UnderWay(self.cache, journal, clock=clock)
        self.loop = Loop(
            self.cache,
            self.gangs,
            self.news,
            self.metrics,
            under_way=self.under_way,
            flights=Flights(self.cache, self.writes, self.under_way, counted=self.metrics.taken_back),
            evictions=Evictions(
                self.cache,
                self.gangs,
                self.writes,
                self.under_way,
                news=self.news,
                counted=self.metrics.evicted,
            ),
            leading=lambda: self.election.leading,
            clock=clock,
        )

    def _wake(self) -> None:
        self.loop.wake()

    async def run(self) -> None:
        """Follows, and leads when it is our turn. Ends with leadership lost, or with a mistake of ours."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self.cache.reflectors:
                tasks.create_task(reflector.run())
            tasks.create_task(self.recorder.run())
            for reflector in self.cache.reflectors:
                await reflector.wait_synced()
            # What a large cluster is made of lives long, and going through it costs as much as a decision does.
            gc.collect()
            gc.freeze()
            await self.election.run(self._lead)

    async def _lead(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.news.run())
                tasks.create_task(self.loop.run())
        finally:
            await self.under_way.close()
            await self.writes.settled()


async def serve_health(program: Program, host: str, port: int) -> web.AppRunner:
    """/healthz: the process answers. /readyz: its caches are complete. /metrics: for Prometheus."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        behind = [r.kind.plural for r in program.cache.reflectors if not r.synced]
        if behind:
            return web.Response(status=503, text=f"not in sync: {', '.join(behind)}\n")
        return web.Response(text=f"ok, {'leading' if program.election.leading else 'standing by'}\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(program.metrics.registry), content_type="text/plain")

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host or None, port).start()
    return runner


async def start(options: argparse.Namespace) -> None:
    """Until a signal, or until it can't go on."""
    stream, left = open_file(options.audit_file)
    journal = Journal((stream, sys.stdout.buffer), "controller", uuid.uuid4().hex)
    for intent in left.intents:
        # What became of it is in the objects, and whoever leads goes on from there: it may never be this process.
        journal.settle(intent, "unknown: the process ended before it was done", at=time.time())
    async with await Client.connect(connections=CONNECTIONS) as client, await Client.connect(connections=2) as lease:
        program = Program(client, lease, journal, patience=options.patience)
        health = await serve_health(program, options.host, options.health_port)
        work = asyncio.create_task(program.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        try:
            with suppress(asyncio.CancelledError):
                await work
        finally:
            await health.cleanup()


def run() -> None:
    """Exit status 0 after a signal, 1 with a sentence where it couldn't go on."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    _structured_logs()
    gc.set_threshold(YOUNG)
    try:
        uvloop.run(start(arguments()))
    except BaseExceptionGroup as group:
        known, unknown = group.split((KubeError, JournalError, OSError))
        if unknown:
            raise
        assert known is not None
        sys.exit(f"controller: {known.exceptions[0]}")
    except (KubeError, JournalError, OSError) as error:
        sys.exit(f"controller: {error}")


def _structured_logs() -> None:
    """One JSON object a line on standard error; standard output belongs to the audit log."""
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso"),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )
    for handler in logging.getLogger().handlers:
        handler.setFormatter(formatter)
