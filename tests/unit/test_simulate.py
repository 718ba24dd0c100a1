"""kubectl gang simulate: what becomes of gangs over time. Each test is a promise of docs/reference/simulate.md."""

from __future__ import annotations

import msgspec
import pytest
import yaml

from startgate.engine.simulate.documents import InputError
from startgate.engine.simulate.report import Happened
from tests.unit.simulation import (
    QUEUE,
    SIMULATE,
    change,
    events,
    job,
    manifests,
    node,
    pod,
    queue,
    starts,
    story,
    template,
    told,
)


def test_a_gang_that_fits_starts_at_once_and_says_nothing_of_waiting() -> None:
    found = story(node(), queue(), job("a", 4, at="10s"))
    (event,) = found.told.events
    assert (event.at, event.gang, event.event, event.reason) == (10, "default/a", "Released", "Running")
    assert event.message == "4 of 4 pods are bound"
    assert event.pods == {f"a-{number}": "n1" for number in range(4)}


def test_a_gang_waits_until_others_have_ended_and_says_why_once() -> None:
    found = story(node(cpu="4"), queue(), job("a", 4, runs="5m"), job("b", 2, at="1m", runs="1m"))
    assert told(found) == [
        (0, "a", "Released"),
        (60, "b", "Waiting"),
        (300, "a", "Finished"),
        (300, "b", "Released"),
        (360, "b", "Finished"),
    ]
    waits = events(found, "b")[0]
    assert waits.reason == "ClusterInUse"
    assert "needs 2 cpu; 4 of 4 in the cluster" in waits.message
    assert not waits.pods


def test_a_wait_is_told_again_only_when_its_reason_is_another() -> None:
    found = story(
        node(cpu="4"),
        queue(),
        job("a", 4, runs="5m"),
        job("b", 4, at="1m"),
        job("c", 1, at="2m", runs="10s"),
        queue(at="3m", stopped=True),
        until=240,
    )
    waits = [(each.at, each.reason) for each in events(found, "b")]
    assert waits == [(60, "ClusterInUse"), (180, "QueueStopped")]


def test_all_or_none() -> None:
    found = story(node("n1", "2"), node("n2", "1"), queue(), job("a", 4))
    assert told(found) == [(0, "a", "Waiting")]
    assert found.told.final.gangs["default/a"].released == 0


def test_a_queue_lets_one_after_the_other_in_the_order_of_the_file() -> None:
    jobs = [job(name, 2, runs="1m") for name in ("c", "a", "b")]
    found = story(node(), queue(capability={"cpu": "2"}), *jobs)
    assert starts(found) == [(0, "c"), (60, "a"), (120, "b")]


def test_who_came_earlier_goes_first_wherever_it_stands_in_the_file() -> None:
    found = story(node(cpu="1"), queue(), job("first", runs="1m"), job("late", at="20s"), job("early", at="10s"))
    assert starts(found)[1] == (60, "early")


def test_a_written_creation_time_is_the_age() -> None:
    old, young = job("young", runs="1m"), job("old", runs="1m")
    old["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    young["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    assert starts(story(node(cpu="1"), queue(), old, young)) == [(0, "old"), (60, "young")]


def test_of_several_shapes_each_pod_gets_a_node_where_it_fits() -> None:
    found = story(node("n1", "2"), node("n2", "1"), queue(), job("a", 3))
    assert sorted(found.told.events[0].pods.values()) == ["n1", "n1", "n2"]


def test_amounts_in_the_end_are_quantities() -> None:
    spec = {
        "template": {
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}]}
        }
    }
    big = node()
    big["status"]["allocatable"]["memory"] = "8Gi"
    found = story(
        big,
        queue(capability={"cpu": "4", "memory": "8Gi"}, deserved={"cpu": "3", "memory": "4Gi"}),
        job("a", 2, spec=spec),
    )
    books = found.told.final.queues["q"]
    assert (books.allocated["cpu"], books.allocated["memory"]) == ("3", "2Gi")
    assert (books.headroom["cpu"], books.headroom["memory"]) == ("1", "6Gi")
    assert books.deserved["cpu"] == "3"
    assert books.share == 1.0


