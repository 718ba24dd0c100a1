"""The sentences about nodes, for each kind of misfit, and what they say would let the gang start: it does."""

import re
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from startgate.engine.cluster import Cluster
from startgate.engine.cycle import decide
from startgate.engine.world import NEVER, Holder, Placement, Plan, Within
from startgate.model import objects, storage
from startgate.model.objects import timestamp
from startgate.model.queue import QueueSpec
from startgate.model.reasons import LONGEST, Code, Reason
from startgate.model.resources import add
from startgate.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from startgate.model.shape import HostPort, Shape, Spread
from startgate.model.taints import Taint
from tests.unit.misfits import HOST, ZONE, near, selecting
from tests.unit.worlds import GPU, cluster, gang, in_order, node, shape, stay_of, went, world

ANY = {"q": QueueSpec()}


def host(name: str, zone: str = "") -> objects.Node:
    return node(name, labels={HOST: name} | ({ZONE: zone} if zone else {}), cpu="4")


def four() -> list[objects.Node]:
    """Two nodes in each of two zones."""
    return [host("a1", "a"), host("a2", "a"), host("b1", "b"), host("b2", "b")]


def social(app: str, **demands: Any) -> Shape:
    return shape(cpu=1, namespace="ns", labels=(("app", app),), **demands)


def why(nodes: Cluster, *asked: tuple[int, Shape], within: Within | None = None) -> Reason:
    waiting = gang("g", "q", *asked)
    waiting = replace(waiting, minimum=tuple(replace(batch, within=within) for batch in waiting.minimum))
    return stay_of(decide(world(nodes, ANY, [waiting]), 0), "g").reason


def nodes_of(reason: Reason) -> str:
    return str(dict(reason.facts)["nodes"])


# What is wrong with the nodes.


def test_a_mixed_cluster_is_counted_node_by_node() -> None:
    tainted = [node(f"t{i}", cpu="8", gpu="8", taints=[Taint("team", "infra", "NoSchedule")]) for i in range(12)]
    nodes = cluster(
        *(node(f"c{i}", cpu="8") for i in range(40)), *tainted, *(node(f"g{i}", cpu="8", gpu="2") for i in range(12))
    )
    for number in range(12):
        nodes.add_pod(f"p{number}", f"g{number}", shape(gpu=1 if number < 3 else 2))
    found = why(nodes, (4, shape(cpu=1, gpu=1)))
    assert found.code is Code.NO_ROOM
    assert found.message == (
        f"has quota and waits for nodes: 3 of 4 pods fit now (1 cpu, 1 {GPU} each); "
        f"of 64 nodes: 40 without {GPU}, 12 with taint team=infra:NoSchedule, 9 short of free {GPU}, "
        f"3 with room for 1 each and then short of free {GPU}; "
        "it starts when enough pods end or 1 more node like g0 is added"
    )


def test_all_resources_that_are_short_are_named() -> None:
    nodes = cluster(node("a", cpu="4", gpu="2", memory="8Gi"))
    nodes.add_pod("p", "a", shape(cpu=3, gpu=2))
    assert nodes_of(why(nodes, (1, shape(cpu=2, gpu=1, memory=1)))) == f"of 1 node: 1 short of free {GPU} and cpu"


def test_room_that_is_kept_for_nominated_pods() -> None:
    nodes = cluster(node("a", cpu="4"))
    nodes.add_pod("p", "a", shape(cpu=3, priority=5), nominated=True)
    found = why(nodes, (1, shape(cpu=2)))
    assert nodes_of(found) == "of 1 node: 1 with their room kept for nominated pods"


def test_host_ports() -> None:
    nodes = cluster(*four())
    nodes.add_pod("p", "a1", shape(ports=(HostPort(80),)))
    found = why(nodes, (4, shape(cpu=1, ports=(HostPort(80),))))
    assert found.code is Code.NO_ROOM
    assert nodes_of(found) == (
        "of 4 nodes: 1 with host port 80 taken, 3 with room for 1 each and then with host port 80 taken"
    )
    never = why(nodes, (5, shape(cpu=1, ports=(HostPort(80), HostPort(53, "UDP")))))
    assert never.code is Code.NEVER_FITS
    assert never.message.startswith("can never fit: with every node empty, 4 of 5 pods would fit (1 cpu each); of 4")


