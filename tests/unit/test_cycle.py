"""Decisions: who goes, in which order, who stays and with what sentence. Numbers of cases are those of cases.md."""

import msgspec
import pytest

from startgate.engine.cycle import decide
from startgate.engine.nodes import HOSTNAME
from startgate.engine.world import Batch, Claim, ClaimKind, Holder, Placement, Plan, Waiting
from startgate.model.queue import QueueSpec
from startgate.model.reasons import Code, reason
from startgate.model.selectors import LabelSelector
from startgate.model.shape import Shape, Spread
from startgate.model.taints import Taint
from tests.unit.worlds import GPU, cluster, gang, go_of, in_order, node, shape, stay_of, went, world

ANY = {"q": QueueSpec()}
ONE = shape(cpu=1)


def claim(kind: ClaimKind, *batches: tuple[int, Shape], gang: str = "ns/claim", queue: str = "q") -> Claim:
    return Claim(gang=gang, queue=queue, kind=kind, batches=tuple(Batch(each, n) for n, each in batches))


def codes(plan: Plan) -> dict[str, Code]:
    return {each.gang.removeprefix("ns/"): each.reason.code for each in plan.stay}


def message(plan: Plan, name: str) -> str:
    return stay_of(plan, name).reason.message


# The cases from the field.


def test_case_1_resources_not_asked_for_never_block() -> None:
    queues = {"q": QueueSpec(capability={GPU: 9999, "rdma/hca": 9999})}
    plan = decide(world(cluster(node("a", cpu="4")), queues, [gang("g", "q", (4, ONE))]), 0)
    assert went(plan) == ["g"]
    assert plan.stay == ()


def test_case_2_one_at_a_time_in_order() -> None:
    queues = {"q": QueueSpec(capability={"cpu": 2, "memory": "10Gi"})}
    waiting = in_order(*(gang(name, "q", (2, shape(cpu=1, memory=2))) for name in ("c", "a", "b")))
    nodes = cluster(node("n", cpu="64", memory="64Gi"))
    for turn in range(3):
        plan = decide(world(nodes, queues, waiting[turn:]), 0)
        assert went(plan) == [("c", "a", "b")[turn]]
        assert set(codes(plan).values()) <= {Code.QUEUE_CAPABILITY}
    running = decide(world(nodes, queues, waiting[1:], used={"q": {"cpu": 2000, "memory": 4 * 2**30}}), 0)
    assert went(running) == []


def test_case_6_a_parent_keeps_what_is_guaranteed_to_the_third() -> None:
    queues = {
        "p": QueueSpec(capability={"cpu": 9}),
        **{f"q{i}": QueueSpec(parent="p", guarantee={"cpu": 2}) for i in (1, 2, 3)},
    }
    greedy = in_order(*(gang(f"g{i}", f"q{1 + i % 2}", (1, ONE)) for i in range(18)))
    nodes = cluster(node("n", cpu="64"))
    plan = decide(world(nodes, queues, greedy), 0)
    assert len(plan.go) == 7
    assert set(codes(plan).values()) == {Code.PARENT_CAPABILITY}
    assert message(plan, "g17") == (
        "needs 1 cpu; parent queue p has 0 of 9 cpu left for queue q2 (2 cpu kept for the guarantee of q3); "
        "it starts when enough of the gangs below p end, or its capability is raised"
    )
    third = decide(world(nodes, queues, [gang("third", "q3", (1, shape(cpu=2)))], used={"q1": {"cpu": 7000}}), 0)
    assert went(third) == ["third"]


