"""What came of many cases: how often both agreed, by feature."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.oracle.careful import Careful
from tests.oracle.judge import Outcome, Verdict


@dataclass
class Row:
    """The cases with one feature."""

    clusters: int = 0
    bound: int = 0
    """All of the gang was bound."""
    outcomes: Counter[Outcome] = field(default_factory=Counter)


@dataclass
class Tally:
    clusters: int = 0
    bound: int = 0
    """In so many of them all of the gang was bound."""
    refused: int = 0
    unanswered: int = 0
    rows: dict[str, Row] = field(default_factory=dict)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    careful: Counter[Careful] = field(default_factory=Counter)
    """Missed fits of a kind that may be missed."""
    noes: Counter[Careful] = field(default_factory=Counter)
    """All noes of these kinds, right or not."""
    mistakes: list[Verdict] = field(default_factory=list)

    def count(self, verdict: Verdict) -> None:
        """Takes one in."""
        self.clusters += 1
        self.bound += not verdict.unbound
        self.outcomes[verdict.outcome] += 1
        for feature in verdict.case.features:
            row = self.rows.setdefault(feature, Row())
            row.clusters += 1
            row.bound += not verdict.unbound
            row.outcomes[verdict.outcome] += 1
        if verdict.mistaken:
            self.mistakes.append(verdict)
        kind = None if verdict.answer.goes else verdict.careful
        if kind is not None:
            self.noes[kind] += 1
            self.careful[kind] += verdict.outcome is Outcome.MISSED_FIT

    @property
    def wrong_fits(self) -> int:
        return self.outcomes[Outcome.WRONG_FIT]

    @property
    def missed_fits(self) -> int:
        return self.outcomes[Outcome.MISSED_FIT]

    def table(self) -> str:
        """By feature, for people; a case counts for each of its features."""
        width = max((len(feature) for feature in self.rows), default=7)
        lines = [f"{'feature':{width}}  clusters  all bound   agreed  wrong fits  missed fits"]
        for feature, row in sorted(self.rows.items()):
            agreed = 100 * row.outcomes[Outcome.AGREED] / row.clusters
            lines.append(
                f"{feature:{width}}  {row.clusters:8}  {row.bound:9}  {agreed:6.2f}%  "
                f"{row.outcomes[Outcome.WRONG_FIT]:10}  {row.outcomes[Outcome.MISSED_FIT]:11}"
            )
        known = sum(self.careful.values())
        lines.append(f"Missed fits that may be missed: {known}")
        lines += [f"  {line}" for line in self._kinds()]
        if self.refused:
            lines.append(f"Refused by the API server, and not counted: {self.refused}")
        if self.unanswered:
            lines.append(f"Without an answer, and not counted: {self.unanswered}")
        return "\n".join(lines)

    def page(self) -> str:
        """The same as a table for docs/reference."""
        rows = [
            f"| {feature} | {row.clusters} | {row.bound} | {row.outcomes[Outcome.AGREED] / row.clusters:.2%} "
            f"| {row.outcomes[Outcome.WRONG_FIT]} | {row.outcomes[Outcome.MISSED_FIT]} |"
            for feature, row in sorted(self.rows.items())
        ]
        head = ["| feature | clusters | all bound | agreed | wrong fits | missed fits |", "|" + " --- |" * 6]
        kinds = [f"* {line}" for line in self._kinds()]
        mistakes = self.missed_fits - sum(self.careful.values())
        last = f"`{self.last_line()}`, of which {mistakes} are mistakes, and"
        return "\n".join([*head, *rows, "", last, "", *kinds])

    def _kinds(self) -> list[str]:
        return [f"{self.careful[kind]} of {noes} noes to gangs {kind}" for kind, noes in self.noes.most_common()]

    def last_line(self) -> str:
        """What `make oracle` ends with."""
        return f"oracle: {self.clusters} clusters, {self.wrong_fits} wrong fits, {self.missed_fits} missed fits"
