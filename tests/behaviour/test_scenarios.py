"""Scenario files on the real control plane: what the simulator says comes true (tests/scenarios/README.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from localcluster.deploy import Startgate
from tests.behaviour.kit import Field
from tests.behaviour.playing import Play
from tests.scenario import PATIENCE, Scenario, files

PLANE = [scenario for path in files() if (scenario := Scenario.read(path)).document.plane]


@asynccontextmanager
async def patience(startgate: Startgate, wanted: str) -> AsyncIterator[None]:
    """The controller has this much of it; its own otherwise, and afterwards."""
    if wanted == PATIENCE:
        yield
        return
    await startgate.controller.stop()
    await startgate.controller.start(f"--patience={wanted}")
    await startgate.controller.wait_ready()
    try:
        yield
    finally:
        await startgate.controller.stop()
        await startgate.controller.start()
        await startgate.controller.wait_ready()


@pytest.mark.parametrize("scenario", PLANE, ids=lambda scenario: scenario.name)
async def test_scenario(field: Field, scenario: Scenario) -> None:
    async with patience(field.startgate, scenario.document.patience):
        await Play(field, scenario).run()
