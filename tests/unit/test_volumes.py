"""Volumes, case by case: what is said of pods that can't go, and who gets what there is too little of."""

from typing import Any

import msgspec
import pytest

from startgate.engine.storage import Storage
from startgate.engine.volumes import FREE, Allowed, Volumes
from startgate.model.drivers import Capacity, NodeDrivers
from startgate.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement
from startgate.model.shape import Ephemeral
from startgate.model.storage import Attachment, PersistentVolume, Volume, VolumeClaim, volume_of
from tests.unit.volume_reference import HOST, ZONE, Json, Reference
from tests.unit.volume_worlds import (
    NS,
    WIDTH,
    capacity,
    claim,
    drivers,
    loaded,
    new_pod,
    node_selector,
    reference,
    shape_of,
    storage_class,
    volume,
)
from tests.unit.worlds import shape

MANY = 1000  # more than any test asks for
NODES = {"a": {ZONE: "z1"}, "b": {ZONE: "z1"}, "c": {ZONE: "z2"}}
WAITS = {
    "disk": storage_class("disk", "disk.example.com"),
    "local": storage_class("local", "kubernetes.io/no-provisioner"),
}


def cluster(**objects: Any) -> Reference:
    return reference(NODES, **{"classes": WAITS, **objects})


def volumes(world: Reference, **how: bool) -> Volumes:
    return Volumes(loaded(world), WIDTH, **how)


def named(*objects: Json) -> dict[str, Json]:
    return {each["metadata"]["name"]: each for each in objects}


def where(allowed: Allowed, caps: bool = False) -> list[int]:
    """The three nodes: how many pods each takes, or whether it does."""
    found = []
    for slot in range(3):
        fits = allowed.most if allowed.mask is None or allowed.mask[slot] else 0
        found.append(min(fits, MANY, int(allowed.caps[slot]) if allowed.caps is not None else MANY))
    return found if caps else [min(each, 1) for each in found]


USES = shape_of(new_pod("p", "data"))


def test_pods_without_claims_are_free() -> None:
    held = volumes(cluster())
    assert held.allows(shape(cpu=1)) is FREE
    assert held.take(shape(cpu=1), [0, 1], [5, 7]) == [5, 7]
    assert held.why(shape(cpu=1), 0) is None


@pytest.mark.parametrize(
    ("objects", "clause"),
    [
        ({}, "volume claim data doesn't exist"),
        ({"claims": named(claim("data", "disk", phase="Lost"))}, "volume claim data has lost its volume"),
        ({"claims": named(claim("data", "disk", deleted=True))}, "volume claim data is being deleted"),
        ({"claims": named(claim("data", None))}, "volume claim data isn't bound to a volume"),
        ({"claims": named(claim("data", "disk", volume="v"))}, "volume claim data isn't bound to a volume"),
        ({"claims": named(claim("data", "x"))}, "storage class x of volume claim data doesn't exist"),
        ({"claims": named(claim("data", "disk", volume="v", bound=True))}, "volume v of claim data doesn't exist"),
        (
            {
                "claims": named(claim("data", "now")),
                "classes": named(storage_class("now", "disk.example.com", waits=False)),
            },
            "volume claim data isn't bound to a volume",
        ),
    ],
)
def test_a_claim_in_whose_state_no_pod_can_go(objects: dict[str, Any], clause: str) -> None:
    allowed = volumes(cluster(**objects)).allows(USES)
    assert (allowed.obstacle, allowed.most, where(allowed)) == (clause, 0, [0, 0, 0])


@pytest.mark.parametrize(
    ("asked", "clause"),
    [
        (Ephemeral(storage_class="x"), "storage class x of an ephemeral volume doesn't exist"),
        (Ephemeral(), "an ephemeral volume has no storage class"),
        (Ephemeral(storage_class=""), "an ephemeral volume has no storage class"),
        (
            Ephemeral(storage_class="now"),
            "an ephemeral volume of storage class now is bound before its pod has a node, so that nobody can say where"
            " (it takes a class with WaitForFirstConsumer)",
        ),
    ],
)
def test_an_ephemeral_volume_of_which_nobody_can_say_where_it_will_be(asked: Ephemeral, clause: str) -> None:
    held = volumes(cluster(classes=named(storage_class("now", "disk.example.com", waits=False))))
    assert held.allows(shape(ephemeral=(asked,))).obstacle == clause


