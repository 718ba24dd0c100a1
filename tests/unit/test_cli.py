"""kubectl gang without a cluster: what it reads from the command line, how it prints, how it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from startgate.cli import failure, leader, list_gangs, output, queues, simulate, tree, why
from startgate.cli.failure import VerbError
from startgate.cli.main import main
from startgate.cli.views import GangView, view
from startgate.engine.simulate import compare
from startgate.engine.simulate.report import Final, Told
from startgate.kube.election import LeaseSpec
from startgate.kube.errors import ApiError, ConfigurationError, Unreachable
from startgate.model.gang import Gang
from startgate.model.objects import Condition, Job, JobSpec, JobStatus, ObjectMeta, PodTemplateSpec, rfc3339, timestamp
from startgate.model.queue import Queue

PROGRAM = Path(sysconfig.get_path("scripts")) / "kubectl-gang"
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"

GPU = "nvidia.com/gpu"


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The program, as somebody who has no kubeconfig."""
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.delenv("KUBECONFIG", raising=False)

    def command(*arguments: str) -> Ended:
        code = main(list(arguments))
        return Ended(code, *capsys.readouterr())

    return command


def config(path: Path, server: str, **user: str) -> str:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"token": "t", **user}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


# --- the command line -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "job", "gang"),
    [
        ("train", "train", "train"),
        ("job/train", "train", None),
        ("jobs/train", "train", None),
        ("job.batch/train", "train", None),
        ("gang/job-train", None, "job-train"),
        ("gg/job-train", None, "job-train"),
        ("gangs.startgate.dev/job-train", None, "job-train"),
    ],
)
def test_what_why_is_asked_about(text: str, job: str | None, gang: str | None) -> None:
    assert why.asked(text) == why.Asked(job=job, gang=gang)


@pytest.mark.parametrize("text", ["", "/", "job/", "pod/x", "/x", "job/a/b", "../x", "a/b/c"])
def test_what_why_cannot_be_asked(text: str) -> None:
    with pytest.raises(VerbError) as raised:
        why.asked(text)
    assert raised.value.code == failure.USAGE
    assert "job/NAME" in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "-n", "x", "-A"], "give one of them"),
        (["list", "-n", "../kube-system"], "can't be the name of a namespace"),
        (["list", "-o", "xml"], "'table', 'json', 'yaml'"),
        (["list", "extra"], "unexpected extra argument"),
        (["lst"], "No such command 'lst'"),
        (["list", "--watch"], "No such option"),
        (["why"], "Missing argument"),
        (["why", "pod/x"], "job/NAME"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_a_2(run: Run, arguments: list[str], said: str) -> None:
    ended = run(*arguments)
    assert ended.code == 2
    assert ended.out == ""
    assert said in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"], ["list", "-h"], ["why", "-h"], ["queues", "-h"]])
def test_help_has_the_exit_codes(run: Run, arguments: list[str]) -> None:
    ended = run(*arguments)
    assert ended.code == 0
    assert ended.err == ""
    assert failure.EXIT_CODES in " ".join(ended.out.split())


def test_the_reference_names_every_option_code_and_field(run: Run) -> None:
    text = REFERENCE.read_text()
    for verb in ("list", "why", "queues"):
        assert f"## kubectl gang {verb}" in text
        for option in re.findall(r"--[a-z-]+", run(verb, "-h").out):
            assert option in text, option
    for code in (0, failure.NOT_FOUND, failure.USAGE, failure.CLUSTER, failure.INTERRUPTED):
        assert f"| {code} |" in text
    for document in (GangView, queues.QueueView, why.Answer, list_gangs.Listing, queues.Queues):
        for field in msgspec.structs.fields(document):
            assert f"`{field.encode_name}`" in text, f"{document.__name__}.{field.encode_name}"


# --- ends without an answer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [["list"], ["why", "x"], ["queues"]])
def test_no_cluster_is_one_sentence_and_a_3(run: Run, tmp_path: Path, verb: list[str]) -> None:
    (tmp_path / "garbage").write_text("a: [")
    for arguments in (
        ["--kubeconfig", str(tmp_path / "none")],
        ["--kubeconfig", str(tmp_path / "garbage")],
        ["--kubeconfig", config(tmp_path / "refused", "https://127.0.0.1:1")],
        ["--kubeconfig", config(tmp_path / "context", "https://127.0.0.1:1"), "--context", "other"],
        [],
    ):
        ended = run(*verb, *arguments)
        assert ended.code == 3, ended
        assert ended.out == ""
        assert ended.err.startswith("Error: ")
        assert ended.err.count("\n") == 1
        assert "--context" in ended.err


def test_control_c_is_quiet(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kubeconfig = config(tmp_path / "silent", f"https://127.0.0.1:{silent.getsockname()[1]}")
        with subprocess.Popen(
            [PROGRAM, "list", "--kubeconfig", kubeconfig],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A shell that runs us in the background has told us, and so our children, to ignore it.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  (one thread)
        ) as process:
            silent.settimeout(60)
            connection, _ = silent.accept()  # it is in the middle of its work
            with connection:
                time.sleep(0.1)
                process.send_signal(signal.SIGINT)
                assert process.communicate(timeout=30) == (b"", b"")
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (ApiError(401, "Unauthorized", "Unauthorized"), "log in again"),
        (ApiError(403, "Forbidden", 'gangs is forbidden: User "x" cannot list …'), "startgate-view"),
        (ApiError(404, "NotFound", "the server could not find the requested resource"), "isn't installed"),
        (ApiError(404, "", "404 page not found"), "isn't installed"),
        (ApiError(404, "NotFound", 'namespaces "x" not found'), "try again"),
        (ApiError(500, "InternalError", "etcd is gone."), "etcd is gone; try again."),
        (ConfigurationError("There is no kubeconfig."), "--kubeconfig"),
        (Unreachable("No answer in time."), "No answer in time; check"),
    ],
)
def test_each_error_of_a_cluster_says_what_to_do(error: ApiError | ConfigurationError | Unreachable, hint: str) -> None:
    ended = failure.of_cluster(error)
    assert ended.code == 3
    assert hint in str(ended)
    assert str(ended).endswith(".")
    assert ".." not in str(ended)


