"""Where pods of one shape may go when other pods have a say in it: inter-pod affinity, anti-affinity, topology spread.

kube-scheduler's filters InterPodAffinity and PodTopologySpread (default configuration; 1.37). What always holds:

* What `arrange` gives can be bound in its order, one pod after the other: each is let in with those before it there.
* It is as many as can be placed by whatever method under one constraint that the pods themselves change (one spread, or
  anti-affinity to itself, or affinity to itself), together with any number of those that they don't (about others, or
  of others), and under a spread with anti-affinity to itself by node, or by what lies within the domains of the spread.
* Under several spreads it has been so wherever the domains of one lie within those of the next, as racks do in zones.
* Under others, it may be fewer than a cleverer search would find: a few orders are tried (`filling`), and, for affinity
  to itself together with limits, a few domains.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace

from startgate.engine import wording
from startgate.engine.company import Pick, Scratch, Where
from startgate.engine.filling import fill
from startgate.engine.filters import Demand
from startgate.engine.limits import ALL, Apart, Limit, Skew, single
from startgate.engine.nodes import Bools, Ints, Nodes
from startgate.engine.topology import NONE, Domains
from startgate.model.shape import PodTerm, Shape, Spread
from startgate.model.taints import Toleration, untolerated

TRIES: Final = 64
"""For affinity to itself: so many domains are tried, those that the pods would leave the least room in first."""

T = TypeVar("T")

TOLERANT: Final = (Toleration(operator="Exists"),)


class Arrangement(NamedTuple):
    """Pods in the order in which they can be bound."""

    slots: Ints
    """A slot may come more than once."""
    counts: Ints
    """Pods, one after the other, in the slot of the same place."""
    total: int
    steered: bool
    """Whether pods that were left to find their own nodes, with nobody else about, could end up where the rest of them
    has no place: kube-scheduler has to be told the nodes."""


def arrange(shape: Shape, count: int, *, caps: Ints, keys: Ints, nodes: Nodes, scratch: Scratch) -> Arrangement:
    """Places for so many pods, or for as many as there are.

    `caps`: by slot, how many of them the node takes as far as the pods themselves go (resources, node filters, ports,
    volumes). `keys`: by slot, which nodes come first where there is a choice: lower ones.
    """
    ground = _Ground(shape, caps, nodes, scratch)
    best = np.zeros((0, 2), dtype=np.int64)
    total = 0
    for part in ground.parts(count, keys):
        if total >= count:
            break
        if part.room <= total:
            continue
        found = np.array(fill(part.caps, keys, part.limits, count), dtype=np.int64).reshape(-1, 2)
        if int(found[:, 1].sum()) > total:
            best, total = found, int(found[:, 1].sum())
    return Arrangement(best[:, 0], best[:, 1], total, ground.steered())


def most(shape: Shape, up_to: int, *, caps: Ints, nodes: Nodes, scratch: Scratch) -> int:
    """How many such pods can be placed; what is beyond `up_to` isn't looked for. As exact as `arrange`."""
    ground = _Ground(shape, caps, nodes, scratch)
    best = 0
    for part in ground.parts(up_to, nodes.ranks()):
        if best >= up_to or part.room <= best:
            continue
        known = part.most()
        if known is None:
            known = sum(pods for _, pods in fill(part.caps, nodes.ranks(), part.limits, up_to))
        best = max(best, known)
    return min(best, up_to)


def at_most(shape: Shape, up_to: int, *, caps: Ints, nodes: Nodes, scratch: Scratch) -> int:
    """No fewer than can be placed by whatever method, each limit looked at for itself; what is beyond `up_to` isn't
    looked for."""
    parts = _Ground(shape, caps, nodes, scratch).parts(ALL, nodes.ranks())
    found = max((min([part.room, *(limit.most(part.caps) for limit in part.limits)]) for part in parts), default=0)
    if len(parts) == TRIES:
        found = max(found, parts[-1].room)  # those that aren't among the parts have no more than that
    return min(found, up_to)


def floored(shape: Shape, *, nodes: Nodes, scratch: Scratch) -> frozenset[Spread]:
    """Of the spreads that such pods have a part in, those that want more domains than there are (minDomains)."""
    if not any(each.min_domains > 1 for each in shape.spread):
        return frozenset()
    ground = _Ground(shape, np.ones(nodes.offers.shape[1], dtype=np.int64), nodes, scratch)
    return frozenset(ground.floored)


def obstacles(shape: Shape, *, nodes: Nodes, scratch: Scratch) -> list[tuple[str, Bools]]:
    """What other pods rule out for one more such pod, in the order in which it is looked at: in words that go on from
    "3 nodes …", and by slot. A node is ruled out by the first that has it; by none, if the pod may go there."""
    notes: list[tuple[str, Bools]] = []
    _Ground(shape, np.ones(nodes.offers.shape[1], dtype=np.int64), nodes, scratch, notes)
    return notes


