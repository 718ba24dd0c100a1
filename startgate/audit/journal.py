"""Writing the audit log, and reading from it what a dead process left undone.

What always holds: a line has left the process when `write` returns, so that an intent is on record before it
takes effect, even if the process is killed at the next instruction. (It has reached the operating system, not
the platter: a machine that loses power may lose the last lines, and then the seq of the file shows it to
whoever has the copy from standard output.) A line that couldn't be written whole never spoils the next one.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from startgate.audit.record import DECODER, Decision, Record, Stage, moment


class JournalError(Exception):
    """The log can't be written; what was about to be done would not be on record."""


class Journal:
    """One process's lines, each to all of its streams.

    `streams`: binary, writable; `instance`: unique to this start of the program. Not for use from several
    threads.
    """

    def __init__(self, streams: Iterable[BinaryIO], program: str, instance: str) -> None:
        self._streams = tuple(streams)
        self._torn: set[int] = set()
        self._program = program
        self._instance = instance
        self._seq = 0

    def write(
        self,
        stage: Stage,
        decision: Decision,
        id: str,  # noqa: A002  (the record's own word)
        *,
        at: float,
        user: str = "",
        namespace: str = "",
        gang: str = "",
        job: str = "",
        pod: str = "",
        queue: str = "",
        reason: str = "",
        message: str = "",
        seen: Mapping[str, str | int] | None = None,
        old: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET,
        new: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET,
        outcome: str = "",
    ) -> Record:
        """Puts one record on every stream; `at` is in epoch seconds, the other fields are those of Record.

        JournalError if a stream failed. The others have the line then, and its seq is used up.
        """
        self._seq += 1
        record = Record(
            seq=self._seq,
            at=moment(at),
            program=self._program,
            instance=self._instance,
            id=id,
            stage=stage,
            decision=decision,
            user=user,
            namespace=namespace,
            gang=gang,
            job=job,
            pod=pod,
            queue=queue,
            reason=reason,
            message=message,
            seen={what: _writable(number) for what, number in (seen or {}).items()},
            old=old,
            new=new,
            outcome=outcome,
        )
        self._put(msgspec.json.encode(record) + b"\n")
        return record

    def settle(self, intent: Record, outcome: str, *, at: float) -> Record:
        """Writes the effect of an intent, of this process or of one before it; fails as `write` does."""
        return self.write(
            Stage.EFFECT,
            intent.decision,
            intent.id,
            at=at,
            namespace=intent.namespace,
            gang=intent.gang,
            job=intent.job,
            queue=intent.queue,
            outcome=outcome,
        )

    def _put(self, line: bytes) -> None:
        failed: OSError | ValueError | None = None
        for index, stream in enumerate(self._streams):
            try:
                # After a failure the stream may end in half a line: end that first.
                _write_all(stream, b"\n" + line if index in self._torn else line)
                self._torn.discard(index)
            except (OSError, ValueError) as error:  # ValueError: the stream is closed
                self._torn.add(index)
                failed = error
        if failed is not None:
            raise JournalError(f"the audit log can't be written: {failed}") from failed


def _writable(number: str | int) -> str | int:
    """Integers that few readers of JSON can hold (above 64 bits, which msgspec refuses too) become text."""
    return number if isinstance(number, str) or -(2**63) <= number < 2**63 else str(number)


def _write_all(stream: BinaryIO, line: bytes) -> None:
    left = memoryview(line)
    while left:  # an unbuffered stream may take a part only
        taken = stream.write(left)
        if not taken:
            raise BlockingIOError("the stream takes no more")
        left = left[taken:]
    stream.flush()


class Left(msgspec.Struct, frozen=True):
    """What a log says about work that was begun and not ended."""

    intents: list[Record]
    """Without an effect, oldest first."""
    malformed: list[int]
    """Numbers (from 1) of lines that are no records. The last line may be torn by a kill; others should be
    looked at."""


def open_intents(lines: Iterable[bytes]) -> Left:
    """Reads a log, of one process or several in a row, for intents whose effect was never written."""
    waiting: dict[tuple[str, Decision], Record] = {}
    malformed: list[int] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = DECODER.decode(line)
        except (msgspec.DecodeError, RecursionError):
            malformed.append(number)
            continue
        if record.stage is Stage.INTENT:
            waiting[record.id, record.decision] = record
        elif record.stage is Stage.EFFECT:
            waiting.pop((record.id, record.decision), None)
    return Left(list(waiting.values()), malformed)


def open_file(path: Path) -> tuple[BinaryIO, Left]:
    """Opens a log to go on with it, made if missing, and says what the process before left undone. OSError as
    open's.

    The stream is unbuffered, so that a failed line is not tried again behind the caller's back.
    """
    stream = path.open("ab+", buffering=0)
    with path.open("rb") as lines:
        left = open_intents(lines)
    _end_last_line(stream)
    return stream, left


def _end_last_line(stream: BinaryIO) -> None:
    if stream.seek(0, 2):
        stream.seek(-1, 2)
        if stream.read(1) != b"\n":
            stream.write(b"\n")
