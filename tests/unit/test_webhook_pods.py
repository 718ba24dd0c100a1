"""Pods at the door: a gate for those without, and no way past by a node name."""

from typing import Any

import pytest

from startgate.audit.record import Decision
from startgate.model import names
from startgate.model.queue import QueueSpec
from tests.unit.webhook_objects import QUEUE, Json, apply, raw
from webhook import pods
from webhook.objects import read_pod
from webhook.review import NOTHING_OF_OURS, Verdict
from webhook.submission import Facts

GATE = {"name": names.GATE}


def pod(labels: Json | None = None, *, owner: str = "", **spec: Any) -> Json:
    metadata: Json = {"name": "p", "labels": labels}
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "name": "x", "controller": True}]
    return {"metadata": metadata, "spec": spec}


def create(value: Json, facts: Facts | None = None) -> Verdict:
    return pods.create(read_pod(raw(value)), "eval", facts or Facts(queue=QueueSpec()))


def test_a_pod_without_our_label_is_not_ours() -> None:
    assert create(pod()) is NOTHING_OF_OURS
    assert create(pod({"app": "x"}, nodeName="n")) is NOTHING_OF_OURS


@pytest.mark.parametrize("owner", ["", "Job", "ReplicaSet"])
@pytest.mark.parametrize(
    ("gates", "after"),
    [
        (None, [GATE]),
        ([], [GATE]),
        ([{"name": "other.dev/x"}], [{"name": "other.dev/x"}, GATE]),
        ([GATE], [GATE]),
    ],
)
def test_it_gets_our_gate_beside_those_of_others(owner: str, gates: Any, after: Any) -> None:
    value = pod(QUEUE, owner=owner, schedulingGates=gates)
    verdict = create(value)
    patched = apply(verdict, value)
    assert verdict.decision is Decision.GATE
    assert patched["spec"]["schedulingGates"] == after
    assert create(patched).patch == ()


@pytest.mark.parametrize("owner", ["", "Job"])
def test_a_node_name_is_refused(owner: str) -> None:
    verdict = create(pod(QUEUE, owner=owner, nodeName="n1"))
    assert (verdict.decision, verdict.reason) == (Decision.REFUSE, "NodeName")
    assert "the node n1" in verdict.message
    assert "take off spec.nodeName" in verdict.message


def test_a_jobs_pods_wait_for_a_queue_that_is_gone_and_others_are_refused() -> None:
    gone = Facts(queue=None)
    assert create(pod(QUEUE, owner="Job"), gone).decision is Decision.GATE
    for owner in ("", "ReplicaSet"):
        verdict = create(pod(QUEUE, owner=owner), gone)
        assert (verdict.reason, verdict.by_facts) == ("NoSuchQueue", True)


def test_bare_pods_are_held_to_the_labels() -> None:
    assert create(pod({names.QUEUE: ""})).reason == "LabelInvalid"
    assert create(pod({**QUEUE, names.KUEUE_QUEUE: "k"})).reason == "Kueue"
