"""What an admin applies: it is accepted, it lets each do what it must and no more, and it meets nobody else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster import tools
from localcluster.cluster import Cluster
from localcluster.deploy import Startgate, kubectl, render
from startgate.kube.client import Client
from startgate.kube.kinds import GANGS, JOBS, PODS, QUEUES
from startgate.model import names
from startgate.model.reasons import Code
from tests.behaviour.kit import Field, Manifest, eventually, job_of, pod_spec

REPOSITORY = Path(__file__).parents[2]
BASE = REPOSITORY / "manifests" / "base"


async def call(kubeconfig: Path, *arguments: str, stdin: str = "") -> tuple[int, str]:
    """Exit code and all output of kubectl as somebody."""
    process = await asyncio.create_subprocess_exec(
        str(tools.kubectl()),
        f"--kubeconfig={kubeconfig}",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate(stdin.encode())
    assert process.returncode is not None
    return process.returncode, output.decode()


async def person(field: Field, name: str, role: str) -> Path:
    """Somebody with this ClusterRole in the field's namespace."""
    user = f"{name}-{field.namespace}"
    path = await field.cluster.user_kubeconfig(user)
    await kubectl(
        field.cluster, "create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}", "-n", field.namespace
    )
    return path


async def base() -> list[Manifest]:
    process = await asyncio.create_subprocess_exec(
        str(tools.kubectl()), "kustomize", str(BASE), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return [each for each in yaml.safe_load_all(output) if each]


def one(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = (each for each in manifests if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


# --- what the files say ---------------------------------------------------------------------------------------------


async def test_the_overlay_changes_nothing_but_the_way_to_the_webhook() -> None:
    ships, local = await base(), await render()
    assert [each["metadata"]["name"] for each in ships] == [each["metadata"]["name"] for each in local]
    for theirs, ours in zip(ships, local, strict=True):
        if theirs["kind"] == "Service" and theirs["metadata"]["name"] == names.WEBHOOK_SERVICE:
            assert ours["spec"] == {"type": "ExternalName", "externalName": "localhost"}
            continue
        for webhook in theirs.get("webhooks", ()):
            assert webhook["clientConfig"]["service"]["port"] == 443
            webhook["clientConfig"]["service"]["port"] = 9443
        assert theirs == ours


async def test_the_names_are_those_of_the_programs() -> None:
    manifests = await base()
    one(manifests, "Namespace", names.SYSTEM_NAMESPACE)
    for account in (names.CONTROLLER_ACCOUNT, names.WEBHOOK_ACCOUNT):
        one(manifests, "ServiceAccount", account)
    one(manifests, "Service", names.WEBHOOK_SERVICE)
    policy = yaml.safe_dump(one(manifests, "ValidatingAdmissionPolicy", "startgate-gate"))
    assert names.GATE in policy
    assert names.RELEASE_VERB in policy
    mutating = one(manifests, "MutatingWebhookConfiguration", names.WEBHOOK_CONFIGURATION)
    text = yaml.safe_dump(mutating, width=1000)
    for key in (
        names.QUEUE,
        names.MIN_AVAILABLE,
        names.KUEUE_QUEUE,
        names.START_TIMEOUT,
        names.HOLD,
        names.TOPOLOGY,
        names.PREFER_TOPOLOGY,
        names.PARKED,
        names.GATE,
        f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.CONTROLLER_ACCOUNT}",
    ):
        assert key in text, key
    secrets = [
        rule
        for each in manifests
        if each["kind"] == "Role"
        for rule in each["rules"]
        if "secrets" in rule["resources"] and "resourceNames" in rule
    ]
    assert [rule["resourceNames"] for rule in secrets] == [[names.CERTIFICATE_SECRET]]


async def test_webhooks_are_asked_about_labelled_objects_only() -> None:
    manifests = await base()
    mutating = one(manifests, "MutatingWebhookConfiguration", "startgate")
    for webhook in mutating["webhooks"]:
        assert webhook["objectSelector"] == {"matchExpressions": [{"key": names.QUEUE, "operator": "Exists"}]}
    validating = one(manifests, "ValidatingWebhookConfiguration", "startgate")
    (queues,) = validating["webhooks"]
    assert queues["rules"][0]["resources"] == ["queues"]
    for webhook in (*mutating["webhooks"], queues):
        assert webhook["sideEffects"] == "None"
        assert webhook["failurePolicy"] == "Fail"
        assert webhook["timeoutSeconds"] <= 5
        assert "caBundle" not in webhook["clientConfig"]


async def test_no_wildcards_and_secrets_by_name_alone() -> None:
    for role in await base():
        if role["kind"] not in ("Role", "ClusterRole"):
            continue
        for rule in role.get("rules", ()):
            assert not any("*" in each for key in ("verbs", "resources", "apiGroups") for each in rule[key]), role
            if "secrets" in rule["resources"]:
                assert role["kind"] == "Role"
                assert rule["verbs"] == ["create"] or rule["resourceNames"] == [names.CERTIFICATE_SECRET]


def test_what_the_image_locks_is_what_is_tested() -> None:
    def pins(name: str) -> set[str]:
        return {
            line.rstrip(" \\")
            for line in (REPOSITORY / name).read_text().splitlines()
            if "==" in line and "--" not in line
        }

    extra = pins("requirements-image.lock") - pins("requirements.lock")
    assert not extra, f"make lock: {extra}"


# --- what an API server makes of them -------------------------------------------------------------------------------


async def test_what_ships_is_accepted_strictly(startgate: Startgate) -> None:
    code, said = await call(
        startgate.cluster.kubeconfig,
        *("apply", "--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts", "-k", str(BASE)),
    )
    assert code == 0, said
    assert "arning" not in said, said


async def test_the_pods_meet_the_restricted_standard_of_their_namespace(startgate: Startgate) -> None:
    for deployment in await base():
        if deployment["kind"] != "Deployment":
            continue
        template = deployment["spec"]["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "probe", **template["metadata"]},
            "spec": template["spec"],
        }
        code, said = await call(
            startgate.cluster.kubeconfig,
            *("create", "--dry-run=server", "-f", "-", f"-n={names.SYSTEM_NAMESPACE}"),
            stdin=yaml.safe_dump(pod),
        )
        assert code == 0, said
    loose = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "loose"}, "spec": pod_spec()}
    code, said = await call(
        startgate.cluster.kubeconfig,
        *("create", "--dry-run=server", "-f", "-", f"-n={names.SYSTEM_NAMESPACE}"),
        stdin=yaml.safe_dump(loose),
    )
    assert code != 0, "the standard is enforced"
    assert "PodSecurity" in said


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"parent": "bad"}, "can't be its own parent"),
    ({"guarantee": {"cpu": -1}}, "greater than or equal to 0"),
    ({"guarantee": {"cpu": "-1"}}, "should match"),
    ({"guarantee": {"cpu": "1_000"}}, "should match"),
    ({"guarantee": {"cpu": " 5"}}, "should match"),
    ({"guarantee": {"cpu": "NaN"}}, "should match"),
    ({"deserved": {"cpu": 0.5}}, "must be of type"),
    ({"weight": 0}, "greater than or equal to 1"),
    ({"namespaces": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}, "Unsupported value"),
    ({"guarantees": {"cpu": 1}}, "unknown field"),
    # Whoever compares this exactly is busy for good.
    ({"guarantee": {"cpu": "1E999999999"}, "deserved": {"cpu": "1"}}, "should match"),
]


