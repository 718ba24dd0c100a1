"""The compact pod: what is read, what is shared, what is let go."""

import gc
from typing import Any
from weakref import ref

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from startgate.model import names, objects
from startgate.model.pods import LONGEST_MESSAGE, Pod, pod_of
from startgate.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from startgate.model.shape import shape_of
from startgate.model.taints import GIVEN, Toleration

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u-job", "controller": True}


def wire(index: int = 0, spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None) -> bytes:
    return msgspec.json.encode(
        {
            "metadata": {
                "name": f"train-{index}",
                "namespace": "eval",
                "uid": f"u-{index}",
                "resourceVersion": "12345678901",
                "creationTimestamp": "2026-01-02T03:04:05Z",
                "labels": {names.QUEUE: "batch", names.MIN_AVAILABLE: "4", names.JOB_INDEX: str(index)},
                "annotations": {names.JOB_INDEX: str(index)},
                "ownerReferences": [OWNER],
            },
            "spec": {
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}],
                "schedulingGates": [{"name": names.GATE}, {"name": "other/gate"}],
                **(spec or {}),
            },
            "status": {"phase": "Pending", **(status or {})},
        }
    )


def held(index: int = 0, spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None) -> Pod:
    return pod_of(msgspec.json.decode(wire(index, spec, status), type=objects.Pod))


def template(spec: dict[str, Any]) -> objects.PodSpec:
    return msgspec.convert(spec, objects.PodSpec)


def test_reads_a_gated_pod_of_a_job() -> None:
    pod = held(3)
    assert (pod.namespace, pod.name, pod.uid, pod.version) == ("eval", "train-3", "u-3", 12345678901)
    assert (pod.queue, pod.min_available, pod.index) == ("batch", "4", 3)
    assert pod.owner == objects.OwnerReference("batch/v1", "Job", "train", "u-job", controller=True)
    assert (pod.gated, pod.released, pod.foreign_gates) == (True, False, ("other/gate",))
    assert (pod.bound, pod.ended, pod.deleting, pod.created) == (False, False, False, 1767323045.0)
    assert dict(pod.shape.amounts) == {"cpu": 2000, "memory": 1 << 30, "pods": 1}
    assert pod.shape.request == (("cpu", 2000), ("memory", 1 << 30), ("pods", 1))


def test_reads_a_pod_that_runs_and_goes() -> None:
    data = msgspec.json.decode(wire(0, {"nodeName": "n1", "schedulingGates": None}, {"nominatedNodeName": "n2"}))
    data["metadata"]["deletionTimestamp"] = "2026-01-02T04:00:00Z"
    data["metadata"]["ownerReferences"][0]["controller"] = False
    data["status"]["phase"] = "Running"
    pod = pod_of(msgspec.convert(data, objects.Pod))
    assert (pod.node, pod.nominated, pod.bound, pod.deleting, pod.phase) == (
        "n1",
        "n2",
        True,
        True,
        "Running",
    )
    assert (pod.gated, pod.released, pod.foreign_gates, pod.owner) == (False, True, (), None)


def test_reads_a_pod_of_somebody_else() -> None:
    pod = pod_of(msgspec.json.decode(b'{"metadata":{"name":"nginx","labels":null},"spec":{}}', type=objects.Pod))
    assert (pod.queue, pod.min_available, pod.index, pod.owner, pod.gated) == ("", "", -1, None, False)
    assert pod.shape.request == (("pods", 1),)


@pytest.mark.parametrize(("phase", "ended"), [("Succeeded", True), ("Failed", True), ("Running", False), ("", False)])
def test_ended_pods_have_succeeded_or_failed(phase: str, *, ended: bool) -> None:
    assert held(status={"phase": phase}).ended is ended


@pytest.mark.parametrize(
    ("annotation", "label", "index"),
    [("5", None, 5), (None, "6", 6), ("5", "6", 5), (None, None, -1), ("x", None, -1), ("-7", None, -1)],
)
def test_the_index_is_in_an_annotation_and_later_in_a_label(
    annotation: str | None, label: str | None, index: int
) -> None:
    metadata = {
        "annotations": {names.JOB_INDEX: annotation} if annotation else {},
        "labels": {names.JOB_INDEX: label} if label else None,
    }
    assert pod_of(msgspec.convert({"metadata": metadata}, objects.Pod)).index == index


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ({"status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}, "0/3 nodes"),
        ({"status": "False", "reason": "SchedulerError"}, "SchedulerError"),
        ({"status": "False", "reason": "SchedulingGated", "message": "Scheduling is blocked"}, ""),
        ({"status": "True", "message": "0/3 nodes"}, ""),
        ({"status": "False", "reason": "Unschedulable", "message": "x" * 5000}, "x" * LONGEST_MESSAGE),
    ],
)
def test_keeps_what_kube_scheduler_says(condition: dict[str, str], words: str) -> None:
    conditions = [{"type": "Ready", "status": "False"}, {"type": "PodScheduled", **condition}]
    assert held(status={"conditions": conditions}).unschedulable == words


