"""What a Job's template says of where its pods can run is what its pods say, whatever the API server fills in."""

from __future__ import annotations

from typing import Any

import pytest

from startgate.engine.observe import template_shape
from startgate.kube.kinds import JOBS
from startgate.model import names
from tests.behaviour.kit import Field

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OWN = {"topologyKey": "kubernetes.io/hostname", "matchLabelKeys": ["job-name"], "labelSelector": {}}
OTHERS = {
    "topologyKey": "zone",
    "mismatchLabelKeys": ["batch.kubernetes.io/controller-uid"],
    "labelSelector": {"matchExpressions": [{"key": names.QUEUE, "operator": "Exists"}]},
    "namespaceSelector": {},
}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def containers(**fields: Any) -> list[dict[str, Any]]:
    return [{"name": "main", "image": "example.invalid/main", **fields}]


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": containers(resources={"limits": {"cpu": "500m", "memory": "1Gi"}})},
        {"resources": {"limits": {"cpu": "2", "memory": "1Gi"}}},
        {
            "tolerations": [
                {
                    "key": "node.kubernetes.io/not-ready",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 5,
                }
            ]
        },
        {
            "containers": containers(ports=[{"containerPort": 80}, {"containerPort": 53, "protocol": "UDP"}]),
            "hostNetwork": True,
        },
        {"containers": containers(ports=[{"containerPort": 80, "hostPort": 8080, "hostIP": "0.0.0.0"}])},
        {"affinity": {"podAffinity": {REQUIRED: [OWN]}, "podAntiAffinity": {REQUIRED: [OTHERS, OWN]}}},
        {"topologySpreadConstraints": [{**SPREAD, "labelSelector": {}, "matchLabelKeys": ["job-name"]}]},
        {"topologySpreadConstraints": [{**SPREAD, "minDomains": 2, "nodeTaintsPolicy": "Honor"}]},
        {
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": CLAIM}}},
            ]
        },
        {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]},
    ],
    ids="-".join,
)
async def test_a_template_has_the_very_shape_of_its_pods(field: Field, spec: dict[str, Any]) -> None:
    await field.submit("a", pods=2, queue=await field.queue(stopped=True), **spec)
    await field.until(lambda: len(field.gated("a")) == 2, "its pods are made")
    job = await field.client.get(JOBS, "a", field.namespace)
    first, second = field.gated("a")
    assert first.shape is second.shape
    assert first.shape is template_shape(job, {})