def test_what_is_used_and_not_deserved_has_no_share() -> None:
    found = story(node(), queue(deserved={"cpu": "0"}), queue("other", deserved={"cpu": "8"}), job("a"))
    assert found.told.final.queues["q"].share is None
    assert b'"share":null' in msgspec.json.encode(found.told)


def test_the_document_has_these_fields_and_no_others() -> None:
    made = msgspec.to_builtins(story(node(), queue(), job("a"), job("b", 99)).told)
    assert set(made) == {"events", "final"}
    assert all(set(each) == {"at", "gang", "event", "reason", "message", "pods"} for each in made["events"])
    assert set(made["final"]) == {"gangs", "queues"}
    fields = {"phase", "reason", "message", "released", "minAvailable"}
    assert all(set(each) == fields for each in made["final"]["gangs"].values())
    assert all(set(each) == {"allocated", "deserved", "headroom", "share"} for each in made["final"]["queues"].values())


def test_the_same_input_gives_the_same_bytes() -> None:
    objects = [node(), queue(), *(job(f"j{number}", 1 + number % 4, runs="90s") for number in range(12))]
    assert msgspec.json.encode(story(*objects).told) == msgspec.json.encode(story(*objects).told)


def test_until_is_the_last_moment() -> None:
    objects = [node(cpu="1"), queue(), job("a", runs="1m"), job("b", runs="1m")]
    assert starts(story(*objects, until=59)) == [(0, "a")]
    assert starts(story(*objects, until=60)) == [(0, "a"), (60, "b")]
    assert story(*objects, until=59).ended == 59


def test_times_have_parts_of_seconds() -> None:
    found = story(node(), queue(), job("a", at="1.5s", runs="100ms"))
    assert [each.at for each in found.told.events] == [1.5, 1.6]


# --- what else happens in a cluster -----------------------------------------------------------------------------------


def test_pods_that_are_not_ours_take_room() -> None:
    found = story(node(cpu="4"), queue(), pod("other", "3", gone="2m"), job("a", 2))
    assert told(found) == [(0, "a", "Waiting"), (120, "a", "Released")]


def test_a_bound_pod_stays_where_it_is_and_one_that_terminates_keeps_its_room() -> None:
    found = story(node("n1", "4"), queue(), pod("other", "3", node="n1", gone="2m", terminates="30s"), job("a", 2))
    assert starts(found) == [(150, "a")]


def test_an_unlabelled_job_is_placed_pod_by_pod() -> None:
    found = story(node(cpu="4"), queue(), job("plain", 6, queue="", runs="1m"), job("a", 4))
    assert starts(found) == [(120, "a")], "four of six ran first, then two"


def test_nodes_come_and_grow_and_go() -> None:
    grown = change(node(), "2m", status={"allocatable": {"cpu": "4"}})
    found = story(node(cpu="1"), queue(), job("a", 4), grown)
    assert starts(found) == [(120, "a")]
    assert starts(story(queue(), job("a", 4), node(at="3m"))) == [(180, "a")]
    closed = change(node(), "1m", spec={"unschedulable": True})
    assert starts(story(node(), queue(), closed, job("a", at="2m"))) == []


def test_a_gang_that_loses_a_node_is_mended_where_there_is_room() -> None:
    lossy = job("a", 2, spec={"podFailurePolicy": ignoring_disruptions()})
    found = story(node("n1", "1", gone="1m"), node("n2", "1"), queue(), lossy, node("n3", "1", at="2m"))
    assert starts(found) == [(0, "a"), (120, "a")]
    assert found.told.final.gangs["default/a"].phase == "Running"
    assert found.told.events[-1].pods == {"a-2": "n3"}