# --- why there is no Gang -------------------------------------------------------------------------------------------


def test_a_job_without_our_label() -> None:
    said = why.unseen(Job(metadata=ObjectMeta(name="a")))
    assert "no label startgate.dev/queue" in said


@pytest.mark.parametrize("in_template", [False, True])
def test_a_job_that_the_controller_has_not_seen(in_template: bool) -> None:
    meta = ObjectMeta(name="a", labels={"startgate.dev/queue": "q"})
    job = (
        Job(metadata=ObjectMeta(name="a"), spec=JobSpec(template=PodTemplateSpec(metadata=meta)))
        if in_template
        else Job(metadata=meta)
    )
    said = why.unseen(job)
    assert "asks for queue q and has no Gang yet" in said
    assert "Deployment startgate-controller in namespace startgate-system" in said


def test_a_job_that_has_ended() -> None:
    ended = JobStatus(conditions=(Condition(type="Failed", status="True"),))
    assert "has ended (Failed)" in why.unseen(Job(metadata=ObjectMeta(name="a"), status=ended))


# --- printing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0, "0s"),
        (119.9, "119s"),
        (120, "2m"),
        (599, "9m59s"),
        (600, "10m"),
        (3 * 3600, "3h"),
        (5 * 3600 + 120, "5h2m"),
        (47 * 3600, "47h"),
        (49 * 3600, "2d1h"),
        (400 * 86400, "400d"),
    ],
)
def test_ages_are_kubectls(seconds: float, text: str) -> None:
    assert output.age(seconds) == text


def test_columns_are_aligned_never_cut_and_without_colour(capsys: pytest.CaptureFixture[str]) -> None:
    wide = "x" * 300
    output.table(["NAME", "PHASE", "AGE"], [["a", "Running", "1s"], [wide, "é界", "2m"]])
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.index("PHASE") == first.index("Running") == second.index("é界") == 303
    assert second == f"{wide}   é界       2m"
    assert "\x1b" not in header + first + second


