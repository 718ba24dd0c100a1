"""Who gives way where not every place is of use to the claimant, held against every set of gangs that could be asked.

In worlds so small that all sets can be tried: a queue above what it deserves, with its gangs on a few nodes, and a
claimant that needs one kind of node, or nodes with one value of a label.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from startgate.engine.cycle import decide
from startgate.engine.world import Batch, Waiting, Within
from startgate.model.queue import QueueSpec
from startgate.model.shape import HostPort, Shape
from tests.unit.misfits import near, selecting
from tests.unit.test_giving_way import Field, gave_way
from tests.unit.worlds import cluster, gang, node, shape, stay_of

UNHURRIED = settings(deadline=None)  # the machine may be busy with other things
RACK, DISK, HOST = "rack", "disk", "kubernetes.io/hostname"
ONE = shape(cpu=1)


def field(cpus: Mapping[str, int], *, deserved: int) -> Field:
    """Nodes with so many cpus each; the rack is what is before the dash in a node's name. Queue a is asked by b."""
    nodes = [
        node(name, cpu=str(count), labels={RACK: name.partition("-")[0], HOST: name}) for name, count in cpus.items()
    ]
    queues = {"a": QueueSpec(deserved={"cpu": str(deserved)}), "b": QueueSpec(deserved={"cpu": "8"})}
    return Field(cluster(*nodes), queues)


def claimant(pods: int, each: Shape, *, together: bool = False) -> Waiting:
    waiting = gang("c", "b", since=50.0)
    return replace(waiting, minimum=(Batch(each, pods, Within(key=RACK) if together else None),))


def asked(field: Field, waiting: Waiting) -> list[str]:
    """Who is asked to give way."""
    return sorted(name for name, *_ in gave_way(field.with_waiting(waiting)))


def four_gangs(*places: str) -> Field:
    """Two racks of two nodes, full: of each of four gangs, from the oldest to the youngest, where it is."""
    made = field({"r1-1": 2, "r1-2": 2, "r2-1": 2, "r2-2": 2}, deserved=4)
    for i, place in enumerate(places):
        made.runs(f"g{i}", "a", ONE, {place: 2}, since=float(i))
    return made


def test_those_in_one_rack_give_way_where_the_youngest_are_some_in_each() -> None:
    straddling = four_gangs("r1-1", "r2-1", "r1-2", "r2-2")
    assert asked(straddling, claimant(4, ONE, together=True)) == ["g0", "g2"]
    assert asked(straddling, claimant(4, ONE)) == ["g2", "g3"]


def test_the_rack_with_the_most_room_is_cleared() -> None:
    """r1 and r2 would do both; the youngest are in racks that are too small."""
    made = field({"r1-1": 2, "r1-2": 2, "r2-1": 3, "r2-2": 3, "r3-1": 2, "r4-1": 2}, deserved=8)
    for i, place in enumerate(("r2-1", "r2-2", "r1-1", "r1-2", "r3-1", "r4-1")):
        made.runs(f"g{i}", "a", ONE, {place: 2}, since=float(i))
    assert asked(made, claimant(4, ONE, together=True)) == ["g1"]


def test_another_rack_is_cleared_where_clearing_the_one_with_the_most_room_takes_too_much() -> None:
    """One pod more and a is at its line. r1 has room for two of four and lacks two gangs, r2 for one and lacks one."""
    made = field({"r1-1": 4, "r2-1": 4, "r3-1": 1}, deserved=5)
    for i, on in enumerate(({"r1-1": 1}, {"r1-1": 1}, {"r2-1": 3}, {"r3-1": 1})):
        made.runs(f"g{i}", "a", ONE, on, since=float(i))
    assert asked(made, claimant(4, ONE, together=True)) == ["g2"]


def test_those_on_its_nodes_give_way_where_the_youngest_are_on_others() -> None:
    made = four_gangs("r1-1", "r1-2", "r2-1", "r2-2")
    assert asked(made, claimant(4, shape(cpu=1, node_selector=((RACK, "r1"),)))) == ["g0", "g1"]
    assert asked(made, claimant(2, shape(cpu=1, node_selector=((RACK, "r1"),)))) == ["g1"]


