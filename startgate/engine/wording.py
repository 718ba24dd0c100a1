"""What other pods have against a node, in words that go on from "3 nodes …".

What always holds: the words are short enough for several of them to stand in one sentence, and name what somebody can
look for: a topology key's last part, a selector, the Job that pods are of.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from startgate.model import names
from startgate.model.selectors import LabelSelector
from startgate.model.shape import OWN, HostPort, PodTerm, Shape, Spread

NAMED: Final = 2
"""So many are named, the others counted."""

LONG: Final = 60
"""Characters of a selector, at most."""

APP: Final = ("app.kubernetes.io/name", "app")
"""Labels by which people call pods that are of no Job."""

HOST: Final = "kubernetes.io/hostname"


def kept_away(key: str, keepers: Iterable[Shape], shape: Shape) -> str:
    """That pods there have an anti-affinity to such pods."""
    whose = sorted({_whose(each, shape) for each in keepers})
    return f"{_where(key)} {_some(whose)} (anti-affinity)"


def apart(term: PodTerm) -> str:
    """That it has an anti-affinity to pods there."""
    return f"{_where(term.topology_key)} pods {written(term.selector)} (its anti-affinity)"


def together(terms: Sequence[PodTerm]) -> str:
    """That no pods are there to which it has an affinity."""
    if len(terms) > 1:
        return "without pods that meet all terms (its affinity)"
    (term,) = terms
    where = "" if term.topology_key == HOST else f"in a {last(term.topology_key)} "
    return f"{where}without pods {written(term.selector)} (its affinity)"


def unlabelled(keys: Sequence[str]) -> str:
    """That the node is in no domain."""
    return f"without label {' or '.join(dict.fromkeys(keys))}"


def spread(each: Spread) -> str:
    """That its domain has come too far above the emptiest one."""
    where = "" if each.topology_key == HOST else f"in a {last(each.topology_key)} "
    return f"{where}full by topology spread (maxSkew {each.max_skew})"


def port(each: HostPort) -> str:
    """That somebody has the port."""
    protocol = "" if each.protocol == "TCP" else f"/{each.protocol}"
    return f"with host port {each.port}{protocol} taken"


def written(selector: LabelSelector | None) -> str:
    """A selector, roughly as kubectl's -l takes it."""
    if selector is None:
        return "none"
    parts = [f"{key}={value}" for key, value in sorted(selector.match_labels.items())]
    for each in selector.match_expressions:
        match each.operator, each.values:
            case "In", (value,):
                parts.append(f"{each.key}={value}")
            case "In" | "NotIn", values:
                parts.append(f"{each.key} {each.operator.lower()} ({','.join(values)})")
            case "Exists", _:
                parts.append(each.key)
            case _:
                parts.append(f"!{each.key}")
    if any(OWN in part for part in parts):
        return "of its own"
    text = ",".join(parts) or "any"
    return text if len(text) <= LONG else f"{text[: LONG - 1]}…"


def last(key: str) -> str:
    """The part of a label's key by which people call it: zone, for topology.kubernetes.io/zone."""
    return key.rpartition("/")[2]


def _where(key: str) -> str:
    return "with" if key == HOST else f"in a {last(key)} with"


def _whose(pods: Shape, shape: Shape) -> str:
    if pods == shape:
        return "one of its own pods"
    job = next((pods.label_map[name] for name in names.JOB_NAME if name in pods.label_map), None)
    if job is not None:
        return f"pods of {pods.namespace}/{job}"
    app = next((f" {name}={pods.label_map[name]}" for name in APP if name in pods.label_map), "")
    return f"pods{app} of namespace {pods.namespace}"


def _some(whose: Sequence[str]) -> str:
    more = [f"{len(whose) - NAMED} others"] if len(whose) > NAMED else []
    return " and ".join([*whose[:NAMED], *more])
