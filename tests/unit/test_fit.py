"""Room on nodes: exact for pods of one kind, all or none for several, and packed so that whole nodes stay free."""

import warnings

from hypothesis import given, settings
from hypothesis import strategies as st

from startgate.engine.fit import Room
from startgate.engine.stock import MOST
from startgate.engine.world import Batch, Placement
from startgate.model.quantity import LARGEST
from startgate.model.shape import Shape
from startgate.model.taints import Taint, Toleration
from tests.unit.worlds import GPU, cluster, node, shape

UNHURRIED = settings(deadline=None)  # the machine may be busy with other things


def placed(placement: Placement) -> dict[str, int]:
    return dict(placement.nodes)


def test_the_scarcest_resource_decides() -> None:
    room = Room(cluster(node("a", cpu="10", memory="8Gi"), node("b", cpu="2", memory="64Gi")))
    assert room.fits(shape(cpu=1, memory=1)) == 8 + 2
    assert room.fits(shape(cpu=1)) == 12


def test_places_for_pods_count_as_a_resource() -> None:
    assert Room(cluster(node("a", cpu="10", pods="3"))).fits(shape(cpu=1)) == 3


def test_a_resource_that_the_node_or_the_whole_cluster_lacks() -> None:
    room = Room(cluster(node("a", cpu="10"), node("b", cpu="10", gpu="1")))
    assert room.fits(shape(cpu=1, gpu=1)) == 1
    assert room.fits(Shape(request=(("example.com/none", 1), ("pods", 1)))) == 0


def test_what_is_not_asked_does_not_block() -> None:
    held = cluster(node("a", cpu="1", memory="4Gi"))
    held.add_pod("over", "a", shape(cpu=9))
    room = Room(held)
    assert room.fits(shape(memory=1)) == 4
    assert room.fits(shape(cpu=0.1)) == 0
    assert room.fits(Shape(request=(("cpu", 0), ("pods", 1)))) == 109


def test_a_shape_without_any_request_fits_as_far_as_we_count() -> None:
    assert Room(cluster(node("a"), node("b"))).fits(Shape(request=())) == 2 * MOST


def test_requests_beyond_all_numbers_fit_nowhere() -> None:
    room = Room(cluster(node("a", cpu="4", memory=str(LARGEST))))
    assert room.fits(Shape(request=(("memory", LARGEST), ("pods", 1)))) == 1
    assert room.fits(Shape(request=(("memory", LARGEST + 1), ("pods", 1)))) == 0