def test_a_gang_that_loses_a_node_for_good_is_taken_back_whole_and_tried_again() -> None:
    lossy = job("a", 2, spec={"podFailurePolicy": ignoring_disruptions()})
    found = story(node("n1", "1", gone="1m"), node("n2", "1"), queue(), lossy, node("n3", "1", at="20m"))
    assert told(found)[:2] == [(0, "a", "Released"), (360, "a", "TakenBack")]
    taken = events(found, "a")[1]
    assert taken.reason == "NotBoundInTime"
    assert "1 of 2 pods were bound within 5m" in taken.message
    assert taken.pods == {"a-1": "n2"} or taken.pods == {"a-0": "n2"}
    assert starts(found)[-1] == (1200, "a")


@pytest.mark.parametrize(("ran", "first"), [(9, 20), (11, 10)])
def test_a_gang_that_ran_well_is_taken_back_for_the_first_time_again(ran: int, first: int) -> None:
    """The back-off tells: it is taken back at six minutes, runs from the tenth for so many, and loses a node again."""
    lossy = job("a", 2, spec={"podFailurePolicy": ignoring_disruptions()})
    nodes = [node("n1", "1", gone="1m"), node("n2", "1"), node("n3", "1", at="10m", gone=f"{10 + ran}m")]
    found = story(*nodes, queue(), lossy, node("n4", "1", at=f"{15 + ran}m1s"))
    assert starts(found)[:2] == [(0, "a"), (600, "a")]
    back = (15 + ran) * 60
    assert [at for at, _, what in told(found) if what == "TakenBack"] == [360, back]
    assert back + first <= starts(found)[2][0] <= back + first * 3 / 2


def ignoring_disruptions() -> dict[str, object]:
    return {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}


def test_a_job_that_is_deleted_leaves_no_trace_and_its_room() -> None:
    found = story(node(cpu="2"), queue(), job("a", 2, gone="1m", terminates="10s"), job("b", 2))
    assert told(found) == [(0, "a", "Released"), (0, "b", "Waiting"), (70, "b", "Released")]
    assert "default/a" not in found.told.final.gangs


def test_a_job_of_the_same_name_starts_on_its_own_while_the_old_ones_pods_terminate() -> None:
    again = job("a", 2, at="1m")
    found = story(node(cpu="4"), queue(), job("a", 2, gone="1m", terminates="1m"), again)
    assert starts(found) == [(0, "a"), (60, "a")]


def test_a_second_document_changes_what_it_names_and_nothing_else() -> None:
    first = job("a", 4, runs="10m")
    scaled = change(first, "1m", spec={"parallelism": 0})
    found = story(node(cpu="4"), queue(), first, scaled, job("b", 4))
    assert starts(found) == [(0, "a"), (60, "b")]
    assert found.told.final.gangs["default/a"].reason == "PodsMissing"


def test_a_change_that_comes_first_in_the_file_is_a_change_all_the_same() -> None:
    first = queue(capability={"cpu": "1"})
    raised = queue(at="5m", capability={"cpu": "4"})
    assert starts(story(raised, node(), first, job("a", 4))) == [(300, "a")]


def test_a_pod_is_resized_in_place() -> None:
    resized = change(pod("a-0"), "1m", spec=template("3")["spec"])
    found = story(node(), queue(capability={"cpu": "4"}), job("a"), job("b", 2, at="2m"), resized)
    assert [(each.at, each.event, each.reason) for each in events(found, "b")] == [(120, "Waiting", "QueueCapability")]
    assert found.told.final.queues["q"].allocated["cpu"] == "3"


def test_a_jobs_pod_is_deleted_by_its_name() -> None:
    gone = change(pod("a-0"), "1m")
    gone["metadata"]["annotations"][f"{SIMULATE}gone"] = "1m"
    found = story(node(), queue(), job("a", 2), gone)
    assert told(found) == [(0, "a", "Released"), (70, "a", "Released")], "its Job waits 10 s after a failure"
    assert list(found.told.events[1].pods) == ["a-2"]


