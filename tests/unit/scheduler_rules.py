"""kube-scheduler's rules about other pods, pod by pod and node by node: slow, plain, and nothing shared with the engine
but the model's selectors. What the engine's placing of many pods at once is held against.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from startgate.model.shape import PodTerm, Shape
from startgate.model.taints import Taint, untolerated


@dataclass(frozen=True)
class Spot:
    """A node, as far as these rules read it."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    takes: int = 1
    """How many of the pods in question it has room for."""


@dataclass(frozen=True)
class There:
    """A pod on a node."""

    shape: Shape
    node: str
    leaving: bool = False


@dataclass(frozen=True)
class Scene:
    spots: tuple[Spot, ...]
    pods: tuple[There, ...] = ()
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def with_pod(self, shape: Shape, node: str) -> "Scene":
        return replace(self, pods=(*self.pods, There(shape, node)))

    def on_known_nodes(self) -> Iterator[tuple[There, Spot]]:
        known = {spot.name: spot for spot in self.spots}
        return ((pod, known[pod.node]) for pod in self.pods if pod.node in known)

    def picks(self, term: PodTerm, shape: Shape) -> bool:
        return term.picks(shape.namespace, dict(shape.labels), self.namespaces)


def lets_in(scene: Scene, shape: Shape, spot: Spot) -> bool:
    """Whether such a pod may go there now, whatever room there is."""
    return (
        _matches_node(shape, spot)
        and untolerated(shape.tolerations, spot.taints) is None
        and not _unwanted(scene, shape, spot)
        and not _avoids(scene, shape, spot)
        and _joins(scene, shape, spot)
        and _is_spread(scene, shape, spot)
    )


def _matches_node(shape: Shape, spot: Spot) -> bool:
    return all(spot.labels.get(key) == value for key, value in shape.node_selector) and (
        shape.affinity is None or shape.affinity.matches(spot.labels, spot.name)
    )


def _pairs(terms: Iterable[PodTerm], spot: Spot) -> list[tuple[str, str]]:
    return [(term.topology_key, spot.labels[term.topology_key]) for term in terms if term.topology_key in spot.labels]


def _unwanted(scene: Scene, shape: Shape, spot: Spot) -> bool:
    """By the anti-affinity of pods that are there."""
    counts = Counter(
        pair
        for pod, where in scene.on_known_nodes()
        for term in pod.shape.apart
        if scene.picks(term, shape)
        for pair in _pairs([term], where)
    )
    return any(counts[pair] > 0 for pair in spot.labels.items())


def _avoids(scene: Scene, shape: Shape, spot: Spot) -> bool:
    """By its own anti-affinity."""
    counts = Counter(
        pair
        for pod, where in scene.on_known_nodes()
        for term in shape.apart
        if scene.picks(term, pod.shape)
        for pair in _pairs([term], where)
    )
    return any(counts[pair] > 0 for pair in _pairs(shape.apart, spot))


def _joins(scene: Scene, shape: Shape, spot: Spot) -> bool:
    if not shape.together:
        return True
    counts = Counter(
        pair
        for pod, where in scene.on_known_nodes()
        if all(scene.picks(term, pod.shape) for term in shape.together)
        for pair in _pairs(shape.together, where)
    )
    pairs = _pairs(shape.together, spot)
    if len(pairs) < len(shape.together):
        return False
    if all(counts[pair] > 0 for pair in pairs):
        return True
    return not counts and all(scene.picks(term, shape) for term in shape.together)


def _is_spread(scene: Scene, shape: Shape, spot: Spot) -> bool:
    keys = [each.topology_key for each in shape.spread]
    if any(key not in spot.labels for key in keys):
        return False
    for each in shape.spread:
        looked_at = [
            other
            for other in scene.spots
            if all(key in other.labels for key in keys)
            and (not each.honors_affinity or _matches_node(shape, other))
            and (not each.honors_taints or untolerated(shape.tolerations, other.taints) is None)
        ]
        counts = {other.labels[each.topology_key]: 0 for other in looked_at}
        names = {other.name for other in looked_at}
        empty = each.selector is not None and not each.selector.match_labels and not each.selector.match_expressions
        for pod, where in scene.on_known_nodes():
            if where.name not in names or pod.leaving or pod.shape.namespace != shape.namespace:
                continue
            if each.selector is not None and not empty and each.selector.matches(dict(pod.shape.labels)):
                counts[where.labels[each.topology_key]] += 1
        least = 0 if len(counts) < each.min_domains else min(counts.values(), default=2**31)
        itself = each.selector is not None and each.selector.matches(dict(shape.labels))
        if counts.get(spot.labels[each.topology_key], 0) + itself - least > each.max_skew:
            return False
    return True


def most_in_any_order(scene: Scene, shape: Shape, most: int) -> int:
    """How many such pods can be placed one after the other, by whatever choice of nodes; tries all."""
    found = {(0,) * len(scene.spots): scene}
    for placed in range(most):
        following = {}
        for counts, now in found.items():
            for place, spot in enumerate(scene.spots):
                then = (*counts[:place], counts[place] + 1, *counts[place + 1 :])
                if then not in following and counts[place] < spot.takes and lets_in(now, shape, spot):
                    following[then] = now.with_pod(shape, spot.name)
        if not following:
            return placed
        found = following
    return most


def let_in_one_by_one(scene: Scene, shape: Shape, steps: Sequence[tuple[str, int]]) -> bool:
    """Whether these pods (node, how many) can be bound in this order, each with those before it there."""
    left = {spot.name: spot.takes for spot in scene.spots}
    spots = {spot.name: spot for spot in scene.spots}
    for name, pods in steps:
        for _ in range(pods):
            if left[name] <= 0 or not lets_in(scene, shape, spots[name]):
                return False
            left[name] -= 1
            scene = scene.with_pod(shape, name)
    return True
