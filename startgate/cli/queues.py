"""`kubectl gang queues`: what each queue may have, deserves, has and could still take, below its parent; who is next.

A line for each resource that the queue has a limit on, deserves or uses. What always holds: the line from which a
queue's share follows is there; a column in which nothing stands is left out; what is too wide for the terminal is
folded into lines below, so that nothing is lost.
"""

from collections.abc import Mapping
from typing import Final

from startgate.cli import connect, leader, output, tree
from startgate.cli.views import Document
from startgate.kube.kinds import QUEUES
from startgate.model.objects import condition
from startgate.model.quantity import Quantity, QuantityError, format_amount
from startgate.model.queue import Queue
from startgate.model.resources import PODS

OF_QUEUE: Final = ("queue", "running", "waiting", "share")
OF_RESOURCE: Final = ("resource", "guarantee", "deserved", "capability", "allocated", "headroom")
ASIDE: Final = ("unlabelled", "next")
"""Columns, in groups that stay together. "resource" and those after it have a cell for each resource, except "next"."""


class QueueView(Document):
    """All that `queues` knows of one queue. Amounts are Kubernetes quantities, by resource."""

    name: str
    parent: str | None
    depth: int
    stopped: bool
    weight: int
    reclaimable: bool
    guarantee: dict[str, str]
    given: dict[str, str]
    deserved: dict[str, str]
    capability: dict[str, str]
    allocated: dict[str, str]
    reserved: dict[str, str]
    headroom: dict[str, str]
    unlabelled: dict[str, str]
    share: float | None
    next: str | None
    waiting: int
    waiting_pods: int
    running: int
    total_waiting: int
    total_waiting_pods: int
    total_running: int
    """Those of all queues below it too, as the amounts are."""


class Queues(Document):
    """The document of `queues`: each after its parent, else by name."""

    queues: list[QueueView]
    stale: str | None


async def read(target: connect.Target) -> Queues:
    """All queues."""
    async with connect.connected(target) as client:
        found = await client.list_all(QUEUES)
        stale = await leader.stale(client)
    return Queues(queues=views(found), stale=stale)


def show(queues: Queues) -> None:
    """As a table: all in columns if the terminal is that wide; else who is next, and what others use, below each queue;
    else also the queue's own line above those of its resources."""
    output.doubt(queues.stale)
    if not queues.queues:
        output.note("No queues: an admin writes them; kubectl explain queue.spec says what can stand in one.")
        return
    whole = _table(queues.queues, (*OF_QUEUE, *OF_RESOURCE, *ASIDE), below=False)
    folded = _table(queues.queues, (*OF_QUEUE, *OF_RESOURCE), below=True)
    found = next((each for each in (whole, folded) if output.fits(*each)), None)
    output.table(*(found or _stacked(queues.queues)))


def _table(queues: list[QueueView], columns: tuple[str, ...], *, below: bool) -> output.Table:
    """A row for each resource, the queue's own cells in the first of them."""
    lines = [line for queue in queues for line in _lines(queue)]
    told = [column for column in columns if any(line.get(column, "-") not in ("", "-") for line in lines)]
    rows: list[list[str]] = []
    for queue in queues:
        rows += [[line.get(column, "") for column in told] for line in _lines(queue)]
        rows += _aside(queue) if below else []
    return [column.upper() for column in told], rows


def _stacked(queues: list[QueueView]) -> output.Table:
    """The queue's own line, and below it one for each resource."""
    header, lines = _table(queues, OF_RESOURCE, below=False)
    rows: list[list[str]] = []
    for queue in queues:
        first = _own(queue)
        told = f"{first['running']} running, {_waiting(queue, ' waiting')}, share {first['share']}"
        rows.append([f"{first['queue']}: {told}"])
        for _ in range(len(_lines(queue))):
            resource, *amounts = lines.pop(0)
            rows += [[f"{_indent(queue)}{resource}", *amounts]] if resource != "-" else []
        rows += _aside(queue)
    return header, rows


def _lines(queue: QueueView) -> list[dict[str, str]]:
    """The cells by column: for each resource that is limited, deserved or used, or one line if there is none."""
    limits = queue.capability.keys() | queue.guarantee.keys() | queue.given.keys()
    shown = limits | queue.deserved.keys() | queue.allocated.keys()
    if PODS not in limits and not tree.makes_share(PODS, queue.allocated, queue.deserved):
        shown -= {PODS}
    lines = [
        {"resource": resource}
        | {
            column: output.short(resource, getattr(queue, column).get(resource, "-"))
            for column in (*OF_RESOURCE[1:], "unlabelled")
        }
        for resource in sorted(shown)
    ] or [dict.fromkeys((*OF_RESOURCE, "unlabelled"), "-")]
    lines[0] |= _own(queue)
    return lines