def test_limit_ranges_fill_in_what_containers_leave_out() -> None:
    limits = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "defaults"},
        "spec": {"limits": [{"type": "Container", "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}]},
    }
    bare = {"template": {"spec": {"containers": [{"name": "c"}]}}}
    limited = {"template": {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "3"}}}]}}}
    found = story(node(), queue(), limits, job("a", 2, spec=bare), job("b", 1, spec=limited))
    assert found.told.final.queues["q"].allocated["cpu"] == "5"


def test_a_priority_class_that_is_nowhere_counts_as_none_and_is_said() -> None:
    found = story(node(), queue(), job("a", 2, spec={"template": template(priorityClassName="missing")}))
    assert starts(found) == [(0, "a")]
    assert found.notes == ("There is no PriorityClass missing in the files; it counts as priority 0.",)


def test_priority_goes_before_age() -> None:
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 100}
    urgent = job("urgent", at="10s", spec={"template": template(priorityClassName="high")})
    found = story(node(cpu="1"), queue(), high, job("first", runs="1m", spec=never()), job("old"), urgent, until=60)
    assert [gang for _, gang in starts(found)][-1] == "urgent"


def never() -> dict[str, object]:
    """Its PriorityClass is above all, so that nobody takes its place."""
    return {"template": template(priority=1000)}


def test_a_job_whose_pods_are_made_otherwise_than_its_template_gives_its_quota_back_at_once_and_says_why() -> None:
    limits = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "defaults"},
        "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "9"}}]},
    }
    bare = {"activeDeadlineSeconds": 600, "template": {"spec": {"containers": [{"name": "c"}]}}}
    found = story(node(), queue(), limits, job("a", 2, spec=bare), job("b", 8, at="1s"), until=45)
    back = events(found, "a")
    first, second, third = [each.at for each in back if each.event is Happened.TAKEN_BACK]
    assert first == 0
    assert 10 <= second <= 15
    assert 20 <= third - second <= 30
    assert "its pods, as they were made, couldn't go: no node can take its pods (9 cpu each)" in back[0].message
    end = found.told.final.gangs["default/a"]
    assert (end.phase, end.reason) == ("Parked", "BackingOff")
    assert "no node can take its pods (9 cpu each)" in end.message
    assert starts(found) == [(1, "b")]


# --- the webhook's part, and what our controller does to Jobs ---------------------------------------------------------


def test_a_job_with_a_deadline_waits_suspended_and_its_deadline_runs_from_its_start() -> None:
    late = job("late", at="1m", spec={"activeDeadlineSeconds": 30})
    found = story(node(cpu="1"), queue(), job("a", runs="5m"), late)
    assert [(each.at, each.event) for each in events(found, "late")] == [
        (60, "Waiting"),
        (300, "Released"),
        (330, "Finished"),
    ]
    assert "DeadlineExceeded" in events(found, "late")[-1].message


def test_a_suspended_job_waits_for_its_user_and_one_on_hold_too() -> None:
    resting = job("resting", spec={"suspend": True})
    held = job("held")
    held["metadata"]["annotations"]["startgate.dev/hold"] = "true"
    resumed = change(resting, "2m", spec={"suspend": False})
    freed = change(held, "3m")
    freed["metadata"]["annotations"]["startgate.dev/hold"] = None
    found = story(node(), queue(), resting, held, resumed, freed)
    assert starts(found) == [(120, "resting"), (180, "held")]
    assert {each.reason for each in found.told.events if each.event is Happened.WAITING} == {"Suspended", "OnHold"}


def test_a_label_on_the_template_alone_is_enough() -> None:
    plain = job("a", 2, queue="")
    plain["spec"]["template"]["metadata"] = {"labels": {QUEUE: "q"}}
    assert starts(story(node(), queue(), plain)) == [(0, "a")]


