"""The wire: whatever bytes come in, an answer or a sentence; whatever is answered, the API server can read."""

import asyncio
import base64
import io
import json
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from startgate.audit.journal import Journal
from startgate.audit.record import Decision
from startgate.model import names
from startgate.model.queue import QueueSpec
from tests.unit.webhook_objects import QUEUE, Json, job_json
from webhook import review
from webhook.admission import Admission
from webhook.facts import FactsError, Lookup, priority_of
from webhook.review import Operation, Refusal, ReviewError, Verdict, pointer, put, refuse
from webhook.submission import Facts

CONTROLLER = "system:serviceaccount:startgate-system:startgate-controller"


class Known:
    """Facts without a cluster: what the caches say, what a live read says, and how often each was asked."""

    def __init__(self, cached: Any = None, live: Any = None) -> None:
        self._cached, self._live = cached, live
        self.asked = 0
        self.came: list[tuple[str, int]] = []

    def let_in(self, queue: str, pods: int) -> None:
        self.came.append((queue, pods))

    def cached(self, *_: str) -> Any:
        return self._cached

    async def live(self, *_: str) -> Any:
        self.asked += 1
        if isinstance(self._live, Exception):
            raise self._live
        return self._live

    cached_queues = cached
    live_queues = live

    async def phase(self, *_: str) -> None:
        return None


def admission(known: Known, out: io.BytesIO) -> Admission:
    journal = Journal([out], "webhook", "w")
    return Admission(cast("Lookup", known), journal, controller=CONTROLLER, clock=lambda: 0.0)


def envelope(obj: Any, operation: str = "CREATE", **fields: Any) -> bytes:
    request = {"uid": "u1", "operation": operation, "namespace": "eval", "object": obj, "oldObject": None}
    request["userInfo"] = {"username": "alice", "groups": ["x"]}
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {**request, **fields}}
    ).encode()


def answer(known: Known, path: str, body: bytes, out: io.BytesIO | None = None) -> Json:
    made = asyncio.run(admission(known, out or io.BytesIO()).answer(path, body))
    response: Json = json.loads(made)["response"]
    return response


OPEN = Facts(queue=QueueSpec())


@pytest.mark.parametrize(
    ("value", "fields", "came"),
    [
        (job_json(QUEUE, parallelism=3), {}, [("q", 3)]),
        (job_json(QUEUE, parallelism=3), {"dryRun": True}, []),
        (job_json({**QUEUE, names.MIN_AVAILABLE: "x"}), {}, []),
        (job_json(), {}, []),
    ],
    ids=["let in", "dry run", "refused", "not ours"],
)
def test_a_job_that_is_let_in_makes_its_queue_deeper(value: Json, fields: Json, came: list[tuple[str, int]]) -> None:
    known = Known(OPEN)
    answer(known, "/jobs", envelope(value, **fields))
    assert known.came == came


def test_an_answer_is_an_admission_review_with_a_base64_patch() -> None:
    verdict = Verdict(
        decision=Decision.GATE, queue="q", patch=(Operation("add", "/a", {"b": "c"}), Operation("remove", "/d"))
    )
    made = json.loads(review.write("u1", verdict))
    assert (made["apiVersion"], made["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    patch = made["response"].pop("patch")
    assert json.loads(base64.b64decode(patch)) == [
        {"op": "add", "path": "/a", "value": {"b": "c"}},
        {"op": "remove", "path": "/d"},
    ]
    assert made["response"] == {
        "uid": "u1",
        "allowed": True,
        "patchType": "JSONPatch",
        "auditAnnotations": {"decision": "Gate", "id": "u1", "queue": "q"},
    }


def test_a_denial_has_a_code_and_the_sentence_and_no_patch() -> None:
    made = json.loads(review.write("u1", refuse(Refusal.KUEUE, "take it off")))
    assert made["response"] == {
        "uid": "u1",
        "allowed": False,
        "status": {"code": 403, "message": "take it off", "reason": "Forbidden"},
        "auditAnnotations": {"decision": "Refuse", "id": "u1", "reason": "Kueue"},
    }


def test_pointers_are_escaped() -> None:
    assert pointer("a/b", "c~d") == "/a~1b/c~0d"


def test_put_says_only_what_differs() -> None:
    held = {"same": "1", "other": "1", "gone": "1"}
    operations = put("/l", held, {"same": "1", "other": "2", "gone": None, "missing": None, "new/x": "3"})
    assert [(each.op, each.path) for each in operations] == [
        ("add", "/l/other"),
        ("remove", "/l/gone"),
        ("add", "/l/new~1x"),
    ]
    assert put("/l", None, {"a": None}) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}',
        envelope({}, uid=""),
        envelope({}, uid=None),
        envelope({}, uid="u" * 300),
        envelope({}, operation="PATCH"),
        envelope({}).replace(b"admission.k8s.io/v1", b"admission.k8s.io/v1beta1"),
        envelope({}).replace(b"AdmissionReview", b"Status"),
    ],
)
def test_what_is_no_review_is_an_error_with_a_sentence(body: bytes) -> None:
    with pytest.raises(ReviewError, match="not an AdmissionReview"):
        review.read(body)


