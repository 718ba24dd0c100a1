"""The command line: `python -m tests.chaos`, which `make chaos` calls.

The last line is `chaos: N crashes, H half gangs, L leaks, F failed jobs`; the status is 1 if anything was found.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from functools import partial
from pathlib import Path

from tests.chaos.rig import on_a_plane, say, tell
from tests.chaos.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--crashes", type=int, default=500, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--keep", type=Path, default=Path(".chaos"), help="where logs are left if something was found")
    told = parser.parse_args()
    work = partial(run, crashes=told.crashes, seed=told.seed, say=say)
    return tell(asyncio.run(on_a_plane("chaos", told.keep, work)))


sys.exit(main())
