"""How the building of the control plane tells of its progress, without building anything."""

import sys

import pytest

from localcluster import build


def test_in_a_log_progress_is_a_line_like_all_others() -> None:
    said: list[str] = []
    build._passing("half", said.append)
    build._passing("", said.append)
    assert said == ["half"]


def test_on_a_terminal_it_takes_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said: list[str] = []
    for sentence in ("half", "x" * 500, ""):
        build._passing(sentence, said.append)
    out = capsys.readouterr().err
    assert said == []
    assert "\n" not in out
    first, second, last = out.split("\r\x1b[2K")[1:]
    assert (first, last) == ("  · half", "")
    assert len(second) < 500
