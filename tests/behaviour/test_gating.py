"""Gating: what a user writes, and how it is stored. Each pod of a labelled Job is born behind our gate."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import pytest
import yaml

from localcluster.deploy import kubectl
from startgate.audit.record import Decision
from startgate.kube.kinds import GANGS, JOBS, PODS, Kind
from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.objects import Namespace
from startgate.model.reasons import Code
from tests.behaviour.asking import denial, listed, records, stored
from tests.behaviour.kit import Field, Manifest, eventually, job_of, pod_spec

GATE: Final = {"name": names.GATE}
CRON_JOBS: Final = Kind("batch", "v1", "cronjobs", "CronJob", True, Namespace)
DEPLOYMENTS: Final = Kind("apps", "v1", "deployments", "Deployment", True, Namespace)
POLICIES: Final = "admissionregistration.k8s.io/v1"


async def stopped(field: Field) -> str:
    """A queue that takes Jobs and releases none, so that what waits can be looked at in peace."""
    return await field.queue(stopped=True)


def template(job: Manifest) -> Any:
    return job["spec"]["template"]


def gates(pod: Manifest) -> list[str]:
    return [gate["name"] for gate in pod["spec"].get("schedulingGates", ())]


async def pods_of(field: Field, count: int) -> list[Manifest]:
    """All pods of the namespace, once there are so many."""
    found: list[Manifest] = await eventually(
        lambda: listed(field, PODS), lambda pods: len(pods) == count, f"{count} pods are made"
    )
    return found


async def test_a_labelled_job_has_label_and_gate_in_its_template_and_on_each_pod(field: Field) -> None:
    queue = await stopped(field)
    await field.submit("a", pods=3, minimum=2, queue=queue)
    ours = {names.QUEUE: queue, names.MIN_AVAILABLE: "2"}
    held = template(await stored(field, JOBS, "a"))
    assert held["metadata"]["labels"].items() >= ours.items()
    assert held["spec"]["schedulingGates"] == [GATE]
    for pod in await pods_of(field, 3):
        assert pod["metadata"]["labels"].items() >= ours.items()
        assert gates(pod) == [names.GATE]
    gang = await field.waits("a", Code.QUEUE_STOPPED)
    assert (gang.spec.queue, gang.spec.min_available, gang.spec.pods) == (queue, 2, 3)
    assert not field.bound(), "gated pods are on no node"


async def test_beside_it_an_unlabelled_job_is_as_its_user_wrote_it(field: Field) -> None:
    await field.nodes(1)
    await field.submit("a", pods=1, queue=await stopped(field))
    await field.submit("plain", pods=2)
    await field.runs("plain", 2)
    held = await stored(field, JOBS, "plain")
    assert names.QUEUE not in template(held)["metadata"]["labels"]
    assert "schedulingGates" not in template(held)["spec"]
    assert all(not gates(pod) for pod in await listed(field, PODS) if pod["metadata"]["name"].startswith("plain-"))
    assert len(field.gated("a")) == 1


async def test_a_later_label_is_let_in_and_a_wrong_one_is_not(field: Field) -> None:
    await field.nodes(1)
    queue = await field.queue()
    await field.submit("a", pods=1)
    await field.runs("a", 1)
    said = await denial(field.change_job("a", {"metadata": {"labels": {names.QUEUE: "nowhere-at-all"}}}))
    assert "there is no queue nowhere-at-all; create it, or change the label startgate.dev/queue" in said
    assert names.QUEUE not in (await stored(field, JOBS, "a"))["metadata"].get("labels", {})
    await field.change_job("a", {"metadata": {"labels": {names.QUEUE: queue}}})
    assert (await stored(field, JOBS, "a"))["metadata"]["labels"][names.QUEUE] == queue


async def test_a_suspended_job_gates_the_pods_that_it_makes_once_resumed(field: Field) -> None:
    queue = await stopped(field)
    await field.submit("a", pods=2, queue=queue, suspend=True)
    held = await stored(field, JOBS, "a")
    assert template(held)["spec"]["schedulingGates"] == [GATE]
    assert names.PARKED not in held["metadata"].get("annotations", {}), "suspended by its user, not by us"
    await field.waits("a", Code.SUSPENDED)
    await field.change_job("a", {"spec": {"suspend": False}})
    assert [gates(pod) for pod in await pods_of(field, 2)] == [[names.GATE]] * 2


async def test_the_jobs_of_a_cron_job_are_gated(field: Field) -> None:
    queue = await stopped(field)
    job = job_of("x", pods=2, queue=queue)
    made = {"metadata": {"labels": job["metadata"]["labels"]}, "spec": job["spec"]}
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly"},
        "spec": {"schedule": "* * * * *", "jobTemplate": made},
    }
    await field.client.create(CRON_JOBS, cron, field.namespace)
    # A run that was missed is made up for at once: nobody waits for the full minute.
    missed = (datetime.now(UTC) - timedelta(seconds=90)).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"status": {"lastScheduleTime": missed}}
    await field.client.patch(CRON_JOBS, "nightly", status, field.namespace, subresource="status")
    for pod in await pods_of(field, 2):
        assert gates(pod) == [names.GATE]
        assert pod["metadata"]["labels"][names.QUEUE] == queue
    # Its schedule must not go on to make more.
    await field.client.patch(CRON_JOBS, "nightly", {"spec": {"suspend": True}}, field.namespace)
    (job,) = await listed(field, JOBS)
    assert job["metadata"]["ownerReferences"][0]["kind"] == "CronJob"
    await field.waits(job["metadata"]["name"], Code.QUEUE_STOPPED)
    await field.client.delete(CRON_JOBS, "nightly", field.namespace)


async def test_a_generated_name(field: Field) -> None:
    queue = await stopped(field)
    made = await field.submit("many-", pods=1, queue=queue)
    name = made.metadata.name
    assert name.startswith("many-") and name != "many-"
    assert template(await stored(field, JOBS, name))["spec"]["schedulingGates"] == [GATE]
    gang = await field.waits(name, Code.QUEUE_STOPPED)
    assert gang.metadata.name == f"job-{name}"
    assert [each.job for each in records(field.startgate.webhook, namespace=field.namespace)] == ["many-*"]


async def test_a_dry_run_has_the_same_answer_and_leaves_no_line(field: Field) -> None:
    queue = await stopped(field)
    path, job = JOBS.path(field.namespace), job_of("a", pods=2, queue=queue, minimum=1, deadline=60)
    dry = await kubectl_json(field, "create", job, "--dry-run=server")
    wrong = job_of("b", queue="nowhere-at-all")
    refused = await denial(field.client.request("POST", path, query={"dryRun": "All"}, body=wrong))
    assert records(field.startgate.webhook, namespace=field.namespace) == []
    wet = await kubectl_json(field, "create", job)
    assert refused == await denial(field.client.request("POST", path, body=wrong))
    for part in ("labels", "annotations"):
        assert dry["metadata"].get(part) == wet["metadata"].get(part)
    for one in (dry, wet):  # the Job's own uid is in its selector
        one["spec"].pop("selector")
        for label in [key for key in template(one)["metadata"]["labels"] if key.endswith("controller-uid")]:
            template(one)["metadata"]["labels"].pop(label)
    assert dry["spec"] == wet["spec"]
    assert wet["spec"]["suspend"] and template(wet)["spec"]["schedulingGates"] == [GATE]
    lines = records(field.startgate.webhook, namespace=field.namespace)
    assert [(each.decision, each.job) for each in lines] == [(Decision.PARK, "a"), (Decision.REFUSE, "b")]


async def kubectl_json(field: Field, verb: str, manifest: Manifest, *arguments: str) -> Manifest:
    answer: Manifest = yaml.safe_load(
        await kubectl(
            field.cluster,
            verb,
            f"--namespace={field.namespace}",
            "--filename=-",
            "--output=yaml",
            *arguments,
            stdin=yaml.safe_dump(manifest),
        )
    )
    return answer


async def test_foreign_gates_are_left_alone(field: Field) -> None:
    foreign = "example.com/licences"
    await field.nodes(1)
    queue = await field.queue()
    await field.submit("a", pods=2, queue=queue, gates=(foreign,))
    assert gates(template(await stored(field, JOBS, "a"))) == [foreign, names.GATE]
    await field.waits("a", Code.FOREIGN_GATE)
    assert [gates(pod) for pod in await pods_of(field, 2)] == [[foreign]] * 2


async def test_applied_twice_is_applied_once(field: Field) -> None:
    job = job_of("a", pods=2, queue=await stopped(field))
    for part in (job, template(job)):
        part["metadata"].pop("annotations")  # empty: kubectl would see a change in it each time
    manifest = yaml.safe_dump(job)
    apply = ("apply", f"--namespace={field.namespace}", "--filename=-")
    assert "created" in await kubectl(field.cluster, *apply, stdin=manifest)
    await field.waits("a", Code.QUEUE_STOPPED)
    before = await stored(field, JOBS, "a")
    assert "unchanged" in await kubectl(field.cluster, *apply, stdin=manifest)
    assert await stored(field, JOBS, "a") == before
    server_side = (*apply, "--server-side", "--force-conflicts")
    await kubectl(field.cluster, *server_side, stdin=manifest)
    await kubectl(field.cluster, *server_side, stdin=manifest)
    after = await stored(field, JOBS, "a")
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


async def test_asked_again_in_one_admission_it_changes_nothing_more(field: Field) -> None:
    """Another's policy changes the Job after us, so that the API server asks us a second time (reinvocation)."""
    name = f"counts-{field.namespace}"
    count = "string(int(object.metadata.?annotations[?'example.com/passes'].orValue('0')) + 1)"
    selector = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": field.namespace}}}
    rules = [{"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"], "operations": ["CREATE"]}]
    mutation = {
        "patchType": "ApplyConfiguration",
        "applyConfiguration": {
            "expression": f"Object{{metadata: Object.metadata{{annotations: {{'example.com/passes': {count}}}}}}}"
        },
    }
    policy = {
        "apiVersion": POLICIES,
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "reinvocationPolicy": "IfNeeded",
            "matchConstraints": {"resourceRules": rules, **selector},
            "mutations": [mutation],
        },
    }
    binding = {
        "apiVersion": POLICIES,
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name},
    }
    await field.put(policy, binding)
    probe = job_of("probe")

    async def passes() -> Any:
        answer = await field.client.create(JOBS, probe, field.namespace, dry_run=True)
        return answer.metadata.annotations.get("example.com/passes")

    await eventually(passes, bool, "the policy is in force")
    await field.submit("a", pods=1, queue=await stopped(field), deadline=60)
    held = await stored(field, JOBS, "a")
    assert held["metadata"]["annotations"] == {"example.com/passes": "2", names.PARKED: "DeadlineParked"}
    assert template(held)["spec"]["schedulingGates"] == [GATE]
    asked = records(field.startgate.webhook, namespace=field.namespace)
    assert [each.decision for each in asked] == [Decision.PARK] * 2, "asked twice, the same said twice"


