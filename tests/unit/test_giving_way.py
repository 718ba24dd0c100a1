"""Who gives way for whom, who doesn't, and what is kept for whom: one decision on small worlds."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from startgate.engine.cluster import Cluster
from startgate.engine.cycle import decide
from startgate.engine.observe import amounts_of
from startgate.engine.world import Batch, Claim, ClaimKind, Holder, Placement, Rule, Waiting, Within, World
from startgate.model.queue import QueueSpec
from startgate.model.reasons import Code
from startgate.model.resources import Amounts, add
from startgate.model.shape import HostPort, Shape
from tests.unit.worlds import GPU, cluster, gang, go_of, node, shape, stay_of, went, world

ONE = shape(cpu=1)
ANY = {"q": QueueSpec()}


class Field:
    """Nodes with gangs on them, put together gang by gang."""

    def __init__(self, nodes: Cluster, queues: Mapping[str, QueueSpec]) -> None:
        self.nodes = nodes
        self.queues = queues
        self.holders: list[Holder] = []

    def runs(
        self,
        name: str,
        queue: str,
        each: Shape,
        on: Mapping[str, int],
        *,
        since: float = 0.0,
        priority: int = 0,
        surplus: Sequence[str] = (),
        takeable: bool = True,
        leaves: bool = False,
        ends: float = float("inf"),
    ) -> None:
        """A gang with so many pods on each node; `surplus`: the nodes of those that may go alone."""
        for place, count in on.items():
            for i in range(count):
                self.nodes.add_pod(f"{name}-{place}-{i}", place, each, ours=True)
        pods = (Placement(each, tuple(on.items())),)
        charge: Amounts = amounts_of((Batch(each, sum(on.values())),))
        self.holders.append(
            Holder(
                gang=f"ns/{name}",
                queue=queue,
                priority=priority,
                since=since,
                charge={} if leaves else charge,
                pods=() if leaves else pods,
                leaving=pods if leaves else (),
                leaving_charge=charge if leaves else {},
                takeable=takeable and not leaves,
                surplus=tuple(Placement(each, ((place, 1),)) for place in surplus),
                ends=ends,
            )
        )

    def with_waiting(self, *waiting: Waiting, patience: float = 600.0) -> World:
        used: dict[str, Amounts] = {}
        for holder in self.holders:
            used[holder.queue] = add(used.get(holder.queue, {}), holder.charge, holder.leaving_charge)
        made = world(self.nodes, self.queues, waiting, used=used)
        return replace(made, holders=tuple(self.holders), patience=patience)


def gave_way(plan_world: World, now: float = 100.0) -> list[tuple[str, str, Rule, int]]:
    return [
        (each.gang.removeprefix("ns/"), each.claimant.removeprefix("ns/"), each.rule, each.pods)
        for each in decide(plan_world, now).evict
    ]


def halves(*, a: int = 8, b: int = 8) -> dict[str, QueueSpec]:
    return {"a": QueueSpec(deserved={GPU: str(a)}), "b": QueueSpec(deserved={GPU: str(b)})}


# --- reclaim ----------------------------------------------------------------------------------------------------


def test_the_youngest_of_the_queue_above_its_share_gives_way_and_says_to_whom_and_why() -> None:
    field = Field(cluster(*(node(f"n{i}", gpu="4") for i in range(4))), halves())
    for i in range(4):
        field.runs(f"a{i}", "a", shape(gpu=1), {f"n{i}": 4}, since=float(i))
    asked = field.with_waiting(gang("b0", "b", (4, shape(gpu=1)), since=50.0))
    plan = decide(asked, 100.0)
    assert gave_way(asked) == [("a3", "b0", Rule.DESERVED, 0)]
    assert plan.evict[0].reason.message == (
        "gave its place to ns/b0 of queue b, which is within its deserved share, while queue a is above its own "
        "(16 of 8 nvidia.com/gpu); it keeps its age and starts again in its turn"
    )
    assert plan.evict[0].numbers["victim a"] == "nvidia.com/gpu=16/8 pods=16/220"
    assert stay_of(plan, "b0").reason.message == (
        "its turn has come: ns/a3 gave way, and it waits for 4 pods to go; what they free is held for it"
    )


def test_nobody_gives_way_for_more_than_the_share() -> None:
    field = Field(cluster(*(node(f"n{i}", gpu="4") for i in range(4))), halves())
    for i in range(4):
        field.runs(f"a{i}", "a", shape(gpu=1), {f"n{i}": 4}, since=float(i))
    waiting = [gang(f"b{i}", "b", (4, shape(gpu=1)), since=50.0 + i) for i in range(4)]
    assert [each[:2] for each in gave_way(field.with_waiting(*waiting))] == [("a3", "b0"), ("a2", "b1")]


def test_what_is_on_its_way_out_is_enough() -> None:
    """The first decision's victims still leave: the second asks nobody else to."""
    field = Field(cluster(*(node(f"n{i}", gpu="4") for i in range(4))), halves())
    for i in range(4):
        field.runs(f"a{i}", "a", shape(gpu=1), {f"n{i}": 4}, since=float(i), leaves=i == 3)
    claimant = gang("b0", "b", (4, shape(gpu=1)), since=50.0, victims=("ns/a3",))
    back = gang("a3", "a", (4, shape(gpu=1)), since=3.0)
    plan = decide(field.with_waiting(claimant, back), 100.0)
    assert (plan.go, plan.evict) == ((), ())
    assert stay_of(plan, "b0").reason.code is Code.MAKING_ROOM


