"""A control plane of one's own for a long run, and what is left and said at its end. Chaos and soak have it in common.

What always holds: results alone go to standard output, progress to standard error; logs are kept where something was
found.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from localcluster import build
from localcluster.cluster import Cluster
from localcluster.deploy import Startgate
from tests.chaos.invariants import Findings


class Outcome(Protocol):
    """What came of a run."""

    @property
    def clean(self) -> bool: ...
    @property
    def stuck(self) -> Sequence[str]: ...
    @property
    def found(self) -> Findings: ...
    def table(self) -> str: ...
    def last_line(self) -> str: ...


T = TypeVar("T", bound=Outcome)


def say(sentence: str) -> None:
    """Progress."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


async def on_a_plane(name: str, keep: Path, work: Callable[[Startgate, Path], Awaitable[T]]) -> T:
    """Runs the work there, with a folder for its own; the logs go to `keep` if it wasn't clean."""
    with tempfile.TemporaryDirectory(prefix=f"startgate-{name}-") as folder:
        async with (
            Cluster.start(kubernetes=os.environ.get("KUBERNETES", build.NEWEST)) as cluster,
            Startgate.deploy(cluster) as startgate,
        ):
            outcome = await work(startgate, Path(folder))
            if not outcome.clean:
                for part in ("logs", "startgate"):
                    shutil.copytree(cluster.dir / part, keep / part, dirs_exist_ok=True)
                say(f"The logs are in {keep}.")
    return outcome


def tell(outcome: Outcome) -> int:
    """Says what was found; the exit status."""
    for sentence in (*outcome.stuck, *outcome.found.sentences()):
        sys.stdout.write(f"{sentence}\n")
    sys.stdout.write(f"{outcome.table()}\n{outcome.last_line()}\n")
    return int(not outcome.clean)
