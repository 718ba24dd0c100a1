"""Who is where: always what a recount of all pods would say, however it came about."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from startgate.engine import company as module
from startgate.engine.company import Company, Pick, Scratch, Where
from startgate.engine.topology import Topology
from startgate.model.selectors import LabelSelector, Requirement
from startgate.model.shape import PodTerm, Shape

SELECTORS = st.sampled_from(
    (
        LabelSelector(match_labels={"app": "a"}),
        LabelSelector(match_labels={"app": "a", "tier": "x"}),
        LabelSelector(match_expressions=(Requirement("app", "In", ("a", "b", "a")),)),
        LabelSelector(match_expressions=(Requirement("app", "Exists"),)),
        LabelSelector(match_expressions=(Requirement("tier", "NotIn", ("x",)),)),
        LabelSelector(),
        None,
    )
)
TERMS = st.builds(
    PodTerm,
    st.sampled_from(("zone", "host")),
    SELECTORS,
    st.sampled_from(((), ("n",), ("m", "n"))),
    st.sampled_from((None, LabelSelector(), LabelSelector(match_labels={"team": "t"}))),
)
LABELS = st.fixed_dictionaries({}, optional={"app": st.sampled_from("abc"), "tier": st.sampled_from("xy")})
SHAPES = st.builds(
    Shape,
    namespace=st.sampled_from(("m", "n")),
    labels=LABELS.map(lambda labels: tuple(sorted(labels.items()))),
    apart=st.lists(TERMS, max_size=2).map(tuple),
)
PICKS = st.builds(Pick, st.lists(TERMS, min_size=1, max_size=2).map(tuple), st.booleans())
SLOTS = st.integers(0, 3)


@dataclass
class Recount:
    """All pods in a list, gone through for each question."""

    pods: list[tuple[Shape, int, bool]] = field(default_factory=list)
    namespaces: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def picks(self, term: PodTerm, shape: Shape) -> bool:
        return term.picks(shape.namespace, dict(shape.labels), self.namespaces)

    def where(self, pick: Pick) -> Counter[int]:
        return Counter(
            slot
            for shape, slot, leaving in self.pods
            if not (leaving and pick.staying) and all(self.picks(term, shape) for term in pick.terms)
        )

    def against(self, asking: Shape) -> dict[str, Counter[int]]:
        found: dict[str, Counter[int]] = {}
        for shape, slot, _ in self.pods:
            for term in shape.apart:
                if self.picks(term, asking):
                    found.setdefault(term.topology_key, Counter())[slot] += 1
        return found


def counted(where: Where) -> Counter[int]:
    sums: Counter[int] = Counter()
    for slot, pods in zip(*(column.tolist() for column in where), strict=True):
        sums[slot] += pods
    return Counter({slot: pods for slot, pods in sums.items() if pods})


def some(found: dict[str, Counter[int]]) -> dict[str, set[int]]:
    """On which slots there is anybody: how often a pod's terms say the same doesn't matter."""
    return {key: set(slots) for key, slots in found.items() if slots}


class Change(RuleBasedStateMachine):
    """A company that pods come to and go from, with what-ifs over it, and copies."""

    def __init__(self) -> None:
        super().__init__()
        self.company = Company()
        self.truth = Recount()
        self.asked: list[Pick] = []

    @initialize(namespaces=st.sampled_from(({}, {"m": {"team": "t"}})))
    def begin(self, namespaces: dict[str, dict[str, str]]) -> None:
        for name, labels in namespaces.items():
            self.label(name, labels)

    @rule(shape=SHAPES, slot=SLOTS, leaving=st.booleans(), count=st.integers(1, 2))
    def come(self, shape: Shape, slot: int, leaving: bool, count: int) -> None:
        self.company.add(shape, slot, count, leaving=leaving)
        self.truth.pods += [(shape, slot, leaving)] * count

    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        if self.truth.pods:
            shape, slot, leaving = self.truth.pods.pop(data.draw(st.integers(0, len(self.truth.pods) - 1)))
            self.company.add(shape, slot, -1, leaving=leaving)

    @rule(name=st.sampled_from(("m", "n")), labels=st.sampled_from(({}, {"team": "t"})))
    def label(self, name: str, labels: dict[str, str]) -> None:
        self.company.set_namespace(name, labels)
        self.truth.namespaces[name] = labels

    @rule(name=st.sampled_from(("m", "n")))
    def unlabel(self, name: str) -> None:
        self.company.remove_namespace(name)
        self.truth.namespaces.pop(name, None)

    @rule()
    def copy(self) -> None:
        left_behind = self.company
        self.company = self.company.copy()
        left_behind.add(Shape(namespace="n", labels=(("app", "a"),)), 3)

    @rule(pick=PICKS)
    def ask(self, pick: Pick) -> None:
        self.asked.append(pick)

    @invariant()
    def every_answer_is_that_of_a_recount(self) -> None:
        for pick in self.asked:
            assert counted(self.company.where(pick)) == self.truth.where(pick)
            assert counted(self.company.over().where(pick)) == self.truth.where(pick)

    @rule(shape=SHAPES)
    def ask_who_is_against(self, shape: Shape) -> None:
        against = self.company.over().against(shape)
        assert some({key: counted(where) for key, where in against.items()}) == some(self.truth.against(shape))
        assert self.company.concerns(shape) == bool(shape.apart or self.truth.against(shape))

    @rule(data=st.data(), more=st.lists(st.tuples(SHAPES, SLOTS), max_size=3), pick=PICKS, asking=SHAPES)
    def what_if(self, data: st.DataObject, more: list[tuple[Shape, int]], pick: Pick, asking: Shape) -> None:
        scratch = self.company.over()
        gone = data.draw(st.lists(st.integers(0, len(self.truth.pods) - 1), unique=True)) if self.truth.pods else []
        gone = self.leaving_first(gone)
        remaining = [pod for number, pod in enumerate(self.truth.pods) if number not in gone]
        for number in gone:
            shape, slot, _ = self.truth.pods[number]
            scratch.add(shape, [slot], [-1])
        untouched = scratch.copy()
        for shape, slot in more:
            scratch.add(shape, [slot], [1])
        self.agrees(untouched, replace(self.truth, pods=remaining), pick, asking)
        staying = [(shape, slot, False) for shape, slot in more]
        if not pick.staying:  # one that comes where one goes: which of them is counted isn't for a what-if to say
            self.agrees(scratch, replace(self.truth, pods=remaining + staying), pick, asking)

    def leaving_first(self, gone: list[int]) -> list[int]:
        """Of the same pods those that are being deleted: they are the first that a what-if takes away."""
        pods = self.truth.pods
        swapped: list[int] = []
        for number in gone:
            alike = [other for other, pod in enumerate(pods) if pod[:2] == pods[number][:2] and other not in swapped]
            swapped.append(next((other for other in alike if pods[other][2]), alike[0]))
        return swapped

    @staticmethod
    def agrees(scratch: Scratch, truth: Recount, pick: Pick, asking: Shape) -> None:
        assert counted(scratch.where(pick)) == truth.where(pick)
        against = {key: counted(where) for key, where in scratch.against(asking).items()}
        assert some(against) == some(truth.against(asking))
        if asking.apart or truth.against(asking):
            assert scratch.concerns(asking)


TestChange = Change.TestCase


def test_of_more_questions_than_are_remembered_each_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Company()
    picks = [Pick((PodTerm("", LabelSelector(match_labels={"app": str(number)}), ("n",)),)) for number in range(50)]
    monkeypatch.setattr(module, "PICKS", 8)
    for turn in range(2):
        held.add(Shape(namespace="n", labels=(("app", "7"),)), turn)
        found = [counted(held.where(pick)) for pick in picks]
        assert found == [Counter(range(turn + 1)) if number == 7 else Counter() for number in range(50)]


# --- domains -----------------------------------------------------------------------------------------------------

VALUES = st.one_of(st.none(), st.fixed_dictionaries({}, optional={"zone": st.sampled_from("123")}))


@given(st.lists(st.one_of(st.tuples(st.integers(0, 9), VALUES), st.sampled_from(("ask", "copy")))))
def test_two_nodes_are_in_one_domain_if_their_labels_are_equal(
    changes: list[tuple[int, dict[str, str] | None] | str],
) -> None:
    topology = Topology()
    labels: dict[int, dict[str, str] | None] = {}
    for change in changes:
        if change == "ask":
            same_domains(topology, labels)
        elif change == "copy":
            left_behind, topology = topology, topology.copy()
            left_behind.set_node(0, {"zone": "9"})
        else:
            assert isinstance(change, tuple)
            topology.set_node(*change)
            labels[change[0]] = change[1]
    same_domains(topology, labels)


def same_domains(topology: Topology, labels: Mapping[int, dict[str, str] | None]) -> None:
    found = topology.domains("zone", 12)
    values = [(labels.get(slot) or {}).get("zone") for slot in range(12)]
    assert len(found.of) == 12
    for one in range(12):
        assert (found.of[one] == -1) == (values[one] is None)
        assert found.of[one] < found.size
        for other in range(12):
            assert values[one] is None or (found.of[one] == found.of[other]) == (values[one] == values[other])


def test_values_that_no_node_has_any_more_are_not_kept_for_ever() -> None:
    topology = Topology()
    topology.domains("host", 1)
    for number in range(1000):
        topology.set_node(0, {"host": str(number)})
    assert topology.domains("host", 1).size < 100