def test_pods_that_keep_others_away_are_named() -> None:
    nodes = cluster(*four())
    job = (("app", "db"), ("job-name", "db"))
    nodes.add_pod("p", "a1", Shape(namespace="x", labels=job, apart=(replace(near(ZONE, selecting(app="web"))),)))
    nodes.add_pod("r", "b1", Shape(namespace="ns", labels=(("app", "noisy"),)))
    web = social("web", apart=(near(HOST, selecting(app="noisy")),))
    assert nodes_of(why(nodes, (5, web))) == (
        "of 4 nodes: 2 in a zone with pods of x/db (anti-affinity), 1 with pods app=noisy (its anti-affinity), "
        "1 with room for 4 and then short of free cpu"
    )


def test_who_is_kept_away_by_others_for_now_is_not_told_never() -> None:
    nodes = cluster(*four())
    unsocial = Shape(namespace="ns", labels=(("app", "db"),), apart=(near(ZONE, selecting(app="web")),))
    for number, name in enumerate(("a1", "b1")):
        nodes.add_pod(f"p{number}", name, unsocial)
    assert why(nodes, (1, social("web"))).code is Code.NO_ROOM


def test_more_pods_that_keep_apart_than_there_are_places() -> None:
    apart = why(cluster(*four()), (3, social("web", apart=(near(ZONE, selecting(app="web")),))))
    assert apart.code is Code.NEVER_FITS
    assert nodes_of(apart) == (
        "of 4 nodes: 2 in a zone with one of its own pods (anti-affinity), "
        "2 with room for 1 each and then in a zone with one of its own pods (anti-affinity)"
    )


def test_an_affinity_to_pods_that_are_nowhere() -> None:
    found = why(cluster(*four(), host("c")), (2, social("web", together=(near(ZONE, selecting(app="cache")),))))
    assert found.message == (
        "has quota and waits for nodes: 0 of 2 pods fit now (1 cpu each); of 5 nodes: "
        f"4 in a zone without pods app=cache (its affinity), 1 without label {ZONE}; "
        "it starts when pods that its affinity asks for run"
    )


def test_pods_that_have_to_be_near_one_another() -> None:
    """Never, where the affinity is to the gang's own pods alone; other pods of the same app could begin elsewhere."""
    own = social("web", together=(near(ZONE, selecting(job="j")),))
    own = replace(own, labels=(*own.labels, ("batch.kubernetes.io/job-name", "j")))
    assert why(cluster(*four()), (9, own)).code is Code.NEVER_FITS
    app = social("web", together=(near(ZONE, selecting(app="web")),))
    found = why(cluster(*four()), (9, app))
    assert found.message == (
        "has quota and waits until it is sure that all of its pods get a node: places are found for 8 of 9 pods "
        "(1 cpu each); of 4 nodes: 2 in a zone without pods of its own (its affinity), "
        "2 with room for 4 each and then short of free cpu; with every node empty none are found for all of them "
        "either; it starts when nodes are added, or its pods ask less of where others are"
    )


def test_a_spread_that_the_emptiest_zone_holds_up() -> None:
    nodes = cluster(*four())
    nodes.add_pod("p", "a1", shape(cpu=4))
    nodes.add_pod("r", "a2", shape(cpu=3))
    spread = social("web", spread=(Spread(ZONE, 1, selecting(app="web")),))
    assert nodes_of(why(nodes, (5, spread))) == (
        "of 4 nodes: 1 in a zone full by topology spread (maxSkew 1), 1 short of free cpu, "
        "1 with room for 1 and then short of free cpu, "
        "1 with room for 2 and then in a zone full by topology spread (maxSkew 1)"
    )


def test_volumes() -> None:
    nodes = cluster(*four())
    found = why(nodes, (2, shape(cpu=1, namespace="ns", claims=("data",))))
    assert (found.code, found.message) == (
        Code.VOLUMES,
        "waits for the volumes of 2 pods: volume claim data doesn't exist",
    )
    nodes.storage.set_volume(_volume("pv", ("a",)))
    nodes.storage.set_claim(_claim("data", "pv"))
    found = why(nodes, (9, shape(cpu=1, namespace="ns", claims=("data",))))
    assert found.code is Code.NEVER_FITS
    assert nodes_of(found) == (
        "of 4 nodes: 2 that can't reach the volume of claim data, 2 with room for 4 each and then short of free cpu"
    )


