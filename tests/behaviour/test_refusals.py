"""Refusals: what can never be kept is refused at the door, with a sentence that says what to do.

Each test reads the very sentence that a user of kubectl reads.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from localcluster.deploy import kubectl
from localcluster.errors import ClusterError
from startgate.kube.kinds import JOBS, NAMESPACES, PODS
from startgate.model import names
from startgate.model.gang import Phase
from tests.behaviour.asking import acting_as, by_webhook, denial, stored, user_name
from tests.behaviour.kit import Field, eventually, job_of, pod_spec


async def test_an_unknown_queue_is_refused_and_the_nearest_name_suggested(field: Field) -> None:
    queue = await field.queue("tenant")
    near = queue.removesuffix(queue[-1])
    said = by_webhook(
        "jobs",
        f"there is no queue {near} (did you mean {queue}?); create it, or change the label startgate.dev/queue",
    )
    # The webhook's cache, where names are looked up for a suggestion, is a moment behind.
    await eventually(lambda: denial(field.submit("a", queue=near)), lambda sentence: sentence == said, said)
    assert await stored(field, JOBS, "a") == {}


async def test_a_namespace_that_the_queue_does_not_admit(field: Field) -> None:
    queue = await field.queue(namespaces={"matchLabels": {"team": "eval"}})
    said = by_webhook(
        "jobs",
        f"queue {queue} does not admit namespace {field.namespace}; ask its admin, or use another queue",
    )
    assert await denial(field.submit("a", queue=queue)) == said
    await field.client.patch(NAMESPACES, field.namespace, {"metadata": {"labels": {"team": "eval"}}})
    await field.submit("a", queue=queue)  # at once: a refusal rests on facts that were read afresh
    assert await stored(field, JOBS, "a") != {}


async def test_a_priority_above_the_queues_maximum(field: Field) -> None:
    high = await field.priority("high", 2000)
    queue = await field.queue(maxPriority=1000)
    assert await denial(field.submit("a", queue=queue, priorityClassName=high)) == by_webhook(
        "jobs",
        f"PriorityClass {high} has priority 2000, and queue {queue} takes priorities up to 1000: "
        "name a lower PriorityClass in the pod template, or use another queue",
    )
    assert await denial(field.submit("a", queue=queue, priorityClassName="no-such-class")) == by_webhook(
        "jobs",
        f"there is no PriorityClass no-such-class, and queue {queue} takes priorities up to 1000 only: "
        "create the class, or name one that exists (kubectl get priorityclasses)",
    )
    await field.change_queue(queue, maxPriority=2000)
    await field.submit("a", queue=queue, priorityClassName=high)


async def test_a_job_has_one_gatekeeper(field: Field) -> None:
    job = job_of("a", queue=await field.queue())
    job["metadata"]["labels"][names.KUEUE_QUEUE] = "theirs"
    assert await denial(field.client.create(JOBS, job, field.namespace)) == by_webhook(
        "jobs",
        "the label kueue.x-k8s.io/queue-name hands this to Kueue, and it can have one gatekeeper only: take off that "
        "label or startgate.dev/queue",
    )


@pytest.mark.parametrize(
    ("minimum", "said"),
    [
        *(
            (
                text,
                f"the label startgate.dev/min-available is {text!r}, and has to be a whole number from 1 on: the pods "
                "that must start together",
            )
            for text in ("four", "0", "1.5", "")
        ),
        (
            "5",
            "the label startgate.dev/min-available is 5, and the Job never runs more than 4 pods at once "
            "(spec.parallelism): lower the label to at most 4, or raise spec.parallelism",
        ),
    ],
)
async def test_a_minimum_that_is_none(field: Field, minimum: str, said: str) -> None:
    job = job_of("a", pods=4, queue=await field.queue())
    job["metadata"]["labels"][names.MIN_AVAILABLE] = minimum
    assert await denial(field.client.create(JOBS, job, field.namespace)) == by_webhook("jobs", said)


async def test_a_minimum_above_the_completions(field: Field) -> None:
    assert await denial(field.submit("a", pods=4, completions=2, minimum=3, queue=await field.queue())) == by_webhook(
        "jobs",
        "the label startgate.dev/min-available is 3, and the Job never runs more than 2 pods at once "
        "(spec.completions): lower the label to at most 2, or raise spec.completions",
    )


async def test_annotations_that_say_nothing_usable(field: Field) -> None:
    queue = await field.queue()
    assert await denial(
        field.submit("a", queue=queue, annotations={names.START_TIMEOUT: "five minutes"})
    ) == by_webhook(
        "jobs",
        "the annotation startgate.dev/start-timeout: 'five minutes' is not a duration: write hours, minutes and "
        "seconds such as 90s, 5m or 1h30m",
    )
    assert await denial(field.submit("a", queue=queue, annotations={names.HOLD: "yes"})) == by_webhook(
        "jobs",
        'the annotation startgate.dev/hold is \'yes\': write "true" (don\'t start it yet) or "false"',
    )


async def test_a_labelled_pod_with_a_node_name(field: Field) -> None:
    """Case 45: it would be on its node without having passed the gate."""
    await field.nodes(1)
    queue = await field.queue()
    said = by_webhook(
        "pods",
        f"the pod names the node n1, which would pass by the queue {queue}: take off spec.nodeName and choose nodes by "
        "nodeSelector or affinity, or take off the label startgate.dev/queue",
    )
    assert await denial(field.pod("a", labels={names.QUEUE: queue}, nodeName="n1")) == said
    assert await stored(field, PODS, "a") == {}
    await field.pod("a", nodeName="n1")  # without the label it is nothing of ours
    await field.lands("a", "n1")


async def test_a_job_whose_template_names_a_node(field: Field) -> None:
    assert await denial(field.submit("a", queue=await field.queue(), nodeName="n1")) == by_webhook(
        "jobs",
        "the pod template names the node n1, which would pass by the queue: take off spec.template.spec.nodeName, and "
        "choose nodes by nodeSelector or affinity",
    )


async def test_bare_pods_are_held_to_the_same_rules(field: Field) -> None:
    """Also those that bring our gate with them, as nobody but a Job's template has to."""
    queue = await field.queue(namespaces={"matchLabels": {"team": "eval"}}, maxPriority=1000)
    gate = [{"name": names.GATE}]

    def pod(name: str, labels: dict[str, str], **spec: Any) -> Any:
        return field.client.create(
            PODS, {"metadata": {"name": name, "labels": labels}, "spec": pod_spec(**spec)}, field.namespace
        )

    for spec in ({}, {"schedulingGates": gate}):
        assert "does not admit namespace" in await denial(pod("a", {names.QUEUE: queue}, **spec))
        assert "there is no queue nowhere-at-all" in await denial(pod("a", {names.QUEUE: "nowhere-at-all"}, **spec))
        assert "one gatekeeper only" in await denial(pod("a", {names.QUEUE: queue, names.KUEUE_QUEUE: "x"}, **spec))
    await field.client.patch(NAMESPACES, field.namespace, {"metadata": {"labels": {"team": "eval"}}})
    high = await field.priority("high", 2000)
    for spec in ({}, {"schedulingGates": gate}):
        said = await denial(pod("a", {names.QUEUE: queue}, priorityClassName=high, **spec))
        assert f"PriorityClass {high} has priority 2000" in said


