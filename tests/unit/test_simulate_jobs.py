"""The Job controller of a simulation: which pods it makes, counts and gives up. Seen through what becomes of gangs."""

from __future__ import annotations

from typing import Any

import pytest

from startgate.engine.simulate.report import Event, Happened, Story
from tests.unit.simulation import SIMULATE, change, events, job, node, pod, queue, starts, story, template, told

INDEXED = {"completionMode": "Indexed"}


def released(found: Story, gang: str = "a") -> list[tuple[float, list[str]]]:
    return [(each.at, list(each.pods)) for each in events(found, gang) if each.event is Happened.RELEASED]


def last(found: Story, gang: str = "a") -> Event:
    return events(found, gang)[-1]


def deleted(name: str, at: str) -> dict[str, Any]:
    """The pod of this name is deleted by somebody then."""
    what = change(pod(name), at)
    what["metadata"]["annotations"][f"{SIMULATE}gone"] = at
    return what


def test_followers_take_the_slots_of_those_that_ended_without_queueing() -> None:
    found = story(node(cpu="2"), queue(), job("a", 2, runs="1m", spec={"completions": 5}), job("b", 2))
    assert released(found) == [(0, ["a-0", "a-1"]), (60, ["a-2", "a-3"]), (120, ["a-4"])]
    assert told(found, Happened.FINISHED)[0] == (180, "a", "Finished")
    assert starts(found)[-1] == (180, "b"), "the last pod of a still has its slot; b needs two"


def test_indexes_are_made_lowest_first_and_each_once() -> None:
    found = story(node(), queue(), job("a", 2, runs="1m", spec={"completions": 3, **INDEXED}))
    assert released(found) == [(0, ["a-0", "a-1"]), (60, ["a-2"])]


def test_indexes_that_were_done_before_arent_made_again() -> None:
    done = job("a", 4, spec=INDEXED)
    done["status"] = {"succeeded": 1, "completedIndexes": "1"}
    found = story(node(), queue(), done)
    assert released(found) == [(0, ["a-0", "a-2", "a-3"])]
    assert found.told.final.gangs["default/a"].min_available == 3


def test_a_work_queue_is_complete_when_one_has_succeeded_and_none_is_left() -> None:
    work = job("a", 2, spec={"completions": None})
    del work["spec"]["completions"]
    first, second = change(pod("a-0"), "1m"), change(pod("a-1"), "3m")
    for what in (first, second):
        what["status"] = {"phase": "Succeeded"}
    found = story(node(), queue(), work, first, second)
    assert told(found) == [(0, "a", "Released"), (180, "a", "Finished")]


def test_a_job_without_pods_to_make_is_complete_at_once() -> None:
    assert told(story(node(), queue(), job("a", 1, spec={"completions": 0}))) == [(0, "a", "Finished")]


def test_pods_that_are_deleted_while_they_wait_are_made_again() -> None:
    found = story(node(cpu="2"), queue(), job("big", 2, runs="2m"), job("a", 2), deleted("a-0", "1m"))
    assert released(found) == [(120, ["a-1", "a-2"])]


def test_a_failure_puts_off_the_next_pod_and_too_many_end_the_job() -> None:
    fragile = job("a", 2, spec={"backoffLimit": 1})
    found = story(node(), queue(), fragile, deleted("a-0", "1m"), deleted("a-1", "5m"))
    assert released(found) == [(0, ["a-0", "a-1"]), (70, ["a-2"])]
    assert (last(found).at, last(found).event) == (300, "Finished")
    assert "BackoffLimitExceeded" in last(found).message


def test_back_off_doubles() -> None:
    found = story(node(), queue(), job("a", 1), deleted("a-0", "1m"), deleted("a-1", "2m"), deleted("a-2", "3m"))
    assert [at for at, _ in released(found)] == [0, 70, 140, 220]