def test_what_is_freed_is_kept_for_the_claimant_though_others_come_first() -> None:
    """One of its two victims is gone. An older gang of a queue with a lesser share can't have that node."""
    queues = {**halves(), "c": QueueSpec()}
    field = Field(cluster(node("n0", gpu="4"), node("n1", gpu="4")), queues)
    field.runs("a1", "a", shape(gpu=1), {"n1": 4}, leaves=True)
    claimant = gang("b0", "b", (8, shape(gpu=1)), since=50.0, victims=("ns/a0", "ns/a1"))
    plan = decide(field.with_waiting(claimant, gang("c0", "c", (4, shape(gpu=1)))), 100.0)
    assert went(plan) == []
    assert stay_of(plan, "c0").reason.message == (
        "needs 4 nvidia.com/gpu, 4 pods, which is free but held for ns/b0, for which others make room; "
        "it starts when that has started, or more is free"
    )


def test_who_others_gave_way_for_comes_first_when_they_are_gone() -> None:
    queues = {"a": QueueSpec(), "b": QueueSpec()}
    waiting = [gang("x", "a", (1, ONE)), gang("y", "b", (1, ONE), since=1.0, victims=("ns/gone",))]
    assert went(decide(world(cluster(node("n", cpu="1")), queues, waiting), 1.0)) == ["y"]


def test_what_leaves_already_is_kept_for_who_could_ask_others_to() -> None:
    """Else g1 took n again, and the next decision asked g2 to go."""
    field = Field(cluster(*(node(name, cpu="1") for name in "nmk")), ANY)
    field.runs("g1", "q", ONE, {"k": 1}, leaves=True)
    field.runs("g2", "q", ONE, {"m": 1})
    plan = decide(field.with_waiting(gang("g1", "q", (1, ONE)), gang("big", "q", (2, ONE), priority=1)), 1.0)
    assert (plan.go, plan.evict) == ((), ())


def test_none_that_could_stay_goes() -> None:
    """The small one is the youngest, but the big one has to go in any case, and is enough."""
    field = Field(cluster(node("n", gpu="8")), halves(a=2, b=6))
    field.runs("big", "a", shape(gpu=1), {"n": 7}, since=1.0)
    field.runs("small", "a", shape(gpu=1), {"n": 1}, since=2.0)
    assert gave_way(field.with_waiting(gang("b", "b", (6, shape(gpu=1)), since=50.0))) == [
        ("big", "b", Rule.DESERVED, 0)
    ]


