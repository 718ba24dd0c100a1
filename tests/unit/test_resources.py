"""What pods ask for: arithmetic on amounts, and kube-scheduler's own count (cases.md, 10, 13, 16)."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from startgate.model import objects
from startgate.model.quantity import Quantity, QuantityError
from startgate.model.resources import (
    add,
    amount,
    amounts,
    fits,
    largest,
    pod_request,
    scale,
    shortage,
    show,
    subtract,
)

MI = 1 << 20


def test_each_resource_has_its_scale() -> None:
    given: dict[str, Quantity] = {
        "cpu": "1500m",
        "memory": "1.5Gi",
        "nvidia.com/gpu": 2,
        "pods": "110",
        "ephemeral-storage": "1k",
    }
    assert amounts(given) == {
        "cpu": 1500,
        "memory": 1536 * MI,
        "nvidia.com/gpu": 2,
        "pods": 110,
        "ephemeral-storage": 1000,
    }
    assert amount("cpu", 4) == 4000
    with pytest.raises(QuantityError, match="1_000"):
        amounts({"memory": "1_000"})


HELD = st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), st.integers(-5, 5))


@given(HELD, HELD, st.integers(0, 5))
def test_arithmetic_is_that_of_vectors(left: dict[str, int], right: dict[str, int], times: int) -> None:
    total, rest, many, top = add(left, right), subtract(left, right), scale(left, times), largest(left, right)
    for resource in ("cpu", "memory", "gpu"):
        one, other = left.get(resource, 0), right.get(resource, 0)
        assert total.get(resource, 0) == one + other
        assert rest.get(resource, 0) == one - other
        assert many.get(resource, 0) == times * one
        if resource in left and resource in right:
            assert top[resource] == max(one, other)
    assert top.keys() == left.keys() | right.keys()


@given(HELD, HELD)
def test_it_fits_exactly_when_nothing_is_missing(need: dict[str, int], room: dict[str, int]) -> None:
    missing = shortage(need, room)
    assert fits(need, room) == (not missing)
    assert all(count > 0 and need[resource] > 0 for resource, count in missing.items())
    assert fits(need, add(room, missing))
    for resource in missing:
        assert not fits(need, add(room, missing, {resource: -1}))


def test_what_is_not_asked_for_cannot_block() -> None:
    assert fits({"cpu": 1}, {"cpu": 1, "nvidia.com/gpu": -3})
    assert fits({"cpu": 0}, {"cpu": -3})
    assert shortage({"cpu": 2}, {"cpu": -3}) == {"cpu": 5}


def test_sentences_name_resources_in_one_order() -> None:
    held = {
        "pods": 3,
        "nvidia.com/gpu": 1,
        "ephemeral-storage": 1 << 30,
        "a.b/c": 2,
        "memory": 8 << 30,
        "cpu": 4000,
    }
    assert show(held) == "4 cpu, 8Gi memory, 1Gi ephemeral-storage, 2 a.b/c, 1 nvidia.com/gpu, 3 pods"
    assert show({"pods": 1, "cpu": 500}) == "500m cpu, 1 pod"
    assert show({}) == "nothing"


def container(requests: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": requests}, **more}


def limited(requests: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    return {"resources": {"requests": requests, "limits": limits}}


def sidecar(requests: dict[str, Any]) -> dict[str, Any]:
    return container(requests, restartPolicy="Always")


def request(spec: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, int]:
    pod = msgspec.convert({"spec": spec, "status": status or {}}, objects.Pod)
    return pod_request(pod.spec, pod.status if status is not None else None)


SPECS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "nothing asked for: one pod all the same": ({"containers": [container()]}, {}),
    "no containers": ({"containers": None}, {}),
    "zeros are nothing": ({"containers": [container({"cpu": "0"})]}, {}),
    "containers add up": (
        {"containers": [container({"cpu": "1", "memory": "1Mi"}), container({"cpu": "300m", "x.y/z": 2})]},
        {"cpu": 1300, "memory": MI, "x.y/z": 2},
    ),
    "a limit alone is the request": ({"containers": [limited({}, {"cpu": "3"})]}, {"cpu": 3000}),
    "a default of a LimitRange, put in by the API server, stands before the limit": (
        {"containers": [limited({"cpu": "1"}, {"cpu": "3", "memory": "2Mi"})]},
        {"cpu": 1000, "memory": 2 * MI},
    ),
    "a request of 0 stands before the limit": ({"containers": [limited({"cpu": "0"}, {"cpu": "3"})]}, {}),
    "the largest init container, per resource": (
        {
            "containers": [container({"cpu": "1", "memory": "4Mi"})],
            "initContainers": [container({"cpu": "2", "memory": "1Mi"}), container({"cpu": "1", "x.y/z": 1})],
        },
        {"cpu": 2000, "memory": 4 * MI, "x.y/z": 1},
    ),
    "an init container's limit counts too": (
        {"containers": [container({"cpu": "1"})], "initContainers": [limited({}, {"cpu": "2"})]},
        {"cpu": 2000},
    ),
    "sidecars run beside the containers": (
        {
            "containers": [container({"cpu": "1"})],
            "initContainers": [sidecar({"cpu": "2"}), sidecar({"cpu": "3"})],
        },
        {"cpu": 6000},
    ),
    "an init container meets the sidecars started before it only": (
        {
            "containers": [container({"cpu": "1"})],
            "initContainers": [sidecar({"cpu": "1"}), container({"cpu": "5"}), sidecar({"cpu": "2"})],
        },
        {"cpu": 6000},
    ),
    "and those after it count when they run": (
        {
            "containers": [container({"cpu": "4"})],
            "initContainers": [sidecar({"cpu": "1"}), container({"cpu": "5"}), sidecar({"cpu": "2"})],
        },
        {"cpu": 7000},
    ),
    "overhead comes on top, also in what isn't asked for": (
        {"containers": [container({"cpu": "1"})], "overhead": {"cpu": "250m", "memory": "1Mi"}},
        {"cpu": 1250, "memory": MI},
    ),
    "the pod's own requests stand before its containers'": (
        {
            "containers": [container({"cpu": "1", "memory": "4Mi"})],
            "resources": {"requests": {"cpu": "5"}},
            "overhead": {"cpu": "1"},
        },
        {"cpu": 6000, "memory": 4 * MI},
    ),
    "a pod as a whole can ask for cpu, memory and huge pages only": (
        {
            "containers": [container({"x.y/z": 1})],
            "resources": {"requests": {"x.y/z": 9, "memory": "1Mi", "hugepages-2Mi": "2Mi"}},
        },
        {"x.y/z": 1, "memory": MI, "hugepages-2Mi": 2 * MI},
    ),
    "the pod's own limit is its request where no container asks": (
        {"containers": [container({"cpu": "1"})], "resources": {"limits": {"cpu": "5", "memory": "4Mi"}}},
        {"cpu": 1000, "memory": 4 * MI},
    ),
    "for huge pages the pod's own limit always is": (
        {
            "containers": [limited({"hugepages-2Mi": "2Mi"}, {"hugepages-2Mi": "2Mi"})],
            "resources": {"limits": {"hugepages-2Mi": "8Mi"}},
        },
        {"hugepages-2Mi": 8 * MI},
    ),
}


@pytest.mark.parametrize("case", SPECS)
def test_a_pod_asks_what_kube_scheduler_counts(case: str) -> None:
    spec, expected = SPECS[case]
    assert request(spec) == {**expected, "pods": 1}
    assert request(spec, {}) == {**expected, "pods": 1}


ONE = {"containers": [container({"cpu": "2"})]}
INFEASIBLE = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
DEFERRED = [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]


def seen(granted: str, running: str) -> dict[str, Any]:
    return {
        "containerStatuses": [
            {"name": "c", "allocatedResources": {"cpu": granted}, "resources": {"requests": {"cpu": running}}}
        ]
    }


@pytest.mark.parametrize(
    ("status", "cpu"),
    [
        (seen("2", "2"), 2000),
        (seen("1", "1"), 2000),  # asked for more, not granted yet: held for it already
        (seen("3", "3"), 3000),  # asked for less, not yet given back
        (seen("2", "3"), 3000),  # granted less, still running with more
        ({**seen("1", "1"), "conditions": DEFERRED}, 2000),
        ({**seen("1", "1"), "conditions": INFEASIBLE}, 1000),  # it will never get what it asks
        ({"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "3"}}]}, 3000),
        ({"containerStatuses": [{"name": "another", "allocatedResources": {"cpu": "3"}}]}, 2000),
        ({"allocatedResources": {"cpu": "4"}, "resources": {"requests": {"cpu": "5"}}}, 5000),
    ],
)
def test_a_resize_in_place_changes_the_charge(status: dict[str, Any], cpu: int) -> None:
    assert request(ONE, status) == {"cpu": cpu, "pods": 1}
    assert request(ONE) == {"cpu": 2000, "pods": 1}


@pytest.mark.parametrize(("conditions", "cpu"), [([], 5000), (DEFERRED, 5000), (INFEASIBLE, 4000)])
def test_a_resize_of_the_whole_pod(conditions: list[dict[str, str]], cpu: int) -> None:
    spec = {**ONE, "resources": {"requests": {"cpu": "5"}}}
    status = {
        "allocatedResources": {"cpu": "4"},
        "resources": {"requests": {"cpu": "3"}},
        "conditions": conditions,
    }
    assert request(spec, status) == {"cpu": cpu, "pods": 1}


def test_an_infeasible_resize_of_what_was_never_granted_asks_for_nothing() -> None:
    assert request(ONE, {"conditions": INFEASIBLE}) == {"pods": 1}