def test_of_those_on_its_nodes_the_youngest_gives_way_wherever_it_is_besides() -> None:
    made = field({"r1-1": 1, "r1-2": 1, "r2-1": 6}, deserved=5)
    for i, on in enumerate(({"r1-1": 1, "r2-1": 1}, {"r1-2": 1, "r2-1": 1}, {"r2-1": 4})):
        made.runs(f"g{i}", "a", ONE, on, since=float(i))
    assert asked(made, claimant(1, shape(cpu=1, node_selector=((RACK, "r1"),)))) == ["g1"]


def test_whose_port_it_needs_gives_way_though_there_is_room() -> None:
    port = (HostPort(8080),)
    made = field({"r1-1": 4, "r2-1": 4}, deserved=1)
    made.runs("port", "a", shape(cpu=0.5, ports=port), {"r1-1": 1})
    made.runs("young", "a", ONE, {"r2-1": 4}, since=1.0)
    assert asked(made, claimant(1, shape(cpu=3, ports=port, node_selector=((RACK, "r1"),)))) == ["port"]


def test_nobody_gives_way_on_nodes_that_are_too_small_for_its_pods() -> None:
    made = field({"r1-1": 4, "r1-2": 4, "r1-s1": 1, "r1-s2": 1, "r1-s3": 1, "r1-s4": 1}, deserved=8)
    places = ("r1-1", "r1-1", "r1-2", "r1-2")
    for i, place in enumerate(places):
        made.runs(f"g{i}", "a", ONE, {place: 2}, since=float(i))
    for i in range(1, 5):
        made.runs(f"small{i}", "a", ONE, {f"r1-s{i}": 1}, since=10.0)
    for together in (False, True):
        assert asked(made, claimant(1, shape(cpu=2), together=together)) == ["g3"]
        assert asked(made, claimant(1, shape(cpu=4), together=together)) == ["g2", "g3"]


def test_nobody_gives_way_on_a_node_that_takes_no_more_of_its_pods_without_it() -> None:
    """One of the two pods has room on r1-1, with the youngest or without. One pod more and a is at its line."""
    made = field({"r1-1": 5, "r1-2": 3}, deserved=3)
    made.runs("old", "a", ONE, {"r1-2": 3})
    made.runs("young", "a", ONE, {"r1-1": 1}, since=1.0)
    assert asked(made, claimant(2, shape(cpu=3))) == ["old"]


def halves(*names: str) -> Field:
    """Nodes of four cpus, full: the older half of each node, and then the younger halves, each a gang of its own."""
    made = field(dict.fromkeys(names, 4), deserved=2 * len(names))
    for half, age in (("old", 0.0), ("young", 10.0)):
        for i, name in enumerate(names):
            made.runs(f"{half}-{name}", "a", ONE, {name: 2}, since=age + i)
    return made


def test_one_whole_node_is_cleared_and_not_half_of_two() -> None:
    made = halves("r1-1", "r1-2")
    for together in (False, True):
        assert asked(made, claimant(1, shape(cpu=4), together=together)) == ["old-r1-1", "young-r1-1"]


def test_whole_nodes_of_one_rack_are_cleared() -> None:
    made = halves("r1-1", "r2-1", "r2-2", "r2-3")
    both = ["old-r2-1", "old-r2-2", "young-r2-1", "young-r2-2"]
    assert asked(made, claimant(2, shape(cpu=4), together=True)) == both
    assert asked(made, claimant(2, shape(cpu=4, node_selector=((RACK, "r2"),)))) == both


def test_whole_nodes_are_cleared_whoever_is_where_it_may_not_go() -> None:
    """r0-1 lacks nothing, and has the youngest."""
    made = halves("r1-1", "r1-2")
    made.nodes.set_node(node("r0-1", cpu="9", labels={RACK: "r0"}))
    for i in range(2):
        made.runs(f"r0-{i}", "a", ONE, {"r0-1": 2}, since=20.0)
    claim = claimant(1, shape(cpu=4, node_selector=((RACK, "r1"),)))
    made.queues = {**made.queues, "a": QueueSpec(deserved={"cpu": "8"})}
    assert asked(made, claim) == ["old-r1-1", "young-r1-1"]


def test_the_node_that_lacks_the_least_is_cleared() -> None:
    made = field({"n1": 4, "n2": 4, "n3": 4}, deserved=6)
    for i, place in enumerate(("n1", "n3", "n2", "n1", "n2")):
        made.runs(f"g{i}", "a", ONE, {place: 2}, since=float(i))
    made.nodes.add_pod("other", "n3", shape(cpu=1))
    assert asked(made, claimant(1, shape(cpu=3))) == ["g1"]