def test_case_7_guarantees_are_kept_from_a_queue_that_has_none() -> None:
    queues = {name: QueueSpec(guarantee={GPU: 8}) for name in ("a", "b", "c")} | {"d": QueueSpec()}
    nodes = cluster(*(node(f"n{i}", gpu="8") for i in range(3)))
    eight = shape(gpu=8)
    plan = decide(world(nodes, queues, in_order(*(gang(name, name, (1, eight)) for name in "dabc"))), 0)
    assert went(plan) == ["a", "b", "c"]
    plan = decide(world(nodes, queues, [gang("d", "d", (1, shape(gpu=1)))], used={"a": {GPU: 8}}), 0)
    assert message(plan, "d") == (
        f"needs 1 {GPU}; of 24 in the cluster 8 are in use and 16 are kept for the guarantee of b, c; "
        "it starts when nodes are added or a guarantee is lowered"
    )
    assert all(view.problems == () for view in plan.queues.values())
    nodes.remove_node("n1")
    plan = decide(world(nodes, queues, [gang("d", "d", (1, shape(gpu=1)))]), 0)
    assert [len(plan.queues[name].problems) for name in "abcd"] == [1, 1, 1, 0]


def test_case_14_a_gang_that_does_not_fit_does_not_block_the_next() -> None:
    nodes = cluster(node("one", cpu="1"), node("two", cpu="2"))
    sizes = {"first": 0.5, "second": 1.0, "third": 1.5, "fourth": 0.5}
    waiting = in_order(*(gang(name, "q", (1, shape(cpu=size))) for name, size in sizes.items()))
    plan = decide(world(nodes, ANY, waiting), 0)
    assert went(plan) == ["first", "second", "fourth"]
    assert codes(plan) == {"third": Code.CLUSTER_IN_USE}


def test_case_27_a_gang_of_which_one_pod_does_not_fit() -> None:
    nodes = cluster(*(node(f"n{i:02}", cpu="1") for i in range(99)))
    plan = decide(world(nodes, ANY, [gang("g", "q", (100, ONE))]), 0)
    assert plan.go == ()
    nodes.set_node(node("n99", cpu="1"))
    plan = decide(world(nodes, ANY, [gang("g", "q", (100, ONE))]), 0)
    assert go_of(plan, "g").count == 100


# Order.


def test_priority_then_age_then_name() -> None:
    waiting = [
        gang("young", "q", (1, ONE), since=9.0),
        gang("b", "q", (1, ONE), since=5.0),
        gang("a", "q", (1, ONE), since=5.0),
        gang("urgent", "q", (1, ONE), since=99.0, priority=7),
    ]
    plan = decide(world(cluster(node("n", cpu="3")), ANY, waiting), 0)
    assert went(plan) == ["urgent", "a", "b"]


# Claims.


def test_claims_take_their_quota_and_their_room_first() -> None:
    queues = {"q": QueueSpec(capability={"cpu": 5})}
    claims = [
        claim(ClaimKind.BIND, (1, ONE), gang="ns/bind"),
        claim(ClaimKind.FOLLOW, (1, ONE), gang="ns/follow"),
        claim(ClaimKind.GATHER, (2, ONE), gang="ns/gather"),
        claim(ClaimKind.HOLD, (1, ONE), gang="ns/hold"),
    ]
    used = {"q": {"cpu": 1000, "pods": 1}}
    waiting = [gang("w", "r", (2, ONE))]
    plan = decide(world(cluster(node("n", cpu="6")), queues | {"r": QueueSpec()}, waiting, used=used, claims=claims), 0)
    assert [(go.gang, go.kind) for go in plan.go] == [
        ("ns/follow", ClaimKind.FOLLOW),
        ("ns/gather", ClaimKind.GATHER),
    ]
    assert message(plan, "w").startswith("needs 2 cpu; 5 of 6 in the cluster are in use by gangs")
    view = plan.queues["q"]
    assert (view.allocated, view.reserved) == ({"cpu": 4000, "pods": 4}, {"cpu": 1000, "pods": 1})
    assert view.headroom["cpu"] == 0


def test_followers_go_as_far_as_they_fit_and_gatherers_whole() -> None:
    nodes = cluster(node("n", cpu="3"))
    plan = decide(world(nodes, ANY, claims=[claim(ClaimKind.FOLLOW, (5, ONE))]), 0)
    assert plan.go[0].count == 3
    assert not plan.go[0].tight
    assert plan.queues["q"].reserved == {"cpu": 2000, "pods": 2}
    plan = decide(world(nodes, ANY, claims=[claim(ClaimKind.GATHER, (5, ONE))]), 0)
    assert plan.go == ()
    assert codes(plan) == {"claim": Code.NEVER_FITS}


