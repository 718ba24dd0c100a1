"""Nothing lost, wherever our programs are killed (promise 6): twenty of the crashes of `make chaos`."""

from __future__ import annotations

from pathlib import Path

from localcluster.deploy import Startgate
from tests.chaos.run import run

CRASHES = 20
SEED = 6


async def test_twenty_crashes(startgate: Startgate, tmp_path: Path) -> None:
    """Each at a write of the controller or of the webhook, before or after it; the same or another replica goes on."""
    tally = await run(startgate, tmp_path, CRASHES, SEED, print, a_round=CRASHES)
    print(tally.table())
    assert [*tally.stuck, *tally.found.sentences()] == []
    assert tally.last_line() == f"chaos: {CRASHES} crashes, 0 half gangs, 0 leaks, 0 failed jobs"
    assert len({(point.kind, point.after) for point in tally.counts}) >= CRASHES / 3, "at many kinds of write"
