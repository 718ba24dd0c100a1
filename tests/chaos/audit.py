"""The audit logs of several programs, read from outside as they grow.

Always holds: each line is read once; a line that isn't whole yet is left for the next time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from startgate.audit.record import DECODER, Decision, Record, Stage

LEAVES: Final = frozenset({Decision.ADMIT, Decision.RESUME, Decision.RESERVE})
"""Decisions whose id is that of the admission."""


class AuditLog:
    """One file, of one program's processes in a row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open: dict[tuple[str, Decision], Record] = {}
        """Intents without an effect."""
        self.admitted: set[str] = set()
        """Ids of admissions that were decided."""
        self.faults: list[str] = []
        """Lines that are none, and gaps."""
        self._at = path.stat().st_size if path.exists() else 0
        self._seq: dict[str, int] = {}
        self._torn: tuple[int, str] | None = None
        self._last = ""

    def read(self) -> None:
        """Takes in what was added."""
        for at, line in self._lines():
            try:
                record = DECODER.decode(line)
            except msgspec.DecodeError:
                self._torn = (at, self._last)
                continue
            self._take(at, record)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                yield self._at, line
                self._at += len(line)

    def _take(self, at: int, record: Record) -> None:
        # A kill may tear the last line of a process, and no other.
        if self._torn is not None and self._torn[1] == record.instance:
            self.faults.append(f"{self.path.parent.name}: what stands at byte {self._torn[0]} is no record")
        self._torn, self._last = None, record.instance
        if record.seq != self._seq.get(record.instance, record.seq - 1) + 1:
            self.faults.append(f"{self.path.parent.name}: a line is missing before number {record.seq} at byte {at}")
        self._seq[record.instance] = record.seq
        if record.stage is Stage.INTENT:
            self.open[record.id, record.decision] = record
            if record.decision in LEAVES:
                self.admitted.add(record.id)
        elif record.stage is Stage.EFFECT and self.open.pop((record.id, record.decision), None) is None:
            self.faults.append(f"{self.path.parent.name}: {record.decision} {record.id} has an effect and no intent")
