"""Requests to a real API server: what comes back, what is refused, and what the network does to them."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec
import pytest
import yaml
from kubernetes_asyncio.config import incluster_config

from localcluster.cluster import Cluster
from startgate.kube import configuration
from startgate.kube.client import Client, Patch
from startgate.kube.errors import ApiError, ConfigurationError, Unreachable, Unreadable
from startgate.kube.events import EVENTS, Recorder, Regarding
from startgate.kube.kinds import NODES, SECRETS, Kind
from startgate.kube.store import version_of
from startgate.model.objects import ObjectMeta
from tests.faults import Proxy


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with await Client.connect(kubeconfig=str(cluster.kubeconfig)) as connected:
        yield connected


def secret(name: str) -> dict[str, object]:
    return {"metadata": {"name": name}, "stringData": {"word": "ünïcode"}}


@pytest.fixture
def name() -> str:
    return f"s{uuid4().hex[:8]}"


async def test_an_object_s_life(client: Client, name: str) -> None:
    assert client.namespace == "default"
    tried = await client.create(SECRETS, secret(name), "default", dry_run=True)
    assert tried.metadata.name == name
    with pytest.raises(ApiError) as missing:
        await client.get(SECRETS, name, "default")
    assert (missing.value.status, missing.value.reason) == (404, "NotFound")
    assert f'secrets "{name}" not found (404 NotFound; GET' in str(missing.value)

    made = await client.create(SECRETS, secret(name), "default")
    assert made.data == {"word": "ünïcode".encode()}
    with pytest.raises(ApiError) as taken:
        await client.create(SECRETS, secret(name), "default")
    assert (taken.value.conflict, taken.value.reason) == (True, "AlreadyExists")

    changed = await client.patch(SECRETS, name, {"metadata": {"labels": {"a": "b"}}}, "default")
    assert changed.metadata.labels == {"a": "b"}
    assert version_of(changed.metadata) > version_of(made.metadata)
    with pytest.raises(ApiError) as stale:
        old = {"metadata": {"resourceVersion": made.metadata.resource_version, "labels": {"a": "c"}}}
        await client.patch(SECRETS, name, old, "default", how=Patch.MERGE)
    assert (stale.value.conflict, stale.value.reason) == (True, "Conflict")

    with pytest.raises(ApiError) as other:
        await client.delete(SECRETS, name, "default", uid="another")
    assert other.value.conflict
    assert await client.delete(SECRETS, name, "default", uid=made.metadata.uid)
    assert not await client.delete(SECRETS, name, "default", uid=made.metadata.uid)


async def test_every_kind_of_patch(client: Client, name: str) -> None:
    await client.create(SECRETS, secret(name), "default")
    operations = [{"op": "add", "path": "/metadata/labels", "value": {"by": "json"}}]
    after = await client.patch(SECRETS, name, operations, "default", how=Patch.JSON)
    assert after.metadata.labels == {"by": "json"}
    strategic = {"metadata": {"uid": after.metadata.uid, "labels": {"by": "strategic"}}}
    after = await client.patch(SECRETS, name, strategic, "default", how=Patch.STRATEGIC)
    assert after.metadata.labels == {"by": "strategic"}
    applied = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": {"by": "us"}}}
    with pytest.raises(ApiError, match="conflict"):
        await client.patch(SECRETS, name, applied, "default", how=Patch.APPLY, field_manager="us")
    after = await client.patch(SECRETS, name, applied, "default", how=Patch.APPLY, field_manager="us", force=True)
    assert after.metadata.labels == {"by": "us"}


class Rich(msgspec.Struct):
    """A Secret, were the world as we wish."""

    metadata: ObjectMeta
    wealth: int


async def test_an_answer_that_cannot_be_read_says_so(client: Client, name: str) -> None:
    await client.create(SECRETS, secret(name), "default")
    rich = Kind("", "v1", "secrets", "Secret", True, Rich)
    with pytest.raises(Unreadable, match=r"isn't a Secret that we can read: .*wealth"):
        await client.get(rich, name, "default")
    with pytest.raises(Unreadable, match=r"list of secrets can't be read: .*wealth"):
        await client.list_all(rich, "default")


async def test_what_the_server_does_not_have_is_not_found(client: Client) -> None:
    nonsense = Kind("", "v1", "nonsense", "Nonsense", True, Rich)
    with pytest.raises(ApiError, match="could not find the requested resource") as missing:
        await client.list_all(nonsense, "default")
    assert missing.value.not_found


async def test_a_watch_that_never_begins_is_unreachable(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long its lines may then be apart."""
    monkeypatch.setattr("startgate.kube.client.BEGIN", 0.5)
    async with Proxy(cluster.server) as proxy:
        config = proxy.kubeconfig(cluster.kubeconfig, tmp_path)
        async with await Client.connect(kubeconfig=str(config)) as far:
            await far.list_all(NODES)
            proxy.silence()
            with pytest.raises(Unreachable, match="No answer in time"):
                async with far.stream(NODES.path(), query={"watch": "1"}, idle=60.0):
                    pytest.fail("it began")


