"""Which nodes a pod may go to at all, however empty they are, and what rules out the others.

kube-scheduler's filters NodeName, NodeUnschedulable, TaintToleration and NodeAffinity. What always holds: the
answer depends on the node's facts and on the pod's demand alone, so it can be kept until the node's facts
change; whether the kubelet is ready is not asked, since kube-scheduler doesn't either: it goes by the taint
that follows from it.
"""

from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

from startgate.model import objects
from startgate.model.selectors import NodeSelector, NodeSelectorTerm
from startgate.model.shape import Shape
from startgate.model.taints import UNSCHEDULABLE, Taint, Toleration, untolerated


class Facts(Struct, frozen=True):
    """What the filters read of a node."""

    name: str
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool


class Demand(NamedTuple):
    """What the filters read of a pod; many shapes have the same."""

    node_name: str
    tolerations: tuple[Toleration, ...]
    node_selector: tuple[tuple[str, str], ...]
    affinity: NodeSelector | None


Obstacle: TypeAlias = Taint | str
"""What rules a node out: a taint, or words that go on from "3 nodes …"."""

OTHER_NODE: Final = "other than the node that the pods name"
AFFINITY: Final = "outside the node affinity"


def facts(node: objects.Node) -> Facts:
    """What the filters read of this node."""
    return Facts(
        name=node.metadata.name,
        labels=node.metadata.labels,
        taints=node.spec.taints,
        unschedulable=node.spec.unschedulable,
    )


def demand(shape: Shape) -> Demand:
    """What the filters read of pods of this shape."""
    return Demand(shape.node_name, shape.tolerations, shape.node_selector, shape.affinity)


def obstacle(asked: Demand, node: Facts) -> Obstacle | None:
    """What rules this node out for such pods, or None where they may go."""
    if asked.node_name and asked.node_name != node.name:
        return OTHER_NODE
    if node.taints or node.unschedulable:
        taint = untolerated(asked.tolerations, node.taints, unschedulable=node.unschedulable)
        if taint is not None:
            return taint
    for key, value in asked.node_selector:
        if node.labels.get(key) != value:
            return f"without label {key}={value}"
    if asked.affinity is not None and not asked.affinity.matches(node.labels, node.name):
        return AFFINITY
    return None


def words(found: Obstacle) -> str:
    """The obstacle, as words that go on from "3 nodes …"."""
    if isinstance(found, str):
        return found
    if found == UNSCHEDULABLE:
        return "cordoned"
    value = f"={found.value}" if found.value else ""
    return f"with taint {found.key}{value}:{found.effect}"


def candidates(asked: Demand) -> frozenset[str] | None:
    """The only nodes that can pass, where the demand names them; None where any may.

    The pods of a DaemonSet name theirs by `matchFields`, each another one: looking at all nodes for each
    of them would cost the square of the cluster.
    """
    if asked.node_name:
        return frozenset((asked.node_name,))
    if asked.affinity is None:
        return None
    names = [_named(term) for term in asked.affinity.node_selector_terms]
    if any(name is None for name in names):
        return None
    return frozenset(name for name in names if name is not None)


def _named(term: NodeSelectorTerm) -> str | None:
    for field in term.match_fields:
        if (field.key, field.operator) == ("metadata.name", "In") and len(field.values) == 1:
            return field.values[0]
    return None