def test_who_is_in_its_rack_alone_goes_before_who_is_elsewhere_too() -> None:
    """The youngest has one pod in r1; with that one gone a is at its line."""
    made = field({"r1-1": 3, "r2-1": 4}, deserved=4)
    made.runs("keeps", "a", ONE, {"r2-1": 1}, since=0.0)
    made.runs("wholly", "a", ONE, {"r1-1": 2}, since=1.0)
    made.runs("partly", "a", ONE, {"r1-1": 1, "r2-1": 3}, since=2.0)
    assert asked(made, claimant(2, shape(cpu=1, node_selector=((RACK, "r1"),)))) == ["wholly"]


def test_pods_beyond_a_minimum_go_in_their_order_though_the_first_is_of_no_help() -> None:
    """The younger one's are in r2. Of the older one's pods that may go alone the one in r1 is the second."""
    made = field({"r1-1": 2, "r2-1": 6}, deserved=6)
    made.runs("older", "a", ONE, {"r1-1": 2, "r2-1": 2}, since=0.0, surplus=["r2-1", "r1-1"])
    made.runs("younger", "a", ONE, {"r2-1": 4}, since=1.0, surplus=["r2-1", "r2-1"])
    plan = decide(made.with_waiting(claimant(1, shape(cpu=1, node_selector=((RACK, "r1"),)))), 100.0)
    assert [(each.gang, each.pods) for each in plan.evict] == [("ns/older", 2)]
    assert "waits for 2 pods to go" in stay_of(plan, "c").reason.message


# --- what keeps pods away by more than amounts -------------------------------------------------------------------

PORT = (HostPort(8080),)


def test_whose_port_can_be_had_gives_way_and_not_the_young_on_a_node_whose_port_can_t() -> None:
    made = field({"n1": 6, "n2": 6}, deserved=3)
    made.nodes.add_pod("other", "n1", shape(cpu=1, ports=PORT))
    made.runs("port", "a", shape(cpu=0.5, ports=PORT), {"n2": 1})
    made.runs("young", "a", ONE, {"n1": 3}, since=1.0)
    assert asked(made, claimant(1, shape(cpu=1, ports=PORT))) == ["port"]


def test_of_those_on_one_node_the_one_with_the_port_gives_way() -> None:
    """The younger ones' going would leave their queue with nothing more to give."""
    made = field({"n1": 9}, deserved=3)
    made.runs("port", "a", shape(cpu=0.5, ports=PORT), {"n1": 1})
    made.runs("young", "a", ONE, {"n1": 3}, since=1.0)
    assert asked(made, claimant(1, shape(cpu=1, ports=PORT))) == ["port"]


def test_who_has_an_anti_affinity_gives_way_on_another_node_of_the_rack() -> None:
    away = shape(cpu=0.5, namespace="ns", apart=(near(RACK, selecting(app="ours")),))
    made = field({"r1-1": 6, "r1-2": 6, "r2-1": 6}, deserved=3)
    made.nodes.add_pod("other", "r2-1", away)
    made.runs("away", "a", away, {"r1-2": 1})
    made.runs("young", "a", ONE, {"r1-1": 2, "r2-1": 1}, since=1.0)
    ours = shape(cpu=4, namespace="ns", labels=(("app", "ours"),), node_selector=((HOST, "r1-1"),))
    assert asked(made, claimant(1, ours)) == ["away"]


def test_nobody_gives_way_for_a_port_that_can_t_be_had() -> None:
    made = field({"n1": 6, "n2": 6}, deserved=1)
    for name in ("n1", "n2"):
        made.nodes.add_pod(f"other-{name}", name, shape(cpu=1, ports=PORT))
    made.runs("port", "a", shape(cpu=0.5, ports=(HostPort(8081),)), {"n2": 1})
    made.runs("young", "a", ONE, {"n1": 3}, since=1.0)
    assert asked(made, claimant(1, shape(cpu=1, ports=PORT))) == []


# --- every set of gangs -----------------------------------------------------------------------------------------