def test_a_bound_volume_is_where_it_is() -> None:
    local = volume("v", "local", affinity=node_selector(HOST, "b"), claim=("data", ""))
    held = volumes(cluster(volumes=named(local), claims=named(claim("data", "local", volume="v", bound=True))))
    assert where(held.allows(USES)) == [0, 1, 0]
    assert held.why(USES, 0) == "that can't reach the volume of claim data"
    zonal = volume("v", "disk", labels={ZONE: "z1"}, claim=("data", ""))
    held = volumes(cluster(volumes=named(zonal), claims=named(claim("data", "disk", volume="v", bound=True))))
    assert where(held.allows(USES)) == [1, 1, 0]
    assert held.why(USES, 2) == "outside the zone of the volume of claim data"


def test_a_volume_that_is_being_made_decides_before_it_is_there() -> None:
    held = volumes(cluster(claims=named(claim("data", "disk", node="c"))))
    assert where(held.allows(USES)) == [0, 0, 1]
    assert held.why(USES, 0) == "other than c, where the volume of claim data is being made"


def test_one_pod_at_a_time() -> None:
    alone = claim("data", "disk", modes=("ReadWriteOncePod",))
    held = volumes(cluster(claims=named(alone)))
    allowed = held.allows(USES)
    assert (allowed.most, allowed.obstacle) == (1, "volume claim data can be used by one pod at a time")
    assert held.take(USES, [0, 1], [2, 1]) == [1, 0]
    assert held.allows(USES).obstacle == "volume claim data can be used by one pod at a time, and one has it"
    held.give(USES, 0, 1)
    assert held.allows(USES).most == 1


def test_one_pod_at_a_time_and_somebody_elses_has_it() -> None:
    world = cluster(claims=named(claim("data", "disk", modes=("ReadWriteOncePod",))))
    world.place(new_pod("other", "data"), "a")
    assert volumes(world).allows(USES).most == 0
    assert volumes(world, bare=True).allows(USES).most == 1
    later = volumes(world)
    later.give(USES, 0, 1)
    assert later.allows(USES).most == 1


def own(storage_class: str | None = "disk", *, size: int = 10, count: int = 1) -> Json:
    return new_pod("own", own=tuple(claim(f"e{index}", storage_class, size=size) for index in range(count)))


def test_attach_limits_count_volumes_not_pods() -> None:
    limits = {name: drivers(("disk.example.com", limit, [])) for name, limit in (("a", 3), ("b", 1))}
    shared = volume("v", "disk", csi=("disk.example.com", "h"), claim=("data", ""))
    world = cluster(on_node=limits, volumes=named(shared), claims=named(claim("data", "disk", volume="v", bound=True)))
    held = volumes(world)
    each = shape_of(own())
    both = shape_of(new_pod("p", "data", own=(claim("e", "disk"),)))
    assert where(held.allows(USES), caps=True) == [MANY] * 3
    assert where(held.allows(each), caps=True) == [3, 1, MANY]
    assert where(held.allows(both), caps=True) == [2, 0, MANY]
    assert held.why(both, 1) == "with no more volumes of disk.example.com to attach"
    assert held.take(both, [0], [5]) == [2]
    assert where(held.allows(each), caps=True) == [0, 1, MANY]
    assert where(held.allows(USES), caps=True) == [MANY] * 3  # it is attached to a already


def test_what_is_still_attached_counts_and_what_a_pod_of_its_own_has_counts_once() -> None:
    world = cluster(
        on_node={name: drivers(("disk.example.com", 3, [])) for name in "ab"},
        volumes=named(volume("gone", "disk", csi=("disk.example.com", "gone"), claim=("x", "y"))),
    )
    world.place(own(), "a")
    (made,) = world.volumes.keys() - {"gone"}
    for name, node in (("gone", "b"), (made, "a")):
        world.attachments[name] = {
            "metadata": {"name": name},
            "spec": {"attacher": "disk.example.com", "nodeName": node, "source": {"persistentVolumeName": name}},
        }
    assert where(volumes(world).allows(shape_of(own())), caps=True) == [2, 2, MANY]
    assert where(volumes(world, bare=True).allows(shape_of(own())), caps=True) == [3, 3, MANY]
    later = volumes(world)
    later.give(shape_of(own()), 0, 1)
    assert where(later.allows(shape_of(own())), caps=True) == [3, 2, MANY]