def test_a_claim_that_one_pod_at_a_time_can_use() -> None:
    nodes = cluster(*four())
    nodes.storage.set_volume(_volume("pv", ("a", "b")))
    nodes.storage.set_claim(_claim("data", "pv", "ReadWriteOncePod"))
    asked = shape(cpu=1, namespace="ns", claims=("data",))
    found = why(nodes, (2, asked))
    assert found.message == (
        "can never fit: with every node empty, 1 of 2 pods would fit (1 cpu each); "
        "volume claim data can be used by one pod at a time; give each pod a claim of its own"
    )
    nodes.add_pod("p", "a1", asked)
    assert why(nodes, (1, asked)).code is Code.VOLUMES


def test_where_a_claim_will_have_its_volume_is_not_known_for_good() -> None:
    nodes = cluster(*four())
    nodes.storage.set_class(storage.VolumeClass(name="later", provisioner="csi.example.com", waits=True))
    nodes.storage.set_claim(storage.VolumeClaim(namespace="ns", name="data", storage_class="later"))
    found = why(nodes, (8, shape(cpu=2, namespace="ns", claims=("data",))))
    assert found.code is Code.NOT_SURE
    assert found.message.endswith(
        "places are found for 2 of 8 pods (2 cpu each); of 4 nodes: 3 that can't reach the volume of claim data, "
        "1 with room for 2 and then short of free cpu; with every node empty none are found for all of them either; "
        "it starts when nodes are added, or its claims have their volumes"
    )
    assert why(nodes, (9, shape(cpu=2, namespace="ns", claims=("data",)))).code is Code.NEVER_FITS


def test_what_is_needed_is_a_volume() -> None:
    """A claim that waits for its first pod: none there, then one that somebody else's claim has got."""
    nodes = cluster(*four())
    nodes.storage.set_class(storage.VolumeClass(name="local", provisioner="kubernetes.io/no-provisioner", waits=True))
    nodes.storage.set_claim(storage.VolumeClaim(namespace="ns", name="data", storage_class="local"))
    asked = shape(cpu=1, namespace="ns", claims=("data",))
    volumes = (
        "waits for the volumes of 2 pods: 0 would get theirs now; of 4 nodes: 4 without a volume for claim data; "
        "it starts when there are volumes for all of them"
    )
    assert why(nodes, (2, asked)).message == volumes
    taken = replace(_volume("pv", ("a",)), storage_class="local", claim=("ns", "other", ""))
    nodes.storage.set_volume(taken)
    assert why(nodes, (2, asked)).message == volumes
    for number, name in enumerate(("a1", "a2", "b1", "b2")):
        nodes.add_pod(f"p{number}", name, shape(cpu=4))
    full = why(nodes, (2, asked)).message
    assert full.endswith("; it starts when enough pods end and there are volumes for its claims"), full


def test_kinds_that_no_empty_nodes_take_together_aren_t_told_to_wait_for_others() -> None:
    nodes = cluster(node("a", cpu="4"), node("b", cpu="4"))
    nodes.add_pod("p", "a", shape(cpu=1))
    found = why(nodes, (2, shape(cpu=3)), (1, shape(cpu=2)))
    assert found.code is Code.NOT_SURE
    assert found.message.endswith(
        "; with every node empty none are found for all of them either; it starts when nodes are added, or it asks for "
        "less"
    )
    held_by_others = asked_beside(nodes, [held(nodes, "h", ("b", shape(cpu=3)))], (2, shape(cpu=3)), (1, shape(cpu=2)))
    in_use = stay_of(held_by_others, "g").reason
    assert in_use.code is Code.CLUSTER_IN_USE
    assert in_use.message.endswith("; it starts when nodes are added")


