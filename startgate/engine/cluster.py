"""The cluster: its nodes, and the pods that are on them.

Kept by the controller from what it watches, one change at a time, and copied for a what-if. What always holds:

* The order in which nodes and pods came has no influence on any answer.
* A pod counts on its node from `add_pod` to `remove_pod`, whether or not the node is known yet.
"""

from startgate.engine.nodes import Nodes
from startgate.engine.stock import Stocks
from startgate.model.shape import Shape


class Cluster(Nodes):
    """The attributes are for reading; methods change them."""

    def __init__(self) -> None:
        super().__init__()
        self.stocks = Stocks(self)
        self._pods: dict[str, tuple[int, Shape, bool]] = {}

    def add_pod(self, uid: str, node_name: str, shape: Shape, *, ours: bool = False) -> None:
        """Counts a pod on a node, known or not; for a uid that is counted already, in place of what was.

        `ours`: whether it is a gang's.
        """
        before = self._pods.get(uid)
        if before is not None:
            if self.names[before[0]] == node_name and before[1] == shape and before[2] == ours:
                return
            self.remove_pod(uid)
        slot = self._slot(node_name)
        self._pods[uid] = (slot, shape, ours)
        self._pods_on[slot] += 1
        self._count(slot, shape, 1, ours)

    def remove_pod(self, uid: str) -> None:
        """Counts it no more; a uid that isn't counted is no error."""
        found = self._pods.pop(uid, None)
        if found is None:
            return
        slot, shape, ours = found
        self._pods_on[slot] -= 1
        self._count(slot, shape, -1, ours)
        self._let_go(slot)

    def copy(self) -> "Cluster":
        """Another one like this; a change to either isn't seen in the other."""
        twin = Cluster()
        self._copy_into(twin)
        twin._pods = dict(self._pods)
        return twin
