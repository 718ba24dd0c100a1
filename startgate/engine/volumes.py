"""Which nodes take pods by their volumes, and how many: a scratch over `Storage`, to be used up and given back.

What always holds: where `take` says so many, kube-scheduler can bind them there one after the other, each to the node
that it is given; a no may be careful in these cases only:

* Pods that share a claim without a volume: it gets one on the first one's node, and from where the others can use that
  is known as far as the CSI driver says so (CSINode's topologyKeys), or as the volumes that exist do. They are kept to
  nodes that are sure to share it, those of one domain.
* Volumes of one size that can be used from different nodes: one of each counts as taken (`finding`).
* A volume is free again when the API server says so, not when the pod that has it gives way.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from startgate.engine import wording
from startgate.engine.catalogue import UNLIMITED, Key
from startgate.engine.claims import NOTHING, Attaches, Needs, Plan, Rule, Wish, needs_of
from startgate.engine.finding import Search
from startgate.engine.nodes import Bools, Ints
from startgate.engine.storage import NONE_ATTACHED, Storage, Tally
from startgate.model.shape import Shape


class Allowed(Struct, frozen=True, eq=False):
    """Where pods of one shape can go by their volumes. Arrays are by slot, and not to be written into."""

    mask: Bools | None = None
    """None: everywhere."""
    caps: Ints | None = None
    """How many more each node takes; None: any number."""
    most: int = UNLIMITED
    """How many can be there in all, at most."""
    domains: Ints | None = None
    """Pods that share a claim must all be in slots of one domain. None: they needn't."""
    independent: bool = True
    """Whether what one node takes leaves the others as they are: then `take` gives whatever the caps and `most` do."""
    obstacle: str = ""
    """A clause that says why they can't go anywhere, or why not more than one can: "volume claim a doesn't exist"."""


FREE: Final = Allowed()


class _Anchor(Struct, frozen=True, eq=False):
    """A claim that has got its volume in this scratch."""

    mask: Bools
    """Where it can be used from then on."""
    volumes: tuple[str, ...] = ()
    """The volume that it has got, or may have."""


