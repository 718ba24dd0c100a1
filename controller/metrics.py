"""What Prometheus may know of the controller. Counting only; nothing here is read back.

Label values are closed sets (phases, reason codes) and queue names, so that the number of series is bounded by what
admins create, never by users' Jobs.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.state import State
from startgate.engine.world import Plan, Rule
from startgate.kube.reflector import Reflector

WATCHES: Final = {
    "events": "Changes told by the API server.",
    "relists": "Full lists read.",
    "errors": "Lists and watches that failed.",
    "unreadable": "Objects left out because they could not be read.",
}


class Metrics:
    """The series, in a registry of their own. `states` gives the gangs when somebody asks."""

    def __init__(self, states: Callable[[], Iterable[State]], reflectors: Iterable[Reflector[Any, Any]]) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "startgate_cycle_seconds",
            "Time that one decision cycle took.",
            registry=self.registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
        )
        self._admitted = Counter(
            "startgate_admissions", "Gangs let through, or pods that joined.", registry=self.registry
        )
        self._evicted = Counter(
            "startgate_evictions",
            "Gangs that gave way to another, whole or by some of their pods, by rule and by their own queue.",
            labelnames=("rule", "queue"),
            registry=self.registry,
        )
        self._taken_back = Counter(
            "startgate_take_backs",
            "Gangs taken back whole, since not all of their pods were bound (or made) in time.",
            labelnames=("queue",),
            registry=self.registry,
        )
        self._asked = Gauge("startgate_cycle_waiting", "Gangs that the last cycle decided on.", registry=self.registry)
        self.registry.register(_Gangs(states))
        self.registry.register(_Watches(tuple(reflectors)))

    def cycle(self, seconds: float, asked: int, plan: Plan) -> None:
        """After each cycle."""
        self._seconds.observe(seconds)
        self._asked.set(asked)
        self._admitted.inc(sum(1 for go in plan.go if go.kind is None))

    def evicted(self, rule: Rule, queue: str) -> None:
        """A gang of this queue gave way."""
        self._evicted.labels(str(rule), queue).inc()

    def taken_back(self, queue: str) -> None:
        """A gang of this queue was taken back."""
        self._taken_back.labels(queue).inc()


class _Watches(Collector):
    """How it goes with the API server, by kind of object."""

    def __init__(self, reflectors: tuple[Reflector[Any, Any], ...]) -> None:
        self._reflectors = reflectors

    def collect(self) -> Iterator[Metric]:
        for name, words in WATCHES.items():
            series = CounterMetricFamily(f"startgate_watch_{name}", words, labels=["kind"])
            for each in self._reflectors:
                source = each.store if name == "unreadable" else each
                series.add_metric([each.kind.plural], getattr(source, name))
            yield series


class _Gangs(Collector):
    """The gangs as they stand, counted only when asked for."""

    def __init__(self, states: Callable[[], Iterable[State]]) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        tally: Tally[tuple[str, str, str]] = Tally()
        for state in self._states():
            why = state.reason
            tally[state.facts.queue, str(state.phase), str(why.code) if why else ""] += 1
        series = GaugeMetricFamily(
            "startgate_gangs", "Gangs by queue, phase and reason.", labels=["queue", "phase", "reason"]
        )
        for labels, count in tally.items():
            series.add_metric(labels, count)
        yield series