def test_room_in_pieces_that_are_too_small_takes_nobodys_place() -> None:
    field = Field(cluster(*(node(f"n{i}", gpu="4") for i in range(4))), halves())
    for i in range(4):
        field.runs(f"x{i}", "b", shape(gpu=1), {f"n{i}": 1}, takeable=False)
        field.runs(f"a{i}", "a", shape(gpu=1), {f"n{i}": 3}, since=float(i))
    assert gave_way(field.with_waiting(gang("b", "b", (1, shape(gpu=4)), since=50.0))) == []


def test_one_gang_above_the_share_gives_way_to_a_lesser_share_and_not_the_other_way_round() -> None:
    field = Field(cluster(node("n", gpu="16")), halves())
    field.runs("all", "a", shape(gpu=1), {"n": 16})
    assert gave_way(field.with_waiting(gang("b", "b", (8, shape(gpu=1)), since=50.0))) == [
        ("all", "b", Rule.DESERVED, 0)
    ]
    after = Field(cluster(node("n", gpu="16")), halves())
    after.runs("b", "b", shape(gpu=1), {"n": 8})
    assert gave_way(after.with_waiting(gang("all", "a", (16, shape(gpu=1)), since=50.0))) == []


def test_a_queue_that_is_not_reclaimable_keeps_what_it_has() -> None:
    queues = {"p": QueueSpec(reclaimable=False), "a": QueueSpec(parent="p"), "b": QueueSpec(deserved={GPU: "8"})}
    field = Field(cluster(node("n", gpu="8")), queues)
    field.runs("a", "a", shape(gpu=1), {"n": 8})
    assert gave_way(field.with_waiting(gang("b", "b", (4, shape(gpu=1)), since=50.0))) == []


def test_the_guarantee_comes_before_what_is_deserved() -> None:
    queues = {"a": QueueSpec(), "b": QueueSpec(guarantee={GPU: "4"})}
    field = Field(cluster(node("n", gpu="8")), queues)
    field.runs("a1", "a", shape(gpu=1), {"n": 4}, since=1.0)
    field.runs("a2", "a", shape(gpu=1), {"n": 4}, since=2.0)
    assert gave_way(field.with_waiting(gang("b", "b", (4, shape(gpu=1)), since=50.0))) == [
        ("a2", "b", Rule.GUARANTEE, 0)
    ]


def test_pods_beyond_the_minimum_go_alone_and_before_whole_gangs() -> None:
    field = Field(cluster(node("n", gpu="8"), node("m", gpu="8")), halves())
    field.runs("elastic", "a", shape(gpu=1), {"n": 8}, since=1.0, surplus=["n"] * 4)
    field.runs("young", "a", shape(gpu=1), {"m": 8}, since=2.0)
    waiting = gang("b", "b", (3, shape(gpu=1)), since=50.0)
    assert gave_way(field.with_waiting(waiting)) == [("elastic", "b", Rule.DESERVED, 3)]


def test_nobody_starts_who_would_be_asked_to_give_way_at_once() -> None:
    """x has the least share and nothing deserved, y is within what its queue deserves: by share alone x would start,
    and give way to y in the next decision, for ever."""
    field = Field(cluster(node("n", cpu="4")), {"a": QueueSpec(deserved={"cpu": 0}), "b": QueueSpec()})
    field.runs("r", "b", ONE, {"n": 3})
    plan = decide(field.with_waiting(gang("x", "a", (1, ONE)), gang("y", "b", (1, ONE), since=1.0)), 2.0)
    assert went(plan) == ["y"]
    assert plan.evict == ()


# --- preemption -------------------------------------------------------------------------------------------------