def test_what_has_gathered_breaks_no_ceiling() -> None:
    """The pods that were made may ask for more than their template did."""
    queues = {"q": QueueSpec(capability={"cpu": 4}, parent="p"), "p": QueueSpec(capability={"cpu": 6})}
    nodes = cluster(node("n", cpu="64"))
    claims = [claim(ClaimKind.GATHER, (3, ONE))]
    plan = decide(world(nodes, queues, used={"q": {"cpu": 3000}}, claims=claims), 0)
    assert plan.go == ()
    assert codes(plan) == {"claim": Code.QUEUE_CAPABILITY}
    assert message(plan, "claim").startswith("needs 3 cpu; queue q has 1 of 4 cpu left")
    assert went(decide(world(nodes, queues, used={"q": {"cpu": 1000}}, claims=claims), 0)) == ["claim"]


def test_the_more_important_claim_is_placed_first() -> None:
    nodes = cluster(node("n", cpu="1"))
    later = Claim(gang="ns/z", queue="q", kind=ClaimKind.FOLLOW, batches=(Batch(ONE, 1),), priority=1, since=9.0)
    plan = decide(world(nodes, ANY, claims=[claim(ClaimKind.FOLLOW, (1, ONE)), later]), 0)
    assert went(plan) == ["z"]


def test_claims_of_a_queue_that_is_gone_or_stopped_go_on() -> None:
    claims = [claim(ClaimKind.FOLLOW, (1, ONE), queue=name, gang=f"ns/{name}") for name in ("gone", "stopped")]
    plan = decide(world(cluster(node("n", cpu="2")), {"stopped": QueueSpec(stopped=True)}, claims=claims), 0)
    assert sorted(went(plan)) == ["gone", "stopped"]
    assert list(plan.queues) == ["stopped"]


# Minimum and extra.


def test_extras_come_along_as_far_as_quota_and_nodes_allow() -> None:
    queues = {"q": QueueSpec(capability={"cpu": 5})}
    more = (Batch(ONE, 9),)
    plan = decide(world(cluster(node("n", cpu="64")), queues, [gang("g", "q", (2, ONE), extra=more)]), 0)
    assert go_of(plan, "g").count == 5
    plan = decide(world(cluster(node("n", cpu="3")), queues, [gang("g", "q", (2, ONE), extra=more)]), 0)
    assert go_of(plan, "g").count == 3
    assert [placement.nodes for placement in go_of(plan, "g").placements] == [(("n", 2),), (("n", 1),)]


def test_pods_that_join_go_one_by_one_and_wait_with_a_reason() -> None:
    waiting = [gang("g", "q", extra=(Batch(shape(cpu=8), 1), Batch(ONE, 3)))]
    plan = decide(world(cluster(node("n", cpu="2")), ANY, waiting), 0)
    assert go_of(plan, "g").count == 2
    assert plan.stay == ()
    queues = {"q": QueueSpec(capability={"cpu": 0})}
    plan = decide(world(cluster(node("n", cpu="2")), queues, [gang("g", "q", extra=(Batch(ONE, 3),))]), 0)
    assert codes(plan) == {"g": Code.NEVER_WITHIN_QUOTA}


def test_pods_that_join_are_never_hopeless_for_one_kind_alone() -> None:
    nodes = cluster(node("n", cpu="2"))
    nodes.add_pod("foreign", "n", ONE)
    waiting = [gang("g", "q", extra=(Batch(shape(cpu=8), 1), Batch(shape(cpu=2), 1)))]
    assert codes(decide(world(nodes, ANY, waiting), 0)) == {"g": Code.NO_ROOM}