async def test_what_was_let_in_cannot_be_made_wrong_later(field: Field) -> None:
    await field.nodes(1)
    queue, other = await field.queue(), await field.queue("other")
    await field.run("a", pods=2, queue=queue)
    await field.change_job("a", {"metadata": {"labels": {"app": "x"}}})  # a Job without labels gets its template's

    said = await denial(field.change_job("a", {"metadata": {"labels": {names.MIN_AVAILABLE: "3"}}}))
    assert "the Job never runs more than 2 pods at once" in said
    said = await denial(field.change_job("a", {"metadata": {"labels": {names.QUEUE: other}}}))
    assert said == by_webhook(
        "jobs",
        f"its pods have passed the gate (the gang is Running), charged to queue {queue}: startgate.dev/queue can be "
        "changed while the Job waits or is suspended; set spec.suspend to true first",
    )
    said = await denial(field.change_job("a", {"metadata": {"labels": {names.QUEUE: None}}}))
    assert said == by_webhook(
        "jobs",
        "the label startgate.dev/queue can't be taken off this Job: its pods are made behind the gate "
        "startgate.dev/gang, and without the label nobody would open it; delete the Job and create it without the "
        "label",
    )
    assert (await stored(field, JOBS, "a"))["metadata"]["labels"][names.QUEUE] == queue


async def test_queue_and_job_applied_in_one_go(field: Field) -> None:
    """The Job comes before the webhook's watch has told of the queue: it reads afresh before it refuses."""
    await field.nodes(1)
    for attempt in range(3):
        name = f"together-{attempt}-{field.namespace}"
        queue = {"apiVersion": names.API_VERSION, "kind": "Queue", "metadata": {"name": name}}
        both = yaml.safe_dump_all([queue, job_of(f"a{attempt}", pods=1, queue=name)])
        said = await kubectl(field.cluster, "apply", f"--namespace={field.namespace}", "--filename=-", stdin=both)
        assert said.split("\n")[:2] == [f"queue.startgate.dev/{name} created", f"job.batch/a{attempt} created"]
        field.takes_over(name)
        await field.phase(f"a{attempt}", Phase.RUNNING)


async def test_an_ordinary_user_reads_the_same_sentence(field: Field) -> None:
    manifest = yaml.safe_dump(job_of("a", queue="nowhere-at-all"))
    async with acting_as(field, "ann"):
        kubeconfig = await field.cluster.user_kubeconfig(user_name(field, "ann"))
        to = (f"--kubeconfig={kubeconfig}", f"--namespace={field.namespace}")
        with pytest.raises(ClusterError) as refused:
            await kubectl(field.cluster, "create", *to, "--filename=-", stdin=manifest)
    said = by_webhook("jobs", "there is no queue nowhere-at-all; create it, or change the label startgate.dev/queue")
    assert f'Error from server (Forbidden): error when creating "STDIN": {said}' in str(refused.value)