def test_a_terminal_is_not_commanded(capsys: pytest.CaptureFixture[str]) -> None:
    output.line("a\x1b[2Jb\nc[bold]d[/bold]")
    assert capsys.readouterr().out == "a�[2Jb�c[bold]d[/bold]\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    script = (
        "from startgate.cli import main, output\n"
        "main.app = lambda *_, **__: lambda: [output.line('x' * 1000) for _ in range(1000)]\n"
        "main.run()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_json_and_yaml_are_the_same_document(capsys: pytest.CaptureFixture[str]) -> None:
    gang = {"metadata": {"name": "job-a", "namespace": "x"}, "spec": {"queue": "no", "minAvailable": 1, "pods": 2}}
    document = view(msgspec.convert(gang, Gang))
    output.write(document, output.Format.JSON)
    as_json = json.loads(capsys.readouterr().out)
    output.write(document, output.Format.YAML)
    assert yaml.safe_load(capsys.readouterr().out) == as_json
    assert set(as_json) == {field.encode_name for field in msgspec.structs.fields(GangView)}
    assert (as_json["queue"], as_json["phase"], as_json["admission"], as_json["owner"]) == ("no", "Waiting", None, None)


@pytest.mark.parametrize(
    ("phase", "reason", "gated", "said"),
    [
        ("Running", "Running", 4, "\n  4 more pods wait to join"),
        ("Running", "Running", 1, "\n  1 more pod waits to join"),
        ("Running", "Running", 0, ""),
        ("Waiting", "NoRoom", 8, ""),
    ],
)
def test_who_waits_to_join_a_gang_that_runs(
    capsys: pytest.CaptureFixture[str], phase: str, reason: str, gated: int, said: str
) -> None:
    gang = {
        "metadata": {"name": "job-a", "namespace": "x"},
        "spec": {"queue": "q", "minAvailable": 4, "pods": 8},
        "status": {"phase": phase, "reason": reason, "message": "4 of 4 …", "counts": {"gated": gated}},
    }
    found = view(msgspec.convert(gang, Gang))
    why.show(why.Answer(namespace="x", job="a", gang=found, message="", stale=None))
    out = capsys.readouterr().out
    assert said in out
    assert ("to join" in out) == bool(said)


def test_who_waits_to_join_is_told_that_only_the_gangs_own_domain_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    admission = {"id": "i", "at": "2026-01-01T00:00:00Z", "slots": 4, "nodeSelector": {"rack": "r1"}}
    gang = {
        "metadata": {"name": "job-a", "namespace": "x"},
        "spec": {"queue": "q", "minAvailable": 4, "pods": 8},
        "status": {"phase": "Running", "reason": "Running", "counts": {"gated": 4}, "admission": admission},
    }
    found = view(msgspec.convert(gang, Gang))
    why.show(why.Answer(namespace="x", job="a", gang=found, message="", stale=None))
    assert "4 more pods wait to join, and will as far as quota and the nodes with rack=r1 have room" in (
        capsys.readouterr().out
    )


GAVE = (
    "gave its place to r/job-pretrain of queue research, which is within its deserved share, while queue eval is above "
    "its own (16 of 8 nvidia.com/gpu); it keeps its age and starts again in its turn"
)


def told(capsys: pytest.CaptureFixture[str], **status: object) -> str:
    """What `why` says of job-sweep, which gave way 200 seconds ago."""
    at = rfc3339(time.time() - 200)
    status = {"yielded": {"at": at, "reason": "Reclaimed", "message": GAVE}, **status}
    spec = {"queue": "eval", "minAvailable": 8, "pods": 8}
    gang = {"metadata": {"name": "job-sweep", "namespace": "e"}, "spec": spec, "status": status}
    found = view(msgspec.convert(gang, Gang))
    why.show(why.Answer(namespace="e", job="sweep", gang=found, message=found.message, stale=None))
    return re.sub(r"3m2\ds ago", "3m20s ago", capsys.readouterr().out.replace(at, "AT"))


