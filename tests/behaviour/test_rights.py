"""Rights: our two accounts may do what they do, and no more. A verb that nothing uses fails a test; so does one that
nothing would miss.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import pytest

from startgate.audit.record import DONE
from startgate.kube.errors import ApiError
from startgate.kube.kinds import GANGS, JOBS, SECRETS, Kind
from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.reasons import Code
from tests.behaviour.asking import CLUSTER_ROLES, ROLES, account, denial, may, records, stored
from tests.behaviour.kit import IGNORES_DISRUPTION, Field, Manifest, eventually

Right = tuple[str, str, str]
"""(verb, group, resource or resource/subresource)."""

CONTROLLER: Final = names.CONTROLLER_ACCOUNT
WEBHOOK: Final = names.WEBHOOK_ACCOUNT
RELEASE: Final = (names.RELEASE_VERB, names.GROUP, "gangs")
"""No request has this verb: the gate policy asks for it. Taking it away is tested below."""

LIFTING: Final = "lifting the gate of pod a-"


def path_of(kind: Kind[Any], name: str) -> str:
    return kind.path(names.SYSTEM_NAMESPACE if kind.namespaced else "", name)


def each_right(rules: list[Manifest]) -> Iterator[Right]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield verb, group, resource


async def granted(field: Field, who: str) -> set[Right]:
    """All that the account's roles give it, as they are in force in the cluster."""
    found: set[Right] = set()
    for kind in (CLUSTER_ROLES, ROLES):
        role = json.loads(await field.client.request("GET", path_of(kind, who)))
        found |= set(each_right(role["rules"]))
    return found


