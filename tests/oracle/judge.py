"""Both answers to a case side by side, and a disagreement made as small as it goes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from tests.oracle.careful import Careful, why_careful
from tests.oracle.case import Case, Json
from tests.oracle.engine import Answer, ask
from tests.oracle.plane import Plane, RefusedError

ORDERS: Final = 3
"""In so many orders a gang that doesn't fit is tried; of pods that are all alike there is one order: that twice, since
of nodes that are equally good kube-scheduler takes any."""

ATTEMPTS: Final = 150
"""To make one disagreement smaller."""


class Outcome(StrEnum):
    AGREED = "agreed"
    WRONG_FIT = "wrong fit"
    """The engine lets the gang go, and kube-scheduler doesn't bind all of it: a mistake, always."""
    MISSED_FIT = "missed fit"
    """The engine keeps the gang, and kube-scheduler has bound all of it."""


@dataclass(frozen=True)
class Verdict:
    case: Case
    answer: Answer
    unbound: tuple[str, ...]
    """What kube-scheduler says of the pods that it hasn't bound, in the last order that was tried."""

    @property
    def outcome(self) -> Outcome:
        if self.answer.goes == (not self.unbound):
            return Outcome.AGREED
        return Outcome.WRONG_FIT if self.answer.goes else Outcome.MISSED_FIT

    @property
    def careful(self) -> Careful | None:
        """For a missed fit: whether it is of a kind that is known to be missed at times."""
        return why_careful(self.case, self.answer)

    @property
    def mistaken(self) -> bool:
        """Whether it is a disagreement that nothing excuses."""
        if self.outcome is Outcome.MISSED_FIT:
            return self.careful is None
        return self.outcome is Outcome.WRONG_FIT


class Judge:
    """Asks both sides; each time under new names."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._runs = 0
        self._named = Case("", (), (), ())
        """What is there now, under the names that it has there."""

    async def judge(self, case: Case, *, edge: Random | None = None) -> Verdict:
        """`edge`: first cut the gang to where the engine's answer changes, on one side of it or the other.

        RefusedError where the API server doesn't take the case.
        """
        try:
            stored, gang = await self._prepare(case)
            if edge is not None:
                counts = range(1, len(gang) + 1)
                pods = _pods_at_edge([ask(stored, gang[:count], case.annotations).goes for count in counts], edge)
                case, gang = case.cut(pods), gang[:pods]
            answer = ask(stored, gang, case.annotations)
            if answer.goes:
                unbound = await self._at_once(case, gang, answer)
            else:
                unbound = await self._in_orders(case, gang)
        finally:
            await self._plane.clear()
        return Verdict(case, answer, tuple(unbound))

    async def _prepare(self, case: Case) -> tuple[dict[str, list[Json]], list[Json]]:
        self._runs += 1
        self._named = case.renamed(f"x{self._runs}")
        return await self._plane.prepare(self._named)

    async def _at_once(self, case: Case, gang: list[Json], answer: Answer) -> list[str]:
        """Lets the pods go as the controller does: all at once, so that any may be the first."""
        if set(answer.domain) != {case.topology} - {""}:
            return [f"kept to {dict(answer.domain)}, and not to one value of {case.topology}"]
        order, rng = list(range(len(gang))), Random(case.name)
        if rng.random() < 0.5:
            rng.shuffle(order)
        nodes = [answer.nodes[index] for index in order] if answer.tight else []
        pins = [{**answer.domain, **(answer.pins[index] if answer.pins else {})} for index in order]
        return await self._plane.release([gang[index] for index in order], nodes, pins)

    async def _in_orders(self, case: Case, gang: list[Json]) -> list[str]:
        """Lets the pods go in several orders, in one domain after the other where they are to be in one; nothing where
        all are bound in one of them."""
        unbound = [f"no node has {case.topology}"]
        domains, orders = len(_domains(self._named)), _orders(case.gang, Random(case.name))
        for number, (place, order) in enumerate(itertools.product(range(domains), orders)):
            if number:
                gang = await self._afresh(case, gang)
            domain = _domains(self._named)[place]  # under the names that it has now
            unbound = await self._plane.release([gang[index] for index in order], pins=[domain] * len(order))
            if not unbound:
                break
        return unbound

    async def _afresh(self, case: Case, gang: list[Json]) -> list[Json]:
        """The same pods again; with all else too where the first may have changed it."""
        if any(it["kind"] == "StorageClass" for it in case.objects):
            await self._plane.clear()
            return (await self._prepare(case))[1]
        await self._plane.remove(gang)
        return await self._plane.make_gang(self._named.gang[: len(gang)])

    async def shrink(self, found: Verdict) -> Verdict:
        """The same disagreement in a case from which nothing more can be left out, or not in a reasonable time."""
        shrinking = _Shrinking(self, found)
        for part in ("gang", "objects"):
            await shrinking.thin_out(part)
        await shrinking.pare()
        for part in ("gang", "objects"):
            await shrinking.thin_out(part)
        return shrinking.found


class _Shrinking:
    """One disagreement on its way to being small."""

    def __init__(self, judge: Judge, found: Verdict) -> None:
        self.found = found
        self._judge = judge
        self._left = ATTEMPTS

    async def thin_out(self, part: str) -> None:
        """Leaves out as many of the objects as it can, many at a time, then fewer."""
        count = len(getattr(self.found.case, part))
        while count:
            start = 0
            while start < len(getattr(self.found.case, part)):
                if not await self._try(self.found.case.without(part, start, count)):
                    start += count
            count //= 2

    async def pare(self) -> None:
        """Leaves out parts of what is left."""
        tried: list[Case] = []
        while True:
            for case in self.found.case.lesser():
                if case not in tried:
                    tried.append(case)
                    if await self._try(case):
                        break
            else:
                return

    async def _try(self, case: Case) -> bool:
        if not self._left or not case.gang:
            return False
        self._left -= 1
        try:
            verdict = await self._judge.judge(case)
        except (RefusedError, TimeoutError, ValueError):
            return False
        same = (verdict.outcome, verdict.mistaken) == (self.found.outcome, self.found.mistaken)
        if same:
            self.found = verdict
        return same


def _pods_at_edge(goes: Sequence[bool], rng: Random) -> int:
    """How many pods the gang has: as many as just fit or one more than that, by turns; where nothing changes, any."""
    edges = [count for count in range(1, len(goes)) if goes[count - 1] != goes[count]]
    if not edges:
        return rng.choice((1, 2, len(goes)))
    return rng.choice(edges) + rng.choice((0, 1))


def _domains(case: Case) -> list[dict[str, str]]:
    """What keeps the pods in each of the domains that they may have together; where they may be anywhere, nothing."""
    key = case.topology
    if not key:
        return [{}]
    labels = [it["metadata"].get("labels", {}) for it in case.objects if it["kind"] == "Node"]
    values = sorted({each[key] for each in labels if key in each})
    own = [pod["spec"].get("nodeSelector", {}) for pod in case.gang]
    return [{key: value} for value in values if all(each.get(key, value) == value for each in own)]


def _orders(gang: Sequence[Json], rng: Random) -> list[list[int]]:
    """The order in which they are, the other way round, and others."""
    places = list(range(len(gang)))
    if all(pod["spec"] == gang[0]["spec"] and pod["metadata"] == gang[0]["metadata"] for pod in gang):
        return [places] * 2
    orders = [places, places[::-1]]
    while len(orders) < ORDERS:
        orders.append(rng.sample(places, len(places)))
    return orders
