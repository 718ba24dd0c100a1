"""Who may pass the gate: nobody by hand, but for those who may release gangs. Each way around it that we know of."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pytest

from startgate.kube.client import Client, Patch
from startgate.kube.errors import ApiError
from startgate.kube.kinds import JOBS, PODS
from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.reasons import Code
from tests.behaviour.asking import acting_as, denial, stored, user_name
from tests.behaviour.kit import CONTROLLER, Field, Manifest, eventually, pod_spec

OUR_GATE: Final = {"name": names.GATE}
LIFT: Final[Manifest] = {"spec": {"schedulingGates": [{**OUR_GATE, "$patch": "delete"}]}}
LABEL_STAYS: Final = (
    "the label startgate.dev/queue of a pod stays as it was made, since it says which queue is charged; label the Job, "
    "or the pod template, and its new pods have it"
)


def gate_stays(field: Field, user: str) -> str:
    return (
        "the gate startgate.dev/gang is lifted by Startgate when the whole gang may start; lifting it by hand takes "
        f"the verb release on gangs.startgate.dev in namespace {field.namespace}, which {user} does not have (an admin "
        "can bind ClusterRole startgate-break-glass)"
    )


async def waiting_pod(field: Field) -> str:
    """A pod at our gate, with room for it on a node; its name."""
    await field.nodes(1)
    await field.submit("a", pods=1, queue=await field.queue(stopped=True), spec={"backoffLimit": 6})
    await field.waits("a", Code.QUEUE_STOPPED)
    return field.gated("a")[0].name


async def patch(who: Client, field: Field, pod: str, change: object, how: Patch, **query: str) -> bytes:
    path = PODS.path(field.namespace, pod)
    return await who.request("PATCH", path, query=query, body=change, content_type=how)


async def put(who: Client, field: Field, pod: str) -> bytes:
    whole = await stored(field, PODS, pod)
    whole["spec"].pop("schedulingGates")
    return await who.request("PUT", PODS.path(field.namespace, pod), body=whole)


async def apply(who: Client, field: Field, pod: str) -> bytes:
    """Server-side: gates go with their only owner, so the user becomes that first."""
    me: Manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod}}
    await patch(who, field, pod, {"metadata": {"managedFields": [{}]}}, Patch.MERGE)
    query = {"fieldManager": "me", "force": "true"}
    await patch(who, field, pod, {**me, "spec": {"schedulingGates": [OUR_GATE]}}, Patch.APPLY, **query)
    await patch(who, field, pod, {"metadata": {"managedFields": only(await stored(field, PODS, pod))}}, Patch.MERGE)
    return await patch(who, field, pod, {**me, "spec": {}}, Patch.APPLY, **query)


def only(pod: Manifest) -> list[Any]:
    return [each for each in pod["metadata"]["managedFields"] if each["manager"] == "me"]


async def test_a_user_with_all_rights_to_edit_cannot_lift_it(field: Field) -> None:
    pod = await waiting_pod(field)
    async with acting_as(field, "ann") as ann:
        ways: list[Awaitable[bytes]] = [
            patch(ann, field, pod, LIFT, Patch.STRATEGIC),
            patch(ann, field, pod, {"spec": {"schedulingGates": None}}, Patch.MERGE),
            patch(ann, field, pod, {"spec": {"schedulingGates": []}}, Patch.MERGE),
            patch(ann, field, pod, [{"op": "remove", "path": "/spec/schedulingGates/0"}], Patch.JSON),
            put(ann, field, pod),
            apply(ann, field, pod),
        ]
        for way in ways:
            said = await denial(way)
            assert said.endswith(gate_stays(field, user_name(field, "ann"))), said
        assert (await stored(field, PODS, pod))["spec"]["schedulingGates"] == [OUR_GATE]
        # All else about the pod is theirs as ever.
        await patch(ann, field, pod, {"metadata": {"annotations": {"example.com/note": "mine"}}}, Patch.MERGE)
        assert await ann.delete(PODS, pod, field.namespace)
    await field.until(lambda: field.named(pod) is None, "it is gone")


async def test_not_even_an_admin_gets_past_it_by_a_subresource(field: Field) -> None:
    """What the policy doesn't look at, Kubernetes itself shuts."""
    pod = await waiting_pod(field)
    binding = {"metadata": {"name": pod}, "target": {"kind": "Node", "name": "n1"}}
    said = await denial(field.client.request("POST", PODS.path(field.namespace, pod, "binding"), body=binding))
    assert "has non-empty .spec.schedulingGates" in said
    for subresource, change in (
        ("status", LIFT),
        ("status", {"spec": {"nodeName": "n1"}}),
        ("ephemeralcontainers", LIFT),
        ("resize", LIFT),
    ):
        path = PODS.path(field.namespace, pod, subresource)
        with suppress(ApiError):  # refused or ignored: what counts is what is stored
            await field.client.request("PATCH", path, body=change, content_type=Patch.STRATEGIC)
        after = await stored(field, PODS, pod)
        assert after["spec"]["schedulingGates"] == [OUR_GATE], subresource
        assert "nodeName" not in after["spec"], subresource


