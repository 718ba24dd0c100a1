"""Gang: the one place where people read where a gang is and why. Written by the controller alone.

Namespaced, owned by its Job. No status subresource: a gang that starts at once is born with its admission in it, in
one write (design: "What a user writes"). The CRD manifest is generated from these Structs (model.crd).
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from startgate.model.names import API_VERSION
from startgate.model.objects import Condition, ObjectMeta
from startgate.model.queue import Quantities

MOST_TRANSITIONS: Final = 10
"""So many of its last changes of phase a Gang keeps."""


class Phase(StrEnum):
    """Where a gang is; engine.lifecycle has the table of what may follow what."""

    WAITING = "Waiting"
    GATHERING = "Gathering"
    RESERVED = "Reserved"
    RELEASING = "Releasing"
    RUNNING = "Running"
    PARKED = "Parked"
    FINISHED = "Finished"


class Admission(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The record that a gang may pass: written before its first gate opens, completed after any crash."""

    id: Annotated[str, Meta(description="Joins the record with the audit log.")]
    at: Annotated[str, Meta(description="When it was decided (RFC 3339).")]
    slots: Annotated[int, Meta(ge=1, description="How many pods may be past their gate at once.")]
    gathering: Annotated[
        bool, Meta(description="Quota and room are held while the pods are made; no gate may open yet.")
    ] = False
    node_selector: Annotated[
        dict[str, str],
        Meta(description="What its pods' node selectors get as they pass, so that they stay in one topology domain."),
    ] = {}


class Pledge(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The record that others were told to give way for this gang: written before the first of them is touched."""

    id: Annotated[str, Meta(description="Joins the record with the audit log.")]
    at: Annotated[str, Meta(description="When it was decided (RFC 3339).")]
    rule: Annotated[str, Meta(description="By which rule: guarantee, deserved or priority.")]
    victims: Annotated[list[str], Meta(description="The gangs that give way, as NAMESPACE/NAME.")]
    nodes: Annotated[
        dict[str, int], Meta(description="Where its pods will go, by the proof: how many to which node.")
    ] = {}


class Yielded(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """That the gang gave its place, or a part of its pods, to another."""

    at: Annotated[str, Meta(description="When (RFC 3339).")]
    reason: Annotated[str, Meta(description="A code of the closed list.")]
    message: Annotated[str, Meta(description="To whom and by which rule, in a sentence.")]


class Transition(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """One change of phase."""

    at: str
    phase: Phase
    reason: str = ""


class Counts(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Pods of the gang, each counted once; ended ones not at all."""

    gated: Annotated[int, Meta(ge=0, description="Behind our gate.")] = 0
    pending: Annotated[int, Meta(ge=0, description="Past our gate, on no node yet.")] = 0
    bound: Annotated[int, Meta(ge=0, description="On a node.")] = 0
    terminating: Annotated[int, Meta(ge=0, description="Being deleted; still charged.")] = 0


class GangSpec(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """What the gang asks for."""

    queue: Annotated[str, Meta(min_length=1, description="The queue that is charged.")]
    min_available: Annotated[int, Meta(ge=0, description="How many pods start together or not at all.")]
    pods: Annotated[int, Meta(ge=0, description="How many its owner runs at once.")]
    priority: Annotated[int, Meta(description="Of its PriorityClass; higher goes first.")] = 0


class GangStatus(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Where it is and why."""

    phase: Phase = Phase.WAITING
    reason: Annotated[str, Meta(description="A code of the closed list.")] = ""
    message: Annotated[str, Meta(description="The reason in a sentence, with numbers.")] = ""
    bound: Annotated[str, Meta(description="Pods on nodes of pods needed, as 3/4.")] = ""
    counts: Counts = msgspec.field(default_factory=Counts)
    shortage: Annotated[Quantities, Meta(description="What is missing for it to start, by resource.")] = {}
    since: Annotated[
        str, Meta(description="When it began to wait: its age in the queue, kept when it is taken back.")
    ] = ""
    admission: Admission | UnsetType = UNSET
    claim: Pledge | UnsetType = UNSET
    yielded: Yielded | UnsetType = UNSET
    taken_back: Annotated[
        int, Meta(ge=0, description="How often in a row it was taken back; 0 again after it ran for ten minutes.")
    ] = 0
    not_before: Annotated[str, Meta(description="Taken back: not tried again before this time.")] = ""
    conditions: list[Condition] = []
    transitions: Annotated[
        list[Transition],
        Meta(description="The last changes of phase.", extra_json_schema={"maxItems": MOST_TRANSITIONS}),
    ] = []


class Gang(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The object, as the API server has it."""

    metadata: ObjectMeta
    spec: GangSpec
    status: GangStatus = msgspec.field(default_factory=GangStatus)
    api_version: str = API_VERSION
    kind: str = "Gang"
