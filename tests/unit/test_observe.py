"""The facts of a gang: each pod counted once, and the Job's own arithmetic (cases 11, 12, 33 to 36, 43, 44)."""

from typing import Any

import msgspec
import pytest

from startgate.engine.observe import (
    Facts,
    batches,
    charged,
    observe_job,
    observe_owner,
    opted_in,
    template_labels,
    template_preempts,
    template_shape,
)
from startgate.engine.world import NEVER
from startgate.model import names
from startgate.model.objects import (
    Condition,
    Container,
    Job,
    JobSpec,
    JobStatus,
    ObjectMeta,
    OnPodCondition,
    OwnerReference,
    PodFailurePolicy,
    PodFailureRule,
    PodSpec,
    PodTemplateSpec,
    PriorityClass,
    Resources,
)
from startgate.model.objects import Pod as WirePod
from startgate.model.pods import Pod, pod_of
from startgate.model.shape import shape_of
from startgate.model.taints import GIVEN

ONE_CPU = PodSpec(containers=(Container(name="c", resources=Resources(requests={"cpu": "1"})),))


def job(
    *,
    labels: dict[str, str] | None = None,
    template_labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    owners: tuple[OwnerReference, ...] = (),
    status: JobStatus | None = None,
    spec: PodSpec = ONE_CPU,
    parallelism: int | None = 4,
    completions: int | None = 4,
    suspend: bool | None = None,
    indexed: bool = True,
    deadline: int | None = None,
    failures: PodFailurePolicy | None = None,
) -> Job:
    labels = {names.QUEUE: "q"} if labels is None else labels
    return Job(
        metadata=ObjectMeta(
            name="x",
            namespace="n",
            uid="u1",
            labels=labels,
            annotations=annotations or {},
            owner_references=owners,
            creation_timestamp="2026-01-01T00:00:00Z",
        ),
        spec=JobSpec(
            parallelism=parallelism,
            completions=completions,
            suspend=suspend,
            completion_mode="Indexed" if indexed else "NonIndexed",
            active_deadline_seconds=deadline,
            pod_failure_policy=failures,
            template=PodTemplateSpec(
                metadata=ObjectMeta(labels=labels if template_labels is None else template_labels), spec=spec
            ),
        ),
        status=status or JobStatus(),
    )


def pod(
    index: int,
    *,
    gated: bool = True,
    node: str = "",
    phase: str = "Pending",
    deleting: bool = False,
    spec: PodSpec = ONE_CPU,
    name: str = "",
) -> Pod:
    return Pod(
        namespace="n",
        name=name or f"x-{index}",
        uid=f"p-{name or index}",
        version=1,
        shape=shape_of(spec),
        queue="q",
        index=index,
        gated=gated,
        node=node,
        phase=phase,
        deleting=deleting,
    )


def facts(made: Job, *pods: Pod) -> Facts:
    return observe_job(made, pods, template_shape(made, {}))


def test_each_pod_is_counted_once_where_it_stands() -> None:
    seen = facts(
        job(parallelism=6, completions=6),
        pod(3),
        pod(1),
        pod(0, gated=False),
        pod(2, gated=False, node="a"),
        pod(4, gated=False, node="a", phase="Succeeded"),
        pod(5, gated=False, node="b", deleting=True),
    )
    assert [p.index for p in seen.gated] == [1, 3]
    assert [p.index for p in seen.pending] == [0]
    assert [p.index for p in seen.bound] == [2]
    assert [p.index for p in seen.leaving] == [5]
    assert (seen.past, seen.members) == (2, 4)
    # Charged: past the gate and not ended, the terminating one included.
    assert charged(seen) == {"cpu": 3000, "pods": 3}


def test_a_gated_pod_that_terminates_was_never_charged() -> None:
    assert charged(facts(job(), pod(0, deleting=True))) == {}


