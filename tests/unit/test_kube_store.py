"""The store against a model: in whatever order watch and answers arrive, it ends where the server is."""

from collections.abc import Callable, Iterable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from startgate.kube.store import Change, Key, Store


class Meta(msgspec.Struct, frozen=True):
    name: str
    namespace: str
    uid: str
    resource_version: str


class Thing(msgspec.Struct, frozen=True):
    metadata: Meta
    fault: bool = False


def thing(version: int, uid: str = "u1", name: str = "a", *, fault: bool = False) -> Thing:
    return Thing(Meta(name, "ns", uid, str(version)), fault)


def view(obj: Thing) -> int:
    if obj.fault:
        raise ValueError("no sense in it")
    return int(obj.metadata.resource_version)


def make(on_change: Callable[[Change[int]], None] | None = None) -> Store[Thing, int]:
    return Store(view, on_change)


def relist(store: Store[Thing, int], objects: Iterable[Thing], version: int, kept: Iterable[Key] = ()) -> None:
    listing = store.listing(version)
    for obj in objects:
        listing.add(obj)
    for key in kept:
        listing.keep(key)
    listing.done()


def test_an_answer_counts_before_the_watch_tells_and_the_event_then_changes_nothing() -> None:
    changes: list[Change[int]] = []
    store = make(changes.append)
    relist(store, [thing(3)], 5)
    store.learn(thing(7))
    store.put(thing(7))
    store.put(thing(6))
    assert changes == [Change(None, 3), Change(3, 7)]


def test_a_late_answer_brings_nothing_back() -> None:
    store = make()
    relist(store, [thing(3)], 5)
    store.drop(thing(9).metadata)
    store.seen = 9
    store.learn(thing(8))
    assert len(store) == 0


def test_after_our_own_delete_a_late_answer_brings_nothing_back_but_the_next_of_that_name_comes() -> None:
    store = make()
    relist(store, [thing(3)], 5)
    store.forget("a", "ns", "u1")
    store.learn(thing(8))
    assert store.get("a", "ns") is None
    store.learn(thing(10, uid="u2"))
    store.drop(thing(9).metadata)
    assert store.get("a", "ns") == 10


def test_a_list_from_before_our_own_delete_brings_nothing_back() -> None:
    store = make()
    relist(store, [thing(3)], 5)
    store.forget("a", "ns", "u1")
    relist(store, [thing(3)], 7)
    store.put(thing(8))
    assert len(store) == 0
    store.drop(thing(9).metadata)
    store.put(thing(10, uid="u2"))
    assert list(store) == [10]


def test_a_change_never_joins_two_uids() -> None:
    changes: list[Change[int]] = []
    store = make(changes.append)
    relist(store, [thing(3)], 5)
    store.put(thing(8, uid="u2"))
    store.drop(thing(7).metadata)
    assert changes == [Change(None, 3), Change(3, None), Change(None, 8)]


def test_an_object_that_leaves_the_selector_by_our_own_write_goes() -> None:
    store = make()
    relist(store, [thing(3)], 5)
    store.learn(thing(7))
    store.drop(thing(7).metadata)
    assert len(store) == 0


def test_what_a_list_lacks_goes_unless_it_was_learned_later() -> None:
    store = make()
    relist(store, [thing(3), thing(4, "u2", "b")], 5)
    store.learn(thing(12, "u3", "c"))
    relist(store, [thing(4, "u2", "b")], 10)
    assert sorted(store) == [4, 12]


def test_an_object_that_makes_no_sense_is_left_as_it_was_and_counted() -> None:
    store = make()
    relist(store, [thing(3)], 5)
    store.put(thing(7, fault=True))
    store.put(thing(8, "u2", "b", fault=True))
    relist(store, [], 10, kept=[("ns", "a")])
    assert (list(store), store.unreadable) == ([3], 2)


def test_a_restored_etcd_replaces_all() -> None:
    store = make()
    relist(store, [thing(300), thing(310, "u2", "b")], 500)
    relist(store, [thing(100)], 120)
    assert (list(store), store.seen) == ([100], 120)