async def test_pods_of_a_deployment_whose_template_alone_is_labelled(field: Field) -> None:
    await field.nodes(1)
    queue = await stopped(field)
    labels = {"app": "server", names.QUEUE: queue}
    spec = pod_spec(restartPolicy="Always")
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "server"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "server"}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    await field.put(deployment)
    made = await pods_of(field, 2)
    assert [gates(pod) for pod in made] == [[names.GATE]] * 2
    owner = made[0]["metadata"]["ownerReferences"][0]
    assert owner["kind"] == "ReplicaSet"

    gang = partial(stored, field, GANGS, f"replicaset-{owner['name']}")
    await eventually(gang, lambda it: it and it["status"].get("reason") == Code.QUEUE_STOPPED, "its gang waits")
    await field.change_queue(queue, stopped=False)
    await field.until(lambda: len(field.bound()) == 2, "both run once the queue lets them")
    await eventually(gang, lambda it: it and it["status"].get("phase") == Phase.RUNNING, "its gang says so")
    await field.take_away(deployment)


async def test_a_labelled_bare_pod(field: Field) -> None:
    await field.nodes(1)
    queue = await stopped(field)
    await field.pod("alone", labels={names.QUEUE: queue})
    assert gates(await stored(field, PODS, "alone")) == [names.GATE]
    await field.change_queue(queue, stopped=False)
    await field.until(lambda: len(field.bound()) == 1, "it runs once the queue lets it")
    assert not gates(await stored(field, PODS, "alone"))


