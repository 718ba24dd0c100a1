"""`kubectl gang list`: every gang, who waits and for what, in the order in which a queue takes them."""

import time

from startgate.cli import connect, leader, output
from startgate.cli.views import Document, GangView, view, waited
from startgate.kube.kinds import GANGS
from startgate.model.gang import Gang, Phase


class Listing(Document):
    """The document of `list`."""

    gangs: list[GangView]
    stale: str | None


async def read(target: connect.Target, namespace: str | None, *, everywhere: bool) -> tuple[Listing, str]:
    """The gangs, and the namespace that they are of (nothing: all)."""
    async with connect.connected(target) as client:
        where = "" if everywhere else namespace or client.namespace
        found = await client.list_all(GANGS, where)
        stale = await leader.stale(client)
    return Listing(gangs=[view(each) for each in sorted(found, key=_turn)], stale=stale), where


def show(listing: Listing, where: str) -> None:
    """As a table."""
    output.doubt(listing.stale)
    if not listing.gangs:
        output.note(f"No gangs in namespace {where}; -A shows those of all namespaces." if where else "No gangs.")
        return
    now = time.time()
    header = ["NAME", "QUEUE", "PHASE", "PODS", "REASON", "AGE"]
    rows = [[each.name, each.queue, each.phase, each.bound, each.reason, _age(each, now)] for each in listing.gangs]
    if not where:
        header.insert(0, "NAMESPACE")
        for row, each in zip(rows, listing.gangs, strict=True):
            row.insert(0, each.namespace)
    output.table(header, rows)


def _age(gang: GangView, now: float) -> str:
    seconds = waited(gang, now)
    return "-" if seconds is None else output.age(seconds)


def _turn(gang: Gang) -> tuple[object, ...]:
    """By queue; in it, what has ended last, and the rest by priority, age and name (design: Quota)."""
    return (
        gang.spec.queue,
        gang.status.phase is Phase.FINISHED,
        -gang.spec.priority,
        gang.status.since or gang.metadata.creation_timestamp or "",
        gang.metadata.namespace,
        gang.metadata.name,
    )