def test_a_gang_that_gave_way_says_to_whom_and_why_it_waits_now(capsys: pytest.CaptureFixture[str]) -> None:
    first = told(capsys, phase="Parked", reason="Reclaimed", message=GAVE)
    assert first.splitlines()[:3] == ["Gang job-sweep in namespace e is Parked: Reclaimed", f"  {GAVE}", ""]
    assert re.search(r"^Gave way +AT \(3m20s ago\), Reclaimed$", first, re.MULTILINE)
    later = told(capsys, phase="Parked", reason="ClusterInUse", message="needs 8 nvidia.com/gpu; …")
    assert later.splitlines()[:4] == [
        "Gang job-sweep in namespace e is Parked: ClusterInUse",
        "  needs 8 nvidia.com/gpu; …",
        f"  3m20s ago it {GAVE}",
        "",
    ]
    assert re.search(r"^Gave way +AT \(3m20s ago\), Reclaimed$", later, re.MULTILINE)


def test_a_gang_that_runs_again_has_it_in_its_facts(capsys: pytest.CaptureFixture[str]) -> None:
    admission = {"id": "i", "at": "2026-11-30T02:58:04Z", "slots": 8}
    said = told(capsys, phase="Running", reason="Running", message="8 of 8 …", admission=admission)
    assert said.splitlines()[:3] == ["Gang job-sweep in namespace e is Running", "  8 of 8 …", ""]
    assert re.search(rf"^Gave way +AT \(3m20s ago\), Reclaimed: {re.escape(GAVE)}$", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("rule", "since"),
    [
        ("guarantee", ", since it is within its queue's guarantee, and theirs are above their own"),
        ("deserved", ", since it is within what its queue deserves, and theirs are above that"),
        ("priority", ", since its priority is higher than theirs"),
        ("of tomorrow", ""),
    ],
)
def test_a_gang_for_which_others_give_way_says_who_does(
    capsys: pytest.CaptureFixture[str], rule: str, since: str
) -> None:
    claim = {"id": "c1", "at": "2020-01-01T00:00:00Z", "rule": rule, "victims": ["e/job-a", "e/job-b"]}
    said = told(capsys, reason="MakingRoom", message="its turn has come: …", claim=claim)
    assert "Making room   e/job-a, e/job-b, from 2020-01-01T00:00:00Z (" in said
    assert f" ago) on{since} (audit id c1)\n" in said
    assert "Making room" not in told(capsys, reason="NoRoom", claim=claim)  # they are gone, and it wasn't enough


# --- is it up to date? ----------------------------------------------------------------------------------------------

RENEWED = "2026-11-30T02:58:04.120394Z"
AT = timestamp(RENEWED)


@pytest.mark.parametrize("seconds", [-3600, 0, 2, 59])
def test_while_somebody_leads_nothing_is_said(seconds: float) -> None:
    assert leader.judged(LeaseSpec(holder_identity="a", renew_time=RENEWED), AT + seconds) is None


@pytest.mark.parametrize(
    ("spec", "seconds", "said"),
    [
        (
            LeaseSpec(holder_identity="a", renew_time=RENEWED),
            61,
            "Nobody has led since 2026-11-30T02:58:04Z (61s ago): ",
        ),
        (LeaseSpec(holder_identity="a", renew_time=RENEWED), 7200, "(120m ago): "),
        (LeaseSpec(holder_identity="", renew_time=RENEWED), 1, "Nobody has led since 2026-11-30T02:58:04Z (1s ago): "),
        (LeaseSpec(holder_identity=None, renew_time="soon"), 0, "Nobody leads: "),
        (LeaseSpec(), 0, "Nobody leads: "),
        (None, 0, "Nobody has ever led: "),
    ],
)
def test_when_nobody_leads_it_is_said(spec: LeaseSpec | None, seconds: float, said: str) -> None:
    found = leader.judged(spec, AT + seconds)
    assert found is not None
    assert said in found
    assert found.endswith("the controller doesn't run or can't reach the API server, so this may be out of date.")


def test_a_holder_without_a_time_that_can_be_read_is_believed() -> None:
    assert leader.judged(LeaseSpec(holder_identity="a", renew_time="soon"), AT) is None
    assert leader.judged(LeaseSpec(holder_identity="a"), AT) is None