def test_a_driver_that_nodes_must_have() -> None:
    world = cluster(on_node={"a": drivers(("disk.example.com", None, []))})
    assert where(volumes(world).allows(shape_of(own()))) == [1, 1, 1]
    world.drivers["disk.example.com"] = {
        "metadata": {"name": "disk.example.com"},
        "spec": {"preventPodSchedulingIfMissing": True},
    }
    held = volumes(world)
    assert where(held.allows(shape_of(own()))) == [1, 0, 0]
    assert held.why(shape_of(own()), 1) == "without the CSI driver disk.example.com"


def test_volumes_are_made_where_the_class_allows() -> None:
    world = cluster(classes=named(storage_class("disk", "disk.example.com", zones=("z2",))))
    held = volumes(world)
    assert where(held.allows(shape_of(own()))) == [0, 0, 1]
    assert held.why(shape_of(own()), 0) == "without a volume for class disk"


TRACKED = {"disk.example.com": {"spec": {"storageCapacity": True}}}


def test_volumes_are_made_where_the_driver_has_room() -> None:
    rooms = named(
        capacity("one", "disk", {HOST: "a"}, capacity="9"),
        capacity("two", "disk", {HOST: "b"}, capacity="99", maximumVolumeSize="9"),
        capacity("three", "disk", {ZONE: "z2"}, capacity="10"),
        capacity("other", "local", {HOST: "a"}, capacity="99"),
    )
    held = volumes(cluster(drivers=TRACKED, capacities=rooms))
    assert where(held.allows(shape_of(own(size=10)))) == [0, 0, 1]
    assert where(held.allows(shape_of(own(size=9)))) == [1, 1, 1]
    assert held.why(shape_of(own(size=10)), 1) == "without enough free storage for class disk"


def test_a_driver_that_does_not_say_has_room_everywhere_and_one_that_says_nothing_nowhere() -> None:
    rooms = named(capacity("one", "disk", {HOST: "a"}, capacity="1"))
    silent = {"disk.example.com": {"spec": {"storageCapacity": False}}}
    assert where(volumes(cluster(drivers=silent, capacities=rooms)).allows(shape_of(own()))) == [1, 1, 1]
    assert where(volumes(cluster(drivers=TRACKED)).allows(shape_of(own()))) == [0, 0, 0]


def test_each_volume_has_to_find_room_by_itself() -> None:
    """As kube-scheduler sees it: it keeps no account of volumes that it has asked for."""
    rooms = named(capacity("one", "disk", {HOST: "a"}, capacity="10"))
    held = volumes(cluster(drivers=TRACKED, capacities=rooms))
    assert held.take(shape_of(own(size=6)), [0], [3]) == [3]
    assert where(held.allows(shape_of(own(size=6)))) == [1, 0, 0]


def test_of_a_pods_volumes_each_has_to_find_room() -> None:
    rooms = named(
        capacity("one", "disk", {HOST: "a"}, capacity="10"), capacity("two", "disk", {HOST: "b"}, capacity="20")
    )
    both = new_pod("p", own=(claim("small", "disk", size=5), claim("large", "disk", size=15)))
    assert where(volumes(cluster(drivers=TRACKED, capacities=rooms)).allows(shape_of(both))) == [0, 1, 0]


def test_room_that_comes_and_goes_is_seen() -> None:
    storage = loaded(cluster(drivers=TRACKED))
    everywhere = LabelSelector()

    def fits() -> list[int]:
        return where(Volumes(storage, WIDTH).allows(shape_of(own(size=10))))

    assert fits() == [0, 0, 0]
    storage.set_capacity(Capacity(namespace="d", name="all", storage_class="disk", topology=everywhere, largest=10))
    assert fits() == [1, 1, 1]
    twin = storage.copy()
    storage.set_capacity(Capacity(namespace="d", name="all", storage_class="disk", topology=everywhere, largest=9))
    assert fits() == [0, 0, 0]
    zone = LabelSelector(match_labels={ZONE: "z1"})
    storage.set_capacity(Capacity(namespace="d", name="z1", storage_class="disk", topology=zone, largest=12))
    assert fits() == [1, 1, 0]
    storage.set_node(1, "b", {HOST: "b", ZONE: "z2"})
    assert fits() == [1, 0, 0]
    storage.set_capacity(Capacity(namespace="d", name="z1", storage_class="other", topology=zone, largest=12))
    assert fits() == [0, 0, 0]
    storage.remove_capacity("d", "all")
    storage.remove_capacity("d", "z1")
    assert fits() == [0, 0, 0]
    assert where(Volumes(twin, WIDTH).allows(shape_of(own(size=10)))) == [1, 1, 1]


