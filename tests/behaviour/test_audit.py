"""On the record: both programs' logs can be read to the last line, and joined with what is in the cluster."""

from __future__ import annotations

from collections import defaultdict

from localcluster.deploy import Program
from startgate.audit.record import DONE, Decision, Record, Stage
from startgate.kube.kinds import GANGS
from startgate.model.gang import Phase
from startgate.model.objects import timestamp
from startgate.model.reasons import Code
from tests.behaviour.asking import denial, records, stored
from tests.behaviour.kit import Field


async def story(field: Field) -> str:
    """Gangs that start at once, alone, where room is tight, and parked; one that waits; a Job that is refused."""
    await field.nodes(2)
    queue = await field.queue()
    await field.run("pair", pods=2, queue=queue)
    await field.run("alone", pods=1, queue=queue)
    await field.run("tight", pods=4, queue=queue)
    await field.run("deadline", pods=1, queue=queue, deadline=600)
    await field.submit("waiting", pods=2, queue=queue)
    await field.waits("waiting", Code.CLUSTER_IN_USE)
    await denial(field.submit("refused", queue=queue, minimum=9))
    await field.until(lambda: not open_intents(field), "each intent has its effect")
    return queue


def open_intents(field: Field) -> set[tuple[str, Decision]]:
    lines = records(field.startgate.controller, namespace=field.namespace)
    effects = {(line.id, line.decision) for line in lines if line.stage is Stage.EFFECT}
    return {(line.id, line.decision) for line in lines if line.stage is Stage.INTENT} - effects


async def test_an_admission_is_an_intent_then_in_the_gang_then_an_effect(field: Field) -> None:
    queue = await story(field)
    lines = records(field.startgate.controller, namespace=field.namespace)
    for job, pods, ways in (
        ("pair", 2, [Decision.ADMIT]),
        ("alone", 1, [Decision.ADMIT]),
        ("tight", 4, [Decision.RESERVE, Decision.ADMIT]),
        ("deadline", 1, [Decision.RESUME, Decision.ADMIT]),
    ):
        of = [line for line in lines if line.gang == f"job-{job}"]
        pairs = [(stage, way) for way in ways for stage in (Stage.INTENT, Stage.EFFECT)]
        assert [(line.stage, line.decision) for line in of] == pairs
        gang = await stored(field, GANGS, f"job-{job}")
        assert {line.id for line in of} == {gang["status"]["admission"]["id"]}
        assert {line.outcome for line in of if line.stage is Stage.EFFECT} == {DONE}
        assert {(line.queue, line.job, line.user) for line in of} == {(queue, job, "")}
        assert of[0].seen["pods"] == pods
        # The intent comes before the record (whose time has no parts of a second), and that before the effect.
        admitted = timestamp(gang["status"]["admission"]["at"])
        assert timestamp(of[0].at) - 1 < admitted <= timestamp(of[-1].at)
    assert not [line for line in lines if line.gang == "job-waiting"], "what waits is no decision"


async def test_the_numbers_that_a_decision_saw_are_in_it(field: Field) -> None:
    await story(field)
    (intent,) = [
        line
        for line in records(field.startgate.controller, namespace=field.namespace)
        if (line.gang, line.decision, line.stage) == ("job-tight", Decision.ADMIT, Stage.INTENT)
    ]
    numbers = {key: value for key, value in intent.seen.items() if key != "pods"}
    assert numbers, "more than how many pods: what the quota was"


async def test_the_webhook_has_a_verdict_for_each_submission_with_its_user(field: Field) -> None:
    queue = await story(field)
    lines = records(field.startgate.webhook, namespace=field.namespace)
    assert [(line.job, line.decision) for line in lines] == [
        ("pair", Decision.GATE),
        ("alone", Decision.GATE),
        ("tight", Decision.GATE),
        ("deadline", Decision.PARK),
        ("waiting", Decision.GATE),
        ("refused", Decision.REFUSE),
    ]
    assert {(line.user, line.queue, line.stage) for line in lines} == {("admin", queue, Stage.VERDICT)}
    assert len({line.id for line in lines}) == len(lines)
    assert lines[-1].message.startswith("the label startgate.dev/min-available is 9")


async def test_every_line_is_a_record_and_none_is_missing(field: Field) -> None:
    """Of all that ran in this session, killed ones too; and standard output has the very same lines."""
    await story(field)
    for program in (field.startgate.controller, field.startgate.webhook):
        lines = records(program)  # each of them decodes
        by_instance: dict[str, list[Record]] = defaultdict(list)
        for line in lines:
            by_instance[line.instance].append(line)
        for instance, of in by_instance.items():
            assert [line.seq for line in of] == [*range(1, len(of) + 1)], instance
        assert {line.program for line in lines} == {program.name.split("-")[1]}
        assert copied(program, field.namespace)


def copied(program: Program, namespace: str) -> bool:
    """Whether standard output has had the lines about this namespace, byte for byte."""
    ours = [line for line in program.audit.read_bytes().splitlines() if namespace.encode() in line]
    printed = set(program.log.read_bytes().splitlines())
    return bool(ours) and printed.issuperset(ours)


async def test_a_take_back_is_on_record(field: Field) -> None:
    """Released, but held by somebody else's gate for longer than it may take: parked whole."""
    await field.nodes(1)
    queue = await field.queue()
    held = {"annotations": {"startgate.dev/start-timeout": "2s"}, "gates": ("example.com/x",)}
    await field.submit("a", pods=2, queue=queue, **held)
    await field.phase("a", Phase.PARKED)
    await field.until(lambda: not open_intents(field), "each intent has its effect")
    lines = records(field.startgate.controller, namespace=field.namespace)
    assert [(line.stage, line.decision) for line in lines][:4] == [
        (Stage.INTENT, Decision.ADMIT),
        (Stage.EFFECT, Decision.ADMIT),
        (Stage.INTENT, Decision.TAKE_BACK),
        (Stage.EFFECT, Decision.TAKE_BACK),
    ]
    assert "example.com/x" in lines[2].message
