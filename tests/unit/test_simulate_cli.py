"""kubectl gang simulate on the command line: files, answers, what-if, and how it ends where there is no answer."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from startgate.cli import output
from startgate.cli.main import main
from tests.unit.simulation import change, job, node, pod, queue

Object = dict[str, Any]


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ended]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: object) -> Ended:
        code = main(["simulate", *map(str, arguments)])
        return Ended(code, *capsys.readouterr())

    return command


def write(path: Path, *objects: Object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump_all(objects))
    return path


def small() -> list[Object]:
    return [node(cpu="4"), queue(), job("a", 4, runs="5m"), job("b", 4, at="1m")]


# --- where it reads from ----------------------------------------------------------------------------------------------


def test_json_is_the_same_each_time(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "all.yaml", *small())
    first, second = run("-f", path, "-o", "json"), run("-f", path, "-o", "json")
    assert (first.code, first.err) == (0, "")
    assert first.out == second.out
    assert [each["event"] for each in first.document["events"]] == ["Released", "Waiting", "Finished", "Released"]
    assert first.document["final"]["gangs"]["default/b"]["released"] == 4


def test_several_files_and_directories_with_all_below(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    write(folder / "nodes.yml", node(cpu="4"))
    write(folder / "teams" / "q.yaml", queue())
    (folder / "teams" / "more.json").write_text(json.dumps(job("a", 4, runs="5m")))
    (folder / "README.md").write_text("not a manifest")
    jobs = write(tmp_path / "jobs.yaml", job("b", 4, at="1m"))
    assert (
        run("-f", folder, "-f", jobs, "-o", "json").out
        == run("-f", write(tmp_path / "all.yaml", *small()), "-o", "json").out
    )


def test_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(yaml.safe_dump_all(small()).encode())

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert len(run("-f", "-", "-o", "json").document["events"]) == 4


def test_kinds_that_play_no_part_are_said(run: Run, tmp_path: Path) -> None:
    others: list[Object] = [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}} for name in "ab"]
    ended = run("-f", write(tmp_path / "f.yaml", *small(), *others), "-o", "json")
    assert ended.code == 0
    assert ended.err == "Passed over, since they play no part: 2 Service.\n"


def test_a_kind_misspelt_is_passed_over_with_a_hint(run: Run, tmp_path: Path) -> None:
    others: list[Object] = [
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}} for kind in ("Queu", "job", "CronJob")
    ]
    ended = run("-f", write(tmp_path / "f.yaml", *small(), *others), "-o", "json")
    assert ended.err == "Passed over, since they play no part: 1 CronJob, 1 Queu (is it Queue?), 1 job (is it Job?).\n"


def test_until_and_patience(run: Run, tmp_path: Path) -> None:
    big, small_one = job("big", 4, at="10s"), job("small", 1, at="2m", runs="10s")
    path = write(tmp_path / "f.yaml", node(cpu="4"), queue(), job("a", 3, runs="1h"), big, small_one)
    patient = run("-f", path, "-o", "json", "--until", "3m").document["events"]
    assert [each["gang"] for each in patient if each["event"] == "Released"] == ["default/a", "default/small"]
    hasty = run("-f", path, "-o", "json", "--until", "3m", "--patience", "1m").document["events"]
    assert [each["gang"] for each in hasty if each["event"] == "Released"] == ["default/a"]
    assert hasty[-1]["reason"] == "OthersFirst"


# --- where there is no answer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "-f FILE, -f DIR, or -f - for standard input"),
        (["-f", "nowhere.yaml"], 1, "nowhere.yaml: there is no such file."),
        (["-f", "empty"], 1, "empty: no .yaml, .yml, .json file is in this directory or below it."),
        (["-f", "blank.yaml"], 1, "There is no object to simulate in blank.yaml."),
        (["-f", "-"], 1, "There is no object to simulate in standard input."),
        (["-f", "broken.yaml"], 2, "broken.yaml, document 1: line 1: mapping values are not allowed"),
        (
            ["-f", "wrong.yaml"],
            2,
            "wrong.yaml, document 2 (Job default/a): metadata.annotations[simulate.startgate.dev/at]",
        ),
        (["-f", "binary.yaml"], 2, "binary.yaml: byte 0 isn't UTF-8, so this is no text."),
        (["-f", "blank.yaml", "--until", "soon"], 2, "--until: 'soon' is not a duration"),
        (["-f", "blank.yaml", "--patience", "0"], 2, "--patience: '0' is not a duration"),
        (["-f", "-", "--what-if", "-"], 2, "standard input (-) can be read once only."),
        (
            ["-f", "blank.yaml", "-o", "xml"],
            2,
            "Invalid value for '--output' / '-o': 'xml' is not one of 'table', 'json', 'yaml'",
        ),
    ],
)
def test_one_sentence_and_a_code(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.yaml").write_text("---\n# nothing\n---\n")
    (tmp_path / "broken.yaml").write_text("a: b: c")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    write(tmp_path / "wrong.yaml", queue(), job("a", at="later"))
    ended = run(*arguments)
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err
    assert ended.err.count("\n") == 1


def test_a_directory_that_cant_be_read_as_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").mkdir()
    ended = run("-f", tmp_path)
    assert ended.code == 1


# --- tables -----------------------------------------------------------------------------------------------------------


def test_the_table_for_people(run: Run, tmp_path: Path) -> None:
    ended = run("-f", write(tmp_path / "f.yaml", *small(), job("c", 9, at="90s")))
    lines = ended.out.splitlines()
    assert lines[0].split() == ["AT", "GANG", "EVENT", "PODS", "WHY,", "OR", "WHERE"]
    assert lines[1].split() == ["0s", "default/a", "Released", "4", "4", "on", "n1"]
    assert lines[3].split() == ["1m30s", "default/c", "Waiting", "-", "NeverFits"]
    assert any(line.startswith("  default/c (Waiting): ") for line in lines)
    assert lines[-1].split()[:4] == ["q", "1.00", "cpu", "4"]
    assert max(map(len, lines)) <= 100


def test_queues_stand_below_their_parents(run: Run, tmp_path: Path) -> None:
    tree = [queue("b"), queue("a"), queue("a1", parent="a"), queue("a1x", parent="a1"), queue("lost", parent="gone")]
    lines = run("-f", write(tmp_path / "f.yaml", node(), *tree, job("j", queue="a1x"))).out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("QUEUE"))
    names = [line.partition("   ")[0].rstrip() if not line.startswith(" ") else line[:7].rstrip() for line in lines]
    assert names[first + 1 :] == ["a", "  a1", "    a1x", "b", "lost"]


def test_pods_have_a_line_where_the_share_follows_from_them(run: Run, tmp_path: Path) -> None:
    few = node(cpu="64")
    few["status"]["allocatable"]["pods"] = "4"
    lines = run("-f", write(tmp_path / "f.yaml", few, queue(), job("j", 2))).out.splitlines()
    assert [line.split() for line in lines[-2:]] == [["q", "0.50", "cpu", "64", "2", "62"], ["pods", "4", "2", "2"]]


THEIRS = queue("theirs", deserved={"cpu": "2"})


@pytest.mark.parametrize(
    ("queues", "said"),
    [
        (
            [queue("mine"), change(queue("mine"), "30s", spec={"guarantee": {"cpu": "2"}}), THEIRS],
            "Reclaimed 2 for default/claimant, within its guarantee",
        ),
        (
            [queue("mine", deserved={"cpu": "2"}), THEIRS],
            "Reclaimed 2 for default/claimant, within its deserved share",
        ),
        ([queue("mine")], "Preempted 2 for default/claimant, of higher priority"),
    ],
)
def test_who_gives_way_says_for_whom_in_a_few_words(run: Run, tmp_path: Path, queues: list[Object], said: str) -> None:
    theirs = queues[-1]["metadata"]["name"]
    victims = [job("old", 2, queue=theirs), job("victim", 2, queue=theirs, at="10s")]
    claimant = job("claimant", 2, queue="mine", at="1m")
    claimant["spec"]["template"]["spec"]["priority"] = 10
    path = write(tmp_path / "f.yaml", node(cpu="4"), *queues, *victims, claimant)
    lines = run("-f", path).out.splitlines()
    rows = [" ".join(line.split()) for line in lines]
    after = rows.index(f"1m default/victim {said}") + 1
    assert rows[after].startswith("1m default/claimant Released"), "a line each"
    assert max(map(len, lines)) <= 100


def test_who_ends_says_how(run: Run, tmp_path: Path) -> None:
    late = job("late", runs="5m", spec={"activeDeadlineSeconds": 60})
    lines = run("-f", write(tmp_path / "f.yaml", node(), queue(), job("well", runs="2m"), late)).out.splitlines()
    assert [line.split() for line in lines if " Finished " in line] == [
        ["1m", "default/late", "Finished", "-", "failed"],
        ["2m", "default/well", "Finished", "-", "completed"],
    ]
    assert next(line.strip() for line in lines if line.startswith("    ")) == (
        "the Job has ended: it failed (DeadlineExceeded: Job was active longer than specified deadline)"
    )


def test_who_is_taken_back_says_why(run: Run, tmp_path: Path) -> None:
    gated = job("a", 2)
    gated["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "example.com/other"}]
    lines = run("-f", write(tmp_path / "f.yaml", node(), queue(), gated), "--until", "6m").out.splitlines()
    (number,) = (number for number, line in enumerate(lines) if " TakenBack " in line)
    assert lines[number].split() == ["5m", "default/a", "TakenBack", "-", "NotBoundInTime"]
    assert lines[number + 1].startswith("    taken back whole: 0 of 2 pods were bound within ")


def test_sentences_fit_a_narrow_terminal(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "room", lambda: 60)
    ended = run("-f", write(tmp_path / "f.yaml", *small(), job("c", 9, at="90s")))
    assert max(map(len, ended.out.splitlines())) <= 60


def test_fewer_nodes_are_named_where_there_is_less_room(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node(f"n{number}", cpu="1") for number in range(5)]
    path = write(tmp_path / "f.yaml", *nodes, queue(), job("a", 3), job("b", 2))
    assert places(run("-f", path)) == ["1 on n0, 1 on n1, 1 on n2", "1 on n3, 1 on n4"]
    monkeypatch.setattr(output, "room", lambda: 55)
    assert places(run("-f", path)) == ["1 on n0 and 2 more nodes", "1 on n3, 1 on n4"]


def places(ended: Ended) -> list[str]:
    return [" ".join(line.split()[4:]) for line in ended.out.splitlines() if " Released " in line]


def test_nothing_happens(run: Run, tmp_path: Path) -> None:
    ended = run("-f", write(tmp_path / "f.yaml", node(), queue()))
    assert ended.code == 0
    assert "Nothing happened to any gang." in ended.err


def test_a_simulation_that_was_left_off_says_so(run: Run, tmp_path: Path) -> None:
    gated = job("a")
    gated["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "example.com/other"}]
    ended = run("-f", write(tmp_path / "f.yaml", node(), queue(), gated), "-o", "json")
    assert ended.code == 0
    assert "Note: Left off at" in ended.err


# --- what if ----------------------------------------------------------------------------------------------------------


def compared(run: Run, tmp_path: Path, *changes: Object, form: str = "json") -> Ended:
    base = [
        node(cpu="8"),
        queue("qa", capability={"cpu": "4"}),
        queue("qb", capability={"cpu": "4"}),
        job("a1", 4, queue="qa", runs="10m"),
        job("a2", 4, queue="qa", at="1m", runs="10m"),
        job("b1", 4, queue="qb", at="12m"),
    ]
    paths = write(tmp_path / "base.yaml", *base), write(tmp_path / "change.yaml", *changes)
    return run("-f", paths[0], "--what-if", paths[1], "-o", form)


def test_what_if_a_queue_had_more(run: Run, tmp_path: Path) -> None:
    found = compared(run, tmp_path, queue("qa", capability={"cpu": "8"})).document
    assert found["gangs"]["default/a2"]["before"] == {"started": 600, "waited": 540, "finished": 1200, "gaveWay": 0}
    assert found["gangs"]["default/a2"]["after"] == {"started": 60, "waited": 0, "finished": 660, "gaveWay": 0}
    assert (found["queues"]["qa"]["sooner"], found["queues"]["qa"]["later"]) == (1, 0)
    assert (found["queues"]["qb"]["sooner"], found["queues"]["qb"]["later"]) == (0, 0)
    total = found["total"]
    assert (total["before"]["waited"], total["after"]["waited"]) == (540, 0)
    assert (total["before"]["started"], total["after"]["started"]) == (3, 3)
    assert found["before"]["events"] != found["after"]["events"]


def test_what_if_something_were_there_besides(run: Run, tmp_path: Path) -> None:
    found = compared(run, tmp_path, job("a0", 4, queue="qa", at="30s", runs="1m")).document
    assert found["gangs"]["default/a0"]["before"] is None
    assert found["gangs"]["default/a0"]["after"]["waited"] == 570
    assert found["gangs"]["default/a2"]["after"]["started"] == 660
    assert (found["total"]["later"], found["total"]["sooner"]) == (1, 0)


def test_what_if_says_what_it_adds_lest_a_name_be_misspelt(run: Run, tmp_path: Path) -> None:
    ended = compared(run, tmp_path, queue("qaa", capability={"cpu": "8"}), node("n7"), queue("qb", weight=2))
    assert ended.err == "New with the change, not in the files before: Node n7, Queue qaa.\n"
    assert compared(run, tmp_path, queue("qa", capability={"cpu": "8"})).err == ""


def test_what_if_a_gang_never_started(run: Run, tmp_path: Path) -> None:
    found = compared(run, tmp_path, change(node(), "0s", status={"allocatable": {"cpu": "3"}})).document
    assert found["total"]["before"]["started"] == 3
    assert found["total"]["after"]["started"] == 0
    assert found["total"]["later"] == 3
    assert found["gangs"]["default/a1"]["after"] == {"started": None, "waited": None, "finished": None, "gaveWay": 0}


def running(name: str) -> list[Object]:
    """A Job of one pod of 4 cpu in queue qa, and its pod, as they come out of a cluster."""
    made, its = job(name, cpu="4", queue="qa"), pod(f"{name}-0", "4", node="n1", queue="qa")
    made["metadata"] |= {"uid": name, "creationTimestamp": f"2026-01-01T00:00:0{name[-1]}Z"}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": name, "controller": True}
    its["metadata"] |= {"uid": f"{name}-0", "ownerReferences": [owner]}
    return [made, {**its, "status": {"phase": "Running"}}]


def test_what_if_gangs_that_run_had_to_give_way(run: Run, tmp_path: Path) -> None:
    """Those start no more, whether they come back or not: what counts is that they lose their place."""
    queues = [queue(name, deserved={"cpu": "4"}) for name in ("qa", "qb")]
    base = [node(cpu="8"), *queues, *running("r1"), *running("r2")]
    paths = [
        write(tmp_path / "base.yaml", *base),
        write(tmp_path / "change.yaml", job("b", cpu="4", queue="qb", runs="5m")),
    ]
    found = run("-f", paths[0], "--what-if", paths[1], "--until", "1h", "-o", "json").document
    assert found["gangs"]["default/r2"]["before"] == {"started": None, "waited": None, "finished": None, "gaveWay": 0}
    assert found["gangs"]["default/r2"]["after"] == {"started": None, "waited": None, "finished": None, "gaveWay": 1}
    back = [each["event"] for each in found["after"]["events"] if each["gang"] == "default/r2"]
    assert back[0] == "Reclaimed"
    assert back[-1] == "Released"
    assert (found["total"]["sooner"], found["total"]["later"]) == (0, 1)


def test_who_had_ended_before_is_not_counted(run: Run, tmp_path: Path) -> None:
    over = job("over")
    over["metadata"] |= {"uid": "o", "resourceVersion": "7"}
    over["status"] = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
    base = write(tmp_path / "base.yaml", node(), queue(), over, job("a", runs="1m"))
    found = run("-f", base, "--what-if", write(tmp_path / "w.yaml", queue(weight=2)), "-o", "json").document
    assert found["total"]["before"]["gangs"] == found["total"]["after"]["gangs"] == 1
    assert list(found["gangs"]) == ["default/a"]
    assert found["after"]["final"]["gangs"]["default/over"]["phase"] == "Finished"


def test_no_wait_is_shown_where_none_starts(run: Run, tmp_path: Path) -> None:
    lines = compared(run, tmp_path, change(node(), "0s", status={"allocatable": {"cpu": "3"}}), form="table").out
    assert lines.splitlines()[1].split()[:10] == ["all", "3", "3", "→", "0", "9m", "→", "-", "9m", "→"]


def test_what_if_as_a_table_totals_first(run: Run, tmp_path: Path) -> None:
    lines = compared(run, tmp_path, queue("qa", capability={"cpu": "8"}), form="table").out.splitlines()
    assert lines[0].split() == ["GANGS", "STARTED", "WAITED", "LONGEST", "FINISHED", "GAVE", "WAY", "SOONER", "LATER"]
    assert lines[1].split()[:6] == ["all", "3", "3", "9m", "→", "0s"]
    assert [line.split()[:2] for line in lines[2:4]] == [["queue", "qa"], ["queue", "qb"]]
    moved = [line for line in lines if line.startswith("default/")]
    assert len(moved) == 1, "those that fare as before aren't shown"
    assert moved[0].split() == ["default/a2", "qa", "10m", "→", "1m", "9m", "→", "0s", "20m", "→", "11m", "-9m"]
    assert max(map(len, lines)) <= 100


def test_what_if_a_queue_contradicts_itself(run: Run, tmp_path: Path) -> None:
    ended = compared(run, tmp_path, queue("qa", guarantee={"cpu": "5"}), form="table")
    assert ended.err.startswith(
        "Note: With the change: Queue qa can't hold as it is written: its guarantee is 5 cpu, above"
    )


def test_who_gives_way_but_starts_as_before_has_a_column_for_it(run: Run, tmp_path: Path) -> None:
    base = [
        node(cpu="4"),
        queue("qa", deserved={"cpu": "2"}),
        queue("qb", deserved={"cpu": "2"}),
        job("a", 4, queue="qa"),
    ]
    paths = write(tmp_path / "base.yaml", *base), write(tmp_path / "over.yaml", job("b", 2, queue="qb", at="1m"))
    lines = run("-f", paths[0], "--what-if", paths[1]).out.splitlines()
    assert lines[-3].split()[-5:] == ["GAVE", "WAY", "START", "MOVES", "BY"]
    assert lines[-2].split() == ["default/a", "qa", "0s", "0s", "never", "0", "→", "1", "0s"]


def test_what_if_nothing_changes(run: Run, tmp_path: Path) -> None:
    ended = compared(run, tmp_path, queue("qb", capability={"cpu": "5"}), form="table")
    assert "No gang starts, waits or ends in another way." in ended.out


def test_what_is_laid_over_keeps_what_it_doesnt_name(run: Run, tmp_path: Path) -> None:
    base = write(tmp_path / "f.yaml", node(), queue(capability={"cpu": "2"}, guarantee={"cpu": "2"}), job("a", 4))
    over = write(tmp_path / "g.yaml", queue(capability={"cpu": "4"}))
    after = run("-f", base, "--what-if", over, "-o", "json").document["after"]
    assert [each["event"] for each in after["events"]] == ["Released"]
    assert after["final"]["queues"]["q"]["headroom"]["cpu"] == "0"
