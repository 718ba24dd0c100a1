"""The cluster: its nodes, the pods that are on them, and what these have to do with one another.

Kept by the controller from what it watches, one change at a time, and copied for a what-if. What always holds:

* The order in which nodes and pods came has no influence on any answer.
* A pod counts on its node from `add_pod` to `remove_pod`, whether or not the node is known yet.
* Whoever else's pod is only nominated to a node has its resources and its ports there, and is no company to anybody: it
  isn't there yet, and what it would rule out on that node is `Cluster.nominees`' affair.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from startgate.engine.company import Company
from startgate.engine.filters import Facts
from startgate.engine.hurdles import Hurdles
from startgate.engine.kept import Kept
from startgate.engine.nodes import Nodes
from startgate.engine.ports import Ports
from startgate.engine.stock import Stocks
from startgate.engine.storage import Storage
from startgate.model.shape import Shape


class _Seat(NamedTuple):
    """Where a pod counts, and as what."""

    slot: int
    shape: Shape
    ours: bool
    leaving: bool
    nominated: bool


class Cluster(Nodes):
    """The attributes are for reading; methods change them."""

    def __init__(self) -> None:
        super().__init__()
        self.stocks = Stocks(self)
        self.hurdles = Hurdles(self)
        self.refusals = Kept()
        """Why quota refuses (`verdicts`)."""
        self.company = Company()
        self.ports = Ports()
        self.storage = Storage()
        self.nominees: dict[int, dict[Shape, int]] = {}
        """By slot: pods that aren't ours and are nominated to it."""
        self._pods: dict[str, _Seat] = {}

    def add_pod(
        self,
        uid: str,
        node_name: str,
        shape: Shape,
        *,
        ours: bool = False,
        leaving: bool = False,
        nominated: bool = False,
    ) -> None:
        """Counts a pod on a node, known or not; for a uid that is counted already, in place of what was.

        `ours`: it is a gang's; `leaving`: it is being deleted; `nominated`: it isn't bound yet.
        """
        before = self._pods.get(uid)
        if before is not None:
            if (self.names[before.slot], *before[1:]) == (node_name, shape, ours, leaving, nominated):
                return
            self.remove_pod(uid)
        slot = self._slot(node_name)
        seat = self._pods[uid] = _Seat(slot, shape, ours, leaving, nominated)
        self._pods_on[slot] += 1
        self._seat(seat, 1)

    def remove_pod(self, uid: str) -> None:
        """Counts it no more; a uid that isn't counted is no error."""
        seat = self._pods.pop(uid, None)
        if seat is None:
            return
        self._pods_on[seat.slot] -= 1
        self._seat(seat, -1)
        self._let_go(seat.slot)

    def _seat(self, seat: _Seat, times: int) -> None:
        slot, shape = seat.slot, seat.shape
        self._count(slot, shape, times, seat.ours)
        if shape.ports:
            self.ports.add(shape, slot, times)
        self.storage.add_pod(shape, slot, times, settled=not seat.nominated)
        if seat.nominated and not seat.ours:
            self._nominate(slot, shape, times)
            here = self.nominees.setdefault(slot, {})
            here[shape] = here.get(shape, 0) + times
            if not here[shape]:
                del here[shape]
            if not here:
                del self.nominees[slot]
        else:
            self.company.add(shape, slot, times, leaving=seat.leaving)

    def outsiders(self) -> Iterator[tuple[int, Shape, bool]]:
        """Pods that aren't ours and stay: the slot of each, what it is, and whether it is only nominated."""
        for seat in self._pods.values():
            if not (seat.ours or seat.leaving):
                yield seat.slot, seat.shape, seat.nominated

    def set_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Takes a namespace's labels in: terms of inter-pod affinity can select by them."""
        self.company.set_namespace(name, labels)

    def remove_namespace(self, name: str) -> None:
        """Forgets a namespace's labels."""
        self.company.remove_namespace(name)

    def _relabel(self, slot: int, known: Facts | None) -> None:
        labels = None if known is None else known.labels
        self.company.set_node(slot, labels)
        self.storage.set_node(slot, self.names[slot], labels)

    def copy(self) -> "Cluster":
        """Another one like this; a change to either isn't seen in the other."""
        twin = Cluster()
        self._copy_into(twin)
        twin.company = self.company.copy()
        twin.ports = self.ports.copy()
        twin.storage = self.storage.copy()
        twin.nominees = {slot: dict(here) for slot, here in self.nominees.items()}
        twin._pods = dict(self._pods)
        return twin
