"""What gangs are told is short, and about the present: in clusters with all kinds of constraints, and with a past."""

import random
import re
import string
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from startgate.engine.cluster import Cluster
from startgate.engine.cycle import decide
from startgate.engine.world import Batch, Plan, Waiting, Within, World
from startgate.model import objects
from startgate.model.queue import QueueSpec
from startgate.model.reasons import LEAST, LONGEST, SENTENCES, Code, reason, shortened
from startgate.model.shape import Shape
from tests.unit.misfits import HOST, JOB, ZONE, gangs, near, places, pods_there, selecting
from tests.unit.worlds import cluster, gang, node, shape, stay_of, world

THOROUGH = settings(deadline=None, max_examples=200)
RARE = ("example.com/x", "example.com/y")
NAMES = ("there0", "there1", "there2", "there3", "there4")
KEPT_TO = st.sampled_from([None, None, Within(key=ZONE), Within(prefer=ZONE)])


@st.composite
def kinds(draw: st.DrawFn) -> Shape:
    """What a gang asks for, now and then of a resource that few nodes or none have named."""
    drawn: Shape = draw(gangs())
    rare = [(each, 1) for each in RARE if draw(st.integers(0, 4)) == 0]
    made: Shape = replace(drawn, request=tuple(sorted((*drawn.request, *rare))))
    return made


@st.composite
def nodes(draw: st.DrawFn) -> list[objects.Node]:
    """With rare resources, on paper at least: `0` names it too."""
    made = []
    for place in draw(places()):
        said = place.node()
        rare = {each: draw(st.sampled_from("0012")) for each in RARE if draw(st.integers(0, 3)) == 0}
        more = replace(said.status, allocatable={**said.status.allocatable, **rare})
        made.append(replace(said, status=more))
    return made


@st.composite
def waiting(draw: st.DrawFn) -> tuple[Waiting, ...]:
    made = []
    for number in range(draw(st.integers(1, 3))):
        within = draw(KEPT_TO)
        minimum = tuple(
            Batch(draw(kinds()), draw(st.integers(1, 5)), within) for _ in range(draw(st.sampled_from([1, 1, 2])))
        )
        made.append(replace(gang(f"g{number}", "q", since=float(number)), minimum=minimum))
    return tuple(made)