def test_pods_that_could_be_placed_but_not_told_where() -> None:
    """Two on one node, and one on the other: kube-scheduler could put the second one elsewhere."""
    nodes = cluster(*(node(name, cpu=cpu, labels={ZONE: zone, HOST: name}) for name, cpu, zone in _uneven()))
    nodes.add_pod("p", "a2", shape(cpu=1))
    spreads = (Spread(HOST, 2, selecting(app="web")), Spread(ZONE, 1, selecting(app="web"), min_domains=2))
    assert why(nodes, (3, social("web", spread=spreads))).message == (
        "has quota and waits until it is sure that all of its pods get a node: places are found for 2 of 3 pods "
        "(1 cpu each); more fit where each takes the right one of several nodes, and kube-scheduler, which takes pods "
        "one by one, can't be told which; it starts when enough pods end or nodes are added"
    )
    nodes.remove_pod("p")
    assert went(decide(world(nodes, ANY, [gang("g", "q", (3, social("web", spread=spreads)))]), 0)) == ["g"]


def _uneven() -> list[tuple[str, str, str]]:
    return [("a1", "2", "a"), ("a2", "1", "a"), ("b1", "2", "b")]


def test_whose_end_would_do_is_asked_of_who_decides() -> None:
    """That all fit isn't enough: the end of the gang on the third node is, since then each has a node of its own."""
    nodes = cluster(*(node(name, cpu=cpu, labels={ZONE: zone, HOST: name}) for name, cpu, zone in _uneven()))
    spreads = (Spread(HOST, 2, selecting(app="web")), Spread(ZONE, 1, selecting(app="web"), min_domains=2))
    holders = [held(nodes, "early", ("a1", shape(cpu=0.1))), held(nodes, "third", ("a2", shape(cpu=1)))]
    found = message(asked_beside(nodes, holders, (3, social("web", spread=spreads))))
    assert "it starts when ns/third (1 pod) ends" in found


def test_labels_are_named_with_their_article() -> None:
    nodes = cluster(*(node(name, cpu="4", labels={"kubernetes.io/os": "linux"}) for name in ("a", "b")))
    nodes.add_pod("p", "a", social("noisy"))
    web = social("web", apart=(near("kubernetes.io/os", selecting(app="noisy")),))
    assert nodes_of(why(nodes, (1, web))) == "of 2 nodes: 2 in an os with pods app=noisy (its anti-affinity)"


def _volume(name: str, zones: Sequence[str]) -> storage.Volume:
    term = NodeSelectorTerm((Requirement(ZONE, "In", tuple(zones)),))
    return storage.Volume(name=name, affinity=NodeSelector((term,)), claim=("ns", "data", ""), modes=("ReadWriteMany",))


def _claim(name: str, volume: str, mode: str = "ReadWriteMany") -> storage.VolumeClaim:
    return storage.VolumeClaim(namespace="ns", name=name, volume=volume, bound=True, modes=(mode,))


def test_one_kind_is_in_the_way_of_another() -> None:
    nodes = cluster(node("a", cpu="4", gpu="1"), node("b", cpu="1"))
    nodes.add_pod("foreign", "a", shape(cpu=1))
    assert nodes_of(why(nodes, (1, shape(cpu=2, gpu=1)), (3, shape(cpu=1)))) == (
        "with the others placed, of 2 nodes: 2 with room for 1 each and then short of free cpu"
    )


def test_together_in_one_rack() -> None:
    nodes = cluster(*four())
    nodes.add_pod("p", "a1", shape(cpu=4))
    nodes.add_pod("r", "b1", shape(cpu=4))
    found = why(nodes, (2, shape(cpu=3)), within=Within(key=ZONE))
    assert found.code is Code.NO_DOMAIN
    assert found.message.endswith("; it starts when enough pods end in one place or nodes are added to it")


def test_sentences_stay_short() -> None:
    taints = [Taint(f"team.example.com/dedicated-{i:02}", "x" * 20, "NoSchedule") for i in range(30)]
    nodes = cluster(*(node(f"n{i:02}", cpu="8", taints=[taint]) for i, taint in enumerate(taints)), node("z", cpu="1"))
    message = why(nodes, (1, shape(cpu=4))).message
    assert len(message) <= LONGEST
    total, *groups = (int(number) for number in re.findall(r"(?:of|[:,]) (\d+) ", message.split("; ")[1]))
    assert total == sum(groups) == 31


