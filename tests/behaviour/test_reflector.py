"""Reflectors against a real API server, also with the network failing between them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import msgspec
import pytest

from localcluster.cluster import Cluster
from startgate.kube.client import Client, Patch
from startgate.kube.errors import ApiError
from startgate.kube.kinds import Kind
from startgate.kube.reflector import Reflector
from startgate.kube.store import Change
from startgate.model.objects import ObjectMeta
from tests.faults import Proxy


class Data(msgspec.Struct, frozen=True):
    size: Literal["1", "2", "3"] = "1"


class Map(msgspec.Struct, frozen=True):
    """A ConfigMap whose data may say more than we understand."""

    metadata: ObjectMeta
    data: Data = Data()


MAPS = Kind("", "v1", "configmaps", "ConfigMap", True, Map)


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with await Client.connect(kubeconfig=str(cluster.kubeconfig)) as connected:
        yield connected


@pytest.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[Proxy]:
    async with Proxy(cluster.server) as running:
        yield running


@pytest.fixture
async def far(cluster: Cluster, proxy: Proxy, tmp_path: Path) -> AsyncIterator[Client]:
    """A client on the other side of the proxy."""
    config = proxy.kubeconfig(cluster.kubeconfig, tmp_path)
    async with await Client.connect(kubeconfig=str(config)) as connected:
        yield connected


class Scene:
    """The objects of one test, by a label of its own, and a reflector's account of them."""

    def __init__(self, near: Client, kind: Kind[Map] = MAPS) -> None:
        self.label = f"t{uuid4().hex[:8]}"
        self.near = near
        self.kind = kind
        self.changes: list[tuple[str | None, str | None]] = []

    async def make(self, name: str, size: str = "1") -> None:
        body = {
            "apiVersion": self.kind.api_version,
            "kind": self.kind.kind,
            "metadata": {"name": f"{self.label}-{name}", "labels": {"test": self.label}},
            "data": {"size": size},
        }
        await self.near.request("POST", self.kind.path("default"), body=body)

    async def set(self, name: str, size: str) -> bytes:
        path = self.kind.path("default", f"{self.label}-{name}")
        body = {"data": {"size": size}}
        return await self.near.request("PATCH", path, body=body, content_type=Patch.MERGE)

    async def remove(self, name: str) -> None:
        assert await self.near.delete(self.kind, f"{self.label}-{name}", "default")

    def note(self, change: Change[str]) -> None:
        self.changes.append((change.old, change.new))

    def view(self, obj: Map) -> str:
        return obj.metadata.name.removeprefix(f"{self.label}-") + obj.data.size

    def reflector(self, client: Client, **options: Any) -> Reflector[Map, str]:
        return Reflector(
            client,
            self.kind,
            view=self.view,
            namespace="default",
            label_selector=f"test={self.label}",
            on_change=self.note,
            **options,
        )


@pytest.fixture
def scene(client: Client) -> Scene:
    return Scene(client)


@contextlib.asynccontextmanager
async def running(reflector: Reflector[Any, Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(reflector.run())
    try:
        await asyncio.wait_for(reflector.wait_synced(), 20)
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (what is waited for is told by nobody)
            await asyncio.sleep(0.02)


async def test_a_list_of_many_pages_and_what_follows(client: Client, scene: Scene) -> None:
    await asyncio.gather(*(scene.make(f"n{i:02}-n") for i in range(23)))
    reflector = scene.reflector(client, page=5)
    assert not reflector.synced
    async with running(reflector):
        assert sorted(reflector.store) == [f"n{i:02}-n1" for i in range(23)]
        assert reflector.synced
        scene.changes.clear()
        await scene.make("new")
        await scene.set("new", "2")
        await scene.remove("new")
        await until(lambda: len(scene.changes) >= 3)
        assert scene.changes == [(None, "new1"), ("new1", "new2"), ("new2", None)]
        assert len(await client.list_all(MAPS, "default", label_selector=f"test={scene.label}", page=5)) == 23
    assert reflector.relists == 1


async def test_after_a_cut_the_watch_goes_on_where_it_was(scene: Scene, far: Client, proxy: Proxy) -> None:
    await scene.make("a")
    reflector = scene.reflector(far)
    async with running(reflector):
        proxy.refusing = True
        proxy.cut()
        await scene.set("a", "2")
        await until(lambda: reflector.errors >= 2)
        assert list(reflector.store) == ["a1"]
        proxy.refusing = False
        await until(lambda: list(reflector.store) == ["a2"])
    assert reflector.relists == 1


async def test_out_of_touch_is_not_synced(scene: Scene, far: Client, proxy: Proxy) -> None:
    reflector = scene.reflector(far, stale_after=1.0)
    async with running(reflector):
        assert reflector.synced
        proxy.refusing = True
        proxy.cut()
        await until(lambda: not reflector.synced)
        proxy.refusing = False
        await until(lambda: reflector.synced)


async def test_a_silent_watch_is_given_up(scene: Scene, far: Client, proxy: Proxy) -> None:
    await scene.make("a")
    reflector = scene.reflector(far, idle=2.0)
    async with running(reflector):
        before = proxy.accepted
        proxy.silence()
        await scene.set("a", "2")
        await until(lambda: proxy.accepted > before)
        assert list(reflector.store) == ["a1"]
        proxy.restore()
        await until(lambda: list(reflector.store) == ["a2"])


async def late_kind(client: Client) -> Kind[Map]:
    """A kind that the API server gets to know now, so that it has no history from before."""
    group, plural = f"x{uuid4().hex[:8]}.example.org", "things"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [version],
        },
    }
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await client.request("POST", path, body=definition)
    kind = Kind(group, "v1", plural, "Thing", True, Map)
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(ApiError):
                await client.list_all(kind)
                return kind
            await asyncio.sleep(0.1)