def test_a_higher_priority_takes_the_place_of_a_whole_lower_gang_of_its_queue() -> None:
    field = Field(cluster(node("n0", cpu="48"), node("n1", cpu="48")), ANY)
    field.runs("low", "q", shape(cpu=34), {"n0": 1, "n1": 1})
    asked = field.with_waiting(gang("high", "q", (1, shape(cpu=34)), priority=10, since=50.0))
    assert gave_way(asked) == [("low", "high", Rule.PRIORITY, 0)]
    assert "whose priority is 10 and its own 0" in decide(asked, 100.0).evict[0].reason.message


def test_no_preemption_by_who_never_preempts_nor_of_another_queue_nor_of_an_equal() -> None:
    queues = {"q": QueueSpec(deserved={"cpu": "2"}), "other": QueueSpec(deserved={"cpu": "2"})}
    field = Field(cluster(node("n", cpu="4")), queues)
    field.runs("q1", "q", ONE, {"n": 2}, priority=5)
    field.runs("other", "other", ONE, {"n": 2})
    for waiting in (
        gang("never", "q", (1, ONE), priority=10, preempts=False),
        gang("equal", "q", (1, ONE), priority=5),
    ):
        assert gave_way(field.with_waiting(waiting)) == []
    assert gave_way(field.with_waiting(gang("higher", "q", (1, ONE), priority=10))) == [
        ("q1", "higher", Rule.PRIORITY, 0)
    ]


def test_a_higher_one_comes_before_a_lower_one_that_has_got_in_before_it_in_the_same_decision() -> None:
    """c comes first and would take what is free. Only the lower gang of a is small enough to reclaim that; then the
    higher one, for which there was no room, is the one to have it. Or it would be taken back in the next decision."""
    queues = {name: QueueSpec(deserved={"cpu": cpu}) for name, cpu in (("a", "2"), ("c", "1"))}
    field = Field(cluster(node("n", cpu="3")), queues)
    waiting = gang("c", "c", (2, ONE), priority=2), gang("high", "a", (3, ONE), priority=1), gang("low", "a", (2, ONE))
    assert went(decide(field.with_waiting(*waiting), 100.0)) == ["high"]


def test_nobody_keeps_a_place_that_another_who_had_its_turn_before_could_claim_at_once() -> None:
    """The second of a, which needs a GPU, had its turn while b had what it deserves. Then b gets more than that; so one
    of b is moved in this decision, and not taken back in the next."""
    queues = {"a": QueueSpec(deserved={"cpu": "4", GPU: "2"}), "b": QueueSpec(deserved={"cpu": "2"})}
    field = Field(cluster(node("n0", cpu="8", gpu="1"), node("n1", cpu="4", gpu="4")), queues)
    field.runs("old", "a", ONE, {"n1": 2})
    first, second = (gang(name, "a", (1, shape(cpu=1, gpu=1)), since=10.0) for name in ("first", "second"))
    b = [gang(f"b{i}", "b", (2, ONE), since=10.0) for i in range(2)]
    plan = decide(field.with_waiting(first, second, *b), 20.0)
    assert sorted(went(plan)) == ["b0", "b1", "first", "second"]
    assert go_of(plan, "second").placements[0].nodes == (("n1", 1),)


# --- patience ---------------------------------------------------------------------------------------------------


def test_small_ones_pass_until_patience_is_over() -> None:
    field = Field(cluster(node("n", cpu="4")), ANY)
    field.runs("old", "q", ONE, {"n": 1}, priority=1)
    waiting = gang("big", "q", (4, ONE)), gang("small", "q", (1, ONE), since=500.0)
    assert went(decide(field.with_waiting(*waiting), 599.0)) == ["small"]
    late = decide(field.with_waiting(*waiting), 600.0)
    assert went(late) == []
    assert stay_of(late, "small").reason.message == (
        "needs 1 cpu, 1 pod, which is free but held for ns/big, which has waited longer than patience allows; "
        "it starts when that has started, or more is free"
    )


