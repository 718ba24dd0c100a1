"""kubectl gang simulate: what it reads. Whatever is in a file, the answer is a story or a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from startgate.engine.simulate.documents import InputError, Source, documents
from startgate.engine.simulate.manifests import Manifest, lives, read
from startgate.engine.simulate.merge import difference, merge
from startgate.engine.simulate.run import simulate
from tests.unit.simulation import SIMULATE, change, claim, job, node, on_node, pod, queue, storage_class, story

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def plain(text: str) -> list[Any]:
    return [each.value for each in documents(Source("f.yaml", text))]


def refusal(text: str) -> str:
    with pytest.raises(InputError) as raised:
        lives(read([Source("f.yaml", text)]).manifests)
    said = str(raised.value)
    assert "\n" not in said
    return said


def refused(*objects: dict[str, Any]) -> str:
    return refusal(yaml.safe_dump_all(objects))


# --- texts ------------------------------------------------------------------------------------------------------------


def test_yaml_is_read_as_kubectl_reads_it() -> None:
    text = """
time: 2026-01-01T00:00:00Z
sixty: 1:30
exponent: 1e3
yes: on
octal: 0777
hex: 0x1F
part: .5
split: 1_000
nothing: ~
quoted: "1"
1: a key
"""
    assert plain(text) == [
        {
            "time": "2026-01-01T00:00:00Z",
            "sixty": "1:30",
            "exponent": "1e3",
            "yes": True,
            "octal": 511,
            "hex": 31,
            "part": 0.5,
            "split": 1000,
            "nothing": None,
            "quoted": "1",
            "1": "a key",
        }
    ]


def test_several_documents_and_empty_ones() -> None:
    assert plain("a: 1\n---\n---\n# nothing\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]
    assert [each.where for each in documents(Source("f.yaml", "a: 1\n---\n---\nb: 2\n"))] == [
        "f.yaml, document 1",
        "f.yaml, document 3",
    ]


def test_anchors_and_merge_keys() -> None:
    assert plain("- &a {x: 1, y: 2}\n- {<<: *a, y: 3}\n- *a") == [
        [{"x": 1, "y": 2}, {"x": 1, "y": 3}, {"x": 1, "y": 2}]
    ]


def laughs(levels: int, times: int = 10) -> str:
    lines = [f"a0: &a0 [{', '.join(['x'] * times)}]"]
    lines += [f"a{each}: &a{each} [{', '.join([f'*a{each - 1}'] * times)}]" for each in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: b: c", "f.yaml, document 1: line 1"),
        ("a: 1\n---\nb: [", "f.yaml, document 2: line"),
        ("a: 1\na: 2", "line 2: the key 'a' is there twice"),
        ("a: !!python/object/apply:os.system [true]", "the tag"),
        ("a: !mine 1", "the tag !mine"),
        ("a: .nan", ".nan is not a number"),
        ("? [a]\n: b", "a key has to be a text"),
        ("<<: [1]", "merged by <<"),
        ("a: *b", "undefined alias"),
        ("a: &a [*a]", "without end"),
        ("a: &a {<<: *a}", "without end"),
        (laughs(9), "its aliases repeat more than 100000 values"),
        ("[" * 5000, "nesting"),
        ("- " * 500, "nested too deeply"),
        ("{" * 3 + '"a": 1', "line"),
        ('{"a": ' * 2000, "nested too deeply"),
        ("a: \x00", "a character that YAML doesn't have"),
    ],
)
def test_a_text_that_makes_no_sense_is_a_sentence(text: str, said: str) -> None:
    assert said in refusal(text)


def test_deep_json_is_a_sentence() -> None:
    deep = "[" * 5000 + "]" * 5000
    assert "nesting" in refusal('{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": ' + deep + "}")


# --- objects ----------------------------------------------------------------------------------------------------------


def with_(what: dict[str, Any], *path: str, value: Any) -> dict[str, Any]:
    """The object with one field put in."""
    patch: Any = value
    for step in reversed(path):
        patch = {step: patch}
    return merge(what, patch)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (["not a map"], "a map with apiVersion, kind and metadata"),
        ({"apiVersion": "v1", "kind": "List", "items": {"a": "b"}}, "items: a list is expected"),
        ({"kind": "Job"}, "apiVersion: a text is expected"),
        ({"apiVersion": "v1"}, "kind: a text is expected"),
        ({"apiVersion": "v1", "kind": "Node"}, "metadata: a map"),
        ({"apiVersion": "v1", "kind": "Node", "metadata": {}}, "metadata.name: nothing can't be the name"),
        ({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a b"}}, "'a b' can't be the name"),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "a-"}}, "generateName gives none"),
        (with_(pod("a"), "metadata", "namespace", value=7), "metadata.namespace: 7"),
        (
            with_(job("a"), "apiVersion", value="batch/v1beta1"),
            "apiVersion: Job is read as batch/v1, not as batch/v1beta1",
        ),
        (with_(queue(), "apiVersion", value="startgate.dev/v2"), "Queue is read as startgate.dev/v1alpha1"),
        (job("a", at="-5s"), "metadata.annotations[simulate.startgate.dev/at]: '-5s' is not a duration"),
        (job("a", runs="soon"), "annotations[simulate.startgate.dev/runs]: 'soon' is not a duration"),
        (job("a", at="2m", gone="1m"), "it would be gone before it appears"),
        (job("a", run="1m"), "simulate knows at, gone, runs, terminates"),
        (with_(job("a"), "metadata", "annotations", value={f"{SIMULATE}at": 90}), "90 is not a text; put it in quotes"),
        (with_(job("a"), "metadata", "labels", value={"x": True}), "metadata.labels[x]: True is not a text"),
        (
            with_(job("a"), "metadata", "annotations", value={"x": ["y"] * 99}),
            f"annotations[x]: {repr(['y'] * 99)[:80]} is not a text; put it in quotes",
        ),
        (with_(job("a"), "metadata", "labels", value=["x"]), "metadata.labels: a map is expected"),
        (with_(job("a"), "spec", "parallelism", value="4"), "spec.parallelism: expected a whole number, got a text"),
        (with_(job("a"), "spec", "parallelism", value=-1), "spec.parallelism: -1 is not a number from 0"),
        (with_(job("a"), "spec", "completionMode", value="indexed"), "is neither Indexed nor NonIndexed"),
        (with_(job("a"), "spec", "template", value=[]), "spec.template: expected a map, got a list"),
        (with_(job("a"), "status", "completedIndexes", value="x"), "status.completedIndexes: 'x'"),
        (
            job("a", cpu="1 core"),
            "spec.template.spec.containers[0].resources.requests[cpu]: '1 core' is not a quantity",
        ),
        (job("a", cpu="-1"), "requests[cpu]: -1 is below zero"),
        (node(cpu="x"), "status.allocatable[cpu]: 'x' is not a quantity"),
        (queue(capability={"cpu": "-1"}), "spec.capability[cpu]: -1 is below zero"),
        (queue(capabilty={"cpu": "1"}), "spec.capabilty: a Queue has no such field"),
        (
            with_(pod("a"), "spec", "topologySpreadConstraints", value=[{"maxSkew": 0}]),
            "spec.topologySpreadConstraints[0].maxSkew: 0 is not a number from 1",
        ),
        (
            with_(pod("a"), "spec", "volumes", value=[{"ephemeral": {"volumeClaimTemplate": claim("c", "x")}}]),
            "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]: 'x' is not a quantity",
        ),
        (claim("c", "x"), "spec.resources.requests[storage]: 'x' is not a quantity"),
        (on_node("n1", disks=-1), "spec.drivers[0].allocatable.count: -1 is not a number from 0"),
        (queue(weight=0), "spec.weight: expected a whole number >= 1"),
        (
            with_(pod("a"), "metadata", "creationTimestamp", value="yesterday"),
            "metadata.creationTimestamp: 'yesterday'",
        ),
    ],
)
def test_an_object_that_makes_no_sense_is_named_with_its_field(made: Any, said: str) -> None:
    found = refused(made)
    assert found.startswith("f.yaml, document 1")
    assert said in found


def test_the_object_is_named_in_a_list_too() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [node(), job("a", at="x")]}
    assert refused(listed).startswith("f.yaml, document 1, item 2 (Job default/a): metadata.annotations")


def test_two_of_one_name_at_one_time_are_refused() -> None:
    assert "there is one of this name already (f.yaml, document 1 (Node n1))" in refused(node(), node())
    assert "a change needs a later simulate.startgate.dev/at" in refused(queue(), queue())


def test_a_change_of_a_job_that_isnt_there_is_refused() -> None:
    said = "f.yaml, document 2 (Job default/b): spec.template: missing, as only in a change of a Job that is there"
    assert said in refused(job("a"), change(job("b"), "1s", spec={"parallelism": 2}))


def test_two_of_one_uid_are_refused() -> None:
    first, second = pod("a"), pod("b")
    first["metadata"]["uid"] = second["metadata"]["uid"] = "x"
    assert "metadata.uid: x is that of another object too" in refused(first, second)


def test_kinds_that_play_no_part_are_counted() -> None:
    others = [
        {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "a"}},
        {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "b"}},
        {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "c"}},
    ]
    found = read([Source("f.yaml", yaml.safe_dump_all([*others, node()]))])
    assert found.ignored == {"CronJob": 2, "Job.batch.volcano.sh": 1}
    assert len(found.manifests) == 1


def test_lists_as_kubectl_and_the_api_server_write_them() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [node("a"), node("b")]}
    raw = {"apiVersion": "v1", "kind": "NodeList", "items": [{"metadata": {"name": "c"}}]}
    found = read([Source("a.json", json.dumps(listed)), Source("b.json", json.dumps(raw))]).manifests
    assert [each.key.name for each in found] == ["a", "b", "c"]
    assert read([Source("c.json", '{"apiVersion": "v1", "kind": "List", "items": null}')]).manifests == []


@pytest.mark.parametrize("version", [None, "7"])
def test_null_is_as_good_as_left_out(version: str | None) -> None:
    bare = job("a")
    bare["metadata"]["resourceVersion"] = version
    bare["metadata"]["ownerReferences"] = None
    bare["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "startgate.dev/gang"}]
    bare["spec"]["template"]["metadata"] = {"creationTimestamp": None, "labels": {"startgate.dev/queue": "q"}}
    bare["spec"]["template"]["spec"]["nodeName"] = None
    bare["status"] = None
    assert [each.event for each in story(node(), queue(), bare).told.events] == ["Released"]


# --- whatever else ----------------------------------------------------------------------------------------------------

TEXTS = st.one_of(st.text(max_size=60), st.text(alphabet="ab:-[]{}&*!|>%@`'\"\n \t#,?<~.0", max_size=80))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["1", "90s", "-1", "1e9", "0s"]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=8,
)
EXAMPLES = [
    node(),
    claim("c"),
    claim("d", of="late"),
    storage_class("late"),
    storage_class("now", waits=False, default=True),
    on_node("n1"),
    {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "v"},
        "spec": {"capacity": {"storage": "1Gi"}},
    },
    with_(
        pod("all"),
        "spec",
        value={
            "containers": [{"ports": [{"hostPort": 80}]}],
            "affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone", "labelSelector": {}}]}},
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
            ],
            "volumes": [
                {"persistentVolumeClaim": {"claimName": "c"}},
                {"ephemeral": {"volumeClaimTemplate": claim("x")}},
            ],
        },
    ),
    {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "n", "labels": {"a": "b"}},
        "status": {"phase": "Active"},
    },
    merge(
        node("stored"),
        {"metadata": {"resourceVersion": "5"}, "spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
    ),
    merge(
        job("stored"),
        {
            "metadata": {"resourceVersion": "5", "uid": "u"},
            "status": {"succeeded": 0, "startTime": "2026-01-01T00:00:00Z"},
        },
    ),
    merge(pod("stored", node="n1"), {"metadata": {"resourceVersion": "5", "uid": "v"}, "status": {"phase": "Running"}}),
    change(job("a"), "7s", spec={"parallelism": 1}),
    change(pod("a-0"), "8s", spec={"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}),
    queue(
        "q",
        parent="p",
        capability={"cpu": "4"},
        guarantee={"cpu": "1"},
        deserved={"cpu": "2"},
        namespaces={"matchLabels": {"a": "b"}},
    ),
    job("a", 2, runs="10s", spec={"activeDeadlineSeconds": 30, "backoffLimit": 1, "completionMode": "Indexed"}),
    pod("p", queue="q", at="5s", gone="20s", terminates="1s"),
    pod("b", node="n1"),
    {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "l"},
        "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]},
    },
    {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "h"},
        "value": 5,
        "globalDefault": True,
    },
    {
        "apiVersion": "startgate.dev/v1alpha1",
        "kind": "Gang",
        "metadata": {"name": "job-a"},
        "spec": {"queue": "q", "minAvailable": 1, "pods": 2},
        "status": {"since": "2026-01-01T00:00:00Z", "takenBack": 1, "admission": {"id": "x", "at": "x", "slots": 1}},
    },
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places in an object."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inner for found in places(each, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@st.composite
def spoiled(draw: st.DrawFn) -> list[Any]:
    """The examples, with something else in one place or two of them."""
    objects: list[Any] = list(EXAMPLES)
    for _ in range(draw(st.integers(1, 2))):
        which = draw(st.integers(0, len(objects) - 1))
        path = draw(st.sampled_from(places(objects[which])))
        objects[which] = replaced(objects[which], path, draw(VALUES))
    return objects


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_any_text_is_a_story_or_a_sentence(text: str) -> None:
    try:
        found = read([Source("f.yaml", text)]).manifests
        assert all(isinstance(each, Manifest) for each in found)
    except InputError as error:
        assert str(error).startswith("f.yaml")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spoiled(), st.booleans())
def test_any_object_is_a_story_or_a_sentence(objects: list[Any], written_as_json: bool) -> None:
    try:
        text = (
            json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
            if written_as_json
            else yaml.safe_dump_all(objects)
        )
        simulate(read([Source("f.yaml", text)]).manifests, until=100_000_000)
    except InputError as error:
        assert str(error).startswith("f.yaml")
        assert "\n" not in str(error)


@given(
    st.dictionaries(st.text(max_size=3), VALUES, max_size=4), st.dictionaries(st.text(max_size=3), VALUES, max_size=4)
)
def test_a_difference_leads_from_one_to_the_other(first: dict[str, Any], second: dict[str, Any]) -> None:
    start, end = merge({}, first), merge({}, second)
    assert json.dumps(merge(start, difference(start, end)), sort_keys=True) == json.dumps(end, sort_keys=True)


def test_the_scenarios_are_read(tmp_path: Path) -> None:
    for path in sorted((Path(__file__).parents[1] / "scenarios").glob("*.yaml")):
        assert lives(read([Source(path.name, path.read_text())]).manifests)