@pytest.mark.parametrize(
    "obj",
    [
        None,
        [],
        "x",
        {},
        {"metadata": None, "spec": {}},
        {"metadata": {"labels": {names.QUEUE: 1}}, "spec": {}},
        {"metadata": {"labels": QUEUE}, "spec": {"parallelism": 10**40}},
        {"metadata": {"labels": QUEUE}, "spec": {"parallelism": 1.5}},
        {"metadata": {"labels": QUEUE}, "spec": {"template": {"spec": {"schedulingGates": "x"}}}},
    ],
)
def test_an_object_that_makes_no_sense_is_denied(obj: Any) -> None:
    response = answer(Known(OPEN), "/jobs", envelope(obj))
    assert response["allowed"] is False
    assert response["status"]["code"] == 400
    assert response["auditAnnotations"]["reason"] == "Malformed"


def test_deep_nesting_in_an_object_is_a_denial_or_an_error() -> None:
    deep = b'{"metadata":' * 50_000 + b"1" + b"}" * 50_000
    with pytest.raises(ReviewError):
        answer(Known(OPEN), "/jobs", envelope("@").replace(b'"@"', deep))


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("metadata", "spec", "labels", names.QUEUE, "template", "schedulingGates", "suspend"),
                    *("ownerReferences", "capability", "namespaces", "parent", "status", "request", "uid"),
                ]
            ),
            children,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)  # each makes an event loop
@given(
    st.sampled_from(["/jobs", "/pods", "/queues"]),
    st.sampled_from(["CREATE", "UPDATE", "DELETE", "CONNECT"]),
    JSONISH,
    JSONISH,
)
def test_whatever_json_the_object_is_there_is_an_answer(path: str, operation: str, obj: Any, old: Any) -> None:
    known = Known({} if path == "/queues" else OPEN)
    known._live = known._cached
    response = answer(known, path, envelope(obj, operation, oldObject=old))
    assert response["uid"] == "u1"
    assert response["allowed"] or response["status"]["message"]


@given(st.binary(max_size=200))
def test_whatever_the_bytes_are_there_is_an_error_with_a_sentence(body: bytes) -> None:
    with pytest.raises(ReviewError):
        review.read(body)


@settings(deadline=None)
@given(st.integers(0, 600), st.binary(max_size=3))
def test_a_damaged_review_is_an_answer_or_an_error(where: int, damage: bytes) -> None:
    body = envelope(job_json(QUEUE))
    known = Known(OPEN, OPEN)
    try:
        answer(known, "/jobs", body[:where] + damage + body[where + len(damage) :])
    except ReviewError as error:
        assert str(error)


def test_nobody_is_refused_on_a_picture_that_is_merely_old() -> None:
    known = Known(Facts(queue=None), OPEN)
    assert answer(known, "/jobs", envelope(job_json(QUEUE)))["allowed"] is True
    assert known.asked == 1
    closed = Known(OPEN, Facts(queue=None))
    assert answer(closed, "/jobs", envelope(job_json(QUEUE)))["allowed"] is True
    assert closed.asked == 0, "what the caches allow costs no request"
    silent = Known(None, Facts(queue=None))
    assert answer(silent, "/jobs", envelope(job_json(QUEUE)))["allowed"] is False
    assert silent.asked == 1
    parent = {"spec": {"parent": "p"}}
    assert answer(Known({}, {"p": QueueSpec()}), "/queues", envelope(parent, name="q"))["allowed"] is True


def test_facts_that_cannot_be_read_are_a_denial_that_says_so() -> None:
    response = answer(Known(None, FactsError("try again")), "/jobs", envelope(job_json(QUEUE)))
    assert response["status"] == {"code": 503, "message": "try again", "reason": "Forbidden"}


def test_a_job_of_others_needs_no_facts_and_leaves_no_record() -> None:
    out = io.BytesIO()
    response = answer(Known(None, FactsError("no")), "/jobs", envelope(job_json()), out)
    assert response == {"uid": "u1", "allowed": True}
    assert out.getvalue() == b""