def test_nothing_is_kept_for_whom_it_was_kept_once_that_starts() -> None:
    """The first small one takes the place that big would have started in. The second, tried before that is seen to be
    room for it too, is protected; and starts in the same decision."""
    queues = {"a": QueueSpec(deserved={"cpu": "1"}), "b": QueueSpec(deserved={"cpu": "2"})}
    field = Field(cluster(node("n", cpu="3")), queues)
    small = [gang(f"s{i}", "b", (1, ONE), since=1.0) for i in range(3)]
    assert went(decide(field.with_waiting(gang("big", "a", (3, ONE)), *small), 1000.0)) == ["s0", "s1", "s2"]


def test_the_other_half_of_the_node_that_will_be_free_is_kept_too() -> None:
    """Of the big gang's two pods one fits, with or without the small one: counting them says nothing (design,
    "Patience"); but where the small one would be, the other could not go when "old" has ended."""
    field = Field(cluster(node("n1", gpu="8"), node("n2", gpu="8"), node("n3", gpu="4")), ANY)
    field.runs("old", "q", shape(gpu=4), {"n2": 1}, priority=1)
    waiting = gang("big", "q", (2, shape(gpu=8))), gang("s1", "q", (1, shape(gpu=4)), since=700.0)
    plan = decide(field.with_waiting(*waiting, gang("s2", "q", (1, shape(gpu=4)), since=701.0)), 1000.0)
    assert went(plan) == ["s1"]
    assert go_of(plan, "s1").placements[0].nodes == (("n3", 1),)
    assert stay_of(plan, "s2").reason.code is Code.OTHERS_FIRST


def test_who_is_sure_to_have_ended_in_time_may_pass() -> None:
    field = Field(cluster(node("n", cpu="4")), ANY)
    field.runs("old", "q", ONE, {"n": 2}, priority=1, ends=2000.0)
    big = gang("big", "q", (4, ONE))
    for lasts, goes in ((900.0, ["s"]), (1100.0, [])):
        plan = decide(field.with_waiting(big, gang("s", "q", (1, ONE), since=700.0, lasts=lasts)), 1000.0)
        assert went(plan) == goes


def test_a_queue_below_what_it_deserves_is_not_held_back() -> None:
    queues = {"a": QueueSpec(deserved={"cpu": "4"}), "b": QueueSpec(deserved={"cpu": "2"})}
    field = Field(cluster(node("n", cpu="4"), node("m", cpu="2")), queues)
    field.runs("old", "a", ONE, {"n": 1, "m": 2}, priority=1, takeable=False)
    waiting = gang("big", "a", (1, shape(cpu=4))), gang("mine", "b", (1, ONE), since=700.0)
    assert went(decide(field.with_waiting(*waiting), 1000.0)) == ["mine"]


def test_where_the_kept_place_moves_others_may_have_what_is_let_go_of_in_the_same_decision() -> None:
    """n1 is kept for big. x of another queue, which is below what it deserves, takes part of that; so n2 is kept."""
    queues = {"a": QueueSpec(deserved={"cpu": "6"}), "b": QueueSpec(deserved={"cpu": "6"})}
    field = Field(cluster(node("n1", cpu="6", labels={"disk": "fast"}), node("n2", cpu="6")), queues)
    field.runs("one", "b", ONE, {"n1": 1}, takeable=False)
    field.runs("two", "b", ONE, {"n2": 2}, takeable=False)
    fast = shape(cpu=1, node_selector=(("disk", "fast"),))
    waiting = gang("big", "a", (1, shape(cpu=6))), gang("small", "a", (1, fast), since=700.0)
    assert went(decide(field.with_waiting(*waiting), 1000.0)) == []
    assert went(decide(field.with_waiting(*waiting, gang("x", "b", (3, fast), since=700.0)), 1000.0)) == ["x", "small"]


