"""What the files say, in its time: each object comes, changes and goes on the stage as it is written.

What always holds: at one instant, what is needed by others comes first, wherever it stands in the files; who is gone
makes way for who comes.
"""

from collections.abc import Callable
from typing import Any, Final

from startgate.engine.simulate.manifests import Change, Life
from startgate.engine.simulate.merge import difference, merge
from startgate.engine.simulate.owners import Loss
from startgate.engine.simulate.stage import KINDS_OF_VOLUMES, Stage
from startgate.engine.simulate.timeline import AFTER, EARLIER, HERE

KINDS_IN_ORDER: Final = (
    *("Namespace", "PriorityClass", "LimitRange", "Queue", "Node"),
    *KINDS_OF_VOLUMES,
    *("Job", "Gang", "Pod"),
)
"""What is needed by others comes first, wherever it stands in the files."""


class Script:
    """The files' part in one simulation."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._timeline = stage.timeline
        self._written: dict[tuple[str, str, str], dict[str, Any]] = {}
        """Objects as the files have them by now, by key."""

    def enter(self, life: Life) -> None:
        """Puts an object's whole life into the timeline."""
        rank = KINDS_IN_ORDER.index(life.key.kind)
        self._due(life.at, (HERE, rank, life.order, 0), lambda: self._appear(life))
        self._plan_end(life, life.at, life.gone, rank)
        for number, change in enumerate(life.changes):
            self._due(change.at, (HERE, rank, life.order + number, 0), lambda change=change: self._change(life, change))  # type: ignore[misc]
            self._plan_end(life, change.at, change.gone, rank)

    def _due(self, moment: int, rank: tuple[int, ...], action: Callable[[], None]) -> None:
        self._timeline.at(moment, rank, action, sure=True)

    def _plan_end(self, life: Life, at: int, gone: int | None, rank: int) -> None:
        if gone is None:
            return
        first = EARLIER if at < gone else AFTER
        self._due(gone, (first, rank, life.order, 1), lambda: self._go(life, gone))

    def _appear(self, life: Life) -> None:
        stage, key = self._stage, life.key
        self._written[key] = life.raw
        if key.namespace and key.namespace not in stage.namespaces:
            stage.set_namespace(key.namespace, {})
        if key.kind == "Pod":
            if known := stage.pod(key.namespace, key.name):  # one that its Job has made
                stage.change_pod(known, life.raw, life.where)
            else:
                stage.new_pod(life)
        elif key.kind == "Job":
            stage.jobs.create(life)
        else:
            stage.set(life.where, key.kind, key.namespace, key.name, life.raw)

    def _change(self, life: Life, change: Change) -> None:
        before = self._written[life.key]
        after = self._written[life.key] = merge(before, change.patch)
        patch = difference(before, after)
        stage, key = self._stage, life.key
        if key.kind == "Pod":
            if known := stage.pod(key.namespace, key.name):
                stage.change_pod(known, patch, change.where)
        elif key.kind == "Job":
            stage.jobs.change(key.namespace, key.name, patch, change.where)
        else:
            stage.set(change.where, key.kind, key.namespace, key.name, after)

    def _go(self, life: Life, at: int) -> None:
        """Deletes it, unless a change has put its end off."""
        stage, key = self._stage, life.key
        final = [each.gone for each in life.changes if each.gone is not None and each.at <= self._timeline.now]
        if (final[-1] if final else life.gone) != at:
            return
        if key.kind == "Pod":
            if known := stage.pod(key.namespace, key.name):
                stage.delete(known, Loss.DELETED)
        elif key.kind == "Job":
            stage.jobs.delete(key.namespace, key.name)
        else:
            stage.unset(key.kind, key.namespace, key.name)