def test_the_doubt_stands_beside_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    why.show(why.Answer(namespace="x", job="a", gang=None, message="It waits.", stale="Nobody leads."))
    said = capsys.readouterr()
    assert (said.out, said.err) == ("It waits.\n", "Warning: Nobody leads.\n")
    list_gangs.show(list_gangs.Listing(gangs=[], stale=None), "x")
    assert capsys.readouterr().err == "No gangs in namespace x; -A shows those of all namespaces.\n"


def ended(capsys: pytest.CaptureFixture[str], *steps: tuple[str, str], **status: object) -> list[list[str]]:
    """What `why` says of a gang that has ended and began to wait at noon: its lines, in words."""
    transitions = [{"phase": phase, "at": f"2026-01-01T{at}Z"} for phase, at in steps]
    said = {"phase": "Finished", "reason": "Finished", "bound": "4/4", "since": "2026-01-01T12:00:00Z", **status}
    gang = {
        "metadata": {"name": "job-a", "namespace": "x"},
        "spec": {"queue": "q", "minAvailable": 4, "pods": 4},
        "status": {**said, "transitions": transitions, "message": "the Job has ended: it completed"},
    }
    why.show(why.Answer(namespace="x", job="a", gang=view(msgspec.convert(gang, Gang)), message="", stale=None))
    return [re.split(" {2,}", line) for line in capsys.readouterr().out.splitlines()]


def test_a_gang_that_has_ended_says_when_and_how_long_it_waited_and_ran(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ended(
        capsys,
        ("Waiting", "12:00:00"),
        ("Running", "12:01:00"),
        ("Parked", "12:02:00"),
        ("Running", "12:03:30"),
        ("Finished", "12:05:00"),
    )
    assert ["Pods", "none any more; at least 4 had to start together"] in lines
    assert ["Waited", "2m30s"] in lines
    assert ["Ran", "2m30s"] in lines
    assert next(line[1] for line in lines if line[0] == "Ended").startswith("2026-01-01T12:05:00Z (")


@pytest.mark.parametrize(
    "steps",
    [
        [("Finished", "12:05:00")],
        [("Waiting", "12:00:00"), ("Finished", "12:05:00")],
        [("Running", "when"), ("Finished", "12:05:00")],
        [*(("Running", "12:01:00"), ("Parked", "12:02:00")) * 4, ("Running", "12:04:00"), ("Finished", "12:05:00")],
    ],
)
def test_of_what_is_not_known_nothing_is_said(capsys: pytest.CaptureFixture[str], steps: list[tuple[str, str]]) -> None:
    """It never ran, or its history doesn't go back to the beginning."""
    first = [line[0] for line in ended(capsys, *steps)]
    assert "Ended" in first
    assert not {"Waited", "Ran"} & set(first)


def test_a_gang_that_has_ended_while_pods_are_left(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ended(capsys, ("Finished", "12:05:00"), counts={"terminating": 2})
    assert ["Pods", "4/4 bound, 2 terminating; at least 4 start together"] in lines


# --- the tree of queues ---------------------------------------------------------------------------------------------


def test_children_follow_their_parent() -> None:
    found = tree.in_order({"b": "", "a2": "a", "a": "", "a1": "a", "a1x": "a1"})
    assert found == [("a", 0), ("a1", 1), ("a1x", 2), ("a2", 1), ("b", 0)]


def test_missing_parents_and_circles_hide_nothing() -> None:
    found = tree.in_order({"orphan": "gone", "x": "y", "y": "x", "self": "self"})
    assert sorted(name for name, _ in found) == ["orphan", "self", "x", "y"]
    assert ("orphan", 0) in found


def queue_of(name: str, said: dict[str, object] | None = None, **spec: object) -> Queue:
    """With this in its status, by the controller that has looked at it; None: it hasn't."""
    status = {} if said is None else {"conditions": [{"type": "Sound", "status": "True"}], **said}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec, "status": status}, Queue)


