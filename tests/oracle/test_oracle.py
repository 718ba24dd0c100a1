"""The engine says "fits" when the real kube-scheduler binds every pod, and only then."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from localcluster import build
from tests.oracle.case import Case
from tests.oracle.judge import Judge
from tests.oracle.plane import Plane
from tests.oracle.run import run

CLUSTERS = 100
SEED = 20

CASES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))
"""Disagreements that were found once, with a title each."""

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def judge() -> AsyncIterator[Judge]:
    async with Plane.start(os.environ.get("KUBERNETES", build.NEWEST)) as plane:
        yield Judge(plane)


async def test_what_they_disagreed_about_once(judge: Judge) -> None:
    verdicts = {path.stem: await judge.judge(Case.read(path)) for path in CASES}
    assert [f"{name}: {it.outcome}, {it.answer}, {it.unbound}" for name, it in verdicts.items() if it.mistaken] == []


async def test_a_hundred_clusters(judge: Judge) -> None:
    tally = await run(judge, CLUSTERS, SEED, say=print)
    print(tally.table())
    assert [f"{each.case.name}: {each.outcome}, {each.answer}, {each.unbound}" for each in tally.mistakes] == []
    assert (tally.clusters, tally.refused, tally.unanswered) == (CLUSTERS, 0, 0)
    assert CLUSTERS / 4 <= tally.bound <= CLUSTERS * 3 / 4, "of such clusters, gangs fit in some and not in others"
