"""What a trial costs: CPU and memory of each process as the kernel counts them, writes as the API server does.

Always holds: a figure is the difference of two readings, so what happened before a trial doesn't count; and asking for
it falls outside the time in which the trial is measured.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import msgspec

from startgate.kube.client import Client

TICKS: Final = os.sysconf("SC_CLK_TCK")
WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE", "APPLY"})

_SAMPLE: Final = re.compile(rb"^apiserver_request_total\{([^}]*)\} (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(rb'(\w+)="([^"]*)"')


class Cpu(msgspec.Struct, frozen=True):
    """CPU seconds, user and system, since each process began; as a difference, those of a stretch of time."""

    processes: dict[str, float]
    bench: float
    machine: float
    """Of everything that runs on this machine."""
    clock: float
    """Seconds by the clock."""

    @classmethod
    def read(cls, pids: Mapping[str, int]) -> Self:
        """ProcessLookupError or FileNotFoundError if one of the processes is gone."""
        processes = {name: _cpu_of(pid) for name, pid in pids.items()}
        return cls(processes, time.process_time(), _cpu_of_machine(), time.perf_counter())

    def since(self, before: Self) -> Self:
        return type(self)(
            {name: round(used - before.processes[name], 2) for name, used in self.processes.items()},
            round(self.bench - before.bench, 2),
            round(self.machine - before.machine, 2),
            round(self.clock - before.clock, 2),
        )

    @property
    def total(self) -> float:
        """Of all processes that are measured; without the bench itself."""
        return sum(self.processes.values())

    @property
    def others(self) -> float:
        """Of whatever has no part in this."""
        return max(0.0, round(self.machine - self.bench - self.total, 2))


def _cpu_of(pid: int) -> float:
    # The program's name, in brackets, may itself hold blanks and brackets. See proc_pid_stat(5): 14 utime, 15 stime.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _cpu_of_machine() -> float:
    # user nice system idle iowait irq softirq steal: all but the two in which it has nothing to do.
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / TICKS


def forget_peaks(pids: Mapping[str, int]) -> None:
    """From here on `peaks` counts anew (proc_pid_clear_refs(5): 5)."""
    for pid in pids.values():
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def peaks(pids: Mapping[str, int]) -> dict[str, float]:
    """The most memory that each process has had resident, in MiB."""
    found = {}
    for name, pid in pids.items():
        status = Path(f"/proc/{pid}/status").read_text()
        high = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        assert high is not None, "each process with memory of its own has a VmHWM"
        found[name] = round(int(high[1]) / 1024, 1)
    return found


async def writes(client: Client) -> Counter[str]:
    """Write requests that the API server has answered so far, by "VERB resource/subresource", refused ones with their
    status. Without events and leases: those are written for reasons that have nothing to do with gangs.
    """
    found: Counter[str] = Counter()
    for labels, value in _SAMPLE.findall(await client.request("GET", "/metrics")):
        sample = {name.decode(): text.decode() for name, text in _LABEL.findall(labels)}
        if sample["verb"] not in WRITES or sample["resource"] in ("events", "leases"):
            continue
        what = "/".join(filter(None, (sample["resource"], sample["subresource"])))
        refused = "" if sample["code"].startswith("2") else f" {sample['code']}"
        found[f"{sample['verb']} {what}{refused}"] += int(float(value))
    return found