async def test_silence_and_refusal_are_unreachable(cluster: Cluster, tmp_path: Path) -> None:
    async with Proxy(cluster.server) as proxy:
        config = proxy.kubeconfig(cluster.kubeconfig, tmp_path)
        async with await Client.connect(kubeconfig=str(config)) as far:
            await far.list_all(NODES)
            proxy.silence()
            with pytest.raises(Unreachable, match="No answer in time"):
                await far.request("GET", "/version", timeout=0.5)
            proxy.restore()
            proxy.refusing = True
            proxy.cut()
            with pytest.raises(Unreachable, match="can't be reached"):
                await far.request("GET", "/version")
            asked = asyncio.create_task(far.request("GET", "/version", attempts=5))
            await asyncio.sleep(0.2)
            proxy.refusing = False
            assert b"gitVersion" in await asked


async def test_after_connections_were_cut_the_next_read_just_works(cluster: Cluster, tmp_path: Path) -> None:
    async with Proxy(cluster.server) as proxy:
        config = proxy.kubeconfig(cluster.kubeconfig, tmp_path)
        async with await Client.connect(kubeconfig=str(config)) as far:
            await far.list_all(NODES)
            proxy.cut()
            await far.list_all(NODES)


async def token_of_account(cluster: Cluster) -> str:
    """For the ServiceAccount default/default, which may do next to nothing."""
    async with await Client.connect(kubeconfig=str(cluster.kubeconfig)) as admin:
        path = "/api/v1/namespaces/default/serviceaccounts/default/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        answer = msgspec.json.decode(await admin.request("POST", path, body=asked))
    return str(answer["status"]["token"])


async def test_a_pod_s_own_account_serves_without_a_kubeconfig(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text(await token_of_account(cluster))
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    authority.write_bytes(base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]))
    # Only the place of the files is another than in a pod.
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    monkeypatch.setattr(configuration, "IN_CLUSTER_NAMESPACE", tmp_path / "namespace")
    (tmp_path / "namespace").write_text("mine")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    server = urlsplit(cluster.server)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", server.hostname or "")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    async with await Client.connect() as account:
        assert account.namespace == "mine"
        with pytest.raises(ApiError, match="system:serviceaccount:default:default"):
            await account.list_all(NODES)
        good = token.read_text()
        token.write_text("not-a-token")
        monkeypatch.setattr(configuration, "RENEW_EVERY", 0.0)
        with pytest.raises(ApiError, match="Unauthorized"):
            await account.list_all(NODES)
        token.write_text(good)
        with pytest.raises(ApiError, match="system:serviceaccount:default:default"):
            await account.list_all(NODES)


async def test_a_token_in_a_file_is_read_anew_when_it_was_refused(cluster: Cluster, tmp_path: Path) -> None:
    """And its ServiceAccount's rights are what counts."""
    token = tmp_path / "token"
    token.write_text("not-a-token")
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"tokenFile": str(token)}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    async with await Client.connect(kubeconfig=str(kubeconfig)) as account:
        with pytest.raises(ApiError) as refused:
            await account.list_all(NODES)
        assert refused.value.status == 401
        token.write_text(await token_of_account(cluster) + "\n")
        with pytest.raises(ApiError) as forbidden:
            await account.list_all(NODES)
        assert (forbidden.value.status, forbidden.value.reason) == (403, "Forbidden")
        token.write_text("not-a-token")
        with pytest.raises(ApiError) as still:
            await account.list_all(NODES)
        assert still.value.status == 403  # what serves isn't looked at again for a while


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "current-context: gone\ncontexts: []\nclusters: []\nusers: []\n", "contexts: 7"],
)
async def test_a_kubeconfig_that_is_none_is_said_in_a_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    with pytest.raises(ConfigurationError, match="There is no kubeconfig at"):
        await Client.connect(kubeconfig=str(path))
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="can't be used"):
        await Client.connect(kubeconfig=str(path))


async def test_events_are_posted_once(client: Client, name: str) -> None:
    made = await client.create(SECRETS, secret(name), "default")
    about = Regarding("v1", "Secret", name, "default", made.metadata.uid)
    recorder = Recorder(client, "startgate.dev/tests", "one")
    posting = asyncio.create_task(recorder.run())
    for _ in range(3):
        recorder.event(about, "Warning", "Waits", "It waits, " + "ü" * 2000, "Decide")
    recorder.event(about, "Normal", "Starts", "It starts.", "Decide")
    deadline = time.monotonic() + 10
    found: list[str] = []
    while len(found) < 2 and time.monotonic() < deadline:
        events = await client.list_all(EVENTS, "default")
        found = [e.reason for e in events if e.regarding is not None and e.regarding.uid == about.uid]
        await asyncio.sleep(0.05)
    posting.cancel()
    await asyncio.gather(posting, return_exceptions=True)
    assert sorted(found) == ["Starts", "Waits"]
    assert recorder.dropped == 0
