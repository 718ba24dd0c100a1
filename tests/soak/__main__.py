"""The command line: `python -m tests.soak`, which `make soak` calls.

The last line is `soak: M minutes, J jobs, F faults, H half gangs, L leaks, X failed jobs, memory A to B MB`; the status
is 1 if anything was found, or if a program grew.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

from localcluster import build
from localcluster.cluster import Cluster
from localcluster.deploy import Startgate
from tests.soak.run import Tally, run


def say(sentence: str) -> None:
    """Progress; the results alone go to standard output."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


async def _soak(minutes: int, seed: int, keep: Path) -> Tally:
    with tempfile.TemporaryDirectory(prefix="startgate-soak-") as folder:
        async with (
            Cluster.start(kubernetes=os.environ.get("KUBERNETES", build.NEWEST)) as cluster,
            Startgate.deploy(cluster) as startgate,
        ):
            tally = await run(startgate, Path(folder), minutes, seed, say)
            if not tally.clean:
                for part in ("logs", "startgate"):
                    shutil.copytree(cluster.dir / part, keep / part, dirs_exist_ok=True)
                say(f"The logs are in {keep}.")
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=int, default=30, help="how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--keep", type=Path, default=Path(".soak"), help="where logs are left if something was found")
    arguments = parser.parse_args()
    tally = asyncio.run(_soak(arguments.minutes, arguments.seed, arguments.keep))
    for sentence in (*tally.stuck, *tally.found.sentences()):
        sys.stdout.write(f"{sentence}\n")
    sys.stdout.write(f"{tally.table()}\n{tally.last_line()}\n")
    return int(not tally.clean)


sys.exit(main())
