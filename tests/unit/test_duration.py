"""Spans of time in annotations: what Go reads the same way, and a sentence for everything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from startgate.model.duration import DurationError, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1h0m0.5s", 3600.5),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        ("2m250ms", 120.25),
        ("0.1s", 0.1),
        ("2562047h", 9223369200.0),
    ],
)
def test_reads(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "5", "5 m", " 5m", "5m ", "5m\n", "-5m", "+5m", "0s", "0h0m", "5min", "1m1h", "5m5m", ".5s", "5.s"),
        *("1d", "5M", "\u0665m", "1e3s", "2562048h", "9" * 70 + "s", "0.0000000001s"),
    ],
)
def test_refuses_with_a_sentence(text: str) -> None:
    with pytest.raises(DurationError, match="duration"):
        parse_seconds(text)


@given(st.text(alphabet="0123456789.hms ", max_size=70))
def test_whatever_is_written_it_is_a_number_of_seconds_or_a_sentence(text: str) -> None:
    try:
        assert 0 < parse_seconds(text) <= 2**63 / 10**9
    except DurationError as error:
        assert "duration" in str(error)
