"""The CRDs are what the Structs say, and manifests/base/crds.yaml is what they say now."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from startgate.model import crd
from startgate.model.gang import Gang, GangStatus
from startgate.model.objects import Condition, ObjectMeta
from startgate.model.quantity import QuantityError, parse_units
from startgate.model.queue import Queue, QueueSpec

MANIFEST = Path(__file__).parents[2] / "manifests" / "base" / "crds.yaml"


def walk(schema: dict[str, Any]) -> list[dict[str, Any]]:
    below = [field for name, field in schema.get("properties", {}).items() if name != "metadata"]
    below += [schema[key] for key in ("items", "additionalProperties") if key in schema]
    return [schema, *(found for each in below for found in walk(each))]


def schema(definition: dict[str, Any]) -> dict[str, Any]:
    found = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert isinstance(found, dict)
    return found


def test_the_manifest_is_what_the_structs_say() -> None:
    assert MANIFEST.read_text() == crd.to_yaml(), "run: python -m startgate.model.crd > manifests/base/crds.yaml"


@pytest.mark.parametrize("definition", [crd.queues(), crd.gangs()], ids=["queues", "gangs"])
def test_each_level_has_a_type_and_each_field_a_description(
    definition: dict[str, Any],
) -> None:
    for level in walk(schema(definition)):
        assert "type" in level or level.get("x-kubernetes-int-or-string"), level
        assert not {"$ref", "nullable", "definitions", "title"} & level.keys(), level
        assert level.get("type") != "object" or "properties" in level or "additionalProperties" in level, level
    for part in ("spec", "status"):
        for name, field in schema(definition)["properties"][part]["properties"].items():
            assert field.get("description"), f"{part}.{name} has no description for kubectl explain"


@pytest.mark.parametrize("struct", [Queue, Gang])
def test_every_field_of_the_struct_is_in_the_schema(struct: type[Queue] | type[Gang]) -> None:
    properties = crd.schema_of(struct)["properties"]
    assert set(properties) == {field.encode_name for field in msgspec.structs.fields(struct)}


def test_what_omit_defaults_leaves_out_is_filled_in_again() -> None:
    status = schema(crd.gangs())["properties"]["status"]["properties"]
    assert status["phase"]["default"] == GangStatus().phase == "Waiting"
    spec = schema(crd.queues())["properties"]["spec"]["properties"]
    assert (spec["weight"]["default"], spec["reclaimable"]["default"], spec["stopped"]["default"]) == (
        QueueSpec().weight,
        QueueSpec().reclaimable,
        QueueSpec().stopped,
    )
    assert "default" not in spec["maxPriority"]  # left out, it means something else than any number


def test_conditions_are_a_map_by_type() -> None:
    for definition in (crd.queues(), crd.gangs()):
        conditions = schema(definition)["properties"]["status"]["properties"]["conditions"]
        assert conditions["x-kubernetes-list-type"] == "map"
        assert conditions["x-kubernetes-list-map-keys"] == ["type"]
        assert conditions["items"]["required"] == ["type"]
    assert {field.encode_name for field in msgspec.structs.fields(Condition)} == set(conditions["items"]["properties"])


def test_only_queues_have_a_status_of_their_own() -> None:
    assert crd.queues()["spec"]["versions"][0]["subresources"] == {"status": {}}
    assert "subresources" not in crd.gangs()["spec"]["versions"][0]


def test_a_struct_without_a_place_in_a_schema_is_an_error_at_once() -> None:
    class Odd(msgspec.Struct):
        share: float

    with pytest.raises(TypeError, match="structural schema"):
        crd.schema_of(Odd)


def test_metadata_is_the_api_servers() -> None:
    class Named(msgspec.Struct):
        metadata: ObjectMeta

    assert crd.schema_of(Named)["properties"]["metadata"] == {"type": "object"}


@given(
    st.from_regex(r"\A[+-]?([0-9]{0,6})(\.[0-9]{0,3})?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?\Z", fullmatch=True)
    | st.text(max_size=8)
)
def test_the_schema_takes_the_quantities_that_the_model_reads(text: str) -> None:
    try:
        parse_units(text)
        reads = True
    except QuantityError:
        reads = False
    assert (re.fullmatch(crd.SIGNED, text, re.ASCII) is not None) == reads or _long_exponent(text)


def _long_exponent(text: str) -> bool:
    return re.search(r"[eE][+-]?[0-9]{3}", text) is not None
