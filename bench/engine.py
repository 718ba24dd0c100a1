"""What one decision costs: the engine alone, on a made-up large cluster, in the CPU time of this process.

`python -m bench.engine`; what is measured and how to read it is in bench/README.md. No cluster is needed. Always holds:
each variant says how many gangs go, give way and stay, and fails where that isn't what the variant is for, so that a
fast answer can't be a wrong one.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from controller.main import YOUNG
from startgate.engine.cluster import Cluster
from startgate.engine.cycle import decide
from startgate.engine.world import Batch, Holder, Placement, Plan, Waiting, World
from startgate.model import objects
from startgate.model.queue import QueueSpec
from startgate.model.resources import Amounts, add, quantities, scale
from startgate.model.shape import Shape

NODES: Final = 5000
PODS: Final = 10
"""On each node."""
GANGS: Final = 2000
SHAPES: Final = 50
GPU: Final = "nvidia.com/gpu"
NODE: Final = {"cpu": "16", "memory": "128Gi", "pods": "110"}
SIZES: Final = (1, 2, 8, 32, 128)
"""Pods of the gangs that run."""
ASKED: Final = (1, 2, 4, 8)
"""Pods of the gangs that wait."""

TOPS: Final = [f"t{i}" for i in range(5)]
MIDDLES: Final = [f"{top}-{i}" for top in TOPS for i in range(3)]
LEAVES: Final = [f"{middle}-{i}" for middle in MIDDLES for i in range(2)]
NOW: Final = 100_000.0

FULL: Final = 250.0
"""Milliseconds of CPU that a whole decision may take."""
INCREMENTAL: Final = 25.0
"""The same for a decision after one change."""


def _shape(milli: int, memory: int, *, gpu: int = 0) -> Shape:
    asks = {"cpu": milli, "memory": memory * 2**20, GPU: gpu, "pods": 1}
    return Shape(request=tuple(sorted((each, count) for each, count in asks.items() if count)))


class Ground:
    """A cluster full of gangs: the part that all variants have in common."""

    def __init__(
        self,
        milli: int,
        *,
        queues: Sequence[str] = LEAVES,
        sizes: Sequence[int] = SIZES,
        bound: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Each node has ten pods of so much cpu, of gangs of these queues and sizes in turn; `bound`: which gangs may
        not be taken back, by their number."""
        self.cluster = Cluster()
        for i in range(NODES):
            self.cluster.set_node(_node(i))
        self.shape = _shape(milli, 4096)
        self.holders: list[Holder] = []
        self.used: dict[str, Amounts] = {}
        spots = self._spots()
        number = 0
        while nodes := [spot for _, spot in zip(range(sizes[number % len(sizes)]), spots, strict=False)]:
            self._run(number, queues[number // len(sizes) % len(queues)], nodes, takeable=not bound(number))
            number += 1

    def queues(self, **of: QueueSpec) -> dict[str, QueueSpec]:
        """Fifty, three deep: each deserves what it has, and some are as given."""
        made = {}
        for name in (*TOPS, *MIDDLES, *LEAVES):
            used = add(*(amounts for leaf, amounts in self.used.items() if leaf.startswith(name)))
            deserved = quantities({each: used.get(each, 0) for each in self.shape.amounts})
            made[name] = QueueSpec(parent=name.rpartition("-")[0], deserved=deserved)
        return made | of

    def _spots(self) -> Iterator[str]:
        """Each node ten times, but not ten times in a row: a gang is spread."""
        for _ in range(PODS):
            for i in range(NODES):
                yield _node_name(i)

    def _run(self, number: int, queue: str, nodes: Sequence[str], *, takeable: bool) -> None:
        counts: dict[str, int] = {}
        for i, name in enumerate(nodes):
            self.cluster.add_pod(f"{number}-{i}", name, self.shape, ours=True)
            counts[name] = counts.get(name, 0) + 1
        charge = scale(self.shape.amounts, len(nodes))
        self.used[queue] = add(self.used.get(queue, {}), charge)
        self.holders.append(
            Holder(
                gang=f"ns/run{number}",
                queue=queue,
                priority=0,
                since=float(number),
                charge=charge,
                pods=(Placement(self.shape, tuple(counts.items())),),
                takeable=takeable,
            )
        )

    def world(self, waiting: Iterable[Waiting], queues: dict[str, QueueSpec] | None = None) -> World:
        return World(
            cluster=self.cluster,
            queues=queues or self.queues(),
            used=self.used,
            claims=(),
            waiting=tuple(waiting),
            holders=tuple(self.holders),
        )


def _node_name(i: int) -> str:
    return f"node-{i:05}"


def _node(i: int) -> objects.Node:
    return objects.Node(
        metadata=objects.ObjectMeta(name=_node_name(i)),
        status=objects.NodeStatus(allocatable=dict(NODE), conditions=(objects.Condition(type="Ready", status="True"),)),
    )


def _gangs(
    count: int,
    milli: int,
    *,
    queues: Sequence[str] = LEAVES,
    sizes: Sequence[int] = ASKED,
    since: float = NOW - 60,
) -> list[Waiting]:
    """So many that wait, of at most fifty shapes but for the names of their Jobs, each a moment younger than the one
    before."""
    shapes = [_shape(milli + i, 1024) for i in range(SHAPES)]
    return [
        Waiting(
            gang=f"ns/wait{i:05}",
            queue=queues[i % len(queues)],
            namespace="ns",
            priority=0,
            since=since + i / 1000,
            minimum=(Batch(_of_job(f"wait{i:05}", shapes[i * 7 % SHAPES]), sizes[i % len(sizes)]),),
        )
        for i in range(count)
    ]


def _of_job(name: str, shape: Shape) -> Shape:
    return replace(shape, namespace="ns", labels=(("batch.kubernetes.io/job-name", name),))


# The variants. Each makes a world for so many waiting gangs, and knows what has to come of it.


class Case(NamedTuple):
    world: World
    right: Callable[[Plan], bool]


def none_goes(count: int) -> Case:
    """Every node is full, and every queue has what it deserves."""
    return Case(Ground(1600).world(_gangs(count, 1000)), lambda plan: not plan.go and not plan.evict)


def all_go(count: int) -> Case:
    """Half of every node is free."""
    return Case(Ground(800).world(_gangs(count, 300)), lambda plan: len(plan.go) == count)


RICH: Final = [leaf for leaf in LEAVES if not leaf.startswith("t0")]
POOR: Final = [leaf for leaf in LEAVES if leaf.startswith("t0")]
"""Those that have nothing and deserve a fifth."""


def _to_claim(ground: Ground) -> dict[str, QueueSpec]:
    fifth = quantities({"cpu": 16_000 * NODES // 5, "memory": 128 * 2**30 * NODES // 5, "pods": 110 * NODES // 5})
    tops = {top: QueueSpec(deserved=fifth) for top in TOPS}
    others = {name: QueueSpec(parent=name.rpartition("-")[0]) for name in (*MIDDLES, *LEAVES)}
    return ground.queues(**tops, **others)


def proofs_fail(count: int) -> Case:
    """Those who wait have nothing, and could claim; but half of each node is held by gangs that can't be taken back,
    and each of their pods needs more than the other half."""
    ground = Ground(1600, queues=RICH, sizes=(8,), bound=lambda number: number * 8 // NODES % 2 == 0)
    world = ground.world(_gangs(count, 15_000, queues=POOR), _to_claim(ground))
    return Case(world, lambda plan: not plan.go and not plan.evict)


def reclaims(count: int) -> Case:
    """A hundred who wait have nothing, and claim a gang of their own size each; the others have what they deserve, or
    more."""
    ground = Ground(1600, queues=RICH, sizes=(8,))
    some = min(100, count)
    claimants = [
        replace(gang, gang=f"{gang.gang}-claims")
        for gang in _gangs(some, 1500, queues=POOR, sizes=(8,), since=NOW - 300)
    ]
    others = _gangs(count - some, 1000, queues=RICH)

    def right(plan: Plan) -> bool:
        return len({evict.claimant for evict in plan.evict}) == some and not plan.go

    return Case(ground.world([*claimants, *others], _to_claim(ground)), right)


def one_protected(count: int) -> Case:
    """The first has waited for too long and needs a thousand whole nodes; those behind it take what it can't use."""
    big = Waiting(
        gang="ns/big",
        queue=LEAVES[0],
        namespace="ns",
        priority=0,
        since=0.0,
        minimum=(Batch(_shape(15_900, 1024), 1000),),
        preempts=False,
    )
    ground = Ground(800)
    # By weight, most for the first; nobody's gangs may be taken back for it.
    queues = {
        name: QueueSpec(
            parent=name.rpartition("-")[0], weight=1000 if LEAVES[0].startswith(name) else 1, reclaimable=False
        )
        for name in (*TOPS, *MIDDLES, *LEAVES)
    }

    def right(plan: Plan) -> bool:
        return len(plan.go) == count and not plan.evict and any(stay.gang == big.gang for stay in plan.stay)

    return Case(ground.world([big, *_gangs(count, 300)], queues), right)


VARIANTS: Final[dict[str, Callable[[int], Case]]] = {
    "none goes": none_goes,
    "all go": all_go,
    "proofs fail": proofs_fail,
    "100 reclaims": reclaims,
    "one protected": one_protected,
}
AFTER_A_CHANGE: Final = "after a change"


class Figures(NamedTuple):
    variant: str
    gangs: int
    plan: Plan
    right: bool
    milliseconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def mark(self) -> float:
        return INCREMENTAL if self.variant == AFTER_A_CHANGE else FULL


def measured(variant: str, count: int, runs: int) -> Figures:
    """A whole decision, time and again, on the same world."""
    case = VARIANTS[variant](count)
    found = []
    for _ in range(runs + 1):
        spent, plan = _timed(case.world)
        found.append(spent)
    return Figures(variant, count, plan, case.right(plan), found[1:])


def after_a_change(count: int, runs: int) -> Figures:
    """None goes; then each time one gang comes and one pod of somebody else's is bound."""
    case = none_goes(count)
    world = case.world
    decide(world, NOW)
    found = []
    for i in range(runs + 1):
        world.cluster.add_pod(f"other-{i}", _node_name(i), _shape(1, 1))
        newcomer = replace(world.waiting[i], gang=f"ns/new{i}", since=NOW)
        world = replace(world, waiting=(*world.waiting[:-1], newcomer))
        spent, plan = _timed(world)
        found.append(spent)
    return Figures(AFTER_A_CHANGE, count, plan, case.right(plan), found[1:])


def _timed(world: World) -> tuple[float, Plan]:
    gc.collect()
    gc.freeze()  # as the controller does with what it holds
    begun = time.process_time()
    plan = decide(world, NOW)
    return (time.process_time() - begun) * 1000, plan


def pace() -> float:
    """What a million additions take, in milliseconds of CPU: how fast this machine is at this hour."""

    def once() -> float:
        begun = time.process_time()
        sum(i for i in range(1_000_000))
        return (time.process_time() - begun) * 1000

    return statistics.median(once() for _ in range(5))


def _row(figures: Figures) -> list[str]:
    plan = figures.plan
    verdict = "met" if figures.median <= figures.mark else "NOT MET"
    return [
        figures.variant,
        f"{figures.gangs:,}",
        f"{len(plan.go):,}",
        f"{len(plan.evict):,}",
        f"{len(plan.stay):,}",
        f"{figures.median:.1f}",
        f"{min(figures.milliseconds):.1f} to {max(figures.milliseconds):.1f}",
        f"{figures.mark:.0f} {verdict}" if figures.gangs == GANGS else "",
        "" if figures.right else "WRONG PLAN",
    ]


def _print(rows: Iterable[list[str]]) -> None:
    """Line by line, as they come."""
    for row in rows:
        print(f"{row[0]:<15}" + "".join(f"{cell:>{width}}" for cell, width in zip(row[1:], WIDTHS, strict=True)))
        sys.stdout.flush()


WIDTHS: Final = (8, 8, 8, 8, 10, 20, 14, 13)
HEAD: Final = ["", "waiting", "go", "evict", "stay", "CPU ms", "single runs", "mark", ""]


def profile(variant: str, count: int, lines: int) -> None:
    """Where the time of one decision goes."""
    world = VARIANTS[variant](count).world
    decide(world, NOW)
    profiler = cProfile.Profile()
    profiler.enable()
    decide(world, NOW)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("cumulative").print_stats(lines)


def main() -> int:
    """The command line. The exit status says whether all plans were right, not whether the marks were met."""
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    parser.add_argument("--variants", default=",".join(VARIANTS), help="of %(default)s")
    parser.add_argument("--gangs", default="500,1000,2000,4000", help="how many wait (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--profile", metavar="VARIANT", choices=VARIANTS, help="say where the time goes, and no more")
    parser.add_argument("--lines", type=int, default=30, help="of the profile")
    options = parser.parse_args()
    gc.set_threshold(YOUNG)  # as the controller does
    counts = [int(count) for count in options.gangs.split(",")]
    if options.profile:
        profile(options.profile, counts[0], options.lines)
        return 0
    queues = len(TOPS + MIDDLES + LEAVES)
    print(f"{NODES:,} nodes, {NODES * PODS:,} running pods, {queues} queues; medians of {options.runs}")
    _print([HEAD])
    found = []
    for variant in options.variants.split(","):
        for count in counts:
            found.append(measured(variant, count, options.runs))
            _print([_row(found[-1])])
    found.append(after_a_change(GANGS, options.runs))
    _print([_row(found[-1])])
    print(f"The pace of this machine at this hour: {pace():.0f} ms of CPU for a million additions.")
    return 0 if all(each.right for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
