"""From the facts of one gang to what the World has of it: claims, what it asks for, what it would free.

The controller and the simulator both call this, so that the same facts give the same World. What always holds: a pod
is in one place of the World (on a node, in a claim, or in what a gang asks for); work under way counts as done, so
that no second decision can spend the same room; pods that leave are never counted as what a gang still has.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from startgate.engine.cluster import Cluster
from startgate.engine.lifecycle import Do, Grant, Standing, wanted_slots
from startgate.engine.observe import Facts, amounts_of, batches, charged
from startgate.engine.within import most_of
from startgate.engine.world import Batch, Claim, ClaimKind, Holder, Placement, Waiting, Within
from startgate.model.gang import Phase
from startgate.model.pods import Pod
from startgate.model.queue import QueueSpec
from startgate.model.reasons import Code, Reason, reason
from startgate.model.resources import Amounts, add
from startgate.model.shape import Shape


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One gang as it is put into the World."""

    facts: Facts
    standing: Standing
    grant: Grant | None = None
    """The admission that holds, or that is being recorded."""
    since: float
    """Epoch seconds from which it waits; a gang that was taken back keeps its age."""
    flying: Mapping[str, str] = {}
    """Pods whose gate is being lifted right now: by uid the node on which room is reserved, or "" where none is."""
    under_way: bool = False
    """Whether something is being done with it. Telling others to give way for it doesn't count: it goes on asking."""
    leaves: bool = False
    """Whether its Job is being suspended right now, so that all of its pods are on their way out."""
    going: frozenset[str] = frozenset()
    """Pods (uids) that are being evicted right now."""
    rests: bool = False
    """After a refused write: it isn't tried again for a moment."""
    spared: bool = False
    """After something kept it from giving way: it isn't told again for a while."""
    victims: tuple[str, ...] = ()
    """Gangs that were told to give way for it, and aren't gone yet."""
    near: str | None = None
    """The value of the label `facts.prefer_topology` on the nodes of most of its pods (`near`)."""


def charge(member: Member) -> Amounts:
    """What its queue pays for it: all pods past the gate, and those that are passing it."""
    facts = member.facts
    passing = [pod for pod in facts.gated if pod.uid in member.flying]
    return add(charged(facts), amounts_of(batches(passing))) if passing else charged(facts)


def found_in(facts: Facts, cluster: Cluster) -> dict[str, str]:
    """For the record of a gang whose pods have passed without one: where they are, if they have to be in one domain."""
    value = _stands_in(facts.topology, (*facts.pending, *facts.bound), cluster) if facts.topology else None
    return {} if value is None else {facts.topology: value}


def near(facts: Facts, cluster: Cluster) -> str | None:
    """The value that most of its pods have of the label of which they should have one."""
    prefer = facts.prefer_topology
    return _stands_in(prefer, (*facts.pending, *facts.bound), cluster) if prefer else None


def _stands_in(key: str, pods: Iterable[Pod], cluster: Cluster) -> str | None:
    """The value of this node label that most of these pods have: by the nodes on which they are, or by what keeps them
    to such nodes. None where none of them has any."""
    counts: Counter[str] = Counter()
    for pod in pods:
        slot = cluster.slots.get(pod.node) if pod.node else None
        if slot is not None:
            value = cluster.company.topology.value(key, slot)
        else:
            value = dict(pod.shape.node_selector).get(key)
        if value is not None:
            counts[value] += 1
    return most_of(counts)


def _stays_in(member: Member) -> Within | None:
    """Where pods have to go, or should, that are in the gang's admission: as it was decided then, whatever its owner
    says by now."""
    assert member.grant is not None
    prefer = member.facts.prefer_topology
    key, value = next(iter(member.grant.node_selector.items()), ("", None))
    return Within(key=key, value=value, prefer=prefer, near=member.near) if key or prefer else None


def _starts_in(facts: Facts) -> Within | None:
    """What its owner asks for."""
    key, prefer = facts.topology, facts.prefer_topology
    return Within(key=key, prefer=prefer) if key or prefer else None


def claims(member: Member) -> tuple[Claim, ...]:
    """The admitted pods without a node, by how far each has come."""
    return tuple(_claims(member))


