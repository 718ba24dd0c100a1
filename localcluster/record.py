"""Which processes belong to a cluster's directory, written so that no stranger is ever signalled.

A pid alone is reused by the kernel; a pid together with its time of start is not. Every signal sent
from here goes through a pidfd that was opened before the time of start was compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

RECORD = "processes.json"


@dataclass(frozen=True)
class Process:
    pid: int
    started: int  # clock ticks since boot

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this pid now, if any."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The program's name, in brackets, may itself hold blanks and brackets.
        state, *fields = text.rpartition(")")[2].split()
        return None if state in "ZX" else cls(pid, int(fields[18]))

    def alive(self) -> bool:
        return Process.of(self.pid) == self

    @contextlib.contextmanager
    def _held(self) -> Iterator[int | None]:
        """A pidfd of this very process, or None if it is gone."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            yield fd if self.alive() else None
        finally:
            os.close(fd)

    def terminate(self, patience: float) -> None:
        """Ask it to end, insist after `patience` seconds, and return when it is gone."""
        with self._held() as fd:
            if fd is None:
                return
            for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, None)):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, number)
                if select.select([fd], [], [], seconds)[0]:
                    return


def write_record(directory: Path, processes: Mapping[str, Process]) -> None:
    new = directory / f"{RECORD}.new"
    new.write_text(json.dumps({name: asdict(process) for name, process in processes.items()}, indent=2))
    new.replace(directory / RECORD)


def read_record(directory: Path) -> dict[str, Process]:
    """The processes on record that still live."""
    try:
        entries = json.loads((directory / RECORD).read_text())
    except FileNotFoundError:
        return {}
    processes = {name: Process(entry["pid"], entry["started"]) for name, entry in entries.items()}
    return {name: process for name, process in processes.items() if process.alive()}