def test_a_gang_that_asks_for_no_pods_is_left_alone() -> None:
    plan = decide(world(cluster(node("n", cpu="2")), ANY, [gang("g", "q"), gang("h", "q", (0, ONE))]), 0)
    assert (plan.go, plan.stay) == ((), ())


def test_different_kinds_of_pods_go_together_or_not_at_all() -> None:
    nodes = cluster(node("a", cpu="4", gpu="1"), node("b", cpu="4"))
    leader, worker = shape(cpu=2, gpu=1), shape(cpu=1)
    plan = decide(world(nodes, ANY, [gang("g", "q", (1, leader), (6, worker))]), 0)
    assert go_of(plan, "g").count == 7
    plan = decide(
        world(nodes, ANY, [gang("g", "q", (1, leader), (7, worker)), gang("h", "q", (8, worker), since=1)]), 0
    )
    assert went(plan) == ["h"]


# Tight.


@pytest.mark.parametrize(("cpus", "tight"), [(7, True), (8, False)])
def test_tight_is_when_the_gang_has_no_substitute_for_its_places(cpus: int, tight: bool) -> None:
    plan = decide(world(cluster(node("n", cpu=str(cpus))), ANY, [gang("g", "q", (4, ONE))]), 0)
    assert go_of(plan, "g").tight is tight


def test_tight_counts_what_others_and_the_rest_of_the_plan_may_take() -> None:
    nodes = cluster(node("n", cpu="12"))
    first = gang("g", "q", (4, ONE))
    assert not decide(world(nodes, ANY, [first]), 0).go[0].tight
    assert not decide(world(nodes, ANY, [first], pending=[Batch(shape(cpu=4), 1)]), 0).go[0].tight
    assert decide(world(nodes, ANY, [first], pending=[Batch(shape(cpu=4.5), 1)]), 0).go[0].tight
    both = decide(world(nodes, ANY, in_order(first, gang("h", "q", (2, ONE)), gang("i", "q", (3, ONE)))), 0)
    assert [go.tight for go in both.go] == [True, False, False]
    adrift = claim(ClaimKind.BIND, (1, shape(cpu=100)))
    assert decide(world(nodes, ANY, [first], claims=[adrift]), 0).go[0].tight


SELF = LabelSelector(match_labels={"app": "x"})
ZONES, HOSTS = Spread("zone", 1, SELF), Spread(HOSTNAME, 2, SELF)


@pytest.mark.parametrize(
    ("cpus", "spread", "pinned"),
    [
        (8, (ZONES,), False),  # where each goes makes no difference, and there is room to spare
        (3, (ZONES,), True),  # others may count on what is left
        (8, (ZONES, HOSTS), True),  # their own choices could leave the last of them no node
    ],
)
def test_pods_of_a_spread_with_two_on_a_node_are_pinned_instead_of_reserved(
    cpus: int, spread: tuple[Spread, ...], pinned: bool
) -> None:
    nodes = cluster(*[node(f"n{zone}", cpu=str(cpus), labels={"zone": zone, HOSTNAME: f"n{zone}"}) for zone in "ab"])
    pods = msgspec.structs.replace(shape(cpu=1), labels=(("app", "x"),), spread=spread)
    go = go_of(decide(world(nodes, ANY, [gang("g", "q", (4, pods))]), 0), "g")
    assert (go.tight, go.pinned) == (False, pinned)


@pytest.mark.parametrize(
    ("count", "spread", "pinned"),
    [
        (2, (ZONES, HOSTS), True),
        (1, (ZONES, HOSTS), False),  # there is nobody whose place it could take
        (2, (ZONES,), False),  # wherever one goes, the other has a place, scarce as they are
        (2, (msgspec.structs.replace(ZONES, min_domains=2), HOSTS), False),  # a node selector would leave one domain
    ],
)
def test_what_a_crash_has_left_of_a_pinned_gang_is_pinned_with_one_on_each_node_too(
    count: int, spread: tuple[Spread, ...], pinned: bool
) -> None:
    nodes = cluster(*[node(f"n{zone}", cpu="2", labels={"zone": zone, HOSTNAME: f"n{zone}"}) for zone in "ab"])
    pods = msgspec.structs.replace(shape(cpu=1), labels=(("app", "x"),), spread=spread)
    for name in ("na", "nb"):
        nodes.add_pod(f"bound-{name}", name, pods, ours=True)
    go = go_of(decide(world(nodes, ANY, claims=[claim(ClaimKind.FOLLOW, (count, pods))]), 0), "claim")
    assert (go.count, go.tight, go.pinned) == (count, False, pinned)


