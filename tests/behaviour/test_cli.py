"""kubectl gang on a real cluster, as kubectl runs it: what people and scripts read there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from localcluster.deploy import kubectl
from localcluster.nodes import GPU
from startgate.model.gang import Phase
from startgate.model.queue import QueueStatus
from startgate.model.reasons import Code
from tests.behaviour.asking import gang
from tests.behaviour.kit import Field, eventually


async def ends(kubeconfig: Path, *arguments: str) -> int:
    """The exit code alone."""
    return (await gang(kubeconfig, *arguments))[0]


async def as_json(field: Field, *arguments: str) -> dict[str, Any]:
    code, out, err = await gang(field.cluster.kubeconfig, *arguments, "-o", "json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


async def test_list_shows_who_runs_and_who_waits_in_the_order_of_the_queue(field: Field) -> None:
    await field.nodes(2)
    high = await field.priority("high", 100, preemptionPolicy="Never")
    queue = await field.queue(capability={"cpu": "2"})
    await field.run("first", pods=2, queue=queue)
    await field.next_second()
    await field.submit("second", pods=1, queue=queue)
    await field.waits("second", Code.QUEUE_CAPABILITY)
    await field.next_second()
    await field.submit("urgent", pods=1, queue=queue, priorityClassName=high)
    await field.waits("urgent", Code.QUEUE_CAPABILITY)
    admin, ns = field.cluster.kubeconfig, field.namespace
    code, out, err = await gang(admin, "list", "-n", ns)
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["NAME", "QUEUE", "PHASE", "PODS", "REASON", "AGE"]
    assert [row[:-1] for row in rows[1:]] == [
        ["job-urgent", queue, "Waiting", "0/1", "QueueCapability"],
        ["job-first", queue, "Running", "2/2", "Running"],
        ["job-second", queue, "Waiting", "0/1", "QueueCapability"],
    ]
    code, out, err = await gang(admin, "list", "-A")
    assert out.split()[:2] == ["NAMESPACE", "NAME"]
    assert f"\n{ns}   job-first" in out
    found = await as_json(field, "list", "-n", ns)
    assert [each["name"] for each in found["gangs"]] == ["job-urgent", "job-first", "job-second"]
    code, out, err = await gang(admin, "list", "-n", ns, "-o", "yaml")
    assert yaml.safe_load(out) == await as_json(field, "list", "-n", ns)


async def test_list_of_nothing(field: Field) -> None:
    code, out, err = await gang(field.cluster.kubeconfig, "list", "-n", field.namespace)
    assert (code, out, err) == (0, "", f"No gangs in namespace {field.namespace}; -A shows those of all namespaces.\n")
    assert await as_json(field, "list", "-n", field.namespace) == {"gangs": [], "stale": None}


async def test_why_gives_the_sentence_of_the_gang_by_each_of_its_names(field: Field) -> None:
    await field.nodes(2)
    queue = await field.queue(capability={"cpu": "2"})
    await field.submit("a", pods=4, minimum=3, queue=queue)
    waiting = await field.waits("a", Code.NEVER_WITHIN_QUOTA)
    answers = [
        await gang(field.cluster.kubeconfig, "why", name, "-n", field.namespace)
        for name in ("a", "job/a", "job-a", "gang/job-a")
    ]
    for code, out, err in answers:
        assert (code, err) == (0, "")
        assert out.splitlines()[:2] == [
            f"Job a in namespace {field.namespace} is Waiting: NeverWithinQuota",
            f"  {waiting.status.message}",
        ]
        assert "0/4 bound, 4 at the gate; at least 3 start together" in out
        assert "Released=False" in out
    found = await as_json(field, "why", "a", "-n", field.namespace)
    assert (found["job"], found["message"], found["gang"]["reason"]) == (
        "a",
        waiting.status.message,
        "NeverWithinQuota",
    )
    await field.change_queue(queue, capability={"cpu": "4"})
    await field.phase("a", Phase.RUNNING)
    code, out, err = await gang(field.cluster.kubeconfig, "why", "a", "-n", field.namespace)
    assert out.splitlines()[0] == f"Job a in namespace {field.namespace} is Running"
    assert "Released=True" in out
    assert "audit id" in out


async def test_why_where_there_is_no_gang(field: Field) -> None:
    await field.nodes(1)
    await field.submit("plain", pods=1)
    await field.until(lambda: field.job("plain") is not None, "the Job is there")
    code, out, err = await gang(field.cluster.kubeconfig, "why", "plain", "-n", field.namespace)
    assert (code, err) == (0, "")
    assert "has no label startgate.dev/queue" in out
    found = await as_json(field, "why", "plain", "-n", field.namespace)
    assert (found["job"], found["gang"]) == ("plain", None)
    for name, what in (("nothing", "Job or Gang"), ("job/nothing", "Job"), ("gang/nothing", "Gang")):
        code, out, err = await gang(field.cluster.kubeconfig, "why", name, "-n", field.namespace, "-o", "json")
        assert (code, out) == (1, "")
        assert err.startswith(f"Error: There is no {what} named nothing in namespace {field.namespace};")


async def test_why_before_the_controller_has_seen_the_job(field: Field) -> None:
    queue = await field.queue()
    await field.startgate.controller.stop()
    await field.submit("a", pods=1, queue=queue)
    code, out, err = await gang(field.cluster.kubeconfig, "why", "a", "-n", field.namespace)
    assert code == 0
    assert out.startswith(f"Job a asks for queue {queue} and has no Gang yet;")
    assert err.startswith("Warning: Nobody has led since ")  # it gave its Lease up in the end


async def test_without_a_controller_old_answers_are_called_old(field: Field) -> None:
    """Also to those who may view no more than their own namespace."""
    await field.nodes(1)
    queue = await field.queue(stopped=True)
    await field.submit("a", pods=1, queue=queue)
    await field.waits("a", Code.QUEUE_STOPPED)
    user = f"ann-{field.namespace}"
    kubeconfig = await field.cluster.user_kubeconfig(user)
    await kubectl(
        field.cluster,
        *("create", "rolebinding", "ann", "--clusterrole=view", f"--user={user}", f"--namespace={field.namespace}"),
    )
    verbs = (("list", "-n", field.namespace), ("why", "a", "-n", field.namespace))
    for verb in verbs:
        await eventually(partial(gang, kubeconfig, *verb), lambda ended: ended[::2] == (0, ""), "no doubt")
    await field.startgate.controller.stop()
    for verb in verbs:
        code, out, err = await gang(kubeconfig, *verb)
        assert (code, err.count("\n")) == (0, 1)
        assert "QueueStopped" in out
        assert err.startswith("Warning: Nobody has led since ")
        code, out, err = await gang(kubeconfig, *verb, "-o", "json")
        assert (code, err) == (0, "")
        assert json.loads(out)["stale"].startswith("Nobody has led since ")


async def test_queues_shows_what_is_left_below_each_parent(field: Field) -> None:
    await field.nodes(2)
    parent = await field.queue("parent", capability={"cpu": "6"})
    child = await field.queue("child", parent=parent, guarantee={"cpu": 1}, capability={"cpu": "4000m"}, stopped=False)
    await field.run("a", pods=2, queue=child)

    await eventually(lambda: field.read_queue(child), lambda found: found.status.running == 1, "the queue says so")
    code, out, err = await gang(field.cluster.kubeconfig, "queues")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    (number,) = (number for number, line in enumerate(lines) if line.startswith(f"  {child} "))
    assert lines[number].split()[:5] == [child, "1", "0", "0.50", "cpu"]
    header = lines[0].split()
    cells = dict(zip(header, lines[number].split(), strict=False))
    limits = [cells[each] for each in ("GUARANTEE", "DESERVED", "CAPABILITY", "ALLOCATED", "HEADROOM")]
    assert limits == ["1", "4", "4", "2", "2"]
    assert lines[number - 1].split()[:3] == [parent, "1", "0"], "with those of its children"
    (found,) = (each for each in (await as_json(field, "queues"))["queues"] if each["name"] == child)
    assert (found["parent"], found["depth"], found["capability"], found["allocated"]["cpu"]) == (
        parent,
        1,
        {"cpu": "4"},
        "2",
    )


async def test_why_and_queues_while_a_gang_gives_way_and_after(field: Field) -> None:
    """Who took whose place and by which rule stands with both, and the tree says who is next."""
    await field.nodes(2, cpu="16", gpus=4)
    here = {"matchLabels": {"kubernetes.io/metadata.name": field.namespace}}
    mine, theirs = [await field.queue(name, deserved={GPU: 4}, namespaces=here) for name in ("mine", "theirs")]
    await field.submit("unlabelled", pods=2)
    await field.runs("unlabelled", 2)
    await field.run("old", pods=4, cpu="100m", gpu=1, queue=theirs)
    await field.next_second()
    await field.run("young", pods=4, cpu="100m", gpu=1, queue=theirs, terminates="1h")
    over = await told_of(field, theirs, lambda status: status.share == "2.00")
    assert (over["share"], over["deserved"][GPU], over["allocated"][GPU], over["next"]) == (2.0, "4", "8", None)
    await field.submit("claimant", pods=4, cpu="100m", gpu=1, queue=mine)
    await field.waits("claimant", Code.MAKING_ROOM)
    young, claimant = f"{field.namespace}/job-young", f"{field.namespace}/job-claimant"
    code, out, err = await gang(field.cluster.kubeconfig, "why", "claimant", "-n", field.namespace)
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [
        f"Job claimant in namespace {field.namespace} is Waiting: MakingRoom",
        f"  its turn has come: {young} gave way, and it waits for 4 pods to go; what they free is held for it",
    ]
    assert re.search(rf"^Making room +{young}, from \S+ \(\d+s ago\) on, since it is within what its queue", out, re.M)
    taking = await told_of(field, mine, lambda status: status.next == claimant)
    assert (taking["share"], taking["next"]) == (1.0, claimant)
    for pod in field.pods("young"):
        await field.simulate(pod, terminates="1ms")
    await field.phase("claimant", Phase.RUNNING)
    await field.waits("young", Code.CLUSTER_IN_USE)
    code, out, err = await gang(field.cluster.kubeconfig, "why", "young", "-n", field.namespace)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"Job young in namespace {field.namespace} is Parked: ClusterInUse"
    assert lines[1] == f"  {field.sure('young').status.message}"
    assert re.fullmatch(
        rf"  \d+s ago it gave its place to {claimant} of queue {mine}, which is within its deserved share, while queue "
        rf"{theirs} is above its own \(8 of 4 {GPU}\); it keeps its age and starts again in its turn",
        lines[2],
    )
    assert re.search(r"^Gave way +\S+ \(\d+s ago\), Reclaimed$", out, re.M)
    found = await as_json(field, "why", "claimant", "-n", field.namespace)
    assert (found["gang"]["claim"], found["gang"]["yielded"]) == (None, None)
    after = await told_of(field, theirs, lambda status: status.next == young)
    assert (after["share"], after["next"], after["unlabelled"]["cpu"]) == (1.0, young, "2")
    code, out, err = await gang(field.cluster.kubeconfig, "queues")
    (row,) = [line.split() for line in out.splitlines() if line.startswith(f"{theirs} ")]
    assert (row[:7], row[-2:]) == ([theirs, "1", "1", "(4", "pods)", "1.00", "cpu"], ["2", young])


async def told_of(field: Field, queue: str, when: Callable[[QueueStatus], bool]) -> dict[str, Any]:
    """What the document of `queues` says of this one, once the Queue is so."""
    await eventually(lambda: field.read_queue(queue), lambda it: when(it.status), f"queue {queue} is so")
    return next(each for each in (await as_json(field, "queues"))["queues"] if each["name"] == queue)


async def test_rights_are_those_of_view(field: Field) -> None:
    """In its own namespace `view` is enough for gangs; what is not allowed says which role would be."""
    user = f"ann-{field.namespace}"
    kubeconfig = await field.cluster.user_kubeconfig(user)
    code, out, err = await gang(kubeconfig, "list", "-n", field.namespace)
    assert (code, out) == (3, "")
    assert "forbidden" in err
    assert "startgate-view" in err
    await kubectl(
        field.cluster,
        *("create", "rolebinding", "ann", "--clusterrole=view", f"--user={user}", f"--namespace={field.namespace}"),
    )
    for verb, expected in (
        (("list", "-n", field.namespace), 0),
        (("why", "x", "-n", field.namespace), 1),
        (("list", "-A"), 3),
        (("queues",), 3),
    ):
        asked = partial(ends, kubeconfig, *verb)
        await eventually(asked, expected.__eq__, f"{verb} ends with {expected}")
    await kubectl(field.cluster, "create", "clusterrolebinding", user, "--clusterrole=startgate-view", f"--user={user}")
    await eventually(partial(ends, kubeconfig, "queues"), (0).__eq__, "queues can be read")
    await kubectl(field.cluster, "delete", "clusterrolebinding", user)
