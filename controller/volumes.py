"""What the API server holds of volumes, kept in the engine's Storage: seven kinds, each followed by a reflector.

What always holds: Storage has of each object what the newest version that was seen says; nothing is decided here.
"""

from collections.abc import Callable
from typing import TypeVar

from startgate.engine.storage import Storage
from startgate.kube import kinds
from startgate.kube.client import Client
from startgate.kube.reflector import Reflector
from startgate.kube.store import Change
from startgate.model.drivers import capacity_of, driver_of, drivers_of
from startgate.model.storage import attachment_of, claim_of, class_of, volume_of

V = TypeVar("V")


def followed(client: Client, storage: Storage, on_change: Callable[[], None]) -> tuple[Reflector, ...]:  # type: ignore[type-arg]
    """Reflectors that feed `storage`, to be run. `on_change` is called after each change."""

    def feeding(put: Callable[[V], None], drop: Callable[[V], None]) -> Callable[[Change[V]], None]:
        def change(seen: Change[V]) -> None:
            if seen.new is not None:
                put(seen.new)
            elif seen.old is not None:
                drop(seen.old)
            on_change()

        return change

    return (
        Reflector(
            client,
            kinds.VOLUMES,
            view=volume_of,
            on_change=feeding(storage.set_volume, lambda gone: storage.remove_volume(gone.name)),
        ),
        Reflector(
            client,
            kinds.CLAIMS,
            view=claim_of,
            on_change=feeding(storage.set_claim, lambda gone: storage.remove_claim(gone.namespace, gone.name)),
        ),
        Reflector(
            client,
            kinds.STORAGE_CLASSES,
            view=class_of,
            on_change=feeding(storage.set_class, lambda gone: storage.remove_class(gone.name)),
        ),
        Reflector(
            client,
            kinds.CSI_NODES,
            view=drivers_of,
            on_change=feeding(storage.set_node_drivers, lambda gone: storage.remove_node_drivers(gone.name)),
        ),
        Reflector(
            client,
            kinds.CSI_DRIVERS,
            view=driver_of,
            on_change=feeding(storage.set_driver, lambda gone: storage.remove_driver(gone.name)),
        ),
        Reflector(
            client,
            kinds.CAPACITIES,
            view=capacity_of,
            on_change=feeding(storage.set_capacity, lambda gone: storage.remove_capacity(gone.namespace, gone.name)),
        ),
        Reflector(
            client,
            kinds.ATTACHMENTS,
            view=attachment_of,
            on_change=feeding(storage.set_attachment, lambda gone: storage.remove_attachment(gone.name)),
        ),
    )
