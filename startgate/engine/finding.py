"""Which volumes the claims of pods get on a node, of those that exist or are made for them.

As kube-scheduler goes about it: the smallest claim of a pod first, and for it the smallest volume that will do; what
several pods share comes with the first of them. What always holds: a volume is given to one claim. Where kube-scheduler
may take one volume as well as another of the same size that can be used from other nodes, one of each counts as taken;
volumes of one size that can be used from the same nodes are taken for alike, whatever their labels.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from startgate.engine.catalogue import UNLIMITED, Catalogue
from startgate.engine.claims import Wish
from startgate.engine.nodes import Bools, Ints
from startgate.engine.shelf import Offers
from startgate.model.storage import Volume

ENOUGH: Final = 512
"""Pods on one node whose volumes are looked for at a time, where that takes a search; more than a kubelet takes."""


class Pick(NamedTuple):
    """What a claim gets on a node."""

    wish: Wish
    volume: Volume | None
    """None: one is made for it."""
    tied: bool = False
    """Whether it may as well be one that other nodes can use."""


class Found(NamedTuple):
    """By slot, how many pods can get the volumes that their claims lack, and by shared claim the domain."""

    caps: Ints
    domains: list[Ints]


class Search:
    """`taken`: volumes that are somebody's already, whatever the catalogue says. `bare`: nobody has any, so far."""

    def __init__(self, catalogue: Catalogue, taken: AbstractSet[str], *, bare: bool) -> None:
        self._catalogue = catalogue
        self._taken = taken
        self._bare = bare

    def existing(self, wishes: Iterable[Wish]) -> bool:
        """Whether there are volumes that any of these could get."""
        return any(wish.kept is not None or self._offers(wish).groups for wish in wishes)

    def pick(self, wish: Wish, slot: int) -> Pick | None:
        """What this claim gets there; None: nothing."""
        return self._pick(wish, slot, set(), {})

    def steps(self, shared: Sequence[Wish], own: Sequence[Wish], slot: int, count: int) -> list[list[Pick]]:
        """What one pod after the other gets there, so many pods at most."""
        spent: set[str] = set()
        cursors: dict[tuple[Wish, int], int] = {}
        steps: list[list[Pick]] = []
        while len(steps) < count:
            picks = []
            for wish in own if steps else sorted((*shared, *own), key=lambda wish: wish.size):
                pick = self._pick(wish, slot, spent, cursors)
                if pick is None:
                    return steps
                if pick.volume is not None:
                    spent.add(pick.volume.name)
                picks.append(pick)
            steps.append(picks)
        return steps

    def spent(self, picks: Sequence[Pick], slot: int) -> list[str]:
        """The volumes that these picks of one wish take; where they are tied, as many of each group."""
        volumes = [pick.volume for pick in picks if pick.volume is not None]
        spent = [volume.name for volume in volumes]
        for size in {pick.volume.capacity for pick in picks if pick.volume is not None and pick.tied}:
            offers = self._offers(picks[0].wish)
            taken = Counter(offers.shelf.group_of(volume.name) for volume in volumes if volume.capacity == size)
            for group in offers.at(slot):
                gone = self._taken | set(spent)
                rest = (each.name for each in offers.groups[group] if each.capacity == size and each.name not in gone)
                spent += islice(rest, taken.total() - taken[group])
        return spent

    def reached(self, pick: Pick, slot: int) -> Bools:
        """From where the claim of a pod here can be used by later ones: they see the zone of its volume too."""
        if pick.volume is None:
            same: Bools = pick.wish.segments == pick.wish.segments[slot]
            return same
        volumes = self._catalogue.volumes
        usable = [self._catalogue.usable(volumes[each]) for each in self.spent([pick], slot)]
        all_of_them: Bools = np.logical_and.reduce(usable)
        return all_of_them

    def everywhere(self, shared: Sequence[Wish], own: Sequence[Wish]) -> Found:
        """For all slots at once. Classes have no volumes in common, so that each is looked at alone."""
        caps = np.full(self._catalogue.width, UNLIMITED, dtype=np.int64)
        domains = [wish.segments for wish in shared]
        for name in dict.fromkeys(wish.made.name for wish in (*shared, *own)):
            here = [index for index, wish in enumerate(shared) if wish.made.name == name]
            ours = [wish for wish in own if wish.made.name == name]
            theirs = [shared[index] for index in here]
            some, places = self._of_one_class(theirs, ours)
            caps = np.minimum(caps, some)
            for index, domain in zip(here, places, strict=True):
                domains[index] = domain
        return Found(caps, domains)

    def _of_one_class(self, shared: Sequence[Wish], own: Sequence[Wish]) -> Found:
        made = np.where(np.logical_and.reduce([self._made(wish) for wish in (*shared, *own)]), UNLIMITED, 0)
        if not self.existing((*shared, *own)):
            return Found(made, [wish.segments for wish in shared])
        if not shared and len({wish.now for wish in own}) == 1:
            return Found(np.maximum(made, self._offers(own[0]).left(self._taken) // len(own)), [])
        if len(shared) == 1 and not own and shared[0].kept is None:
            return self._first_of_all(shared[0], made)
        return self._one_by_one(shared, own, made)

    def _first_of_all(self, wish: Wish, made: Ints) -> Found:
        """For one claim that pods share, in whose place no other volume is asked for."""
        offers = self._offers(wish)
        firsts = [(first, group) for group in offers.groups if (first := self._first(offers, group, set(), {}, wish))]
        caps, domain = made.copy(), wish.segments.copy()
        if not firsts:
            return Found(caps, [domain])
        # The best comes last: of several values for one slot the last is what stays.
        firsts.sort(key=lambda each: (each[0].capacity, each[0].name), reverse=True)
        width = len(caps)
        reach = [np.arange(width)[offers.shelf.reach(group)] for _, group in firsts]
        slots, lengths = np.concatenate(reach), [len(each) for each in reach]
        sizes = np.repeat(np.array([first.capacity for first, _ in firsts], dtype=np.int64), lengths)
        size = np.zeros(width, dtype=np.int64)
        size[slots] = sizes
        domain[slots] = np.repeat(np.arange(len(firsts)), lengths) + width
        caps[slots] = UNLIMITED
        tied = np.flatnonzero(np.bincount(slots[sizes == size[slots]], minlength=width) > 1)
        domain[tied] = -tied - 1
        for first, group in firsts:
            if first.zones:
                inside = np.arange(width)[offers.shelf.reach(group)]
                strange = inside[(size[inside] == first.capacity) & ~self._catalogue.usable(first)[inside]]
                caps[strange] = 1
                domain[strange] = -strange - 1
        return Found(caps, [domain])

    def _one_by_one(self, shared: Sequence[Wish], own: Sequence[Wish], made: Ints) -> Found:
        """Slot by slot: where claims of several sizes, or with several selectors, ask for the same volumes."""
        where = np.zeros(len(made), dtype=np.bool_)
        for wish in (*shared, *own):
            where |= wish.kept_at if wish.kept_at is not None else self._offers(wish).counts > 0
        caps, domains = made.copy(), [wish.segments.copy() for wish in shared]
        numbers: dict[str, int] = {}
        for slot in np.flatnonzero(where if shared else where & (made == 0)).tolist():
            endless = not own or bool(made[slot])
            steps = self.steps(shared, own, slot, 1 if endless else ENOUGH)
            caps[slot] = UNLIMITED if steps and endless else len(steps)
            for pick in steps[0] if steps and shared else ():
                if pick.wish.claim is None or pick.volume is None:
                    continue
                follows = self.reached(pick, slot)[slot]
                number = len(made) + numbers.setdefault(pick.volume.name, len(numbers))
                domains[shared.index(pick.wish)][slot] = number if follows and not pick.tied else -slot - 1
                if not follows:
                    caps[slot] = 1
        return Found(caps, domains)

    def _made(self, wish: Wish) -> Bools:
        return wish.made_ever if self._bare else wish.made_at

    def _offers(self, wish: Wish) -> Offers:
        return self._catalogue.offers(wish.ever if self._bare else wish.now)

    def _pick(
        self, wish: Wish, slot: int, spent: AbstractSet[str], cursors: dict[tuple[Wish, int], int]
    ) -> Pick | None:
        """A volume that is kept for the claim is taken before any other, and where it can't be used no other is."""
        if wish.kept is not None and wish.kept_at is not None:
            free = wish.kept_at[slot] and wish.kept.name not in self._taken and wish.kept.name not in spent
            firsts = [wish.kept] if free else []
        else:
            offers = self._offers(wish)
            found = (self._first(offers, group, spent, cursors, wish) for group in offers.at(slot))
            firsts = [first for first in found if first is not None]
        best = min(firsts, key=lambda each: (each.capacity, each.name), default=None)
        if best is None:
            return Pick(wish, None) if self._made(wish)[slot] else None
        return Pick(wish, best, sum(each.capacity == best.capacity for each in firsts) > 1)

    def _first(
        self, offers: Offers, group: int, spent: AbstractSet[str], cursors: dict[tuple[Wish, int], int], wish: Wish
    ) -> Volume | None:
        """The smallest volume of the group that is still there. Before the cursor there is none."""
        volumes, start = offers.groups[group], cursors.get((wish, group), 0)
        for index in range(start, len(volumes)):
            if volumes[index].name not in self._taken and volumes[index].name not in spent:
                cursors[wish, group] = index
                return volumes[index]
        cursors[wish, group] = len(volumes)
        return None
