"""The two CustomResourceDefinitions, generated from the Structs, so that no field is written down twice.

`python -m startgate.model.crd` prints what manifests/base/crds.yaml holds; a test fails where the two drift.
What always holds: the schema is structural; whatever a Struct can hold, the API server takes, but for values
that a rule or a limit here refuses with a sentence; and what `omit_defaults` leaves out, the API server fills
in again, so that kubectl shows a phase, a number or a flag also where it is the default.
"""

import sys
from enum import Enum
from typing import Any, Final, TypeAlias

import yaml
from msgspec import NODEFAULT, inspect

from startgate.model.gang import Gang, GangSpec, GangStatus
from startgate.model.names import GROUP, VERSION
from startgate.model.objects import Condition, ObjectMeta
from startgate.model.queue import Queue, QueueSpec, QueueStatus
from startgate.model.selectors import LabelSelector, Requirement

Schema: TypeAlias = dict[str, Any]

LONGEST_LABEL: Final = 63
"""Characters of a label's value: a queue with a longer name could never be asked for."""

UNSIGNED: Final = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$"
SIGNED: Final = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$"
"""Quantities as model.quantity reads them, but for exponents beyond two digits: whoever compares 1E999999999 exactly is
busy for good (tried with CEL in an API server). A limit can't be negative; something worked out might be."""


def _amount(pattern: str, **more: int) -> Schema:
    return {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "maxLength": 40,
        "pattern": pattern,
        **more,
    }


LIMIT: Final[Schema] = {"additionalProperties": _amount(UNSIGNED, minimum=0)}
NAME: Final[Schema] = {"maxLength": LONGEST_LABEL}

REFINED: Final[dict[tuple[type, str], Schema]] = {
    (Queue, "spec"): {"default": {}},
    (QueueSpec, "parent"): NAME,
    (QueueSpec, "capability"): LIMIT,
    (QueueSpec, "guarantee"): LIMIT,
    (QueueSpec, "deserved"): LIMIT,
    (GangSpec, "queue"): NAME,
    (QueueStatus, "conditions"): {"description": "What an admin should know about the queue."},
    (GangStatus, "phase"): {"description": "Where it is."},
    (GangStatus, "conditions"): {"description": "For kubectl wait --for=condition=…"},
    (GangStatus, "counts"): {"description": "Its pods, each counted once; ended ones not at all."},
    (GangStatus, "admission"): {"description": "The record that it may pass, written before its first gate opens."},
    (GangStatus, "claim"): {"description": "Others gave way for it: their room is held for it while their pods leave."},
    (GangStatus, "yielded"): {"description": "The last time that it gave its place, or pods, to another gang."},
    (Condition, "type"): {"minLength": 1, "maxLength": 316},
    (Condition, "status"): {"enum": ["True", "False", "Unknown"]},
    (LabelSelector, "match_expressions"): {"maxItems": 64},
    (LabelSelector, "match_labels"): {"maxProperties": 64},
    (Requirement, "operator"): {"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
    (Requirement, "values"): {"maxItems": 1024},
}
"""What the API server should know about a field beyond its Python type."""

DESCRIBED: Final = (QueueSpec, QueueStatus, GangSpec, GangStatus)
"""Structs whose docstrings say to `kubectl explain` what they say here."""

WHOLE: Final[dict[type, Schema]] = {
    Queue: {"description": "What one tenant may use: a ceiling, a floor and a fair share, by resource."},
    Gang: {"description": "Pods that start together or not at all: where they are and why. Written by Startgate."},
    # As Kubernetes has it: who applies a selector owns all of it.
    LabelSelector: {"x-kubernetes-map-type": "atomic"},
}


RULES: Final[dict[type, list[Schema]]] = {
    # Amounts that contradict each other are the webhook's to refuse: a rule here comes before it, and can't afford the
    # numbers in its sentence.
    Queue: [
        {
            "rule": "!has(self.spec) || !has(self.spec.parent) || self.spec.parent != self.metadata.name",
            "message": "a queue can't be its own parent; name another one, or leave spec.parent out",
        }
    ],
    GangSpec: [
        {
            "rule": "self.minAvailable <= self.pods",
            "message": "minAvailable is more than pods: such a gang could never start",
        }
    ],
}


def schema_of(struct: type) -> Schema:
    """The structural schema of a Struct."""
    made = inspect.type_info(struct)
    assert isinstance(made, inspect.StructType)
    return _object(made)


def _object(struct: inspect.StructType) -> Schema:
    if struct.cls is ObjectMeta:
        return {"type": "object"}  # the API server has its own idea of metadata
    schema: Schema = {"type": "object"}
    if struct.cls in DESCRIBED:
        schema["description"] = struct.cls.__doc__
    properties = {field.encode_name: _field(struct.cls, field) for field in struct.fields}
    schema["properties"] = properties
    if required := [field.encode_name for field in struct.fields if field.required and field.name != "metadata"]:
        schema["required"] = required
    if rules := RULES.get(struct.cls):
        schema["x-kubernetes-validations"] = rules
    return schema | WHOLE.get(struct.cls, {})


def _field(owner: type, field: inspect.Field) -> Schema:
    schema = _schema(field.type) | REFINED.get((owner, field.name), {})
    default = field.default
    if isinstance(default, Enum):
        schema["default"] = default.value
    elif default is not NODEFAULT and isinstance(default, bool | int):
        schema["default"] = default
    return schema


def _schema(made: inspect.Type) -> Schema:
    match made:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            return _schema(inner) | (extra or {})
        case inspect.StructType():
            return _object(made)
        case inspect.UnionType(types=types):
            return _union(types)
        case inspect.DictType(value_type=value):
            return {"type": "object", "additionalProperties": _schema(value)}
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return _list(item)
        case inspect.EnumType(cls=cls):
            return {"type": "string", "enum": [each.value for each in cls]}
        case inspect.StrType(min_length=shortest):
            text: Schema = {"type": "string"}
            return text if shortest is None else text | {"minLength": shortest}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType(ge=least, le=most):
            limits = {"minimum": least, "maximum": most}
            integer: Schema = {"type": "integer"}
            return integer | {key: limit for key, limit in limits.items() if limit is not None}
    raise TypeError(f"{made} has no place in a structural schema yet: give it one in {__name__}")


def _union(types: tuple[inspect.Type, ...]) -> Schema:
    """Of something and None: the something, left out where there is none. Of text and number: a quantity."""
    some = [each for each in types if not isinstance(each, inspect.NoneType)]
    if {type(each) for each in some} >= {inspect.StrType, inspect.IntType}:
        return _amount(SIGNED)
    assert len(some) == 1, f"a union of {some} has no structural schema"
    return _schema(some[0])


def _list(item: inspect.Type) -> Schema:
    schema: Schema = {"type": "array", "items": _schema(item)}
    if isinstance(item, inspect.StructType) and item.cls is Condition:
        schema |= {"maxItems": 16, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    return schema


def _column(name: str, path: str, kind: str = "string", *, wide: bool = False) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path} | ({"priority": 1} if wide else {})


AGE: Final = _column("Age", ".metadata.creationTimestamp", "date")


def _definition(
    struct: type,
    *,
    plural: str,
    short: str,
    scope: str,
    columns: list[Schema],
    longest_name: int | None = None,
) -> Schema:
    kind = struct.__name__
    schema = schema_of(struct)
    if longest_name is not None:
        schema["properties"]["metadata"]["properties"] = {"name": {"type": "string", "maxLength": longest_name}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["startgate"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "additionalPrinterColumns": columns,
                }
            ],
        },
    }


