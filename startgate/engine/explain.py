"""Why a gang stays: the books and the room, put into a Reason with the numbers that a person can check.

It asks the very objects that decided, after they decided, so it can't tell another story than they. What always holds:
each sentence is true of the plan as a whole (after all that goes has taken its share), counts of nodes add up to all
nodes, and amounts are written as Kubernetes writes them.
"""

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple

import msgspec

from startgate.engine import noroom
from startgate.engine.ever import could_go
from startgate.engine.fit import Room
from startgate.engine.observe import amounts_of
from startgate.engine.quota import Books, Refusal
from startgate.engine.tree import Level
from startgate.engine.wording import pods_of
from startgate.engine.world import Batch
from startgate.model.quantity import format_amount
from startgate.model.reasons import Code, Reason, reason
from startgate.model.resources import Amounts, shortage, show

GROUPS: Final = 6
"""So many queues or gangs are named in a sentence; the rest are counted."""

HOPELESS: Final = frozenset({Code.NEVER_WITHIN_QUOTA, Code.NO_NODE_MATCHES, Code.NEVER_FITS, Code.NEVER_IN_DOMAIN})
"""Nothing that ends will change these: somebody has to change something."""


class Verdict(msgspec.Struct, frozen=True):
    """A reason, and what is missing by resource where that can be said."""

    reason: Reason
    shortage: Amounts = {}

    @property
    def hopeless(self) -> bool:
        return self.reason.code in HOPELESS


def no_such_queue(queue: str, queues: Iterable[str]) -> Verdict:
    """There is no queue of this name; the nearest that there is, if any is near."""
    near = get_close_matches(queue, sorted(queues), n=1)
    return Verdict(reason(Code.NO_SUCH_QUEUE, queue=queue, hint=f" (is it {near[0]}?)" if near else ""))


def refused(books: Books, room: Room, queue: str, batches: Sequence[Batch], until: Callable[[], str] = str) -> Verdict:
    """Why these pods, which were refused, can't go: quota first, then nodes. `until`: as in `no_room`."""
    asks = amounts_of(batches)
    never = books.refusal(queue, asks, idle=True)
    if never is not None:
        return _never_within_quota(never, asks)
    now = books.refusal(queue, asks)
    if now is None:
        return no_room(room, batches, until)
    if now.level is not books.root:
        return _capability(books, queue, now, asks)
    # What could not go with every node empty doesn't wait for anybody to end.
    hopeless = noroom.never(room, batches)
    return (
        Verdict(*hopeless) if hopeless is not None else _cluster(books, queue, now, asks, _Ends(room, batches, until))
    )


def held(asks: Amounts, gang: str, why: str) -> Verdict:
    """It would fit but for what is kept for this gang."""
    return Verdict(reason(Code.OTHERS_FIRST, asks=show(asks), gang=gang, why=why))


def making_room(victims: Iterable[str], pods: int) -> Verdict:
    """Its turn has come, and others are on their way out for it."""
    return Verdict(
        reason(
            Code.MAKING_ROOM,
            victims=_list(sorted(victims)),
            pods=f"{pods_of(pods, 0)} to go" if pods else "their slots",
        )
    )


def no_room(room: Room, batches: Sequence[Batch], until: Callable[[], str] = str) -> Verdict:
    """Why these pods, which have quota, have no nodes. `until`: when they would, if anybody can say; else ""."""
    return Verdict(*noroom.no_room(room, batches, until))


def _never_within_quota(never: Refusal, asks: Amounts) -> Verdict:
    part = {resource: asks[resource] for resource in never.left}
    return Verdict(
        reason(Code.NEVER_WITHIN_QUOTA, asks=show(part), queue=never.level.name, ceiling=show(never.left)),
        shortage(part, never.left),
    )


def _capability(books: Books, queue: str, now: Refusal, asks: Amounts) -> Verdict:
    level, left = now.level, now.left
    part = {resource: asks[resource] for resource in left}
    facts = {
        "asks": show(part),
        "left": " and ".join(
            f"{format_amount(resource, left[resource])} of {_named(resource, level.ceiling[resource])}"
            for resource in left
        ),
    }
    if level.name == queue:
        made = reason(Code.QUEUE_CAPABILITY, queue=queue, **facts)
    else:
        kept = _keepers(books, level, queue, left)
        made = reason(
            Code.PARENT_CAPABILITY,
            parent=level.name,
            queue=queue,
            kept=f" ({kept})" if kept else "",
            **facts,
        )
    return Verdict(made, shortage(part, left))


class _Ends(NamedTuple):
    """Whether it helps pods that gangs end, as far as nodes go."""

    room: Room
    batches: Sequence[Batch]
    until: Callable[[], str]

    def which(self, some: str) -> str:
        """Whose end would do: these, or `some` where nobody can say; "" where none would be sure to."""
        return self.until() or (some if could_go(self.room, self.batches) else "")


def _cluster(books: Books, queue: str, now: Refusal, asks: Amounts, ends: _Ends) -> Verdict:
    """The root is in the way: the guarantees of others where usage alone would let it pass, else usage."""
    used = books.use(books.root)
    total = books.root.ceiling
    in_use = [each for each in now.left if used.get(each, 0) + asks[each] > total.get(each, 0)]
    named = in_use or list(now.left)
    part = {each: asks[each] for each in named}
    alone = all(asks[each] <= books.left(queue, each, idle=True) for each in named)
    facts = {"asks": show(part), "used": _bare(used, named), "total": _bare(total, named)}
    if in_use:
        until = ends.which("enough of them end or nodes are added") if alone else ""
        made = reason(Code.CLUSTER_IN_USE, until=until or "nodes are added", **facts)
    else:
        until = "enough gangs end or nodes are added" if alone else "nodes are added or a guarantee is lowered"
        made = reason(
            Code.GUARANTEE_KEPT,
            kept=_bare(books.kept(queue, books.root), named),
            queues=_list(books.keepers(queue, books.root, named)),
            until=until,
            **facts,
        )
    return Verdict(made, shortage(part, now.left))


def _keepers(books: Books, level: Level, queue: str, resources: Iterable[str]) -> str:
    """What is kept below this level for the guarantees of other queues, for a sentence; or nothing."""
    kept = books.kept(queue, level)
    part = {resource: kept[resource] for resource in resources if kept.get(resource, 0)}
    if not part:
        return ""
    return f"{show(part)} kept for the guarantee of {_list(books.keepers(queue, level, part))}"


def _named(resource: str, amount: int) -> str:
    return show({resource: amount})


def _bare(amounts: Amounts, resources: Sequence[str]) -> str:
    """Amounts of these resources, without the name where there is only one and the sentence has it."""
    if len(resources) == 1:
        return format_amount(resources[0], amounts.get(resources[0], 0))
    return show({resource: amounts.get(resource, 0) for resource in resources})


def _list(names: Sequence[str]) -> str:
    if len(names) <= GROUPS:
        return ", ".join(names)
    return f"{', '.join(names[:GROUPS])} and {len(names) - GROUPS} more"
