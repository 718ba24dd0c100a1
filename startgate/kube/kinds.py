"""The kinds of object that Startgate reads and writes: where they live in the API, and what they are decoded
into.

A `Kind` is the only way in which the rest of the house names a resource. Its Struct holds the fields that we
read and nothing else, so an object that was read is never sent back whole: writes are patches, or objects of
our own making.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from startgate.model import drivers, gang, names, objects, queue, storage


class Versioned(Protocol):
    """An object's or a list's metadata."""

    @property
    def resource_version(self) -> str: ...


class Metadata(Versioned, Protocol):
    """What each object's metadata has, as far as this package looks at it."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...


class Object(Protocol):
    """Anything with metadata."""

    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=Object)


class ListMeta(msgspec.Struct, rename="camel", frozen=True):
    """metav1.ListMeta: the version that the list is of, and where its next page starts (empty: there is
    none).
    """

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list. An empty list may come as null."""

    metadata: ListMeta
    items: list[T] | None = None


class RawPage(msgspec.Struct, frozen=True):
    """One page of a list, its objects not decoded yet: for when one of them can't be."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A resource of the API. `type` is the Struct that its objects are decoded into."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    type: type[T]

    @property
    def api_version(self) -> str:
        """As in an object's apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path below the server's address.

        Without a namespace, a namespaced kind's path is that of all namespaces. ValueError for what can't be
        a path segment (apimachinery: path.IsValidPathSegmentName), so that no name from outside leads
        elsewhere.
        """
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace:
            parts += ["namespaces", _segment(namespace)]
        parts.append(self.plural)
        if name:
            parts.append(_segment(name))
        if subresource:
            parts.append(_segment(subresource))
        return "/".join(parts)

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[T]:
        return msgspec.json.Decoder(self.type)

    @cached_property
    def _page_decoder(self) -> msgspec.json.Decoder[Page[T]]:
        return msgspec.json.Decoder(Page[self.type])  # type: ignore[name-defined]

    def decode(self, body: bytes | msgspec.Raw) -> T:
        """msgspec.DecodeError (or ValidationError, one of them) or RecursionError for what isn't of this
        kind.
        """
        return self._decoder.decode(body)

    def decode_page(self, body: bytes) -> Page[T]:
        """Fails as `decode` does, for the whole page if one object is at fault."""
        return self._page_decoder.decode(body)


def _segment(text: str) -> str:
    if text in (".", "..") or "/" in text or "%" in text:
        raise ValueError(f"{text!r} can't be a name in Kubernetes")
    return quote(text, safe=":")


class Secret(msgspec.Struct, rename="camel", frozen=True):
    """core/v1 Secret. The values are decoded from base64."""

    metadata: objects.ObjectMeta
    data: dict[str, bytes] | None = None
    type: str = ""


PODS = Kind("", "v1", "pods", "Pod", True, objects.Pod)
NODES = Kind("", "v1", "nodes", "Node", False, objects.Node)
NAMESPACES = Kind("", "v1", "namespaces", "Namespace", False, objects.Namespace)
SECRETS = Kind("", "v1", "secrets", "Secret", True, Secret)
JOBS = Kind("batch", "v1", "jobs", "Job", True, objects.Job)
PRIORITY_CLASSES = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, objects.PriorityClass)
QUEUES = Kind(names.GROUP, names.VERSION, "queues", "Queue", False, queue.Queue)
GANGS = Kind(names.GROUP, names.VERSION, "gangs", "Gang", True, gang.Gang)

# What decides where pods with volumes can run.
VOLUMES = Kind("", "v1", "persistentvolumes", "PersistentVolume", False, storage.PersistentVolume)
CLAIMS = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, storage.PersistentVolumeClaim)
STORAGE_CLASSES = Kind("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, storage.StorageClass)
CSI_NODES = Kind("storage.k8s.io", "v1", "csinodes", "CSINode", False, drivers.CSINode)
CSI_DRIVERS = Kind("storage.k8s.io", "v1", "csidrivers", "CSIDriver", False, drivers.CSIDriver)
ATTACHMENTS = Kind("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", False, storage.VolumeAttachment)
CAPACITIES = Kind(
    "storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity", True, drivers.CSIStorageCapacity
)
