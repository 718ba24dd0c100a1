"""The report at the end of a run: medians, ratios, and the marks that are to be reached, each plainly met or not.

Seconds depend on the machine and on what else it does. Ratios between modes that ran in turn do so much less, and so
the marks are ratios.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from bench.figures import PARTIAL, Figures, median
from bench.scenarios import SCENARIOS, Mode, Scenario

DISTURBED: Final = 0.1
"""The share of the machine that may go to others before a trial counts as disturbed."""


class Ratio(msgspec.Struct):
    """What Startgate takes, beside another mode. None: not both ever had all bound."""

    scenario: str
    over: Mode
    seconds: float | None
    """Median seconds until all was bound, over those of the other mode."""
    seconds_of_runs: list[float]
    """The same for each run in which both had all bound."""
    cpu: float | None
    """The same of the CPU of everything that took part, the bench included, since it does the other mode's work. Less
    than seconds does this depend on what else the machine does.
    """
    more_writes_per_gang: float


class Mark(msgspec.Struct):
    """What is to be reached, and whether it was."""

    scenario: str
    wanted: str
    found: str
    met: bool
    disturbed: bool
    """Whether a trial that it rests on was disturbed, so that this proves little either way."""


class Summary(msgspec.Struct):
    ratios: list[Ratio]
    marks: list[Mark]
    disturbed_trials: int
    """In which others took more than a tenth of the machine."""


def summary(trials: Sequence[Figures]) -> Summary:
    ratios = [
        found
        for scenario in _scenarios(trials)
        if scenario.ceiling is not None
        for over in (Mode.FLOOR, Mode.RAW)
        if (found := _ratio(trials, scenario, over)) is not None
    ]
    marks = [mark for scenario in _scenarios(trials) if (mark := _mark(trials, scenario, ratios)) is not None]
    return Summary(ratios, marks, sum(_disturbed(trial) for trial in trials))


def text(trials: Sequence[Figures]) -> str:
    """What a person reads."""
    result = summary(trials)
    parts = [_scenario(trials, scenario, result.ratios) for scenario in _scenarios(trials)]
    parts.append(
        "\n".join(
            f"Mark {mark.scenario}: {'met' if mark.met else 'NOT MET'}{' (disturbed)' if mark.disturbed else ''}. "
            f"Wanted: {mark.wanted}. Found: {mark.found}."
            for mark in result.marks
        )
    )
    if result.disturbed_trials:
        parts.append(
            f"{result.disturbed_trials} of {len(trials)} trials were disturbed: other programs took more than "
            f"{DISTURBED:.0%} of the machine's CPU meanwhile. Ratios of such trials prove little either way."
        )
    failures = sum(len(trial.failures) for trial in trials)
    if failures:
        parts.append(f"{failures} requests of the bench failed; the JSON file (--output) has their errors.")
    return "\n\n".join(filter(None, parts))


def _scenarios(trials: Iterable[Figures]) -> list[Scenario]:
    return [SCENARIOS[key] for key in dict.fromkeys(trial.scenario for trial in trials)]


def _of(trials: Sequence[Figures], scenario: Scenario, mode: Mode) -> list[Figures]:
    return [trial for trial in trials if trial.scenario == scenario.key and trial.mode is mode]


def _disturbed(trial: Figures) -> bool:
    return trial.cpu_others > DISTURBED * trial.cpu.clock * (os.cpu_count() or 1)


def _ratio(trials: Sequence[Figures], scenario: Scenario, over: Mode) -> Ratio | None:
    ours, theirs = _of(trials, scenario, Mode.STARTGATE), _of(trials, scenario, over)
    if not ours or not theirs:
        return None
    runs = [
        round(our.all_bound / their.all_bound, 3)
        for our in ours
        for their in theirs
        if our.run == their.run and our.all_bound is not None and their.all_bound is not None
    ]
    writes = median(ours, lambda it: it.writes_per_gang) - median(theirs, lambda it: it.writes_per_gang)
    bound = math.isfinite(median(ours, _all_bound)) and math.isfinite(median(theirs, _all_bound))

    def quotient(figure: Callable[[Figures], float | None]) -> float | None:
        return round(median(ours, figure) / median(theirs, figure), 3) if bound else None

    return Ratio(scenario.key, over, quotient(_all_bound), runs, quotient(_all_cpu), round(writes, 2))


def _mark(trials: Sequence[Figures], scenario: Scenario, ratios: Sequence[Ratio]) -> Mark | None:
    ours = _of(trials, scenario, Mode.STARTGATE)
    if not ours:
        return None
    if scenario.ceiling is None:
        partial = sum(trial.partial_gangs for trial in ours)
        stuck = sum(trial.stuck_gangs for trial in ours)
        unfinished = sum(trial.makespan is None for trial in ours)
        return Mark(
            scenario.key,
            f"no gang bound in part for over {PARTIAL:g} s, every run finished",
            f"{partial} gangs bound in part ({stuck} to the end), "
            f"{unfinished} of {len(ours)} runs unfinished after {scenario.limit:g} s",
            partial == 0 and unfinished == 0,
            any(map(_disturbed, ours)),
        )
    ratio = next((it for it in ratios if it.scenario == scenario.key and it.over is Mode.FLOOR), None)
    if ratio is None:
        return None
    return Mark(
        scenario.key,
        f"at most {scenario.ceiling:g} x {Mode.FLOOR}",
        "not all gangs were bound" if ratio.seconds is None else f"{ratio.seconds:.2f} x",
        ratio.seconds is not None and ratio.seconds <= scenario.ceiling,
        any(map(_disturbed, (*ours, *_of(trials, scenario, Mode.FLOOR)))),
    )


def _all_bound(trial: Figures) -> float | None:
    return trial.all_bound


def _all_cpu(trial: Figures) -> float:
    return trial.cpu_settled.total + trial.cpu_settled.bench


COLUMNS: Final[dict[str, Callable[[Figures], float | None]]] = {
    "all bound s": _all_bound,
    "gang p50 s": lambda it: it.latency_p50,
    "gang p99 s": lambda it: it.latency_p99,
    "spread p99 s": lambda it: it.spread_p99,
    "partial gangs": lambda it: it.partial_gangs,
    "makespan s": lambda it: it.makespan,
    "writes/pod": lambda it: it.writes_per_pod,
    "writes/gang": lambda it: it.writes_per_gang,
    "CPU s": lambda it: it.cpu_settled.total,
    "CPU s bench": lambda it: it.cpu_settled.bench,
    "CPU s others": lambda it: it.cpu_others,
}


def _scenario(trials: Sequence[Figures], scenario: Scenario, ratios: Sequence[Ratio]) -> str:
    by_mode = {mode: of for mode in Mode if (of := _of(trials, scenario, mode))}
    columns = {
        title: figure for title, figure in COLUMNS.items() if title != "makespan s" or scenario.lasts is not None
    }
    runs = max(len(of) for of in by_mode.values())
    parts = [
        f"{scenario}  (medians of {runs})",
        _table(
            ["", *columns],
            [[mode, *(_number(median(of, it)) for it in columns.values())] for mode, of in by_mode.items()],
        ),
        "  CPU seconds / peak MiB of each process:",
        _processes(by_mode),
        "  Writes per gang, by kind:",
        *(f"  {mode}: {_writes(of)}" for mode, of in by_mode.items()),
        *(_ratio_line(ratio) for ratio in ratios if ratio.scenario == scenario.key),
    ]
    return "\n".join(parts)


def _processes(by_mode: dict[Mode, list[Figures]]) -> str:
    names = list(next(iter(by_mode.values()))[0].peak_mib)

    def cell(of: list[Figures], name: str) -> str:
        cpu = median(of, lambda it: it.cpu_settled.processes.get(name))
        peak = median(of, lambda it: it.peak_mib.get(name))
        return f"{_number(cpu)} / {peak:.0f}"

    return _table(["", *names], [[mode, *(cell(of, name) for name in names)] for mode, of in by_mode.items()])


def _writes(of: Sequence[Figures]) -> str:
    def per_gang(kind: str) -> float:
        return median(of, lambda trial: trial.writes.get(kind, 0) / trial.gangs)

    kinds = {kind for trial in of for kind in trial.writes}
    return ", ".join(f"{_number(per_gang(kind))} {kind}" for kind in sorted(kinds, key=per_gang, reverse=True))


def _ratio_line(ratio: Ratio) -> str:
    who = f"  {Mode.STARTGATE} / {ratio.over}:"
    if ratio.seconds is None or ratio.cpu is None:
        return f"{who} none, since not all gangs were bound"
    runs = ratio.seconds_of_runs
    spread = f" (single runs {min(runs):.2f} to {max(runs):.2f})" if len(runs) > 1 else ""
    return (
        f"{who} {ratio.seconds:.2f} in seconds{spread}, {ratio.cpu:.2f} in CPU, "
        f"{ratio.more_writes_per_gang:+.2f} writes per gang"
    )


def _number(value: float) -> str:
    if math.isinf(value):
        return "never"
    return f"{value:.0f}" if value == int(value) else f"{value:.2f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  "
        + "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    )
