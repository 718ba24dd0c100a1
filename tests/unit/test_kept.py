"""What is kept from decision to decision says what would be said if nothing were."""

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from startgate.engine.cluster import Cluster
from startgate.engine.cycle import decide
from startgate.engine.kept import MANY, Kept
from startgate.engine.world import Waiting, World
from startgate.model.queue import QueueSpec
from startgate.model.shape import Shape
from tests.unit.worlds import cluster, gang, node, shape, stay_of, world

SHAPES = (
    shape(cpu=2),
    shape(cpu=5),
    shape(cpu=1, gpu=1),
    shape(cpu=1, node_selector=(("rack", "b"),)),
    shape(cpu=1, namespace="ns", labels=(("app", "x"),)),
)
QUEUES = ("a", "b", "b1")


def _queue(name: str, capability: int, guarantee: int) -> QueueSpec:
    return QueueSpec(
        parent="b" if name == "b1" else "",
        capability={"cpu": capability} if capability else {},
        guarantee={"cpu": guarantee} if guarantee else {},
    )


def _waiting(some: st.DataObject, number: int) -> Waiting:
    draw = some.draw
    kind, count = draw(st.sampled_from(SHAPES)), draw(st.integers(1, 4))
    return gang(f"g{number}", draw(st.sampled_from(QUEUES)), (count, kind), since=float(number))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_decision_after_others_is_that_of_a_cluster_that_saw_none(some: st.DataObject) -> None:
    draw = some.draw
    nodes = cluster(node("n0", cpu="4", labels={"rack": "a"}), node("n1", cpu="4", labels={"rack": "b"}))
    queues = {name: _queue(name, 0, 0) for name in QUEUES}
    used = {"a": {"cpu": 4000, "pods": 2}}
    waiting = [_waiting(some, number) for number in range(draw(st.integers(4, 9)))]
    for step in range(draw(st.integers(2, 6))):
        match draw(st.sampled_from(("pod", "node", "queue", "use", "gang", "nothing"))):
            case "pod":
                nodes.add_pod(f"p{step}", draw(st.sampled_from(("n0", "n1"))), shape(cpu=draw(st.integers(1, 4))))
            case "node":
                labels = {"rack": draw(st.sampled_from("ab"))}
                nodes.set_node(node(f"n{draw(st.integers(0, 1))}", cpu=draw(st.sampled_from("48")), labels=labels))
            case "queue":
                name = draw(st.sampled_from(QUEUES))
                queues[name] = _queue(name, draw(st.integers(0, 9)), draw(st.integers(0, 4)))
            case "use":
                used = {draw(st.sampled_from(QUEUES)): {"cpu": draw(st.integers(0, 9)) * 1000, "pods": 1}}
            case "gang":
                waiting[draw(st.integers(0, len(waiting) - 1))] = _waiting(some, 10 + step)
            case _:
                pass
        now = world(nodes, dict(queues), waiting, used=used)
        afresh = World(cluster=nodes.copy(), queues=now.queues, used=used, claims=(), waiting=now.waiting)
        assert decide(now, 100.0) == decide(afresh, 100.0)


def _message(nodes: Cluster, queues: Mapping[str, QueueSpec], use: int, asks: Shape) -> str:
    """What a gang of one such pod in queue a is told, where that queue uses so many cores."""
    plan = decide(world(nodes, queues, [gang("g", "a", (1, asks))], used={"a": {"cpu": use * 1000}}), 100.0)
    return stay_of(plan, "g").reason.message


def test_what_a_queue_has_left_is_told_anew() -> None:
    nodes, b = cluster(node("n0", cpu="9")), _queue("b", 0, 0)
    asks, limited = shape(cpu=2), {"a": _queue("a", 4, 0), "b": b}
    assert "queue a has 1 of 4 cpu left" in _message(nodes, limited, 3, asks)
    assert "queue a has 0 of 4 cpu left" in _message(nodes, limited, 4, asks)
    assert "queue a has 1 of 4 cpu left" in _message(nodes, limited, 3, asks)
    assert "queue a has 0 of 3 cpu left" in _message(nodes, {"a": _queue("a", 3, 0), "b": b}, 3, asks)


def test_what_is_kept_for_others_is_told_anew() -> None:
    nodes, a = cluster(node("n0", cpu="8")), _queue("a", 0, 0)
    for kept in (5, 6):
        told = _message(nodes, {"a": a, "b": _queue("b", 0, kept)}, 2, shape(cpu=2))
        assert f"{kept} are kept for the guarantee of b" in told


def test_nodes_that_change_their_labels_are_looked_at_anew() -> None:
    nodes, queues = cluster(node("n0", cpu="8", labels={"rack": "a"})), {"a": _queue("a", 0, 0)}
    asks = shape(cpu=2, node_selector=(("rack", "b"),))
    assert "1 without label rack=b" in _message(nodes, queues, 8, asks)
    nodes.set_node(node("n0", cpu="8", labels={"rack": "b"}))
    assert "8 of 8 in the cluster are in use" in _message(nodes, queues, 8, asks)


def test_another_state_knows_nothing() -> None:
    kept = Kept()
    kept.known(1)["q"] = "a"
    assert kept.known(1) == {"q": "a"}
    assert kept.known(2) == {}
    assert kept.known(1) == {}


def test_what_is_kept_is_bounded() -> None:
    kept = Kept()
    kept.known(1).update(dict.fromkeys(range(MANY + 1)))
    assert kept.known(1) == {}
