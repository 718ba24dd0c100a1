"""The queue tree, as tables show it: each queue below its parent, indented.

What always holds: every queue is shown once, also where parents are missing or go round in a circle.
"""

from collections.abc import Mapping
from typing import Final

STEP: Final = "  "
"""What one level more is indented by."""


def in_order(parents: Mapping[str, str]) -> list[tuple[str, int]]:
    """Each name with its depth, after its parent, else by name; one whose parent isn't there is a child of the root."""
    children: dict[str, list[str]] = {}
    for name in sorted(parents):
        parent = parents[name]
        children.setdefault(parent if parent in parents else "", []).append(name)
    ordered: dict[str, int] = {}

    def descend(name: str) -> None:
        heap = [(name, 0)]
        while heap:
            current, depth = heap.pop()
            if current in ordered:
                continue
            ordered[current] = depth
            heap += [(child, depth + 1) for child in reversed(children.get(current, []))]

    # The second round is for circles, which no root leads to.
    for name in (*children.get("", []), *sorted(parents)):
        descend(name)
    return list(ordered.items())