async def test_each_answer_is_in_the_api_servers_own_audit_log(field: Field) -> None:
    queue = await stopped(field)
    await field.submit("a", pods=1, queue=queue)
    await field.submit("b", pods=1, queue=queue, deadline=60)
    await denial(field.submit("c", pods=1, queue=queue, minimum=2))
    await field.change_job("a", {"metadata": {"labels": {names.QUEUE: await field.queue("other")}}})
    await field.pod("alone", labels={names.QUEUE: queue})
    ids = {each.id: each for each in records(field.startgate.webhook, namespace=field.namespace)}

    def said(name: str, verb: str, which: str) -> list[dict[str, str]]:
        key = f"{which}.startgate.dev/"
        return [
            {note.removeprefix(key): text for note, text in write.note.items() if note.startswith(key)}
            for write in field.writes(user="", what=which)
            if write.name == name and write.verb == verb and any(note.startswith(key) for note in write.note)
        ]

    def answers() -> list[dict[str, str]]:
        return [
            *said("a", "create", "jobs"),
            *said("b", "create", "jobs"),
            *said("c", "create", "jobs"),
            *said("a", "patch", "jobs"),
            *said("alone", "create", "pods"),
        ]

    await field.until(lambda: len(answers()) == 5, "the log has all five")
    found = answers()
    for answer in found:
        line = ids.pop(answer.pop("id"))
        assert line.decision == answer["decision"], "the same id, the same decision in both logs"
    assert found == [
        {"decision": "Gate", "queue": queue},
        {"decision": "Park", "queue": queue, "reason": "DeadlineParked"},
        {"decision": "Refuse", "queue": queue, "reason": "MinimumTooHigh"},
        {"decision": "Change", "queue": f"other-{field.namespace}"},
        {"decision": "Gate", "queue": queue},
    ]


