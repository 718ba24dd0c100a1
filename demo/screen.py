"""What the demo prints: for a terminal, and as readable in the log of a CI run.

Never wider than 100 columns. Colour only where the terminal has it; nothing is said by colour alone.
"""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from demo.checks import Checks, Claim

WIDEST: Final = 100


class Screen:
    """Prints; holds nothing but the console."""

    def __init__(self) -> None:
        probe = Console()
        width = min(WIDEST, probe.width) if probe.is_terminal else WIDEST
        self._console = Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)
        self._after_claim = False

    def terminal(self) -> dict[str, str]:
        """The environment in which a command lays its answer out for the room that it has here, without colours."""
        return {"TTY_COMPATIBLE": "1", "TERM": "dumb", "COLUMNS": str(self._console.width - 4), "LINES": "50"}

    def chapter(self, number: int, title: str) -> None:
        """A headline."""
        self._after_claim = False
        self._console.print()
        self._console.print(Rule(f" {number}. {title} ", style="bold cyan", align="left", characters="─"))

    def say(self, text: str) -> None:
        """A paragraph; line breaks and indentation of the source don't count."""
        self._after_claim = False
        self._console.print()
        self._console.print(Text(" ".join(text.split())))

    def note(self, text: str) -> None:
        """A line of progress."""
        self._after_claim = False
        for line in self._wrapped(f"  · {text}", 4):
            self._console.print(Text(line, style="dim"))

    def command(self, line: str, output: str = "", *, user: str = "") -> None:
        """A command and what it answered, word for word (long lines are folded)."""
        self._after_claim = False
        self._console.print()
        who = f"({user}) " if user else ""
        prompt = f"  {who}$ "
        first, *rest = self._wrapped(prompt + line, 6)
        self._console.print(Text.assemble((prompt, "dim"), (first[len(prompt) :], "bold")))
        for part in rest:
            self._console.print(Text(part, style="bold"))
        self._block(output.rstrip().splitlines())

    def manifest(self, text: str, marked: str = "") -> None:
        """YAML; lines that have `marked` in them stand out."""
        for line in text.rstrip().splitlines():
            hit = bool(marked) and marked in line
            for part in self._wrapped(line, _lead(line) + 2, less=4):
                self._console.print(
                    Text.assemble(("  + " if hit else "  │ ", "dim"), (part, "bold green" if hit else ""))
                )

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Rows under headings."""
        self._after_claim = False
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
        for heading in headings:
            table.add_column(Text(heading), overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self._console.print()
        indented = Table.grid()
        indented.add_column(width=2)
        indented.add_column()
        indented.add_row("", table)
        self._console.print(indented)

    def claim(self, claim: Claim) -> None:
        """A tick, or FAILED."""
        if not self._after_claim:
            self._console.print()
        self._mark(claim)
        if claim.seen:
            self._block([claim.seen], indent="    ")
        self._after_claim = True

    def ending(self, checks: Checks) -> None:
        """All claims once more."""
        self._console.print()
        for claim in checks.claims:
            self._mark(claim)

    def lines(self, lines: Iterable[str]) -> None:
        """Lines that are to be copied: never folded."""
        for line in lines:
            self._console.print(line, soft_wrap=True)

    def blank(self) -> None:
        """An empty line."""
        self._console.print()

    def _mark(self, claim: Claim) -> None:
        mark = ("  ✓ ", "bold green") if claim.holds else ("  ✗ FAILED: ", "bold red")
        first, *rest = textwrap.wrap(claim.sentence, self._console.width - len(mark[0]))
        self._console.print(Text.assemble(mark, first))
        for line in rest:
            self._console.print(" " * 4 + line)

    def _block(self, lines: Iterable[str], indent: str = "  ") -> None:
        for line in lines:
            for part in self._wrapped(line, _lead(line), less=len(indent) + 2):
                self._console.print(Text(f"{indent}{part}", style="dim" if len(indent) > 2 else ""))

    def _wrapped(self, line: str, hang: int, less: int = 0) -> list[str]:
        """The line in as many as it takes; those after the first are indented by `hang`."""
        width = self._console.width - less
        if len(line) <= width:
            return [line.rstrip()]
        return textwrap.wrap(line, width, subsequent_indent=" " * hang, break_on_hyphens=False)


def _lead(line: str) -> int:
    return len(line) - len(line.lstrip())
