"""The certificate's keeper against a real API server: made, shared, renewed, mended, and only what is ours
written."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from certs import authority
from certs.authority import Material
from certs.rotation import CONFIGURATIONS, LOOK_EVERY, Keeper
from localcluster import build
from localcluster.cluster import Cluster
from startgate.kube.client import ApiError, Client
from startgate.kube.kinds import NAMESPACES, SECRETS
from startgate.model import names
from tests.behaviour.kit import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAY = 24 * 3600.0
SERVICE = "rotation-test"
"""Not the real one's name, so that nothing of a Startgate on the same cluster is touched."""
NAMES = authority.server_names(SERVICE, "rotation")


def webhook(name: str, service: str) -> dict[str, Any]:
    return {
        "name": name,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "clientConfig": {"service": {"namespace": "rotation", "name": service, "path": "/x"}},
        "rules": [
            {"apiGroups": ["none.startgate.dev"], "apiVersions": ["v1"], "resources": ["x"], "operations": ["CREATE"]}
        ],
    }


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


class Site:
    """A namespace and two configurations, as the manifests would make them, and replicas on a clock of ours."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.clock = Clock()

    def replica(self) -> tuple[Keeper, list[Material]]:
        served: list[Material] = []
        keeper = Keeper(self.client, served.append, namespace="rotation", service=SERVICE, clock=self.clock)
        return keeper, served

    async def secret(self) -> Any:
        return await self.client.get(SECRETS, names.CERTIFICATE_SECRET, "rotation")

    async def versions(self) -> list[str]:
        """Of all that a keeper writes."""
        configurations = [await self.client.get(kind, names.WEBHOOK_CONFIGURATION) for kind in CONFIGURATIONS]
        return [each.metadata.resource_version for each in (await self.secret(), *configurations)]

    async def patient(self, keeper: Keeper) -> None:
        """A look, again at once where another replica was quicker with a configuration, as `run` does later."""
        while True:
            try:
                return await keeper.look()
            except ApiError as error:
                if not error.conflict:
                    raise

    @staticmethod
    def key_of(served: list[Material], bundle: bytes) -> bytes:
        """The key of the CA that comes first in the bundle."""
        return next(each.authority_key for each in served if each.bundle == bundle)

    async def bundles(self) -> list[bytes | None]:
        found = []
        for kind in CONFIGURATIONS:
            configuration = await self.client.get(kind, names.WEBHOOK_CONFIGURATION)
            found += [each.client_config.ca_bundle for each in configuration.webhooks or ()]
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plane() -> AsyncIterator[Cluster]:
    """A control plane of its own: the configurations have the name that Startgate's have on the shared one."""
    async with Cluster.start(kubernetes=os.environ.get("KUBERNETES", build.NEWEST)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def site(plane: Cluster) -> AsyncIterator[Site]:
    async with await Client.connect(kubeconfig=str(plane.kubeconfig)) as client:
        with suppress(ApiError):  # it is there from the test before
            await client.create(NAMESPACES, {"metadata": {"name": "rotation"}})
        for kind in CONFIGURATIONS:
            webhooks = [webhook("a.startgate.dev", SERVICE), webhook("b.startgate.dev", "other")]
            await client.create(kind, {"metadata": {"name": names.WEBHOOK_CONFIGURATION}, "webhooks": webhooks})
        yield Site(client)
        await client.delete(SECRETS, names.CERTIFICATE_SECRET, "rotation")
        for kind in CONFIGURATIONS:
            await client.delete(kind, names.WEBHOOK_CONFIGURATION)


async def test_the_first_look_makes_the_secret_and_has_it_trusted(site: Site) -> None:
    keeper, served = site.replica()
    await keeper.look()
    secret = await site.secret()
    assert secret.type == "kubernetes.io/tls"
    assert {file: secret.data[file] for file in ("tls.crt", "tls.key", "ca.crt", "ca.key")} == {
        "tls.crt": served[0].certificate,
        "tls.key": served[0].key,
        "ca.crt": served[0].bundle,
        "ca.key": served[0].authority_key,
    }
    assert await site.bundles() == [served[0].bundle, None, served[0].bundle, None], "ours alone"
    authority.check(served[0], NAMES, site.clock())


async def test_a_look_with_nothing_due_writes_nothing(site: Site) -> None:
    keeper, served = site.replica()
    await keeper.look()
    before = await site.versions()
    for _ in range(3):
        await keeper.look()
    assert await site.versions() == before
    assert len(served) == 1


async def test_replicas_that_start_together_serve_the_same(site: Site) -> None:
    replicas = [site.replica() for _ in range(5)]
    await asyncio.gather(*(site.patient(keeper) for keeper, _ in replicas))
    assert len({served[-1].certificate for _, served in replicas}) == 1


async def test_what_is_due_is_renewed_once_for_all_replicas(site: Site) -> None:
    replicas = [site.replica() for _ in range(3)]
    for _ in range(2):
        for keeper, _ in replicas:
            await keeper.look()
    site.clock.now += 61 * DAY
    for _ in range(3):
        await asyncio.gather(*(site.patient(keeper) for keeper, _ in replicas))
    histories = [[material.certificate for material in served] for _, served in replicas]
    assert histories[0] == histories[1] == histories[2]
    assert len(histories[0]) == 2
    assert replicas[0][1][0].bundle == replicas[0][1][1].bundle, "the CA stays"


async def test_a_new_ca_is_trusted_for_a_look_before_it_issues(site: Site) -> None:
    keeper, served = site.replica()
    for day in range(0, 300, 5):
        site.clock.now += (5 if day else 0) * DAY
        before = [bundle for bundle in await site.bundles() if bundle]
        count = len(served)
        await keeper.look()
        for material in served[count:]:
            # An API server that has not heard of this look's write still verifies what is served from now on.
            for bundle in before:
                authority.check(
                    Material(material.certificate, material.key, bundle, site.key_of(served, bundle)),
                    NAMES,
                    site.clock(),
                )
    assert len({material.authority_key for material in served}) == 2


@pytest.mark.parametrize("file", ["tls.crt", "tls.key", "ca.crt", "ca.key"])
async def test_garbage_is_made_anew_and_said(site: Site, file: str, caplog: pytest.LogCaptureFixture) -> None:
    keeper, served = site.replica()
    await keeper.look()
    await site.client.patch(SECRETS, names.CERTIFICATE_SECRET, {"data": {file: b"garbage"}}, "rotation")
    await keeper.look()
    assert "is made anew" in caplog.text
    assert len(served) == 2
    authority.check(served[-1], NAMES, site.clock())
    assert await site.bundles() == [served[-1].bundle, None, served[-1].bundle, None]


async def test_a_deleted_secret_and_a_changed_bundle_are_mended(site: Site) -> None:
    keeper, served = site.replica()
    await keeper.look()
    await site.client.delete(SECRETS, names.CERTIFICATE_SECRET, "rotation")
    await keeper.look()
    assert len(served) == 2
    emptied = {"webhooks": [webhook("a.startgate.dev", SERVICE)]}
    await site.client.patch(CONFIGURATIONS[0], names.WEBHOOK_CONFIGURATION, emptied)
    await keeper.look()
    assert await site.bundles() == [served[-1].bundle, served[-1].bundle, None]


async def test_all_replicas_serve_what_is_made_anew_within_seconds(site: Site) -> None:
    """As soon as one has made another authority, nobody trusts what the others serve."""
    replicas = [site.replica() for _ in range(2)]
    await asyncio.gather(*(site.patient(keeper) for keeper, _ in replicas))
    running = [asyncio.create_task(keeper.run()) for keeper, _ in replicas]
    try:
        await site.client.delete(SECRETS, names.CERTIFICATE_SECRET, "rotation")

        async def known() -> list[int]:
            return [len(served) for _, served in replicas]

        await eventually(known, lambda counts: counts == [2, 2], "both serve another", within=LOOK_EVERY / 3)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    first, second = (served[-1] for _, served in replicas)
    assert first == second
    assert await site.bundles() == [first.bundle, None, first.bundle, None]


async def test_without_configurations_it_serves_and_says_so(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    for kind in CONFIGURATIONS:
        await site.client.delete(kind, names.WEBHOOK_CONFIGURATION)
    keeper, served = site.replica()
    await keeper.look()
    assert len(served) == 1
    assert "apply the manifests" in caplog.text