async def test_a_holder_of_the_break_glass_role_lifts_it(field: Field) -> None:
    """And what then runs is charged and said, like all that runs."""
    pod = await waiting_pod(field)
    async with acting_as(field, "ann", roles=("edit", "startgate-break-glass")) as ann:
        await patch(ann, field, pod, LIFT, Patch.STRATEGIC)
    await field.lands(pod)
    await field.phase("a", Phase.RUNNING)
    used, read = {"cpu": "1", "pods": "1"}, partial(field.read_queue, f"q-{field.namespace}")
    await eventually(read, lambda it: it.status.allocated == used, "it is charged")


async def test_the_controllers_account_lifts_it_and_nobody_else_does(field: Field) -> None:
    pod = await waiting_pod(field)
    await field.change_queue(f"q-{field.namespace}", stopped=False)
    await field.lands(pod)
    lifts = [write for write in field.writes(what="pods", user="") if write.name == pod and write.verb == "patch"]
    assert [(write.user, write.code) for write in lifts] == [(CONTROLLER, 200)]


@pytest.mark.parametrize("what", ["labels", "gate", "both", "put"])
async def test_a_suspended_jobs_template_stays_ours(field: Field, what: str) -> None:
    """Its template can be edited while it is suspended: label and gate are put back."""
    queue = await field.queue(stopped=True)
    await field.submit("a", pods=1, queue=queue, suspend=True)
    before = (await stored(field, JOBS, "a"))["spec"]["template"]
    changes: dict[str, Manifest] = {
        "labels": {"metadata": {"labels": {names.QUEUE: None}}},
        "gate": {"spec": {"schedulingGates": None}},
        "both": {"metadata": {"labels": {names.QUEUE: None}}, "spec": {"schedulingGates": None}},
    }
    async with acting_as(field, "ann") as ann:
        if what == "put":
            whole = await stored(field, JOBS, "a")
            whole["spec"]["template"]["metadata"]["labels"].pop(names.QUEUE)
            whole["spec"]["template"]["spec"].pop("schedulingGates")
            whole["spec"]["suspend"] = False
            await ann.request("PUT", JOBS.path(field.namespace, "a"), body=whole)
        else:
            await ann.patch(JOBS, "a", {"spec": {"template": changes[what]}}, field.namespace)
            await ann.patch(JOBS, "a", {"spec": {"suspend": False}}, field.namespace)
    after = (await stored(field, JOBS, "a"))["spec"]["template"]
    assert (after["metadata"], after["spec"]) == (before["metadata"], before["spec"])
    await field.until(lambda: len(field.gated("a")) == 1, "its pod is gated")
    await field.waits("a", Code.QUEUE_STOPPED)
    assert all(change.new is None or change.new.gated for change in field.pod_changes)