async def test_a_version_too_old_is_listed_again_and_what_went_meanwhile_goes(
    client: Client, far: Client, proxy: Proxy
) -> None:
    scene = Scene(client, await late_kind(client))
    await scene.make("a")
    await scene.make("b")
    reflector = scene.reflector(far)
    async with running(reflector):
        proxy.refusing = True
        proxy.cut()
        await until(lambda: reflector.errors > 0)  # a watch that was about to begin would only begin later
        await scene.remove("a")
        await scene.set("b", "2")
        assert scene.changes == [(None, "a1"), (None, "b1")]
        scene.changes.clear()
        reflector.store.seen = 1  # as after a cut that outlasts etcd's five minutes of history
        proxy.refusing = False
        await until(lambda: reflector.relists == 2 and len(scene.changes) == 2)
        assert scene.changes == [("b1", "b2"), ("a1", None)]


async def test_an_answer_counts_at_once_and_its_event_changes_nothing(scene: Scene, far: Client, proxy: Proxy) -> None:
    await scene.make("a")
    reflector = scene.reflector(far)
    async with running(reflector):
        proxy.silence()
        answer = MAPS.decode(await scene.set("a", "2"))
        reflector.store.learn(answer)
        assert scene.changes[-1:] == [("a1", "a2")]
        await scene.remove("a")
        reflector.store.forget(answer.metadata.name, "default", answer.metadata.uid)
        assert scene.changes[-1:] == [("a2", None)]
        count, events = len(scene.changes), reflector.events
        proxy.restore()
        await until(lambda: reflector.events >= events + 2)
        reflector.store.learn(answer)
        assert len(scene.changes) == count


async def test_an_object_that_cannot_be_read_stops_nothing(client: Client, scene: Scene) -> None:
    await scene.make("listed", "huge")
    await scene.make("a")
    reflector = scene.reflector(client)
    async with running(reflector):
        assert list(reflector.store) == ["a1"]
        await scene.make("watched", "huge")
        await scene.make("b")
        await until(lambda: len(reflector.store) == 2)
        assert reflector.store.unreadable == 2
        await scene.set("a", "huge")
        await scene.set("b", "2")
        await until(lambda: sorted(reflector.store) == ["a1", "b2"])
        await scene.remove("a")
        await until(lambda: list(reflector.store) == ["b2"])
        await scene.set("listed", "3")
        await until(lambda: len(reflector.store) == 2)


async def test_a_callback_that_fails_ends_the_run(client: Client, scene: Scene) -> None:
    def fail(change: Change[str]) -> None:
        raise RuntimeError("a bug")

    reflector = scene.reflector(client)
    scene.note = fail  # type: ignore[method-assign]
    broken = scene.reflector(client)
    async with running(reflector):
        task = asyncio.create_task(broken.run())
        await asyncio.wait_for(broken.wait_synced(), 10)
        await scene.make("a")
        with pytest.raises(RuntimeError, match="a bug"):
            await asyncio.wait_for(task, 10)


async def test_a_kind_that_is_not_there_is_asked_for_later_and_later(client: Client) -> None:
    nothing = Kind("example.org", "v1", "nothings", "Nothing", True, Map)
    reflector = Reflector(client, nothing)
    task = asyncio.create_task(reflector.run())
    await asyncio.sleep(2.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert 2 <= reflector.errors <= 6
    assert "404" in reflector.last_error
    assert not reflector.synced