def seen(*found: Queue) -> queues.Queues:
    return queues.Queues(queues=queues.views([*found]), stale=None)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("-", "-"),
        ("8", "8"),
        ("500m", "500m"),
        ("42667m", "42.66"),
        ("7680Mi", "7680Mi"),
        ("516608Mi", "504.5Gi"),
        ("183251937963", "170.66Gi"),
        ("1000000", "1000000"),
        ("512Gi", "512Gi"),
        ("10250Gi", "10Ti"),
        ("1.5G", "1.5G"),
        ("9" * 40, "9" * 40),
    ],
)
def test_long_amounts_are_rounded_down_in_tables(written: str, shown: str) -> None:
    assert output.short("memory", written) == shown
    assert output.short("example.com/tokens", "183251937963") == "183251937963"


def test_a_full_queue_has_a_headroom_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    limits = {"capability": {"cpu": "4"}, "guarantee": {"example.com/x": 1}, "deserved": {"memory": "1Gi"}}
    said = {"allocated": {"cpu": "4000m", GPU: 4}, "headroom": {"memory": "2Gi"}}
    found = seen(queue_of("a", said, **limits), queue_of("b", None, **limits))
    full, new = found.queues
    assert full.headroom == {"cpu": "0", "example.com/x": "0", "memory": "2Gi", GPU: "0"}
    assert new.headroom == {}
    queues.show(found)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1][-6:] == ["cpu", "-", "0", "4", "4", "0"]
    assert lines[-2][-1] == "-"


TENANTS = seen(
    queue_of("night", {"headroom": {"cpu": "4"}, "share": "0.00", "waiting": 1}, stopped=True, capability={"cpu": "4"}),
    queue_of("scratch", {"allocated": {"cpu": "500m"}, "running": 1}),
    queue_of(
        "tenants",
        {
            "allocated": {GPU: 24, "pods": 3},
            "deserved": {GPU: 24, "pods": 110},
            "share": "1.00",
            "next": "research/job-pretrain",
            "unlabelled": {GPU: 1, "cpu": "300m"},
            "waiting": 1,
        },
        capability={GPU: 24},
    ),
    queue_of(
        "eval",
        {"allocated": {GPU: 16}, "deserved": {GPU: 8}, "share": "2.00", "next": "eval/job-sweep", "running": 2},
        parent="tenants",
        guarantee={GPU: 2},
        deserved={GPU: 8},
    ),
    queue_of(
        "research", {"allocated": {GPU: 8}, "deserved": {GPU: 16}, "share": "0.50", "waiting": 2}, parent="tenants"
    ),
)


def test_the_tree_with_shares_and_who_is_next(capsys: pytest.CaptureFixture[str]) -> None:
    queues.show(TENANTS)
    header, *lines = capsys.readouterr().out.splitlines()
    assert " ".join(header.split()) == (
        "QUEUE RUNNING WAITING SHARE RESOURCE GUARANTEE DESERVED CAPABILITY ALLOCATED HEADROOM UNLABELLED NEXT"
    )
    assert [re.split(" {3,}", line.strip()) for line in lines] == [
        ["night (stopped)", "0", "1", "0.00", "cpu", "-", "-", "4", "-", "4", "-"],
        ["scratch", "1", "0", "∞", "cpu", "-", "0", "-", "500m", "0", "-"],
        ["tenants", "2", "3", "1.00", GPU, "-", "24", "24", "24", "0", "1", "research/job-pretrain"],
        ["eval", "2", "0", "2.00", GPU, "2", "8", "-", "16", "0", "-", "eval/job-sweep"],
        ["research", "0", "2", "0.50", GPU, "-", "16", "-", "8", "0", "-"],
    ]
    assert [line[:8] for line in lines[2:]] == ["tenants ", "  eval  ", "  resear"]


