"""Which nodes take pods by their volumes, and how many: a scratch over `Storage`, to be used up and given back.

What always holds: where `take` says so many, kube-scheduler can bind them there one after the other, each to the node
that it is given; a no may be careful in these cases only:

* Pods that share a claim without a volume: it gets one on the first one's node, and from where the others can use that
  is known as far as the CSI driver says so (CSINode's topologyKeys), or as the volumes that exist do. They are kept to
  nodes that are sure to share it, those of one `domain`.
* Volumes of one size that can be used from different nodes: kube-scheduler takes any of them, so one of each kind
  counts as taken.
* A volume is free again when the API server says so, not when the pod that has it gives way.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from startgate.engine.catalogue import UNLIMITED, Key
from startgate.engine.claims import NOTHING, Needs, Offers, Plan, Wish, attached_by, needs_of
from startgate.engine.nodes import Bools, Ints
from startgate.engine.storage import Storage, Tally
from startgate.model.shape import Shape
from startgate.model.storage import Volume


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

ENOUGH: Final = 512
"""Pods on one node whose volumes are looked for at a time, where that takes a search; more than a kubelet takes."""


class _Anchor(Struct, frozen=True, eq=False):
    """A claim that has got its volume in this scratch."""

    mask: Bools
    """Where it can be used from then on."""
    volumes: tuple[str, ...] = ()
    """The volume that it has got, or may have."""


class _Pick(NamedTuple):
    """What a claim gets on a node."""

    wish: Wish
    volume: Volume | None
    """None: one is made for it."""
    tied: bool = False
    """Whether it may as well be one that other nodes can use."""


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
        placed = []
        for slot, count in zip(slots, counts, strict=True):
            got = min(count, self._fits(needs, slot))
            got = self._bind(needs, slot, got) if got > 0 else 0
            self._shift(needs, slot, got)
            placed.append(got)
        return placed

    def put(self, shape: Shape, slot: int, count: int) -> None:
        """As if these pods were there too, whether or not there is room."""
        needs = needs_of(shape)
        if needs is not NOTHING:
            self._bind(needs, slot, count)
            self._shift(needs, slot, count)

    def give(self, shape: Shape, slot: int, count: int) -> None:
        """As if these pods were gone: first those that had their volumes from here, which are free again then."""
        needs = needs_of(shape)
        if needs is NOTHING:
            return
        had, volumes = self._bound.pop((slot, needs), (0, ()))
        self._taken.difference_update(volumes)
        self._shift(needs, slot, -count)
        if had > count:
            self._bind(needs, slot, had - count)

    def why(self, shape: Shape, slot: int) -> str | None:
        """What keeps one such pod from this node, in words that go on from "3 nodes …"; None: its volumes don't."""
        needs = needs_of(shape)
        if needs is NOTHING:
            return None
        plan = self.storage.plan(needs)
        for rule in plan.rules:
            if not rule.mask[slot]:
                return rule.words
        for name in needs.claims:
            anchor = self._anchors.get((needs.namespace, name))
            if anchor is not None and not anchor.mask[slot]:
                return f"that can't reach the volume of claim {name}"
        shared = self._open(plan)
        for wish in (*shared, *plan.own):
            if self._pick(wish, slot, set()) is None:
                return f"without a volume for {wish.name}"
        if not self._steps(shared, plan.own, slot, 1):
            return "with too few volumes for all that the pod asks for"
        full = self._full(needs, slot)
        return f"with no more volumes of {full} to attach" if full else None

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
        masks = [rule.mask for rule in plan.rules]
        masks += [anchor.mask for anchor in self._held(needs)]
        shared = self._open(plan)
        caps = self._attachable(needs)
        domains = None
        if shared or plan.own:
            findable, domains = self._findable(shared, plan.own)
            caps = findable if caps is None else np.minimum(caps, findable)
        return Allowed(
            mask=np.logical_and.reduce(masks) if masks else None,
            caps=caps,
            most=most,
            domains=domains,
            independent=not any(self._offers(wish) for wish in (*shared, *plan.own)),
            obstacle=obstacle,
        )

    def _nowhere(self, obstacle: str) -> Allowed:
        return Allowed(mask=np.zeros(self.storage.width, dtype=np.bool_), most=0, obstacle=obstacle)

    def _held(self, needs: Needs) -> list[_Anchor]:
        """Of their claims those that have got a volume here."""
        keys = ((needs.namespace, name) for name in needs.claims)
        return [self._anchors[key] for key in keys if key in self._anchors]

    def _open(self, plan: Plan) -> tuple[Wish, ...]:
        """Of the claims that these pods share, those that still have no volume."""
        return tuple(wish for wish in plan.shared if wish.claim not in self._anchors)

    def _attachable(self, needs: Needs) -> Ints | None:
        """By slot, how many such pods can have their volumes attached; None: any number everywhere."""
        shared, each = attached_by(needs, self.storage)
        caps: Ints | None = None
        for driver in sorted({driver for driver, _ in shared} | set(each)):
            limits = self.storage.limits(driver)
            if not (limits < UNLIMITED).any():
                continue
            free = limits.copy() if self._bare else limits - self.storage.attached(driver)
            fresh = np.zeros(len(free), dtype=np.int64)
            for volume in (volume for volume in shared if volume[0] == driver):
                fresh += 1
                fresh[[] if self._bare else list(self.storage.where(volume))] -= 1
            for slot in self._shifts:
                tally = self._tally(slot)
                free[slot] = limits[slot] - tally.counts.get(driver, 0)
                fresh[slot] = sum(volume[0] == driver and volume not in tally.shared for volume in shared)
            # What is there already needs no more room: a node that is beyond its limit takes such pods all the same.
            once = np.where((fresh == 0) | (fresh <= free), UNLIMITED, 0)
            room = np.maximum(free - fresh, 0) // each[driver] if each[driver] else once
            caps = room if caps is None else np.minimum(caps, room)
        return caps

    def _fits(self, needs: Needs, slot: int) -> int:
        """How many such pods the slot takes, volumes that are to be found for them aside."""
        plan = self.storage.plan(needs)
        if plan.obstacle or not all(rule.mask[slot] for rule in plan.rules):
            return 0
        if not all(anchor.mask[slot] for anchor in self._held(needs)):
            return 0
        most = UNLIMITED
        if plan.alone:
            most = 0 if any(self._used((needs.namespace, name)) for name in plan.alone) else 1
        shared, each = attached_by(needs, self.storage)
        tally = self._tally(slot)
        for driver in {driver for driver, _ in shared} | set(each):
            fresh = sum(volume[0] == driver and volume not in tally.shared for volume in shared)
            free = int(self.storage.limits(driver)[slot]) - tally.counts.get(driver, 0)
            if each[driver]:
                most = min(most, max(free - fresh, 0) // each[driver])
            elif fresh > max(free, 0):
                most = 0
        return most

    def _full(self, needs: Needs, slot: int) -> str:
        """A driver of whose volumes the node can attach too few for one more such pod; "" if there is none."""
        shared, each = attached_by(needs, self.storage)
        tally = self._tally(slot)
        fresh = Counter(driver for driver, which in shared if (driver, which) not in tally.shared)
        fresh.update(each)
        for driver, count in sorted(fresh.items()):
            if tally.counts.get(driver, 0) + count > int(self.storage.limits(driver)[slot]):
                return driver
        return ""

    def _findable(self, shared: Sequence[Wish], own: Sequence[Wish]) -> tuple[Ints, Ints | None]:
        """By slot: how many pods can get the volumes that their claims lack, and which domain it is in."""
        wishes = [*shared, *own]
        made = np.logical_and.reduce([wish.made_at for wish in wishes])
        caps = np.where(made, UNLIMITED, 0)
        some = [self._offers(wish) for wish in wishes if self._offers(wish)]
        domains = [wish.segments.copy() for wish in shared]
        if some and len(wishes) == 1 and own:
            caps = np.where(made, UNLIMITED, self._left(some[0]))
        elif some:
            where = np.logical_or.reduce([offers.somewhere for offers in some])
            numbers: dict[str, int] = {}
            for slot in np.flatnonzero(where if shared else where & ~made).tolist():
                endless = all(wish.made_at[slot] for wish in own)
                steps = self._steps(shared, own, slot, 1 if endless else ENOUGH)
                caps[slot] = UNLIMITED if steps and endless else len(steps)
                for pick in steps[0] if steps else ():
                    if pick.volume is not None and pick.wish in shared:
                        number = self.storage.width + numbers.setdefault(pick.volume.name, len(numbers))
                        follows = self._anchor(pick, slot).mask[slot]
                        domains[shared.index(pick.wish)][slot] = number if follows and not pick.tied else -slot - 1
                        if not follows:
                            caps[slot] = 1
        joint: Ints | None = None
        for column in domains:
            both = np.stack([column if joint is None else joint, column], axis=1)
            joint = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)
        return caps, joint

    # --- which volumes they get -------------------------------------------------------------------------------------

    def _offers(self, wish: Wish) -> Offers:
        return wish.ever if self._bare else wish.now

    def _left(self, offers: Offers) -> Ints:
        """By slot, how many of these volumes nobody has got here."""
        left = offers.counts.copy()
        for name in self._taken & offers.group_of.keys():
            reach = offers.reach[offers.group_of[name]]
            left[slice(None) if reach is None else reach] -= 1
        return left

    def _pick(self, wish: Wish, slot: int, spent: set[str]) -> _Pick | None:
        """What this claim gets there: the smallest volume that will do, else one that is made; None: nothing.

        A volume that is kept for it is taken before any other, and where it can't be used no other is.
        """
        offers = self._offers(wish)
        gone = self._taken | spent
        if offers.kept is not None and offers.kept_mask is not None:
            firsts = [offers.kept] if offers.kept_mask[slot] and offers.kept.name not in gone else []
        else:
            firsts = [
                volume
                for group in offers.at(slot)
                if (volume := next((each for each in offers.groups[group] if each.name not in gone), None)) is not None
            ]
        best = min(firsts, key=lambda each: (each.capacity, each.name), default=None)
        if best is None:
            return _Pick(wish, None) if wish.made_at[slot] else None
        return _Pick(wish, best, sum(each.capacity == best.capacity for each in firsts) > 1)

    def _steps(self, shared: Sequence[Wish], own: Sequence[Wish], slot: int, count: int) -> list[list[_Pick]]:
        """What the claims of one pod after the other get there, so many at most: as kube-scheduler goes about it, the
        smallest claim of a pod first, what is shared with the first pod."""
        spent: set[str] = set()
        steps: list[list[_Pick]] = []
        while len(steps) < count:
            wishes = own if steps else sorted((*shared, *own), key=lambda wish: wish.size)
            picks = []
            for wish in wishes:
                pick = self._pick(wish, slot, spent)
                if pick is None:
                    return steps
                if pick.volume is not None:
                    spent.add(pick.volume.name)
                picks.append(pick)
            steps.append(picks)
        return steps

    def _bind(self, needs: Needs, slot: int, count: int) -> int:
        """Gives volumes to so many pods, or as many as there are volumes for; returns how many."""
        plan = self.storage.plan(needs)
        shared = self._open(plan)
        if not shared and not plan.own:
            return count
        offered = any(self._offers(wish) for wish in (*shared, *plan.own))
        steps = self._steps(shared, plan.own, slot, count if offered else 1)
        if not steps:
            return 0
        got = len(steps) if offered else count
        for pick in steps[0]:
            if pick.wish.claim is not None:
                anchor = self._anchors[pick.wish.claim] = self._anchor(pick, slot)
                self._taken.update(anchor.volumes)
                if not anchor.mask[slot]:
                    got = 1
        volumes: list[str] = []
        for wish in plan.own:
            volumes += self._spent([pick for picks in steps[:got] for pick in picks if pick.wish is wish], slot)
        if plan.own:
            had, before = self._bound.get((slot, needs), (0, ()))
            self._bound[slot, needs] = (had + got, (*before, *volumes))
            self._taken.update(volumes)
        return got

    def _anchor(self, pick: _Pick, slot: int) -> _Anchor:
        """What becomes of a claim that gets this there. The pods after the first one see the zone of its volume too."""
        wish, storage = pick.wish, self.storage
        if pick.volume is None:
            return _Anchor(wish.segments == wish.segments[slot])
        volumes = self._spent([pick], slot)
        return _Anchor(
            np.logical_and.reduce([storage.usable(storage.volumes[name]) for name in volumes]), tuple(volumes)
        )

    def _spent(self, picks: Sequence[_Pick], slot: int) -> list[str]:
        """The volumes that these picks of one wish take; of those that are tied, as many of each group, since it may be
        any of them."""
        volumes = [pick.volume for pick in picks if pick.volume is not None]
        spent = [volume.name for volume in volumes]
        for size in {pick.volume.capacity for pick in picks if pick.volume is not None and pick.tied}:
            offers = self._offers(picks[0].wish)
            taken = Counter(offers.group_of[volume.name] for volume in volumes if volume.capacity == size)
            for group in offers.at(slot):
                gone = self._taken | set(spent)
                rest = (v.name for v in offers.groups[group] if v.capacity == size and v.name not in gone)
                spent += islice(rest, taken.total() - taken[group])
        return spent

    # --- who is there -----------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Pods that have a node and no volumes yet get theirs before anybody else."""
        names = self.storage.names
        known = [(needs, slot) for needs, slot in self.storage.unsettled if slot in names]
        for needs, slot in sorted(known, key=lambda each: (names[each[1]], repr(each[0]))):
            self._bind(needs, slot, self.storage.unsettled[needs, slot])

    def _shift(self, needs: Needs, slot: int, count: int) -> None:
        if not count:
            return
        held = dict(self._shifts.get(slot, {}))
        held[needs] = held.get(needs, 0) + count
        self._shifts[slot] = held
        self._tallies.pop(slot, None)
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
        found = self._tallies.get(slot)
        if found is None:
            held = {} if self._bare else dict(self.storage.on.get(slot, {}))
            for needs, count in self._shifts.get(slot, {}).items():
                held[needs] = held.get(needs, 0) + count
            there = {needs: count for needs, count in held.items() if count > 0}
            found = self._tallies[slot] = self.storage.tally(slot, there, bare=self._bare)
        return found
