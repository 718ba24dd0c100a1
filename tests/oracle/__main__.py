"""The command line: `python -m tests.oracle`, which `make oracle` calls.

The last line is `oracle: N clusters, W wrong fits, M missed fits`; the status is 1 if there are wrong fits.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Final

from localcluster import build
from tests.oracle.case import Case
from tests.oracle.generate import ENABLED, FEATURES
from tests.oracle.judge import Judge, Verdict
from tests.oracle.plane import Plane
from tests.oracle.run import run
from tests.oracle.tally import Tally

MEASURED: Final = re.compile(r"(<!-- measured: oracle -->\n).*?(<!-- end -->)", re.DOTALL)


def say(sentence: str) -> None:
    """Progress; the results alone go to standard output."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def _features(text: str) -> tuple[str, ...]:
    chosen = tuple(FEATURES) if text == "all" else tuple(text.split(","))
    if unknown := set(chosen) - FEATURES.keys():
        raise argparse.ArgumentTypeError(f"no feature {', '.join(unknown)}; there are {', '.join(FEATURES)}")
    return chosen


async def _oracle(arguments: argparse.Namespace) -> Tally:
    async with Plane.start(os.environ.get("KUBERNETES", build.NEWEST)) as plane:
        return await run(
            Judge(plane),
            arguments.clusters,
            arguments.seed,
            first=arguments.first,
            enabled=arguments.features,
            found=arguments.found,
            say=say,
        )


async def _replay(file: Path) -> Verdict:
    async with Plane.start(os.environ.get("KUBERNETES", build.NEWEST)) as plane:
        return await Judge(plane).judge(Case.read(file))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("--clusters", type=int, default=5000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--first", type=int, default=0, help="the number of the first (default: %(default)s)")
    parser.add_argument("--found", type=Path, default=Path(".oracle"), help="where disagreements are written")
    parser.add_argument("--features", type=_features, default=ENABLED, help="names with commas between, or all")
    parser.add_argument("--page", type=Path, help="a page of docs whose table is made anew")
    parser.add_argument("--replay", type=Path, help="ask about the case in this file instead")
    arguments = parser.parse_args()
    if arguments.replay:
        verdict = asyncio.run(_replay(arguments.replay))
        sys.stdout.write(f"{verdict.outcome}: {verdict.answer}; kube-scheduler: {verdict.unbound or 'all bound'}\n")
        return int(verdict.mistaken)
    tally = asyncio.run(_oracle(arguments))
    if arguments.page:
        text = arguments.page.read_text()
        arguments.page.write_text(MEASURED.sub(lambda it: f"{it[1]}{tally.page()}\n{it[2]}", text))
    sys.stdout.write(f"{tally.table()}\n{tally.last_line()}\n")
    return int(tally.wrong_fits > 0)


sys.exit(main())