class Life:
    """A cluster that is changed in place, and the plain lists of what there is now."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.nodes: dict[str, objects.Node] = {}
        self.pods: dict[str, tuple[str, Shape]] = {}

    def set_nodes(self, drawn: Sequence[objects.Node]) -> None:
        """These, and no others."""
        for name in self.nodes.keys() - {each.metadata.name for each in drawn}:
            self.cluster.remove_node(name)
        for each in drawn:
            self.cluster.set_node(each)
        self.nodes = {each.metadata.name: each for each in drawn}

    def set_pod(self, uid: str, pod: Shape | None, name: str) -> None:
        if pod is None:
            self.cluster.remove_pod(uid)
            self.pods.pop(uid, None)
        else:
            self.cluster.add_pod(uid, name, pod)
            self.pods[uid] = (name, pod)

    def afresh(self, rng: random.Random) -> Cluster:
        """One that has only ever seen what there is now, in another order."""
        made = Cluster()
        for each in rng.sample(sorted(self.nodes), len(self.nodes)):
            made.set_node(self.nodes[each])
        for uid in rng.sample(sorted(self.pods), len(self.pods)):
            made.add_pod(uid, *self.pods[uid])
        return made


def _decided(nodes: Cluster, gangs: tuple[Waiting, ...]) -> Plan:
    return decide(World(cluster=nodes, queues={"q": QueueSpec()}, used={}, claims=(), waiting=gangs), 100.0)


def _lived(data: st.DataObject) -> tuple[Life, tuple[Waiting, ...]]:
    """A life of some moments, and who waits at the last."""
    life = Life()
    for _ in range(data.draw(st.integers(1, 3))):
        life.set_nodes(data.draw(nodes()))
        for uid in data.draw(st.lists(st.sampled_from(NAMES), max_size=5)):
            gone = data.draw(st.integers(0, 3)) == 0
            on = data.draw(st.sampled_from(sorted(life.nodes)))
            life.set_pod(uid, None if gone else data.draw(pods_there()), on)
        gangs = data.draw(waiting())
        _decided(life.cluster, gangs)  # what it keeps from decision to decision is part of its past
    return life, gangs


@THOROUGH
@given(st.data(), st.randoms(use_true_random=False))
def test_what_is_said_depends_on_what_there_is_and_not_on_what_there_was(
    data: st.DataObject, rng: random.Random
) -> None:
    life, gangs = _lived(data)
    assert _decided(life.cluster, gangs) == _decided(life.afresh(rng), gangs)


@THOROUGH
@given(st.data())
def test_sentences_are_short_and_their_counts_add_up(data: st.DataObject) -> None:
    life, gangs = _lived(data)
    for stay in _decided(life.cluster, gangs).stay:
        message = stay.reason.message
        assert len(message) <= LONGEST
        for total, groups in re.findall(r"of (\d+) nodes?: ([^;]*)", message):
            assert int(total) == sum(int(each) for each in re.findall(r"(?:^|, )(\d+) ", groups)), message


@pytest.mark.parametrize("code", Code)
def test_a_sentence_is_short_whatever_people_have_named_their_things(code: Code) -> None:
    names = [name for _, name, _, _ in string.Formatter().parse(SENTENCES[code]) if name]
    facts = {name: f"{name}-{'x' * 1000}" for name in names}
    made = reason(code, **facts)
    assert len(made.message) <= LONGEST
    assert all(str(fact).startswith(name[: LEAST - 1]) for name, fact in made.facts)


def test_the_longest_names_are_cut_and_others_stay() -> None:
    made = reason(Code.NO_SUCH_QUEUE, queue="q" * 253, hint=f" (is it {'r' * 253}?)")
    assert len(made.message) <= LONGEST
    short = reason(Code.QUEUE_STOPPED, queue="q" * 253)
    assert "q" * 253 in short.message
    assert dict(reason(Code.OTHERS_FIRST, asks="1 cpu", gang="ns/" + "g" * 500, why="since").facts)["asks"] == "1 cpu"


def test_what_is_cut_has_a_mark() -> None:
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdef", 4) == "abc…"


def test_a_resource_that_a_node_once_had_is_named_as_one_that_none_ever_had() -> None:
    asks = shape(cpu=1, gpu=1)

    def told(nodes: Cluster) -> str:
        return stay_of(decide(world(nodes, {"q": QueueSpec()}, [gang("g", "q", (1, asks))]), 0.0), "g").reason.message

    before = cluster(node("n0", cpu="0", gpu="1"))
    assert "1 without cpu;" in told(before)
    before.set_node(node("n0", cpu="0"))
    assert "1 without nvidia.com/gpu and cpu;" in told(before)
    assert told(before) == told(cluster(node("n0", cpu="0")))


def test_of_two_that_keep_it_away_the_same_is_named_whoever_came_first() -> None:
    def keeper(key: str) -> Shape:
        return shape(namespace="ns", labels=(("app", "theirs"),), apart=(near(key, selecting(app="ours")),))

    asks = shape(cpu=1, namespace="ns", labels=(("app", "ours"), (JOB, "ours")))
    said = set()
    for keys in ((ZONE, HOST), (HOST, ZONE)):
        nodes = cluster(node("n0", cpu="4", labels={HOST: "n0", ZONE: "a"}))
        for key in keys:
            nodes.add_pod(key, "n0", keeper(key))
        plan = decide(world(nodes, {"q": QueueSpec()}, [gang("g", "q", (1, asks))]), 0.0)
        said.add(stay_of(plan, "g").reason.message)
    assert len(said) == 1
