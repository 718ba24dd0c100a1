"""What it costs to find places for a thousand pods on 5,000 nodes: the room alone, in the CPU time of this process.

`python -m bench.fit`; what is measured and how to read it is in bench/README.md. No cluster is needed. Always holds:
all pods are placed, or the bench fails.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from typing import Final

from bench.engine import NODE, NODES, PODS, pace
from startgate.engine.cluster import Cluster
from startgate.engine.fit import Room
from startgate.engine.world import Batch
from startgate.model import objects
from startgate.model.selectors import LabelSelector
from startgate.model.shape import HostPort, PodTerm, Shape, Spread

WANTED: Final = 1000
PLAIN: Final = 20.0
"""Milliseconds of CPU that a gang of identical pods may take."""
CONSTRAINED: Final = 200.0
"""The same with topology spread and anti-affinity."""

HOST: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
OWN: Final = LabelSelector(match_labels={"job": "x"})


def _pod(
    *,
    apart: tuple[PodTerm, ...] = (),
    together: tuple[PodTerm, ...] = (),
    spread: tuple[Spread, ...] = (),
    ports: tuple[HostPort, ...] = (),
) -> Shape:
    return Shape(
        request=(("cpu", 1000), ("memory", 2**30), ("pods", 1)),
        namespace="ns",
        labels=(("job", "x"),),
        apart=apart,
        together=together,
        spread=spread,
        ports=ports,
    )


GANGS: Final = {
    "identical": (_pod(), PLAIN),
    "one a node (anti-affinity)": (_pod(apart=(PodTerm(HOST, OWN, ("ns",)),)), CONSTRAINED),
    "spread over 3 zones": (_pod(spread=(Spread(ZONE, 1, OWN),)), CONSTRAINED),
    "both": (_pod(apart=(PodTerm(HOST, OWN, ("ns",)),), spread=(Spread(ZONE, 1, OWN),)), CONSTRAINED),
    "spread over all nodes": (_pod(spread=(Spread(HOST, 1, OWN),)), CONSTRAINED),
    "all in one zone (affinity)": (_pod(together=(PodTerm(ZONE, OWN, ("ns",)),)), CONSTRAINED),
    "a host port": (_pod(ports=(HostPort(80),)), CONSTRAINED),
}


def cluster() -> Cluster:
    """Three zones; ten pods on each node, which leave room for eight more."""
    made = Cluster()
    there = Shape(request=(("cpu", 800), ("memory", 4 * 2**30), ("pods", 1)), namespace="other")
    for i in range(NODES):
        name = f"node-{i:05}"
        meta = objects.ObjectMeta(name=name, labels={HOST: name, ZONE: f"zone-{i % 3}"})
        ready = objects.Condition(type="Ready", status="True")
        status = objects.NodeStatus(allocatable=dict(NODE), conditions=(ready,))
        made.set_node(objects.Node(metadata=meta, status=status))
        for number in range(PODS):
            made.add_pod(f"{i}-{number}", name, there, ours=True)
    return made


def main() -> int:
    """The command line. The exit status says whether all were placed, not whether the marks were met."""
    parser = argparse.ArgumentParser(prog="python -m bench.fit", description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    ground, placed = cluster(), True
    print(f"{WANTED:,} pods, {NODES:,} nodes, {NODES * PODS:,} running pods; medians of {runs}")
    print(f"{'':<30}{'CPU ms':>10}{'mark':>16}")
    for name, (shape, mark) in GANGS.items():
        found = []
        for _ in range(runs):
            gc.collect()
            room = Room(ground)
            begun = time.process_time()
            placed = room.place((Batch(shape, WANTED),)) is not None and placed
            found.append((time.process_time() - begun) * 1000)
        median = statistics.median(found)
        print(f"{name:<30}{median:>10.1f}{mark:>8.0f} {'met' if median <= mark else 'NOT MET'}")
    print(f"The pace of this machine at this hour: {pace():.0f} ms of CPU for a million additions.")
    if not placed:
        print("NOT ALL WERE PLACED")
    return 0 if placed else 1


if __name__ == "__main__":
    sys.exit(main())
