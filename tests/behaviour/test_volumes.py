"""Volumes: a gang starts once its driver says that it has room for them where the pods can be.

Nobody makes volumes on a local cluster, so the test plays the driver's provisioner: it makes a volume for each claim
for which kube-scheduler has chosen a node. All the rest is the control plane's own: claims are made of the pods'
templates, and joined with their volumes.
"""

from __future__ import annotations

import json
from typing import Any, Final

from localcluster.nodes import Node
from startgate.model.reasons import Code
from tests.behaviour.kit import Field, Manifest, eventually

HOST: Final = "kubernetes.io/hostname"
SELECTED: Final = "volume.kubernetes.io/selected-node"
STORAGE: Final = "storage.k8s.io/v1"


def of(kind: str, name: str, version: str = STORAGE, **fields: Any) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}


class Driver:
    """A CSI driver on this field, with volumes that can be used from one node."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.name = f"{field.namespace}.example.com"

    async def install(self) -> None:
        """With a StorageClass of its name; it has no room anywhere yet."""
        await self.field.put(
            of("CSIDriver", self.name, spec={"storageCapacity": True, "attachRequired": False}),
            of("StorageClass", self.name, provisioner=self.name, volumeBindingMode="WaitForFirstConsumer"),
        )

    async def has_room(self, node: str, capacity: str) -> None:
        """Says so in an object for this node; the first time makes it."""
        path = f"/apis/{STORAGE}/namespaces/{self.field.namespace}/csistoragecapacities"
        said = json.loads(await self.field.client.request("GET", path))["items"]
        if node in [each["metadata"]["name"] for each in said]:
            merging = "application/merge-patch+json"
            body = {"capacity": capacity}
            await self.field.client.request("PATCH", f"{path}/{node}", body=body, content_type=merging)
            return
        topology = {"matchLabels": {HOST: node}}
        room = of("CSIStorageCapacity", node, storageClassName=self.name, nodeTopology=topology, capacity=capacity)
        await self.field.put(room)

    async def provision(self, count: int) -> None:
        """Makes the volumes for so many claims, once a node is chosen for each."""
        chosen = await eventually(
            self._chosen, lambda found: len(found) == count, f"nodes are chosen for {count} claims"
        )
        await self.field.put(*map(self._volume, chosen))

    async def _chosen(self) -> list[Manifest]:
        path = f"/api/v1/namespaces/{self.field.namespace}/persistentvolumeclaims"
        claims: list[Manifest] = json.loads(await self.field.client.request("GET", path))["items"]
        return [each for each in claims if SELECTED in each["metadata"].get("annotations", {})]

    def _volume(self, claim: Manifest) -> Manifest:
        meta, spec = claim["metadata"], claim["spec"]
        here = {"key": HOST, "operator": "In", "values": [meta["annotations"][SELECTED]]}
        return of(
            "PersistentVolume",
            meta["uid"],
            "v1",
            spec={
                "accessModes": spec["accessModes"],
                "capacity": spec["resources"]["requests"],
                "storageClassName": spec["storageClassName"],
                "claimRef": {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]},
                "csi": {"driver": self.name, "volumeHandle": meta["uid"]},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            },
        )


def scratch(driver: Driver) -> Manifest:
    """Fields of a pod's spec: a volume of 10Gi of its own, made by this driver."""
    claim = {
        "storageClassName": driver.name,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "10Gi"}},
    }
    return {"volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}]}


async def test_a_gang_starts_when_its_driver_has_room_for_all_of_its_volumes(field: Field) -> None:
    """Two nodes with a place for one pod each; on the second there is too little room for its volume at first."""
    await field.nodes(0, Node(name="n1", cpu="1", gpus=0), Node(name="n2", cpu="1", gpus=0))
    driver = Driver(field)
    await driver.install()
    await driver.has_room("n1", "100Gi")
    await driver.has_room("n2", "5Gi")
    await field.submit("a", pods=2, queue=await field.queue(), **scratch(driver))
    words = f"without enough free storage for class {driver.name}"
    await field.until(
        lambda: (gang := field.gang("a")) and f"1 {words}" in gang.status.message, "one node is said to lack room"
    )
    gang = field.sure("a")
    assert gang.status.reason == Code.NO_ROOM
    assert gang.status.message.startswith("has quota and waits for nodes: 1 of 2 pods fit now")
    assert field.opened("a") == {}
    await driver.has_room("n2", "10Gi")
    await driver.provision(2)
    await field.runs("a", 2)
    assert {pod.node for pod in field.bound("a")} == {"n1", "n2"}


async def test_a_gang_waits_where_its_driver_has_said_nothing(field: Field) -> None:
    """That isn't room without bound, as kube-scheduler sees it too: it would leave all of the pods pending."""
    await field.nodes(0, Node(name="n1", cpu="1", gpus=0))
    driver = Driver(field)
    await driver.install()
    await field.submit("a", pods=1, queue=await field.queue(), **scratch(driver))
    await field.until(
        lambda: (
            (gang := field.gang("a")) and f"without enough free storage for class {driver.name}" in gang.status.message
        ),
        "no node is said to have room",
    )
    assert field.opened("a") == {}
    await driver.has_room("n1", "10Gi")
    await driver.provision(1)
    await field.runs("a", 1)
