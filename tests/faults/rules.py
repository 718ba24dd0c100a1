"""What may be done to a request or to a watch, and the rules by which it is.

Always holds: a rule's action touches only the calls that its match says; of several rules for requests that match, the
one that was set last decides. Rules for watches hold for those that are open, from the next event on, and add up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from tests.faults.calls import Call, Match

Hook = Callable[[Call], Awaitable[None] | None]
"""Called in the middle of a request, which waits for it. To kill a program exactly there, say."""

REASONS: Final = {
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
"""metav1.StatusReason."""


@dataclass(frozen=True)
class Refuse:
    """An answer that says no; the API server never hears of the request."""

    status: int
    retry_after: int | None = None
    message: str = "refused by a rule of the test"


@dataclass(frozen=True)
class Delay:
    """It reaches the API server so much later; not at all if its sender gives up before, unless it `lands` still."""

    seconds: float
    lands: bool = False


@dataclass(frozen=True)
class Cut:
    """The connection breaks: before the API server hears of the request, or `after` it has carried it out.

    `then` is called at that moment, before the break.
    """

    after: bool = False
    then: Hook | None = None


@dataclass(frozen=True)
class Hang:
    """Half-open: nothing comes any more, until the sender gives up or the rule is taken away (then it is cut).

    `after`: the API server has carried it out.
    """

    after: bool = False


@dataclass(frozen=True)
class Expire:
    """A list is answered with 410, a watch with an ERROR event that says so, as after a compaction."""


@dataclass(frozen=True)
class Silent:
    """Watches, also open ones: events are held back for as long as the rule stands, then come all, late, in order."""


@dataclass(frozen=True)
class Late:
    """Watches: each event comes so much later, those of one watch in order."""

    seconds: float


@dataclass(frozen=True)
class Twice:
    """Watches: each event comes, and comes again so much later, after whatever came in between."""

    later: float = 0.0


Action = Refuse | Delay | Cut | Hang | Expire | Silent | Late | Twice
OF_WATCHES: Final = (Silent, Late, Twice)


@dataclass(eq=False)
class Rule:
    """Stands until it is taken away, or used up. As a context manager it is taken away at the end."""

    match: Match
    action: Action
    skip: int
    """So many that match are left alone first."""
    times: int | None
    """How many it hits; None: all."""
    _book: RuleBook
    hits: list[Call] = field(default_factory=list)
    taken_away: asyncio.Event = field(default_factory=asyncio.Event)

    def take_away(self) -> None:
        """From now on it holds for nobody; what it holds back goes on."""
        self._book.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.take_away()


class RuleBook:
    """The rules that stand. `changed` is called after each change."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._rules: list[Rule] = []
        self._changed = changed

    def add(self, match: Match, action: Action, *, skip: int = 0, times: int | None = None) -> Rule:
        """The newest comes first."""
        rule = Rule(match, action, skip, times, self)
        self._rules.insert(0, rule)
        self._changed()
        return rule

    def remove(self, rule: Rule) -> None:
        """Twice is no harm."""
        if rule in self._rules:
            self._rules.remove(rule)
            rule.taken_away.set()
            self._changed()

    def clear(self) -> None:
        """No rules any more."""
        for rule in tuple(self._rules):
            self.remove(rule)

    def for_request(self, call: Call) -> Rule | None:
        """The rule that hits this call, which counts as a hit."""
        for rule in self._rules:
            if isinstance(rule.action, OF_WATCHES) or not rule.match(call):
                continue
            if rule.skip > 0:
                rule.skip -= 1
                continue
            if rule.times is not None and len(rule.hits) >= rule.times:
                continue
            rule.hits.append(call)
            call.fault = repr(rule.action)
            return rule
        return None

    def for_watch(self, call: Call) -> list[Action]:
        """What is to be done to the events of this watch now: all that the rules say of it."""
        found = [rule for rule in self._rules if isinstance(rule.action, OF_WATCHES) and rule.match(call)]
        for rule in found:
            if call not in rule.hits:
                rule.hits.append(call)
        return [rule.action for rule in found]