async def test_a_job_with_a_deadline_is_parked_at_creation(field: Field) -> None:
    """The deadline doesn't run while it waits; its pods are made, gated, when its turn has come."""
    await field.nodes(1)
    queue = await stopped(field)
    await field.submit("a", pods=2, queue=queue, deadline=600)
    held = await stored(field, JOBS, "a")
    assert held["spec"]["suspend"] is True
    assert held["metadata"]["annotations"][names.PARKED] == "DeadlineParked"
    await field.waits("a", Code.QUEUE_STOPPED)
    assert "startTime" not in (await stored(field, JOBS, "a"))["status"], "the deadline counts from startTime"
    assert field.pods() == []
    await field.change_queue(queue, stopped=False)
    await field.phase("a", Phase.RUNNING)
    held = await stored(field, JOBS, "a")
    assert held["spec"]["suspend"] is False
    assert names.PARKED not in held["metadata"].get("annotations", {})
    born = [change.new for change in field.pod_changes if change.old is None and change.new]
    assert len(born) == 2
    assert all(pod.gated for pod in born)


@pytest.mark.parametrize("way", ["patch", "put"])
async def test_resumed_by_its_user_it_stays_parked(field: Field, way: str) -> None:
    await field.submit("a", pods=1, queue=await stopped(field), deadline=600)
    if way == "patch":
        await field.change_job("a", {"spec": {"suspend": False}})
    else:
        whole = await stored(field, JOBS, "a")
        whole["spec"]["suspend"] = False
        whole["metadata"].pop("annotations")
        whole["metadata"].pop("resourceVersion")
        await field.client.request("PUT", JOBS.path(field.namespace, "a"), body=whole)
    held = await stored(field, JOBS, "a")
    assert held["spec"]["suspend"] is True
    assert held["metadata"]["annotations"][names.PARKED] == "DeadlineParked"