def test_nobody_is_warned_of_numbers_where_a_node_has_far_more_on_it_than_it_offers() -> None:
    held = cluster(node("small", cpu="1m"), node("n", cpu="1"))
    held.add_pod("u", "small", shape(cpu=LARGEST // 1000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Room(held).fits(shape(cpu=1)) == 1


def test_partly_used_nodes_are_filled_first() -> None:
    held = cluster(node("a", cpu="8"), node("b", cpu="8"), node("c", cpu="8"))
    held.add_pod("u", "b", shape(cpu=5))
    room = Room(held)
    assert placed(room.place_some(shape(cpu=1), 4)) == {"b": 3, "a": 1}
    assert placed(room.place_some(shape(cpu=8), 9)) == {"c": 1}


def test_nodes_with_something_special_are_spared() -> None:
    room = Room(cluster(node("a", cpu="4", gpu="8"), node("b", cpu="64")))
    assert placed(room.place_some(shape(cpu=1), 3)) == {"b": 3}


def test_equal_nodes_by_name() -> None:
    room = Room(cluster(*(node(name, cpu="1") for name in ("c", "a", "b"))))
    assert [name for name, _ in room.place_some(shape(cpu=1), 3).nodes] == ["a", "b", "c"]


def test_together_or_not_at_all() -> None:
    room = Room(cluster(node("a", cpu="4", gpu="1"), node("b", cpu="3")))
    leader, worker = shape(cpu=4), shape(cpu=1)
    assert room.place([Batch(worker, 4), Batch(leader, 1)]) is None
    assert (room.fits(worker), room.fits(leader)) == (7, 1)
    both = room.place([Batch(worker, 3), Batch(leader, 1)])
    assert both is not None
    assert [placed(each) for each in both] == [{"b": 3}, {"a": 1}]
    assert room.fits(worker) == 0


def test_the_hardest_shape_is_placed_first() -> None:
    # Small pods first would be packed onto the only node on which the large one fits.
    room = Room(cluster(node("a", cpu="4"), node("b", cpu="5")))
    small, large = shape(cpu=1), shape(cpu=4.5)
    found = room.place([Batch(small, 4), Batch(large, 1)])
    assert found is not None
    assert [placed(each) for each in found] == [{"a": 4}, {"b": 1}]


def test_equally_large_pods_with_fewer_nodes_go_first() -> None:
    tolerant = shape(cpu=2, tolerations=(Toleration(operator="Exists"),))
    plain = shape(cpu=2)
    room = Room(cluster(node("a", cpu="2"), node("b", cpu="2", taints=[Taint("t", "", "NoSchedule")])))
    found = room.place([Batch(tolerant, 1), Batch(plain, 1)])
    assert found is not None
    assert [placed(each) for each in found] == [{"b": 1}, {"a": 1}]


def test_batches_of_the_same_shape_are_dealt_out_in_order() -> None:
    room = Room(cluster(node("a", cpu="2"), node("b", cpu="3"), node("c", cpu="9", gpu="1")))
    one, other = shape(cpu=1), shape(cpu=1, gpu=1)
    found = room.place([Batch(one, 1), Batch(other, 1), Batch(one, 3), Batch(one, 1)])
    assert found is not None
    assert [each.nodes for each in found] == [
        (("a", 1),),
        (("c", 1),),
        (("a", 1), ("b", 2)),
        (("b", 1),),
    ]


def test_what_is_given_back_can_be_taken_again() -> None:
    room = Room(cluster(node("a", cpu="2"), node("b", cpu="3")))
    one, two = shape(cpu=1), shape(cpu=2)
    taken = room.place_some(one, 5)
    assert (room.fits(one), room.fits(two)) == (0, 0)
    room.free_up((taken,))
    assert (room.fits(one), room.fits(two)) == (5, 2)


def test_the_cluster_itself_is_not_touched() -> None:
    held = cluster(node("a", cpu="2"))
    Room(held).place_some(shape(cpu=1), 2)
    assert Room(held).fits(shape(cpu=1)) == 2


def test_empty_and_free() -> None:
    held = cluster(node("a", cpu="4", gpu="2"), node("b", cpu="4"))
    held.add_pod("u", "a", shape(cpu=3, gpu=1))
    held.add_pod("over", "b", shape(cpu=5))
    room = Room(held)
    one = shape(cpu=1, gpu=1)
    assert room.fits_empty(one) == 2
    assert room.free(room.matching(one), one.amounts) == {"cpu": 1000, GPU: 1, "pods": 218}


AMOUNTS = st.integers(0, 6)


@UNHURRIED
@given(
    nodes=st.lists(st.tuples(AMOUNTS, AMOUNTS, st.integers(0, 5)), min_size=1, max_size=6),
    on_them=st.lists(st.tuples(st.integers(0, 5), AMOUNTS, AMOUNTS), max_size=6),
    cpu=AMOUNTS,
    gpu=st.integers(0, 2),
    want=st.integers(1, 30),
)
def test_identical_pods_fit_exactly_as_often_as_one_by_one(
    nodes: list[tuple[int, int, int]], on_them: list[tuple[int, int, int]], cpu: int, gpu: int, want: int
) -> None:
    held = cluster(*(node(f"n{i}", cpu=str(c), gpu=str(g), pods=str(p)) for i, (c, g, p) in enumerate(nodes)))
    free = [[c, g, p] for c, g, p in nodes]
    for i, (anywhere, c, g) in enumerate(on_them):
        on = anywhere % len(nodes)
        held.add_pod(f"u{i}", f"n{on}", shape(cpu=c, gpu=g))
        free[on] = [left - taken for left, taken in zip(free[on], (c, g, 1), strict=True)]
    each = (cpu, gpu, 1)
    one_by_one = 0
    for left in free:
        while all(asked == 0 or have >= asked for have, asked in zip(left, each, strict=True)):
            left[:] = [have - asked for have, asked in zip(left, each, strict=True)]
            one_by_one += 1
    room = Room(held)
    asked = shape(cpu=cpu, gpu=gpu)
    assert room.fits(asked) == one_by_one
    assert (room.place([Batch(asked, want)]) is not None) == (want <= one_by_one)
    assert sum(n for _, n in room.place_some(asked, 1000).nodes) == max(
        one_by_one - want, 0 if want <= one_by_one else one_by_one
    )


@UNHURRIED
@given(st.data())
def test_numbers_stay_right_while_pods_come_and_go(data: st.DataObject) -> None:
    held = cluster(*(node(f"n{i}", cpu=str(i), memory=f"{2 * i}Gi", gpu=str(i % 2)) for i in range(1, 8)))
    kinds = [shape(cpu=1), shape(cpu=2, memory=3), shape(cpu=1, gpu=1), shape(memory=5)]
    room = Room(held)
    standing: list[Placement] = []
    for _ in range(data.draw(st.integers(1, 12))):
        back: bool = data.draw(st.booleans())
        if standing and back:
            room.free_up((standing.pop(data.draw(st.integers(0, len(standing) - 1))),))
        else:
            some = room.place_some(data.draw(st.sampled_from(kinds)), data.draw(st.integers(1, 6)))
            standing.extend([some] if some.nodes else [])
        if data.draw(st.booleans()):
            afresh = held.copy()
            for i, placement in enumerate(standing):
                for name, count in placement.nodes:
                    for k in range(count):
                        afresh.add_pod(f"{i}-{name}-{k}", name, placement.shape)
            assert [room.fits(kind) for kind in kinds] == [Room(afresh).fits(kind) for kind in kinds]