def test_room_that_others_have_taken_may_be_free_some_day() -> None:
    being_made = named(claim("data", "disk", node="b"))
    world = cluster(drivers=TRACKED, claims=being_made)
    assert where(volumes(world).allows(USES)) == [0, 0, 0]
    assert volumes(world).why(USES, 1) == "without enough free storage for claim data"
    assert where(volumes(world, bare=True).allows(USES)) == [0, 1, 0]
    assert where(volumes(world, bare=True).allows(shape_of(own()))) == [1, 1, 1]


def test_no_volume_is_made_for_a_node_without_the_labels_that_its_driver_goes_by() -> None:
    known = {name: drivers(("disk.example.com", None, ["rack"])) for name in "ab"}
    world = cluster(on_node=known)
    world.nodes["b"]["rack"] = "r1"
    assert where(volumes(world).allows(shape_of(own()))) == [0, 1, 1]


def test_the_newest_default_class_is_what_is_meant_by_none() -> None:
    default: Any = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    world = cluster(
        classes=named(
            storage_class("old", "x", zones=("z1",), creationTimestamp="2029-01-01T00:00:00Z", **default),
            storage_class("new", "x", zones=("z2",), creationTimestamp="2030-01-01T00:00:00Z", **default),
            storage_class("other", "x", creationTimestamp="2031-01-01T00:00:00Z"),
        )
    )
    assert where(volumes(world).allows(shape_of(own(None)))) == [0, 0, 1]


@pytest.mark.parametrize(
    ("keys", "together"),
    [([ZONE], [[0, 1], [2]]), ([], [[0, 1, 2]]), ([HOST], [[0], [1], [2]]), (None, [[0], [1], [2]])],
)
def test_pods_that_share_a_volume_to_be_made_stay_where_its_driver_lets_them(
    keys: list[str] | None, together: list[list[int]]
) -> None:
    known = {name: drivers(("disk.example.com", None, keys)) for name in NODES} if keys is not None else {}
    held = volumes(cluster(on_node=known, claims=named(claim("data", "disk"))))
    allowed = held.allows(USES)
    assert allowed.domains is not None
    numbers = allowed.domains[:3].tolist()
    assert [[slot for slot in range(3) if numbers[slot] == number] for number in dict.fromkeys(numbers)] == together
    assert held.take(USES, [0], [1]) == [1]
    assert where(held.allows(USES)) == [int(slot in together[0]) for slot in range(3)]
    held.give(USES, 0, 1)
    assert where(held.allows(USES)) == [1, 1, 1]


def test_local_volumes_are_used_up() -> None:
    disks = [volume(f"a{index}", "local", affinity=node_selector(HOST, "a"), size=10 + index) for index in range(3)]
    disks.append(volume("b", "local", affinity=node_selector(HOST, "b"), size=5))
    held = volumes(cluster(volumes=named(*disks)))
    assert where(held.allows(shape_of(own("local", size=10))), caps=True) == [3, 0, 0]
    assert where(held.allows(shape_of(own("local", size=12))), caps=True) == [1, 0, 0]
    assert where(held.allows(shape_of(own("local", size=1, count=2))), caps=True) == [1, 0, 0]
    assert held.take(shape_of(own("local", size=10)), [0], [1]) == [1]  # the smallest that will do
    assert where(held.allows(shape_of(own("local", size=12))), caps=True) == [1, 0, 0]
    assert held.why(shape_of(own("local", size=10, count=3)), 0) == "with too few volumes for all that the pod asks for"


def test_a_volume_that_several_nodes_can_use_goes_to_one_pod() -> None:
    disks = [volume(f"v{index}", "local", affinity=node_selector(ZONE, "z1")) for index in range(2)]
    held = volumes(cluster(volumes=named(*disks)))
    each = shape_of(own("local"))
    allowed = held.allows(each)
    assert where(allowed, caps=True) == [2, 2, 0]
    assert not allowed.independent
    assert held.take(each, [0, 1], [1, 2]) == [1, 1]
    assert where(held.allows(each)) == [0, 0, 0]
    held.give(each, 1, 1)
    assert where(held.allows(each), caps=True) == [1, 1, 0]


