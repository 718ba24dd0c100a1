"""The engine says "fits" when the real kube-scheduler binds every pod, and only then: a hundred small clusters."""

import os
from collections.abc import AsyncIterator

import pytest

from localcluster import build
from tests.oracle.judge import Judge
from tests.oracle.plane import Plane
from tests.oracle.run import run

CLUSTERS = 100
SEED = 20


@pytest.fixture
async def plane() -> AsyncIterator[Plane]:
    async with Plane.start(os.environ.get("KUBERNETES", build.NEWEST)) as running:
        yield running


async def test_the_engine_and_kube_scheduler_agree(plane: Plane) -> None:
    tally = await run(Judge(plane), CLUSTERS, SEED, say=print)
    print(tally.table())
    assert [f"{each.case.name}: {each.outcome}, {each.answer}, {each.unbound}" for each in tally.mistakes] == []
    assert (tally.clusters, tally.refused, tally.unanswered) == (CLUSTERS, 0, 0)
    assert CLUSTERS / 4 <= tally.bound <= CLUSTERS * 3 / 4, "of such clusters, gangs fit in some and not in others"