def test_who_asks_for_more_than_its_queue_deserves_is_not_protected() -> None:
    queues = {"a": QueueSpec(deserved={"cpu": "2"}), "b": QueueSpec(deserved={"cpu": "2"})}
    field = Field(cluster(node("n", cpu="4")), queues)
    field.runs("old", "b", ONE, {"n": 2}, priority=1, takeable=False)
    waiting = gang("big", "a", (1, shape(cpu=3))), gang("small", "a", (1, ONE), since=700.0)
    assert went(decide(field.with_waiting(*waiting), 1000.0)) == ["small"]


# --- pods beyond the minimum ------------------------------------------------------------------------------------


def test_all_minimums_come_before_any_pod_beyond_one() -> None:
    waiting = [gang(name, "q", (2, ONE), extra=(Batch(ONE, 6),)) for name in ("first", "second", "third")]
    plan = decide(world(cluster(node("n", cpu="8")), ANY, waiting), 1.0)
    assert {each.gang.removeprefix("ns/"): each.count for each in plan.go} == {"first": 4, "second": 2, "third": 2}


def test_pods_beyond_the_minimum_come_first_where_they_are_deserved() -> None:
    queues = {"a": QueueSpec(deserved={"cpu": "2"}), "b": QueueSpec(deserved={"cpu": "6"})}
    waiting = [gang(name, name, (1, ONE), extra=(Batch(ONE, 9),)) for name in ("a", "b")]
    plan = decide(world(cluster(node("n", cpu="8")), queues, waiting), 1.0)
    assert {each.gang.removeprefix("ns/"): each.count for each in plan.go} == {"a": 2, "b": 6}


def test_a_pod_that_is_replaced_costs_nobody_his_place() -> None:
    """By weight a deserves 5 of 16 and b 11. What leaves isn't use; were its replacement not asked for either, a would
    deserve 4 while its replacement comes, be above that with it, and lose a gang to b."""
    field = Field(cluster(node("n", cpu="16")), {"a": QueueSpec(), "b": QueueSpec()})
    for i in range(4):
        field.runs(f"a{i}", "a", ONE, {"n": 1}, since=float(i))
    field.runs("a4", "a", ONE, {"n": 1}, since=4.0, leaves=True)
    for i in range(5):
        field.runs(f"b{i}", "b", shape(cpu=2), {"n": 1}, since=float(i))
    slot = Claim(gang="ns/a4", queue="a", kind=ClaimKind.REPLACE, batches=(Batch(ONE, 1),), since=4.0)
    asked = field.with_waiting(gang("b5", "b", (1, shape(cpu=2)), since=50.0))
    plan = decide(replace(asked, claims=(slot,)), 100.0)
    assert plan.evict == ()
    assert plan.queues["a"].deserved["cpu"] == 5000


def test_pods_beyond_the_minimum_go_in_their_order_and_are_counted() -> None:
    """Only m can take the claimant, and the pod there is the third to go: so three go, and that is what is said."""
    field = Field(cluster(node("n", gpu="6"), node("m", gpu="2")), halves(a=4, b=4))
    field.runs("elastic", "a", shape(gpu=1), {"n": 6, "m": 2}, surplus=["n", "n", "m"])
    claimant = gang("b", "b", (1, shape(gpu=1, node_selector=(("kubernetes.io/hostname", "m"),))), since=50.0)
    field.nodes.set_node(node("m", gpu="2", labels={"kubernetes.io/hostname": "m"}))
    plan = decide(field.with_waiting(claimant), 100.0)
    assert [(each.gang, each.pods) for each in plan.evict] == [("ns/elastic", 3)]
    assert "waits for 3 pods to go" in stay_of(plan, "b").reason.message


def test_a_unit_that_two_deserve_by_half_stays_where_it_is_whatever_the_weights() -> None:
    """Of two GPUs a deserves 1.5 and b 0.5. Each has one: neither's may be asked for by the other."""
    field = Field(cluster(node("n", gpu="2")), {"a": QueueSpec(weight=3), "b": QueueSpec()})
    field.runs("ra", "a", shape(gpu=1), {"n": 1})
    field.runs("rb", "b", shape(gpu=1), {"n": 1})
    waiting = [gang(name, "a", (1, shape(gpu=1)), since=1.0) for name in ("x", "y")]
    assert gave_way(field.with_waiting(*waiting)) == []


