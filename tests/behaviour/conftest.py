"""What the behaviour tests share: `field`, a place on the cluster where one test may do what it likes (see kit)."""

from collections.abc import AsyncIterator

import pytest

from localcluster.deploy import Startgate
from tests.behaviour.kit import Field


@pytest.fixture
async def field(startgate: Startgate) -> AsyncIterator[Field]:
    """A namespace of this test's own; queues and nodes as it asks. Startgate runs as it ships."""
    async with Field.on(startgate) as opened:
        yield opened