def test_a_volume_that_is_kept_for_the_claim_is_the_one_that_it_gets() -> None:
    kept = volume("kept", "local", affinity=node_selector(HOST, "c"), claim=("data", ""), phase="Available")
    free = volume("free", "local", affinity=node_selector(HOST, "a"))
    world = cluster(volumes=named(kept, free), claims=named(claim("data", "local")))
    assert where(volumes(world).allows(USES)) == [0, 0, 1]
    assert where(volumes(world).allows(shape_of(own("local")))) == [1, 0, 0]


def test_pods_on_their_way_to_a_node_keep_the_volumes_that_they_will_get() -> None:
    world = cluster(volumes=named(volume("a", "local", affinity=node_selector(HOST, "a"))))
    held = loaded(world)
    each = shape_of(own("local"))
    held.add_pod(each, 0, settled=False)
    assert where(Volumes(held, WIDTH).allows(each)) == [0, 0, 0]
    assert where(Volumes(held, WIDTH, bare=True).allows(each)) == [1, 0, 0]
    later = Volumes(held, WIDTH)
    later.give(each, 0, 1)
    assert where(later.allows(each)) == [1, 0, 0]
    held.add_pod(each, 0, -1, settled=False)
    assert where(Volumes(held, WIDTH).allows(each)) == [1, 0, 0]


def test_a_claim_of_a_pod_on_its_way_to_a_node_follows_it() -> None:
    known = {name: drivers(("disk.example.com", None, [ZONE])) for name in NODES}
    held = loaded(cluster(on_node=known, claims=named(claim("data", "disk"))))
    held.add_pod(USES, 2, settled=False)
    assert where(Volumes(held, WIDTH).allows(USES)) == [0, 0, 1]


def test_what_others_have_may_be_free_some_day() -> None:
    taken = volume("a", "local", affinity=node_selector(HOST, "a"), claim=("x", "y"))
    world = cluster(volumes=named(taken))
    assert where(volumes(world).allows(shape_of(own("local")))) == [0, 0, 0]
    assert where(volumes(world, bare=True).allows(shape_of(own("local")))) == [1, 0, 0]


def test_a_claim_of_another_namespace_is_another_claim() -> None:
    world = cluster(claims=named(claim("data", "disk")))
    elsewhere = shape(namespace="elsewhere", claims=("data",))
    assert volumes(world).allows(elsewhere).obstacle == "volume claim data doesn't exist"


def limited(limit: int, **objects: Any) -> Reference:
    return cluster(on_node={name: drivers(("disk.example.com", limit, [])) for name in NODES}, **objects)


def room(held: Storage) -> list[int]:
    """How many more volumes each node can attach."""
    return where(Volumes(held, WIDTH).allows(shape_of(own())), caps=True)


def test_what_counts_as_attached_follows_claims_volumes_and_attachments() -> None:
    held = loaded(limited(3))
    held.add_pod(USES, 0)
    assert room(held) == [3, 3, 3]  # its claim isn't known
    held.set_claim(VolumeClaim(namespace=NS, name="data", storage_class="disk"))
    assert room(held) == [2, 3, 3]
    held.set_claim(VolumeClaim(namespace=NS, name="data", storage_class="disk", volume="v", bound=True))
    assert room(held) == [2, 3, 3]
    held.set_volume(Volume(name="v", driver="other.example.com", handle="h"))
    assert room(held) == [3, 3, 3]
    held.set_volume(Volume(name="v", driver="disk.example.com", handle="h"))
    assert room(held) == [2, 3, 3]
    for node in "ab":
        held.set_attachment(Attachment(name=node, node=node, driver="disk.example.com", volume="v"))
    assert room(held) == [2, 2, 3]  # on a the pod has it
    held.add_pod(USES, 0, -1)
    assert room(held) == [2, 2, 3]  # nobody has it any more, and it isn't detached yet
    held.remove_volume("v")
    assert room(held) == [3, 3, 3]
    held.set_volume(Volume(name="v", driver="disk.example.com", handle="h"))
    held.remove_attachment("a")
    assert room(held) == [3, 2, 3]
    held.set_node_drivers(NodeDrivers(name="b", drivers=(("disk.example.com", 7),)))
    assert room(held) == [3, 6, 3]
    held.remove_claim(NS, "data")
    held.remove_class("disk")
    assert Volumes(held, WIDTH).allows(shape_of(own())).obstacle