def test_a_list_that_breaks_off_has_told_of_what_it_has_shown_and_taken_nothing_away() -> None:
    store = make()
    relist(store, [thing(3), thing(4, "u2", "b")], 5)
    store.listing(9).add(thing(8))
    assert (sorted(store), store.seen) == ([4, 8], 5)
    relist(store, [thing(8)], 10)
    assert list(store) == [8]


Told = tuple[int, str, str, bool]
"""One step in the history of a kind on a server: version, name, uid, still there."""


@st.composite
def histories(draw: st.DrawFn) -> list[Told]:
    """Names are made, changed and deleted, and made again with another uid."""
    alive: dict[str, str] = {}
    history: list[Told] = []
    version = 0
    for _ in range(draw(st.integers(1, 25))):
        version += draw(st.integers(1, 3))
        name = draw(st.sampled_from("abc"))
        if name in alive and draw(st.booleans()):
            history.append((version, name, alive.pop(name), False))
        else:
            history.append((version, name, alive.setdefault(name, f"u{version}"), True))
    return history


class Life:
    """A store that lives through a history, and a mirror that knows it by its changes alone."""

    def __init__(self, history: list[Told]) -> None:
        self.history = history
        self.mirror: dict[str, int] = {}
        self.gone: set[str] = set()
        self.store = make(self.follow)

    def follow(self, change: Change[int]) -> None:
        names = {version: (name, uid) for version, name, uid, _ in self.history}
        if change.old is not None:
            assert self.mirror.pop(names[change.old][0]) == change.old
        if change.new is not None:
            name, uid = names[change.new]
            assert uid not in self.gone
            assert self.mirror.setdefault(name, change.new) == change.new

    def truth(self, until: int) -> dict[str, tuple[int, str]]:
        state: dict[str, tuple[int, str]] = {}
        for version, name, uid, there in self.history:
            if version <= until:
                state.pop(name, None)
                if there:
                    state[name] = version, uid
        return state

    def watch(self) -> bool:
        """The next event; False if there is none."""
        for version, name, uid, there in self.history:
            if version > self.store.seen:
                obj = thing(version, uid, name)
                if there:
                    self.store.put(obj)
                else:
                    self.store.drop(obj.metadata)
                    self.gone.add(uid)
                self.store.seen = version
                return True
        return False

    def answer(self, told: Told) -> None:
        """To a write of ours, however late."""
        version, name, uid, there = told
        if there:
            self.store.learn(thing(version, uid, name))
        else:
            if self.mirror.get(name) is not None:
                held = {v: u for v, _, u, _ in self.history}[self.mirror[name]]
                if held == uid:
                    self.gone.add(uid)
            self.store.forget(name, "ns", uid)

    def relist(self, told: Told) -> None:
        """Consistent: of a moment not before what the watch has told."""
        at = max(self.store.seen, told[0])
        objects = [thing(version, uid, name) for name, (version, uid) in self.truth(at).items()]
        relist(self.store, objects, at)


def test_what_was_forgotten_stays_gone_though_a_list_is_older_than_it() -> None:
    life = Life([(1, "a", "u1", True), (2, "b", "u2", True), (3, "b", "u2", False)])
    life.answer(life.history[1])
    life.answer(life.history[2])
    life.relist(life.history[0])
    while life.watch():
        assert sorted(life.mirror) == ["a"]


@given(histories(), st.data())
def test_any_interleaving_of_watch_answers_and_relists_ends_at_the_truth(
    history: list[Told], data: st.DataObject
) -> None:
    life = Life(history)
    steps = st.tuples(st.sampled_from(["watch", "answer", "relist"]), st.sampled_from(history))
    for step, told in data.draw(st.lists(steps, max_size=60)):
        if step == "watch":
            life.watch()
        elif step == "answer":
            life.answer(told)
        else:
            life.relist(told)
    while life.watch():
        pass
    truth = {name: version for name, (version, _) in life.truth(history[-1][0]).items()}
    assert life.mirror == truth
    assert sorted(life.store) == sorted(truth.values())
