"""The demo can't end well unless it has shown something, and all of it held; and its output keeps to its width."""

import pytest

from demo import work
from demo.checks import Checks
from demo.ranks import Timeline
from demo.screen import WIDEST, Screen
from startgate.kube.store import Change
from startgate.model.objects import OwnerReference
from startgate.model.pods import Pod, Shape


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
    for manifest in (work.job("finetune", queue=work.QUEUE), work.queue(), *work.setting()):
        screen.manifest(work.text(manifest))
    assert all(len(line) <= WIDEST for line in capsys.readouterr().out.splitlines())


def test_a_timeline_sees_gangs_that_overlap() -> None:
    def pod(job: str, index: int, *, node: str = "", phase: str = "Pending") -> Pod:
        owner = OwnerReference(kind="Job", name=job, uid=job, controller=True)
        name = f"{job}-{index}"
        return Pod(namespace="n", name=name, uid=name, version=1, shape=Shape(), owner=owner, node=node, phase=phase)

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
