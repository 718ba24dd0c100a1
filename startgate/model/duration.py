"""Spans of time as people write them in annotations: "90s", "5m", "1h30m".

The form is that of Go's time.ParseDuration, which Kubernetes users know, but strict where that is lax: no
sign, each unit once, the larger first. What always holds: the arithmetic is done in whole nanoseconds; the
result is rounded once, when it becomes seconds.
"""

import re
from typing import Final

PATTERN: Final = re.compile(
    r"(?:(?P<h>[0-9]+(?:\.[0-9]+)?)h)?"
    r"(?:(?P<m>[0-9]+(?:\.[0-9]+)?)m(?!s))?"
    r"(?:(?P<s>[0-9]+(?:\.[0-9]+)?)s)?"
    r"(?:(?P<ms>[0-9]+(?:\.[0-9]+)?)ms)?"
)
NANOSECONDS: Final = {"h": 3_600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6}
LONGEST: Final = 2**63 - 1
"""Nanoseconds that a Go duration can hold: 292 years."""
LONGEST_TEXT: Final = 64


class DurationError(ValueError):
    """A text that isn't a span of time; its message is a sentence for whoever wrote it."""


def parse_seconds(text: str) -> float:
    """The span in seconds, more than 0. Raises DurationError.

    A part of a nanosecond is dropped, as Go does.
    """
    match = PATTERN.fullmatch(text) if len(text) <= LONGEST_TEXT else None
    if match is None or not text:
        raise DurationError(
            f"{text[:80]!r} is not a duration: write hours, minutes and seconds such as 90s, 5m or 1h30m"
        )
    total = sum(_nanoseconds(number, unit) for unit, number in match.groupdict().items() if number)
    if not 0 < total <= LONGEST:
        raise DurationError(f"{text[:80]!r} is not a usable duration: it must be more than 0 and below 292 years")
    return total / 10**9


def _nanoseconds(number: str, unit: str) -> int:
    whole, _, part = number.partition(".")
    return int(whole + part) * NANOSECONDS[unit] // int("1" + "0" * len(part))
