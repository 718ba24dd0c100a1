"""What other pods and volumes have against a node, in words that go on from "3 nodes …"; and how pods are counted.

What always holds: the words are short enough for several of them to stand in one sentence, and name what somebody can
look for: a topology key's last part, a selector, the Job that pods are of.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from startgate.model import names
from startgate.model.resources import PODS, show
from startgate.model.selectors import LabelSelector
from startgate.model.shape import OWN, HostPort, PodTerm, Shape, Spread

NAMED: Final = 2
"""So many are named, the others counted."""

LONG: Final = 60
"""Characters of a selector, at most."""

APP: Final = ("app.kubernetes.io/name", "app")
"""Labels by which people call pods that are of no Job."""

HOST: Final = "kubernetes.io/hostname"

VOWELS: Final = frozenset("aeiou")

NO_VOLUME: Final = "without a volume for"
TOO_FEW_VOLUMES: Final = "with too few volumes for"


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
    where = "" if term.topology_key == HOST else f"{_in(term.topology_key)} "
    return f"{where}without pods {written(term.selector)} (its affinity)"


def unlabelled(keys: Sequence[str]) -> str:
    """That the node is in no domain."""
    return f"without label {' or '.join(dict.fromkeys(keys))}"


def spread(each: Spread) -> str:
    """That its domain has come too far above the emptiest one."""
    where = "" if each.topology_key == HOST else f"{_in(each.topology_key)} "
    return f"{where}full by topology spread (maxSkew {each.max_skew})"


def port(each: HostPort) -> str:
    """That somebody has the port."""
    protocol = "" if each.protocol == "TCP" else f"/{each.protocol}"
    return f"with host port {each.port}{protocol} taken"


def pods_of(count: int, whole: int) -> str:
    """So many pods of a gang that has so many of all kinds; 0: as if it had no others."""
    plain = f"{count} pod{'' if count == 1 else 's'}"
    return plain if whole in (0, count) else f"its {plain} of one kind ({whole} in all)"


def each_of(shape: Shape) -> str:
    """What one pod asks for; that it is one pod needs no words."""
    return show({resource: amount for resource, amount in shape.request if resource != PODS})


def no_volume(claim: str) -> str:
    """That a claim which waits for its first pod would find none there."""
    return f"{NO_VOLUME} {claim}"


def too_few_volumes() -> str:
    """That each of the pod's claims would find one there, and not all of them together."""
    return f"{TOO_FEW_VOLUMES} all that the pod asks for"


def lacks_volumes(words: str) -> bool:
    """Whether it is one of the two."""
    return words.startswith((NO_VOLUME, TOO_FEW_VOLUMES))


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
    return "with" if key == HOST else f"{_in(key)} with"


def _in(key: str) -> str:
    """As "in a zone", "in an os"."""
    return f"in {'an' if last(key)[:1].lower() in VOWELS else 'a'} {last(key)}"


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