def _claims(member: Member) -> Iterator[Claim]:
    facts, flying, grant = member.facts, member.flying, member.grant
    if facts.outcome:
        return
    unbound = [pod for pod in facts.pending if not pod.nominated or pod.foreign_gates]
    passing = [pod for pod in facts.gated if pod.uid in flying]
    opening = [pod for pod in passing if not flying[pod.uid]]
    if grant is None:
        yield from _claim(member, ClaimKind.BIND, batches([*unbound, *opening]))
        return
    within = _stays_in(member)
    yield from _claim(member, ClaimKind.BIND, (*batches(unbound), *batches(opening, _must(within))))
    # Slots that the flight doesn't fill stay the gang's own while it is under way.
    need = wanted_slots(facts, grant) - facts.past - len(passing)
    here = [pod for pod in facts.gated if pod.uid not in flying][: max(0, need)]
    may_go = not (member.under_way or member.rests)
    if grant.gathering:
        made = _some(facts.template, need - len(here), within)
        if made or facts.suspended_by or not may_go:
            yield from _claim(member, ClaimKind.HOLD, (*batches(here, within), *made))
        else:
            yield from _claim(member, ClaimKind.GATHER, batches(here, within))
        return
    if facts.suspended_by or member.leaves or member.standing.do in (Do.PARK, Do.FORGET):
        return
    # A pod that leaves is charged until it is gone, and so is its slot: held twice, it would break the ceiling.
    paid = sum(not pod.gated for pod in facts.leaving)
    free = max(0, need - paid)
    yield from _claim(member, ClaimKind.FOLLOW if may_go else ClaimKind.HOLD, batches(here[:free], within))
    if may_go:
        yield from _claim(member, ClaimKind.REPLACE, batches(here[free:], within))
    yield from _claim(member, ClaimKind.HOLD, _some(facts.template, free - len(here), within))


def waiting(member: Member) -> Waiting | None:
    """The gang as one that asks to start, or the pods that would join it; None if it doesn't ask."""
    facts, grant = member.facts, member.grant
    if member.under_way or (member.rests and not member.victims):
        return None  # with victims it goes on asking, lest others be given what is held for it
    if member.standing.do is Do.DECIDE:
        within = _starts_in(facts)
        if facts.suspended_by:
            assert facts.template is not None
            minimum = _some(facts.template, facts.minimum, within)
            extra = _some(facts.template, facts.wanted - facts.minimum, within)
        else:
            minimum = batches(facts.gated[: facts.minimum], within)
            extra = batches(facts.gated[facts.minimum : facts.wanted], within)
    elif grant and not grant.gathering and member.standing.phase in (Phase.RELEASING, Phase.RUNNING):
        joining = facts.gated[max(0, grant.slots - facts.past) :]
        minimum, extra = (), batches(joining[: max(0, facts.wanted - grant.slots)], _stays_in(member))
    else:
        return None
    if not minimum and not extra:
        return None
    return Waiting(
        gang=facts.key,
        queue=facts.queue,
        namespace=facts.namespace,
        priority=facts.priority,
        since=member.since,
        minimum=minimum,
        extra=extra,
        preempts=facts.preempts,
        lasts=facts.lasts,
        victims=member.victims,
    )


def holder(member: Member, claimed: Iterable[Claim]) -> Holder | None:
    """What the gang holds and would free; None if it holds nothing. `claimed`: its claims."""
    facts = member.facts
    held = [_asks(claim) for claim in claimed if claim.kind not in (ClaimKind.BIND, ClaimKind.REPLACE)]
    passing = [pod for pod in facts.gated if pod.uid in member.flying]
    stays, leaves = _parted(member, [*facts.pending, *facts.bound, *passing])
    if not (stays or leaves or held):
        return None
    free = _is_free(member)
    return Holder(
        gang=facts.key,
        queue=facts.queue,
        priority=facts.priority,
        since=member.since,
        charge=add(amounts_of(batches(stays)), *held),
        pods=_placed(member, stays),
        takeable=free and facts.parkable,
        surplus=_surplus(member) if free else (),
        leaving=_placed(member, leaves),
        leaving_charge=amounts_of(batches(leaves)),
        ends=facts.ends,
    )


def victims_left(victims: tuple[str, ...], find: Callable[[str], Holder | None]) -> tuple[tuple[str, ...], bool]:
    """Who makes room for a claimant still, and whether any of them is leaving yet. `find`: what a gang holds.

    One that is gone before the others is a victim no more, though it starts again. The last ones stay victims when they
    are gone, so that the claimant comes before others then: until it has started, or the answer is that it can't.
    """
    leaving = tuple(victim for victim in victims if (held := find(victim)) and held.leaving_charge)
    return leaving or victims, bool(leaving)


def left_behind(uid: str, pods: Iterable[Pod]) -> Holder | None:
    """Pods of ours whose owner is gone: they leave, and are nobody's to take. `uid`: of that owner."""
    still = [pod for pod in pods if pod.queue and not pod.gated and not pod.ended]
    if not still:
        return None
    first = still[0]
    return Holder(
        gang=f"{first.namespace}/{uid}",
        queue=first.queue,
        priority=first.shape.priority,
        since=first.created,
        charge={},
        leaving=_placements((pod.shape, place) for pod in still if (place := _place(pod, {}))),
        leaving_charge=amounts_of(batches(still)),
    )