# What would change it.


def held(nodes: Cluster, name: str, *pods: tuple[str, Shape], ends: float = NEVER, since: float = 0) -> Holder:
    """A gang that runs, its pods on the nodes."""
    for number, (where, each) in enumerate(pods):
        nodes.add_pod(f"{name}-{number}", where, each, ours=True)
    placements = tuple(Placement(each, ((where, 1),)) for where, each in pods)
    charge = add(*(each.amounts for _, each in pods))
    return Holder(gang=f"ns/{name}", queue="q", priority=0, since=since, charge=charge, pods=placements, ends=ends)


def asked_beside(nodes: Cluster, holders: Sequence[Holder], *waiting: tuple[int, Shape]) -> Plan:
    made = world(nodes, ANY, [gang("g", "q", *waiting)], used={"q": add(*(each.charge for each in holders))})
    return decide(replace(made, holders=tuple(holders)), 0)


def message(plan: Plan, name: str = "g") -> str:
    return stay_of(plan, name).reason.message


def test_the_smallest_gang_whose_end_is_enough_is_named() -> None:
    nodes = cluster(*four())
    holders = [
        held(nodes, "large", ("a1", shape(cpu=3)), ("a2", shape(cpu=3)), ("b1", shape(cpu=3))),
        held(nodes, "small", ("b2", shape(cpu=3))),
    ]
    assert message(asked_beside(nodes, holders, (1, shape(cpu=4)))).endswith(
        "; it starts when ns/small (1 pod) ends, or 1 more node like a1 is added"
    )
    assert message(asked_beside(nodes, holders, (2, shape(cpu=4)))).endswith(
        "; it starts when ns/large (3 pods) ends, or nodes are added"
    )


def test_the_end_of_several_may_be_needed() -> None:
    nodes = cluster(*four())
    holders = [held(nodes, name, (name, shape(cpu=3))) for name in ("a1", "a2", "b1", "b2")]
    assert message(asked_beside(nodes, holders, (2, shape(cpu=2.5)))).endswith(
        "; it starts when ns/a1 (1 pod) and ns/a2 (1 pod) end, or nodes are added"
    )


def test_who_ends_by_a_deadline_is_named_with_it() -> None:
    nodes = cluster(*four())
    first = held(nodes, "first", ("a1", shape(cpu=3)), ends=3600)
    later = held(nodes, "later", ("a2", shape(cpu=3)), ends=7200)
    never = held(nodes, "never", ("b1", shape(cpu=3)), ("b2", shape(cpu=3)))
    assert "it starts when ns/first has ended, by 1970-01-01T01:00:00Z, or" in message(
        asked_beside(nodes, [first, later, never], (1, shape(cpu=2)))
    )
    assert "it starts when ns/later and 1 more have ended, by 1970-01-01T02:00:00Z, or" in message(
        asked_beside(nodes, [first, later, never], (2, shape(cpu=3)))
    )


def test_what_is_on_its_way_out_may_be_enough() -> None:
    nodes = cluster(*four())
    holders = [held(nodes, name, (name, shape(cpu=3))) for name in ("a1", "a2", "b1", "b2")]
    gone = replace(holders[0], leaving=holders[0].pods, leaving_charge=holders[0].charge, pods=(), charge={})
    found = message(asked_beside(nodes, [gone, *holders[1:]], (1, shape(cpu=2))))
    assert "it starts when the pods that are on their way out are gone" in found


def test_where_others_than_gangs_are_in_the_way_nodes_are_said_to_help() -> None:
    nodes = cluster(node("a", cpu="4"), node("b", cpu="8"), node("c", cpu="64", taints=[Taint("x", "", "NoExecute")]))
    for name, cpu in (("a", 3), ("b", 7), ("c", 1)):
        nodes.add_pod(name, name, shape(cpu=cpu))
    ends = "; it starts when enough pods end or {} added"
    assert message(asked_beside(nodes, [], (2, shape(cpu=2)))).endswith(ends.format("1 more node like a is"))
    assert message(asked_beside(nodes, [], (4, shape(cpu=2)))).endswith(ends.format("1 more node like b is"))
    assert message(asked_beside(nodes, [], (1, shape(cpu=8)))).endswith(ends.format("1 more node like b is"))


