"""How fast gangs are let go: Startgate beside kube-scheduler alone and beside the least that gates can cost.

`python -m bench.release`; what it measures and how to read it is in bench/README.md. All modes run in turn on one
local cluster, so that whatever the machine does meanwhile hits them alike.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from bench import costs, ground, report
from bench.figures import Figures, figures
from bench.scenarios import SCENARIOS, WARM_UP, Mode, Scenario
from bench.trial import Trial
from localcluster import build
from localcluster.cluster import Cluster
from localcluster.deploy import Startgate
from localcluster.errors import ClusterError
from startgate.kube.client import Client

# Their shipped limits (20 and 50 requests a second) would be all that one measures; without them it is the API
# server's CPU, as in the published measurements. Startgate keeps the limits that it ships with.
_UNLIMITED: Final = ["--kube-api-qps=5000", "--kube-api-burst=5000"]
FLAGS: Final = {
    "kube-scheduler": _UNLIMITED,
    "kube-controller-manager": [*_UNLIMITED, "--controllers=*,-node-lifecycle-controller"],
}
UNMEASURED: Final = ("supervisor", "kwok")
CONNECTIONS: Final = 128
"""More than the bench ever uses together: creates, patches and the watch."""
SETTLE: Final = 3.0
"""Seconds after a trial in which what is written behind still counts."""


class Results(msgspec.Struct):
    """The JSON file."""

    format: int
    began: datetime
    kubernetes: str
    machine: str
    cores: int
    trials: list[Figures]
    summary: report.Summary


class Bench:
    """One cluster with Startgate on it, and the one process that watches."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self._cluster = cluster
        self._client = client
        self._expected = self._running()

    async def measure(self, scenario: Scenario, mode: Mode, run: int) -> Figures:
        await ground.clear(self._client)
        await ground.set_nodes(self._client, scenario)
        pids = self._running()
        self._complain_of_missing(pids)
        trial = Trial(self._client, scenario, mode, run)
        written = await costs.writes(self._client)
        costs.forget_peaks(pids)
        readings: list[costs.Cpu] = []
        try:
            await trial.run(
                lambda: readings.append(costs.Cpu.read(pids)),
                lambda: readings.append(costs.Cpu.read(pids)),
            )
            await asyncio.sleep(SETTLE)
            before, after, settled = *readings, costs.Cpu.read(pids)
            peaks = costs.peaks(pids)
        except (FileNotFoundError, ProcessLookupError):
            self._complain_of_missing(self._running())
            raise
        return figures(
            trial,
            run,
            cpu=after.since(before),
            settled=settled.since(before),
            peak_mib=peaks,
            writes=await costs.writes(self._client) - written,
        )

    def _running(self) -> dict[str, int]:
        return {name: pid for name, pid in self._cluster.pids.items() if name not in UNMEASURED}

    def _complain_of_missing(self, running: dict[str, int]) -> None:
        for name in self._expected.keys() - running.keys():
            words = "\n".join(self._cluster.log(name).read_text(errors="replace").splitlines()[-20:])
            raise ClusterError(f"{name} has ended in the middle of the bench; its log ends so:\n{words}")


def turns(scenarios: Sequence[Scenario], modes: Sequence[Mode], runs: int) -> Iterator[tuple[int, Scenario, Mode]]:
    """For each run, for each scenario, the modes in turn; in each run another one goes first, since what goes first
    finds the machine in another state than what follows.
    """
    for run in range(1, runs + 1):
        first = (run - 1) % len(modes)
        for scenario in scenarios:
            for mode in (*modes[first:], *modes[:first]):
                yield run, scenario, mode


async def bench(scenarios: Sequence[Scenario], modes: Sequence[Mode], runs: int, trials: list[Figures]) -> None:
    """Appends to `trials` as they are done, so that those are there whatever happens to the rest."""
    async with Cluster.start(flags=FLAGS, progress=say) as cluster:
        await cluster.stop_process("kwok")
        async with (
            Startgate.deploy(cluster),
            await Client.connect(kubeconfig=str(cluster.kubeconfig), connections=CONNECTIONS) as client,
        ):
            await ground.prepare(client)
            measured = Bench(cluster, client)
            say("Warming up.")
            for mode in modes:
                await measured.measure(WARM_UP, mode, 1)
            for number, (run, scenario, mode) in enumerate(turns(scenarios, modes, runs), 1):
                trial = await measured.measure(scenario, mode, run)
                trials.append(trial)
                say(f"[{number}/{runs * len(scenarios) * len(modes)}] {_sentence(trial, scenario)}")


def _sentence(trial: Figures, scenario: Scenario) -> str:
    who = f"run {trial.run}, {trial.scenario}, {trial.mode}:"
    if trial.all_bound is None:
        return f"{who} {trial.pods_bound} of {scenario.total} pods bound after {scenario.limit:g} s"
    ended = "" if scenario.lasts is None else f", all ended after {trial.makespan} s"
    return f"{who} all bound after {trial.all_bound:.1f} s{ended}"


def say(sentence: str) -> None:
    """Progress; the results alone go to standard output."""
    sys.stderr.write(f"{sentence}\n")


def _machine() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _results(began: datetime, trials: list[Figures]) -> Results:
    return Results(1, began, build.NEWEST, _machine(), os.cpu_count() or 1, trials, report.summary(trials))


def _scenario_list(text: str) -> list[Scenario]:
    keys = text.upper().split(",")
    if unknown := set(keys) - SCENARIOS.keys():
        raise argparse.ArgumentTypeError(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    return [SCENARIOS[key] for key in keys]


def _mode_list(text: str) -> list[Mode]:
    keys = text.split(",")
    if unknown := set(keys) - set(Mode):
        raise argparse.ArgumentTypeError(f"no mode {', '.join(unknown)}; there are {', '.join(Mode)}")
    return [Mode(key) for key in keys]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.release", description=__doc__)
    parser.add_argument("--scenarios", type=_scenario_list, default=",".join(SCENARIOS), help="default: %(default)s")
    parser.add_argument("--modes", type=_mode_list, default=",".join(Mode), help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=3, help="of each scenario in each mode (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="a file for all figures, as JSON")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    began = datetime.now(UTC)
    trials: list[Figures] = []
    try:
        uvloop.run(bench(arguments.scenarios, arguments.modes, arguments.runs, trials))
    except (ClusterError, TimeoutError) as problem:
        say(f"The bench could not go on: {problem}")
        return 1
    except KeyboardInterrupt:
        say("Stopped; nothing is left running.")
        return 130
    finally:
        if trials:
            sys.stdout.write(f"{report.text(trials)}\n")
            if arguments.output:
                arguments.output.write_bytes(
                    msgspec.json.format(msgspec.json.encode(_results(began, trials)), indent=2)
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
