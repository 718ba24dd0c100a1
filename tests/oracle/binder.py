"""Plays who binds volumes: the controller that joins a claim and the volume that kube-scheduler has chosen for it, and
the CSI driver that makes a volume for the node that it has chosen.

A volume that is made can be used from the nodes with the same values of the driver's topologyKeys on the chosen node,
as external-provisioner does it; from everywhere where there are none.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from startgate.kube.client import ApiError, Client, Patch
from tests.oracle.case import Json
from tests.oracle.watch import Watched, key

SELECTED: Final = "volume.kubernetes.io/selected-node"
BOUND: Final = "pv.kubernetes.io/bind-completed"
VOLUMES: Final = "/api/v1/persistentvolumes"
CLAIMS: Final = "/api/v1/persistentvolumeclaims"


class Binder:
    """`claims` and `volumes` as they are; whatever is to be done about them is done as it is seen."""

    def __init__(self, client: Client, news: asyncio.Event) -> None:
        self.claims = Watched(client, CLAIMS, self._claim)
        self.volumes = Watched(client, VOLUMES, self._volume)
        self._client = client
        self._news = news
        self._work: asyncio.Queue[tuple[str, Json]] = asyncio.Queue()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.claims.run())
            group.create_task(self.volumes.run())
            while True:
                volume, claim = await self._work.get()
                try:
                    await self._bind(volume or await self._make(claim), claim)
                except ApiError as error:
                    if not (error.not_found or error.conflict):  # taken away meanwhile
                        raise

    def _claim(self, claim: Json) -> None:
        if SELECTED in claim["metadata"].get("annotations", {}) and not claim["spec"].get("volumeName"):
            self._work.put_nowait(("", claim))
        self._news.set()

    def _volume(self, volume: Json) -> None:
        ref = volume["spec"].get("claimRef", {})
        claim = self.claims.objects.get(f"{ref.get('namespace')}/{ref.get('name')}")
        if claim is not None and ref.get("uid") and not claim["spec"].get("volumeName"):
            self._work.put_nowait((volume["metadata"]["name"], claim))
        self._news.set()

    async def _make(self, claim: Json) -> str:
        meta, spec = claim["metadata"], claim["spec"]
        name = f"made-{meta['uid']}"
        driver, affinity = await self._reach(spec["storageClassName"], meta["annotations"][SELECTED])
        body: Json = {
            "metadata": {"name": name},
            "spec": {
                "accessModes": spec["accessModes"],
                "capacity": spec["resources"]["requests"],
                "storageClassName": spec["storageClassName"],
                "claimRef": {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]},
                "csi": {"driver": driver, "volumeHandle": name},
                **affinity,
            },
        }
        try:
            await self._client.request("POST", VOLUMES, body=body)
        except ApiError as error:
            if not error.conflict:
                raise
        return name

    async def _reach(self, storage_class: str, node: str) -> tuple[str, Json]:
        """The driver, and from where its volumes for this node can be used."""
        driver = (await self._get(f"/apis/storage.k8s.io/v1/storageclasses/{storage_class}"))["provisioner"]
        try:
            drivers = (await self._get(f"/apis/storage.k8s.io/v1/csinodes/{node}"))["spec"].get("drivers") or ()
        except ApiError:
            drivers = ()
        keys = [name for it in drivers if it["name"] == driver for name in it.get("topologyKeys") or ()]
        if not keys:
            return driver, {}
        labels = (await self._get(f"/api/v1/nodes/{node}"))["metadata"].get("labels", {})
        same = [{"key": name, "operator": "In", "values": [labels.get(name, "")]} for name in keys]
        return driver, {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": same}]}}}

    async def _get(self, path: str) -> Any:
        return msgspec.json.decode(await self._client.request("GET", path))

    async def _bind(self, volume: str, claim: Json) -> None:
        namespace, _, name = key(claim).partition("/")
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
        mark = {"metadata": {"annotations": {BOUND: "yes"}}, "spec": {"volumeName": volume}}
        await self._client.request("PATCH", path, body=mark, content_type=Patch.MERGE)
        for each in (path, f"{VOLUMES}/{volume}"):
            await self._client.request(
                "PATCH", f"{each}/status", body={"status": {"phase": "Bound"}}, content_type=Patch.MERGE
            )
