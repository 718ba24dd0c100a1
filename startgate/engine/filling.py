"""Placing pods of one shape one after the other, under limits that change as they are placed.

Nodes that are in the same domains make a class: of these only the first is looked at. What always holds: every pod
placed is let in by all limits with those before it there; a class is looked at again only when it may be let in.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

import numpy as np

from startgate.engine.limits import Limit
from startgate.engine.nodes import Ints

Steps: TypeAlias = list[tuple[int, int]]
"""(slot, pods) in order."""
Turn: TypeAlias = tuple[int, int, int]
"""Whose turn comes first: level, then how many could stand in, then key."""

CLASS: Final = -1


def fill(caps: Ints, keys: Ints, limits: Sequence[Limit], count: int) -> Steps:
    """Places for so many pods, or for as many as are found: at most `caps` in a slot, lower keys first.

    Under one limit what is found is all that there are. Under several it may depend on the order: where keys alone
    don't get there, the emptiest domains of one limit after the other come first, and in those the nodes that the
    fewest others could stand in for.
    """
    if not limits:
        return _plain(caps, keys, count)
    count = min(count, *(limit.most(caps) for limit in limits))
    best = _Filling(caps, keys, [limit.copy() for limit in limits], None).run(count)
    if len(limits) == 1:
        return best
    for number in sorted(range(len(limits)), key=lambda each: -len(np.unique(limits[each].of))):
        if _size(best) >= count:
            break
        best = max(best, _Filling(caps, keys, [limit.copy() for limit in limits], number).run(count), key=_size)
    return best


def _size(steps: Steps) -> int:
    return sum(pods for _, pods in steps)


def _plain(caps: Ints, keys: Ints, count: int) -> Steps:
    slots = np.flatnonzero(caps > 0)
    slots = slots[np.argsort(keys[slots], kind="stable")]
    up_to = np.cumsum(caps[slots])
    slots = slots[: int(np.searchsorted(up_to, count)) + 1]
    steps = list(zip(slots.tolist(), caps[slots].tolist(), strict=True))
    over = _size(steps) - count
    if steps and over > 0:
        steps[-1] = (steps[-1][0], steps[-1][1] - over)
    return [step for step in steps if step[1] > 0]


class _Filling:
    def __init__(self, caps: Ints, keys: Ints, limits: list[Limit], leading: int | None) -> None:
        """`leading`: the limit of which the emptiest domains come first; None: keys alone decide."""
        self.limits = limits
        self.leading = leading
        slots = np.flatnonzero(caps > 0)
        kinds = _kinds(slots, limits)
        order = np.lexsort((slots, keys[slots], kinds))
        slots, kinds = slots[order], kinds[order]
        starts = np.flatnonzero(np.diff(kinds, prepend=-1))
        self.slots: list[int] = slots.tolist()
        self.keys: list[int] = keys[slots].tolist()
        self.left: list[int] = caps[slots].tolist()
        self.at: list[int] = starts.tolist()
        """By class: its first node with room."""
        self.ends: list[int] = [*self.at[1:], len(self.slots)]
        self.domains: list[list[int]] = [limit.of[slots[starts]].tolist() for limit in limits]
        """By limit, by class."""
        self.sizes: list[int] = []
        """By class: how many there are in its smallest domain; those with the fewest have the fewest to stand in."""
        if leading is not None:
            of = np.array(self.domains, dtype=np.int64).reshape(len(limits), -1) + 1
            self.sizes = np.min([np.bincount(each)[each] for each in of], axis=0).tolist()
        self.heap: list[tuple[Turn, int, int]] = [(self._turn(each), CLASS, each) for each in range(len(starts))]
        """Who may be next: a class, or of a limit those that wait for a domain of it that has slack again."""
        heapify(self.heap)
        self.waiting: list[dict[int, list[tuple[Turn, int]]]] = [{} for _ in limits]
        """By limit and domain: the classes that it holds up."""
        self.asleep: list[dict[int, set[int]]] = [{} for _ in limits]
        """By limit and level: domains with classes that wait, and no slack."""
        self.awake: list[set[int]] = [set() for _ in limits]
        """By limit: domains with classes that wait and of which the first is in the heap."""

    def run(self, count: int) -> Steps:
        steps: Steps = []
        while count > 0 and self.heap:
            turn, limit, number = heappop(self.heap)
            if limit != CLASS:
                woken = self._first_waiting(limit, number)
                if woken is None:
                    continue
                turn, number = woken
            now = self._turn(number)
            if now > turn and self.heap and now > self.heap[0][0]:
                heappush(self.heap, (now, CLASS, number))  # its domain has filled up meanwhile
                continue
            pods = self._slack(number, count)
            if pods:
                steps.append((self.slots[self.at[number]], pods))
                self._take(number, pods)
                count -= pods
        return steps

    def _turn(self, number: int) -> Turn:
        key = self.keys[self.at[number]]
        if self.leading is None:
            return (0, 0, key)
        return (self.limits[self.leading].level(self.domains[self.leading][number]), self.sizes[number], key)

    def _slack(self, number: int, most: int) -> int:
        """How many pods the first node of this class may have now; where none, the class waits for who holds it up."""
        slack = min(most, self.left[self.at[number]])
        for place, limit in enumerate(self.limits):
            domain = self.domains[place][number]
            found = limit.slack(domain)
            if found <= 0:
                if not limit.lasting:
                    self._park(place, domain, number)
                return 0
            slack = min(slack, found)
        return slack if self.leading is None else 1

    def _take(self, number: int, pods: int) -> None:
        node = self.at[number]
        self.left[node] -= pods
        for place, limit in enumerate(self.limits):
            if limit.take(self.domains[place][number], pods):
                self._wake(place)
        if not self.left[node]:
            self.at[number] += 1
        if self.at[number] < self.ends[number]:
            heappush(self.heap, (self._turn(number), CLASS, number))

    def _park(self, place: int, domain: int, number: int) -> None:
        heappush(self.waiting[place].setdefault(domain, []), (self._turn(number), number))
        if domain not in self.awake[place]:
            self._put_to_sleep(place, domain)

    def _put_to_sleep(self, place: int, domain: int) -> None:
        self.asleep[place].setdefault(self.limits[place].level(domain), set()).add(domain)

    def _wake(self, place: int) -> None:
        """The emptiest domain has risen: others that had come too far may go on."""
        levels = self.asleep[place]
        for level in list(levels):
            for domain in sorted(levels[level]):
                if self.limits[place].slack(domain) <= 0:
                    break
                levels[level].discard(domain)
                self.awake[place].add(domain)
                heappush(self.heap, (self.waiting[place][domain][0][0], place, domain))
            if not levels[level]:
                del levels[level]

    def _first_waiting(self, place: int, domain: int) -> tuple[Turn, int] | None:
        """The first class that waits for this domain, if that has slack still; the next one takes its place."""
        if self.limits[place].slack(domain) <= 0:
            self.awake[place].discard(domain)
            self._put_to_sleep(place, domain)
            return None
        waiting = self.waiting[place][domain]
        first = heappop(waiting)
        if waiting:
            heappush(self.heap, (waiting[0][0], place, domain))
        else:
            del self.waiting[place][domain]
            self.awake[place].discard(domain)
        return first


def _kinds(slots: Ints, limits: Sequence[Limit]) -> Ints:
    """A number for each slot: the same for those that are in the same domains."""
    kinds = np.zeros(len(slots), dtype=np.int64)
    for limit in limits:
        of = limit.of[slots] + 1
        kinds = np.unique(kinds * (int(of.max(initial=0)) + 1) + of, return_inverse=True)[1]
    return kinds
