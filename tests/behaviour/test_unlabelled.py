"""Harmless: who carries no label of ours never meets us, whatever of ours is down (cases 38 and 42)."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

import pytest

from localcluster.deploy import Program, Startgate
from startgate.kube.client import Patch
from startgate.kube.kinds import JOBS, PODS
from startgate.model import names
from startgate.model.gang import Phase
from tests.behaviour.asking import denial, stored
from tests.behaviour.kit import Field, Manifest, eventually, job_of, pod_spec

WEBHOOKS: Final = ("jobs.startgate.dev/", "pods.startgate.dev/", "queues.startgate.dev/")


def reviews(webhook: Program) -> float:
    """How many reviews the webhook has answered since it started, by its own /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{webhook.health_port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    counts = [line.rsplit(" ", 1)[1] for line in lines if line.startswith("startgate_webhook_reviews_total{")]
    return sum(map(float, counts))


@pytest.fixture
async def no_webhook(field: Field) -> AsyncIterator[Program]:
    """The webhook doesn't run, until the test starts it or ends."""
    webhook = field.startgate.webhook
    await webhook.stop()
    yield webhook
    await back(field.startgate)


async def back(startgate: Startgate) -> None:
    if startgate.webhook.name not in startgate.cluster.pids:
        await startgate.webhook.start()
    await startgate.webhook.wait_ready()
    await startgate.wait_effective()


async def test_no_label_no_call(field: Field) -> None:
    await field.nodes(1)
    queue = await field.queue()

    async def count() -> float:
        return await asyncio.to_thread(reviews, field.startgate.webhook)

    before = await count()
    await field.submit("plain", pods=2, runs="1s")
    await field.pod("bare")
    await field.change_job("plain", {"metadata": {"labels": {"app": "x"}}})
    await field.submit("suspended", pods=1, suspend=True)
    await field.change_job("suspended", {"spec": {"suspend": False}})
    label: Manifest = {"metadata": {"labels": {"app": "x"}}}
    await field.client.patch(PODS, "bare", label, field.namespace, how=Patch.STRATEGIC)
    await field.completes("plain")
    await field.delete_job("suspended")
    assert await count() == before
    # Nor do a labelled Job's progress and its pods, whose gate came with the template: one call for each submission.
    await field.submit("ours", pods=2, runs="1s", queue=queue)
    await field.completes("ours")
    assert await count() == before + 1

    def met() -> list[tuple[str, str]]:
        writes = field.writes(user="")
        return [(write.what, write.name) for write in writes if any(note.startswith(WEBHOOKS) for note in write.note)]

    assert met() == [("jobs", "ours")], "and the API server's own log says the same"


async def test_with_the_webhook_down_the_rest_of_the_cluster_goes_on(field: Field, no_webhook: Program) -> None:
    await field.nodes(1)
    await field.pod("nginx")
    await field.submit("plain", pods=2, runs="1s")
    await field.completes("plain")
    await field.lands("nginx")
    refused = await denial(field.submit("new", queue="any"))
    assert 'failed calling webhook "jobs.startgate.dev"' in refused
    assert await stored(field, JOBS, "new") == {}
    assert 'failed calling webhook "pods.startgate.dev"' in await denial(field.pod("new", labels={names.QUEUE: "any"}))


async def test_a_labelled_job_comes_through_and_none_of_its_pods_ungated(field: Field) -> None:
    """Its gate is in its template (ADR 0001), so that not even the pods that replace lost ones wait for the webhook."""
    await field.nodes(1)
    queue = await field.queue()
    await field.run("running", pods=2, queue=queue, spec={"backoffLimit": 6})
    await field.submit("waiting", pods=3, queue=queue)
    await field.until(lambda: len(field.gated("waiting")) == 3, "it waits for room")
    deployment = labelled_deployment(queue)
    webhook = field.startgate.webhook
    await webhook.stop()
    try:
        lost = field.bound("running")[0]
        await field.client.delete(PODS, lost.name, field.namespace, grace=0)
        await field.until(
            lambda: len(left := field.bound("running")) == 2 and lost.uid not in {pod.uid for pod in left},
            "the lost pod is replaced, and its successor let through",
        )
        await field.delete_job("running")
        await field.phase("waiting", Phase.RUNNING)
        await field.put(deployment)  # its pods have no gate in their template: they can't be made now
        await eventually(partial(events, field), lambda said: any("pods.startgate.dev" in it for it in said), "refused")
    finally:
        await back(field.startgate)
    await field.until(lambda: any(pod.name.startswith("server-") for pod in field.bound()), "and come when it is back")
    ours = [change.new for change in field.pod_changes if change.old is None and change.new]
    assert sorted(pod.name.partition("-")[0] for pod in ours) == ["running"] * 3 + ["server"] + ["waiting"] * 3
    assert all(pod.gated for pod in ours), "every one of them was born behind the gate"
    await field.take_away(deployment)


def labelled_deployment(queue: str) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "server"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "server"}},
            "template": {
                "metadata": {"labels": {"app": "server", names.QUEUE: queue}},
                "spec": pod_spec(restartPolicy="Always"),
            },
        },
    }


async def events(field: Field) -> list[str]:
    """What Events of the namespace say."""
    path = f"/apis/events.k8s.io/v1/namespaces/{field.namespace}/events"
    found: list[dict[str, Any]] = json.loads(await field.client.request("GET", path))["items"]
    return [each.get("note", "") for each in found]


async def test_with_both_programs_down_the_rest_goes_on_too(field: Field, no_webhook: Program) -> None:
    await field.nodes(1)
    await field.startgate.controller.stop()
    await field.client.create(JOBS, job_of("plain", pods=2, runs="1s"), field.namespace)
    await field.pod("bare")
    await field.completes("plain")
    await field.lands("bare")
