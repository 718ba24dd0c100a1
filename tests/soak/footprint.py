"""What programs take of the machine: resident memory and open files (connections are files), from /proc.

Always holds: only a process is compared with itself. What it takes later is held against what it took once warm.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

WARM_AFTER: Final = 120.0
"""Seconds of a process's life until its caches are full and each path of it was walked."""

FEWEST: Final = 8
"""Samples of a warm process without which it isn't compared."""

MEGABYTE: Final = 1024 * 1024
GROWS: Final = 4 * MEGABYTE
"""Bytes by which a process may take more: what an allocator keeps differs by as much from one minute to the next."""

MORE_FILES: Final = 4


class Sample(NamedTuple):
    """One look at one process."""

    age: float
    """Seconds since it was first seen."""
    memory: int
    files: int


@dataclass(frozen=True)
class Growth:
    """A process: its first warm quarter beside its last, by medians."""

    program: str
    seconds: float
    memory: tuple[int, int]
    files: tuple[int, int]

    @property
    def flat(self) -> bool:
        return self.memory[1] - self.memory[0] <= GROWS and self.files[1] - self.files[0] <= MORE_FILES

    def __str__(self) -> str:
        first, last = (round(each / MEGABYTE, 1) for each in self.memory)
        return (
            f"{self.program}: {self.seconds:.0f} s, {first} to {last} MB, "
            f"{self.files[0]} to {self.files[1]} open files{'' if self.flat else ': it grows'}"
        )


def growth(program: str, samples: Sequence[Sample]) -> Growth | None:
    """None where the process didn't live long enough to say."""
    warm = [each for each in samples if each.age >= WARM_AFTER]
    if len(warm) < FEWEST:
        return None
    quarter = len(warm) // 4
    parts = warm[:quarter], warm[-quarter:]
    memory = tuple(int(statistics.median(each.memory for each in part)) for part in parts)
    files = tuple(int(statistics.median(each.files for each in part)) for part in parts)
    return Growth(program, samples[-1].age, (memory[0], memory[1]), (files[0], files[1]))


@dataclass
class Footprints:
    """All processes that were seen, by program and process id."""

    _seen: dict[tuple[str, int], list[Sample]] = field(default_factory=dict)
    _since: dict[tuple[str, int], float] = field(default_factory=dict)

    def look(self, pids: Mapping[str, int], now: float) -> None:
        """One more sample of each of these that still runs."""
        for program, pid in pids.items():
            with suppress(FileNotFoundError, ProcessLookupError):
                memory, files = _memory(pid), sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
                since = self._since.setdefault((program, pid), now)
                self._seen.setdefault((program, pid), []).append(Sample(now - since, memory, files))

    def grown(self) -> list[Growth]:
        """Of each process that lived long enough; the longest-lived of each program comes last."""
        known = [growth(program, samples) for (program, _), samples in self._seen.items()]
        return sorted((each for each in known if each), key=lambda each: (each.program, each.seconds))


def _memory(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