class Small(NamedTuple):
    """A world for one claimant, in whole cpus. Pods that run have one each."""

    nodes: tuple[tuple[int, str, str], ...]
    """Of each: its cpus, its rack and its kind of disk."""
    gangs: tuple[tuple[int, ...], ...]
    """Of each, the oldest first, on which nodes its pods are."""
    deserved: int
    """What their queue deserves."""
    pods: int
    """How many the claimant has."""
    cpus: int
    """How much each of them asks for."""
    disk: str
    """On which kind of disk it has to be; empty: on any."""
    together: bool

    def victims(self) -> list[int]:
        """Who is asked to give way."""
        nodes = [
            node(f"n{i}", cpu=str(cpus), labels={RACK: rack, DISK: disk})
            for i, (cpus, rack, disk) in enumerate(self.nodes)
        ]
        queues = {
            "a": QueueSpec(deserved={"cpu": str(self.deserved)}),
            "b": QueueSpec(deserved={"cpu": str(self.pods * self.cpus)}),
        }
        made = Field(cluster(*nodes), queues)
        for i, where in enumerate(self.gangs):
            made.runs(f"{i}", "a", ONE, {f"n{each}": where.count(each) for each in where}, since=float(i))
        each = shape(cpu=self.cpus, node_selector=((DISK, self.disk),) if self.disk else ())
        return [int(name) for name in asked(made, claimant(self.pods, each, together=self.together))]

    def room(self, gone: Iterable[int]) -> int:
        """For how many of the claimant's pods there is room without these gangs."""
        free, left = [cpus for cpus, _, _ in self.nodes], set(range(len(self.gangs))).difference(gone)
        for i in left:
            for each in self.gangs[i]:
                free[each] -= 1
        room = {rack: 0 for _, rack, _ in self.nodes}
        for cpus, (_, rack, disk) in zip(free, self.nodes, strict=True):
            room[rack] += cpus // self.cpus if self.disk in ("", disk) else 0
        return (max if self.together else sum)(room.values())

    def allowed(self) -> Iterator[tuple[int, ...]]:
        """All sets of gangs that leave their queue what it deserves."""
        sizes = list(map(len, self.gangs))
        for count in range(len(sizes) + 1):
            for gone in combinations(range(len(sizes)), count):
                if sum(sizes) - sum(sizes[i] for i in gone) >= self.deserved:
                    yield gone


@st.composite
def smalls(draw: st.DrawFn, *, alike: bool = False) -> Small:
    """`alike`: all gangs are of one size, each is on one node, and a pod of the claimant is no larger than one of
    theirs; so it doesn't matter which of those on one node go, and nothing is left over in pieces."""
    kinds = st.tuples(st.integers(1, 6), st.sampled_from("xyz"), st.sampled_from("ds"))
    nodes = tuple(draw(st.lists(kinds, min_size=2, max_size=5)))
    free = [cpus for cpus, _, _ in nodes]
    size, gangs = draw(st.integers(1, 3)), []
    for _ in range(draw(st.integers(1, 7))):
        pods = size if alike else draw(st.integers(1, 4))
        where: list[int] = []
        for _ in range(1 if alike else pods):
            room = [i for i, left in enumerate(free) if left >= (size if alike else 1)]
            if room:
                where.append(draw(st.sampled_from(room)))
                free[where[-1]] -= size if alike else 1
        if where:
            gangs.append(tuple(where * size if alike else where))
    return Small(
        nodes=nodes,
        gangs=tuple(gangs),
        deserved=draw(st.integers(0, max(0, sum(map(len, gangs)) - 1))),
        pods=draw(st.integers(1, 6)),
        cpus=1 if alike else draw(st.integers(1, 3)),
        disk=draw(st.sampled_from(["", "d"])),
        together=draw(st.booleans()),
    )


@UNHURRIED
@given(smalls(alike=True), st.data())
def test_where_any_set_of_gangs_would_do_some_are_asked(small: Small, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(list(small.allowed())[1:] or [()]))
    asks = small._replace(pods=small.room(gone))
    assert asks.victims() or asks.room(()) == asks.pods


@UNHURRIED
@given(smalls())
def test_those_who_are_asked_are_enough_and_none_of_them_could_stay(small: Small) -> None:
    victims = small.victims()
    assert not victims or small.room(victims) >= small.pods
    assert not any(small.room(set(victims) - {spared}) >= small.pods for spared in victims)
