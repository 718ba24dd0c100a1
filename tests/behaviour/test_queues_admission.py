"""Queues at the door: what contradicts itself or its neighbours is refused with the numbers; all else is on record."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from startgate.audit.record import Decision, Stage
from startgate.kube.client import Client
from startgate.kube.errors import ApiError
from startgate.kube.kinds import QUEUES
from startgate.model import names
from startgate.model.reasons import Code
from tests.behaviour.asking import acting_as, by_webhook, denial, records, stored, user_name
from tests.behaviour.kit import Field, eventually


def said(sentence: str) -> str:
    return by_webhook("queues", sentence)


async def test_amounts_that_contradict_each_other_are_refused_with_the_numbers(field: Field) -> None:
    for spec, sentence in (
        ({"guarantee": {"cpu": "3"}, "capability": {"cpu": "2500m"}}, "cpu: guarantee 3 is above capability 2500m"),
        ({"guarantee": {"cpu": "1500m"}, "deserved": {"cpu": "1"}}, "cpu: guarantee 1500m is above deserved 1"),
        (
            {"deserved": {"memory": "2Gi"}, "capability": {"memory": "2000Mi"}},
            "memory: deserved 2Gi is above capability 2000Mi",
        ),
    ):
        assert sentence in await denial(field.queue("bad", **spec))


async def test_neighbours_that_contradict_each_other(field: Field) -> None:
    top = await field.queue("top", capability={"cpu": "10"}, deserved={"cpu": "6"})
    one = await field.queue("one", parent=top, deserved={"cpu": "4"}, guarantee={"cpu": "4"})
    ns = field.namespace
    for refused, sentence in (
        (
            field.queue("two", parent=top, deserved={"cpu": "3"}),
            f"queue {top}, cpu: the deserved of its children together, 7 is above deserved 6",
        ),
        (
            field.queue("two", parent=top, capability={"cpu": "11"}),
            f"queue two-{ns}, cpu: capability 11 is above the capability of queue {top} above it 10",
        ),
        (
            field.queue("two", parent=top, guarantee={"cpu": "7"}),
            f"queue {top}, cpu: the guarantees of its children together, 11 is above deserved 6",
        ),
        (
            field.change_queue(top, deserved={"cpu": "3"}, capability={"cpu": "3"}),
            f"queue {top}, cpu: the guarantees of its children together, 4 is above deserved 3",
        ),
    ):
        assert await denial(refused) == said(f"{sentence}; lower the one or raise the other")
    assert await stored(field, QUEUES, f"two-{ns}") == {}
    await field.change_queue(one, deserved={"cpu": "2"}, guarantee={"cpu": "2"})
    await field.queue("two", parent=top, deserved={"cpu": "3"})  # now there is room for it


async def test_parents_that_cannot_be(field: Field) -> None:
    ns = field.namespace
    assert await denial(field.queue("a", parent=f"b-{ns}")) == said(
        f"there is no queue b-{ns} to be the parent: create it first, or leave spec.parent out"
    )
    a = await field.queue("a")
    b = await field.queue("b", parent=a)
    c = await field.queue("c", parent=b)
    assert await denial(field.change_queue(a, parent=c)) == said(
        f"spec.parent {c} makes a circle: {a} → {c} → {b} → {a}; choose a parent that isn't below this queue, or none"
    )
    assert (await field.read_queue(a)).spec.parent == ""
    await field.client.delete(QUEUES, c)  # children first, for whoever clears up after us
    await field.client.delete(QUEUES, b)


async def test_a_queue_in_use_is_not_deleted(field: Field) -> None:
    await field.nodes(1)
    top = await field.queue("top")
    queue = await field.queue("low", parent=top)
    assert await denial(field.client.delete(QUEUES, top)) == said(
        f"queue {top} is the parent of {queue}: delete those first, or give them another parent"
    )
    await field.run("a", pods=1, queue=queue)
    await field.submit("b", pods=9, queue=queue)
    await field.waits("b", Code.NEVER_FITS)
    await eventually(partial(field.read_queue, queue), lambda it: (it.status.running, it.status.waiting) == (1, 1), "")
    assert await denial(field.client.delete(QUEUES, queue)) == said(
        f"queue {queue} has 1 gangs running and 1 waiting: set spec.stopped to true so that none starts any more, and "
        "delete it when they have ended or been deleted (kubectl get gangs -A)"
    )
    await field.delete_job("a")
    await field.delete_job("b")
    await eventually(partial(deleted, field.client, queue), bool, "it can be deleted once they are gone")
    assert await field.client.delete(QUEUES, top)


async def deleted(client: Client, queue: str) -> bool:
    """Whether it is gone now; false while it is refused."""
    try:
        await denial(client.delete(QUEUES, queue))
    except AssertionError:
        return True
    return False


async def test_what_was_wrong_before_never_stands_in_the_way(field: Field) -> None:
    """However it came about (two writes at once, a time when we were not asked): each part is mended on its own."""
    await field.nodes(1)
    top = await field.queue("top", deserved={"cpu": "6"})
    async with nobody_asks(field):
        one = await eventually(partial(made, field, "one", top), bool, "it is let in unasked")
        two = await eventually(partial(made, field, "two", top), bool, "and so is another")
    await field.change_queue(two, weight=2)
    assert await denial(field.change_queue(two, deserved={"cpu": "6"})) == said(
        f"queue {top}, cpu: the deserved of its children together, 11 is above deserved 6; "
        "lower the one or raise the other"
    )
    await field.change_queue(two, deserved={"cpu": "3"})  # better, if not good
    await field.run("a", pods=1, queue=await field.queue("good"))  # nor does it stop the others
    await field.change_queue(one, deserved={"cpu": "3"})
    for name in (one, two):  # children first, for whoever clears up after us
        await field.client.delete(QUEUES, name)


async def made(field: Field, name: str, parent: str) -> str:
    with suppress(ApiError):
        return await field.queue(name, parent=parent, deserved={"cpu": "5"})
    return ""


@asynccontextmanager
async def nobody_asks(field: Field) -> AsyncIterator[None]:
    """Without our validating configuration, as if it weren't applied yet."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    whole = json.loads(await field.client.request("GET", f"{path}/{names.WEBHOOK_CONFIGURATION}"))
    for ours in ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"):
        whole["metadata"].pop(ours, None)
    await field.client.request("DELETE", f"{path}/{names.WEBHOOK_CONFIGURATION}")
    try:
        yield
    finally:
        await field.client.request("POST", path, body=whole)
        await field.startgate.wait_effective()