@pytest.mark.parametrize(
    ("parallelism", "completions", "status", "ended", "wanted"),
    [
        (4, 4, JobStatus(), (), 4),
        (None, None, JobStatus(), (), 1),
        (10, 100, JobStatus(succeeded=95), (), 5),
        (4, 4, JobStatus(succeeded=1), (), 3),
        # The Job's own count lags behind what its pods say.
        (4, 4, JobStatus(), (0, 1), 2),
        (4, 4, JobStatus(succeeded=2), (0, 1), 2),
        # The same index twice is one success.
        (4, 4, JobStatus(), (0, 0), 3),
        # Failed indexes aren't tried again (backoffLimitPerIndex).
        (4, 4, JobStatus(succeeded=1, failed_indexes="1,3"), (), 1),
        (10, 10, JobStatus(failed_indexes="0-4,7"), (), 4),
        (4, 4, JobStatus(succeeded=4), (), 0),
        (0, 4, JobStatus(), (), 0),
    ],
)
def test_what_an_indexed_job_still_wants(
    parallelism: int | None, completions: int | None, status: JobStatus, ended: tuple[int, ...], wanted: int
) -> None:
    pods = [
        pod(index, gated=False, node="a", phase="Succeeded", name=f"done-{number}")
        for number, index in enumerate(ended)
    ]
    assert facts(job(parallelism=parallelism, completions=completions, status=status), *pods).wanted == wanted


def test_a_work_queue_wants_no_new_pods_once_one_has_succeeded() -> None:
    waiting = job(completions=None, parallelism=3, indexed=False)
    assert facts(waiting, pod(-1, name="a")).wanted == 3
    done = pod(-1, gated=False, node="n", phase="Succeeded", name="b")
    assert facts(waiting, pod(-1, gated=False, node="n", name="a"), done).wanted == 1


@pytest.mark.parametrize(
    ("label", "parallelism", "succeeded", "minimum"),
    [(None, 4, 0, 4), ("3", 4, 0, 3), ("3", 4, 2, 2), ("9", 4, 0, 4), ("0", 4, 0, 4), ("x", 4, 0, 4), (None, 4, 3, 1)],
)
def test_effective_minimum(label: str | None, parallelism: int, succeeded: int, minimum: int) -> None:
    labels = {names.QUEUE: "q"} | ({names.MIN_AVAILABLE: label} if label else {})
    made = job(labels=labels, parallelism=parallelism, status=JobStatus(succeeded=succeeded))
    assert facts(made).minimum == minimum


def test_whose_suspend_it_is() -> None:
    assert facts(job()).suspended_by == ""
    assert facts(job(suspend=True)).suspended_by == "user"
    ours = facts(job(suspend=True, annotations={names.PARKED: "DeadlineParked"}))
    assert (ours.suspended_by, ours.parked_as) == ("us", "DeadlineParked")
    resumed = facts(job(annotations={names.PARKED: "DeadlineParked"}))
    assert (resumed.suspended_by, resumed.parked_as) == ("", "DeadlineParked")


def test_who_may_be_suspended_by_us() -> None:
    assert facts(job()).parkable
    cron = OwnerReference(api_version="batch/v1", kind="CronJob", name="c", uid="c", controller=True)
    assert facts(job(owners=(cron,))).parkable
    other = OwnerReference(api_version="jobset.x-k8s.io/v1", kind="JobSet", name="j", uid="j", controller=True)
    assert not facts(job(owners=(other,))).parkable


def test_opting_in_by_the_template_alone() -> None:
    assert opted_in(job())
    by_template = job(labels={}, template_labels={names.QUEUE: "t"})
    assert opted_in(by_template)
    assert facts(by_template).queue == "t"
    assert not opted_in(job(labels={}, template_labels={}))
    assert not facts(job(template_labels={})).ready_template


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (Condition(type="Complete", status="True"), "completed"),
        (Condition(type="SuccessCriteriaMet", status="True", reason="SuccessPolicy"), "completed"),
        (Condition(type="FailureTarget", status="True", reason="DeadlineExceeded"), "is ending (DeadlineExceeded)"),
        (Condition(type="Failed", status="True", reason="BackoffLimitExceeded", message="too many"), "too many"),
        (Condition(type="FailureTarget", status="True", reason="DeadlineExceeded"), "DeadlineExceeded"),
        (Condition(type="Complete", status="False"), ""),
    ],
)
def test_outcome(condition: Condition, words: str) -> None:
    outcome = facts(job(status=JobStatus(conditions=(condition,)))).outcome
    assert words in outcome
    assert bool(outcome) is bool(words)


