"""`python -m tests.fuzz --inputs N --seed S`: N inputs to the webhook's server, led by the code that they reach.

atheris makes them up; each is one of three by its first byte: a review that hypothesis builds from the bytes, the body
of a review, or what comes over a connection. What breaks is counted and kept, its input beside it, and the run goes on.
The last line is `fuzz: N inputs, C crashes, S slow answers, memory +M MiB`; the exit status is 0 if C and S are 0 and
memory stayed flat. What nothing can be made of isn't counted.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Final

import atheris

with atheris.instrument_imports(include=["webhook", "startgate.audit", "startgate.model"]):
    from hypothesis import given, settings

    from tests.behaviour.test_webhook_server import REVIEW, post
    from tests.fuzz.reviews import PATHS, Sent, deep, reviews
    from tests.fuzz.target import Slow, Target, target
    from tests.unit.test_webhook_review import envelope
    from tests.unit.webhook_objects import QUEUE, job_json

WARM: Final = 0.2
"""This part of the inputs comes before memory is first measured: caches fill, modules load."""
ENOUGH: Final = 2000
"""Bytes from which hypothesis nearly always makes a review."""
GROWTH: Final = 32 * 2**20
"""Bytes that the process may have more in the end: libFuzzer keeps the inputs that led somewhere."""


class Run:
    """The counts, and one input after the other."""

    def __init__(self, runner: asyncio.Runner, made: Target, inputs: int, kept: Path) -> None:
        self._runner = runner
        self._target = made
        self._inputs = inputs
        self._kept = kept
        self._done = self._crashes = self._slow = 0
        self._memory = 0
        self._started = time.monotonic()

        @settings(database=None, deadline=None)
        @given(sent=reviews())
        def structured(sent: Sent) -> None:
            runner.run(made.send(sent))

        self._structured = structured.hypothesis.fuzz_one_input  # type: ignore[attr-defined]

    def one(self, data: bytes) -> None:
        """What atheris calls. Ends the process after the last."""
        try:
            if not self._one(data):
                return
        except Slow as error:
            self._slow += 1
            self._keep(data, error)
        except Exception as error:  # whatever it is, it is what we look for
            self._crashes += 1
            self._keep(data, error)
        self._done += 1
        if self._done == int(self._inputs * WARM):
            self._memory = resident()
        if self._done >= self._inputs:
            self._end()

    def _one(self, data: bytes) -> bool:
        """Whether anything could be made of it, and was sent."""
        first, rest = data[:1], data[1:]
        match first[0] % 4 if first else 0:
            case 0:
                self._runner.run(self._target.raw(rest))
            case 1:
                self._runner.run(self._target.send(Sent(PATHS[first[0] // 4 % 3], rest, first[0] // 16 % 4)))
            case _:
                # A review takes more bytes than libFuzzer begins with: the rest follows from those that there are.
                return self._structured(rest + random.Random(rest).randbytes(ENOUGH)) is not None
        return True

    def _keep(self, data: bytes, error: Exception) -> None:
        path = self._kept / f"input-{hashlib.sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        print(f"{path}:", *traceback.format_exception(error), sep="\n", flush=True)

    def _end(self) -> None:
        growth = resident() - self._memory
        rate = self._done / (time.monotonic() - self._started)
        print(f"{rate:.0f} inputs a second; what broke, if anything did, is kept in {self._kept}")
        print(
            f"fuzz: {self._done} inputs, {self._crashes} crashes, {self._slow} slow answers, "
            f"memory {growth / 2**20:+.0f} MiB",
            flush=True,
        )
        os._exit(1 if self._crashes or self._slow or growth > GROWTH else 0)  # libFuzzer gives no way to return


def resident() -> int:
    """Bytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def seeds(folder: Path, chance: random.Random) -> None:
    """Inputs to begin with: those that are right get furthest."""
    job = envelope(job_json(QUEUE, parallelism=3))
    found = [
        b"\0" + REVIEW,
        b"\0" + post(b"{}", "/queues", "Connection: Upgrade", "Upgrade: websocket"),
        *(bytes([1 + 4 * number]) + job for number in range(3)),
        b"\1" + deep("/jobs", 3),
        *(b"\2" + chance.randbytes(400) for _ in range(5)),
    ]
    for number, data in enumerate(found):
        (folder / f"seed-{number}").write_bytes(data)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--inputs", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    kept = Path(tempfile.mkdtemp(prefix="startgate-fuzz-"))
    corpus = kept / "corpus"
    corpus.mkdir()
    seeds(corpus, random.Random(options.seed))
    with asyncio.Runner() as runner:
        serving = target()  # held, or Python would end it
        made = runner.run(serving.__aenter__())
        run = Run(runner, made, options.inputs, kept)
        flags = [f"-seed={options.seed}", "-max_len=4096", "-timeout=60", "-rss_limit_mb=0", "-verbosity=0"]
        atheris.Setup([sys.argv[0], *flags, str(corpus)], run.one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