async def test_each_write_is_on_record_with_its_user_the_old_and_the_new(field: Field) -> None:
    name = f"theirs-{field.namespace}"
    async with acting_as(field, "quinn", roles=(), everywhere=("startgate-queue-admin",)) as quinn:
        body = {"apiVersion": names.API_VERSION, "kind": "Queue", "metadata": {"name": name}}
        await quinn.create(QUEUES, {**body, "spec": {"capability": {"cpu": "4"}}})
        await quinn.patch(QUEUES, name, {"spec": {"capability": {"cpu": "8"}}}, dry_run=True)
        await quinn.patch(QUEUES, name, {"spec": {"capability": {"cpu": "6"}}})
        await denial(quinn.patch(QUEUES, name, {"spec": {"parent": f"none-{name}"}}))
        await quinn.delete(QUEUES, name)
    lines = records(field.startgate.webhook, queue=name)
    assert {(line.user, line.stage) for line in lines} == {(user_name(field, "quinn"), Stage.VERDICT)}

    def capability(raw: Any) -> Any:
        return json.loads(bytes(raw))["capability"]["cpu"] if raw else None

    assert [(line.decision, capability(line.old), capability(line.new)) for line in lines] == [
        (Decision.QUEUE_CREATED, None, "4"),
        (Decision.QUEUE_UPDATED, "4", "6"),
        (Decision.REFUSE, "6", "6"),
        (Decision.QUEUE_DELETED, "6", None),
    ]
    refused = lines[2]
    assert (refused.reason, refused.message) == (
        "NoSuchParent",
        f"there is no queue none-{name} to be the parent: create it first, or leave spec.parent out",
    )


async def test_a_user_without_the_right_does_not_get_that_far(field: Field) -> None:
    queue = await field.queue()
    async with acting_as(field, "ann", roles=("edit",)) as ann:
        refused = await denial(ann.patch(QUEUES, queue, {"spec": {"weight": 9}}))
    assert "cannot patch resource" in refused
    assert [line.user for line in records(field.startgate.webhook, queue=queue)] == ["admin"]