@pytest.mark.parametrize(
    ("said", "by", "kept"),
    [
        (("SuccessCriteriaMet",), "us", True),
        (("FailureTarget",), "us", True),
        (("SuccessCriteriaMet", "Complete"), "us", False),
        (("FailureTarget", "Failed"), "us", False),
        (("SuccessCriteriaMet",), "user", False),
        (("SuccessCriteriaMet",), "", False),
        ((), "us", False),
    ],
)
def test_a_job_that_is_parked_as_it_ends(said: tuple[str, ...], by: str, kept: bool) -> None:
    conditions = tuple(Condition(type=kind, status="True") for kind in said)
    made = job(status=JobStatus(conditions=conditions), suspend=bool(by))
    if by == "us":
        made.metadata.annotations[names.PARKED] = "Preempted"
    assert facts(made).kept_from_ending is kept


def test_start_timeout_is_the_default_where_the_annotation_is_no_duration() -> None:
    assert facts(job(annotations={names.START_TIMEOUT: "90s"})).start_timeout == 90
    assert facts(job(annotations={names.START_TIMEOUT: "soon"})).start_timeout == names.DEFAULT_START_TIMEOUT


def test_priority_comes_from_pods_first_then_class_then_default() -> None:
    high = PriorityClass(metadata=ObjectMeta(name="high"), value=7)
    usual = PriorityClass(metadata=ObjectMeta(name="usual"), value=3, global_default=True)
    classes = {"high": high, "usual": usual}
    named = job(spec=PodSpec(priority_class_name="high"))
    assert observe_job(named, (), template_shape(named, classes)).priority == 7
    assert observe_job(job(), (), template_shape(job(), classes)).priority == 3
    assert observe_job(named, (pod(0, spec=PodSpec(priority=9)),), template_shape(named, classes)).priority == 9


@pytest.mark.parametrize(
    ("spec", "preempts"),
    [
        (PodSpec(), False),  # by the global default
        (PodSpec(priority_class_name="keen"), True),
        (PodSpec(priority_class_name="meek"), False),
        (PodSpec(priority_class_name="keen", preemption_policy="Never"), False),
        (PodSpec(priority_class_name="unknown"), True),
    ],
)
def test_whether_a_gang_takes_the_place_of_lower_ones(spec: PodSpec, preempts: bool) -> None:
    meek = PriorityClass(metadata=ObjectMeta(name="meek"), value=3, preemption_policy="Never", global_default=True)
    classes = {"meek": meek, "keen": PriorityClass(metadata=ObjectMeta(name="keen"), value=7)}
    assert template_preempts(job(spec=spec), classes) is preempts


def test_pods_that_exist_say_whether_they_preempt() -> None:
    made = job()
    seen = observe_job(made, [msgspec.structs.replace(pod(0), preempts=False)], template_shape(made, {}))
    assert not seen.preempts


def test_when_a_gang_has_ended_for_sure() -> None:
    started = JobStatus(start_time="2026-01-01T00:00:00Z")
    limited = facts(job(deadline=60, status=started))
    assert (limited.lasts, limited.ends) == (60, 1767225660)
    assert facts(job(deadline=60)).ends == NEVER, "it hasn't started"
    assert facts(job(deadline=60, status=started, suspend=True)).ends == NEVER, "it starts afresh when it is resumed"
    assert (facts(job(status=started)).lasts, facts(job(status=started)).ends) == (NEVER, NEVER)


def policy(*actions: str) -> PodFailurePolicy:
    disrupted = (OnPodCondition(type="DisruptionTarget"),)
    return PodFailurePolicy(rules=tuple(PodFailureRule(action=each, on_pod_conditions=disrupted) for each in actions))


def test_which_pods_may_be_evicted_without_harm() -> None:
    """The first rule that matches decides; and a work queue that has had a success makes no pod in place of one."""
    assert facts(job(failures=policy("Ignore"))).sheds
    assert facts(job(failures=policy("Ignore", "FailJob"))).sheds
    assert not facts(job(failures=policy("FailJob", "Ignore"))).sheds
    assert not facts(job()).sheds
    work = job(failures=policy("Ignore"), completions=None, indexed=False)
    assert facts(work).sheds
    assert not facts(work, pod(0, phase="Succeeded")).sheds


