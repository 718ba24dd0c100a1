"""A soak: minutes of churn and harm, with pauses in which all must be as it must be.

Always holds: in the first part anything breaks; in the rest nothing that a program doesn't survive, so that there are
processes that were through a lot and lived long, whose memory and connections can be compared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from localcluster.deploy import Program, Startgate
from startgate.kube.client import Client
from tests.chaos.invariants import Findings, Outside
from tests.chaos.world import NODES
from tests.faults import Gateway, behind, kept
from tests.soak.churn import Churn
from tests.soak.footprint import MEGABYTE, Footprints, Growth
from tests.soak.harm import Harm

BUSY: Final = 240.0
DRAINS_WITHIN: Final = 150.0
SETTLES_WITHIN: Final = 30.0
SAMPLES_EACH: Final = 10.0
DEADLY_UNTIL: Final = 0.4
"""Of the whole."""


@dataclass
class Tally:
    """What came of it."""

    minutes: int
    jobs: int = 0
    faults: int = 0
    pauses: int = 0
    restarts: int = 0
    refused: int = 0
    """How often users had to try again."""
    found: Findings = field(default_factory=Findings)
    stuck: list[str] = field(default_factory=list)
    """What didn't come to its end, and what users should never be told."""
    grown: list[Growth] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        return not self.stuck and not self.found.sentences() and all(each.flat for each in self.grown)

    def table(self) -> str:
        """What was done, and the processes that lived long enough to be compared."""
        lines = [f"{what:<20} {count:>6}" for what, count in sorted(self.done.items())]
        lines.append(f"{self.pauses} pauses, {self.restarts} restarts; users tried again {self.refused} times")
        grown = [str(each) for each in self.grown] or ["no process lived long enough to be compared with itself"]
        return "\n".join([*lines, *grown])

    def last_line(self) -> str:
        """For whoever reads one line only; the memory is that of the longest-lived process of each program."""
        longest = {each.program: each for each in self.grown}.values()
        first, last = (round(sum(each.memory[i] for each in longest) / MEGABYTE) for i in (0, 1))
        found = self.found
        return (
            f"soak: {self.minutes} minutes, {self.jobs} jobs, {self.faults} faults, {len(found.half)} half gangs, "
            f"{len(found.leaks)} leaks, {len(found.failed)} failed jobs, memory {first} to {last} MB"
        )


async def run(startgate: Startgate, folder: Path, minutes: int, seed: int, say: Callable[[str], None]) -> Tally:
    """So many minutes of this seed; `folder` is for the gateway's keys."""
    tally, cluster = Tally(minutes), startgate.cluster
    programs = [startgate.controller, startgate.controller.replica(1), startgate.webhook]
    await cluster.set_nodes(NODES)
    async with (
        await Client.connect(kubeconfig=str(cluster.kubeconfig)) as client,
        Gateway(cluster.server, cluster.authority.certificate_file, folder) as gateway,
        behind(gateway, startgate, startgate.webhook, *programs[:2]),
        kept(startgate, *programs) as again,
    ):
        churn = Churn(client, Random(f"{seed} churn"))
        harm = Harm(gateway, programs[:2], startgate.webhook, client, Random(f"{seed} harm"))
        outside = Outside(client, [each.audit for each in programs])
        async with outside.watching(), churn.at_work():
            footprints = Footprints()
            sampling = asyncio.create_task(_sample(footprints, programs, startgate))
            try:
                await _live(churn, harm, outside, programs, tally, Random(f"{seed} pace"), say)
            finally:
                sampling.cancel()
                tally.jobs, tally.faults = sum(churn.submitted.values()), sum(harm.counts.values())
                tally.done, tally.refused = dict(harm.counts), churn.refused
                tally.stuck += churn.faults
                tally.found, tally.grown, tally.restarts = outside.found, footprints.grown(), len(again)
    if programs[1].name in cluster.pids:
        await programs[1].stop()
    return tally


async def _live(
    churn: Churn,
    harm: Harm,
    outside: Outside,
    programs: list[Program],
    tally: Tally,
    random: Random,
    say: Callable[[str], None],
) -> None:
    began = time.monotonic()
    whole = tally.minutes * 60
    while time.monotonic() - began < whole:
        churn.open()
        pause_at = min(time.monotonic() + BUSY, began + whole)
        while (left := pause_at - time.monotonic()) > 0:
            await asyncio.sleep(min(left, random.uniform(20, 60)))
            if time.monotonic() < pause_at:
                what = await harm.strike(deadly=time.monotonic() - began < DEADLY_UNTIL * whole)
                say(f"{time.monotonic() - began:5.0f} s: {what}")
        churn.close()
        await _pause(churn, outside, programs, tally)
        news = [*outside.found.sentences(), *tally.stuck, *churn.faults]
        jobs = sum(churn.submitted.values())
        say("\n".join([f"{time.monotonic() - began:5.0f} s: pause {tally.pauses}, {jobs} jobs so far", *news]))


async def _pause(churn: Churn, outside: Outside, programs: list[Program], tally: Tally) -> None:
    """Nothing breaks and nobody comes: what can end ends, and then all is as it must be."""
    for program in programs:
        await program.wait_ready()
    tally.stuck += await churn.drained(DRAINS_WITHIN)
    await outside.settle(SETTLES_WITHIN)
    tally.pauses += 1


async def _sample(footprints: Footprints, programs: list[Program], startgate: Startgate) -> None:
    while True:
        pids = startgate.cluster.pids
        footprints.look({each.name: pids[each.name] for each in programs if each.name in pids}, time.monotonic())
        await asyncio.sleep(SAMPLES_EACH)