def test_only_the_first_gang_of_a_queue_is_told_whose_end_would_do() -> None:
    nodes = cluster(*four())
    holders = [held(nodes, name, (name, shape(cpu=3))) for name in ("a1", "a2", "b1", "b2")]
    waiting = in_order(gang("first", "q", (1, shape(cpu=2))), gang("second", "q", (2, shape(cpu=2))))
    made = world(nodes, ANY, waiting, used={"q": add(*(each.charge for each in holders))})
    plan = decide(replace(made, holders=tuple(holders)), 0)
    assert "it starts when ns/a1 (1 pod) ends" in message(plan, "first")
    assert "it starts when enough" in message(plan, "second")


CPUS = st.integers(1, 4)


@st.composite
def running(draw: st.DrawFn) -> tuple[Cluster, list[Holder]]:
    """Nodes of 4 or 6 cpu, gangs on them, and pods of others."""
    names = [f"n{i}" for i in range(draw(st.integers(1, 5)))]
    nodes = cluster(*(node(name, cpu=draw(st.sampled_from(["4", "6"]))) for name in names))
    left = dict.fromkeys(names, 4)
    holders = []
    for number in range(draw(st.integers(0, 6))):
        pods: list[tuple[str, Shape]] = []
        for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3)):
            cpu = draw(CPUS)
            if left[name] >= cpu:
                left[name] -= cpu
                pods.append((name, shape(cpu=cpu)))
        ends = draw(st.one_of(st.just(NEVER), st.integers(1, 9).map(float)))
        others = draw(st.integers(0, 4)) == 0
        if pods and not others:
            holders.append(held(nodes, f"h{number}", *pods, ends=ends))
        else:
            for place, (name, each) in enumerate(pods):
                nodes.add_pod(f"other-{number}-{place}", name, each)
    return nodes, holders


@settings(deadline=None, max_examples=300)
@given(running(), st.lists(st.tuples(st.integers(1, 4), CPUS.map(lambda cpu: shape(cpu=cpu))), min_size=1, max_size=2))
def test_what_is_said_to_be_enough_is_enough(
    case: tuple[Cluster, list[Holder]], asked: list[tuple[int, Shape]]
) -> None:
    nodes, holders = case
    plan = asked_beside(nodes, holders, *asked)
    if went(plan):
        return
    found = message(plan)
    ending = [each for each in holders if f"{each.gang} (" in found]
    if by := re.search(r"by (\S+Z)", found):
        ending = [each for each in holders if each.ends <= timestamp(by[1])]
    if ending and "more gang" not in found:  # not all of them are named
        rest = [each for each in holders if each not in ending]
        assert went(asked_beside(_without(nodes, ending), rest, *asked)) == ["g"], found
    if more := re.search(r"(\d+) more nodes? like (\S+) (is|are) added", found):
        assert went(asked_beside(_with_more(nodes, int(more[1]), more[2]), holders, *asked)) == ["g"], found
    if "can never fit" in found and (more := re.search(r"add (\d+) more nodes? like (\S+)$", found)):
        bare = _with_more(_without(nodes, holders), int(more[1]), more[2])
        assert stay_codes(asked_beside(bare, [], *asked)).isdisjoint({Code.NEVER_FITS, Code.NO_NODE_MATCHES})


def stay_codes(plan: Plan) -> set[Code]:
    return {each.reason.code for each in plan.stay}


def _without(nodes: Cluster, holders: Sequence[Holder]) -> Cluster:
    twin = nodes.copy()
    for holder in holders:
        for number in range(len(holder.pods)):
            twin.remove_pod(f"{holder.gang.removeprefix('ns/')}-{number}")
    return twin


def _with_more(nodes: Cluster, number: int, like: str) -> Cluster:
    twin = nodes.copy()
    offers = nodes.offer(nodes.slots[like])
    for each in range(number):
        twin.set_node(node(f"more{each}", cpu=f"{offers['cpu']}m"))
    return twin
