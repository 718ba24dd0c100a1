"""The demo can't end well unless it has shown something, and all of it held; and its output keeps to its width."""

import pytest
import yaml

from demo import work
from demo.checks import Checks
from demo.ranks import Timeline
from demo.screen import WIDEST, Screen
from demo.story import tenants
from startgate.engine.simulate.documents import Source
from startgate.engine.simulate.manifests import read
from startgate.engine.simulate.report import Happened
from startgate.engine.simulate.run import simulate
from startgate.kube.store import Change
from startgate.model.names import SIMULATE_AT
from startgate.model.objects import OwnerReference
from startgate.model.pods import Pod
from startgate.model.shape import Shape


def test_nothing_shown_is_no_success() -> None:
    assert not Checks().good


def test_the_closing_line_counts() -> None:
    checks = Checks()
    checks.claim("one", True, "")
    assert checks.good
    assert checks.closing == "demo: 1 checks passed, 0 failed"
    checks.claim("two", False, "")
    assert not checks.good
    assert checks.closing == "demo: 1 checks passed, 1 failed"


def test_a_failed_claim_is_marked_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    screen, checks = Screen(), Checks()
    screen.claim(checks.claim("it holds " * 20, False, "seen " * 40))
    said = capsys.readouterr().out
    assert "FAILED" in said
    assert all(len(line) <= WIDEST for line in said.splitlines())


@pytest.mark.parametrize("width", [80, 100])
def test_what_is_wrapped_keeps_its_indent(capsys: pytest.CaptureFixture[str], width: int) -> None:
    screen = Screen()
    screen._console.width = width
    long = " ".join(["word"] * 40)
    screen.note(long)
    screen.command(f"kubectl {long}", f"Sentence\n  {long}\nName   value", user="eve")
    screen.manifest(f"a:\n  b: {long}")
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= width for line in lines)
    rest = [line for line in lines if line.lstrip(" │").startswith("word")]
    assert {line[: line.index("word")] for line in rest} == {"    ", "      ", "  │     "}
    assert "  Name   value" in lines


def test_a_chapter_that_begins_with_a_claim_has_room_above_it(capsys: pytest.CaptureFixture[str]) -> None:
    screen, checks = Screen(), Checks()
    screen.claim(checks.claim("one", True, ""))
    screen.chapter(2, "Two")
    screen.claim(checks.claim("two", True, ""))
    assert capsys.readouterr().out.splitlines()[-2:] == ["", "  ✓ two"]


def test_manifests_fit_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    ours = (work.queue(), *work.setting(), *work.tenants(), *work.more(gpus=8, deserved=16))
    for manifest in (work.job("finetune", queue=work.QUEUE), *ours):
        screen.manifest(work.text(manifest))
    assert all(len(line) <= WIDEST for line in capsys.readouterr().out.splitlines())


def pod(job: str, index: int, *, node: str = "", phase: str = "Pending", of: str = "") -> Pod:
    """`of` tells apart pods of one index."""
    owner = OwnerReference(kind="Job", name=job, uid=job, controller=True)
    name = f"{job}-{index}{of}"
    return Pod(namespace="n", name=name, uid=name, version=1, shape=Shape(), owner=owner, node=node, phase=phase)


def test_a_timeline_sees_gangs_that_overlap() -> None:
    timeline = Timeline({"red": 2, "blue": 1})
    for change in (pod("red", 0), pod("red", 0, node="a"), pod("blue", 0, node="b")):
        timeline.hear(Change(None, change))
    assert timeline.most_at_once == 2
    assert timeline.gangs["red"].whole is None
    assert timeline.gangs["red"].gathering < 0
    timeline.hear(Change(None, pod("red", 1, node="c")))
    assert timeline.gangs["red"].whole is not None
    for index in (0, 1):
        timeline.hear(Change(None, pod("red", index, node="a", phase="Succeeded")))
    assert timeline.gangs["red"].ended is not None
    assert timeline.gangs["blue"].ended is None


def test_a_timeline_sees_a_gang_that_gives_way_and_comes_back() -> None:
    timeline = Timeline({"red": 2})
    first = [pod("red", index, node="a") for index in (0, 1)]
    for each in first:
        timeline.hear(Change(None, each))
    for each in first:
        timeline.hear(Change(each, None))
    assert timeline.gangs["red"].ended is not None
    timeline.hear(Change(None, pod("red", 0, node="b", of="again")))
    assert [passage.whole is not None for passage in timeline.passages["red"]] == [True, False]
    assert timeline.gangs["red"].ended is None


def test_the_tenants_story_is_what_the_engine_makes_of_its_manifests() -> None:
    """Chapter 4 offline: two gangs give way, nobody for the third, and all come to their end."""
    objects = [node.manifest() for node in work.LARGER] + work.setting() + work.tenants()
    for at, names in ((0, tenants.OLD), (2, tenants.YOUNG), (60, (*tenants.TRAINS, tenants.BEYOND))):
        objects += [
            job | {"metadata": {**job["metadata"], "annotations": {SIMULATE_AT: f"{at}s"}}}
            for job in map(tenants.job, names)
        ]
    story = simulate(read([Source("story.yaml", yaml.safe_dump_all(objects))]).manifests)
    told = [(event.gang.partition("/")[2], event.event) for event in story.told.events]
    assert sorted(gang for gang, event in told if event is Happened.RECLAIMED) == list(tenants.YOUNG)
    starts = [gang for gang, event in told if event is Happened.RELEASED]
    assert starts[:6] == [*tenants.SWEEPS, *tenants.TRAINS]
    assert sorted(starts[6:]) == [*tenants.YOUNG, tenants.BEYOND]
    assert {end.phase for end in story.told.final.gangs.values()} == {"Finished"}
