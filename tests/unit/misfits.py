"""Small random clusters with pods that keep others away, and a gang of one kind that asks to go there."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from startgate.engine.cluster import Cluster
from startgate.engine.fit import Room
from startgate.model import objects
from startgate.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement
from startgate.model.shape import HostPort, PodTerm, Shape, Spread
from startgate.model.taints import Taint, Toleration
from tests.unit.worlds import node, shape

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
TAINTS = (Taint("team", "infra", "NoSchedule"), Taint("spot", "", "NoExecute"))
JOB = "batch.kubernetes.io/job-name"


@dataclass
class Place:
    """A node, in words that can be changed."""

    name: str
    cpu: int = 4
    gpu: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False

    def node(self) -> objects.Node:
        return node(
            self.name,
            labels=self.labels,
            taints=self.taints,
            cordoned=self.cordoned,
            cpu=str(self.cpu),
            gpu=str(self.gpu),
        )


@dataclass
class Scene:
    """Nodes, the pods that are on them (by node), and the gang."""

    places: list[Place]
    there: list[tuple[Shape, str]]
    shape: Shape
    count: int
    nominated: list[tuple[Shape, str]] = field(default_factory=list)

    def cluster(self) -> Cluster:
        made = Cluster()
        for place in self.places:
            made.set_node(place.node())
        for number, (each, name) in enumerate(self.there):
            made.add_pod(f"there{number}", name, each)
        for number, (each, name) in enumerate(self.nominated):
            made.add_pod(f"nominated{number}", name, each, nominated=True)
        return made

    def room(self) -> Room:
        return Room(self.cluster())

    def place(self, name: str) -> Place:
        return next(each for each in self.places if each.name == name)


def selecting(**labels: str) -> LabelSelector:
    return LabelSelector(match_labels={JOB if key == "job" else key: value for key, value in labels.items()})


def near(key: str, selector: LabelSelector) -> PodTerm:
    return PodTerm(key, selector, ("ns",))


APPS = st.sampled_from(["ours", "theirs"])
SELECTORS = st.one_of(APPS.map(lambda app: selecting(app=app)), st.just(selecting(job="ours")))
TERMS = st.builds(near, st.sampled_from([ZONE, HOST]), SELECTORS)
SPREADS = st.builds(Spread, st.sampled_from([ZONE, HOST]), st.integers(1, 2), SELECTORS)
OFTEN_NONE: Any = st.just(())


@st.composite
def places(draw: st.DrawFn) -> list[Place]:
    made = []
    for number in range(draw(st.integers(1, 7))):
        name = f"n{number}"
        labels = {HOST: name} | draw(st.sampled_from([{ZONE: "a"}, {ZONE: "b"}, {ZONE: "a", "arch": "arm"}, {}]))
        made.append(
            Place(
                name,
                cpu=draw(st.integers(1, 5)),
                gpu=draw(st.sampled_from([0, 0, 2])),
                labels=labels,
                taints=draw(st.sampled_from([(), (), (), (TAINTS[0],), TAINTS])),
                cordoned=draw(st.integers(0, 9)) == 0,
            )
        )
    return made


@st.composite
def pods_there(draw: st.DrawFn, ours: bool = True) -> Shape:
    app = draw(APPS) if ours else "theirs"
    return shape(
        cpu=draw(st.integers(0, 3)),
        gpu=draw(st.integers(0, 1)),
        namespace="ns",
        labels=(("app", app),),
        apart=tuple(draw(st.one_of(OFTEN_NONE, OFTEN_NONE, st.lists(TERMS, max_size=1)))),
        ports=draw(st.sampled_from([(), (), (HostPort(80),)])),
    )


@st.composite
def gangs(draw: st.DrawFn) -> Shape:
    arm = NodeSelector((NodeSelectorTerm((Requirement("arch", "In", ("arm",)),)),))
    return shape(
        cpu=draw(st.integers(0, 3)),
        gpu=draw(st.sampled_from([0, 0, 1])),
        namespace="ns",
        labels=(("app", "ours"), (JOB, "ours")),
        node_selector=draw(st.sampled_from([(), (), (), ((ZONE, "a"),)])),
        affinity=draw(st.sampled_from([None, None, None, arm])),
        tolerations=draw(st.sampled_from([(), (), (Toleration(operator="Exists"),)])),
        ports=draw(st.sampled_from([(), (), (HostPort(80),)])),
        together=tuple(draw(st.one_of(OFTEN_NONE, OFTEN_NONE, st.lists(TERMS, max_size=2)))),
        apart=tuple(draw(st.one_of(OFTEN_NONE, OFTEN_NONE, st.lists(TERMS, max_size=2)))),
        spread=tuple(draw(st.one_of(OFTEN_NONE, OFTEN_NONE, st.lists(SPREADS, max_size=2)))),
    )


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    nodes = draw(places())
    names = st.sampled_from([place.name for place in nodes])
    there = draw(st.lists(st.tuples(pods_there(), names), max_size=6))
    nominated = draw(st.one_of(OFTEN_NONE, OFTEN_NONE, st.lists(st.tuples(pods_there(), names), max_size=2)))
    return Scene(nodes, there, draw(gangs()), draw(st.integers(1, 8)), list(nominated))