def _waiting(queue: QueueView, word: str = "") -> str:
    """How many gangs, and of how many pods."""
    pods = queue.total_waiting_pods
    return f"{queue.total_waiting}{word}" + (f" ({pods} pod{'s' if pods > 1 else ''})" if pods else "")


def _own(queue: QueueView) -> dict[str, str]:
    share = "-" if queue.share is None else f"{queue.share:.2f}"
    return {
        "queue": f"{tree.STEP * queue.depth}{queue.name}{' (stopped)' if queue.stopped else ''}",
        "running": str(queue.total_running),
        "waiting": _waiting(queue),
        "share": "∞" if queue.share is None and queue.allocated else share,
        "next": queue.next or "",
    }


def _aside(queue: QueueView) -> list[list[str]]:
    """What there is no column for, in lines of its own."""
    others = [
        f"{line['unlabelled']} {line['resource']}"
        for line in _lines(queue)
        if line["unlabelled"] != "-" and line["resource"] != PODS
    ]
    told = [f"next is {queue.next}"] if queue.next else []
    told += [f"unlabelled pods use {', '.join(others)}"] if others else []
    return [[f"{_indent(queue)}{each}"] for each in told]


def _indent(queue: QueueView) -> str:
    return tree.STEP * (queue.depth + 1)


def views(queues: list[Queue]) -> list[QueueView]:
    """What is known of each, in order; each gang is counted once with every queue above it."""
    found: list[QueueView] = []
    above: list[QueueView] = []
    known = {queue.metadata.name: queue for queue in queues}
    for name, depth in tree.in_order({name: queue.spec.parent for name, queue in known.items()}):
        del above[depth:]
        view = _view(known[name], depth)
        for each in above:
            each.total_waiting += view.waiting
            each.total_waiting_pods += view.waiting_pods
            each.total_running += view.running
        found.append(view)
        above.append(view)
    return found


def _view(queue: Queue, depth: int) -> QueueView:
    spec, status = queue.spec, queue.status
    return QueueView(
        name=queue.metadata.name,
        parent=spec.parent or None,
        depth=depth,
        stopped=spec.stopped,
        weight=spec.weight,
        reclaimable=spec.reclaimable,
        guarantee=_amounts(spec.guarantee),
        given=_amounts(spec.deserved),
        deserved=_amounts(_deserved(queue)),
        capability=_amounts(spec.capability),
        allocated=_amounts(status.allocated),
        reserved=_amounts(status.reserved),
        headroom=_amounts(_headroom(queue)),
        unlabelled=_amounts(status.unlabelled),
        share=_share(status.share),
        next=status.next or None,
        waiting=status.waiting,
        waiting_pods=status.waiting_pods,
        running=status.running,
        total_waiting=status.waiting,
        total_waiting_pods=status.waiting_pods,
        total_running=status.running,
    )


def _headroom(queue: Queue) -> dict[str, Quantity]:
    """With the zeros, which the status leaves out, of what the queue names or uses: the cluster itself is a ceiling.

    Before the controller's first word nothing is known, and nothing is not zero.
    """
    spec, status = queue.spec, queue.status
    if not _judged(queue):
        return {**status.headroom}
    named = (*spec.capability, *spec.guarantee, *spec.deserved, *status.allocated)
    return {**dict.fromkeys(named, 0), **status.headroom}


def _deserved(queue: Queue) -> dict[str, Quantity]:
    """As worked out, with a zero for what is used and not deserved; before the controller's first word, as given."""
    if not _judged(queue):
        return {**queue.spec.deserved}
    named = (*queue.spec.deserved, *queue.status.allocated)
    return {**dict.fromkeys(named, 0), **queue.status.deserved}


def _judged(queue: Queue) -> bool:
    return condition(tuple(queue.status.conditions), "Sound") is not None


def _share(written: str) -> float | None:
    try:
        return float(written)
    except ValueError:
        return None


def _amounts(quantities: Mapping[str, Quantity]) -> dict[str, str]:
    return {resource: _amount(resource, quantity) for resource, quantity in sorted(quantities.items())}


def _amount(resource: str, quantity: Quantity) -> str:
    """In one way of writing, so that columns compare: 4000m is 4."""
    try:
        return format_amount(resource, tree.exact(resource, quantity))
    except QuantityError:
        return str(quantity)
