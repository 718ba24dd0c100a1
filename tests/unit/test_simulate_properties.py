"""kubectl gang simulate on random clusters: what holds in each story, whatever is in the files."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from startgate.engine.simulate.manifests import MICRO
from startgate.engine.simulate.report import Happened
from startgate.engine.simulate.run import Simulation
from startgate.model.resources import amounts
from tests.unit.simulation import change, job, manifests, node, pod, queue

SECONDS = st.sampled_from(["0s", "1s", "10s", "30s", "60s", "61s"])
QUEUES = ("qa", "qb", "qc")


@st.composite
def clusters(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A few nodes and queues; Jobs and pods that come, run, change and go."""
    objects = [node(f"n{number}", str(draw(st.integers(1, 6)))) for number in range(draw(st.integers(1, 3)))]
    if draw(st.booleans()):
        objects.append(node("late", "4", at=draw(SECONDS), gone="5m"))
    for name in QUEUES:
        capability = {"cpu": str(draw(st.integers(2, 10)))} if draw(st.booleans()) else {}
        deserved = {"cpu": str(draw(st.integers(0, 4)))} if draw(st.booleans()) else {}
        objects.append(
            queue(name, capability=capability, deserved=deserved, parent=draw(st.sampled_from(["", "", "qc"])))
        )
    for number in range(draw(st.integers(1, 8))):
        objects += draw(jobs(f"j{number}"))
    objects += [
        pod(f"p{number}", str(draw(st.integers(1, 3))), at=draw(SECONDS), runs="40s")
        for number in range(draw(st.integers(0, 3)))
    ]
    return draw(st.permutations(objects))


@st.composite
def jobs(draw: st.DrawFn, name: str) -> list[dict[str, Any]]:
    times = {"at": draw(SECONDS), "terminates": draw(SECONDS)}
    if draw(st.booleans()):
        times["runs"] = draw(SECONDS)
    if draw(st.integers(0, 4)) == 0:
        times["gone"] = "70s"
    spec: dict[str, Any] = {}
    pods = draw(st.integers(1, 4))
    if draw(st.booleans()):
        spec |= {
            "completions": pods + draw(st.integers(0, 3)),
            "completionMode": draw(st.sampled_from(["Indexed", "NonIndexed"])),
        }
    if draw(st.integers(0, 3)) == 0:
        spec["activeDeadlineSeconds"] = draw(st.sampled_from([5, 50]))
    if draw(st.integers(0, 2)) == 0:
        rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        spec["podFailurePolicy"] = {"rules": [rule]}
    made = job(name, pods, str(draw(st.integers(1, 2))), queue=draw(st.sampled_from(QUEUES)), spec=spec, **times)
    if draw(st.booleans()):
        made["metadata"]["labels"]["startgate.dev/min-available"] = str(draw(st.integers(1, pods)))
    if draw(st.integers(0, 3)) == 0:
        return [
            made,
            change(
                made, "65s", spec=draw(st.sampled_from([{"parallelism": 0}, {"parallelism": 1}, {"suspend": True}]))
            ),
        ]
    return [made]


def smallest_starts(objects: list[dict[str, Any]]) -> dict[str, int]:
    """By gang, how many pods have to start together; of those whose Job stays as it came."""
    found: dict[str, list[int]] = {}
    for each in objects:
        if each["kind"] == "Job":
            label = each["metadata"].get("labels", {}).get("startgate.dev/min-available", "0")
            least = int(label) or each["spec"].get("parallelism", 0)
            found.setdefault(f"default/{each['metadata']['name']}", []).append(least)
    return {name: documents[0] for name, documents in found.items() if len(documents) == 1}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters())
def test_every_story_keeps_the_promises(objects: list[dict[str, Any]]) -> None:
    simulation = Simulation(manifests(*objects))
    found = simulation.run(600 * MICRO)
    told = found.told
    assert not any(note.startswith("Left off") for note in found.notes), "none of these is endless"
    assert [each.at for each in told.events] == sorted(each.at for each in told.events)

    cluster = simulation.stage.cluster
    for name in cluster.slots:
        assert not cluster.overcommitted(name, ["cpu", "pods"]), f"{name} holds more than it has"

    least = smallest_starts(objects)
    first: set[str] = set()
    for event in told.events:
        if event.event is Happened.RELEASED:
            if event.gang not in first:
                assert len(event.pods) >= least.get(event.gang, 1), "all or none"
            assert all(event.pods.values()), "released pods are bound where the plan has room for them"
            first.add(event.gang)
        elif event.event in (Happened.RECLAIMED, Happened.PREEMPTED, Happened.TAKEN_BACK, Happened.FINISHED):
            assert event.gang in first or event.event is Happened.FINISHED, "only who has started gives way"
        assert event.reason and event.message
    for gang in told.final.gangs.values():
        assert gang.reason and gang.message
        if gang.phase in ("Waiting", "Parked", "Gathering"):
            assert gang.released == 0

    limits = {each["metadata"]["name"]: each["spec"]["capability"] for each in objects if each["kind"] == "Queue"}
    for name, books in told.final.queues.items():
        for resource, ceiling in amounts(limits[name]).items():
            assert amounts(dict(books.allocated)).get(resource, 0) <= ceiling

    assert msgspec.json.encode(Simulation(manifests(*objects)).run(600 * MICRO).told) == msgspec.json.encode(told)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters(), st.integers(1, 200))
def test_the_first_part_of_a_story_is_the_story_of_the_first_part(objects: list[dict[str, Any]], cut: int) -> None:
    whole = Simulation(manifests(*objects)).run(600 * MICRO).told.events
    part = Simulation(manifests(*objects)).run(cut * MICRO).told.events
    assert part == [each for each in whole if each.at <= cut]