def test_a_queue_takes_only_namespaces_that_it_selects() -> None:
    team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a", "labels": {"team": "a"}}}
    inside, outside = job("inside"), job("outside")
    inside["metadata"]["namespace"] = "team-a"
    found = story(node(), queue(namespaces={"matchLabels": {"team": "a"}}), team, inside, outside)
    assert [(each.gang, each.event, each.reason) for each in found.told.events] == [
        ("team-a/inside", "Released", "Running"),
        ("default/outside", "Waiting", "NamespaceNotAdmitted"),
    ]
    by_name = queue(namespaces={"matchLabels": {"kubernetes.io/metadata.name": "team-a"}})
    assert starts(story(node(), by_name, inside, outside)) == [(0, "team-a/inside")]


def test_a_bare_labelled_pod_is_a_gang_of_its_own() -> None:
    found = story(node(cpu="1"), queue(), job("a", runs="1m"), pod("alone", queue="q"))
    assert starts(found) == [(0, "a"), (60, "pod-alone")]


def test_pods_that_were_running_are_charged_and_followed() -> None:
    running = pod("a-0", node="n1", queue="q")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "controller": True}
    running["metadata"] |= {"ownerReferences": [owner]}
    found = story(node(), queue(capability={"cpu": "1"}), job("a", runs="90s"), running, job("b"))
    assert told(found) == [(0, "b", "Waiting"), (90, "a", "Finished"), (90, "b", "Released")]


def test_a_foreign_gate_keeps_a_gang_from_running_and_the_simulation_ends_all_the_same() -> None:
    gated = job("a", spec={"template": template(schedulingGates=[{"name": "example.com/other"}])})
    found = story(node(), queue(), gated)
    assert told(found)[:2] == [(0, "a", "Released"), (300, "a", "TakenBack")]
    assert found.told.events[0].pods == {"a-0": ""}
    assert found.told.events[0].reason == "ForeignGate"
    assert "default/a had been taken back 20 times" in " ".join(found.notes)


def test_a_simulation_that_does_too_much_is_left_off_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("startgate.engine.simulate.run.MOST_EVENTS", 200)
    endless = job("a", spec={"completions": 100_000}, runs="1s")
    found = story(node(), queue(), endless)
    assert "more than 200 things were done" in " ".join(found.notes)
    assert found.told.final.gangs["default/a"].phase == "Running"


# --- giving way -------------------------------------------------------------------------------------------------------


def test_a_gang_that_gives_way_frees_its_room_when_its_pods_are_gone() -> None:
    greedy = [job(f"a{number}", 2, queue="qa", terminates="1m") for number in range(4)]
    found = story(
        node(),
        queue("qa", deserved={"cpu": "4"}),
        queue("qb", deserved={"cpu": "4"}),
        *greedy,
        job("b", 4, queue="qb", at="10s"),
    )
    reclaimed = [each for each in found.told.events if each.event is Happened.RECLAIMED]
    assert [each.gang for each in reclaimed] == ["default/a3", "default/a2"], "the youngest first"
    assert {each.reason for each in reclaimed} == {"Reclaimed"}
    assert all(set(each.pods.values()) == {"n1"} and len(each.pods) == 2 for each in reclaimed)
    assert (events(found, "b")[0].event, events(found, "b")[0].reason) == ("Waiting", "MakingRoom")
    assert starts(found)[-1] == (70, "b")
    assert found.told.final.gangs["default/a3"].phase == "Parked"


def test_a_reclaimed_job_counts_no_failure_and_completes_later() -> None:
    fragile = job("a", 4, queue="qa", runs="5m", spec={"backoffLimit": 0})
    claimant = job("b", 4, queue="qb", at="1m", runs="2m")
    found = story(node(cpu="4"), queue("qa"), queue("qb", deserved={"cpu": "4"}), fragile, claimant)
    assert told(found) == [
        (0, "a", "Released"),
        (60, "a", "Reclaimed"),
        (60, "b", "Released"),
        (60, "a", "Waiting"),
        (180, "b", "Finished"),
        (180, "a", "Released"),
        (480, "a", "Finished"),
    ]
    assert "it completed" in found.told.events[-1].message


