"""Host ports: which nodes have no room for a pod's."""

from hypothesis import given
from hypothesis import strategies as st

from startgate.engine.ports import Ports
from startgate.model.shape import HostPort, Shape


def asking(*ports: HostPort) -> Shape:
    return Shape(ports=tuple(sorted(ports)))


def blocked(ports: Ports, *wanted: HostPort) -> set[int]:
    return set(ports.blocked(asking(*wanted)).tolist())


def test_the_same_port_is_taken_where_a_pod_has_it_and_free_once_all_are_gone() -> None:
    ports = Ports()
    ports.add(asking(HostPort(80)), 3)
    ports.add(asking(HostPort(80)), 3)
    assert blocked(ports, HostPort(80), HostPort(81)) == {3}
    assert blocked(ports, HostPort(81)) == set()
    ports.add(asking(HostPort(80)), 3, -1)
    assert blocked(ports, HostPort(80)) == {3}
    ports.add(asking(HostPort(80)), 3, -1)
    assert blocked(ports, HostPort(80)) == set()


def test_other_protocols_and_other_addresses_are_other_ports() -> None:
    ports = Ports()
    ports.add(asking(HostPort(53, "UDP"), HostPort(53, "TCP", "10.0.0.1")), 0)
    assert blocked(ports, HostPort(53, "TCP", "10.0.0.2")) == set()
    assert blocked(ports, HostPort(53, "TCP", "10.0.0.1")) == {0}
    assert blocked(ports, HostPort(53, "UDP", "10.0.0.2")) == {0}
    assert blocked(ports, HostPort(53, "SCTP")) == set()


def test_all_addresses_are_in_the_way_of_each_and_each_of_all() -> None:
    ports = Ports()
    ports.add(asking(HostPort(80, "TCP", "10.0.0.1")), 0)
    ports.add(asking(HostPort(80)), 1)
    assert blocked(ports, HostPort(80)) == {0, 1}
    assert blocked(ports, HostPort(80, "TCP", "10.0.0.2")) == {1}


PORTS = st.builds(
    HostPort, st.sampled_from((80, 81)), st.sampled_from(("TCP", "UDP")), st.sampled_from(("", "10.0.0.1", "10.0.0.2"))
)
SHAPES = st.sets(PORTS, max_size=3).map(lambda ports: asking(*ports))


def in_the_way(one: HostPort, other: HostPort) -> bool:
    if (one.port, one.protocol) != (other.port, other.protocol):
        return False
    return one.ip == other.ip or "" in {one.ip, other.ip}


@given(
    st.lists(st.tuples(SHAPES, st.integers(0, 3))),
    st.lists(st.tuples(SHAPES, st.integers(0, 3))),
    st.data(),
    SHAPES,
)
def test_a_copy_goes_its_own_way(
    before: list[tuple[Shape, int]], after: list[tuple[Shape, int]], data: st.DataObject, wanted: Shape
) -> None:
    ports = Ports()
    for shape, slot in before:
        ports.add(shape, slot)
    twin = ports.copy()
    gone = data.draw(st.lists(st.sampled_from(before), unique_by=id)) if before else []
    for shape, slot in after:
        ports.add(shape, slot)
    for shape, slot in gone:
        twin.add(shape, slot, -1)
    remaining = list(before)
    for each in gone:
        remaining.remove(each)

    def expected(pods: list[tuple[Shape, int]]) -> set[int]:
        return {slot for shape, slot in pods for have in shape.ports for want in wanted.ports if in_the_way(have, want)}

    assert set(ports.blocked(wanted).tolist()) == expected(before + after)
    assert set(twin.blocked(wanted).tolist()) == expected(remaining)
