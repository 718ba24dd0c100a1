"""Jobs at the door: what the template gets, what is refused with which words, and what an update may change."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from startgate.audit.record import Decision
from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.queue import QueueSpec
from startgate.model.reasons import Code
from startgate.model.selectors import LabelSelector
from tests.unit.webhook_objects import QUEUE, Json, apply, job, job_json
from webhook import jobs
from webhook.review import NOTHING_OF_OURS, Verdict
from webhook.submission import Facts

OPEN = Facts(queue=QueueSpec())
GATE = {"name": names.GATE}
PARKED = {names.PARKED: "DeadlineParked"}
OURS = {"metadata": {"labels": {**QUEUE}}, "spec": {"containers": [], "schedulingGates": [GATE]}}


def create(value: Json, facts: Facts = OPEN) -> Verdict:
    return jobs.create(job(value), "eval", facts)


def update(old: Json, new: Json, facts: Facts = OPEN, *, phase: Phase | None = None, ours: bool = False) -> Verdict:
    return jobs.update(job(old), job(new), "eval", facts, phase=phase, ours=ours)


def template(value: Json) -> Any:
    return value["spec"]["template"]


def test_a_job_without_our_label_is_not_ours() -> None:
    assert create(job_json()) is NOTHING_OF_OURS
    assert create(job_json({"app": "x"})) is NOTHING_OF_OURS


def test_labels_and_gate_go_into_the_template() -> None:
    value = job_json({**QUEUE, names.MIN_AVAILABLE: "2", "app": "x"}, parallelism=4, completions=4)
    verdict = create(value)
    assert verdict.decision is Decision.GATE
    assert verdict.seen == {"parallelism": 4, "completions": 4, "minAvailable": 2}
    after = apply(verdict, value)
    assert template(after)["metadata"] == {"labels": {names.QUEUE: "q", names.MIN_AVAILABLE: "2"}}
    assert template(after)["spec"]["schedulingGates"] == [GATE]
    assert after["metadata"] == value["metadata"]


@pytest.mark.parametrize(
    ("given", "labels", "gates"),
    [
        ({"spec": {}}, {names.QUEUE: "q"}, [GATE]),
        ({"metadata": None, "spec": {"schedulingGates": None}}, {names.QUEUE: "q"}, [GATE]),
        ({"metadata": {"labels": None}, "spec": {}}, {names.QUEUE: "q"}, [GATE]),
        (
            {"metadata": {"labels": {"a": "b"}}, "spec": {"schedulingGates": [{"name": "other.dev/x"}]}},
            {"a": "b", names.QUEUE: "q"},
            [{"name": "other.dev/x"}, GATE],
        ),
        (
            {"metadata": {"labels": {names.QUEUE: "other", names.MIN_AVAILABLE: "9"}}, "spec": {}},
            {names.QUEUE: "q"},
            [GATE],
        ),
    ],
)
def test_whatever_the_template_has_it_follows_the_job(given: Json, labels: Json, gates: list[Json]) -> None:
    value = job_json(QUEUE, template=given)
    after = apply(create(value), value)
    assert template(after)["metadata"]["labels"] == labels
    assert template(after)["spec"]["schedulingGates"] == gates


@pytest.mark.parametrize(
    ("value", "reason", "words"),
    [
        (job_json({names.QUEUE: ""}), "LabelInvalid", "is empty: name a queue"),
        (job_json({**QUEUE, names.KUEUE_QUEUE: "k"}), "Kueue", "one gatekeeper only"),
        (job_json({**QUEUE, names.MIN_AVAILABLE: "5"}, parallelism=4, completions=9), "MinimumTooHigh", "at most 4"),
        (
            job_json({**QUEUE, names.MIN_AVAILABLE: "5"}, parallelism=9, completions=4),
            "MinimumTooHigh",
            "spec.completions",
        ),
        (job_json({**QUEUE, names.MIN_AVAILABLE: "2"}), "MinimumTooHigh", "at most 1"),
        *[
            (job_json({**QUEUE, names.MIN_AVAILABLE: text}, parallelism=4), "LabelInvalid", "a whole number from 1 on")
            for text in ("0", "-1", "1.5", "", "four", "٤", "1_0", "9" * 60)
        ],
        (job_json(QUEUE, template={"spec": {"nodeName": "n1"}}), "NodeName", "the node n1"),
        (job_json(QUEUE, {names.START_TIMEOUT: "5 min"}), "AnnotationInvalid", "such as 90s, 5m or 1h30m"),
        (job_json(QUEUE, {names.HOLD: "yes"}), "AnnotationInvalid", 'write "true"'),
        (job_json(QUEUE, {names.TOPOLOGY: "the rack"}), "AnnotationInvalid", "the name of a label has letters, digits"),
        (job_json(QUEUE, {names.TOPOLOGY: ""}), "AnnotationInvalid", "can't be empty"),
        (job_json(QUEUE, {names.PREFER_TOPOLOGY: "Example.com/rack"}), "AnnotationInvalid", "in lower case"),
        (job_json(QUEUE, {names.PREFER_TOPOLOGY: "example.com/"}), "AnnotationInvalid", "behind the slash"),
    ],
)
def test_refusals_say_what_to_do(value: Json, reason: str, words: str) -> None:
    verdict = create(value)
    assert (verdict.decision, verdict.reason) == (Decision.REFUSE, reason)
    assert words in verdict.message
    assert not verdict.patch
    assert not verdict.by_facts


@pytest.mark.parametrize("parallelism", [4, None])
def test_the_highest_minimum_is_let_in(parallelism: int | None) -> None:
    minimum = str(parallelism or 1)
    assert create(job_json({**QUEUE, names.MIN_AVAILABLE: minimum}, parallelism=parallelism)).allowed


def test_a_job_that_runs_nothing_yet_may_have_a_minimum() -> None:
    assert create(job_json({**QUEUE, names.MIN_AVAILABLE: "4"}, parallelism=0, completions=8)).allowed


@pytest.mark.parametrize(
    ("facts", "reason", "words"),
    [
        (Facts(queue=None, nearest="q1"), "NoSuchQueue", "there is no queue q (did you mean q1?); create it"),
        (Facts(queue=None), "NoSuchQueue", "there is no queue q; create it"),
        (
            Facts(queue=QueueSpec(namespaces=LabelSelector(match_labels={"team": "eval"})), namespace={"team": "x"}),
            "NamespaceNotAdmitted",
            "queue q does not admit namespace eval",
        ),
        (
            Facts(queue=QueueSpec(max_priority=10), priority=11),
            "PriorityTooHigh",
            "priority 11, and queue q takes priorities up to 10",
        ),
        (Facts(queue=QueueSpec(max_priority=10), priority=None), "NoSuchPriority", "create the class"),
    ],
)
def test_refusals_by_facts_are_marked_so(facts: Facts, reason: str, words: str) -> None:
    verdict = create(job_json(QUEUE), facts)
    assert (verdict.decision, verdict.reason, verdict.by_facts) == (Decision.REFUSE, reason, True)
    assert words in verdict.message


def test_what_the_queue_allows_is_let_in() -> None:
    spec = QueueSpec(namespaces=LabelSelector(match_labels={"team": "eval"}), max_priority=10)
    assert create(job_json(QUEUE), Facts(queue=spec, namespace={"team": "eval"}, priority=10)).allowed
    assert create(job_json(QUEUE), Facts(queue=QueueSpec(), priority=None)).allowed, "no maximum, no question"


def test_a_stopped_queue_takes_jobs_with_a_warning() -> None:
    verdict = create(job_json(QUEUE), Facts(queue=QueueSpec(stopped=True)))
    assert verdict.decision is Decision.GATE
    assert "queue q is stopped" in verdict.warnings[0]


@pytest.mark.parametrize("owner", ["", "CronJob"])
def test_a_job_with_a_deadline_is_parked(owner: str) -> None:
    value = job_json(QUEUE, owner=owner, activeDeadlineSeconds=3)
    verdict = create(value)
    assert (verdict.decision, verdict.reason) == (Decision.PARK, "DeadlineParked")
    after = apply(verdict, value)
    assert after["spec"]["suspend"] is True
    assert after["metadata"]["annotations"] == PARKED


def test_a_job_of_another_controller_is_not_parked_but_warned_of() -> None:
    value = job_json(QUEUE, owner="JobSet", activeDeadlineSeconds=3)
    verdict = create(value)
    assert verdict.decision is Decision.GATE
    assert "belongs to JobSet o" in verdict.warnings[0]
    assert "suspend" not in apply(verdict, value)["spec"]


def test_a_users_own_suspend_stays_the_users_own() -> None:
    value = job_json(QUEUE, suspend=True, activeDeadlineSeconds=3)
    assert "annotations" not in apply(create(value), value)["metadata"]


@pytest.mark.parametrize(
    "value",
    [
        job_json(QUEUE, PARKED),
        job_json(QUEUE, {names.PARKED: "Mine", "a": "b"}, suspend=True),
        job_json(QUEUE, {names.PARKED: "Mine"}, suspend=True, activeDeadlineSeconds=3),
        job_json(QUEUE, PARKED, suspend=True, activeDeadlineSeconds=3, owner="JobSet"),
    ],
)
def test_a_parking_mark_that_a_user_writes_is_dropped(value: Json) -> None:
    assert names.PARKED not in apply(create(value), value)["metadata"]["annotations"]


QUEUES = st.sampled_from(["q", "r"])
LABELS = st.fixed_dictionaries(
    {}, optional={names.QUEUE: QUEUES, names.MIN_AVAILABLE: st.sampled_from(["1", "2", "x"]), "app": st.just("x")}
)
METADATA = st.none() | st.fixed_dictionaries({}, optional={"labels": st.none() | LABELS})
GATES = st.none() | st.lists(
    st.sampled_from([GATE, {"name": "other.dev/x"}]), max_size=2, unique_by=lambda g: g["name"]
)
TEMPLATES = st.fixed_dictionaries(
    {"spec": st.fixed_dictionaries({}, optional={"schedulingGates": GATES})}, optional={"metadata": METADATA}
)
ANNOTATIONS = st.none() | st.fixed_dictionaries(
    {}, optional={names.PARKED: st.sampled_from(["DeadlineParked", "LabelledLater"]), "a": st.just("b")}
)
SUSPEND = st.none() | st.booleans()


@st.composite
def values(draw: st.DrawFn) -> Json:
    return job_json(
        draw(st.none() | LABELS),
        draw(ANNOTATIONS),
        template=draw(TEMPLATES),
        owner=draw(st.sampled_from(["", "CronJob", "JobSet"])),
        suspend=draw(SUSPEND),
        parallelism=draw(st.none() | st.integers(0, 3)),
        activeDeadlineSeconds=draw(st.none() | st.just(3)),
    )


@given(values())
def test_a_created_job_is_behind_our_gate_and_a_second_look_changes_nothing(value: Json) -> None:
    verdict = create(value)
    if names.QUEUE not in (value["metadata"].get("labels") or {}):
        assert verdict is NOTHING_OF_OURS
        return
    if not verdict.allowed:
        return
    after = apply(verdict, value)
    assert GATE in template(after)["spec"]["schedulingGates"]
    assert template(after)["metadata"]["labels"][names.QUEUE] == value["metadata"]["labels"][names.QUEUE]
    if after["metadata"].get("annotations") and names.PARKED in after["metadata"]["annotations"]:
        assert after["spec"]["suspend"] is True
    again = create(after)
    assert (again.patch, again.decision) == ((), verdict.decision)


@given(values(), values(), st.booleans(), st.sampled_from([None, *Phase]))
def test_an_update_keeps_what_must_be_kept(old: Json, new: Json, ours: bool, phase: Phase | None) -> None:
    verdict = update(old, new, phase=phase, ours=ours)
    if not verdict.allowed:
        assert verdict.message
        return
    after = apply(verdict, new)
    if names.QUEUE not in (new["metadata"].get("labels") or {}):
        assert verdict.patch == ()
        return
    marks = [((each["metadata"].get("annotations") or {}).get(names.PARKED)) for each in (old, after)]
    if not after["spec"]["suspend"]:
        assert marks[1] is None, "the mark is on suspended Jobs only"
    elif new["spec"]["suspend"] and not ours:
        # But what looks like our own answer to a resume, when the API server asks again, is left as it is.
        own = (new["metadata"].get("annotations") or {}).get(names.PARKED) == Code.DEADLINE_PARKED
        assert marks[1] == marks[0] or own, "only the controller writes the mark"
    if GATE in (template(old)["spec"].get("schedulingGates") or ()):
        assert GATE in template(after)["spec"]["schedulingGates"]
    assert update(old, after, phase=phase, ours=ours).patch == ()


def test_an_update_about_something_else_is_none_of_ours() -> None:
    value = job_json(QUEUE, template=OURS)
    assert update(value, {**value, "spec": {**value["spec"], "parallelism": 2}}) is NOTHING_OF_OURS


def test_what_came_in_while_we_were_down_does_not_block_other_updates() -> None:
    bad = job_json({**QUEUE, names.MIN_AVAILABLE: "x", names.KUEUE_QUEUE: "k"}, {names.HOLD: "maybe"})
    assert update(bad, {**bad, "spec": {**bad["spec"], "suspend": True}}, Facts(queue=None)).allowed


def test_a_label_that_comes_later_leaves_the_template_to_the_controller() -> None:
    verdict = update(job_json(), job_json(QUEUE))
    assert (verdict.decision, verdict.patch) == (Decision.CHANGE, ())
    assert update(job_json(), job_json(QUEUE), Facts(queue=None)).reason == "NoSuchQueue"


@pytest.mark.parametrize(
    ("phase", "suspended", "allowed"),
    [
        (None, False, True),
        (Phase.WAITING, False, True),
        (Phase.PARKED, False, True),
        (Phase.RELEASING, False, False),
        (Phase.RUNNING, False, False),
        (Phase.RUNNING, True, True),
    ],
)
@pytest.mark.parametrize("labels", [{names.QUEUE: "r"}, {**QUEUE, names.MIN_AVAILABLE: "1"}])
def test_queue_and_minimum_change_until_the_pods_have_passed(
    phase: Phase | None, suspended: bool, allowed: bool, labels: Json
) -> None:
    old = job_json(QUEUE, template=OURS, suspend=suspended, parallelism=2)
    new = job_json(labels, template=OURS, suspend=suspended, parallelism=2)
    assert jobs.needs_phase(job(old), job(new)) is not suspended
    verdict = update(old, new, phase=phase)
    assert verdict.allowed is allowed
    if not allowed:
        assert verdict.reason == "AlreadyReleased"
        assert "set spec.suspend to true first" in verdict.message


def test_suspending_in_the_same_request_is_not_enough() -> None:
    old = job_json(QUEUE, template=OURS)
    new = job_json({names.QUEUE: "r"}, template=OURS, suspend=True)
    assert jobs.needs_phase(job(old), job(new))
    assert not update(old, new, phase=Phase.RUNNING).allowed


def test_the_label_stays_on_a_job_whose_pods_are_born_gated() -> None:
    verdict = update(job_json(QUEUE, template=OURS), job_json({}, template=OURS))
    assert verdict.reason == "LabelRemoved"
    assert "delete the Job and create it without the label" in verdict.message
    assert update(job_json(QUEUE), job_json({})).decision is Decision.CHANGE, "labelled later, never gated"


@pytest.mark.parametrize("ours", [True, False])
def test_a_resumed_job_loses_the_mark(ours: bool) -> None:
    old, new = (
        job_json(QUEUE, {names.PARKED: "NotBoundInTime"}, suspend=True),
        job_json(QUEUE, {names.PARKED: "NotBoundInTime"}, suspend=False),
    )
    verdict = update(old, new, ours=ours)
    assert apply(verdict, new)["metadata"]["annotations"] == {}
    assert apply(verdict, new)["spec"]["suspend"] is False


def test_a_user_who_resumes_a_job_with_a_deadline_only_lets_it_take_its_turn() -> None:
    for mark in (None, PARKED):
        old = job_json(QUEUE, mark, suspend=True, activeDeadlineSeconds=3)
        new = job_json(QUEUE, mark, suspend=False, activeDeadlineSeconds=3)
        verdict = update(old, new)
        after = apply(verdict, new)
        assert verdict.decision is Decision.PARK
        assert "does not run while it waits" in verdict.warnings[0]
        assert (after["spec"]["suspend"], after["metadata"]["annotations"]) == (True, PARKED)
        assert apply(update(old, new, ours=True), new)["spec"]["suspend"] is False, "the controller may"


@pytest.mark.parametrize("new", [{}, {names.PARKED: "Mine"}, None])
def test_only_the_controller_writes_the_mark(new: Json | None) -> None:
    old, changed = job_json(QUEUE, PARKED, suspend=True), job_json(QUEUE, new, suspend=True)
    verdict = update(old, changed)
    assert apply(verdict, changed)["metadata"]["annotations"] == PARKED
    assert "Startgate's own" in verdict.warnings[0]
    assert update(old, changed, ours=True) is NOTHING_OF_OURS


GAVE_WAY = {names.PARKED: "Reclaimed", names.PARKED_MESSAGE: "gave its place to x"}


def test_to_whom_a_job_gave_way_is_the_controllers_to_say() -> None:
    old = job_json(QUEUE, GAVE_WAY, suspend=True)
    changed = job_json(QUEUE, {**GAVE_WAY, names.PARKED_MESSAGE: "I am the best"}, suspend=True)
    assert apply(update(old, changed), changed)["metadata"]["annotations"] == GAVE_WAY
    parked = job_json(QUEUE, {}, suspend=False)
    assert update(parked, old, ours=True) is NOTHING_OF_OURS
    resumed = job_json(QUEUE, GAVE_WAY, suspend=False)
    assert apply(update(old, resumed), resumed)["metadata"]["annotations"] == {}
    assert apply(create(resumed), resumed)["metadata"]["annotations"] == {}


def test_a_gang_with_a_deadline_that_gave_way_and_is_resumed_by_its_user_waits_for_its_turn() -> None:
    old = job_json(QUEUE, GAVE_WAY, suspend=True, activeDeadlineSeconds=3)
    new = job_json(QUEUE, GAVE_WAY, suspend=False, activeDeadlineSeconds=3)
    assert apply(update(old, new), new)["metadata"]["annotations"] == PARKED


def test_gate_and_labels_stay_in_a_suspended_jobs_template() -> None:
    old = job_json(QUEUE, template=OURS, suspend=True)
    new = job_json(QUEUE, template={"spec": {"containers": []}}, suspend=True)
    assert apply(update(old, new), new)["spec"]["template"] == OURS
    follows = {"metadata": {"labels": {names.QUEUE: "r"}}, "spec": OURS["spec"]}
    moved = job_json({names.QUEUE: "r"}, template=follows, suspend=True)
    assert update(old, moved).patch == (), "the template may follow the Job's labels"


DEEP = Facts(queue=QueueSpec(park_beyond=10), waiting=10)
DEEPLY_PARKED = {names.PARKED: "DeepQueue"}


def test_a_job_that_comes_to_a_deep_queue_waits_without_pods() -> None:
    value = job_json(QUEUE, parallelism=4)
    verdict = create(value, DEEP)
    after = apply(verdict, value)
    assert (verdict.decision, verdict.reason) == (Decision.PARK, "DeepQueue")
    assert verdict.seen["waitingPods"] == 10
    assert (after["spec"]["suspend"], after["metadata"]["annotations"]) == (True, DEEPLY_PARKED)
    assert template(after)["spec"]["schedulingGates"] == [GATE]
    again = create(after, OPEN)
    assert (again.decision, again.patch) == (Decision.PARK, ()), "asked again, when the queue isn't deep any more"


@pytest.mark.parametrize(
    ("value", "facts"),
    [
        (job_json(QUEUE), Facts(queue=QueueSpec(park_beyond=10), waiting=9)),
        (job_json(QUEUE, owner="JobSet"), DEEP),
        (job_json(QUEUE, suspend=True), DEEP),
        (job_json(QUEUE, parallelism=0), DEEP),
        (job_json(QUEUE, managedBy="example.com/batch", activeDeadlineSeconds=9), DEEP),
    ],
    ids=["not so deep", "another's Job", "its user's suspend", "no pods", "another's to manage"],
)
def test_a_job_that_is_not_parked_for_the_depth_of_its_queue(value: Json, facts: Facts) -> None:
    after = apply(create(value, facts), value)
    assert names.PARKED not in after["metadata"].get("annotations", {})
    assert after["spec"].get("suspend") == value["spec"].get("suspend")


def test_a_deadline_parks_before_the_depth_of_the_queue() -> None:
    value = job_json(QUEUE, activeDeadlineSeconds=3)
    assert create(value, DEEP).reason == "DeadlineParked"


def test_somebody_who_resumes_a_job_in_a_deep_queue_has_it_at_the_gate() -> None:
    old, new = (job_json(QUEUE, DEEPLY_PARKED, template=OURS, suspend=each) for each in (True, False))
    after = apply(update(old, new, DEEP), new)
    assert (after["spec"]["suspend"], after["metadata"]["annotations"]) == (False, {})


@pytest.mark.parametrize(
    ("value", "pods"),
    [
        (job_json(QUEUE), 1),
        (job_json(QUEUE, parallelism=4), 4),
        (job_json(QUEUE, parallelism=4, completions=2), 2),
        (job_json(QUEUE, parallelism=4, suspend=True), 0),
        (job_json(QUEUE, parallelism=4, template=OURS), 0),
    ],
)
def test_how_many_more_pods_wait_with_a_new_job(value: Json, pods: int) -> None:
    """One that has our gate before we have seen it was counted when it was asked about first."""
    assert jobs.comes_to_wait(job(value)) == pods
