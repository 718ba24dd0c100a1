"""Kubernetes objects over the wire: nulls, unknown fields, times."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from startgate.model import drivers, mounts, objects, storage, wire
from startgate.model.objects import rfc3339, timestamp
from startgate.model.wire import Wire

MODULES = {each.__name__ for each in (drivers, mounts, objects, storage, wire)}


def structs() -> list[type[Wire]]:
    return [kind for kind in Wire.__subclasses__() if kind.__module__ in MODULES]


def test_every_list_and_map_may_be_null() -> None:
    seen = 0
    for kind in structs():
        fields = msgspec.structs.fields(kind)
        lists = {each.name: each.encode_name for each in fields if isinstance(empty(each), tuple | dict)}
        required = {each.encode_name: "x" for each in fields if each.required}
        decoded = msgspec.convert({**required, **dict.fromkeys(lists.values())}, kind)
        assert decoded == msgspec.convert(required, kind)
        for name in lists:
            assert getattr(decoded, name) in ((), {})
        assert kind.nullable.keys() == lists.keys(), kind
        seen += len(lists)
    assert seen > 20


def empty(field: msgspec.structs.FieldInfo) -> Any:
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default


def test_a_template_as_kubernetes_writes_it() -> None:
    text = b"""{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a","namespace":"b","uid":"c",
      "resourceVersion":"7","labels":{"startgate.dev/queue":"q"},"creationTimestamp":"2026-01-02T03:04:05Z"},
      "spec":{"parallelism":2,"suspend":true,"podFailurePolicy":{"rules":[{"action":"Ignore","onExitCodes":null,
      "onPodConditions":[{"type":"DisruptionTarget","status":"True"}]}]},
      "template":{"metadata":{"creationTimestamp":null},"spec":{"containers":null}}},
      "status":{"uncountedTerminatedPods":{}}}"""
    job = msgspec.json.decode(text, type=objects.Job)
    assert job.metadata.labels == {"startgate.dev/queue": "q"}
    assert (job.spec.parallelism, job.spec.completions, job.spec.suspend) == (2, None, True)
    assert job.spec.pod_failure_policy is not None
    assert job.spec.pod_failure_policy.rules[0].on_pod_conditions[0].type == "DisruptionTarget"
    assert job.spec.template.spec.containers == ()
    assert job.spec.template.metadata.creation_timestamp is None
    assert job.status.uncounted_terminated_pods == objects.UncountedPods()


def test_long_names_stay_on_the_wire() -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    spec = msgspec.convert(
        {
            "affinity": {
                "nodeAffinity": {required: {"nodeSelectorTerms": [{"matchFields": None}]}},
                "podAntiAffinity": {required: [{"topologyKey": "zone"}]},
            }
        },
        objects.PodSpec,
    )
    assert spec.affinity is not None
    assert spec.affinity.node_affinity is not None
    assert spec.affinity.node_affinity.required is not None
    assert len(spec.affinity.node_affinity.required.node_selector_terms) == 1
    assert spec.affinity.pod_anti_affinity is not None
    assert len(spec.affinity.pod_anti_affinity.required) == 1
    assert spec.affinity.pod_affinity is None


def test_nulls_do_not_leak_between_objects() -> None:
    first = msgspec.json.decode(b'{"labels":null}', type=objects.ObjectMeta)
    first.labels["a"] = "b"
    assert msgspec.json.decode(b'{"labels":null}', type=objects.ObjectMeta).labels == {}
    assert objects.ObjectMeta().labels == {}


def test_the_controller_is_the_owner_that_says_so() -> None:
    owner = objects.OwnerReference(kind="Job", name="j", uid="1", controller=True)
    other = objects.OwnerReference(kind="Gang", name="g", uid="2")
    assert objects.ObjectMeta(owner_references=(other, owner)).controller == owner
    assert objects.ObjectMeta(owner_references=(other,)).controller is None


@pytest.mark.parametrize(("status", "ready"), [("True", True), ("False", False), ("Unknown", False), (None, False)])
def test_a_node_is_ready_when_its_kubelet_answers(status: str | None, *, ready: bool) -> None:
    conditions = [{"type": "MemoryPressure", "status": "True"}]
    if status is not None:
        conditions.append({"type": "Ready", "status": status})
    assert msgspec.convert({"status": {"conditions": conditions}}, objects.Node).ready is ready


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        ("1970-01-01T00:00:00Z", 0.0),
        ("2026-01-02T03:04:05Z", 1767323045.0),
        ("2026-01-02t03:04:05z", 1767323045.0),
        ("2026-01-02T03:04:05.123456Z", 1767323045.123456),
        ("2026-01-02T03:04:05.1Z", 1767323045.1),
        ("2026-01-02T03:04:05.123456789Z", 1767323045.123456),
        ("2026-01-02T05:04:05+02:00", 1767323045.0),
        ("2026-01-01T21:34:05-05:30", 1767323045.0),
        ("1969-12-31T23:59:59Z", -1.0),
    ],
)
def test_reads_times(text: str, epoch: float) -> None:
    assert timestamp(text) == epoch


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-01-02",
        "2026-01-02 03:04:05Z",
        "2026-01-02T03:04:05",
        "2026-01-02T03:04Z",
        "20260102T030405Z",
        "2026-13-02T03:04:05Z",
        "2026-02-30T03:04:05Z",
        "2026-01-02T25:04:05Z",
        "2026-01-02T03:04:05Z ",
        "2026-01-02T03:04:05.Z",
        "2026-01-02T03:04:05+0200",
        "٢٠٢٦-01-02T03:04:05Z",
    ],
)
def test_refuses_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        timestamp(text)


@given(st.integers(-(10**9), 10**10))
def test_writes_whole_seconds_that_read_the_same(epoch: int) -> None:
    assert timestamp(rfc3339(epoch)) == epoch
    assert rfc3339(epoch) == datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_writes_microseconds_always_with_six_digits() -> None:
    assert rfc3339(1767323045.5, micro=True) == "2026-01-02T03:04:05.500000Z"
    assert rfc3339(1767323045, micro=True) == "2026-01-02T03:04:05.000000Z"
    assert rfc3339(1767323045.9) == "2026-01-02T03:04:05Z"