def pinnable(shape: Shape) -> bool:
    """Whether such pods can be kept to a node of their own by their node selector.

    A spread counts the nodes that the pod's node selector lets it go to, by its nodeAffinityPolicy: one that wants more
    domains than are left then takes the emptiest for empty.
    """
    return not any(each.honors_affinity and each.min_domains > 1 for each in shape.spread)


def spreads_itself(shape: Shape) -> bool:
    """Whether such pods are among those that they want to be spread with."""
    return any(each.selector is not None and each.selector.matches(shape.label_map) for each in shape.spread)


def crowd(where: Mapping[Shape, Mapping[Any, int]]) -> bool:
    """Whether pods of one gang, reserved all at once, would keep one another away. `where`: by shape, how many on each
    node.

    kube-scheduler counts pods nominated to a node as being there, and on no other node: of several on one node each
    would see a skew that the others, in their turn, make good. Without a reservation they come one by one.
    """
    for shape in where:
        for spread in shape.spread:
            counted = [
                nodes
                for other, nodes in where.items()
                if spread.selector is not None
                and other.namespace == shape.namespace
                and spread.selector.matches(other.label_map)
            ]
            if sum(sum(nodes.values()) for nodes in counted) > len({node for nodes in counted for node in nodes}):
                return True
    return False


class _Part(NamedTuple):
    """Nodes that the pods may have together."""

    caps: Ints
    limits: list[Limit]
    room: int
    """No more than so many pods."""

    def most(self) -> int | None:
        """How many pods fit, where that needs no trying."""
        if not self.limits:
            return self.room
        return self.limits[0].most(self.caps) if len(self.limits) == 1 else None


