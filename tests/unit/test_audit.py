"""The audit log: each decision on record before it takes effect, and readable after any crash."""

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from startgate.audit.journal import Journal, JournalError, open_file, open_intents
from startgate.audit.record import DONE, SCHEMA, Decision, Record, Stage

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "audit-log.md"


class Full(io.RawIOBase):
    """A disk with so much room; takes what fits, as a file system does, and refuses the rest."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.content = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)[: self.room]
        if not piece:
            raise OSError(28, "No space left on device")
        self.room -= len(piece)
        self.content += piece
        return len(piece)


def lines(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines() if line]


def test_a_line_has_the_schema_first_and_leaves_out_what_says_nothing() -> None:
    out = io.BytesIO()
    Journal([out], "controller", "c-1").write(
        Stage.INTENT,
        Decision.ADMIT,
        "a1",
        at=1_700_000_000.1239,
        gang="job-x",
        namespace="eval",
        seen={"gpu": 4},
    )
    assert out.getvalue().startswith(b'{"schema":"startgate.dev/audit/v1","seq":1,')
    assert lines(out.getvalue()) == [
        {
            "schema": SCHEMA,
            "seq": 1,
            "at": "2023-11-14T22:13:20.123Z",
            "program": "controller",
            "instance": "c-1",
            "id": "a1",
            "stage": "intent",
            "decision": "Admit",
            "namespace": "eval",
            "gang": "job-x",
            "seen": {"gpu": 4},
        }
    ]


def test_each_stream_has_each_line_and_seq_has_no_gaps() -> None:
    first, second = io.BytesIO(), io.BytesIO()
    journal = Journal([first, second], "webhook", "w-1")
    for number in range(5):
        journal.write(Stage.VERDICT, Decision.GATE, f"u{number}", at=0)
    assert first.getvalue() == second.getvalue()
    assert [line["seq"] for line in lines(first.getvalue())] == [1, 2, 3, 4, 5]


def test_a_queue_is_kept_as_the_api_server_sent_it() -> None:
    out = io.BytesIO()
    Journal([out], "webhook", "w-1").write(
        Stage.VERDICT,
        Decision.QUEUE_UPDATED,
        "u1",
        at=0,
        user="alice",
        old=msgspec.Raw(b'{"weight":1}'),
        new=msgspec.Raw(b'{"weight":2,"unknown":[1]}'),
    )
    (line,) = lines(out.getvalue())
    assert (line["old"], line["new"]) == ({"weight": 1}, {"weight": 2, "unknown": [1]})


def test_numbers_of_any_size_can_be_recorded() -> None:
    out = io.BytesIO()
    seen = {"large": 2**63 - 1, "larger": 2**63, "negative": -(2**63) - 1}
    Journal([out], "webhook", "w-1").write(Stage.VERDICT, Decision.REFUSE, "u", at=0, seen=seen)
    assert lines(out.getvalue())[0]["seen"] == {
        "large": 2**63 - 1,
        "larger": "9223372036854775808",
        "negative": "-9223372036854775809",
    }


def test_a_full_disk_is_an_error_and_the_next_line_is_whole_again() -> None:
    disk, other = Full(30), io.BytesIO()
    journal = Journal([disk, other], "webhook", "w-1")  # type: ignore[list-item]
    with pytest.raises(JournalError, match="No space left"):
        journal.write(Stage.VERDICT, Decision.GATE, "u1", at=0)
    assert [line["id"] for line in lines(other.getvalue())] == ["u1"], "one bad stream doesn't stop the others"
    disk.room = 10_000
    journal.write(Stage.VERDICT, Decision.GATE, "u2", at=0)
    torn, whole = disk.content.splitlines()
    assert len(torn) == 30
    assert json.loads(whole)["seq"] == 2, "the gap says that a line is missing here"


def test_a_closed_stream_is_an_error() -> None:
    out = io.BytesIO()
    out.close()
    with pytest.raises(JournalError):
        Journal([out], "webhook", "w-1").write(Stage.VERDICT, Decision.GATE, "u", at=0)


def test_intents_without_effect_are_found() -> None:
    out = io.BytesIO()
    journal = Journal([out], "controller", "c-1")
    journal.write(Stage.INTENT, Decision.RESERVE, "a1", at=0, gang="job-x")
    admit = journal.write(Stage.INTENT, Decision.ADMIT, "a1", at=0, gang="job-x", namespace="eval")
    journal.settle(admit, DONE, at=1)
    journal.write(Stage.INTENT, Decision.ADMIT, "a2", at=0, gang="job-y")
    journal.write(Stage.VERDICT, Decision.GATE, "a3", at=0)
    left = open_intents(io.BytesIO(out.getvalue()))
    assert [(record.id, record.decision) for record in left.intents] == [
        ("a1", Decision.RESERVE),
        ("a2", Decision.ADMIT),
    ]
    assert left.malformed == []


def test_an_effect_repeats_whose_it_is() -> None:
    out = io.BytesIO()
    journal = Journal([out], "controller", "c-1")
    journal.settle(
        journal.write(Stage.INTENT, Decision.RELEASE, "a1", at=0, gang="job-x", namespace="n", job="x", queue="q"),
        "failed: 403",
        at=1,
    )
    effect = lines(out.getvalue())[1]
    assert [effect[key] for key in ("gang", "namespace", "job", "queue", "id")] == [
        "job-x",
        "n",
        "x",
        "q",
        "a1",
    ]
    assert effect["outcome"] == "failed: 403"


@given(st.integers(min_value=0, max_value=400))
def test_whatever_a_kill_leaves_of_the_last_line_the_rest_is_read(cut: int) -> None:
    out = io.BytesIO()
    journal = Journal([out], "controller", "c-1")
    journal.write(Stage.INTENT, Decision.ADMIT, "a1", at=0)
    first = out.tell()
    journal.write(Stage.INTENT, Decision.ADMIT, "a2", at=0, message="é" * 50)
    left = open_intents(io.BytesIO(out.getvalue()[: first + cut]))
    assert left.intents[0].id == "a1"
    assert left.malformed in ([], [2])


@given(st.lists(st.binary(max_size=60)))
def test_garbage_is_said_and_never_an_error(garbage: list[bytes]) -> None:
    left = open_intents(garbage)
    assert left.intents == []
    assert len(left.malformed) == sum(1 for line in garbage if line.strip())


def test_another_schema_is_malformed() -> None:
    out = io.BytesIO()
    Journal([out], "controller", "c").write(Stage.INTENT, Decision.ADMIT, "a", at=0)
    assert open_intents([out.getvalue().replace(b"audit/v1", b"audit/v9")]).malformed == [1]
    assert open_intents([b"[" * 5000]).malformed == [1]


def test_a_file_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    stream, left = open_file(path)
    with stream:
        assert left.intents == []
        journal = Journal([stream], "controller", "c-1")
        journal.write(Stage.INTENT, Decision.ADMIT, "a1", at=0)
        assert path.read_bytes().endswith(b"}\n"), "the line is there at once"
        stream.write(b'{"schema":"startgate.dev/au')
    stream, left = open_file(path)
    with stream:
        assert [record.id for record in left.intents] == ["a1"]
        assert left.malformed == [2]
        Journal([stream], "controller", "c-2").settle(left.intents[0], "unknown: the process ended", at=2)
    stream, left = open_file(path)
    stream.close()
    assert left.intents == [], "said once"
    assert left.malformed == [2]


def test_the_reference_names_every_field_and_decision() -> None:
    text = REFERENCE.read_text()
    for word in (*Record.__struct_fields__, "schema", *Decision, *Stage):
        assert f"`{word}`" in text, word
