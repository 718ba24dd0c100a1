"""The figures of one trial, as they are written to the JSON file; and the medians of the trials of one kind.

Always holds: what never happened is None in a trial and infinite in a median, so that it can't pass for a good figure.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from bench.costs import Cpu
from bench.gang import Gang
from bench.scenarios import Mode
from bench.trial import Trial

PARTIAL = 3.0
"""Seconds: a gang that was bound in part for longer counts as partial."""


class Figures(msgspec.Struct, kw_only=True):
    """One trial. Times are in seconds from the first create request, as the one watcher saw things."""

    scenario: str
    mode: Mode
    run: int
    gangs: int
    pods: int
    jobs_created: float | None
    pods_created: float | None
    all_bound: float | None
    makespan: float | None
    """Until the last pod had ended, where pods end."""
    pods_bound: int
    latency_p50: float | None
    """Of whole gangs: from the create request to the binding of the last pod."""
    latency_p99: float | None
    """With 100 gangs or fewer, that of the slowest."""
    spread_p50: float | None
    """Of whole gangs: from the binding of the first pod to that of the last."""
    spread_p99: float | None
    partial_gangs: int
    """Bound in part for more than 3 s, or to the end."""
    stuck_gangs: int
    """Of those: bound in part when the trial ended."""
    unbound_gangs: int
    """With no pod bound when the trial ended."""
    lost_pods: int
    watches_ended: int
    """How often the API server ended the bench's watch, and so delayed what it saw."""
    failures: list[str]
    """Requests of the bench that failed."""
    cpu: Cpu
    """CPU seconds until all was bound, or had ended where pods end."""
    cpu_settled: Cpu
    """The same, after 3 s more for what is written behind."""
    cpu_others: float
    """CPU seconds that the machine spent meanwhile on what has no part in this."""
    peak_mib: dict[str, float]
    writes: dict[str, int]
    writes_per_gang: float
    writes_per_pod: float


def figures(
    trial: Trial, run: int, *, cpu: Cpu, settled: Cpu, peak_mib: dict[str, float], writes: Counter[str]
) -> Figures:
    gangs = trial.gangs.values()
    whole = [gang for gang in gangs if gang.whole]
    return Figures(
        scenario=trial.scenario.key,
        mode=trial.mode,
        run=run,
        gangs=trial.scenario.gangs,
        pods=trial.scenario.pods,
        jobs_created=_rounded(trial.jobs_created),
        pods_created=_rounded(trial.pods_created),
        all_bound=_rounded(trial.all_bound),
        makespan=_rounded(trial.all_ended),
        pods_bound=sum(len(gang.bound) for gang in gangs),
        latency_p50=_percentile([gang.latency for gang in whole], 0.5),
        latency_p99=_percentile([gang.latency for gang in whole], 0.99),
        spread_p50=_percentile([gang.spread for gang in whole], 0.5),
        spread_p99=_percentile([gang.spread for gang in whole], 0.99),
        partial_gangs=sum(gang.partly_bound > PARTIAL for gang in gangs),
        stuck_gangs=sum(_stuck(gang) for gang in gangs),
        unbound_gangs=sum(not gang.bound for gang in gangs),
        lost_pods=trial.lost,
        watches_ended=trial.watches_ended,
        failures=trial.failures,
        cpu=cpu,
        cpu_settled=settled,
        cpu_others=cpu.others,
        peak_mib=peak_mib,
        writes=dict(writes.most_common()),
        writes_per_gang=round(writes.total() / trial.scenario.gangs, 2),
        writes_per_pod=round(writes.total() / trial.scenario.total, 2),
    )


def _stuck(gang: Gang) -> bool:
    return math.isinf(gang.partly_bound)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _percentile(values: Sequence[float], share: float) -> float | None:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3) if ordered else None


def median(trials: Sequence[Figures], figure: Callable[[Figures], float | None]) -> float:
    """Over the trials; infinite where it is so for the middle one."""
    values = [figure(trial) for trial in trials]
    return statistics.median(math.inf if value is None else value for value in values)
