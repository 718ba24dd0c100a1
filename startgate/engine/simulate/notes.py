"""What the user of a simulation should know beside the answer: sentences, those that are alike told as one.

Pure functions of what a run has come to. What always holds: the same run gives the same notes in the same order.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from startgate.engine.world import Plan
from startgate.model.queue import QueueSpec

NAMED: Final = 3
"""So many are named in a sentence; the rest are counted."""


def some(names: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def unknown(classes: Sequence[str]) -> Iterator[str]:
    """PriorityClasses that are named and not there: the API server would make no such pods."""
    if len(classes) == 1:
        yield f"There is no PriorityClass {classes[0]} in the files; it counts as priority 0."
    elif classes:
        yield f"{len(classes)} PriorityClasses aren't in the files ({some(classes)}); they count as priority 0."


def unsound(plan: Plan) -> Iterator[str]:
    """Queues that can't hold as they are written."""
    alike: dict[str, list[str]] = {}
    for name, queue in sorted(plan.queues.items()):
        for problem in queue.problems:
            alike.setdefault(problem, []).append(name)
    for problem, names in alike.items():
        if len(names) == 1:
            yield f"Queue {names[0]} can't hold as it is written: {problem}."
        else:
            yield f"{len(names)} queues can't hold as they are written ({some(names)}): {problem}."


def deep(queues: Mapping[str, QueueSpec], gated: Mapping[str, int]) -> Iterator[str]:
    """Queues in which a cluster would have parked Jobs that come. `gated`: the most pods that waited in each."""
    beyond = [name for name in sorted(queues) if gated.get(name, 0) > queues[name].park_beyond]
    so = "In a cluster, Jobs that come then wait suspended, without pods; their turn is the same."
    if len(beyond) == 1:
        (name,) = beyond
        most = f"up to {gated[name]} pods wait at the gate, beyond its parkBeyond ({queues[name].park_beyond})"
        yield f"Queue {name}: {most}. {so}"
    elif beyond:
        yield f"In {len(beyond)} queues more pods wait at the gate than their parkBeyond says ({some(beyond)}). {so}"