def test_batches_keep_order_and_join_equal_shapes() -> None:
    two = PodSpec(containers=(Container(name="c", resources=Resources(requests={"cpu": "2"})),))
    made = batches([pod(0), pod(1), pod(2, spec=two), pod(3)])
    assert [(batch.shape.amounts["cpu"], batch.count) for batch in made] == [(1000, 2), (2000, 1), (1000, 1)]


def test_pods_of_another_owner_start_one_by_one_unless_the_label_says_more() -> None:
    alone = observe_owner("ReplicaSet", "web", "r", [pod(-1, name="a"), pod(-1, name="b")])
    assert (alone.name, alone.wanted, alone.minimum, alone.parkable) == ("replicaset-web", 2, 1, False)
    labelled = pod(-1, name="a")
    labelled.min_available = "3"
    three = observe_owner("ReplicaSet", "web", "r", [labelled])
    assert (three.wanted, three.minimum) == (3, 3)


def test_a_pod_that_is_a_gang_by_itself_ends_as_one() -> None:
    """One that another kind of owner controls doesn't end the gang: it may be made anew."""
    for phase, outcome in (("Running", ""), ("Succeeded", "it completed"), ("Failed", "it failed")):
        alone = pod(-1, name="a", gated=False, node="n1", phase=phase)
        assert observe_owner("Pod", "a", alone.uid, [alone]).outcome == outcome
        assert observe_owner("ReplicaSet", "web", "r", [alone]).outcome == ""


def test_a_job_that_another_controller_manages_is_not_ours_to_suspend() -> None:
    made = job()
    for manager, ours in ((None, True), (names.JOB_CONTROLLER, True), ("example.com/batch", False)):
        seen = facts(msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, managed_by=manager)))
        assert seen.parkable is ours
        assert seen.made_by == ("" if ours else "controller example.com/batch")


LABELS = {"app": "train", names.QUEUE: "q"}
MADE_FOR = {**dict.fromkeys(names.JOB_NAME, "train"), **dict.fromkeys(names.JOB_UID, "u-train")}
POD_SPEC: dict[str, Any] = {
    "containers": [{"ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "2"}}}],
    "hostNetwork": True,
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "train"}},
            "matchLabelKeys": ["job-name"],
        }
    ],
}


def made_of(spec: dict[str, Any]) -> dict[str, Any]:
    """What the API server makes of such a pod."""
    merged = {"key": "job-name", "operator": "In", "values": ["train"]}
    constraint = spec["topologySpreadConstraints"][0]
    selector = {**constraint["labelSelector"], "matchExpressions": [merged]}
    return {
        "containers": [
            {
                "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}],
                "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}},
            }
        ],
        "hostNetwork": True,
        "topologySpreadConstraints": [{**constraint, "labelSelector": selector}],
        "tolerations": [msgspec.to_builtins(each) for each in GIVEN],
        "priority": 0,
        "schedulerName": "default-scheduler",
        "nodeName": "n1",
    }


@pytest.mark.parametrize("stored", [True, False])
def test_a_template_has_the_very_shape_of_its_pods(stored: bool) -> None:
    labels = {**LABELS, **MADE_FOR}
    made = msgspec.convert(
        {
            "metadata": {
                "name": "train",
                "namespace": "eval",
                "uid": "u-train",
                "resourceVersion": "7" if stored else "",
            },
            "spec": {"template": {"metadata": {"labels": labels if stored else LABELS}, "spec": POD_SPEC}},
        },
        Job,
    )
    pods = [
        pod_of(
            msgspec.convert(
                {
                    "metadata": {"namespace": "eval", "labels": {**labels, names.JOB_INDEX: str(index)}},
                    "spec": made_of(POD_SPEC),
                },
                WirePod,
            )
        )
        for index in range(2)
    ]
    assert pods[0].shape is pods[1].shape is template_shape(made, {})


def test_only_the_users_labels_are_on_the_pods_of_a_job_with_a_selector_of_its_own() -> None:
    by_hand = job(labels={}, template_labels={"app": "a"})
    spec = msgspec.structs.replace(by_hand.spec, manual_selector=True)
    assert template_labels(by_hand) == {
        **dict.fromkeys(names.JOB_NAME, "x"),
        **dict.fromkeys(names.JOB_UID, "u1"),
        "app": "a",
    }
    assert template_labels(msgspec.structs.replace(by_hand, spec=spec)) == {"app": "a"}
