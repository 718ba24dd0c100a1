"""The command line: `python -m tests.chaos`, which `make chaos` calls.

The last line is `chaos: N crashes, H half gangs, L leaks, F failed jobs`; the status is 1 if anything was found.
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
from tests.chaos.run import Tally, run


def say(sentence: str) -> None:
    """Progress; the results alone go to standard output."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


async def _chaos(crashes: int, seed: int, keep: Path) -> Tally:
    with tempfile.TemporaryDirectory(prefix="startgate-chaos-") as folder:
        async with (
            Cluster.start(kubernetes=os.environ.get("KUBERNETES", build.NEWEST)) as cluster,
            Startgate.deploy(cluster) as startgate,
        ):
            tally = await run(startgate, Path(folder), crashes, seed, say)
            if not tally.clean:
                for part in ("logs", "startgate"):
                    shutil.copytree(cluster.dir / part, keep / part, dirs_exist_ok=True)
                say(f"The logs are in {keep}.")
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--crashes", type=int, default=500, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--keep", type=Path, default=Path(".chaos"), help="where logs are left if something was found")
    arguments = parser.parse_args()
    tally = asyncio.run(_chaos(arguments.crashes, arguments.seed, arguments.keep))
    for sentence in (*tally.stuck, *tally.found.sentences()):
        sys.stdout.write(f"{sentence}\n")
    sys.stdout.write(f"{tally.table()}\n{tally.last_line()}\n")
    return int(not tally.clean)


sys.exit(main())
