"""Our programs with the gateway in their way to the API server, and kept running as a kubelet keeps them.

Always holds: outside the contexts below the programs reach the API server directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from localcluster.deploy import Program, Startgate
from tests.faults.gateway import Gateway

CONTROLLER = "startgate-controller"
WEBHOOK = "startgate-webhook"
"""What the log calls them: the beginning of a program's name, whichever replica it is."""

LOOKS_EACH = 0.1


@asynccontextmanager
async def behind(gateway: Gateway, startgate: Startgate, *programs: Program) -> AsyncIterator[None]:
    """For as long as the context lasts these programs (without any: both) go through the gateway; all are ready."""
    chosen = programs or (startgate.webhook, startgate.controller)
    direct = {program: program.kubeconfig for program in chosen}
    for program, original in direct.items():
        program.kubeconfig = gateway.kubeconfig(original, program.name)
    try:
        await _anew(startgate, chosen)
        yield
    finally:
        for program, original in direct.items():
            program.kubeconfig = original
        gateway.rules.clear()
        await _anew(startgate, chosen)


async def _anew(startgate: Startgate, programs: Sequence[Program]) -> None:
    for program in programs:
        if program.name in startgate.cluster.pids:
            # The controller gives its lease up; the webhook would wait until word of its end has spread.
            await (program.kill() if program is startgate.webhook else program.stop())
        await program.start()
    for program in programs:
        await program.wait_ready()
    await startgate.wait_effective()


@asynccontextmanager
async def kept(startgate: Startgate, *programs: Program, pause: float = 1.0) -> AsyncIterator[list[str]]:
    """Starts each of these programs again, `pause` seconds after it ended, as a kubelet does; yields who was, so far.

    A kubelet's pause grows from nothing to five minutes; a test has no time for that.
    """
    again: list[str] = []

    async def keep() -> None:
        while True:
            await asyncio.sleep(LOOKS_EACH)
            for program in programs:
                if program.name not in startgate.cluster.pids:
                    await asyncio.sleep(pause)
                    await program.start()
                    again.append(program.name)

    task = asyncio.create_task(keep())
    try:
        yield again
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
