"""Scenario files, offline: each one read, simulated, and held to what it expects (tests/scenarios/README.md)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from startgate.cli.main import main
from tests.scenario import Event, Happening, Scenario, ScenarioError, files, gang_key

CASES = range(1, 27)
"""Of the cases from the field, those about quota, order, fairness, reclaim and preemption."""


def story_of(events: list[dict[str, Any]]) -> list[Happening]:
    """The events as simulate prints them."""
    return [
        Happening(
            at=each["at"],
            order=order,
            gang=each["gang"],
            event=Event(each["event"]),
            reason=each.get("reason", ""),
            message=each.get("message", ""),
            nodes=Counter(each.get("pods", {}).values()),
        )
        for order, each in enumerate(events)
    ]


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_scenario(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = Scenario.read(path)
    document = scenario.document
    flags = ["--until", document.until, "--patience", document.patience]
    assert main(["simulate", "-f", str(path), "-o", "json", *flags]) == 0
    told = json.loads(capsys.readouterr().out)
    story = story_of(told["events"])
    problems = [*scenario.failures(story, exact=True), *scenario.final_failures(told["final"], exact=True)]
    assert not problems, "\n".join(
        [document.title, *problems, "", *map(str, story), json.dumps(told["final"], indent=1)]
    )


def test_every_case_has_a_scenario() -> None:
    told = {Scenario.read(path).document.case for path in files()}
    assert set(CASES) <= told


# --- the language itself ----------------------------------------------------------------------------------------------

MANIFESTS = """
---
{apiVersion: startgate.dev/v1alpha1, kind: Queue, metadata: {name: q}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: a, labels: {startgate.dev/queue: q}, annotations: {simulate.startgate.dev/at: 10s}}
spec: {template: {spec: {containers: [{name: main}]}}}
"""
SOUND: dict[str, Any] = {
    "apiVersion": "simulate.startgate.dev/v1",
    "kind": "Scenario",
    "metadata": {"name": "a-starts"},
    "title": "It starts.",
    "until": "1m",
    "offline": "there is nothing to see",
    "expect": [{"gang": "a", "event": "Released", "at": "10s"}],
}


def read(folder: Path, **fields: object) -> Scenario:
    path = folder / "a-starts.yaml"
    path.write_text(json.dumps({key: value for key, value in {**SOUND, **fields}.items() if value}) + MANIFESTS)
    return Scenario.read(path)


def happened(at: float, event: Event = Event.RELEASED, gang: str = "a", **fields: object) -> Happening:
    return Happening(at=at, order=round(at), gang=gang_key(gang), event=event, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"metadata": {"name": "b-starts"}}, "not that of the file"),
        ({"case": 3}, "starts with case-NN-"),
        ({"kind": "Scenarios"}, "0 documents of kind Scenario"),
        ({"apiVersion": "v1"}, "apiVersion is v1"),
        ({"until": "soon"}, "is not a duration"),
        ({"until": "5s"}, "appears after the end"),
        ({"offline": None}, "say in `plane`"),
        ({"plane": "20s"}, "say in `plane`"),
        ({"plane": "5s", "offline": None}, "appears after the end"),
        ({"expected": ["a"]}, "unknown field `expected`"),
        ({"expect": None}, "it expects nothing"),
        ({"expect": SOUND["expect"] * 2}, "the same thing twice"),
        ({"final": {"gangs": {"b": {"phase": "Running"}}}}, "there is no gang b"),
        ({"final": {"gangs": {"a": {}}}}, "nothing is said of gang a"),
        ({"final": {"queues": {"p": {"share": 1}}}}, "there is no queue p"),
        ({"final": {"queues": {"q": {}}}}, "nothing is said of queue q"),
        ({"final": {"queues": {"q": {"allocated": {}}}}}, "nothing is said of queue q"),
        ({"final": {"queues": {"q": {"use": {"cpu": "1"}}}}}, "unknown field `use`"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, fields: dict[str, object], why: str) -> None:
    with pytest.raises(ScenarioError, match=f"a-starts.yaml: .*{why}"):
        read(tmp_path, **fields)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"gang": "a", "event": "Started"}, "Invalid enum value"),
        ({"gang": "a", "event": "Released", "when": "10s"}, "unknown field `when`"),
        ({"gang": "a", "event": "Waiting", "reason": "Busy"}, "Invalid enum value"),
        ({"gang": "a"}, "either `event` or `never`"),
        ({"gang": "a", "event": "Released", "never": "Released"}, "either `event` or `never`"),
        ({"gang": "b", "event": "Released"}, "there is no gang b"),
        ({"gang": "a*", "event": "Released"}, "there is no gang a"),
        ({"gang": "b*", "never": "Released"}, "no gang is called b"),
        ({"gang": "a", "event": "Released", "at": "2m"}, "is after the end"),
        ({"gang": "a", "event": "Released", "within": "2s"}, "goes with `at`"),
        ({"gang": "a", "event": "Released", "nth": 0}, "counts from 1"),
        ({"gang": "a", "event": "Waiting", "pods": 2}, "of gangs that are released"),
        ({"gang": "a", "event": "Released", "after": "b Finished"}, "there is no gang b"),
        ({"gang": "a", "event": "Released", "after": "a Ended"}, "there is no event Ended"),
        ({"gang": "a", "event": "Released", "after": "a Finished early"}, "is not a duration"),
        ({"event": "Released", "count": 0}, "say `never`"),
        ({"never": "Released", "count": 1}, "goes with `event`"),
        ({"event": "Released", "count": 1, "at": "10s"}, "about one event"),
        ({"never": "Released", "gang": "a", "before": "10s"}, "they aren't there before"),
        ({"never": "Released", "gang": "a", "after": "1m"}, "that's the end"),
    ],
)
def test_an_expectation_that_says_nothing_is_refused(tmp_path: Path, line: dict[str, object], why: str) -> None:
    with pytest.raises(ScenarioError, match=why):
        read(tmp_path, expect=[line])


def test_on_a_real_cluster_a_time_is_no_upper_bound(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="name an event"):
        read(tmp_path, plane="20s", offline=None, expect=[{"never": "Released", "gang": "a", "after": "15s"}])


RELEASED = happened(12, nodes={"n1": 2, "n2": 1}, reason="", message="")


@pytest.mark.parametrize(
    ("line", "story", "why"),
    [
        ({"event": "Released"}, [], "it didn't happen"),
        ({"event": "Released", "nth": 2}, [RELEASED], "1 times only"),
        ({"event": "Released", "at": "10s"}, [RELEASED], "at 12 s"),
        ({"event": "Released", "at": "13s"}, [RELEASED], "at 12 s"),
        ({"event": "Released", "at": "10s", "within": "1s"}, [RELEASED], "at 12 s"),
        ({"event": "Released", "after": "13s"}, [RELEASED], "at 12 s"),
        ({"event": "Released", "before": "12s"}, [RELEASED], "at 12 s"),
        ({"event": "Released", "after": "a Finished"}, [RELEASED], "there was no a Finished"),
        ({"event": "Released", "after": "a Finished"}, [RELEASED, happened(13, Event.FINISHED)], "a Finished at 13"),
        ({"event": "Released", "before": "a Waiting"}, [happened(11, Event.WAITING), RELEASED], "a Waiting at 11"),
        ({"event": "Released", "pods": 2}, [RELEASED], "it was 3 pods"),
        ({"event": "Released", "nodes": {"n1": 3}}, [RELEASED], "they went to"),
        ({"event": "Waiting", "reason": "NoRoom"}, [happened(11, Event.WAITING, reason="OnHold")], "didn't happen"),
        ({"event": "Waiting", "says": "2 cpu"}, [happened(11, Event.WAITING, message="needs 3 cpu")], "didn't happen"),
        ({"event": "Released", "count": 2}, [RELEASED], "1 times"),
        ({"event": "Released", "count": 1, "before": "12s"}, [RELEASED], "0 times"),
        ({"never": "Released"}, [RELEASED], "it did"),
        ({"never": "Released", "after": "12s"}, [RELEASED], "it did"),
        ({"never": "Released", "before": "13s"}, [RELEASED], "it did"),
        ({"never": "Released", "after": "a Waiting"}, [happened(11, Event.WAITING), RELEASED], "it did"),
        ({"never": "Released", "before": "a Finished"}, [], "there was no a Finished"),
    ],
)
def test_a_story_that_is_not_as_expected_fails(
    tmp_path: Path, line: dict[str, object], story: list[Happening], why: str
) -> None:
    (problem,) = read(tmp_path, expect=[{"gang": "a", **line}]).failures(story, exact=True)
    assert why in problem


@pytest.mark.parametrize(
    "line",
    [
        {"event": "Released", "at": "12s", "pods": 3, "nodes": {"n1": 2, "n2": 1}},
        {"event": "Released", "at": "10s", "within": "2s", "after": "12s", "before": "13s"},
        {"event": "Released", "after": "a Waiting", "before": "a Finished"},
        {"event": "Released", "count": 1},
        {"never": "Released", "before": "12s"},
        {"never": "Released", "after": "13s"},
        {"never": "Released", "after": "a Finished"},
    ],
)
def test_a_story_that_is_as_expected_holds(tmp_path: Path, line: dict[str, object]) -> None:
    story = [happened(11, Event.WAITING), RELEASED, happened(14, Event.FINISHED)]
    assert not read(tmp_path, expect=[{"gang": "a", **line}]).failures(story, exact=True)


def test_on_a_real_cluster_things_may_take_longer_but_not_shorter(tmp_path: Path) -> None:
    scenario = read(tmp_path, plane="20s", offline=None)
    assert not scenario.failures([happened(19)], exact=False)
    assert scenario.failures([happened(8.9)], exact=False)


@pytest.mark.parametrize(
    ("final", "why"),
    [
        ({"gangs": {"a": {"phase": "Waiting"}}}, "phase is Running, not Waiting"),
        ({"gangs": {"a": {"phase": ["Waiting", "Parked"]}}}, "not Waiting or Parked"),
        ({"gangs": {"a": {"reason": "NoRoom"}}}, "reason is Running"),
        ({"gangs": {"a": {"says": "3 of 3"}}}, "it says '2 of 2"),
        ({"gangs": {"a": {"released": 3}}}, "released is 2"),
        ({"gangs": {"a": {"minAvailable": 3}}}, "minAvailable is 2"),
        ({"queues": {"q": {"allocated": {"cpu": "2001m"}}}}, "allocated is 2 cpu"),
        ({"queues": {"q": {"allocated": {"memory": "1"}}}}, "allocated is 0 memory"),
        ({"queues": {"q": {"deserved": {"cpu": "3"}}}}, "deserved is 4 cpu"),
        ({"queues": {"q": {"headroom": {"cpu": "3"}}}}, "headroom is 6 cpu"),
        ({"queues": {"q": {"share": 1}}}, "share is 0.5"),
        ({"queues": {"q": {"share": None}}}, "share is 0.5"),
    ],
)
def test_an_end_that_is_not_as_expected_fails(tmp_path: Path, final: dict[str, object], why: str) -> None:
    gang = {"phase": "Running", "reason": "Running", "message": "2 of 2", "released": 2, "minAvailable": 2}
    queue = {"allocated": {"cpu": "2"}, "deserved": {"cpu": "4"}, "headroom": {"cpu": "6"}, "share": 0.5}
    seen = {"gangs": {"default/a": gang}, "queues": {"q": queue}}
    (problem,) = read(tmp_path, expect=None, final=final).final_failures(seen, exact=True)
    assert why in problem