def test_pods_of_several_spreads_with_one_on_each_node_are_reserved() -> None:
    nodes = cluster(*[node(f"n{zone}", cpu="9", labels={"zone": zone, HOSTNAME: f"n{zone}"}) for zone in "ab"])
    pods = msgspec.structs.replace(shape(cpu=1), labels=(("app", "x"),), spread=(ZONES, HOSTS))
    go = go_of(decide(world(nodes, ANY, [gang("g", "q", (2, pods))]), 0), "g")
    assert (go.tight, go.pinned) == (True, False)


def test_pods_that_can_neither_be_pinned_nor_reserved_two_on_a_node_get_one_each() -> None:
    several = (msgspec.structs.replace(ZONES, min_domains=2), HOSTS)  # a node selector would leave one domain
    pods = msgspec.structs.replace(shape(cpu=1), labels=(("app", "x"),), spread=several)
    labels = [{"zone": zone, HOSTNAME: f"n{zone}{i}"} for zone in "ab" for i in "12"]
    nodes = [node(each[HOSTNAME], cpu="8", labels=each) for each in labels]
    go = go_of(decide(world(cluster(*nodes), ANY, [gang("g", "q", (4, pods))]), 0), "g")
    assert (go.tight, go.pinned) == (True, False)
    assert sorted(go.placements[0].nodes) == [(each, 1) for each in sorted(each[HOSTNAME] for each in labels)]
    assert not decide(world(cluster(*nodes[::2]), ANY, [gang("g", "q", (4, pods))]), 0).go


def test_where_a_node_lacks_its_own_label_pods_are_pinned_to_none() -> None:
    """Those of the other node alone would be left without their room by the rest."""
    pods = msgspec.structs.replace(shape(cpu=1), labels=(("app", "x"),), spread=(ZONES,))
    nodes = [
        node("na", cpu="3", labels={"zone": "a", HOSTNAME: "na"}),
        node("nb", cpu="3", labels={"zone": "b"}),
    ]
    go = go_of(decide(world(cluster(*nodes), ANY, [gang("g", "q", (4, pods))]), 0), "g")
    assert (go.tight, go.pinned) == (False, False)
    two = (ZONES, Spread("rack", 2, SELF))
    pods = msgspec.structs.replace(pods, spread=two)
    nodes = [node(name, cpu="9", labels={"zone": name, "rack": name}) for name in "abcd"]
    go = go_of(decide(world(cluster(*nodes), ANY, [gang("g", "q", (4, pods))]), 0), "g")
    assert (go.tight, go.pinned, len(go.placements[0].nodes)) == (True, False, 4)
    assert not decide(world(cluster(*nodes), ANY, [gang("g", "q", (5, pods))]), 0).go


def test_a_gang_of_one_pod_is_never_tight() -> None:
    assert not decide(world(cluster(node("n", cpu="1")), ANY, [gang("g", "q", (1, ONE))]), 0).go[0].tight


# Reasons.


def test_an_obstacle_is_the_answer() -> None:
    hold = reason(Code.ON_HOLD)
    plan = decide(world(cluster(node("n", cpu="1")), ANY, [gang("g", "q", (1, ONE), obstacle=hold)]), 0)
    assert stay_of(plan, "g").reason == hold


