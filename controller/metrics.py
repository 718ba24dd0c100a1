"""What Prometheus may know of the controller. Counting only; nothing here is read back.

Label values are closed sets (phases, reason codes) and queue names, so that the number of series is bounded by what
admins create, never by users' Jobs.
"""

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from controller.state import State
from startgate.engine.world import Plan


class Metrics:
    """The series, in a registry of their own."""

    def __init__(self) -> None:
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
        self._asked = Gauge("startgate_cycle_waiting", "Gangs that the last cycle decided on.", registry=self.registry)
        self._gangs = Gauge(
            "startgate_gangs",
            "Gangs by queue, phase and reason.",
            ["queue", "phase", "reason"],
            registry=self.registry,
        )

    def cycle(self, seconds: float, asked: int, plan: Plan) -> None:
        """After each cycle."""
        self._seconds.observe(seconds)
        self._asked.set(asked)
        self._admitted.inc(sum(1 for go in plan.go if go.kind is None))

    def gangs(self, states: Iterable[State]) -> None:
        """The gangs as they stand."""
        tally: Tally[tuple[str, str, str]] = Tally()
        for state in states:
            why = state.reason
            tally[state.facts.queue, str(state.phase), str(why.code) if why else ""] += 1
        self._gangs.clear()
        for labels, count in tally.items():
            self._gangs.labels(*labels).set(count)
