"""Queue: what an admin writes about one tenant's share, and what we answer in its status.

Cluster-scoped. The CRD manifest is generated from these Structs (model.crd), so a field, its description and its
limits are written once, here.
"""

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from startgate.model.names import API_VERSION
from startgate.model.objects import Condition, ObjectMeta
from startgate.model.selectors import LabelSelector

Quantities = Annotated[
    dict[str, str | int],
    Meta(description="Amounts by resource name, as Kubernetes quantities.", extra_json_schema={"maxProperties": 64}),
]


PARK_BEYOND: Final = 2_000
"""A burst of so many pods starts fastest from the gate, and is through it in some ten seconds where there is room. A
parked Job costs three writes more when it starts, and no pods until then."""


class QueueSpec(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """What the admin decides. A resource that `capability` leaves out has no ceiling of this queue's own."""

    parent: Annotated[str, Meta(description="The queue above this one; without it, a child of the root.")] = ""
    weight: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Share of what is not reserved, where deserved doesn't say.")
    ] = 1
    capability: Annotated[Quantities, Meta(description="Hard ceiling for all that runs in this queue.")] = {}
    guarantee: Annotated[Quantities, Meta(description="Floor, kept free for this queue and never reclaimed.")] = {}
    deserved: Annotated[Quantities, Meta(description="Fair share; what is above may be reclaimed under load.")] = {}
    reclaimable: Annotated[bool, Meta(description="Whether others may take back what is above deserved.")] = True
    stopped: Annotated[bool, Meta(description="Takes Jobs, releases none.")] = False
    park_beyond: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="How many pods may wait in the queue before new Jobs wait suspended, without pods, until their "
            f"turn; left out: {PARK_BEYOND}.",
        ),
    ] = PARK_BEYOND
    max_priority: Annotated[int | UnsetType, Meta(description="Jobs of a priority above this one are refused.")] = UNSET
    namespaces: Annotated[
        LabelSelector | UnsetType, Meta(description="Who may submit, by namespace labels; left out: everybody.")
    ] = UNSET


class QueueStatus(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """What the controller has worked out."""

    allocated: Annotated[Quantities, Meta(description="In use by released pods.")] = {}
    reserved: Annotated[Quantities, Meta(description="Held for admitted gangs whose pods are not there yet.")] = {}
    headroom: Annotated[Quantities, Meta(description="What a gang could still ask for, by quota.")] = {}
    deserved: Annotated[Quantities, Meta(description="Fair share, as given or worked out by weight.")] = {}
    share: Annotated[
        str,
        Meta(description="The greatest of allocated / deserved; left out where some is used of what isn't deserved."),
    ] = ""
    next: Annotated[str, Meta(description="The waiting gang whose turn comes first, as NAMESPACE/NAME.")] = ""
    unlabelled: Annotated[
        Quantities, Meta(description="Not charged: what pods without our label use in the namespaces it admits.")
    ] = {}
    waiting: Annotated[int, Meta(ge=0, description="Gangs that wait.")] = 0
    waiting_pods: Annotated[
        int, Meta(ge=0, description="Pods of gangs that wait, made or not; not of those whose user holds them back.")
    ] = 0
    running: Annotated[int, Meta(ge=0, description="Gangs that hold quota.")] = 0
    conditions: list[Condition] = []


class Queue(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The object, as the API server has it."""

    metadata: ObjectMeta
    spec: QueueSpec = msgspec.field(default_factory=QueueSpec)
    status: QueueStatus = msgspec.field(default_factory=QueueStatus)
    api_version: str = API_VERSION
    kind: str = "Queue"