def test_a_higher_priority_takes_a_lower_gangs_place() -> None:
    low = job("low", 2, spec={"template": template("3")})
    high = job("high", 1, at="1m", spec={"template": template("3", priority=10)})
    found = story(node(cpu="6"), queue(), low, high)
    assert [(at, gang, what) for at, gang, what in told(found) if what == "Preempted"] == [(60, "low", "Preempted")]
    assert starts(found) == [(0, "low"), (60, "high")]


def test_who_gave_way_is_not_back_before_the_claimant_though_that_waits_for_others_too() -> None:
    """The proof counts on what ends slowly by itself; the victim is gone long before."""
    busy = job("busy", spec=never())
    ending = job("ending", 1, "2", spec={"template": template("2", priority=1000)}, gone="10s", terminates="1m")
    victim = job("victim")
    claimant = job("claimant", at="20s", spec={"template": template("3", priority=10)})
    found = story(node(cpu="4"), queue(), busy, ending, victim, claimant, until=100)
    assert told(found, Happened.PREEMPTED) == [(20, "victim", "Preempted")]
    assert [start for start in starts(found) if start[0]] == [(70, "claimant")]


def test_what_is_kept_for_an_overdue_gang_gives_nobody_the_rest_of_its_guarantee() -> None:
    """On its node others have to end first; its queue's guarantee is kept in full all the same."""
    given = (queue("a", guarantee={"cpu": "4"}), queue("b", reclaimable=False))
    here, there = job("here", 1, "2", queue="b", runs="1h"), job("there", 1, "3", queue="b", runs="2h")
    overdue, late = job("overdue", 1, "4", queue="a", at="1m"), job("late", queue="b", at="20m")
    found = story(node("n1", "4"), node("n2", "5"), *given, here, there, overdue, late)
    assert starts(found) == [(0, "here"), (0, "there"), (3600, "overdue"), (3600, "late")]
    assert events(found, "late")[0].reason == "GuaranteeKept"


def test_who_is_spared_in_the_end_does_not_make_the_claimant_poorer_for_the_proof() -> None:
    """All of b's one gang would have to go, and a has the greater share: by its gang on cpu, which would stay."""
    gpus = {"template": {"spec": {"containers": [{"name": "m", "resources": {"requests": {"gpu": "1"}}}]}}}
    large = node()
    large["status"]["allocatable"]["gpu"] = "8"
    given = (large, queue("a", deserved={"cpu": "0", "gpu": "4"}), queue("b", deserved={"gpu": "4"}))
    claimant = job(
        "claimant", 3, queue="a", at="1m", spec={"template": {"spec": {**gpus["template"]["spec"], "priority": 1}}}
    )
    found = story(*given, job("small", queue="a", at="5s"), job("big", 8, queue="b", spec=gpus), claimant, until=90)
    assert starts(found) == [(0, "big"), (5, "small")]


def test_a_gang_that_no_empty_cluster_could_take_does_not_wait_for_others_to_end() -> None:
    """There is enough in sum, and some of it is in use."""
    large = job("large", 2, "3", at="1m")
    found = story(node("n1", "4"), node("n2", "2"), queue(), job("a", runs="5m"), large)
    assert [each.reason for each in events(found, "large")] == ["NeverFits"]


# --- dumps ------------------------------------------------------------------------------------------------------------