class Volumes:
    """`bare`: as if no pod were on any node, and nobody had any of the volumes."""

    def __init__(self, storage: Storage, width: int, *, bare: bool = False) -> None:
        storage.widen(width)
        self.storage = storage
        self._bare = bare
        self._shifts: dict[int, dict[Needs, int]] = {}
        """How many pods more than in the storage, by slot and needs. The inner maps are replaced, not changed."""
        self._users: dict[Key, int] = {}
        """By claim, how many users more than in the storage."""
        self._bound: dict[tuple[int, Needs], tuple[int, tuple[str, ...]]] = {}
        """How many pods have got volumes here, and which these are or may be."""
        self._anchors: dict[Key, _Anchor] = {}
        self._taken: set[str] = set()
        """The volumes in `_bound` and `_anchors`."""
        self._tallies: dict[int, Tally] = {}
        self._known: dict[Needs, Allowed] = {}
        if not bare:
            self._settle()

    def copy(self) -> "Volumes":
        """Another one like this; what is placed in either isn't seen in the other."""
        twin = Volumes.__new__(Volumes)
        twin.storage, twin._bare = self.storage, self._bare
        twin._shifts, twin._users = dict(self._shifts), dict(self._users)
        twin._bound, twin._anchors = dict(self._bound), dict(self._anchors)
        twin._taken, twin._tallies = set(self._taken), dict(self._tallies)
        twin._known = dict(self._known)
        return twin

    def allows(self, shape: Shape) -> Allowed:
        """Where such pods can go now."""
        needs = needs_of(shape)
        if needs is NOTHING:
            return FREE
        found = self._known.get(needs)
        if found is None:
            found = self._known[needs] = self._allows(needs)
        return found

    def take(self, shape: Shape, slots: Iterable[int], counts: Iterable[int]) -> list[int]:
        """Places so many pods in each slot, in this order, or as many as can get their volumes; returns how many.

        What is placed is counted; the rest may fit elsewhere, which `allows` then knows.
        """
        needs = needs_of(shape)
        if needs is NOTHING:
            return list(counts)
        plan, attaches = self.storage.plan(needs), self.storage.attaches(needs)
        placed = []
        for slot, count in zip(slots, counts, strict=True):
            got = min(count, self._fits(plan, attaches, needs, slot))
            got = self._bind(plan, needs, slot, got) if got > 0 else 0
            self._shift(attaches, needs, slot, got)
            placed.append(got)
        return placed

    def put(self, shape: Shape, slot: int, count: int) -> None:
        """As if these pods were there too, whether or not there is room."""
        needs = needs_of(shape)
        if needs is not NOTHING:
            self._bind(self.storage.plan(needs), needs, slot, count)
            self._shift(self.storage.attaches(needs), needs, slot, count)

    def give(self, shape: Shape, slot: int, count: int) -> None:
        """As if these pods were gone: first those that had their volumes from here, which are free again then."""
        needs = needs_of(shape)
        if needs is NOTHING:
            return
        had, volumes = self._bound.pop((slot, needs), (0, ()))
        self._taken.difference_update(volumes)
        self._shift(self.storage.attaches(needs), needs, slot, -count)
        if had > count:
            self._bind(self.storage.plan(needs), needs, slot, had - count)

    def why(self, shape: Shape, slot: int) -> str | None:
        """What keeps one such pod from this node, in words that go on from "3 nodes …"; None: its volumes don't."""
        needs = needs_of(shape)
        if needs is NOTHING:
            return None
        plan = self.storage.plan(needs)
        for words, mask in self.out_of_reach(shape):
            if mask[slot]:
                return words
        shared, search = self._open(plan), self._search()
        for wish in (*shared, *plan.own):
            if search.pick(wish, slot) is None:
                full = wish.kept is None and wish.made_ever[slot]
                return wish.too_large if full else wording.no_volume(wish.name)
        if not search.steps(shared, plan.own, slot, 1):
            return wording.too_few_volumes()
        driver = self._full(self.storage.attaches(needs), slot)
        return f"with no more volumes of {driver} to attach" if driver else None

    def out_of_reach(self, shape: Shape) -> Iterator[tuple[str, Bools]]:
        """The part of it that is the same for many nodes: words, and by slot which nodes they are about."""
        needs = needs_of(shape)
        if needs is NOTHING:
            return
        for rule in self._rules(self.storage.plan(needs)):
            yield rule.words, ~rule.mask
        for name in needs.claims:
            anchor = self._anchors.get((needs.namespace, name))
            if anchor is not None:
                yield f"that can't reach the volume of claim {name}", ~anchor.mask

    # --- where pods can go ------------------------------------------------------------------------------------------

    def _allows(self, needs: Needs) -> Allowed:
        plan = self.storage.plan(needs)
        if plan.obstacle:
            return self._nowhere(plan.obstacle)
        most, obstacle = UNLIMITED, ""
        if plan.alone:
            busy = [name for name in plan.alone if self._used((needs.namespace, name))]
            most, obstacle = 1, f"volume claim {(busy or plan.alone)[0]} can be used by one pod at a time"
            if busy:
                return self._nowhere(f"{obstacle}, and one has it")
        masks = [rule.mask for rule in self._rules(plan)] + [anchor.mask for anchor in self._held(needs)]
        caps = self._attachable(self.storage.attaches(needs))
        shared, search = self._open(plan), self._search()
        domains: Ints | None = None
        if shared or plan.own:
            found = search.everywhere(shared, plan.own)
            caps = found.caps if caps is None else np.minimum(caps, found.caps)
            for each in found.domains:
                domains = each if domains is None else _joint(domains, each)
        return Allowed(
            mask=np.logical_and.reduce(masks) if masks else None,
            caps=caps,
            most=most,
            domains=domains,
            independent=not search.existing((*shared, *plan.own)),
            obstacle=obstacle,
        )

    def _nowhere(self, obstacle: str) -> Allowed:
        return Allowed(mask=np.zeros(self.storage.width, dtype=np.bool_), most=0, obstacle=obstacle)

    def _rules(self, plan: Plan) -> tuple[Rule, ...]:
        return plan.rules if self._bare else (*plan.rules, *plan.passing)

    def _held(self, needs: Needs) -> list[_Anchor]:
        """Of their claims those that have got a volume here."""
        keys = ((needs.namespace, name) for name in needs.claims)
        return [self._anchors[key] for key in keys if key in self._anchors]

    def _open(self, plan: Plan) -> tuple[Wish, ...]:
        """Of the claims that these pods share, those that still have no volume."""
        return tuple(wish for wish in plan.shared if wish.claim not in self._anchors)

    def _search(self) -> Search:
        return Search(self.storage, self._taken, bare=self._bare)

    def _attachable(self, attaches: Attaches) -> Ints | None:
        """By slot, how many such pods can have their volumes attached; None: any number everywhere."""
        caps: Ints | None = None
        for driver in attaches.drivers():
            limits = self.storage.limits(driver)
            if int(limits.min(initial=UNLIMITED)) == UNLIMITED:
                continue
            ours = [volume for volume in attaches.shared if volume[0] == driver]
            free = limits.copy() if self._bare else limits - self.storage.attached(driver)
            fresh = np.full(len(free), len(ours), dtype=np.int64)
            for volume in ours if not self._bare else ():
                fresh[list(self.storage.where(volume))] -= 1
            for slot in self._shifts:
                tally = self._tally(slot)
                free[slot] = limits[slot] - tally.total(driver)
                fresh[slot] = sum(volume not in tally.shared for volume in ours)
            if each := attaches.each[driver]:
                room = np.maximum(free - fresh, 0) // each
            else:
                # What is there needs no more room: a node that is beyond its limit takes such pods all the same.
                room = np.where((fresh == 0) | (fresh <= free), UNLIMITED, 0)
            caps = room if caps is None else np.minimum(caps, room)
        return caps

    def _fits(self, plan: Plan, attaches: Attaches, needs: Needs, slot: int) -> int:
        """How many such pods the slot takes, volumes that are to be found for them aside."""
        if plan.obstacle or not all(rule.mask[slot] for rule in self._rules(plan)):
            return 0
        if not all(anchor.mask[slot] for anchor in self._held(needs)):
            return 0
        most = UNLIMITED
        if plan.alone:
            most = 0 if any(self._used((needs.namespace, name)) for name in plan.alone) else 1
        tally = self._tally(slot)
        for driver in attaches.drivers():
            fresh = sum(volume[0] == driver and volume not in tally.shared for volume in attaches.shared)
            free = int(self.storage.limits(driver)[slot]) - tally.total(driver)
            if each := attaches.each[driver]:
                most = min(most, max(free - fresh, 0) // each)
            elif fresh > max(free, 0):
                most = 0
        return most

    def _full(self, attaches: Attaches, slot: int) -> str:
        """A driver of whose volumes the node can attach too few for one more such pod; "" if there is none."""
        tally = self._tally(slot)
        for driver in attaches.drivers():
            fresh = sum(volume[0] == driver and volume not in tally.shared for volume in attaches.shared)
            more = fresh + attaches.each[driver]
            if more and tally.total(driver) + more > int(self.storage.limits(driver)[slot]):
                return driver
        return ""

    # --- who is there -----------------------------------------------------------------------------------------------

    def _bind(self, plan: Plan, needs: Needs, slot: int, count: int) -> int:
        """Gives volumes to so many pods, or as many as there are volumes for; returns how many."""
        shared, search = self._open(plan), self._search()
        if not shared and not plan.own:
            return count
        existing = search.existing((*shared, *plan.own))
        steps = search.steps(shared, plan.own, slot, count if existing and plan.own else 1)
        if not steps:
            return 0
        got = len(steps) if existing and plan.own else count
        for pick in steps[0]:
            if pick.wish.claim is not None:
                anchor = _Anchor(search.reached(pick, slot), tuple(search.spent([pick], slot)))
                self._anchors[pick.wish.claim] = anchor
                self._taken.update(anchor.volumes)
                if not anchor.mask[slot]:
                    got = 1
        volumes: list[str] = []
        for wish in plan.own:
            volumes += search.spent([pick for picks in steps[:got] for pick in picks if pick.wish is wish], slot)
        if plan.own:
            had, before = self._bound.get((slot, needs), (0, ()))
            self._bound[slot, needs] = (had + got, (*before, *volumes))
            self._taken.update(volumes)
        return got

    def _settle(self) -> None:
        """Pods that have a node and no volumes yet get theirs before anybody else."""
        names = self.storage.names
        known = [(needs, slot) for needs, slot in self.storage.unsettled if slot in names]
        for needs, slot in sorted(known, key=lambda each: (names[each[1]], repr(each[0]))):
            self._bind(self.storage.plan(needs), needs, slot, self.storage.unsettled[needs, slot])

    def _shift(self, attaches: Attaches, needs: Needs, slot: int, count: int) -> None:
        if not count:
            return
        tally = self._tallies.pop(slot, None)
        if tally is not None and count > 0:
            self._tallies[slot] = tally.plus(attaches, count)
        held = dict(self._shifts.get(slot, {}))
        held[needs] = held.get(needs, 0) + count
        self._shifts[slot] = held
        self._known = {}
        for name in needs.claims:
            key = (needs.namespace, name)
            self._users[key] = self._users.get(key, 0) + count
            if key in self._anchors and self._used(key) <= 0:
                self._taken.difference_update(self._anchors.pop(key).volumes)

    def _used(self, claim: Key) -> int:
        """How many pods use it."""
        there = 0 if self._bare else sum(self.storage.users.get(claim, {}).values())
        return there + self._users.get(claim, 0)

    def _tally(self, slot: int) -> Tally:
        """What counts as attached there now."""
        found = self._tallies.get(slot)
        if found is None:
            base = NONE_ATTACHED if self._bare else self.storage.tally(slot)
            shifts = self._shifts.get(slot, {})
            if any(count < 0 for count in shifts.values()):
                held = {} if self._bare else dict(self.storage.on.get(slot, {}))
                for needs, count in shifts.items():
                    held[needs] = held.get(needs, 0) + count
                found = self.storage.tally_of(held, base.left)
            else:
                found = base
                for needs, count in shifts.items():
                    found = found.plus(self.storage.attaches(needs), count) if count else found
            self._tallies[slot] = found
        return found


def _joint(one: Ints, other: Ints) -> Ints:
    """A number for each pair of numbers."""
    names, number = np.unique(other, return_inverse=True)
    joint: Ints = one * len(names) + number
    return joint
