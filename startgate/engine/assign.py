"""Which pods a Go means: the engine counts by shape, whoever carries it out has pods with names.

What always holds: as many pods of each shape as the plan has placed, the first in order (lowest completion index),
and each on a node that the plan has room on.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from startgate.engine.world import Go
from startgate.model.pods import Pod
from startgate.model.shape import Shape


def chosen(gated: Iterable[Pod], go: Go) -> tuple[Pod, ...]:
    """The first of each shape, as many as the plan has placed: not the first of all, where another shape was full."""
    left: Counter[Shape] = Counter()
    for placement in go.placements:
        left[placement.shape] += sum(count for _, count in placement.nodes)
    found = []
    for pod in gated:
        if left[pod.shape]:
            left[pod.shape] -= 1
            found.append(pod)
    return tuple(found)


def assigned(pods: Iterable[Pod], go: Go) -> Iterator[tuple[str, str]]:
    """(pod uid, node) for each of the chosen, from the plan's placements by shape."""
    rooms: dict[Shape, list[str]] = {}
    for placement in go.placements:
        spread = [node for node, count in placement.nodes for _ in range(count)]
        rooms.setdefault(placement.shape, []).extend(spread)
    taken: Counter[Shape] = Counter()
    for pod in pods:
        yield pod.uid, rooms[pod.shape][taken[pod.shape]]
        taken[pod.shape] += 1