def stored(what: dict[str, object], uid: str, **more: object) -> dict[str, object]:
    """As it comes out of a cluster."""
    metadata = what["metadata"]
    assert isinstance(metadata, dict)
    metadata |= {"uid": uid, "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**what, **more}


def dumped_gang(name: str, uid: str, **status: object) -> dict[str, object]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
    return {
        "apiVersion": "startgate.dev/v1alpha1",
        "kind": "Gang",
        "metadata": {"name": f"job-{name}", "namespace": "default", "ownerReferences": [owner]},
        "spec": {"queue": "q", "minAvailable": 1, "pods": 1},
        "status": status,
    }


def dumped_job(name: str, uid: str, **spec: object) -> dict[str, object]:
    made = job(name, spec=dict(spec))
    made["spec"]["template"]["metadata"] = {"labels": {QUEUE: "q"}}
    made["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "startgate.dev/gang"}]
    return stored(made, uid)


def test_a_gang_of_a_dump_keeps_its_age() -> None:
    old = dumped_gang("b", "u2", since="2025-12-31T00:00:00Z")
    found = story(node(cpu="1"), queue(), dumped_job("a", "u1"), dumped_job("b", "u2"), old)
    assert starts(found) == [(0, "b")]


def test_a_gang_of_a_dump_that_was_taken_back_isnt_tried_before_its_time() -> None:
    tired = dumped_gang("a", "u1", phase="Parked", takenBack=2, notBefore="2026-01-01T00:00:40Z")
    parked = dumped_job("a", "u1", suspend=True)
    metadata = parked["metadata"]
    assert isinstance(metadata, dict)
    metadata["annotations"]["startgate.dev/parked"] = "NotBoundInTime"
    found = story(node(), queue(), parked, tired)
    assert [(each.at, each.event, each.reason) for each in events(found, "a")] == [
        (0, "Waiting", "BackingOff"),
        (40, "Released", "Running"),
    ]


def test_an_admission_of_a_dump_goes_before_those_who_wait() -> None:
    admitted = dumped_gang(
        "b", "u2", phase="Releasing", admission={"id": "x", "at": "2026-01-01T00:00:00Z", "slots": 1}
    )
    found = story(node(cpu="1"), queue(), dumped_job("a", "u1"), dumped_job("b", "u2"), admitted)
    assert starts(found) == [(0, "b")]


def test_what_is_held_for_a_claimant_of_a_dump_stays_its_own() -> None:
    victim = dumped_job("victim", "u1", suspend=True)
    leaving = pod("victim-x", node="n1", queue="q")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "victim", "uid": "u1", "controller": True}
    leaving["metadata"]["ownerReferences"] = [owner]
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    for what in (victim, leaving):
        metadata = what["metadata"]
        assert isinstance(metadata, dict)
        metadata["annotations"]["startgate.dev/parked"] = "Reclaimed"
    pledge = {"id": "x", "at": "2026-01-01T00:00:00Z", "rule": "priority", "victims": ["default/job-victim"]}
    claimant = dumped_gang("b", "u3", claim=pledge)
    objects = [node(cpu="1"), queue(), victim, stored(leaving, "p1", status={"phase": "Running"})]
    objects += [dumped_job("a", "u2"), dumped_job("b", "u3")]
    assert starts(story(*objects, claimant)) == [(30, "b")]
    assert starts(story(*objects)) == [(30, "a")]


def test_a_gang_of_an_older_job_of_the_name_says_nothing() -> None:
    stale = dumped_gang("a", "another", admission={"id": "x", "at": "2026-01-01T00:00:00Z", "slots": 1})
    found = story(node(cpu="1"), queue(), dumped_job("b", "u2"), dumped_job("a", "u1"), stale)
    assert starts(found) == [(0, "a")], "of one age, the name decides"


def test_a_job_that_is_labelled_later_waits_as_a_gang_from_then_on() -> None:
    late = job("late", 2, queue="")
    labelled = change(late, "1m")
    labelled["metadata"]["labels"] = {QUEUE: "q"}
    found = story(node(cpu="2"), queue(), pod("other", node="n1", gone="3m"), pod("more", gone="2m"), late, labelled)
    assert starts(found) == [(180, "late")], "one of its pods would have fitted at 2m"


def test_a_job_that_is_taken_out_of_a_dump_goes_with_its_pods() -> None:
    left = pod("a-x", node="n1", queue="q")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "u1", "controller": True}
    left["metadata"]["ownerReferences"] = [owner]
    without = dumped_job("a", "u1")
    metadata = without["metadata"]
    assert isinstance(metadata, dict)
    metadata["annotations"][f"{SIMULATE}gone"] = "0s"
    found = story(node(cpu="1"), queue(), without, stored(left, "p1", status={"phase": "Running"}), job("b"))
    assert told(found) == [(0, "b", "Released")]