async def test_a_suspended_jobs_own_label_stays_too(field: Field) -> None:
    await field.submit("a", pods=1, queue=await field.queue(stopped=True), suspend=True)
    await field.change_job("a", {"metadata": {"labels": {"app": "x"}}})
    off = {
        "metadata": {"labels": {names.QUEUE: None}},
        "spec": {"template": {"metadata": {"labels": {names.QUEUE: None}}, "spec": {"schedulingGates": None}}},
    }
    async with acting_as(field, "ann") as ann:
        said = await denial(ann.patch(JOBS, "a", off, field.namespace))
    assert "the label startgate.dev/queue can't be taken off this Job" in said


async def test_the_label_of_a_pod_stays_as_it_was_made(field: Field) -> None:
    """Off, it would run and nobody pay; on, a queue would pay for what it never admitted."""
    await field.nodes(1)
    queue, other = await field.queue(), await field.queue("other", namespaces={"matchLabels": {"team": "other"}})
    await field.pod("ours", labels={names.QUEUE: queue})
    await field.pod("plain")
    await field.lands("ours")
    await field.lands("plain")
    async with acting_as(field, "ann") as ann:
        for pod, value in (("ours", None), ("ours", other), ("plain", other), ("plain", queue)):
            change = {"metadata": {"labels": {names.QUEUE: value}}}
            said = await denial(patch(ann, field, pod, change, Patch.MERGE))
            assert said.endswith(LABEL_STAYS), said
        await patch(ann, field, "plain", {"metadata": {"labels": {"app": "x"}}}, Patch.MERGE)
    used = {"cpu": "1", "pods": "1"}
    await eventually(partial(field.read_queue, queue), lambda it: it.status.allocated == used, "ours is charged")
    assert (await field.read_queue(other)).status.allocated == {}


async def test_pods_whose_job_is_deleted_without_them_are_charged_until_they_go(field: Field) -> None:
    """`kubectl delete --cascade=orphan`: they go on, and so does their charge, but no longer than they do."""
    await field.nodes(1)
    queue = await field.queue()
    await field.run("a", pods=2, queue=queue)
    charged = partial(field.read_queue, queue)
    two = {"cpu": "2", "pods": "2"}
    await eventually(charged, lambda it: it.status.allocated == two, "both are charged")
    await field.client.delete(JOBS, "a", field.namespace, propagation="Orphan")
    await field.until(lambda: field.job("a") is None, "the Job is gone")
    await field.until(lambda: len(field.pods()) == 2 and not field.pods("a"), "its pods are nobody's")
    await field.submit("after", pods=3, queue=queue)
    message = (await field.waits("after", Code.CLUSTER_IN_USE)).status.message  # a decision after the change
    assert message.startswith("needs 3 cpu; 2 of 4 in the cluster are in use by gangs"), message
    await eventually(charged, lambda it: it.status.allocated == two, "they are charged as before")
    for pod in field.pods():
        if pod.bound:
            await field.client.delete(PODS, pod.name, field.namespace, grace=0)
    await field.phase("after", Phase.RUNNING)
    three = {"cpu": "3", "pods": "3"}
    await eventually(charged, lambda it: it.status.allocated == three, "their charge went with them")


async def test_an_owner_that_is_made_up_opens_no_gate(field: Field) -> None:
    """A pod that says that it is of a Job, brings the gate itself, and names a queue that would not have it."""
    await field.nodes(1)
    queue = await field.queue(namespaces={"matchLabels": {"team": "other"}})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "ghost", "uid": "0-0", "controller": True}
    await field.submit("witness", pods=1, queue=await field.queue("other"))
    async with acting_as(field, "ann") as ann:
        pod = {
            "metadata": {"name": "forged", "labels": {names.QUEUE: queue}, "ownerReferences": [owner]},
            "spec": pod_spec(schedulingGates=[OUR_GATE]),
        }
        await ann.create(PODS, pod, field.namespace)
    await field.phase("witness", Phase.RUNNING)
    found = await stored(field, PODS, "forged")  # or collected as garbage meanwhile, its owner being none
    assert not found or found["spec"]["schedulingGates"] == [OUR_GATE]
    seen = [change.new for change in field.pod_changes if change.new and change.new.name == "forged"]
    assert not any(pod.bound for pod in seen)