def _parted(member: Member, past: Iterable[Pod]) -> tuple[list[Pod], list[Pod]]:
    """Its charged pods: those that stay, and those that leave."""
    facts = member.facts
    leaves = [pod for pod in facts.leaving if not pod.gated]
    if member.leaves or facts.suspended_by or facts.outcome:
        return [], [*past, *leaves]
    stays: list[Pod] = []
    for pod in past:
        (leaves if pod.uid in member.going else stays).append(pod)
    return stays, leaves


def _is_free(member: Member) -> bool:
    """Whether something may be taken from it: it has started, and nothing else is to be done with it."""
    standing = member.standing
    started = standing.phase in (Phase.RUNNING, Phase.RELEASING) and standing.do is Do.NOTHING
    return started and not (member.under_way or member.leaves or member.rests or member.spared)


def _surplus(member: Member) -> tuple[Placement, ...]:
    """Highest completion index first. Not where pods are born without our gate: they would be back at once."""
    facts = member.facts
    may_go = facts.sheds and facts.ready_template and member.grant is not None
    beyond = max(0, len(facts.bound) - facts.minimum) if may_go else 0
    return tuple(Placement(pod.shape, ((pod.node, 1),)) for pod in surplus_pods(facts, beyond))


def surplus_pods(facts: Facts, count: int) -> tuple[Pod, ...]:
    """The pods that so many of Holder.surplus are."""
    return facts.bound[::-1][:count]


def _placed(member: Member, pods: Iterable[Pod]) -> tuple[Placement, ...]:
    return _placements((pod.shape, place) for pod in pods if (place := _place(pod, member.flying)))


def _place(pod: Pod, flying: Mapping[str, str]) -> str:
    """The node on which the cluster counts it (as the cache does), or ""."""
    if pod.node or pod.foreign_gates:
        return pod.node
    return flying.get(pod.uid, "") if pod.gated else pod.nominated


def _placements(where: Iterable[tuple[Shape, str]]) -> tuple[Placement, ...]:
    counts: dict[Shape, dict[str, int]] = {}
    for shape, node in where:
        nodes = counts.setdefault(shape, {})
        nodes[node] = nodes.get(node, 0) + 1
    return tuple(Placement(shape, tuple(nodes.items())) for shape, nodes in counts.items())


def not_admitted(facts: Facts, queue: QueueSpec | None, labels: Mapping[str, str] | None) -> Reason | None:
    """What the webhook checks at creation, and the queue may have changed since, or a pod have come another way; and
    what we can't tell of its pods.

    `labels`: of the gang's namespace; None where that isn't known.
    """
    if queue is None:
        return None
    highest = queue.max_priority
    if isinstance(highest, int) and facts.priority > highest:
        return reason(Code.PRIORITY_NOT_ADMITTED, priority=facts.priority, queue=facts.queue, highest=highest)
    if not (selector := queue.namespaces) or (labels is not None and selector.matches(labels)):
        return _unchecked(facts)
    return reason(Code.NAMESPACE_NOT_ADMITTED, queue=facts.queue, namespace=facts.namespace)


def _unchecked(facts: Facts) -> Reason | None:
    shapes = (pod.shape for pod in facts.gated) if facts.gated else filter(None, (facts.template,))
    what = sorted({each for shape in shapes for each in shape.unchecked})
    return reason(Code.CANNOT_CHECK, what=" and ".join(what)) if what else None


def by_shape(pods: Iterable[Pod]) -> tuple[Batch, ...]:
    """These pods counted by shape, in an order that has nothing to do with theirs."""
    counts = Counter(pod.shape for pod in pods)
    return tuple(Batch(shape, count) for shape, count in sorted(counts.items(), key=lambda item: item[0].request))


def _claim(member: Member, kind: ClaimKind, what: tuple[Batch, ...]) -> Iterator[Claim]:
    if what:
        facts = member.facts
        yield Claim(
            gang=facts.key,
            queue=facts.queue,
            kind=kind,
            batches=what,
            priority=facts.priority,
            since=member.since,
        )


def _asks(claim: Claim) -> Amounts:
    return amounts_of(claim.batches)


def _some(shape: Shape | None, count: int, within: Within | None) -> tuple[Batch, ...]:
    return (Batch(shape, count, within),) if shape is not None and count > 0 else ()


def _must(within: Within | None) -> Within | None:
    """Without what is only preferred, which doesn't bind kube-scheduler."""
    return Within(key=within.key, value=within.value) if within is not None and within.key else None