class _Ground:
    """The nodes as they are for such pods: what existing pods leave of them, and the limits that remain."""

    def __init__(
        self,
        shape: Shape,
        caps: Ints,
        nodes: Nodes,
        scratch: Scratch,
        notes: list[tuple[str, Bools]] | None = None,
    ) -> None:
        """`notes`: where to write down what closes nodes, for who wants to know."""
        self.shape = shape
        self.nodes = nodes
        self.scratch = scratch
        self.caps = np.maximum(caps, 0)
        self.notes = notes
        self.limits: list[Limit] = []
        self.floored: list[Spread] = []
        """Spreads among the limits that want more domains than there are."""
        self.groups: Ints | None = None
        """By slot: pods are to be in one and the same of these (affinity to itself); -1: none of them."""
        for key, where in scratch.against(shape).items():
            domains = self._domains(key)
            self._close(domains, _sums(domains, where) > 0)
            self._note(self._kept_away, key)
        self._keep_apart()
        self._spread()
        self._keep_together()
        self._one_a_node()

    def parts(self, count: int, keys: Ints) -> list[_Part]:
        """Alternatives, the best first: where all of so many pods may go with the least room left."""
        if self.groups is None:
            return [_Part(self.caps, self.limits, int(self.caps.sum()))]
        slots = np.flatnonzero((self.caps > 0) & (self.groups != NONE))
        names, group = np.unique(self.groups[slots], return_inverse=True)
        room = np.zeros(len(names), dtype=np.int64)
        np.add.at(room, group, self.caps[slots])
        first = np.full(len(names), np.iinfo(np.int64).max)
        np.minimum.at(first, group, keys[slots])
        order = np.lexsort((first, np.where(room >= count, room, -room), room < count))
        return [
            _Part(np.where(self.groups == names[each], self.caps, 0), self.limits, int(room[each]))
            for each in order[:TRIES].tolist()
        ]

    def steered(self) -> bool:
        """Whether it matters for the number of pods which of the nodes that let one in it goes to."""
        if len(self.limits) > 1:
            return True
        return self.groups is not None and len(np.unique(self.groups[(self.caps > 0) & (self.groups != NONE)])) > 1

    def _domains(self, key: str) -> Domains:
        return self.scratch.company.topology.domains(key, len(self.caps))

    def _close(self, domains: Domains, full: Bools) -> None:
        self.caps[np.append(full, False)[domains.of]] = 0

    def _note(self, words: Callable[[T], str], about: T, closed: Bools | None = None) -> None:
        """Writes down what has just closed nodes (all that are closed by now, if not said which)."""
        if self.notes is not None:
            self.notes.append((words(about), self.caps == 0 if closed is None else closed))

    def _kept_away(self, key: str) -> str:
        return wording.kept_away(key, self.scratch.keepers(self.shape)[key], self.shape)

    def _keep_apart(self) -> None:
        """Anti-affinity of such pods, against those that are there and among themselves."""
        own = set()
        for term in self.shape.apart:
            domains = self._domains(term.topology_key)
            self._close(domains, _sums(domains, self.scratch.where(Pick((_bare(term),)))) > 0)
            self._note(wording.apart, term)
            if self._picks_itself(term):
                own.add(term.topology_key)
        self.limits += [Apart(self._domains(key).of) for key in sorted(own)]

    def _keep_together(self) -> None:
        """Affinity: one and the same pod must meet all terms.

        Where there is none anywhere, pods that meet their own may begin on any node that has all the labels, and the
        others have to follow the first.
        """
        terms = self.shape.together
        if not terms:
            return
        pairs = [self._domains(term.topology_key) for term in terms]
        for term, domains in zip(terms, pairs, strict=True):
            self.caps[domains.of == NONE] = 0
            self._note(wording.unlabelled, (term.topology_key,))
        where = self.scratch.where(Pick(tuple(_bare(term) for term in terms)))
        there = [_sums(domains, where) > 0 for domains in pairs]
        if any(bool(each.any()) for each in there):
            for domains, here in zip(pairs, there, strict=True):
                self._close(domains, ~here)
        elif all(self._picks_itself(term) for term in terms):
            self.groups = _combined([domains.of for domains in pairs])
        else:
            self.caps[:] = 0
        self._note(wording.together, terms)

    def _spread(self) -> None:
        """Topology spread: nodes are looked at only where they have the labels of all constraints."""
        all_domains = [self._domains(each.topology_key) for each in self.shape.spread]
        labelled = np.ones(len(self.caps), dtype=np.bool_)
        for domains in all_domains:
            labelled &= domains.of != NONE
        self._note(wording.unlabelled, [each.topology_key for each in self.shape.spread], ~labelled)
        for each, domains in zip(self.shape.spread, all_domains, strict=True):
            # Nodes that it doesn't look at are closed to the pod anyway: by the very filters that rule them out.
            looked_at = labelled & self._included(each)
            self.caps[~looked_at] = 0
            if each.selector is None or not (each.selector.match_labels or each.selector.match_expressions):
                continue  # picks nobody, or (kube-scheduler's exception) counts nobody
            term = PodTerm("", each.selector, (self.shape.namespace,))
            slots, pods = self.scratch.where(Pick((term,), staying=True))
            inside = looked_at[slots]
            counts = _sums(domains, (slots[inside], pods[inside]))
            limit = Skew(domains, np.unique(domains.of[looked_at]), counts, each.max_skew, each.min_domains)
            own = each.selector.matches(self.shape.label_map)
            full = counts + own - limit.least > each.max_skew
            self._note(wording.spread, each, np.append(full, False)[domains.of])
            if own:
                self.limits.append(limit)
                self.floored += [each] if limit.floored else []
            else:
                self._close(domains, full)

    def _included(self, spread: Spread) -> Bools:
        shape = self.shape
        included = np.ones(len(self.caps), dtype=np.bool_)
        if spread.honors_affinity and (shape.node_selector or shape.affinity is not None):
            included &= self.nodes.matching(Demand("", TOLERANT, shape.node_selector, shape.affinity))
        if spread.honors_taints:
            for slot, known in enumerate(self.nodes.facts):
                # Taints alone: that a node is unschedulable isn't asked here.
                if known is not None and known.taints and untolerated(shape.tolerations, known.taints) is not None:
                    included[slot] = False
        return included

    def _one_a_node(self) -> None:
        """Anti-affinity to itself where each node is a domain of its own needs no keeping count."""
        slots = np.flatnonzero(self.caps > 0)
        alone = [limit for limit in self.limits if isinstance(limit, Apart) and single(limit, slots)]
        if alone:
            self.caps = np.minimum(self.caps, 1)
            self.limits = [limit for limit in self.limits if limit not in alone]

    def _picks_itself(self, term: PodTerm) -> bool:
        return term.picks(self.shape.namespace, self.shape.label_map, self.scratch.company.namespaces)


def _bare(term: PodTerm) -> PodTerm:
    return replace(term, topology_key="")


def _sums(domains: Domains, where: Where) -> Ints:
    """How many pods there are in each domain."""
    slots, pods = where
    of = domains.of[slots]
    sums = np.zeros(domains.size, dtype=np.int64)
    np.add.at(sums, of[of != NONE], pods[of != NONE])
    return sums


def _combined(columns: list[Ints]) -> Ints:
    """By slot: a number for each combination of domains; -1 where one of them is missing."""
    missing = np.zeros(len(columns[0]), dtype=np.bool_)
    combined = np.zeros(len(columns[0]), dtype=np.int64)
    for of in columns:
        missing |= of == NONE
        combined = np.unique(combined * (int(of.max(initial=0)) + 2) + of + 1, return_inverse=True)[1]
    combined[missing] = NONE
    return combined
