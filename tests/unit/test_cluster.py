"""The nodes and what is on them: sums that are right whatever came first, and never overflow."""

import random
from typing import Any

import numpy as np

from startgate.engine.cluster import Cluster
from startgate.engine.filters import Demand, demand
from startgate.model.quantity import LARGEST
from startgate.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from startgate.model.shape import Shape
from startgate.model.taints import Taint, Toleration
from tests.unit.worlds import GPU, cluster, node, shape

ANYWHERE = demand(shape())


def used(held: Cluster, name: str, resource: str) -> int:
    return int(held.used[held.rows[resource], held.slots[name]])


def matching(held: Cluster, asked: Demand) -> set[str]:
    return {held.names[slot] for slot in np.flatnonzero(held.matching(asked)).tolist()}


def test_total_is_of_nodes_that_could_take_pods() -> None:
    held = cluster(
        node("a", cpu="4", memory="1Gi"),
        node("cordoned", cpu="8", cordoned=True),
        node("lost", cpu="16", ready=False),
        node("b", cpu="500m", gpu="2"),
    )
    assert held.total() == {"cpu": 4500, "memory": 2**30, GPU: 2, "pods": 220}
    held.set_node(node("lost", cpu="16"))
    assert held.total()["cpu"] == 20500
    held.remove_node("a")
    assert held.total() == {"cpu": 16500, GPU: 2, "pods": 220}
    assert len(held) == 3


def test_a_pod_counts_once_its_node_appears() -> None:
    held = Cluster()
    held.add_pod("u", "later", shape(cpu=1))
    assert len(held) == 0
    assert matching(held, ANYWHERE) == set()
    held.set_node(node("later", cpu="4"))
    assert used(held, "later", "cpu") == 1000
    held.remove_node("later")
    held.set_node(node("later", cpu="8"))
    assert used(held, "later", "cpu") == 1000
    held.remove_pod("u")
    assert used(held, "later", "cpu") == 0


def test_the_same_pod_again_replaces_what_was() -> None:
    held = cluster(node("a", cpu="4"), node("b", cpu="4"))
    held.add_pod("u", "a", shape(cpu=1))
    held.add_pod("u", "a", shape(cpu=1))
    assert used(held, "a", "cpu") == 1000
    held.add_pod("u", "a", shape(cpu=2))
    assert used(held, "a", "cpu") == 2000
    held.add_pod("u", "b", shape(cpu=2))
    assert (used(held, "a", "cpu"), used(held, "b", "cpu")) == (0, 2000)
    held.remove_pod("u")
    held.remove_pod("u")
    assert (used(held, "a", "pods"), used(held, "b", "pods")) == (0, 0)


def test_sums_beyond_an_int64_saturate_and_come_back_exactly() -> None:
    held = cluster(node("a", cpu="4"))
    huge = Shape(request=(("cpu", LARGEST), ("pods", 1)))
    beyond = Shape(request=(("cpu", LARGEST * 4), ("pods", 1)))
    held.add_pod("small", "a", shape(cpu=3))
    for uid in ("x", "y", "z"):
        held.add_pod(uid, "a", huge if uid != "z" else beyond)
    assert used(held, "a", "cpu") == LARGEST
    assert int(held.free()[held.rows["cpu"], held.slots["a"]]) == 4000 - LARGEST
    for uid in ("x", "z", "y"):
        held.remove_pod(uid)
    assert used(held, "a", "cpu") == 3000


def test_totals_of_absurd_nodes_are_exact() -> None:
    held = cluster(*(node(f"n{i}", memory=str(LARGEST)) for i in range(3)))
    assert held.total()["memory"] == 3 * LARGEST


def test_an_amount_that_is_no_quantity_counts_as_none() -> None:
    assert cluster(node("a", cpu="many", memory="1Gi")).total() == {"memory": 2**30, "pods": 110}


