"""Which host ports are taken on which nodes (kube-scheduler's filter NodePorts).

What always holds: a port on all of a node's addresses is in the way of the same port on any of them, and the other way
round; another protocol is another port. Two pods of one shape with ports are never on one node: see to it that a
node takes one of them at most (`Shape.ports`).
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from startgate.engine.counts import Counts
from startgate.model.shape import HostPort, Shape

Ints: TypeAlias = npt.NDArray[np.int64]


class Ports:
    """Host ports by slot. A copy costs next to nothing: it is what a what-if may use up and give back."""

    def __init__(self) -> None:
        self._taken: Counts[HostPort, int] = Counts()
        """By port: how many pods have it on the node in each slot."""
        self._alike: Counts[tuple[int, str], HostPort] = Counts()
        """The ports that differ in their address alone, where somebody has them."""

    def add(self, shape: Shape, slot: int, count: int = 1) -> None:
        """Counts pods on the node in this slot; negative: fewer."""
        for port in shape.ports:
            before = port in self._taken
            self._taken.add(port, slot, count)
            after = port in self._taken
            if before != after:
                self._alike.add((port.port, port.protocol), port, 1 if after else -1)

    def blocked(self, shape: Shape) -> Ints:
        """Slots, in no order, of nodes that have no room for the ports of such a pod."""
        slots = {slot for port in shape.ports for slot in self.taken(port)}
        return np.fromiter(slots, dtype=np.int64, count=len(slots))

    def taken(self, port: HostPort) -> set[int]:
        """Slots of nodes where somebody has this port, or one that is in its way."""
        slots: set[int] = set()
        for other in self._alike[(port.port, port.protocol)]:
            if _same_address(port, other):
                slots.update(slot for slot, count in self._taken[other].items() if count > 0)
        return slots

    def copy(self) -> "Ports":
        """Another one like this; a change to either isn't seen in the other."""
        twin = Ports()
        twin._taken = self._taken.copy()
        twin._alike = self._alike.copy()
        return twin


def clash(one: Shape, other: Shape) -> bool:
    """Whether pods of these shapes can't be on one node."""
    return any(
        (mine.port, mine.protocol) == (theirs.port, theirs.protocol) and _same_address(mine, theirs)
        for mine in one.ports
        for theirs in other.ports
    )


def _same_address(one: HostPort, other: HostPort) -> bool:
    return not one.ip or not other.ip or one.ip == other.ip