def test_pods_of_one_kind_share_their_shape_and_their_texts() -> None:
    first, second = held(0), held(1)
    assert first.shape is second.shape
    assert first.shape.amounts is second.shape.amounts
    assert first.namespace is second.namespace
    assert first.queue is second.queue
    assert first.owner is second.owner


def test_where_a_pod_is_bound_is_not_its_shape() -> None:
    assert held(0, {"nodeName": "n1"}).shape is held(1, {"nodeName": "n2"}).shape
    assert shape_of(template({"nodeName": "n1"})).node_name == "n1"
    assert shape_of(template({"nodeName": "n1"})) is not shape_of(template({}))


BASE: dict[str, Any] = {"containers": [{"resources": {"requests": {"cpu": "2"}}}]}


@pytest.mark.parametrize(
    "change",
    [
        {"containers": [{"resources": {"requests": {"cpu": "3"}}}]},
        {"nodeSelector": {"pool": "a"}},
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}},
        {"tolerations": [{"operator": "Exists"}]},
        {"schedulerName": "another"},
        {"priority": 5},
        {"resourceClaims": [{"name": "a"}]},
    ],
)
def test_all_that_decides_where_a_pod_can_run_is_its_shape(change: dict[str, Any]) -> None:
    base, changed = shape_of(template(BASE)), shape_of(template({**BASE, **change}))
    assert base != changed
    assert changed is shape_of(template({**BASE, **change}))


@pytest.mark.parametrize(
    "change",
    [
        {"containers": [{"name": "x", "image": "y", "resources": {"requests": {"cpu": "2000m", "memory": "0"}}}]},
        {"schedulerName": "default-scheduler"},
        {"priority": 0},
        {"nodeSelector": None},
        {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}},
        {"activeDeadlineSeconds": 5},
    ],
)
def test_what_does_not_decide_is_not(change: dict[str, Any]) -> None:
    base = shape_of(template(BASE))
    assert shape_of(template({**BASE, **change})) is base


def test_a_shape_has_what_the_filters_need() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    shape = shape_of(
        template(
            {
                "nodeSelector": {"b": "2", "a": "1"},
                "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}},
                "tolerations": [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 5}],
            }
        ),
        priority=7,
    )
    assert shape.node_selector == (("a", "1"), ("b", "2"))
    assert shape.affinity == NodeSelector((NodeSelectorTerm((Requirement("zone", "In", ("a",)),)),))
    assert shape.tolerations == (Toleration(key="gpu", operator="Exists"), *GIVEN)
    assert (shape.priority, shape.scheduler, shape.unchecked) == (7, "default-scheduler", ())


def test_a_priority_of_zero_can_be_told() -> None:
    assert shape_of(template({"priority": 5}), priority=0).priority == 0
    assert shape_of(template({"priority": 5})).priority == 5


def test_a_shape_goes_with_its_last_pod() -> None:
    pods = [held(index, {"priority": 4242}) for index in range(3)]
    watched = ref(pods[0].shape)
    pods.pop()
    gc.collect()
    assert watched() is pods[0].shape
    pods.clear()
    gc.collect()
    assert watched() is None


def test_the_request_cannot_be_changed_through_the_shape() -> None:
    with pytest.raises(TypeError):
        held().shape.amounts["cpu"] = 0  # type: ignore[index]
    with pytest.raises(AttributeError):
        held().shape.priority = 1  # type: ignore[misc]


def test_preemption() -> None:
    assert held().preempts
    never = held(spec={"preemptionPolicy": "Never", "priorityClassName": "gentle"})
    assert (never.preempts, never.priority_class) == (False, "gentle")


SPECS: list[dict[str, Any]] = [
    {},
    {"nodeName": "n1", "schedulingGates": None},
    {"priority": 7},
    {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
    {"containers": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]},
    {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]},
    {"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]},
]
MORE = {"cpu": "4", "memory": "1Gi"}
STATUSES: list[dict[str, Any]] = [
    {},
    {"phase": "Running", "containerStatuses": [{"name": "c"}]},
    {"containerStatuses": [{"name": "c", "allocatedResources": MORE, "resources": {"requests": MORE}}]},
    {"containerStatuses": [{"name": "c"}], "conditions": [{"type": "PodScheduled", "status": "True"}]},
    {
        "containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "1"}}],
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
    },
    {
        "containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "1"}}],
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}],
    },
]


SEEN = st.tuples(st.integers(0, 1), st.sampled_from(SPECS), st.sampled_from(STATUSES), st.sampled_from("aab"))


@given(st.lists(SEEN, min_size=10, max_size=30))
def test_the_shape_is_that_of_the_pod_itself_whatever_came_before(
    pods: list[tuple[int, dict[str, Any], dict[str, Any], str]],
) -> None:
    alive = []
    for index, spec, status, label in pods:
        data = msgspec.json.decode(wire(index, spec, status))
        data["metadata"]["labels"]["team"] = label
        read = msgspec.convert(data, objects.Pod)
        alone = shape_of(read.spec, read.status, namespace="eval", labels=read.metadata.labels)
        alive.append(pod_of(read))
        assert alive[-1].shape is alone
