"""What pods without our label use: the same as a sum over all pods, whatever order they came and went in."""

from hypothesis import given
from hypothesis import strategies as st

from controller.unlabelled import Unlabelled
from startgate.model.objects import Namespace, ObjectMeta
from startgate.model.pods import Pod
from startgate.model.queue import Queue, QueueSpec
from startgate.model.resources import add
from startgate.model.selectors import LabelSelector
from startgate.model.shape import Shape

SMALL = Shape(request=(("cpu", 1000), ("pods", 1)))
LARGE = Shape(request=(("cpu", 4000), ("memory", 2**30), ("pods", 1)))
SPACES = (Namespace(ObjectMeta(name="a", labels={"team": "eval"})), Namespace(ObjectMeta(name="b")))
ALL = Queue(metadata=ObjectMeta(name="all"))
EVAL = Queue(metadata=ObjectMeta(name="eval"), spec=QueueSpec(namespaces=LabelSelector(match_labels={"team": "eval"})))


def pod(name: str, namespace: str, shape: Shape, *, node: str = "n", queue: str = "", phase: str = "Running") -> Pod:
    return Pod(namespace=namespace, name=name, uid=name, version=1, shape=shape, node=node, queue=queue, phase=phase)


def test_only_pods_on_nodes_that_are_not_ours_count() -> None:
    seen = Unlabelled()
    for other in (
        pod("p", "a", SMALL),
        pod("q", "a", SMALL, queue="q"),
        pod("r", "a", SMALL, node=""),
        pod("s", "a", SMALL, phase="Succeeded"),
    ):
        seen.change(None, other)
    assert seen.seen_by(ALL, SPACES) == {"cpu": 1000, "pods": 1}


pods = st.builds(
    pod,
    st.sampled_from("pqr"),
    st.just("a"),
    st.sampled_from([SMALL, LARGE]),
    node=st.sampled_from(["", "n"]),
    queue=st.sampled_from(["", "q"]),
    phase=st.sampled_from(["Running", "Failed"]),
)


@given(st.lists(st.tuples(pods, st.sampled_from("ab"), st.booleans())))
def test_it_is_what_a_sum_over_all_pods_says(steps: list[tuple[Pod, str, bool]]) -> None:
    seen, there = Unlabelled(), dict[str, Pod]()
    for changed, namespace, goes in steps:
        key = f"{namespace}/{changed.name}"
        changed.namespace = namespace
        old = there.pop(key, None)
        if not goes:
            there[key] = changed
        seen.change(old, there.get(key))
    counted = [each for each in there.values() if each.node and not each.queue and not each.ended]
    assert seen.seen_by(ALL, SPACES) == add(*(each.shape.amounts for each in counted))
    assert seen.seen_by(EVAL, SPACES) == add(*(each.shape.amounts for each in counted if each.namespace == "a"))