@pytest.mark.parametrize(("action", "ends"), [("Ignore", False), ("Count", True), ("FailJob", True)])
def test_what_a_lost_node_means_to_a_job_is_its_policys_say(action: str, ends: bool) -> None:
    policy = {"rules": [{"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
    fragile = job("a", 1, spec={"backoffLimit": 0, "podFailurePolicy": policy})
    found = story(node("n1", gone="1m"), queue(), fragile, node("n2", at="2m"))
    assert (last(found).event is Happened.FINISHED) == ends


def test_pods_that_dont_tolerate_a_taint_that_comes_are_evicted() -> None:
    tainted = change(node(), "1m", spec={"taints": [{"key": "gone", "effect": "NoExecute"}]})
    strong = job("strong", spec={"template": template(tolerations=[{"operator": "Exists"}])})
    found = story(node(), queue(), job("a"), strong, tainted, node("n2", at="2m"))
    assert [list(each.pods.values()) for each in events(found, "a") if each.event is Happened.RELEASED] == [
        ["n1"],
        ["n2"],
    ]
    assert len(events(found, "strong")) == 1


def test_a_deadline_ends_a_job_and_frees_its_room() -> None:
    found = story(
        node(cpu="2"), queue(), job("a", 2, spec={"activeDeadlineSeconds": 60}, terminates="10s"), job("b", 2)
    )
    assert told(found) == [
        (0, "a", "Released"),
        (0, "b", "Waiting"),
        (70, "a", "Finished"),
        (70, "b", "Released"),
    ]
    assert "DeadlineExceeded" in last(found, "a").message


def test_a_job_scaled_down_lets_those_at_the_gate_go_first() -> None:
    first = job("a", 4, spec={"completions": 8})
    first["metadata"]["labels"]["startgate.dev/min-available"] = "2"
    found = story(node(cpu="2"), queue(), first, change(first, "1m", spec={"parallelism": 2}))
    assert found.told.final.gangs["default/a"].released == 2
    assert len(told(found, Happened.RELEASED)) == 1


def test_a_job_that_is_suspended_by_its_user_gives_its_room_back_and_starts_again_when_resumed() -> None:
    first = job("a", 4, terminates="5s")
    rests, goes_on = change(first, "1m", spec={"suspend": True}), change(first, "5m", spec={"suspend": False})
    found = story(node(cpu="4"), queue(), first, rests, goes_on, job("b", 4, runs="1m"))
    assert starts(found) == [(0, "a"), (65, "b"), (300, "a")]
    assert events(found, "a")[1].reason == "Suspended"


def test_pods_are_made_again_only_when_the_old_ones_are_gone_where_the_job_says_so() -> None:
    first = job("a", 2, terminates="30s", spec={"podReplacementPolicy": "Failed"})
    found = story(node(), queue(), first, deleted("a-0", "1m"))
    assert [at for at, _ in released(found)] == [0, 90]


def test_elastic_gangs_run_what_fits_and_the_rest_joins() -> None:
    elastic = job("a", 10)
    elastic["metadata"]["labels"]["startgate.dev/min-available"] = "9"
    wide = queue(at="2m", capability={"cpu": "10"})
    found = story(node(cpu="16"), queue(capability={"cpu": "9"}), elastic, wide)
    assert [(at, len(pods)) for at, pods in released(found)] == [(0, 9), (120, 1)]
    assert found.told.final.gangs["default/a"].released == 10


def test_what_another_controller_runs_is_left_to_it() -> None:
    assert told(story(node(), queue(), job("a", spec={"managedBy": "example.com/other"}))) == [(0, "a", "Waiting")]


def test_how_long_its_pods_run_may_be_said_later() -> None:
    first = job("a", 2)
    guess = change(first, "1s")
    guess["metadata"]["annotations"][f"{SIMULATE}runs"] = "10m"
    found = story(node(), queue(), first, guess)
    assert told(found) == [(0, "a", "Released"), (600, "a", "Finished")]


def test_pods_of_a_deleted_job_take_their_time_too() -> None:
    found = story(node(cpu="2"), queue(), job("a", 2, gone="1m", terminates="20s"), job("b", 2))
    assert starts(found) == [(0, "a"), (80, "b")]
