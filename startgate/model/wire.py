"""What all Kubernetes objects have in common on the wire, and what several kinds of them are made of.

What always holds: as in `objects`, which stands on it. It is apart so that what pods say of volumes can be, too.
"""

from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from startgate.model.quantity import Quantity
from startgate.model.selectors import Labels, Many

# As selectors.Many: null on the wire, empty once it is made, and never None for a reader.
if TYPE_CHECKING:
    Quantities: TypeAlias = dict[str, Quantity]
else:
    Quantities = dict[str, Quantity] | None


class Wire(Struct, rename="camel", frozen=True, gc=False):
    """What all of them share: camelCase on the wire, and null for an empty list or map."""

    nullable: ClassVar[dict[str, type[tuple[Any, ...]] | type[dict[str, Any]]]] = {}
    """The fields that the wire may give as null, each with what makes it empty."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if cls.nullable:  # the others, of which a pod has many, are made without a call to Python
            cls.__post_init__ = _fill  # type: ignore[attr-defined]


def _fill(made: Wire) -> None:
    for name, empty in made.nullable.items():
        if getattr(made, name) is None:
            force_setattr(made, name, empty())


class OwnerReference(Wire, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(Wire, frozen=True):
    nullable = {"labels": dict, "annotations": dict, "owner_references": tuple, "finalizers": tuple}

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: Labels = {}
    annotations: Labels = {}
    owner_references: Many[OwnerReference] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    finalizers: Many[str] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages the object; Kubernetes allows at most one."""
        for owner in self.owner_references:
            if owner.controller:
                return owner
        return None


class Resources(Wire, frozen=True):
    """v1.ResourceRequirements, of a container or of a pod."""

    nullable = {"requests": dict, "limits": dict}

    requests: Quantities = {}
    limits: Quantities = {}


class Presence(Wire, frozen=True):
    """Something of which only the presence counts; its fields are skipped."""