@pytest.mark.parametrize(("spec", "sentence"), REFUSED)
async def test_queues_that_contradict_themselves_are_refused_by_the_schema(
    startgate: Startgate, spec: dict[str, Any], sentence: str
) -> None:
    code, said = await create(startgate.cluster, {"kind": "Queue", "metadata": {"name": "bad"}, "spec": spec})
    assert code == 1, said
    assert sentence in said


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"capability": {"cpu": 64, "nvidia.com/gpu": "16"}, "guarantee": {"cpu": "8", "memory": "1Ti"}},
        {"guarantee": {"cpu": "1000m"}, "deserved": {"cpu": 1}, "capability": {"cpu": "1e0"}},
        {"deserved": {"cpu": "0.5", "memory": ".5Gi"}},
        {"capability": {f"example.com/r{number}": 1 for number in range(64)}},
    ],
)
async def test_queues_that_do_not_are_taken(startgate: Startgate, spec: dict[str, Any]) -> None:
    code, said = await create(startgate.cluster, {"kind": "Queue", "metadata": {"name": "good"}, "spec": spec})
    assert code == 0, said


async def test_a_queue_that_no_label_could_name_is_refused(startgate: Startgate) -> None:
    code, said = await create(startgate.cluster, {"kind": "Queue", "metadata": {"name": "a" * 64}, "spec": {}})
    assert code == 1
    assert "63" in said