def test_verdicts_are_on_record_with_user_and_numbers() -> None:
    out = io.BytesIO()
    answer(Known(OPEN), "/jobs", envelope(job_json({**QUEUE, names.MIN_AVAILABLE: "1"})), out)
    line = json.loads(out.getvalue())
    assert (line["id"], line["user"], line["stage"], line["decision"]) == ("u1", "alice", "verdict", "Gate")
    assert (line["namespace"], line["job"], line["gang"], line["queue"]) == ("eval", "x", "job-x", "q")
    assert line["seen"] == {"parallelism": 1, "minAvailable": 1}


@pytest.mark.parametrize("path", ["/jobs", "/queues"])
def test_a_dry_run_gets_the_same_answer_and_leaves_no_trace(path: str) -> None:
    obj = job_json(QUEUE) if path == "/jobs" else {"spec": {"weight": 1}}
    known, out = Known(OPEN if path == "/jobs" else {}), io.BytesIO()
    dry = answer(known, path, envelope(obj, dryRun=True), out)
    assert out.getvalue() == b""
    assert answer(known, path, envelope(obj, dryRun=False), out) == dry
    assert out.getvalue()


@pytest.mark.parametrize(
    ("operation", "decision", "kept"),
    [
        ("CREATE", "QueueCreated", {"new"}),
        ("UPDATE", "QueueUpdated", {"old", "new"}),
        ("DELETE", "QueueDeleted", {"old"}),
    ],
)
def test_each_write_to_a_queue_is_on_record_with_old_and_new(operation: str, decision: str, kept: set[str]) -> None:
    out = io.BytesIO()
    old, new = {"spec": {"weight": 1}}, {"spec": {"weight": 2, "later": [1]}}
    body = envelope(
        None if operation == "DELETE" else new,
        operation,
        name="q",
        oldObject=None if operation == "CREATE" else old,
    )
    answer(Known({}), "/queues", body, out)
    line = json.loads(out.getvalue())
    assert (line["decision"], line["user"], line["queue"]) == (decision, "alice", "q")
    assert line.keys() & {"old", "new"} == kept
    assert {key: line[key] for key in kept} == {key: {"old": old["spec"], "new": new["spec"]}[key] for key in kept}


def test_a_queue_that_cannot_be_read_is_denied_and_one_that_could_not_be_before_can_be_mended() -> None:
    bad, good = {"spec": {"weight": "x"}}, {"spec": {"weight": 1}}
    response = answer(Known({}), "/queues", envelope(bad, "UPDATE", oldObject=good, name="q"))
    assert response["auditAnnotations"]["reason"] == "QueueInvalid"
    assert "weight" in response["status"]["message"]
    assert answer(Known({}), "/queues", envelope(good, "UPDATE", oldObject=bad, name="q"))["allowed"]


def test_what_cannot_be_recorded_is_not_allowed() -> None:
    out = io.BytesIO()
    out.close()
    response = answer(Known(OPEN), "/jobs", envelope(job_json(QUEUE)), out)
    assert response["allowed"] is False
    assert "patch" not in response
    assert "can't put on record" in response["status"]["message"]


def test_the_controller_is_known_by_its_account() -> None:
    old = job_json(QUEUE, {names.PARKED: "DeadlineParked"}, suspend=True, activeDeadlineSeconds=3)
    new = job_json(QUEUE, {}, suspend=False, activeDeadlineSeconds=3)
    for user, decision in ((CONTROLLER, None), ("alice", "Park")):
        body = envelope(new, "UPDATE", oldObject=old, userInfo={"username": user})
        response = answer(Known(OPEN), "/jobs", body)
        assert response.get("auditAnnotations", {}).get("decision") == decision


def test_priorities_are_those_of_the_admission_plugin() -> None:
    from startgate.model.objects import ObjectMeta, PriorityClass

    classes = [
        PriorityClass(metadata=ObjectMeta(name="a"), value=5),
        PriorityClass(metadata=ObjectMeta(name="b"), value=9, global_default=True),
        PriorityClass(metadata=ObjectMeta(name="c"), value=7, global_default=True),
    ]
    assert priority_of("a", classes) == 5
    assert priority_of("x", classes) is None
    assert priority_of("", classes) == 7, "of several defaults the lowest"
    assert priority_of("", classes[:1]) == 0


def test_the_reference_names_every_refusal() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "webhook.md").read_text()
    for refusal in Refusal:
        assert f"`{refusal}`" in text, refusal