def queues() -> Schema:
    """The Queue's definition: the spec is the admin's, the status ours, so they are written separately.

    Its short name is gq ("gang queue"): q is Volcano's, and Kueue has "queue" and "queues" as short names.
    """
    made = _definition(
        Queue,
        plural="queues",
        short="gq",
        scope="Cluster",
        longest_name=LONGEST_LABEL,
        columns=[
            _column("Parent", ".spec.parent"),
            _column("Waiting", ".status.waiting", "integer"),
            _column("Running", ".status.running", "integer"),
            _column("Stopped", ".spec.stopped", "boolean"),
            _column("Capability", ".spec.capability", wide=True),
            _column("Allocated", ".status.allocated", wide=True),
            AGE,
        ],
    )
    made["spec"]["versions"][0]["subresources"] = {"status": {}}
    return made


def gangs() -> Schema:
    """The Gang's definition. No status subresource: a gang that starts at once is born with its admission."""
    return _definition(
        Gang,
        plural="gangs",
        short="gg",
        scope="Namespaced",
        columns=[
            _column("Queue", ".spec.queue"),
            _column("Phase", ".status.phase"),
            _column("Pods", ".status.bound"),
            _column("Reason", ".status.reason"),
            _column("Priority", ".spec.priority", "integer", wide=True),
            AGE,
            _column("Message", ".status.message", wide=True),
        ],
    )


def to_yaml() -> str:
    """Both definitions, as manifests/base/crds.yaml has them."""
    text = yaml.dump_all([queues(), gangs()], Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)
    return "# Written by python -m startgate.model.crd. Change the Structs in startgate/model, not this file.\n" + text


class _Plain(yaml.SafeDumper):
    """Without anchors: they save no line that a reader would miss."""

    def ignore_aliases(self, data: object) -> bool:
        return True


if __name__ == "__main__":
    sys.stdout.write(to_yaml())
