"""Queues: a write that contradicts itself or its neighbours is refused, with the numbers.

Pure rules over the queues as they are and the one write. What always holds: a write is refused only for what
it makes worse. What was wrong before it (two writes at once, or one while we were down) never stands in the
way of a write that mends a part of it, or of one about something else: one bad queue doesn't stop the others.

The rules: design, "Quota". guarantee ≤ deserved ≤ capability for each resource that both name, where the
guarantee of a queue with children is at least the sum of theirs; no capability above that of a queue over it;
the deserved of a queue's children add up to no more than its own.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from startgate.audit.record import Decision
from startgate.model.quantity import QuantityError, format_amount
from startgate.model.queue import QueueSpec
from startgate.model.resources import Amounts, add, amounts, largest
from webhook.review import Refusal, Verdict, refuse

LONGEST_NAME: Final = 63
"""Characters of a label's value, by which Jobs name a queue."""
FIELDS: Final = ("guarantee", "deserved", "capability")
OPERATORS: Final = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}
"""Of a label selector, and whether they take values."""

Queues = Mapping[str, QueueSpec]


class Contradiction(Struct, frozen=True):
    """Two amounts that can't both hold: `less` has to be at most `more`, and is above it by `excess`."""

    key: tuple[str, ...]
    excess: int
    message: str


def write(name: str, old: QueueSpec | None, new: QueueSpec, queues: Queues) -> Verdict:
    """A create (`old` is None) or an update. `queues`: all specs by name, with or without this one."""
    refusal = _check_alone(name, old, new) or _check_parent(name, new, queues)
    if refusal is not None:
        return refusal
    after = Tree({**queues, name: new})
    around = after.affected(name)
    before = Tree({**queues, name: old} if old is not None else {k: v for k, v in queues.items() if k != name})
    known = {found.key: found.excess for found in before.contradictions(around)}
    for found in after.contradictions(around):
        if found.excess > known.get(found.key, 0):
            return refuse(
                Refusal.CONTRADICTION,
                found.message,
                code=422,
                by_facts=True,
                queue=name,
                seen={"excess": found.excess},
            )
    decision = Decision.QUEUE_CREATED if old is None else Decision.QUEUE_UPDATED
    return Verdict(decision=decision, queue=name)


def delete(name: str, waiting: int, running: int, queues: Queues) -> Verdict:
    """`waiting`, `running`: gangs in the queue, by its status."""
    children = sorted(child for child, spec in queues.items() if spec.parent == name)
    if children:
        return refuse(
            Refusal.QUEUE_IN_USE,
            f"queue {name} is the parent of {_listed(children)}: delete those first, or give them another parent",
            by_facts=True,
            queue=name,
            seen={"children": len(children)},
        )
    if waiting or running:
        return refuse(
            Refusal.QUEUE_IN_USE,
            f"queue {name} has {running} gangs running and {waiting} waiting: set spec.stopped to true so that none "
            "starts any more, and delete it when they have ended or been deleted (kubectl get gangs -A)",
            queue=name,
            seen={"running": running, "waiting": waiting},
        )
    return Verdict(decision=Decision.QUEUE_DELETED, queue=name)


def _listed(found: list[str]) -> str:
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return ", ".join(found[:5]) + more


def _check_alone(name: str, old: QueueSpec | None, new: QueueSpec) -> Verdict | None:
    if old is None and len(name) > LONGEST_NAME:
        return _invalid(
            name,
            f"the name has {len(name)} characters, and Jobs name their queue in a label, which takes "
            f"{LONGEST_NAME}: choose a shorter one",
        )
    for field in FIELDS:
        for resource, quantity in getattr(new, field).items():
            if old is not None and getattr(old, field).get(resource) == quantity:
                continue
            try:
                amount = amounts({resource: quantity})[resource]
            except QuantityError as error:
                return _invalid(name, f"spec.{field}, {resource}: {error}")
            if amount < 0:
                return _invalid(name, f"spec.{field}, {resource}: {quantity} is below 0; write 0 or more")
    return _check_selector(name, new)


def _check_selector(name: str, new: QueueSpec) -> Verdict | None:
    if new.namespaces is UNSET:
        return None
    for expression in new.namespaces.match_expressions:
        takes_values = OPERATORS.get(expression.operator)
        where = f"spec.namespaces, {expression.key} {expression.operator}"
        if takes_values is None:
            return _invalid(name, f"{where}: the operator has to be one of {', '.join(OPERATORS)}")
        if takes_values != bool(expression.values):
            how = "needs at least one value" if takes_values else "takes no values"
            return _invalid(name, f"{where}: this operator {how}; as it is, no namespace would be admitted")
    return None


def _invalid(name: str, message: str) -> Verdict:
    return refuse(Refusal.QUEUE_INVALID, message, code=422, queue=name)