async def rules_bound_to(field: Field, who: str) -> set[tuple[str, str]]:
    """(kind, name) of each role that is bound to the account, wherever."""
    found: set[tuple[str, str]] = set()
    for plural in ("rolebindings", "clusterrolebindings"):
        page = json.loads(await field.client.request("GET", f"/apis/rbac.authorization.k8s.io/v1/{plural}"))
        for binding in page["items"]:
            if any(each["kind"] == "ServiceAccount" and each["name"] == who for each in binding.get("subjects", ())):
                found.add((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
    return found


def asked(field: Field, who: str) -> Iterator[tuple[Right, int, str]]:
    """What the account has asked of the API server since the cluster began: the right, the answer, the namespace."""
    user = account(who)
    for line in field.cluster.audit_log.read_bytes().splitlines():
        if user.encode() not in line:
            continue
        entry = json.loads(line)
        thing = entry.get("objectRef")
        if entry["user"]["username"] == user and thing:
            what = "/".join(filter(None, (thing["resource"], thing.get("subresource"))))
            code = entry.get("responseStatus", {}).get("code", 0)
            yield (entry["verb"], thing.get("apiGroup", ""), what), code, thing.get("namespace", "")


def used(field: Field, who: str) -> set[Right]:
    return {right for right, code, _ in asked(field, who) if code != 403}


async def story(field: Field) -> None:
    """Everything that Startgate does, once."""
    await field.nodes(2)
    queue = await field.queue()
    await field.run("loose", pods=2, queue=queue)
    await field.run("tight", pods=5, queue=queue)  # room is reserved: pods/status
    await field.submit("parked", pods=1, queue=queue, deadline=600)
    await field.submit("waiting", pods=2, queue=queue)  # an Event says why
    await field.waits("waiting", Code.CLUSTER_IN_USE)
    less = {"metadata": {"labels": {names.MIN_AVAILABLE: "1"}}}
    await field.change_job("waiting", less)  # the webhook reads its Gang
    await field.submit("later", pods=1, cpu="5")  # no node is as large: none of its pods is bound when the label comes
    await field.change_job("later", {"metadata": {"labels": {names.QUEUE: queue}}})
    await field.phase("later", Phase.PARKED)  # taken up: parked, its template labelled
    await denial(field.submit("refused", queue="no-such-queue"))  # read afresh
    await denial(field.queue("refused", parent="no-such-queue"))
    await stale_gang(field, "stale")
    await field.submit("stale", pods=2, queue=queue)
    await field.waits("stale", Code.CLUSTER_IN_USE)
    await field.delete_job("tight")
    for job in ("parked", "waiting", "stale"):
        await field.phase(job, Phase.RUNNING)
    held = {"annotations": {names.START_TIMEOUT: "1s"}, "gates": ("example.com/x",)}
    await field.submit("back", pods=1, queue=queue, **held)
    await field.phase("back", Phase.PARKED)
    await eventually(partial(field.read_queue, queue), lambda it: it.status.running >= 3, "its status is written")
    await field.clear()
    await two_tenants(field)
    await field.phase("claimant", Phase.RUNNING)  # pods beyond the other's minimum were evicted for it


async def two_tenants(field: Field) -> None:
    """One has all eight cores, four of them beyond its gang's minimum; the other asks for the half that it deserves."""
    half = {"deserved": {"cpu": "4"}}
    mine, theirs = await field.queue("mine", **half), await field.queue("theirs", **half)
    await field.run("elastic", pods=8, minimum=4, queue=theirs, spec=IGNORES_DISRUPTION)
    await field.runs("elastic", 8)
    await field.submit("claimant", pods=4, queue=mine)


async def stale_gang(field: Field, job: str) -> None:
    """A Gang of this Job's name that is not of this Job."""
    gang = {
        "apiVersion": names.API_VERSION,
        "kind": "Gang",
        "metadata": {"name": names.gang_of_job(job)},
        "spec": {"queue": "old", "minAvailable": 1, "pods": 1},
    }
    await field.client.create(GANGS, gang, field.namespace)


async def spoil_certificate(field: Field) -> None:
    data = {"data": {"tls.crt": b"garbage"}}
    await field.client.patch(SECRETS, names.CERTIFICATE_SECRET, data, names.SYSTEM_NAMESPACE)


async def restart_webhook(field: Field) -> None:
    await field.startgate.webhook.kill()
    await field.startgate.webhook.start()


async def test_no_right_is_there_that_nothing_uses_and_none_is_missing(field: Field) -> None:
    since = {who: len(list(asked(field, who))) for who in (CONTROLLER, WEBHOOK)}
    await spoil_certificate(field)
    await restart_webhook(field)
    await field.startgate.webhook.wait_ready()
    await field.startgate.wait_effective()
    await story(field)
    for who in (CONTROLLER, WEBHOOK):
        assert await rules_bound_to(field, who) == {("ClusterRole", who), ("Role", who)}
        idle = await granted(field, who) - {RELEASE} - await asyncio.to_thread(used, field, who)
        assert idle == set(), f"{who} has rights that nothing uses"
        refused = [(right, where) for right, code, where in [*asked(field, who)][since[who] :] if code == 403]
        assert refused == [], f"{who} lacks rights"


@asynccontextmanager
async def without(field: Field, who: str, right: Right) -> AsyncIterator[None]:
    """One right of the account is taken away, and given back."""
    verb, group, resource = right
    before: list[tuple[str, list[Manifest]]] = []
    namespace = ""
    for kind in (CLUSTER_ROLES, ROLES):
        path = path_of(kind, who)
        rules = json.loads(await field.client.request("GET", path))["rules"]
        if right in set(each_right(rules)):
            namespace = names.SYSTEM_NAMESPACE if kind.namespaced else ""
            before.append((path, rules))
            await set_rules(field, path, [rest for rule in rules for rest in less(rule, verb, group, resource)])
    assert len(before) == 1, f"{who} has {right} by one role"
    about = [rule for rule in before[0][1] if resource in rule["resources"]]
    name = next((name for rule in about for name in rule.get("resourceNames", ())), "")
    allowed = partial(may, field, account(who), right, namespace=namespace or field.namespace, name=name)
    try:
        await eventually(allowed, lambda it: not it, f"{who} may not {verb} {resource} any more")
        yield
    finally:
        for path, rules in before:
            await set_rules(field, path, rules)
        await eventually(allowed, bool, f"{who} may {verb} {resource} again")


def less(rule: Manifest, verb: str, group: str, resource: str) -> list[Manifest]:
    """The rule without this right: one rule, or two."""
    if (verb, group, resource) not in set(each_right([rule])):
        return [rule]
    others = [each for each in rule["resources"] if each != resource]
    verbs = [each for each in rule["verbs"] if each != verb]
    return [
        *([{**rule, "resources": others}] if others else []),
        *([{**rule, "resources": [resource], "verbs": verbs}] if verbs else []),
    ]


async def set_rules(field: Field, path: str, rules: list[Manifest]) -> None:
    body = {"rules": rules}
    await field.client.request("PATCH", path, body=body, content_type="application/merge-patch+json")


def refusals(field: Field, who: str, right: Right) -> int:
    """How often the account was refused this in the field's namespace."""
    return sum(1 for it in asked(field, who) if it == (right, 403, field.namespace))


@pytest.mark.parametrize(
    ("right", "code", "act", "words"),
    [
        (("patch", "", "pods"), Code.RELEASE_REFUSED, LIFTING, 'cannot patch resource "pods"'),
        (RELEASE, Code.RELEASE_REFUSED, LIFTING, "by hand takes the verb release on gangs.startgate.dev"),
        (("patch", "", "pods/status"), Code.WRITE_REFUSED, "reserving room", 'cannot patch resource "pods/status"'),
    ],
)
async def test_without_it_no_gate_is_opened_and_the_gang_says_why(
    field: Field, right: Right, code: Code, act: str, words: str
) -> None:
    await field.nodes(1)
    queue = await field.queue(stopped=True)
    await field.submit("a", pods=3, queue=queue)  # of four places: tight, so that room is reserved
    await field.waits("a", Code.QUEUE_STOPPED)
    async with without(field, CONTROLLER, right):
        await field.change_queue(queue, stopped=False)
        gang = await field.waits("a", code)
        assert gang.status.message.startswith(act)
        assert words in gang.status.message
        assert gang.status.message.endswith("; trying again")
        assert len(field.gated("a")) == 3
        assert field.bound() == []
        await field.until(lambda: {*outcomes(field)} - {DONE}, "the intent has its effect in the audit log")
        for outcome in {*outcomes(field)} - {DONE}:
            assert outcome.startswith("failed: ")
            assert words in outcome
    await field.phase("a", Phase.RUNNING)
    await field.until(lambda: outcomes(field)[-1] == DONE, "then it is done")


def outcomes(field: Field) -> list[str]:
    """Of what the controller has tried in this namespace, by its audit log."""
    return [line.outcome for line in records(field.startgate.controller, namespace=field.namespace) if line.outcome]


@pytest.mark.parametrize("verb", ["create", "patch"])
async def test_without_a_record_no_gate_is_opened(field: Field, verb: str) -> None:
    """The admission is in the Gang before the first gate opens; what can't be recorded isn't done."""
    await field.nodes(1)
    queue = await field.queue(stopped=True)
    right = (verb, names.GROUP, "gangs")
    if verb == "patch":
        await field.submit("a", pods=2, queue=queue)
        await field.waits("a", Code.QUEUE_STOPPED)
    async with without(field, CONTROLLER, right):
        if verb == "create":
            await field.submit("a", pods=2, queue=queue)
        await field.change_queue(queue, stopped=False)
        await field.until(lambda: len(field.gated("a")) == 2, "its pods are made")
        await field.until(lambda: refusals(field, CONTROLLER, right) > 1, "it is tried, and tried again")
        assert len(field.gated("a")) == 2
    await field.phase("a", Phase.RUNNING)
    assert len(field.opened("a")) == 2


async def test_without_patch_on_jobs_what_is_parked_stays_parked(field: Field) -> None:
    await field.nodes(1)
    queue = await field.queue(stopped=True)
    await field.submit("a", pods=1, queue=queue, deadline=600)
    await field.waits("a", Code.QUEUE_STOPPED)
    async with without(field, CONTROLLER, ("patch", "batch", "jobs")):
        await field.change_queue(queue, stopped=False)
        gang = await field.waits("a", Code.WRITE_REFUSED)
        assert gang.status.message.startswith("resuming its Job was refused: ")
        assert 'cannot patch resource "jobs"' in gang.status.message
        assert (await stored(field, JOBS, "a"))["spec"]["suspend"] is True
    await field.phase("a", Phase.RUNNING)


async def test_without_create_on_evictions_pods_beyond_the_minimum_stay(field: Field) -> None:
    await field.nodes(2)
    async with without(field, CONTROLLER, ("create", "", "pods/eviction")):
        await two_tenants(field)
        gang = await field.waits("elastic", Code.WRITE_REFUSED)
        assert gang.status.message.startswith("evicting pods beyond its minimum was refused: ")
        assert 'cannot create resource "pods/eviction"' in gang.status.message
        assert len(field.bound("elastic")) == 8
    await field.phase("claimant", Phase.RUNNING)
    await field.runs("elastic", 4)


async def test_without_delete_on_gangs_an_old_one_stands_in_the_way(field: Field) -> None:
    await field.nodes(1)
    queue = await field.queue()
    right = ("delete", names.GROUP, "gangs")
    async with without(field, CONTROLLER, right):
        await stale_gang(field, "a")
        await field.submit("a", pods=2, queue=queue)
        await field.until(lambda: refusals(field, CONTROLLER, right) > 0, "it is tried")
        await field.until(lambda: len(field.gated("a")) == 2, "its pods are made")
        assert (await stored(field, GANGS, "job-a"))["spec"]["queue"] == "old"
    await field.phase("a", Phase.RUNNING)


async def test_without_the_queues_status_gangs_start_all_the_same(field: Field) -> None:
    await field.nodes(1)
    right = ("patch", names.GROUP, "queues/status")
    async with without(field, CONTROLLER, right):
        queue = await field.queue()
        await field.run("a", pods=2, queue=queue)
        assert (await field.read_queue(queue)).status.allocated == {}
    await field.submit("b", pods=1, queue=queue)
    await eventually(partial(field.read_queue, queue), lambda it: it.status.allocated.get("cpu") == "3", "told")


async def test_the_webhook_without_its_reads_refuses_with_a_sentence(field: Field) -> None:
    queue = await field.queue(stopped=True)
    await field.submit("a", pods=2, queue=queue)
    await field.waits("a", Code.QUEUE_STOPPED)

    def label(value: str) -> Manifest:
        return {"metadata": {"labels": {names.MIN_AVAILABLE: value}}}

    sentence = "Startgate can't read from the API server what it needs to decide on this; try again in a moment"
    async with without(field, WEBHOOK, ("get", names.GROUP, "gangs")):
        assert sentence in await denial(field.change_job("a", label("1")))
    await field.change_job("a", label("1"))
    for right in (
        ("get", names.GROUP, "queues"),
        ("get", "", "namespaces"),
        ("list", "scheduling.k8s.io", "priorityclasses"),
    ):
        async with without(field, WEBHOOK, right):
            assert sentence in await denial(field.submit("b", queue="not-in-any-cache"))


async def test_the_webhook_without_its_secret_takes_no_reviews(field: Field) -> None:
    """It serves only what stands there; what it can't make anew, it says, and tries again."""
    async with without(field, WEBHOOK, ("patch", "", "secrets")):
        await spoil_certificate(field)
        await restart_webhook(field)
        await field.until(lambda: 'cannot patch resource \\"secrets\\"' in field.startgate.webhook.tail(), "it says so")
        with pytest.raises(ApiError, match="failed calling webhook"):
            await field.submit("a", queue="any")
    await field.startgate.webhook.wait_ready()
    await field.startgate.wait_effective()
