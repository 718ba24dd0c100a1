"""Round after round until there were enough crashes: a load, programs that are killed under it, and what is left.

Always holds: at the end of a round all is up again, and what must hold then was looked at before anything of the round
is taken away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from localcluster.deploy import Startgate
from startgate.kube.client import Client
from tests.behaviour.kit import Field
from tests.chaos.crashes import Crashes, Point
from tests.chaos.invariants import Findings, Outside
from tests.chaos.world import LONG, NODES, Stories
from tests.faults import Gateway, behind

A_ROUND: Final = 15
"""Crashes in one round at most: enough that each meets what the one before left."""

SETTLES_WITHIN: Final = 30.0


@dataclass
class Tally:
    """What came of it."""

    crashes: int = 0
    handed_over: int = 0
    rounds: int = 0
    seconds: float = 0.0
    counts: dict[Point, int] = field(default_factory=dict)
    found: Findings = field(default_factory=Findings)
    stuck: list[str] = field(default_factory=list)
    """Rounds in which something didn't come to its end."""

    @property
    def clean(self) -> bool:
        return not self.stuck and not self.found.sentences()

    def table(self) -> str:
        """How many crashes there were at each kind of write."""
        kinds = sorted({(point.program, point.kind) for point in self.counts})
        lines = [f"{'program':<11} {'write':<40} {'before':>6} {'after':>6}"]
        for program, kind in kinds:
            before, after = (self.counts.get(Point(program, kind, each), 0) for each in (False, True))
            lines.append(f"{program:<11} {kind:<40} {before:>6} {after:>6}")
        lines.append(f"{self.rounds} rounds, {self.seconds:.0f} s; {self.handed_over} times another replica took over")
        return "\n".join(lines)

    def last_line(self) -> str:
        """For whoever reads one line only."""
        found = self.found
        return (
            f"chaos: {self.crashes} crashes, {len(found.half)} half gangs, {len(found.leaks)} leaks, "
            f"{len(found.failed)} failed jobs"
        )


async def run(
    startgate: Startgate, folder: Path, crashes: int, seed: int, say: Callable[[str], None], *, a_round: int = A_ROUND
) -> Tally:
    """So many crashes of this seed, of which `a_round` at most in a round; `folder` is for the gateway's keys."""
    tally, began = Tally(), time.monotonic()
    cluster = startgate.cluster
    second = startgate.controller.replica(1)
    controllers = [startgate.controller, second]
    await cluster.set_nodes(NODES)
    async with (
        await Client.connect(kubeconfig=str(cluster.kubeconfig)) as client,
        Gateway(cluster.server, cluster.authority.certificate_file, folder) as gateway,
        behind(gateway, startgate, startgate.webhook, *controllers),
    ):
        killing = Crashes(gateway, startgate, controllers, client, Random(f"{seed} crashes"))
        outside = Outside(client, [each.audit for each in (*controllers, startgate.webhook)])
        async with outside.watching(), killing.at_work():
            while killing.many < crashes:
                tally.rounds += 1
                random = Random(f"{seed} {tally.rounds}")
                await _round(startgate, killing, outside, random, min(a_round, crashes - killing.many), tally, say)
                tally.seconds = time.monotonic() - began
                tally.crashes, tally.counts, tally.found = killing.many, dict(killing.counts), outside.found
                tally.handed_over = killing.handed_over
                say(f"round {tally.rounds}, {tally.seconds:.0f} s: {tally.last_line()}")
    if second.name in cluster.pids:
        await second.stop()
    return tally


async def _round(
    startgate: Startgate,
    killing: Crashes,
    outside: Outside,
    random: Random,
    most: int,
    tally: Tally,
    say: Callable[[str], None],
) -> None:
    async with Field.on(startgate) as on:
        stories = Stories(on, killing, random).choose()
        killing.arm(most)
        ends = await asyncio.gather(*(asyncio.wait_for(story(), 2 * LONG) for story in stories), return_exceptions=True)
        await killing.all_up()
        for story, end in zip(stories, ends, strict=True):
            if isinstance(end, BaseException):
                sentence = f"round {tally.rounds}: {story.__name__}: {end!r}".replace("\\n", "\n")
                tally.stuck.append(sentence)
                say(sentence)
        known = set(outside.found.sentences())
        await outside.settle(SETTLES_WITHIN)
        news = [sentence for sentence in outside.found.sentences() if sentence not in known]
        if news:
            say("\n".join([f"round {tally.rounds}:", *news, on.sight()]))