async def create(cluster: Cluster, manifest: Manifest) -> tuple[int, str]:
    body = {"apiVersion": names.API_VERSION, **manifest}
    return await call(cluster.kubeconfig, "create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(body))


async def test_columns_and_waiting(field: Field) -> None:
    """What `kubectl get gangs` shows, and `kubectl wait` on a condition and on a phase that is the default."""
    await field.nodes(1)
    queue = await field.queue(stopped=True, capability={"cpu": 4})
    await field.submit("a", pods=2, queue=queue)
    await field.waits("a", Code.QUEUE_STOPPED)  # the controller may see the Job before its queue
    kubeconfig = field.cluster.kubeconfig
    code, said = await call(kubeconfig, "get", "gg", "-n", field.namespace)
    header, row = said.splitlines()
    assert header.split() == ["NAME", "QUEUE", "PHASE", "PODS", "REASON", "AGE"]
    assert row.split()[:-1] == ["job-a", queue, "Waiting", "0/2", "QueueStopped"]
    code, said = await call(kubeconfig, "get", "gq", queue, "-o", "wide")
    assert said.splitlines()[0].split() == [
        *("NAME", "PARENT", "WAITING", "RUNNING", "STOPPED", "CAPABILITY", "ALLOCATED", "AGE")
    ]
    assert '{"cpu":4}' in said
    code, said = await call(kubeconfig, "get", "startgate", "-n", field.namespace)
    assert code == 0
    assert "gang.startgate.dev/job-a" in said
    wait = ("wait", "gang/job-a", "-n", field.namespace, "--timeout=30s")
    code, said = await call(kubeconfig, *wait, "--for=jsonpath={.status.phase}=Waiting")
    assert code == 0, said
    waiting = asyncio.create_task(call(kubeconfig, *wait, "--for=condition=Released"))
    await field.change_queue(queue, stopped=False)
    code, said = await waiting
    assert code == 0, said


# --- who may do what ------------------------------------------------------------------------------------------------


async def a_gated_pod(field: Field) -> str:
    queue = await field.queue(stopped=True)
    await field.submit("a", pods=1, queue=queue)
    await field.until(lambda: field.gated("a"), "its pod is gated")
    return field.gated("a")[0].name


LIFT = json.dumps({"spec": {"schedulingGates": [{"name": names.GATE, "$patch": "delete"}]}})


@pytest.mark.parametrize("role", ["edit", "admin"])
async def test_an_ordinary_user_cannot_lift_our_gate(field: Field, role: str) -> None:
    """In each of the ways to change a pod; other changes are theirs as ever, and so is deleting it."""
    pod = await a_gated_pod(field)
    user = await person(field, "ann", role)
    where = ("pod", pod, "-n", field.namespace)
    for change in (
        ("patch", *where, "--type=strategic", "-p", LIFT),
        ("patch", *where, "--type=merge", "-p", '{"spec":{"schedulingGates":null}}'),
        ("patch", *where, "--type=json", "-p", '[{"op":"remove","path":"/spec/schedulingGates"}]'),
    ):
        code, said = await call(user, *change)
        assert code == 1, said
        assert "is lifted by Startgate when the whole gang may start" in said
        assert f"ann-{field.namespace} does not have" in said
        assert "startgate-break-glass" in said
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod},
        "target": {"kind": "Node", "name": "n1"},
    }
    path = PODS.path(field.namespace, pod, "binding")
    code, said = await call(field.cluster.kubeconfig, "create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
    assert code == 1, said
    code, said = await call(user, "label", *where, "colour=blue")
    assert code == 0, said
    code, said = await call(user, "delete", *where, "--wait=false")
    assert code == 0, said


async def test_a_foreign_gate_is_its_owners(field: Field) -> None:
    """Lifting somebody else's gate from a pod of ours, and any gate from a pod that is not ours, is not our matter."""
    queue = await field.queue(stopped=True)
    await field.pod("ours", labels={names.QUEUE: queue}, gates=("example.com/theirs",))
    await field.pod("theirs", gates=("example.com/theirs",))
    user = await person(field, "bob", "edit")
    lift = json.dumps({"spec": {"schedulingGates": [{"name": "example.com/theirs", "$patch": "delete"}]}})
    for pod in ("ours", "theirs"):
        code, said = await call(user, "patch", "pod", pod, "-n", field.namespace, "-p", lift)
        assert code == 0, said
    await field.until(lambda: all(not pod.foreign_gates for pod in field.pods()), "their gates are open")
    assert [pod.name for pod in field.gated()] == ["ours"]


async def test_break_glass_lifts_our_gate(field: Field) -> None:
    pod = await a_gated_pod(field)
    user = await person(field, "eve", "edit")
    await kubectl(
        field.cluster,
        *("create", "rolebinding", "glass", "--clusterrole=startgate-break-glass", f"--user=eve-{field.namespace}"),
        f"--namespace={field.namespace}",
    )

    async def lift() -> tuple[int, str]:
        return await call(user, "patch", "pod", pod, "-n", field.namespace, "-p", LIFT)

    await eventually(lift, lambda ended: ended[0] == 0, "the gate is lifted")


async def test_people_read_gangs_and_only_the_controller_writes_them(field: Field) -> None:
    await a_gated_pod(field)
    await field.until(lambda: field.gang("a") is not None, "there is a Gang")
    viewer, admin = await person(field, "viewer", "view"), await person(field, "boss", "admin")
    for user in (viewer, admin):
        read = lambda user=user: call(user, "get", "gangs", "-n", field.namespace)  # noqa: E731
        code, said = await eventually(read, lambda ended: ended[0] == 0, "aggregated roles reach people")
        assert "job-a" in said
        for verb in ("create", "update", "patch", "delete", "release"):
            code, said = await call(user, "auth", "can-i", verb, GANGS.plural, "-n", field.namespace)
            assert (code, said.split()[-1]) == (1, "no"), verb
        code, said = await call(user, "get", QUEUES.plural)
        assert code == 1, "queues belong to the cluster"


# --- harmless, and closed -------------------------------------------------------------------------------------------


async def test_with_the_webhook_down_others_go_on_and_the_labelled_wait(field: Field) -> None:
    """Only what needs the webhook's judgement is refused: new labelled Jobs, changes that are ours, queues."""
    await field.nodes(1)
    queue = await field.queue(stopped=True)
    await field.submit("a", pods=1, queue=queue)
    await field.until(lambda: field.gated("a"), "its pod is gated")
    await field.startgate.webhook.stop()
    admin, ns = field.cluster.kubeconfig, f"--namespace={field.namespace}"

    async def make(manifest: Manifest) -> tuple[int, str]:
        return await call(admin, "create", "-f", "-", ns, stdin=yaml.safe_dump(manifest))

    code, said = await make(job_of("plain", pods=1))
    assert code == 0, said
    await field.runs("plain", 1)
    code, said = await make(job_of("b", pods=1, queue=queue))
    assert code == 1
    assert 'failed calling webhook "jobs.startgate.dev"' in said
    for passes in ("label colour=blue", "annotate example.com/note=x"):
        verb, change = passes.split()
        code, said = await call(admin, verb, "job", "a", change, ns)
        assert code == 0, said
    for patch in ({"spec": {"suspend": True}}, {"metadata": {"labels": {names.QUEUE: None}}}):
        code, said = await call(admin, "patch", "job", "a", ns, "--type=merge", "-p", json.dumps(patch))
        assert code == 1, said
        assert "jobs.startgate.dev" in said
    code, said = await call(admin, "patch", "queue", queue, "--type=merge", "-p", '{"spec":{"weight":2}}')
    assert code == 1
    assert "queues.startgate.dev" in said
    # That the Job controller goes on making gated pods is in test_unlabelled.
    code, said = await call(admin, "delete", "job", "a", ns)
    assert code == 0, said


async def test_the_controller_parks_and_resumes_without_the_webhook(field: Field) -> None:
    """Its own writes to Jobs are not judged, so that taking a gang back never waits for another program."""
    await field.nodes(1)
    queue = await field.queue(stopped=True)
    await field.submit("a", pods=1, queue=queue)
    await field.until(lambda: field.gated("a"), "its pod is gated")
    token = await field.cluster.service_account_kubeconfig(names.SYSTEM_NAMESPACE, names.CONTROLLER_ACCOUNT)
    await field.startgate.webhook.stop()
    await field.startgate.controller.stop()
    patch = {"metadata": {"annotations": {names.PARKED: "test"}}, "spec": {"suspend": True}}
    async with await Client.connect(kubeconfig=str(token)) as controller:
        await controller.patch(JOBS, "a", patch, field.namespace)
        found = await controller.patch(JOBS, "a", {"spec": {"suspend": False}}, field.namespace)
    assert found.metadata.annotations[names.PARKED] == "test"
    assert not found.spec.suspend