def test_a_copy_and_its_original_go_apart() -> None:
    held = cluster(node("a", cpu="4"))
    held.add_pod("u", "a", shape(cpu=1))
    held.matching(ANYWHERE)
    twin = held.copy()
    twin.remove_pod("u")
    twin.set_node(node("b", cpu="4"))
    twin.set_node(node("a", cpu="4", cordoned=True))
    assert used(held, "a", "cpu") == 1000
    assert used(twin, "a", "cpu") == 0
    assert (matching(held, ANYWHERE), matching(twin, ANYWHERE)) == ({"a"}, {"b"})
    assert (held.total()["cpu"], twin.total()["cpu"]) == (4000, 4000)


def test_matching_follows_what_changes() -> None:
    zone = demand(shape(node_selector=(("zone", "a"),)))
    tolerant = demand(shape(tolerations=(Toleration(key="dedicated", operator="Exists"),)))
    held = cluster(
        node("plain", labels={"zone": "a"}),
        node("tainted", labels={"zone": "a"}, taints=[Taint("dedicated", "x", "NoSchedule")]),
        node("wish", labels={"zone": "b"}, taints=[Taint("dedicated", "x", "PreferNoSchedule")]),
    )
    assert matching(held, zone) == {"plain"}
    assert matching(held, tolerant) == {"plain", "tainted", "wish"}
    held.set_node(node("tainted", labels={"zone": "a"}))
    held.set_node(node("plain", labels={"zone": "a"}, taints=[Taint("node.kubernetes.io/not-ready", "", "NoExecute")]))
    held.set_node(node("new", labels={"zone": "a"}))
    assert matching(held, zone) == {"tainted", "new"}
    held.remove_node("new")
    assert matching(held, zone) == {"tainted"}


def test_a_kubelet_that_is_lost_is_out_by_its_taint_only() -> None:
    assert matching(cluster(node("lost", ready=False)), ANYWHERE) == {"lost"}


def test_pods_that_name_their_node_find_it() -> None:
    held = cluster(*(node(f"n{i}") for i in range(100)))
    by_field = NodeSelector(
        node_selector_terms=(
            NodeSelectorTerm(match_fields=(Requirement(key="metadata.name", operator="In", values=("n7",)),)),
        )
    )
    assert matching(held, demand(shape(affinity=by_field))) == {"n7"}
    assert matching(held, demand(shape(node_name="n8"))) == {"n8"}
    assert matching(held, demand(shape(node_name="none"))) == set()
    away = NodeSelectorTerm(match_fields=(Requirement(key="metadata.name", operator="NotIn", values=("n7",)),))
    assert len(matching(held, demand(shape(affinity=NodeSelector(node_selector_terms=(away,)))))) == 99


def test_slots_are_used_again_and_rows_grow() -> None:
    held = Cluster()
    for round_ in range(5):
        for i in range(100):
            vendor: Any = {f"vendor{i % 20}": "1"}
            held.set_node(node(f"n{round_}-{i}", cpu="1", **vendor))
        for i in range(100):
            held.remove_node(f"n{round_}-{i}")
    assert len(held.names) == 100
    assert held.total() == {}
    assert not held.offers.any()


def test_the_order_in_which_things_came_does_not_matter() -> None:
    rng = random.Random(7)
    nodes = [node(f"n{i}", cpu=str(i + 1), memory=f"{i}Gi") for i in range(90)]
    pods = [(f"u{i}", f"n{i % 90}", shape(cpu=1 + i % 3)) for i in range(200)]
    states = []
    for _ in range(3):
        rng.shuffle(nodes)
        rng.shuffle(pods)
        held = Cluster()
        steps = [*((held.set_node, (each,)) for each in nodes), *((held.add_pod, each) for each in pods)]
        rng.shuffle(steps)
        for step, arguments in steps:
            step(*arguments)  # type: ignore[operator]
        ranks = held.ranks()
        states.append((held.total(), [(ranks[held.slots[f"n{i}"]], used(held, f"n{i}", "cpu")) for i in range(90)]))
    assert states[0] == states[1] == states[2]