def test_a_node_beyond_its_limit_takes_who_brings_nothing_new() -> None:
    bound = named(*(claim(name, "disk", volume=name, bound=True) for name in ("data", "more", "new")))
    disks = named(*(volume(name, "disk", csi=("disk.example.com", name), claim=(name, "")) for name in bound))
    held = loaded(limited(1, claims=bound, volumes=disks))
    both = shape_of(new_pod("p", "data", "more"))
    held.add_pod(both, 0)
    assert where(Volumes(held, WIDTH).allows(both), caps=True) == [MANY, 0, 0]
    assert where(Volumes(held, WIDTH).allows(shape_of(new_pod("p", "data", "new")))) == [0, 0, 0]
    later = Volumes(held, WIDTH)
    assert later.take(shape_of(new_pod("p", "data", "new")), [0, 1], [1, 1]) == [0, 0]
    assert later.take(both, [0, 1], [2, 1]) == [2, 0]
    later.give(both, 0, 3)
    assert where(later.allows(both), caps=True) == [0, 0, 0]
    assert where(later.allows(USES), caps=True) == [MANY, MANY, MANY]


def test_a_pod_that_goes_leaves_what_others_share_with_it() -> None:
    disk = volume("v", "disk", csi=("disk.example.com", "v"), claim=("data", ""))
    held = loaded(limited(1, volumes=named(disk), claims=named(claim("data", "disk", volume="v", bound=True))))
    held.add_pod(USES, 0, 2)
    later = Volumes(held, WIDTH)
    later.give(USES, 0, 1)
    assert where(later.allows(shape_of(own())), caps=True) == [0, 1, 1]
    later.give(USES, 0, 1)
    assert where(later.allows(shape_of(own())), caps=True) == [1, 1, 1]


def test_volumes_that_come_change_or_go_are_seen() -> None:
    each = shape_of(own("local"))
    disk: Any = {"storage_class": "local", "capacity": 10, "modes": ("ReadWriteOnce",)}
    held = loaded(cluster())

    def fits() -> list[int]:
        return where(Volumes(held, WIDTH).allows(each), caps=True)

    def on(node: str) -> NodeSelector:
        return NodeSelector((NodeSelectorTerm((Requirement(HOST, "In", (node,)),)),))

    assert fits() == [0, 0, 0]
    held.set_volume(Volume(name="v", phase="Available", affinity=on("a"), **disk))
    assert fits() == [1, 0, 0]
    held.set_volume(Volume(name="w", phase="Available", affinity=on("b"), **disk))
    assert fits() == [1, 1, 0]
    held.set_volume(Volume(name="w", phase="Available", affinity=on("c"), **disk))
    assert fits() == [1, 0, 1]
    held.set_volume(Volume(name="v", phase="Bound", claim=(NS, "x", ""), affinity=on("a"), **disk))
    assert fits() == [0, 0, 1]
    held.set_node(0, "a", {HOST: "c"})
    assert fits() == [1, 0, 1]
    held.remove_volume("w")
    assert fits() == [0, 0, 0]


def test_of_pods_that_go_the_others_keep_their_volumes() -> None:
    disks = [volume(name, "local", affinity=node_selector(HOST, "a")) for name in "xyz"]
    held = volumes(cluster(volumes=named(*disks)))
    each = shape_of(own("local"))
    held.put(each, 0, 2)
    assert where(held.allows(each), caps=True) == [1, 0, 0]
    held.give(each, 0, 1)
    assert where(held.allows(each), caps=True) == [2, 0, 0]


def test_of_volumes_of_one_size_any_may_be_taken() -> None:
    """Were it the one that b can use too, b would have none: nobody can know."""
    wide = volume("wide", "local", affinity=node_selector(ZONE, "z1"))
    near = volume("near", "local", affinity=node_selector(HOST, "a"))
    each = shape_of(own("local"))
    held = volumes(cluster(volumes=named(wide, near)))
    assert where(held.allows(each), caps=True) == [2, 1, 0]
    assert held.take(each, [0], [1]) == [1]
    assert where(held.allows(each)) == [0, 0, 0]
    held.give(each, 0, 1)
    assert held.take(each, [0], [2]) == [2]
    smaller = {**near, "spec": {**near["spec"], "capacity": {"storage": "10"}}}
    larger = {**wide, "spec": {**wide["spec"], "capacity": {"storage": "11"}}}
    held = volumes(cluster(volumes=named(smaller, larger)))
    assert held.take(each, [0], [1]) == [1]
    assert where(held.allows(each), caps=True) == [1, 1, 0]


