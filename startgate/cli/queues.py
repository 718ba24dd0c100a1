"""`kubectl gang queues`: what each queue may have, has, and could still take, below its parent.

A line for each resource that the queue has a limit on or uses. What always holds: every queue is shown once, also
where parents are missing or go round in a circle.
"""

from collections.abc import Mapping

from startgate.cli import connect, leader, output
from startgate.cli.views import Document
from startgate.kube.kinds import QUEUES
from startgate.model.objects import condition
from startgate.model.quantity import Quantity, QuantityError, format_amount, parse_milli, parse_units
from startgate.model.queue import Queue


class QueueView(Document):
    """All that `queues` knows of one queue. Amounts are Kubernetes quantities, by resource."""

    name: str
    parent: str | None
    depth: int
    stopped: bool
    weight: int
    guarantee: dict[str, str]
    deserved: dict[str, str]
    capability: dict[str, str]
    allocated: dict[str, str]
    reserved: dict[str, str]
    headroom: dict[str, str]
    waiting: int
    running: int


class Queues(Document):
    """The document of `queues`: each after its parent, else by name."""

    queues: list[QueueView]
    stale: str | None


async def read(target: connect.Target) -> Queues:
    """All queues."""
    async with connect.connected(target) as client:
        found = await client.list_all(QUEUES)
        stale = await leader.stale(client)
    return Queues(queues=[_view(queue, depth) for queue, depth in in_order(found)], stale=stale)


def show(queues: Queues) -> None:
    """As a table."""
    output.doubt(queues.stale)
    if not queues.queues:
        output.note("No queues: an admin creates them, see docs/reference.")
        return
    header = ["QUEUE", "STATE", "WAITING", "RUNNING"]
    header += ["RESOURCE", "GUARANTEE", "DESERVED", "CAPABILITY", "ALLOCATED", "HEADROOM"]
    rows: list[list[str]] = []
    for each in queues.queues:
        state = "stopped" if each.stopped else "open"
        first = ["  " * each.depth + each.name, state, str(each.waiting), str(each.running)]
        parts = (each.guarantee, each.deserved, each.capability, each.allocated, each.headroom)
        shown = sorted({*each.guarantee, *each.deserved, *each.capability, *each.allocated})
        if "pods" not in each.capability.keys() | each.guarantee.keys() | each.deserved.keys():
            shown = [resource for resource in shown if resource != "pods"]
        amounts = [[resource, *(part.get(resource, "-") for part in parts)] for resource in shown]
        for number, line in enumerate(amounts or [["-"] * 6]):
            rows.append([*(first if number == 0 else [""] * len(first)), *line])
    output.table(header, rows)


def in_order(queues: list[Queue]) -> list[tuple[Queue, int]]:
    """Each queue with its depth, after its parent; a queue whose parent isn't there counts as a child of the root."""
    known = {each.metadata.name: each for each in queues}
    children: dict[str, list[str]] = {}
    for name in sorted(known):
        parent = known[name].spec.parent
        children.setdefault(parent if parent in known else "", []).append(name)
    ordered: list[tuple[Queue, int]] = []
    seen: set[str] = set()

    def descend(name: str) -> None:
        heap = [(name, 0)]
        while heap:
            current, depth = heap.pop()
            if current in seen:
                continue
            seen.add(current)
            ordered.append((known[current], depth))
            heap += [(child, depth + 1) for child in reversed(children.get(current, []))]

    # The second round is for circles, which no root leads to.
    for name in (*children.get("", []), *sorted(known)):
        descend(name)
    return ordered


def _view(queue: Queue, depth: int) -> QueueView:
    spec, status = queue.spec, queue.status
    return QueueView(
        name=queue.metadata.name,
        parent=spec.parent or None,
        depth=depth,
        stopped=spec.stopped,
        weight=spec.weight,
        guarantee=_amounts(spec.guarantee),
        deserved=_amounts(spec.deserved),
        capability=_amounts(spec.capability),
        allocated=_amounts(status.allocated),
        reserved=_amounts(status.reserved),
        headroom=_amounts(_headroom(queue)),
        waiting=status.waiting,
        running=status.running,
    )


def _headroom(queue: Queue) -> dict[str, Quantity]:
    """With the zeros, which the status leaves out, of what the queue names or uses: the cluster itself is a ceiling.

    Before the controller's first word (its condition) nothing is known, and nothing is not zero.
    """
    spec, status = queue.spec, queue.status
    if condition(tuple(status.conditions), "Sound") is None:
        return {**status.headroom}
    named = (*spec.capability, *spec.guarantee, *spec.deserved, *status.allocated)
    return {**dict.fromkeys(named, 0), **status.headroom}


def _amounts(quantities: Mapping[str, Quantity]) -> dict[str, str]:
    return {resource: _amount(resource, quantity) for resource, quantity in sorted(quantities.items())}


def _amount(resource: str, quantity: Quantity) -> str:
    """In one way of writing, so that columns compare: 4000m is 4."""
    try:
        return format_amount(resource, parse_milli(quantity) if resource == "cpu" else parse_units(quantity))
    except QuantityError:
        return str(quantity)