def test_queues_that_are_not_there_or_stopped() -> None:
    queues = {"tenants": QueueSpec(stopped=True), "team-a": QueueSpec(parent="tenants")}
    waiting = [gang("near", "team-b", (1, ONE)), gang("far", "zzz", (1, ONE)), gang("stopped", "team-a", (1, ONE))]
    plan = decide(world(cluster(node("n", cpu="1")), queues, waiting), 0)
    assert message(plan, "near").startswith("there is no queue team-b (is it team-a?);")
    assert message(plan, "far").startswith("there is no queue zzz;")
    assert message(plan, "stopped").startswith("queue tenants is stopped:")


def test_quota_of_the_queue() -> None:
    queues = {"q": QueueSpec(capability={"cpu": 64, GPU: 16})}
    nodes = cluster(*(node(f"n{i}", cpu="64", gpu="8") for i in range(8)))
    used = {"q": {"cpu": 20_000, GPU: 13}}
    plan = decide(world(nodes, queues, [gang("g", "q", (4, shape(cpu=2, gpu=1)))], used=used), 0)
    assert message(plan, "g") == (
        f"needs 4 {GPU}; queue q has 3 of 16 {GPU} left; it starts when enough of the queue's gangs end, "
        "or its capability is raised"
    )
    assert stay_of(plan, "g").shortage == {GPU: 1}
    plan = decide(world(nodes, queues, [gang("g", "q", (4, shape(cpu=12, gpu=1)))], used=used), 0)
    assert message(plan, "g").startswith(f"needs 48 cpu, 4 {GPU}; queue q has 44 of 64 cpu and 3 of 16 {GPU} left;")
    plan = decide(world(nodes, queues, [gang("g", "q", (17, shape(gpu=1)))]), 0)
    assert message(plan, "g") == (
        f"asks 17 {GPU}, and queue q may never have more than 16 {GPU}; ask for less, or have the capability raised"
    )


def test_the_whole_cluster_in_use() -> None:
    nodes = cluster(node("n", cpu="8"))
    plan = decide(world(nodes, ANY, [gang("g", "q", (4, ONE))], used={"q": {"cpu": 6000}}), 0)
    assert message(plan, "g") == (
        "needs 4 cpu; 6 of 8 in the cluster are in use by gangs; it starts when enough of them end or nodes are added"
    )
    assert stay_of(plan, "g").shortage == {"cpu": 2000}


def test_no_room() -> None:
    nodes = cluster(node("a", cpu="16", memory="64Gi", gpu="2"), node("b", cpu="16", memory="64Gi", gpu="2"))
    nodes.add_pod("foreign", "a", shape(gpu=1))
    plan = decide(world(nodes, ANY, [gang("g", "q", (4, shape(cpu=2, memory=8, gpu=1)))]), 0)
    assert message(plan, "g") == (
        f"has quota and waits for nodes: 3 of 4 pods fit now (2 cpu, 8Gi memory, 1 {GPU} each); "
        f"of 2 nodes: 2 with room for 1 or 2 each and then short of free {GPU}; "
        "it starts when enough pods end or 1 more node like a is added"
    )
    assert stay_of(plan, "g").shortage == {GPU: 1}


def test_fragmented() -> None:
    nodes = cluster(node("a", cpu="4"), node("b", cpu="4"))
    for name in ("a", "b"):
        nodes.add_pod(name, name, shape(cpu=2))
    plan = decide(world(nodes, ANY, [gang("g", "q", (1, shape(cpu=3)))]), 0)
    assert message(plan, "g") == (
        "has quota and waits for nodes: 4 cpu is free, enough in sum for 1 pod of 3 cpu, "
        "but in pieces where only 0 fit; of 2 nodes: 2 short of free cpu; "
        "it starts when enough pods end or 1 more node like a is added"
    )
    assert stay_of(plan, "g").shortage == {"cpu": 3000, "pods": 1}


