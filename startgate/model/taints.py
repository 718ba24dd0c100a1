"""Which nodes turn a pod away, and which pods they let in all the same.

kube-scheduler has two filters for this, TaintToleration and NodeUnschedulable; both are one question here.
What always holds: only the effects NoSchedule and NoExecute turn away (PreferNoSchedule is a wish), and the
answer is that of the default configuration: numeric tolerations (Gt, Lt; KEP-5471, feature gate
TaintTolerationComparisonOperators, alpha and off up to 1.37) tolerate nothing, as in a kube-scheduler with
the gate off.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

FILTERING: Final = frozenset({"NoSchedule", "NoExecute"})


class Taint(Struct, frozen=True, gc=False):
    """v1.Taint, without the time at which it was added."""

    key: str
    value: str = ""
    effect: str = ""


class Toleration(Struct, frozen=True, gc=False):
    """v1.Toleration. `tolerationSeconds` isn't read: it says when a pod is evicted, not where it may go."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Whether it covers this taint (v1.Toleration.ToleratesTaint).

        An empty effect covers all effects, an empty key all keys, an empty operator means Equal.
        """
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        match self.operator:
            case "" | "Equal":
                return self.value == taint.value
            case "Exists":
                return True
        return False


UNSCHEDULABLE: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""What `spec.unschedulable: true` on a node amounts to, whether or not the node has the taint as well."""


GIVEN: Final = tuple(
    Toleration(key=key, operator="Exists", effect="NoExecute")
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
)
"""Tolerations that a new pod is given (admission plugin DefaultTolerationSeconds), for five minutes each."""


def with_given(tolerations: tuple[Toleration, ...]) -> tuple[Toleration, ...]:
    """The tolerations of a pod that is made with these: those that it is given are added, unless it says otherwise."""
    missing = (
        given
        for given in GIVEN
        if not any(held.key in ("", given.key) and held.effect in ("", given.effect) for held in tolerations)
    )
    return (*tolerations, *missing)


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether at least one of the tolerations covers this taint."""
    return any(toleration.tolerates(taint) for toleration in tolerations)


def untolerated(
    tolerations: Iterable[Toleration], taints: Iterable[Taint], *, unschedulable: bool = False
) -> Taint | None:
    """The first taint that turns such a pod away, or None when the node lets it in.

    `unschedulable` is the node's `spec.unschedulable`; it comes first, as in kube-scheduler.
    """
    held = tuple(tolerations)
    if unschedulable and not tolerates(held, UNSCHEDULABLE):
        return UNSCHEDULABLE
    for taint in taints:
        if taint.effect in FILTERING and not tolerates(held, taint):
            return taint
    return None