def test_jobs_that_had_ended_hold_nothing_and_are_not_news() -> None:
    ended = dumped_job("a", "u1")
    ended["status"] = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
    left = pod("a-x", node="n1", queue="q")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "u1", "controller": True}
    left["metadata"]["ownerReferences"] = [owner]
    left = stored(left, "p1", status={"phase": "Succeeded"})
    found = story(node(cpu="1"), queue(), ended, left, job("b"))
    assert told(found) == [(0, "b", "Released")]
    assert found.told.final.gangs["default/a"].phase == "Finished"


def test_a_pod_of_a_dump_runs_on_from_when_it_started() -> None:
    running = pod("p", node="n1", runs="10m")
    running = stored(running, "p1", status={"phase": "Running", "startTime": "2026-01-01T00:00:00Z"})
    later = stored(node(cpu="1"), "n1")
    later["status"] = {
        "allocatable": {"cpu": "1"},
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:04:00Z"}],
    }
    assert starts(story(later, queue(), running, job("a"))) == [(360, "a")]


def test_a_node_of_a_dump_that_isnt_ready_offers_nothing() -> None:
    lost = stored(node(), "n1")
    lost["status"] = {"allocatable": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "Unknown"}]}
    assert starts(story(lost, queue(), job("a"))) == []


def test_the_input_is_left_as_it_was() -> None:
    given = manifests(node(), queue(), job("a"), change(job("a"), "1m", spec={"parallelism": 0}))
    before = yaml.safe_dump([each.raw for each in given])
    from startgate.engine.simulate.run import simulate

    simulate(given)
    assert yaml.safe_dump([each.raw for each in given]) == before


def test_more_pods_than_can_be_made_are_refused() -> None:
    with pytest.raises(InputError, match="1000000 pods at once are more than simulate makes"):
        story(node(), queue(), job("a", 1_000_000))


@pytest.mark.parametrize(("beyond", "said"), [(3, 1), (4, 0), (None, 0)])
def test_a_queue_so_deep_that_a_cluster_would_park_is_said(beyond: int | None, said: int) -> None:
    its = queue() if beyond is None else queue(parkBeyond=beyond)
    found = story(node(cpu="1"), its, job("a", 2), job("b", 2, at="1s"), job("run", 1, runs="1m"))
    assert len(found.notes) == said
    assert all("up to 4 pods wait at the gate, beyond its parkBeyond (3)" in note for note in found.notes)


def test_what_is_alike_is_told_as_one() -> None:
    tenants = [queue(name, deserved={"cpu": "3"}) for name in "abcde"]
    jobs = [job(name, spec={"template": template(priorityClassName=name)}) for name in ("high", "low")]
    found = story(node(cpu="4"), *tenants, *jobs)
    assert [note.partition(":")[0] for note in found.notes] == [
        "2 PriorityClasses aren't in the files (high, low); they count as priority 0.",
        "5 queues can't hold as they are written (a, b, c and 2 more)",
    ]
    deep = [queue(name, parkBeyond=1) for name in "ab"]
    found = story(node(cpu="1"), *deep, *(job(name, 2, queue=name) for name in "ab"))
    assert found.notes == (
        "In 2 queues more pods wait at the gate than their parkBeyond says (a, b). In a cluster, Jobs that come then "
        "wait suspended, without pods; their turn is the same.",
    )