def test_no_node_matches_and_the_counts_add_up() -> None:
    nodes = cluster(
        node("a", cpu="8", labels={"zone": "a"}, taints=[Taint("dedicated", "infra", "NoSchedule")]),
        node("b", cpu="8", labels={"zone": "a"}, cordoned=True),
        node("c", cpu="8", labels={"zone": "b"}),
        node("d", cpu="8", labels={"zone": "b"}),
        node("e", cpu="2", labels={"zone": "a"}),
    )
    asked = shape(cpu=4, node_selector=(("zone", "a"),))
    plan = decide(world(nodes, ANY, [gang("g", "q", (1, asked))]), 0)
    assert message(plan, "g") == (
        "no node can take its pods (4 cpu each), however empty; of 5 nodes: 2 without label zone=a, "
        "1 cordoned, 1 with less than 4 cpu, 1 with taint dedicated=infra:NoSchedule; "
        "ask for less or for other nodes, or add one that meets both"
    )
    plan = decide(world(cluster(), ANY, [gang("g", "q", (1, asked))]), 0)
    assert message(plan, "g") == (
        "no node can take its pods (4 cpu each), however empty; the cluster has no nodes; "
        "add a node that has as much and meets what it asks of nodes"
    )


def test_many_kinds_of_nodes_are_counted_not_all_named() -> None:
    nodes = cluster(*(node(f"n{i}", taints=[Taint(f"t{i}" + "x" * 40, "", "NoExecute")]) for i in range(9)))
    plan = decide(world(nodes, ANY, [gang("g", "q", (1, Shape(request=(("pods", 1),))))]), 0)
    assert message(plan, "g").startswith(
        f"no node can take its pods (nothing each), however empty; of 9 nodes: 1 with taint t0{'x' * 40}:NoExecute,"
    )
    assert ", 6 for other causes; change what it asks of nodes" in message(plan, "g")
    assert len(message(plan, "g")) < 400


def test_never_fits() -> None:
    nodes = cluster(node("a", cpu="4"), node("b", cpu="5"))
    plan = decide(world(nodes, ANY, [gang("g", "q", (3, shape(cpu=3)))]), 0)
    assert message(plan, "g") == (
        "can never fit: with every node empty, 2 of 3 pods would fit (3 cpu each); "
        "of 2 nodes: 2 with room for 1 each and then short of free cpu; ask for less, or add 1 more node like a"
    )
    plan = decide(world(nodes, ANY, [gang("g", "q", (1, shape(cpu=6)))]), 0)
    assert message(plan, "g") == (
        "no node can take its pods (6 cpu each), however empty; of 2 nodes: 2 with less than 6 cpu; "
        "ask for less, or add a node that has as much"
    )


def test_more_than_the_cluster_has_is_about_nodes_not_about_quota() -> None:
    plan = decide(world(cluster(node("a", cpu="4")), ANY, [gang("g", "q", (1, shape(cpu=1, gpu=1)))]), 0)
    assert codes(plan) == {"g": Code.NO_NODE_MATCHES}


def test_one_kind_of_several_has_too_little() -> None:
    nodes = cluster(node("a", cpu="8", gpu="4"))
    nodes.add_pod("foreign", "a", shape(gpu=2))
    plan = decide(world(nodes, ANY, [gang("g", "q", (1, shape(cpu=1)), (3, shape(gpu=1)))]), 0)
    assert "2 of its 3 pods of one kind (4 in all) fit now (1 nvidia.com/gpu each); of 1 node: 1 with" in message(
        plan, "g"
    )


def test_each_kind_fits_but_not_all_together() -> None:
    nodes = cluster(node("a", cpu="4", gpu="1"))
    nodes.add_pod("foreign", "a", shape(cpu=1))
    plan = decide(world(nodes, ANY, [gang("g", "q", (1, shape(cpu=2, gpu=1)), (2, shape(cpu=1)))]), 0)
    assert message(plan, "g") == (
        f"has quota and waits for nodes: 2 of 3 pods fit now (1 of 2 cpu, 1 {GPU}; 2 of 1 cpu each); "
        "with the others placed, of 1 node: 1 with room for 1 and then short of free cpu; "
        "it starts when enough pods end or nodes are added"
    )


