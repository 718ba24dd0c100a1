"""Many cases one after the other, each disagreement made small and written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

from tests.oracle.generate import ENABLED, generate
from tests.oracle.judge import Judge, Outcome, Verdict
from tests.oracle.plane import RefusedError
from tests.oracle.tally import Tally

NEWS_EVERY: Final = 100


async def run(
    judge: Judge,
    clusters: int,
    seed: int,
    *,
    first: int = 0,
    enabled: Sequence[str] = ENABLED,
    found: Path | None = None,
    say: Callable[[str], None],
) -> Tally:
    """The cases of this seed from number `first` on. A case that the API server refuses, or about which
    kube-scheduler comes to no end, is said, and not counted."""
    tally, began = Tally(), time.monotonic()
    for number in range(first, first + clusters):
        case = generate(seed, number, enabled)
        try:
            verdict = await judge.judge(case, edge=Random(f"edge {case.name}"))
        except RefusedError as error:
            tally.refused += 1
            say(f"{case.name} ({', '.join(case.features)}) was refused: {error}")
            continue
        except TimeoutError as error:
            tally.unanswered += 1
            say(f"{case.name} ({', '.join(case.features)}) has no answer: {error or 'nothing happens any more'}")
            continue
        tally.count(verdict)
        if verdict.outcome is not Outcome.AGREED:
            known = f" (gangs {verdict.careful})" if not verdict.mistaken else ""
            say(f"{case.name} ({', '.join(case.features)}): {verdict.outcome}{known}")
            if found is not None and verdict.mistaken:
                _write(await judge.shrink(verdict), found)
        if tally.clusters % NEWS_EVERY == 0:
            each = (time.monotonic() - began) / tally.clusters
            say(f"{tally.last_line()} ({each:.2f} s each)")
    return tally


def _write(verdict: Verdict, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    answer = verdict.answer
    engine = f"goes, to {', '.join(answer.nodes)}" + (" (tight)" if answer.tight else "")
    scheduler = " | ".join(dict.fromkeys(verdict.unbound)) or "all bound"
    kind = str(verdict.outcome).replace(" ", "-")
    verdict.case.write(
        folder / f"{verdict.case.name}-{kind}.yaml",
        outcome=str(verdict.outcome),
        engine=engine if answer.goes else f"{answer.code}: {answer.says}",
        scheduler=scheduler,
    )