def test_what_is_too_wide_for_the_terminal_is_folded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "room", lambda: 110)
    queues.show(TENANTS)
    assert (
        capsys.readouterr().out
        == """\
QUEUE            RUNNING  WAITING  SHARE  RESOURCE        GUARANTEE  DESERVED  CAPABILITY  ALLOCATED  HEADROOM
night (stopped)  0        1        0.00   cpu             -          -         4           -          4
scratch          1        0        ∞      cpu             -          0         -           500m       0
tenants          2        3        1.00   nvidia.com/gpu  -          24        24          24         0
  next is research/job-pretrain
  unlabelled pods use 1 nvidia.com/gpu
  eval           2        0        2.00   nvidia.com/gpu  2          8         -           16         0
    next is eval/job-sweep
  research       0        2        0.50   nvidia.com/gpu  -          16        -           8          0
"""
    )
    monkeypatch.setattr(output, "room", lambda: 80)
    queues.show(TENANTS)
    assert (
        capsys.readouterr().out
        == """\
RESOURCE             GUARANTEE   DESERVED   CAPABILITY   ALLOCATED   HEADROOM
night (stopped): 0 running, 1 waiting, share 0.00
  cpu                -           -          4            -           4
scratch: 1 running, 0 waiting, share ∞
  cpu                -           0          -            500m        0
tenants: 2 running, 3 waiting, share 1.00
  nvidia.com/gpu     -           24         24           24          0
  next is research/job-pretrain
  unlabelled pods use 1 nvidia.com/gpu
  eval: 2 running, 0 waiting, share 2.00
    nvidia.com/gpu   2           8          -            16          0
    next is eval/job-sweep
  research: 0 running, 2 waiting, share 0.50
    nvidia.com/gpu   -           16         -            8           0
"""
    )


@pytest.mark.parametrize(
    ("allocated", "deserved", "shown"),
    [
        ({"cpu": "2", "pods": 20}, {"cpu": "8", "pods": 40}, ["cpu", "pods"]),
        ({"cpu": "4", "pods": 20}, {"cpu": "8", "pods": 40}, ["cpu"]),
        ({"cpu": "2", "pods": 20}, {"cpu": "8"}, ["cpu", "pods"]),
        ({"cpu": "2", "pods": 20}, {}, ["cpu"]),
        ({"pods": 3}, {"pods": 40}, ["pods"]),
        ({"cpu": "much", "pods": 3}, {"cpu": "8", "pods": 40}, ["cpu", "pods"]),
    ],
)
def test_pods_have_a_line_where_the_share_follows_from_them(
    capsys: pytest.CaptureFixture[str], allocated: dict[str, object], deserved: dict[str, object], shown: list[str]
) -> None:
    queues.show(seen(queue_of("a", {"allocated": allocated, "deserved": deserved, "share": "0.50"})))
    said = capsys.readouterr().out
    assert [resource for resource in ("cpu", "pods") if f" {resource} " in said] == shown


