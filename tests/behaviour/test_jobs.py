"""Jobs of every kind that people write, on their way through the gate."""

from __future__ import annotations

from localcluster.deploy import kubectl
from startgate.kube.kinds import JOBS
from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.quantity import parse_units
from startgate.model.reasons import Code
from tests.behaviour.kit import Field, eventually, job_of


async def test_more_completions_than_parallelism(field: Field) -> None:
    """Cases 12 and 44: two at a time until five are done; the charge is that of the pods that live."""
    await field.nodes(1)
    queue = await field.queue(capability={"cpu": "2"})
    await field.submit("a", pods=2, completions=5, queue=queue, runs="300ms")
    gang = await field.phase("a", Phase.RUNNING)
    assert (gang.spec.pods, gang.spec.min_available) == (2, 2)
    await field.completes("a")
    assert len(field.opened("a")) == 5
    assert field.most_at_once(lambda pod: not pod.gated and not pod.ended) == 2
    await eventually(lambda: field.read_queue(queue), lambda it: not it.status.allocated, "nothing is charged")


async def test_a_failed_index_is_not_waited_for(field: Field) -> None:
    """Case 12: of three indexes one fails for good; the charge follows the two that live."""
    await field.nodes(1)
    queue = await field.queue()
    per_index = {"backoffLimitPerIndex": 0, "maxFailedIndexes": 3, "backoffLimit": None}
    await field.submit("a", pods=3, queue=queue, spec=per_index)
    await field.phase("a", Phase.RUNNING)
    victim = next(pod for pod in field.bound("a") if pod.index == 1)
    await field.simulate(victim, fails="1ms")
    await field.until(lambda: (job := field.job("a")) and job.status.failed_indexes == "1", "index 1 has failed")
    await field.until(lambda: field.sure("a").status.bound == "2/2", "two are wanted, two are bound")
    assert field.sure("a").status.phase is Phase.RUNNING
    seen = await eventually(
        lambda: field.read_queue(queue),
        lambda it: it.status.allocated and parse_units(it.status.allocated["cpu"]) == 2,
        "two are charged",
    )
    assert seen.status.running == 1


async def test_a_cron_job_s_job(field: Field) -> None:
    """Its labels come from the jobTemplate; it may be suspended by us, so that its deadline doesn't run."""
    await field.nodes(1)
    queue = await field.queue()
    job = job_of("ignored", pods=2, queue=queue, runs="100ms", deadline=60)
    template = {"metadata": {"labels": job["metadata"]["labels"]}, "spec": job["spec"]}
    await field.put(
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": "nightly"},
            "spec": {"schedule": "0 3 * * *", "suspend": True, "jobTemplate": template},
        }
    )
    await kubectl(field.cluster, f"--namespace={field.namespace}", "create", "job", "tonight", "--from=cronjob/nightly")
    done = await field.completes("tonight")
    assert done.metadata.controller is not None
    assert done.metadata.controller.kind == "CronJob"
    assert (Phase.GATHERING, "Gathering") in field.story("tonight"), (
        "it was parked at creation, and resumed in its turn"
    )


async def test_generate_name(field: Field) -> None:
    """Two Jobs of one template are two gangs."""
    await field.nodes(1)
    queue = await field.queue()
    made = [await field.submit("sweep-", pods=2, queue=queue) for _ in range(2)]
    found = {job.metadata.name for job in made}
    assert len(found) == 2
    for name in found:
        assert name.startswith("sweep-")
        await field.phase(name, Phase.RUNNING)
        await field.runs(name, 2)


async def test_a_job_that_is_not_indexed(field: Field) -> None:
    await field.nodes(1, cpu="3")
    queue = await field.queue()
    await field.run("blocker", pods=1, queue=queue)
    await field.submit("a", pods=3, queue=queue, runs="200ms", spec={"completionMode": "NonIndexed"})
    await field.waits("a", Code.CLUSTER_IN_USE)
    assert not field.opened("a")
    await field.delete_job("blocker")
    await field.completes("a")
    assert len(field.opened("a")) == 3


async def test_a_work_queue_without_completions(field: Field) -> None:
    """All of its workers start together; once one has succeeded no new ones come, and nothing waits for them."""
    await field.nodes(1)
    queue = await field.queue()
    await field.submit("a", pods=3, queue=queue, spec={"completions": None, "completionMode": "NonIndexed"})
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 3)
    for count, pod in enumerate(field.bound("a"), 1):
        await field.simulate(pod, runs="1ms")
        await field.until(lambda count=count: len(field.ended("a")) == count, f"{count} have succeeded")  # type: ignore[misc]
    await field.completes("a")
    await field.phase("a", Phase.FINISHED)


async def test_a_user_s_own_suspend_is_never_undone(field: Field) -> None:
    """It starts when its user says so, and not before."""
    await field.nodes(1)
    queue = await field.queue()
    await field.submit("a", pods=2, queue=queue, suspend=True)
    await field.waits("a", Code.SUSPENDED)
    await field.run("canary", pods=1, queue=queue)
    job = field.job("a")
    assert job is not None
    assert job.spec.suspend
    assert names.PARKED not in job.metadata.annotations
    await field.change_job("a", {"spec": {"suspend": False}})
    await field.phase("a", Phase.RUNNING)


async def test_a_running_gang_that_its_user_suspends_gives_its_room(field: Field) -> None:
    """And takes its turn again when it is resumed."""
    await field.nodes(1, cpu="2")
    queue = await field.queue(capability={"cpu": "2"})
    await field.run("a", pods=2, queue=queue)
    await field.submit("b", pods=2, queue=queue)
    await field.waits("b", Code.QUEUE_CAPABILITY)
    await field.change_job("a", {"spec": {"suspend": True}})
    await field.phase("b", Phase.RUNNING)
    await field.waits("a", Code.SUSPENDED)
    await field.change_job("a", {"spec": {"suspend": False}})
    await field.waits("a", Code.QUEUE_CAPABILITY)
    await field.delete_job("b")
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 2)


async def test_a_job_that_is_deleted_while_it_waits_leaves_nothing(field: Field) -> None:
    await field.nodes(1)
    queue = await field.queue(stopped=True)
    await field.submit("a", pods=2, queue=queue)
    await field.waits("a", Code.QUEUE_STOPPED)
    await field.delete_job("a")
    await field.until(lambda: field.gang("a") is None and not field.pods(), "Gang and pods go with it")
    await eventually(lambda: field.read_queue(queue), lambda it: it.status.waiting == 0, "nothing waits")


async def test_the_label_of_the_job_is_enough(field: Field) -> None:
    """The template need not have it: the pods are born with label and gate."""
    await field.nodes(1)
    queue = await field.queue(stopped=True)
    job = await field.client.create(JOBS, job_of("a", pods=1, queue=queue), field.namespace)
    assert job.spec.template.metadata.labels[names.QUEUE] == queue
    assert names.GATE in [gate.name for gate in job.spec.template.spec.scheduling_gates]
