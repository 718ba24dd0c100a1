"""The command line: `python -m tests.soak`, which `make soak` calls.

The last line is `soak: M minutes, J jobs, F faults, H half gangs, L leaks, X failed jobs, memory A to B MB`; the status
is 1 if anything was found, or if a program grew.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from functools import partial
from pathlib import Path

from tests.chaos.rig import on_a_plane, say, tell
from tests.soak.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=int, default=30, help="how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--keep", type=Path, default=Path(".soak"), help="where logs are left if something was found")
    told = parser.parse_args()
    work = partial(run, minutes=told.minutes, seed=told.seed, say=say)
    return tell(asyncio.run(on_a_plane("soak", told.keep, work)))


sys.exit(main())
