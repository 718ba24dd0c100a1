"""What all tables of queues have in common: each queue below its parent, and the line that its share follows from.

What always holds: every queue is shown once, also where parents are missing or go round in a circle.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from startgate.model.quantity import Quantity, QuantityError, parse_milli, parse_units

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


def makes_share(resource: str, allocated: Mapping[str, str], deserved: Mapping[str, str]) -> bool:
    """Whether a queue's share follows from this resource, and from no other."""
    parts = {each: _part(each, allocated, deserved) for each in allocated}
    mine = parts.pop(resource, (False, 0))
    return mine > max(parts.values(), default=(False, 0))


def _part(resource: str, allocated: Mapping[str, str], deserved: Mapping[str, str]) -> tuple[bool, Fraction | int]:
    """Allocated / deserved; first whether nothing is deserved of what is used, which is above all else."""
    try:
        used, due = (exact(resource, amounts.get(resource, "0")) for amounts in (allocated, deserved))
    except QuantityError:
        return False, 0
    return (used > 0, 0) if not due else (False, Fraction(used, due))


def exact(resource: str, quantity: Quantity) -> int:
    """As we count it. Raises QuantityError."""
    return parse_milli(quantity) if resource == "cpu" else parse_units(quantity)