def test_who_is_protected_is_not_told_of_itself() -> None:
    """It gave way and is overdue at once, by its age; what is free is held for the claimant."""
    field = Field(cluster(node("n", cpu="2")), {"a": QueueSpec(), "b": QueueSpec()})
    field.runs("v", "b", ONE, {"n": 1}, leaves=True)
    claimant = gang("c", "a", (2, ONE), since=700.0, victims=("ns/v",))
    plan = decide(field.with_waiting(gang("v", "b", (1, ONE)), claimant), 702.0)
    assert "held for ns/c, for which others make room" in stay_of(plan, "v").reason.message


def _heirs() -> tuple[Waiting, Waiting]:
    """Others gave way for both. One goes to two nodes, of one rack if it can; the other, younger, needs all of n0."""
    port = shape(cpu=1, ports=(HostPort(81),))
    old = gang("old", "q", (2, port), victims=("ns/v",))
    old = replace(old, minimum=(Batch(port, 2, Within(prefer="rack")),))
    return old, gang("young", "q", (1, shape(cpu=6)), since=9.0, victims=("ns/v",))


def _racks() -> Field:
    of = {"n0": ("6", "x"), "n1": ("2", "x"), "n2": ("5", "y")}
    return Field(cluster(*(node(name, cpu=cpu, labels={"rack": rack}) for name, (cpu, rack) in of.items())), ANY)


def test_each_for_whom_others_gave_way_gets_a_place() -> None:
    plan = decide(_racks().with_waiting(*_heirs(), gang("other", "q", (1, shape(cpu=6)), since=1.0)), 100.0)
    assert sorted(went(plan)) == ["old", "young"]


def test_who_can_start_already_leaves_the_place_of_who_waits_for_pods_on_their_way_out() -> None:
    field = _racks()
    field.runs("v", "q", shape(cpu=5), {"n0": 1}, leaves=True)
    plan = decide(field.with_waiting(*_heirs()), 100.0)
    assert went(plan) == ["old"]
    assert {name for each in go_of(plan, "old").placements for name, _ in each.nodes} == {"n1", "n2"}
    assert stay_of(plan, "young").reason.code is Code.MAKING_ROOM


def _after_the_proof(*, there: bool = True) -> Field:
    """n0 would be the best fit for a pod of one cpu; n1 is the node that somebody left for it."""
    nodes = [node("n0", cpu="1"), node("n2", cpu="3")]
    return Field(cluster(*nodes, *((node("n1", cpu="4"),) if there else ())), ANY)


def _heir() -> Waiting:
    return gang("c", "q", (1, ONE), victims=("ns/v",), places=(("n1", 1),))


def test_who_others_gave_way_for_goes_where_the_proof_had_it() -> None:
    plan = decide(_after_the_proof().with_waiting(_heir()), 100.0)
    assert [each.nodes for each in go_of(plan, "c").placements] == [(("n1", 1),)]


def test_it_goes_elsewhere_where_that_node_is_gone_or_taken() -> None:
    taken = _after_the_proof()
    taken.runs("x", "q", shape(cpu=4), {"n1": 1})
    for field in (_after_the_proof(there=False), taken):
        plan = decide(field.with_waiting(_heir()), 100.0)
        assert [each.nodes for each in go_of(plan, "c").placements] == [(("n0", 1),)]


