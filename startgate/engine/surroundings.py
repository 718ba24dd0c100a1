"""What other pods, host ports and volumes leave of the nodes to a pod, in a what-if that changes as it goes on.

The other half of a room: `fit` counts amounts, and asks here where amounts aren't all. What always holds: what was
added is undone by adding the same with the other sign; as long as nobody asks, adding costs next to nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from startgate.engine import wording
from startgate.engine.cluster import Cluster
from startgate.engine.company import Pick, Scratch
from startgate.engine.constraints import Arrangement, arrange, at_most, floored, most, obstacles
from startgate.engine.counts import Counts
from startgate.engine.nodes import Bools, Ints
from startgate.engine.ports import Ports, clash
from startgate.engine.topology import NONE
from startgate.engine.volumes import FREE, Allowed, Volumes
from startgate.model.shape import PodTerm, Shape, Spread, alike


class Surroundings:
    """Of one room. The cluster must not change while it is in use."""

    def __init__(self, cluster: Cluster, *, bare: bool = False) -> None:
        """`bare`: as if no pod were on any node."""
        self._cluster = cluster
        self._scratch = (cluster.company.bare() if bare else cluster.company).over()
        self._ports = Ports() if bare else cluster.ports.copy()
        self._nominees = {} if bare else cluster.nominees
        self._volumes = Volumes(cluster.storage, cluster.offers.shape[1], bare=bare)
        self._kept: Counts[Shape, int] = Counts()
        """By shape and slot: pods that room is kept for there and that aren't there yet."""
        self._moves: list[tuple[Shape, Ints, Ints]] = []
        """What has been added and nobody has asked about yet."""
        self._bearers = False
        """Whether pods were added that keep others away."""
        self.keeps_out = bool(self._scratch.company.crowd.terms)
        """Whether anybody is here, or is kept room for, who could keep out pods that ask for nothing of the kind."""

    def copy(self) -> "Surroundings":
        """Others that say the same; what is added to either isn't seen in the other."""
        twin = Surroundings.__new__(Surroundings)
        twin._cluster, twin._nominees = self._cluster, self._nominees
        twin._scratch, twin._ports = self._scratch.copy(), self._ports.copy()
        twin._volumes = self._volumes.copy()
        twin._kept = self._kept.copy()
        twin._moves, twin._bearers = list(self._moves), self._bearers
        twin.keeps_out = self.keeps_out
        return twin

    @classmethod
    def without_gangs(cls, cluster: Cluster) -> "Surroundings":
        """As they will be once gangs have ended, and what is being deleted is gone."""
        made = cls(cluster, bare=True)
        made._nominees = cluster.nominees
        for slot, shape, nominated in cluster.outsiders():
            if nominated:
                made._ports.add(shape, slot)
            else:
                made.add(shape, np.array([slot]), np.array([1]))
        return made

    def keep(self, shape: Shape, slots: Ints, counts: Ints) -> None:
        """Keeps away who would keep so many such pods away from these slots; negative: fewer of them.

        They are no company to anybody yet: who wants to be beside them has to wait until they are there.
        """
        self.keeps_out = self.keeps_out or shape.constrained
        for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
            self._kept.add(shape, slot, count)

    def add(self, shape: Shape, slots: Ints, counts: Ints) -> None:
        """As if so many more such pods were in each of these slots; negative: fewer."""
        self._moves.append((shape, slots, counts))
        if shape.apart:
            self._bearers = self.keeps_out = True

    def concern(self, shape: Shape) -> bool:
        """Whether such a pod's place depends on more than what the nodes have free."""
        return shape.constrained or (self.keeps_out and self._is_kept_out(shape))

    def _is_kept_out(self, shape: Shape) -> bool:
        company = self._scratch.company
        return (
            bool(company.crowd.terms and company.concerns(shape))
            or (self._bearers and self._moved().concerns(shape))
            or any(other.constrained and any(self._at_stake(shape, other)) for other in self._kept)
        )

    def kind(self, shape: Shape) -> Shape:
        """What all that have the same answers here have in common. Labels by which nobody here knows such pods, as the
        name of their Job, make no difference."""
        if not self.concern(shape):
            return shape.plain
        keys = self._unknown(shape)
        return self._alike(shape, keys) or shape if keys else shape

    def kinds(self, shapes: Sequence[Shape]) -> list[Shape]:
        """The same of those that one gang has, of which one may know another by labels that nobody else here knows:
        only where they all have the same value is it theirs alone."""
        known = [set(self._unknown(shape)) for shape in shapes]
        keys = tuple(
            key for key in sorted(set.intersection(*known)) if len({shape.label_map[key] for shape in shapes}) == 1
        )
        twins = [self._alike(shape, keys) for shape in shapes] if keys else []
        return [twin for twin in twins if twin is not None] if all(twins) and twins else list(shapes)

    def _unknown(self, shape: Shape) -> tuple[str, ...]:
        """Keys of its labels by which nobody here knows such pods."""
        rivals = {label for others in self._nominees.values() for other in others for label in other.labels}
        return tuple([key for key in self._moved().unheard(shape) if (key, shape.label_map[key]) not in rivals])

    def _alike(self, shape: Shape, keys: tuple[str, ...]) -> Shape | None:
        """What all have in common that differ in the values of these labels alone; None if it makes a difference."""
        scratch, rivals = self._moved(), {other for others in self._nominees.values() for other in others}
        twin, namespaces = alike(shape, keys), scratch.company.namespaces
        same = scratch.same(shape, twin) and all(
            term.picks(shape.namespace, shape.label_map, namespaces)
            == term.picks(shape.namespace, twin.label_map, namespaces)
            for other in rivals
            for term in other.apart
        )
        same = same and all(self._at_stake(shape, other) == self._at_stake(twin, other) for other in self._kept)
        return twin if same else None

    def most(self, shape: Shape, up_to: int, fits: Ints) -> int:
        """How many such pods can be placed, `fits` (by slot) as far as amounts and the nodes' own filters go; what is
        beyond `up_to` isn't looked for."""
        scratch, allowed = self._moved(), self._volumes.allows(shape)
        if allowed is not FREE:
            return self.arrange(shape, up_to, fits, self._cluster.ranks()).total
        return most(shape, up_to, caps=self.caps(shape, fits), nodes=self._cluster, scratch=scratch)

    def at_most(self, shape: Shape, up_to: int, fits: Ints) -> int:
        """No fewer than can be placed by whatever method; the rest as for `most`."""
        scratch, allowed = self._moved(), self._volumes.allows(shape)
        caps = _allowed(allowed, self.caps(shape, fits))
        return at_most(shape, min(up_to, allowed.most), caps=caps, nodes=self._cluster, scratch=scratch)

    def floored(self, shape: Shape) -> frozenset[Spread]:
        """Of its spreads those that count such pods and want more domains than there are."""
        return floored(shape, nodes=self._cluster, scratch=self._moved())

    def arrange(self, shape: Shape, count: int, fits: Ints, keys: Ints) -> Arrangement:
        """Places for so many of these pods, or for as many as there are; `keys`: by slot, which come first."""
        scratch, caps = self._moved(), self.caps(shape, fits)
        if self._volumes.allows(shape) is FREE:
            return arrange(shape, count, caps=caps, keys=keys, nodes=self._cluster, scratch=scratch)
        parts: list[Arrangement] = []
        # Volumes that one pod gets can be those that another would have got: what is left then is looked for anew.
        while (found := self._with_volumes(shape, count, caps, keys)).total:
            parts.append(found)
            count -= found.total
            np.subtract.at(caps, found.slots, found.counts)
            scratch.add(shape, found.slots.tolist(), found.counts.tolist())
        for part in parts:
            scratch.add(shape, part.slots.tolist(), (-part.counts).tolist())
            for slot, pods in zip(part.slots.tolist(), part.counts.tolist(), strict=True):
                self._volumes.give(shape, slot, pods)
        if not parts:
            return found
        slots, counts = (np.concatenate(columns) for columns in zip(*(part[:2] for part in parts), strict=True))
        return Arrangement(slots, counts, int(counts.sum()), steered=any(part.steered for part in parts))

    def _with_volumes(self, shape: Shape, count: int, caps: Ints, keys: Ints) -> Arrangement:
        """Those of the best arrangement that get their volumes; they have them from then on."""
        allowed = self._volumes.allows(shape)
        nothing = np.zeros(0, dtype=np.int64)
        best = Arrangement(nothing, nothing, 0, steered=False)
        for part in _parts(allowed, caps):
            count = min(count, allowed.most)
            found = arrange(shape, count, caps=part, keys=keys, nodes=self._cluster, scratch=self._scratch)
            if found.total > best.total:
                best = found
            if best.total >= count:
                break
        counts = np.array(self._volumes.take(shape, best.slots.tolist(), best.counts.tolist()), dtype=np.int64)
        steered = best.steered or allowed.domains is not None or not allowed.independent
        return Arrangement(best.slots[counts > 0], counts[counts > 0], int(counts.sum()), steered=steered)

    def caps(self, shape: Shape, fits: Ints) -> Ints:
        """By slot: how many such pods the node itself takes, whatever other nodes have."""
        caps = fits.copy()
        if shape.ports:
            self._moved()
            caps = np.minimum(caps, 1)
            caps[self._ports.blocked(shape)] = 0
        caps[self._rivals(shape)] = 0
        if self._kept:
            caps[self._withheld(shape)] = 0
        company = self._cluster.company
        for term in shape.apart:
            if term.picks(shape.namespace, shape.label_map, company.namespaces):
                labelled = company.topology.domains(term.topology_key, len(caps)).of != NONE
                caps[labelled] = np.minimum(caps[labelled], 1)
        return caps

    def _rivals(self, shape: Shape) -> list[int]:
        """Slots of nodes to which pods are on their way that it can't be beside."""
        return [
            slot
            for slot, others in self._nominees.items()
            if any(other.priority >= shape.priority and self._at_odds(shape, other, slot) for other in others)
        ]

    def _withheld(self, shape: Shape) -> Bools:
        """By slot: whether such a pod there would be in the way of pods that room is kept for."""
        closed = np.zeros(self._cluster.offers.shape[1], dtype=np.bool_)
        for other in self._kept:
            here = np.fromiter(self._kept[other], dtype=np.int64)
            stake = self._at_stake(shape, other)
            if stake.node:
                closed[here] = True
            for keys, outside in ((stake.inside, False), (stake.outside, True)):
                for key in keys:
                    of = self._cluster.company.topology.domains(key, len(closed)).of
                    closed |= np.isin(of, of[here][of[here] != NONE]) ^ outside
        return closed

    def _at_stake(self, shape: Shape, other: Shape) -> "_Stake":
        """Where a pod of the one shape would keep out a pod of the other that is to come."""
        namespaces = self._cluster.company.namespaces

        def picks(term: PodTerm, one: Shape) -> bool:
            return term.picks(one.namespace, one.label_map, namespaces)

        apart = [term.topology_key for term in other.apart if picks(term, shape)]
        apart += [term.topology_key for term in shape.apart if picks(term, other)]
        apart += [
            spread.topology_key
            for spread in other.spread
            if spread.selector is not None
            and other.namespace == shape.namespace
            and spread.selector.matches(shape.label_map)
        ]
        beside = other.together if all(picks(term, other) and picks(term, shape) for term in other.together) else ()
        return _Stake(clash(shape, other), tuple(apart), tuple(term.topology_key for term in beside))

    def obstacles(self, shape: Shape) -> Iterator[tuple[str, Bools]]:
        """What rules nodes out for one more such pod but for amounts, the nodes' own filters and volumes within reach:
        words that go on from "3 nodes …", and which slots. A node is ruled out by the first that has it."""
        slots = self._cluster.offers.shape[1]
        scratch = self._moved()
        for port in shape.ports:
            yield wording.port(port), _marked(slots, self._ports.taken(port))
        yield "with nominated pods that it can't be beside", _marked(slots, self._rivals(shape))
        yield "kept for pods that it can't be beside", self._withheld(shape)
        yield from obstacles(shape, nodes=self._cluster, scratch=scratch)
        yield from self._volumes.out_of_reach(shape)

    def volumes(self, shape: Shape) -> Allowed:
        """Where such pods can go by their volumes."""
        self._moved()
        return self._volumes.allows(shape)

    def volume_obstacle(self, shape: Shape, slot: int) -> str | None:
        """What of its volumes rules this node out for one more such pod, in words that go on from "3 nodes …"."""
        return self._volumes.why(shape, slot)

    def is_there(self, pick: Pick) -> bool:
        """Whether there are pods anywhere that it picks."""
        _, counts = self._moved().where(pick)
        return int(counts.sum()) > 0

    def _moved(self) -> Scratch:
        for shape, slots, counts in self._moves:
            self._scratch.add(shape, slots.tolist(), counts.tolist())
            if shape.ports or shape.claims or shape.ephemeral:
                self._occupy(shape, slots.tolist(), counts.tolist())
        self._moves = []
        return self._scratch

    def _occupy(self, shape: Shape, slots: list[int], counts: list[int]) -> None:
        for slot, count in zip(slots, counts, strict=True):
            self._ports.add(shape, slot, count)
            if count > 0:
                self._volumes.put(shape, slot, count)
            else:
                self._volumes.give(shape, slot, -count)

    def _at_odds(self, shape: Shape, other: Shape, slot: int) -> bool:
        """Whether a pod that is on its way to this node may rule it out. kube-scheduler counts it there and nowhere
        else; careful for topology spread, which it only may."""
        namespaces, topology = self._cluster.company.namespaces, self._cluster.company.topology
        apart = [term for term in shape.apart if term.picks(other.namespace, other.label_map, namespaces)]
        apart += [term for term in other.apart if term.picks(shape.namespace, shape.label_map, namespaces)]
        return any(topology.value(term.topology_key, slot) is not None for term in apart) or any(
            spread.selector is not None
            and other.namespace == shape.namespace
            and spread.selector.matches(other.label_map)
            for spread in shape.spread
        )


class _Stake(NamedTuple):
    """Where pods of one kind are in the way of those of another."""

    node: bool
    """On the same node."""
    inside: tuple[str, ...]
    """In the same domain of each of these labels."""
    outside: tuple[str, ...]
    """In any other domain of these: the others have to be together with such pods."""


def _marked(slots: int, which: Iterable[int]) -> Bools:
    marks = np.zeros(slots, dtype=np.bool_)
    marks[list(which)] = True
    return marks


def _allowed(allowed: Allowed, caps: Ints) -> Ints:
    """What the nodes take by their volumes too."""
    caps = caps if allowed.mask is None else caps * allowed.mask
    return caps if allowed.caps is None else np.minimum(caps, allowed.caps)


def _parts(allowed: Allowed, caps: Ints) -> Iterator[Ints]:
    """The same by volumes; of domains that can't be mixed, one at a time, largest first."""
    caps = _allowed(allowed, caps)
    if allowed.domains is None or allowed.most < 2:
        yield caps
        return
    names, of = np.unique(allowed.domains, return_inverse=True)
    room = np.bincount(of, weights=caps, minlength=len(names))
    for each in np.argsort(-room, kind="stable").tolist():
        yield np.where(of == each, caps, 0)