def test_how_many_pods_wait(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = seen(
        queue_of("a", {"waiting": 1, "waitingPods": 1}),
        queue_of("b", {"waiting": 2, "waitingPods": 64}, parent="a", capability={"cpu": "4"}),
        queue_of("c", {}),
    )
    queues.show(found)
    rows = [re.split(" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert [row[:3] for row in rows[1:]] == [["a", "0", "3 (65 pods)"], ["b", "0", "2 (64 pods)"], ["c", "0", "0"]]
    monkeypatch.setattr(output, "room", lambda: 40)
    queues.show(found)
    assert "  b: 0 running, 2 waiting (64 pods), share -" in capsys.readouterr().out.splitlines()
    first = found.queues[0]
    assert (first.waiting_pods, first.total_waiting_pods) == (1, 65)


def test_columns_in_which_nothing_stands_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    queues.show(seen(queue_of("a"), queue_of("b", None, capability={"cpu": "4"})))
    header, first, second = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header == ["QUEUE", "RUNNING", "WAITING", "RESOURCE", "CAPABILITY"]
    assert (first, second) == (["a", "0", "0", "-", "-"], ["b", "0", "0", "cpu", "4"])


def test_the_document_has_all_of_it() -> None:
    found = {each.name: each for each in TENANTS.queues}
    assert (found["eval"].share, found["eval"].next) == (2.0, "eval/job-sweep")
    assert (found["scratch"].share, found["scratch"].next) == (None, None)
    assert found["tenants"].unlabelled == {GPU: "1", "cpu": "300m"}
    assert found["tenants"].deserved == {GPU: "24", "pods": "110"}
    assert (found["eval"].given, found["research"].given) == ({GPU: "8"}, {})
    assert (found["scratch"].deserved, found["scratch"].reclaimable) == ({"cpu": "0"}, True)


def test_a_parent_counts_the_gangs_of_all_below_it() -> None:
    gangs: dict[str, object] = {"running": 1, "waiting": 10}
    above = {"a": "", "a1": "a", "a1x": "a1", "a2": "a", "b": "", "b1": "b", "orphan": "gone"}
    found = {each.name: each for each in seen(*(queue_of(name, gangs, parent=above[name]) for name in above)).queues}
    assert {name: (each.total_running, each.total_waiting) for name, each in found.items()} == {
        "a": (4, 40),
        "a1": (2, 20),
        "a1x": (1, 10),
        "a2": (1, 10),
        "b": (2, 20),
        "b1": (1, 10),
        "orphan": (1, 10),
    }
    assert {(each.running, each.waiting) for each in found.values()} == {(1, 10)}, "its own, as its status says"


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh-"), max_size=8))
def test_every_queue_is_shown_once(parents: dict[str, str]) -> None:
    found = tree.in_order({name: parent.strip("-") for name, parent in parents.items()})
    assert sorted(name for name, _ in found) == sorted(parents)


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh-"), max_size=8))
def test_every_gang_counts_once_at_the_top(parents: dict[str, str]) -> None:
    """Whatever goes round in a circle."""
    found = [queue_of(name, {"running": 1}, parent=parent.strip("-")) for name, parent in parents.items()]
    assert sum(each.total_running for each in seen(*found).queues if each.depth == 0) == len(parents)


# --- what if ---------------------------------------------------------------------------------------------------------


def way(started: int) -> compare.Way:
    return compare.Way(started=started, waited=started, finished=started + 600, gave_way=0)


def compared() -> compare.Comparison:
    """One gang, which a change lets start at once."""
    sums = [compare.Sum(gangs=1, started=1, finished=1, gave_way=0, waited=each, longest=each) for each in (599, 0)]
    change = compare.Change(before=sums[0], after=sums[1], sooner=1, later=0)
    gang = compare.GangChange(queue="tenant-vision", before=way(599), after=way(0))
    told = Told(events=[], final=Final(gangs={}, queues={}))
    queues = {"tenant-vision": change}
    return compare.Comparison(total=change, queues=queues, gangs={"team/train": gang}, before=told, after=told)


@pytest.mark.parametrize(
    ("room", "seen"),
    [
        (
            97,
            """\
                     GANGS  STARTED  WAITED      LONGEST     FINISHED  GAVE WAY  SOONER  LATER
all                  1      1        9m59s → 0s  9m59s → 0s  1         0         1       0
queue tenant-vision  1      1        9m59s → 0s  9m59s → 0s  1         0         1       0

GANG         QUEUE           STARTS       WAITS        ENDS           START MOVES BY
team/train   tenant-vision   9m59s → 0s   9m59s → 0s   19m59s → 10m   -9m59s
""",
        ),
        (
            79,
            """\
                     GANGS  STARTED  WAITED      LONGEST     FINISHED  SOONER
all                  1      1        9m59s → 0s  9m59s → 0s  1         1
queue tenant-vision  1      1        9m59s → 0s  9m59s → 0s  1         1

GANG        QUEUE          STARTS      WAITS       ENDS          START MOVES BY
team/train  tenant-vision  9m59s → 0s  9m59s → 0s  19m59s → 10m  -9m59s
""",
        ),
        (
            65,
            """\
   GANGS   STARTED   WAITED       LONGEST      FINISHED   SOONER
all
   1       1         9m59s → 0s   9m59s → 0s   1          1
queue tenant-vision
   1       1         9m59s → 0s   9m59s → 0s   1          1

   STARTS       WAITS        ENDS           START MOVES BY
team/train, tenant-vision
   9m59s → 0s   9m59s → 0s   19m59s → 10m   -9m59s
""",
        ),
    ],
)
def test_a_comparison_is_folded_to_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, room: int, seen: str
) -> None:
    monkeypatch.setattr(output, "room", lambda: room)
    simulate.show_comparison(compared(), ())
    assert capsys.readouterr().out == seen
