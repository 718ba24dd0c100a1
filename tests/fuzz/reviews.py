"""Hypothesis strategies for reviews: nearly right ones, damaged ones, and bytes.

Nearly right is what finds most: Jobs, pods and Queues with our labels, whose fields have other types, other sizes and
other neighbours than any API server would send.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from startgate.model import names

Json = Any

PATHS: Final = ("/jobs", "/pods", "/queues")

numbers = st.integers(-3, 100) | st.integers() | st.sampled_from([2**31 - 1, 2**31, -(2**31) - 1, 2**63, 2**64, 10**40])
texts = st.text(max_size=20) | st.sampled_from(["", "q", "4", "true", "5m", "1h", "1e400", "a/b", "x" * 300, "\x00"])
amounts = st.sampled_from(["1", "100m", "1Gi", "1e3", "-1", "", "1e99999", "0.0000001", "9" * 400]) | texts
leaves = st.none() | st.booleans() | numbers | st.floats() | texts
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
keys = st.sampled_from(
    [names.QUEUE, names.MIN_AVAILABLE, names.KUEUE_QUEUE, names.HOLD, names.START_TIMEOUT, names.TOPOLOGY, names.PARKED]
)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A map with some of these members; each may be null."""
    return st.fixed_dictionaries({}, optional={name: value | st.none() for name, value in fields.items()})


labels = st.dictionaries(keys | texts, texts, max_size=4)
owners = st.lists(
    some(apiVersion=texts, kind=st.sampled_from(["Job", "CronJob", "X"]), name=texts, controller=st.booleans()),
    max_size=2,
)
metadata = some(name=texts, generateName=texts, uid=texts, labels=labels, annotations=labels, ownerReferences=owners)
gates = st.lists(some(name=texts | st.just(names.GATE)), max_size=3)
pod_specs = some(nodeName=texts, schedulingGates=gates, priorityClassName=texts, priority=numbers)
job_specs = some(
    suspend=st.booleans(),
    parallelism=numbers,
    completions=numbers,
    activeDeadlineSeconds=numbers,
    managedBy=texts,
    template=some(metadata=metadata, spec=pod_specs),
)
resources = st.dictionaries(texts | st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), amounts | numbers, max_size=3)
queue_specs = some(
    parent=texts,
    weight=numbers,
    capability=resources,
    guarantee=resources,
    deserved=resources,
    reclaimable=st.booleans(),
    stopped=st.booleans(),
    maxPriority=numbers,
    parkBeyond=numbers,
    patience=texts,
    namespaces=some(
        matchLabels=labels,
        matchExpressions=st.lists(some(key=texts, operator=texts, values=st.lists(texts, max_size=2)), max_size=2),
    ),
)
objects = {
    "/jobs": st.fixed_dictionaries({"metadata": metadata, "spec": job_specs}),
    "/pods": st.fixed_dictionaries({"metadata": metadata, "spec": pod_specs}),
    "/queues": st.fixed_dictionaries(
        {"metadata": metadata, "spec": queue_specs}, optional={"status": some(waiting=numbers, running=numbers)}
    ),
}


@dataclass(frozen=True)
class Sent:
    """One request: where to, what, and how things stand in the cluster (an index into `target.CLUSTERS`)."""

    path: str
    body: bytes
    cluster: int


@st.composite
def reviews(draw: st.DrawFn) -> Sent:
    """A review of the right shape, one in two with a part replaced by something else, one in four by bytes."""
    path = draw(st.sampled_from(PATHS))
    kind = objects[path if draw(st.integers(0, 9)) else draw(st.sampled_from(PATHS))]
    review: Json = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": draw(st.text(min_size=1, max_size=10)),
            "operation": draw(st.sampled_from(["CREATE", "CREATE", "UPDATE", "DELETE", "CONNECT"])),
            "namespace": draw(texts),
            "name": draw(texts),
            "userInfo": {"username": draw(texts)},
            "dryRun": draw(st.none() | st.booleans()),
            "object": draw(kind),
            "oldObject": draw(kind),
        },
    }
    if draw(st.booleans()):
        _replace(draw, review)
    # Pretty-printed too: what is spread over lines must not spread over lines of the audit log.
    body = json.dumps(review, indent=draw(st.sampled_from([None, None, 1])), ensure_ascii=draw(st.booleans()))
    data = body.encode(errors="surrogatepass")
    if not draw(st.integers(0, 3)):
        data = _damaged(draw, data)
    return Sent(path, data, draw(st.integers(0, 3)))


def _replace(draw: st.DrawFn, tree: Json) -> None:
    """Puts something else in the place of one member, somewhere."""
    while True:
        keys_here = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        key = draw(st.sampled_from(keys_here))
        inner = tree[key]
        if not (isinstance(inner, dict | list) and inner and draw(st.integers(0, 3))):
            tree[key] = draw(anything)
            return
        tree = inner


def _damaged(draw: st.DrawFn, data: bytes) -> bytes:
    at = draw(st.integers(0, len(data)))
    cut = draw(st.integers(0, 20))
    return data[:at] + draw(st.binary(max_size=8)) + data[at + cut :]


def deep(path: str, depth: int) -> bytes:
    """A review that is right but for one member of its objects, which is that deep."""
    inner = b'{"a":[' * depth + b"]}" * depth
    objects_ = b'{"metadata":{"x":%b},"spec":{"x":%b}}' % (inner, inner)
    head = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"UPDATE",'
    return head + b'"name":"%b","object":%b,"oldObject":%b}}' % (path[1:].encode(), objects_, objects_)
