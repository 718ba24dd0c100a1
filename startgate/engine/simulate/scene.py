"""What the model of the Job controller sees of the cluster around it, and can ask of it; simulate.stage is one.

So that the stage can hold the Jobs, and the Jobs need not know the stage.
"""

from typing import Protocol

from startgate.engine.simulate.kinds import LimitRangeItem
from startgate.engine.simulate.owners import Loss
from startgate.engine.simulate.pods import Actor
from startgate.engine.simulate.timeline import Timeline
from startgate.model import objects


class Scene(Protocol):
    """What the Job controller sees of the cluster around it, and can ask of it."""

    timeline: Timeline
    classes: dict[str, objects.PriorityClass]
    dirty: dict[str, None]
    notes: dict[str, None]

    def order(self) -> int: ...
    def limits(self, namespace: str) -> list[LimitRangeItem]: ...
    def check_class(self, name: str) -> None: ...
    def add(self, actor: Actor) -> None: ...
    def bind(self, actor: Actor, node: str) -> None: ...
    def run_on(self, actor: Actor) -> None: ...
    def delete(self, actor: Actor, loss: Loss) -> None: ...