def test_a_volume_is_free_again_when_the_last_pod_of_its_claim_is_given_back() -> None:
    held = volumes(cluster(volumes=named(volume("v", "local")), claims=named(claim("data", "local"))))
    each = shape_of(own("local"))
    assert held.take(USES, [0, 1], [1, 1]) == [1, 1]
    held.give(USES, 0, 1)
    assert where(held.allows(each)) == [0, 0, 0]
    held.give(USES, 1, 1)
    assert where(held.allows(each)) == [1, 1, 1]


@pytest.mark.parametrize("names", [("data",), ("data", "more")])
def test_pods_that_share_a_volume_that_exists_stay_where_it_can_be_used(names: tuple[str, ...]) -> None:
    uses = shape_of(new_pod("p", *names))
    open_claims = named(*(claim(name, "local") for name in names))

    def shared(*disks: Json) -> Volumes:
        return volumes(cluster(volumes=named(*disks), claims=open_claims))

    def domains(held: Volumes) -> list[int]:
        found = held.allows(uses).domains
        assert found is not None
        return [int(found[slot]) for slot in range(3)]

    there = [volume(f"v{each}", "local", affinity=node_selector(ZONE, "z1")) for each in names]
    held = shared(*there)
    one, other, _ = domains(held)
    assert where(held.allows(uses), caps=True) == [MANY, MANY, 0]
    assert one == other
    assert held.take(uses, [0, 1], [2, 3]) == [2, 3]
    # One of the same size that only a can use: what is taken on a may be no good on b.
    for first in "az":
        near = [volume(f"{first}{each}", "local", affinity=node_selector(HOST, "a")) for each in names]
        one, other, _ = domains(shared(*there, *near))
        assert one != other
    # A volume with a zone: its first pod may be anywhere, and no other one outside the zone.
    held = shared(*(volume(f"v{each}", "local", labels={ZONE: "z1"}) for each in names))
    one, other, third = domains(held)
    assert one == other != third
    assert where(held.allows(uses), caps=True) == [MANY, MANY, 1]
    assert held.take(uses, [2], [2]) == [1]
    assert where(held.allows(uses)) == [1, 1, 0]


@pytest.mark.parametrize("shared", [(), ("data",)])
def test_the_smallest_claim_comes_first_even_if_it_takes_the_only_one_for_another(shared: tuple[str, ...]) -> None:
    """kube-scheduler looks no further, and so must we."""
    gold = volume("gold", "local", size=20, labels={"tier": "gold"}, affinity=node_selector(HOST, "a"))
    plain = volume("plain", "local", size=30, affinity=node_selector(HOST, "a"))
    large = claim("data", "local", size=15, labels={"tier": "gold"})
    world = cluster(volumes=named(gold, plain), claims=named(large))
    picky = new_pod("p", *shared, own=(*(() if shared else (large,)), claim("e", "local", size=5)))
    held = volumes(world)
    assert where(held.allows(shape_of(picky))) == [0, 0, 0]
    assert held.why(shape_of(picky), 0) == "with too few volumes for all that the pod asks for"
    assert not world.accepts(picky, "a")


@pytest.mark.parametrize(("uid", "fits"), [("", [0, 1, 0]), ("uid-data", [0, 1, 0]), ("of-one-before", [1, 0, 0])])
def test_a_volume_is_kept_for_a_claim_by_its_uid_if_it_says_one(uid: str, fits: list[int]) -> None:
    kept = volume("kept", "local", affinity=node_selector(HOST, "b"), claim=("data", uid), phase="Available")
    free = volume("free", "local", affinity=node_selector(HOST, "a"))
    held = loaded(cluster(volumes=named(free), claims=named(claim("data", "local"))))
    assert where(Volumes(held, WIDTH).allows(USES)) == [1, 0, 0]
    held.set_volume(volume_of(msgspec.convert(kept, PersistentVolume)))
    assert where(Volumes(held, WIDTH).allows(USES)) == fits


def test_zones_of_volumes_on_nodes_with_old_labels_or_none() -> None:
    old = volume("v", "disk", labels={"failure-domain.beta.kubernetes.io/zone": "z1__z3"}, claim=("data", ""))
    world = cluster(volumes=named(old), claims=named(claim("data", "disk", volume="v", bound=True)))
    world.nodes["b"] = {HOST: "b"}
    assert where(volumes(world).allows(USES)) == [1, 1, 0]
