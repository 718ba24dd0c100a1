"""Workers that need one another: each waits until its whole gang is there, then they work, and end together.

Real ranks of a training run do so by themselves. Here no container runs, so this reports in the kubelet's place that
they have ended; a gang that is never whole never ends. `Timeline` keeps what the watch showed meanwhile.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from demo.stage import Stage
from startgate.kube.store import Change
from startgate.model.pods import Pod

LOOK: Final = 0.1


@dataclass
class Passage:
    """One gang's way over nodes as the watch showed it; times in seconds since the timeline began."""

    first: float | None = None
    """Its first pod came to a node."""
    whole: float | None = None
    """All were on nodes."""
    ended: float | None = None
    """The last of them left."""
    nodes: dict[str, str] = field(default_factory=dict)
    """By pod uid: every pod that came to a node, and which."""

    @property
    def gathering(self) -> float:
        """Seconds from the first pod on a node to the last."""
        return -1.0 if self.first is None or self.whole is None else self.whole - self.first


class Timeline:
    """Gangs by Job name, event by event in the API server's order."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.passages = {job: [Passage()] for job in sizes}
        """A gang that gave way and came back has one for each time."""
        self.most_at_once = 0
        """How many gangs had pods on nodes at one time, at most."""
        self._sizes = sizes
        self._there: dict[str, set[str]] = {job: set() for job in sizes}
        self._began = time.monotonic()

    @property
    def gangs(self) -> dict[str, Passage]:
        """The last passage of each."""
        return {job: passages[-1] for job, passages in self.passages.items()}

    def hear(self, change: Change[Pod]) -> None:
        """Takes in one change of a pod."""
        pod = change.new or change.old
        if pod is None or pod.owner is None or pod.owner.name not in self.passages:
            return
        job, now = pod.owner.name, time.monotonic() - self._began
        passage, there = self.passages[job][-1], self._there[job]
        if change.new is not None and pod.node and not pod.ended:
            if passage.ended is not None:
                passage = Passage()
                self.passages[job].append(passage)
            there.add(pod.uid)
            passage.nodes[pod.uid] = pod.node
            passage.first = now if passage.first is None else passage.first
            if len(there) == self._sizes[job] and passage.whole is None:
                passage.whole = now
        elif pod.uid in there:
            there.remove(pod.uid)
            if not there:
                passage.ended = now
        self.most_at_once = max(self.most_at_once, sum(bool(pods) for pods in self._there.values()))


@contextmanager
def watched(stage: Stage, sizes: Mapping[str, int]) -> Iterator[Timeline]:
    """Inside the context, gangs of these Jobs are on a timeline."""
    timeline = Timeline(sizes)
    stage.listeners.append(timeline.hear)
    try:
        yield timeline
    finally:
        stage.listeners.remove(timeline.hear)


@asynccontextmanager
async def followed(stage: Stage, sizes: Mapping[str, int], *, works: float) -> AsyncIterator[Timeline]:
    """The same, and they end `works` seconds after they are whole."""
    with watched(stage, sizes) as timeline:
        task = asyncio.create_task(_end_whole_ones(stage, sizes, works))
        try:
            yield timeline
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def end(stage: Stage, job: str) -> None:
    """The workers of this gang that are on nodes end well."""
    await asyncio.gather(*(stage.finish(pod) for pod in _there(stage, job)))


async def _end_whole_ones(stage: Stage, sizes: Mapping[str, int], works: float) -> None:
    whole_since: dict[str, float] = {}
    while True:
        for job, size in sizes.items():
            there = _there(stage, job)
            if job not in whole_since and len(there) == size:
                whole_since[job] = time.monotonic()
            if there and time.monotonic() - whole_since.get(job, float("inf")) > works:
                await end(stage, job)
        await asyncio.sleep(LOOK)


def _there(stage: Stage, job: str) -> list[Pod]:
    return [pod for pod in stage.pods(job) if pod.node and not pod.ended and not pod.deleting]