def test_of_a_node_that_two_were_proved_to_share_each_takes_its_part() -> None:
    """By best fit the first would fill n0, and leave the other no place."""
    field = Field(cluster(node("n0", cpu="2"), node("n1", cpu="3")), ANY)
    first = gang("a", "q", (2, ONE), victims=("ns/v",), places=(("n0", 1), ("n1", 1)))
    second = gang("b", "q", (1, shape(cpu=2)), since=1.0, victims=("ns/v",), places=(("n1", 1),))
    plan = decide(field.with_waiting(first, second), 100.0)
    assert {name: go_of(plan, name).placements[0].nodes for name in "ab"} == {
        "a": (("n0", 1), ("n1", 1)),
        "b": (("n1", 1),),
    }


def test_who_gives_way_is_told_where_the_claimant_will_go() -> None:
    field = Field(cluster(node("n0", cpu="2"), node("n1", cpu="2")), ANY)
    field.runs("v", "q", ONE, {"n0": 2})
    field.runs("w", "q", ONE, {"n1": 2}, takeable=False)
    plan = decide(field.with_waiting(gang("c", "q", (2, ONE), priority=1)), 100.0)
    assert [(each.gang, each.places) for each in plan.evict] == [("ns/v", (("n0", 2),))]


def test_who_is_owed_a_pod_leaves_claimants_the_nodes_of_their_proofs() -> None:
    """By best fit `a` would be on the one node of `b`, and the pod that `f` is owed on the one that is left for `a`."""
    pool, only = {"pool": "p"}, {"pool": "p", "only": "b"}
    nodes = cluster(node("n0", cpu="1", labels=only), node("n1", cpu="3", labels=pool), node("n2", cpu="4"))
    first = gang("a", "q", (1, shape(cpu=1, node_selector=(("pool", "p"),))), victims=("ns/v",), places=(("n1", 1),))
    second = gang("b", "q", (1, shape(cpu=1, node_selector=(("only", "b"),))), since=1.0, victims=("ns/v",))
    owed = Claim(gang="ns/f", queue="q", kind=ClaimKind.FOLLOW, batches=(Batch(shape(cpu=3), 1),))
    plan = decide(replace(Field(nodes, ANY).with_waiting(first, second), claims=(owed,)), 100.0)
    assert {name: go_of(plan, name).placements[0].nodes for name in "abf"} == {
        "a": (("n1", 1),),
        "b": (("n0", 1),),
        "f": (("n2", 1),),
    }


def test_nobody_gives_way_where_a_pod_that_is_owed_would_take_the_room_first() -> None:
    """`f` runs and waits for one pod more: it would have what `v` leaves, and `c` would wait on."""
    here = (("here", "y"),)
    for size, victims in ((2, []), (3, ["v"])):
        field = Field(cluster(node("n0", cpu=str(size), labels={"here": "y"}), node("away", cpu="9")), ANY)
        field.runs("v", "q", shape(cpu=size), {"n0": 1})
        pod = shape(cpu=1, node_selector=here)
        owed = Claim(gang="ns/f", queue="q", kind=ClaimKind.FOLLOW, batches=(Batch(pod, 1),))
        claimant = gang("c", "q", (1, shape(cpu=2, node_selector=here)), priority=1)
        assert [name for name, *_ in gave_way(replace(field.with_waiting(claimant), claims=(owed,)))] == victims


def test_nobody_gives_way_for_the_room_that_another_claimant_would_have_first() -> None:
    """`a` has lost the place for which `x` leaves, and comes first once that is gone: what `v` has is not for `c`."""
    for room, victims in ((2, []), (3, ["v"])):
        field = Field(cluster(node("n0", cpu=str(room)), node("away", cpu="9", cordoned=True)), ANY)
        field.runs("v", "q", shape(cpu=room), {"n0": 1})
        field.runs("x", "q", ONE, {"away": 1}, leaves=True)
        first = gang("a", "q", (1, ONE), priority=1, victims=("ns/x",), places=(("away", 1),))
        first = replace(first, preempts=False)
        second = gang("c", "q", (1, shape(cpu=2)), since=1.0, priority=1)
        assert [name for name, *_ in gave_way(field.with_waiting(first, second))] == victims
