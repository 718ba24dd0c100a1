"""Case 37: gangs come and go by the thousand, and what the controller holds of them goes with them."""

import gc
import tracemalloc
from functools import _lru_cache_wrapper
from pathlib import Path
from typing import Any

import msgspec
import pytest

from startgate.engine.cycle import decide
from startgate.model import names, objects
from startgate.model.objects import rfc3339
from startgate.model.queue import Queue
from tests.unit.feed import NOW, Feed, empty_cache

PER_GANG = 300
"""Bytes: far less than a gang's smallest part, and more than what is now here and now there."""


async def test_what_is_known_of_a_gang_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has labels, a spread and an anti-affinity of its own, which the engine counts pods by."""
    monkeypatch.setattr("startgate.engine.company.PICKS", 16)
    monkeypatch.setattr("startgate.model.pods.OWNERS", 16)
    async with empty_cache(tmp_path) as cache:
        feed = Feed(cache)
        for name in ("a", "b"):
            cache.nodes.store.put(node(name))
        cache.queues.store.put(Queue(metadata=objects.ObjectMeta(name="q", uid="q", resource_version="1")))
        live(feed, 0, 20)
        assert not feed.gangs.states
        tracemalloc.start()
        try:
            live(feed, 20, 40)
            before = held()
            live(feed, 40, 190)
            grown = held() - before
        finally:
            tracemalloc.stop()
        assert grown < 150 * PER_GANG


def live(feed: Feed, first: int, end: int) -> None:
    """One after the other they come, wait, run and go."""
    cache = feed.cache
    for number in range(first, end):
        job = f"g{number}"
        feed.job(job, pods=1)
        cache.pods.store.put(pod(job, number, ""))
        plan = decide(feed.world(), NOW)
        assert len(plan.go) == 1
        cache.pods.store.put(pod(job, number, "a"))
        feed.gang(job, slots=1)
        decide(feed.world(), NOW)
        for store, name in ((cache.jobs.store, job), (cache.gangs.store, f"job-{job}"), (cache.pods.store, f"{job}-0")):
            store.drop(objects.ObjectMeta(name=name, namespace="n", uid=f"uid-{name}", resource_version=str(2**50)))
        decide(feed.world(), NOW)


def held() -> int:
    """Bytes; without what is in caches of a bounded size, which would take tens of thousands of gangs to fill."""
    for each in gc.get_objects():
        if isinstance(each, _lru_cache_wrapper):
            each.cache_clear()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def node(name: str) -> objects.Node:
    status = {"allocatable": {"cpu": "4", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {"kubernetes.io/hostname": name}
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "labels": labels}
    return msgspec.convert({"metadata": metadata, "spec": {}, "status": status}, objects.Node)


def pod(job: str, number: int, place: str) -> objects.Pod:
    mine = {"matchLabels": {"batch.kubernetes.io/job-name": job}}
    key = "kubernetes.io/hostname"
    spread = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": mine}
    apart = {"labelSelector": mine, "topologyKey": key}
    spec: dict[str, Any] = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        "topologySpreadConstraints": [spread],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        **({"nodeName": place} if place else {"schedulingGates": [{"name": names.GATE}]}),
    }
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"uid-{job}", "controller": True}
    metadata = {
        "name": f"{job}-0",
        "namespace": "n",
        "uid": f"uid-{job}-0",
        "resourceVersion": str(2**40 + 2 * number + bool(place)),
        "creationTimestamp": rfc3339(NOW),
        "labels": {names.QUEUE: "q", **mine["matchLabels"]},
        "annotations": {names.JOB_INDEX: "0"},
        "ownerReferences": [owner],
    }
    body = {"metadata": metadata, "spec": spec, "status": {"phase": "Running" if place else "Pending"}}
    return msgspec.convert(body, objects.Pod)
