"""The fault proxy itself, before the real API server: what passes is unchanged, what a rule says happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from localcluster.cluster import Cluster
from startgate.kube.client import Client, Patch
from startgate.kube.errors import ApiError, Unreachable
from startgate.kube.kinds import NAMESPACES, Kind
from startgate.kube.reflector import Reflector
from startgate.model.objects import Namespace
from tests.faults import Call, Delay, Expire, Gateway, Hang, Late, Refuse, Silent, Twice, which

KIND: Kind[Namespace] = NAMESPACES
ACCOUNT = ("default", "gateway-test")


class Scene:
    """A ConfigMap-sized object that is cheap to write: a namespace; near is direct, far goes by the gateway."""

    def __init__(self, gateway: Gateway, near: Client, far: Client) -> None:
        self.gateway, self.near, self.far = gateway, near, far
        self.name = f"g{uuid4().hex[:8]}"

    async def label(self, client: Client, value: str) -> Namespace:
        return await client.patch(KIND, self.name, {"metadata": {"labels": {"said": value}}}, how=Patch.MERGE)

    async def said(self) -> str:
        return (await self.near.get(KIND, self.name)).metadata.labels.get("said", "")

    @asynccontextmanager
    async def watched(self, **options: Any) -> AsyncIterator[tuple[Reflector[Namespace, str], list[str]]]:
        """What a reflector behind the gateway hears of the object."""
        heard: list[str] = []
        reflector = Reflector(
            self.far,
            KIND,
            view=lambda each: each.metadata.labels.get("said", ""),
            field_selector=f"metadata.name={self.name}",
            on_change=lambda change: heard.append(change.new if change.new is not None else "gone"),
            **options,
        )
        task = asyncio.create_task(reflector.run())
        try:
            await asyncio.wait_for(reflector.wait_synced(), 20)
            await until(lambda: reflector._watching)
            yield reflector, heard
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(holds: Any, within: float = 10.0) -> None:
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.01)


@pytest.fixture
async def scene(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Scene]:
    async with await Client.connect(kubeconfig=str(cluster.kubeconfig)) as near:
        namespace, account = ACCOUNT
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": account},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": account}],
        }
        await near.request("POST", path, body={"metadata": {"name": account}})
        await near.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body=binding)
        original = await cluster.service_account_kubeconfig(namespace, account)
        try:
            async with Gateway(cluster.server, cluster.authority.certificate_file, tmp_path) as gateway:
                config = gateway.kubeconfig(original, "tester-0")
                async with await Client.connect(kubeconfig=str(config)) as far:
                    made = Scene(gateway, near, far)
                    await near.create(KIND, {"metadata": {"name": made.name}})
                    yield made
                    await near.delete(KIND, made.name)
        finally:
            await near.request("DELETE", f"{path}/{account}")
            await near.request("DELETE", f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{account}")


async def test_what_passes_is_in_the_log_with_numbers_and_kinds(scene: Scene) -> None:
    await scene.label(scene.far, "a")
    await scene.far.get(KIND, scene.name)
    with pytest.raises(ApiError) as refused:
        await scene.far.get(KIND, "there-is-none")
    assert refused.value.not_found
    assert refused.value.reason == "NotFound", "the API server's own Status comes through"
    assert await scene.said() == "a"
    said = [(call.number, call.write, call.verb, call.what, call.name, call.status) for call in scene.gateway.log]
    assert said == [
        (1, 1, "patch", "namespaces", scene.name, 200),
        (2, 0, "get", "namespaces", scene.name, 200),
        (3, 0, "get", "namespaces", "there-is-none", 404),
    ]
    assert {(call.program, call.agent) for call in scene.gateway.log} == {("tester-0", "startgate")}


@pytest.mark.parametrize("status", [409, 422, 429, 500, 503])
async def test_a_refusal_is_a_status_and_the_api_server_never_hears_of_it(scene: Scene, status: int) -> None:
    rule = scene.gateway.on(which(verb="patch"), Refuse(status, retry_after=7))
    with pytest.raises(ApiError) as refused:
        await scene.label(scene.far, "never")
    rule.take_away()
    assert (refused.value.status, refused.value.retry_after) == (status, 7)
    assert len(rule.hits) == 1
    assert not rule.hits[0].reached
    assert await scene.said() == ""
    await scene.label(scene.far, "now")
    assert await scene.said() == "now"


async def test_a_connection_is_cut_before_or_after_the_write(scene: Scene) -> None:
    gateway, told = scene.gateway, []

    async def note(call: Call) -> None:
        told.append((call.write, await scene.said()))

    gateway.before_write(1, note, "tester")
    gateway.after_write(2, note, "tester")
    with pytest.raises(Unreachable):
        await scene.label(scene.far, "first")
    assert await scene.said() == ""
    with pytest.raises(Unreachable):
        await scene.label(scene.far, "second")
    assert await scene.said() == "second", "it was carried out, and its sender doesn't know"
    assert told == [(1, ""), (2, "second")]
    await scene.label(scene.far, "third")


async def test_rules_hit_as_many_as_they_say_and_the_newest_decides(scene: Scene) -> None:
    scene.gateway.on(which(verb="patch"), Refuse(503), skip=1, times=1)
    await scene.label(scene.far, "1")
    with scene.gateway.on(which(what="nodes"), Refuse(500)), pytest.raises(ApiError):
        await scene.label(scene.far, "2")
    await scene.label(scene.far, "3")
    assert await scene.said() == "3"


async def test_half_open_and_late_requests(scene: Scene) -> None:
    patch = {"metadata": {"labels": {"said": "carried-out"}}}
    with scene.gateway.on(which(verb="patch"), Hang(after=True)), pytest.raises(Unreachable):
        await scene.far.patch(KIND, scene.name, patch, timeout=0.5)
    assert await scene.said() == "carried-out"
    with scene.gateway.on(which(verb="patch"), Hang()), pytest.raises(Unreachable):
        await scene.far.patch(KIND, scene.name, {"metadata": {"labels": {"said": "never"}}}, timeout=0.5)
    assert await scene.said() == "carried-out"
    with scene.gateway.on(which(verb="patch"), Delay(0.6, lands=True)):
        with pytest.raises(Unreachable):
            await scene.far.patch(KIND, scene.name, {"metadata": {"labels": {"said": "late"}}}, timeout=0.3)
        assert await scene.said() == "carried-out"
        end = time.monotonic() + 10
        while await scene.said() != "late":
            assert time.monotonic() < end


async def test_watches_fall_silent_come_late_and_twice_and_expire(scene: Scene) -> None:
    async with scene.watched() as (reflector, heard):
        await scene.label(scene.near, "a")
        await until(lambda: heard[-1] == "a")
        with scene.gateway.on(which(verb="watch"), Silent()) as rule:
            await scene.label(scene.near, "b")
            await scene.label(scene.near, "c")
            await asyncio.sleep(0.3)
            assert heard[-1] == "a"
            assert len(rule.hits) == 1, "the open watch"
        await until(lambda: heard[-2:] == ["b", "c"])
        with scene.gateway.on(which(verb="watch"), Late(0.4)):
            began = time.monotonic()
            await scene.label(scene.near, "d")
            await until(lambda: heard[-1] == "d")
            assert time.monotonic() - began >= 0.4
        events = reflector.events
        with scene.gateway.on(which(verb="watch"), Twice(0.2)):
            await scene.label(scene.near, "e")
            await until(lambda: reflector.events == events + 2)
        lists = reflector.relists
        assert scene.gateway.expire() == 1
        await until(lambda: reflector.relists == lists + 1)
        with (
            scene.gateway.on(which(verb="list"), Expire(), times=1),
            scene.gateway.on(which(verb="watch"), Expire(), times=1),
        ):
            scene.gateway.cut()
            await until(lambda: reflector.relists == lists + 3)
        await scene.label(scene.near, "f")
        await until(lambda: heard[-1] == "f")
    assert heard[-6:] == ["a", "b", "c", "d", "e", "f"]


async def test_an_outage_breaks_what_is_open_and_ends(scene: Scene) -> None:
    async with scene.watched(stale_after=0.2) as (reflector, heard):
        with scene.gateway.outage():
            with pytest.raises(Unreachable):
                await scene.label(scene.far, "never")
            await until(lambda: not reflector.synced)
            await scene.label(scene.near, "meanwhile")
        await until(lambda: heard[-1] == "meanwhile")
        assert reflector.synced
        with scene.gateway.outage(which(verb="patch"), silent=True):
            with pytest.raises(Unreachable):
                await scene.far.patch(KIND, scene.name, {"metadata": {"labels": {"said": "never"}}}, timeout=0.2)
            await scene.label(scene.near, "watches-go-on")
            await until(lambda: heard[-1] == "watches-go-on")


async def test_a_program_that_is_gone_leaves_no_watch_behind(scene: Scene) -> None:
    async with scene.watched():
        assert len(scene.gateway._watches) == 1
    await until(lambda: not scene.gateway._watches)


async def test_hundreds_of_requests_a_second_pass(scene: Scene) -> None:
    """On one core that the test, the gateway and both ends' TLS share; the API server takes fewer writes than that."""

    async def some() -> None:
        for _ in range(50):
            await scene.far.get(KIND, scene.name)

    await some()
    began = time.monotonic()
    await asyncio.gather(*(some() for _ in range(16)))
    assert 800 / (time.monotonic() - began) > 150
    assert scene.gateway.log.most_within(1.0, which(verb="get")) > 150
