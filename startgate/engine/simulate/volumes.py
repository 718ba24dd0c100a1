"""Volumes of a simulation: what the files say, and what would be done at once to a claim that is written for a cluster.

A new claim without a class gets the default one; one that binds at once is bound: to the volume that it names, or to
one that is made for it. What always holds: a claim out of a cluster is taken as it was there. Not followed: a claim
that waits for its first pod stays unbound when that pod is placed.
"""

from typing import Any

import msgspec

from startgate.engine.storage import Storage
from startgate.model import drivers
from startgate.model import storage as model
from startgate.model.storage import Volume, VolumeClaim


class Volumes:
    """What tells the engine's Storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def set(self, made: Any, *, namespace: str, stored: bool) -> None:
        """An object comes, or has changed. `namespace`: the one that it is in, whether or not it says so; `stored`: it
        comes out of a cluster."""
        storage = self._storage
        match made:
            case model.PersistentVolume():
                storage.set_volume(model.volume_of(made))
            case model.PersistentVolumeClaim():
                claim = msgspec.structs.replace(model.claim_of(made), namespace=namespace)
                storage.set_claim(claim if stored else self._as_created(claim, silent=model.silent_of_class(made)))
            case model.StorageClass():
                storage.set_class(model.class_of(made))
            case drivers.CSINode():
                storage.set_node_drivers(drivers.drivers_of(made))
            case drivers.CSIDriver():
                storage.set_driver(drivers.driver_of(made))
            case drivers.CSIStorageCapacity():
                capacity = msgspec.structs.replace(drivers.capacity_of(made), namespace=namespace)
                storage.set_capacity(capacity)
            case model.VolumeAttachment():
                storage.set_attachment(model.attachment_of(made))

    def unset(self, kind: str, namespace: str, name: str) -> None:
        """An object goes."""
        storage = self._storage
        match kind:
            case "PersistentVolume":
                storage.remove_volume(name)
            case "PersistentVolumeClaim":
                storage.remove_claim(namespace, name)
            case "StorageClass":
                storage.remove_class(name)
            case "CSINode":
                storage.remove_node_drivers(name)
            case "CSIDriver":
                storage.remove_driver(name)
            case "CSIStorageCapacity":
                storage.remove_capacity(namespace, name)
            case "VolumeAttachment":
                storage.remove_attachment(name)

    def _as_created(self, claim: VolumeClaim, *, silent: bool) -> VolumeClaim:
        storage = self._storage
        if silent and (default := storage.default_class()) is not None:
            claim = msgspec.structs.replace(claim, storage_class=default.name)
        made_by = storage.classes.get(claim.storage_class)
        if claim.volume:
            return msgspec.structs.replace(claim, bound=True)
        if made_by is None or made_by.waits or not made_by.makes:
            return claim
        name = f"made-for-{claim.namespace}-{claim.name}"
        key = (claim.namespace, claim.name, claim.uid)
        storage.set_volume(
            Volume(name=name, driver=made_by.provisioner, handle=name, capacity=claim.request, claim=key, phase="Bound")
        )
        return msgspec.structs.replace(claim, volume=name, bound=True)
