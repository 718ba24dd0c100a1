"""The pytest fixtures `cluster`, one real control plane for a whole test session, and `startgate` on it.

Which Kubernetes is what the environment variable KUBERNETES says (1.37 or 1.36). Where the control
plane can't be started the tests fail: a behaviour that wasn't seen was not tested.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest_asyncio

from localcluster import build
from localcluster.cluster import Cluster
from localcluster.deploy import Startgate


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster.start(kubernetes=os.environ.get("KUBERNETES", build.NEWEST)) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def startgate(cluster: Cluster) -> AsyncIterator[Startgate]:
    """Deployed on `cluster` as it ships, both programs running. A test that stops one starts it again."""
    async with Startgate.deploy(cluster) as deployed:
        yield deployed