def _check_parent(name: str, new: QueueSpec, queues: Queues) -> Verdict | None:
    if not new.parent:
        return None
    path = [name]
    above = new.parent
    while above:
        if above in path:
            way = " → ".join([*path[path.index(above) :], above])
            if above != name:
                return None  # a cycle further up, which was there before
            return refuse(
                Refusal.PARENT_CYCLE,
                f"spec.parent {new.parent} makes a circle: {way}; choose a parent that isn't below this queue, or none",
                code=422,
                by_facts=len(path) > 1,
                queue=name,
            )
        if above not in queues:
            if above != new.parent:
                return None
            return refuse(
                Refusal.NO_SUCH_PARENT,
                f"there is no queue {above} to be the parent: create it first, or leave spec.parent out",
                code=422,
                by_facts=True,
                queue=name,
            )
        path.append(above)
        above = queues[above].parent
    return None


def readable(quantities: Mapping[str, str | int]) -> dict[str, int]:
    """The amounts, without those that can't be read: a queue that is broken there was refused or repaired."""
    found: dict[str, int] = {}
    for resource, quantity in quantities.items():
        try:
            found |= amounts({resource: quantity})
        except QuantityError:
            continue
    return found


class Tree:
    """The queues with their children, for one question."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._children: dict[str, list[str]] = {}
        for name, spec in queues.items():
            self._children.setdefault(spec.parent, []).append(name)

    def affected(self, name: str) -> tuple[str, ...]:
        """The queues whose contradictions a write to this one can change: its children, itself, those above."""
        return (*self._children.get(name, ()), name, *self._above(name))

    def contradictions(self, which: Iterable[str]) -> Iterator[Contradiction]:
        """Of these queues, most telling first: each within itself, with its nearest ceiling, with its
        children."""
        for name in which:
            if name in self._queues:
                yield from self._within(name)
                yield from self._under_ceiling(name)
                yield from self._over_children(name)

    def _above(self, name: str) -> Iterator[str]:
        seen = {name}
        parent = self._queues[name].parent if name in self._queues else ""
        while parent in self._queues and parent not in seen:
            yield parent
            seen.add(parent)
            parent = self._queues[parent].parent

    def _amounts(self, name: str, field: str) -> Amounts:
        return readable(getattr(self._queues[name], field))

    def _guarantee(self, name: str, seen: frozenset[str] = frozenset()) -> Amounts:
        """Its own, or what its children are guaranteed together if that is more."""
        if name in seen:
            return {}
        below = add(*(self._guarantee(child, seen | {name}) for child in self._children.get(name, ())))
        return largest(self._amounts(name, "guarantee"), below)

    def _within(self, name: str) -> Iterator[Contradiction]:
        guarantee = self._guarantee(name)
        own = self._amounts(name, "guarantee")
        deserved, capability = self._amounts(name, "deserved"), self._amounts(name, "capability")
        for resource in guarantee.keys() | deserved.keys():
            low = guarantee.get(resource, 0)
            what = "guarantee" if own.get(resource, 0) == low else "the guarantees of its children together,"
            for field, bound in (("deserved", deserved), ("capability", capability)):
                if resource in bound:
                    yield from _compare(name, resource, (what, low), (field, bound[resource]))
            if resource in deserved and resource in capability:
                yield from _compare(
                    name, resource, ("deserved", deserved[resource]), ("capability", capability[resource])
                )

    def _under_ceiling(self, name: str) -> Iterator[Contradiction]:
        for resource, amount in self._amounts(name, "capability").items():
            for above in self._above(name):
                ceiling = self._amounts(above, "capability").get(resource)
                if ceiling is not None:
                    whose = f"the capability of queue {above} above it"
                    yield from _compare(name, resource, ("capability", amount), (whose, ceiling))
                    break

    def _over_children(self, name: str) -> Iterator[Contradiction]:
        together = add(*(self._amounts(child, "deserved") for child in self._children.get(name, ())))
        for resource, amount in self._amounts(name, "deserved").items():
            what = "the deserved of its children together,"
            yield from _compare(name, resource, (what, together.get(resource, 0)), ("deserved", amount))


def _compare(name: str, resource: str, less: tuple[str, int], more: tuple[str, int]) -> Iterator[Contradiction]:
    (what, low), (bound, high) = less, more
    if low > high:
        yield Contradiction(
            (name, resource, what, bound),
            low - high,
            f"queue {name}, {resource}: {what} {format_amount(resource, low)} is above {bound} "
            f"{format_amount(resource, high)}; lower the one or raise the other",
        )


class Meta(Struct):
    name: str = ""


class Counts(Struct):
    """Gangs in a queue, as its status counts them."""

    waiting: int = 0
    running: int = 0


class Queue(Struct):
    """A Queue as a request has it: its spec as it came, for the record, and its counts."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: Counts = msgspec.field(default_factory=Counts)
