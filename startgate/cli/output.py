"""Answers on the terminal and in files: aligned columns for people, JSON and YAML for programs.

What always holds: nothing is cut and nothing is wrapped; colours are for terminals alone (and not with NO_COLOR);
what a cluster's objects say can't send control characters to a terminal. JSON and YAML carry the same document.
"""

import re
import sys
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Decimal
from enum import StrEnum
from functools import cache
from typing import Annotated, Final, TypeAlias

import msgspec
import typer
import yaml
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

GAP: Final = 3
NARROW: Final = 2
"""Between columns where there is room for more, and where there isn't."""

STYLES: Final = {
    "Running": "green",
    "Finished": "dim",
    "Waiting": "yellow",
    "Parked": "yellow",
}
"""Cells that stand out, by what they say."""

BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
BYTES: Final = ("memory", "ephemeral-storage", "hugepages-")
LONG: Final = re.compile(r"([1-9][0-9]{4,18})(m|[KMGTP]i)|([1-9][0-9]{7,18})")
"""Whole numbers of a small unit, that nobody takes in at a glance."""

MINUTE, HOUR, DAY = 60, 3600, 86400


class Format(StrEnum):
    """What -o takes."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Table: TypeAlias = tuple[list[str], list[list[str]]]
"""Header and rows."""

Output: TypeAlias = Annotated[Format, typer.Option("--output", "-o", help="How to print the answer.")]


def write(document: object, output: Format) -> None:
    """Prints a document for programs."""
    if output is Format.JSON:
        encoded = msgspec.json.format(msgspec.json.encode(document), indent=2)
        sys.stdout.write(encoded.decode() + "\n")
    else:
        plain = msgspec.to_builtins(document)
        sys.stdout.write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=sys.maxsize))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints columns as wide as their widest cell; the last one ends where its text ends.

    A row of one cell is a line of its own below the row before, and widens no column.
    """
    lines = [list(header), *([plain(cell) for cell in row] for row in rows)]
    widths = _widths(lines)
    gap = GAP if _across(widths, GAP) <= room() else NARROW
    for number, line in enumerate(lines):
        text = Text(style="bold" if number == 0 else "")
        for column, cell in enumerate(line):
            pad = "" if column == len(line) - 1 else " " * (widths[column] - cell_len(cell) + gap)
            text.append(cell, STYLES.get(cell)).append(pad)
        text.rstrip()
        _print(text)


def fits(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether these columns are as wide as the terminal at most; what isn't for a terminal always fits."""
    return _across(_widths([header, *rows]), NARROW) <= room()


def left(header: Sequence[str], rows: Sequence[Sequence[str]]) -> float:
    """How many characters a column behind these may have."""
    return room() - _across(_widths([header, *rows]), NARROW) - NARROW


def room() -> float:
    """How many characters a line may have."""
    terminal = _terminal()
    return terminal.width if terminal.is_terminal else float("inf")


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    columns = range(len(lines[0]))
    return [max(cell_len(line[column]) for line in lines if len(line) == len(columns)) for column in columns]


def _across(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def facts(pairs: Sequence[tuple[str, str]]) -> None:
    """Prints a name and a value a line, the values below each other; a pair without a value is left out."""
    told = [(name, plain(value)) for name, value in pairs if value]
    width = max((len(name) for name, _ in told), default=0) + GAP
    for name, value in told:
        _print(Text(name.ljust(width), style="dim").append(value, "not dim"))


def line(text: str, style: str = "") -> None:
    """Prints one line, however long."""
    _print(Text(plain(text), style=style))


def note(text: str) -> None:
    """Says something to the person, beside the answer: on standard error."""
    sys.stderr.write(f"{plain(' '.join(text.split()))}\n")


def doubt(why: str | None) -> None:
    """Says, before an answer that may be out of date, why it may be."""
    if why:
        note(f"Warning: {why}")


def plain(text: str) -> str:
    """The text without what a terminal would obey."""
    return "".join(each if each.isprintable() else "�" for each in text)


def short(resource: str, quantity: str) -> str:
    """A long Kubernetes quantity for a table: rounded down to two decimals of a unit that people read. Only bytes have
    units without being written with one."""
    found = LONG.fullmatch(quantity)
    if not found or (found[3] and not resource.startswith(BYTES)):
        return quantity
    unit = found[2] or ""
    value = Decimal(found[1] or found[3])
    if unit == "m":
        return _rounded(value / 1000)
    value *= 1024 ** BINARY.index(unit)
    power = next(each for each in reversed(range(len(BINARY))) if value >= 1024**each)
    return f"{_rounded(value / 1024**power)}{BINARY[power]}"


def _rounded(value: Decimal) -> str:
    text = str(value.quantize(Decimal("0.01"), ROUND_FLOOR))
    return text.rstrip("0").rstrip(".")


def age(seconds: float) -> str:
    """A duration as kubectl writes it: two units while they matter."""
    whole = max(0, int(seconds))
    for below, first, second in (
        (2 * MINUTE, ("s", 1), None),
        (10 * MINUTE, ("m", MINUTE), ("s", 1)),
        (3 * HOUR, ("m", MINUTE), None),
        (8 * HOUR, ("h", HOUR), ("m", MINUTE)),
        (2 * DAY, ("h", HOUR), None),
        (8 * DAY, ("d", DAY), ("h", HOUR)),
    ):
        if whole < below:
            unit, size = first
            text = f"{whole // size}{unit}"
            if second is not None and whole % size // second[1]:
                text += f"{whole % size // second[1]}{second[0]}"
            return text
    return f"{whole // DAY}d"


class _Terminal(Console):
    """Leaves a closed pipe to the program, where rich would end it with a 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@cache
def _terminal() -> Console:
    return _Terminal(highlight=False)


def _print(text: Text) -> None:
    _terminal().print(text, soft_wrap=True)