def test_reasons_tell_what_holds_after_the_plan() -> None:
    nodes = cluster(node("a", cpu="4"))
    nodes.add_pod("foreign", "a", shape(cpu=1))
    waiting = in_order(gang("big", "q", (4, ONE)), gang("small", "q", (2, ONE)))
    plan = decide(world(nodes, ANY, waiting), 0)
    assert went(plan) == ["small"]
    assert message(plan, "big").startswith("needs 4 cpu; 2 of 4 in the cluster are in use by gangs;")


def test_places_for_pods_are_named_only_where_they_are_scarce() -> None:
    nodes = cluster(node("a", cpu="64", pods="4"))
    nodes.add_pod("foreign", "a", shape())
    plan = decide(world(nodes, ANY, [gang("g", "q", (4, ONE))]), 0)
    assert "3 of 4 pods fit now (1 cpu each); of 1 node: 1 with room for 3 and then short of free places for pods" in (
        message(plan, "g")
    )


# For the record.


def test_what_the_rule_saw() -> None:
    queues = {"p": QueueSpec(), "q": QueueSpec(parent="p", capability={"cpu": 8}, guarantee={"cpu": 1})}
    plan = decide(world(cluster(node("n", cpu="16")), queues, [gang("g", "q", (4, ONE))], used={"q": {"cpu": 2000}}), 0)
    assert go_of(plan, "g").numbers == {
        "asks": "cpu=4000 pods=4",
        "fits": "16",
        "level q": "cpu=2000/1000/8000",
        "level p": "",
        "cluster": "cpu=2000/0/16000 pods=0/0/110",
    }


def test_a_parents_books_have_its_childrens_in_them() -> None:
    queues = {"p": QueueSpec(), "q": QueueSpec(parent="p", capability={"cpu": 8})}
    plan = decide(world(cluster(node("n", cpu="16")), queues, [gang("g", "q", (4, ONE))], used={"p": {"cpu": 500}}), 0)
    assert plan.queues["p"].allocated == {"cpu": 4500, "pods": 4}
    assert plan.queues["q"].headroom == {"cpu": 4000, "pods": 106}
    assert plan.queues["p"].headroom == {"cpu": 11_500, "pods": 106}


def test_a_bad_queue_stops_no_other() -> None:
    queues = {"bad": QueueSpec(parent="bad", capability={"cpu": "lots"}), "good": QueueSpec()}
    waiting: list[Waiting] = [gang("b", "bad", (1, ONE)), gang("g", "good", (1, ONE))]
    plan = decide(world(cluster(node("n", cpu="16")), queues, waiting), 0)
    assert went(plan) == ["g"]
    assert codes(plan) == {"b": Code.NEVER_WITHIN_QUOTA}
    assert len(plan.queues["bad"].problems) == 2


def test_who_was_admitted_goes_where_it_takes_no_claimants_place() -> None:
    """Of two nodes it would take the fuller one, on which somebody still gives way to the claimant."""
    nodes, two = cluster(node("n1", cpu="4"), node("n2", cpu="3")), shape(cpu=2)
    nodes.add_pod("leaving", "n1", two, ours=True)
    victim = Holder(
        gang="ns/victim",
        queue="q",
        priority=0,
        since=0.0,
        charge={},
        leaving=(Placement(two, (("n1", 1),)),),
        leaving_charge=two.amounts,
    )
    claimant = gang("claimant", "q", (1, shape(cpu=4)), victims=("ns/victim",))
    given = world(nodes, ANY, [claimant], used={"q": two.amounts}, claims=[claim(ClaimKind.GATHER, (1, two))])
    plan = decide(msgspec.structs.replace(given, holders=(victim,)), 0)
    assert go_of(plan, "claim").placements[0].nodes == (("n2", 1),)
    assert stay_of(plan, "claimant").reason.code is Code.MAKING_ROOM
    nodes.remove_node("n2")
    plan = decide(msgspec.structs.replace(given, holders=(victim,)), 0)
    assert go_of(plan, "claim").placements[0].nodes == (("n1", 1),), "it comes first where it has no choice"
