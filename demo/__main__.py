"""`python -m demo [--keep]`: the whole story on a real control plane of this machine.

The last line is `demo: N checks passed, M failed`; exit status 0 only if something was shown and all of it held.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from demo import work
from demo.checks import Checks
from demo.screen import Screen
from demo.stage import Stage, StoryError
from demo.story import CHAPTERS
from localcluster import build
from localcluster.cluster import Cluster
from localcluster.deploy import PROGRAMS, Startgate
from localcluster.errors import ClusterError
from localcluster.record import read_record
from startgate.kube.errors import KubeError

KUBERNETES: Final = os.environ.get("KUBERNETES", build.NEWEST)


async def tell(screen: Screen, checks: Checks, *, keep: bool) -> bool:
    """Brings the cluster up and plays the story; what goes wrong becomes a failed check. Whether it is still up."""
    try:
        async with running(screen, keep=keep) as cluster:
            screen.note(f"etcd, kube-apiserver, kube-controller-manager and kube-scheduler {KUBERNETES} are up.")
            startgate = await Startgate.install(cluster)
            await startgate.up()
            screen.note("Startgate is installed: manifests/ applied, its webhook and its controller run.")
            async with Stage.open(cluster, startgate, screen, checks) as stage:
                await play(stage)
    except (ClusterError, KubeError) as problem:
        screen.claim(checks.claim("the cluster and Startgate come up", False, str(problem)))
        return False
    return keep


async def play(stage: Stage) -> None:
    """All chapters."""
    try:
        await stage.apply(*work.setting(), admin=True)
        await stage.until("Eve's rights", lambda: may_edit(stage))
        for chapter in CHAPTERS:
            await chapter(stage)
    except (StoryError, ClusterError, KubeError) as problem:
        stage.claim("the story goes on to its end", False, str(problem))


@contextlib.asynccontextmanager
async def running(screen: Screen, *, keep: bool) -> AsyncIterator[Cluster]:
    """The cluster. With `keep` it outlives us once the story has ended; else it goes with us."""
    if not keep:
        async with Cluster.start(kubernetes=KUBERNETES, nodes=work.NODES, progress=screen.note) as cluster:
            yield cluster
        return
    programs = await asyncio.to_thread(build.programs, KUBERNETES, screen.note)
    cluster = Cluster(directory(), programs, {})
    try:
        await asyncio.to_thread(cluster.bring_up, work.NODES)
        yield cluster
        cluster.detach()
    except BaseException:
        await asyncio.shield(asyncio.to_thread(cluster.close))
        raise


async def may_edit(stage: Stage) -> bool:
    """Whether RBAC has taken effect, that of the Gangs included (it is aggregated into the role `edit`)."""
    asked = [("create", "jobs"), ("get", "gangs.startgate.dev")]
    answers = [(await stage.kubectl("auth", "can-i", *what, "-n", work.EVAL))[1] for what in asked]
    return answers == ["yes", "yes"]


def directory() -> Path:
    """Where a cluster that stays up keeps its files."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "startgate" / "demo"


def kept(screen: Screen) -> None:
    """What to do with a cluster that is up."""
    folder = directory()
    commands = Path(sys.executable).parent
    screen.say("To use it:")
    screen.blank()
    screen.lines([f"  export KUBECONFIG={folder / 'kubeconfig'}", f"  export PATH={commands}:$PATH"])
    screen.say("Four things to try:")
    screen.blank()
    screen.lines(
        [
            f"  {'kubectl gang queues':48} # who has what",
            f"  {f'kubectl gang list -n {work.EVAL}':48} # who waits",
            f"  {f'kubectl gang why job/impatient -n {work.EVAL}':48} # and why: the sentence",
            f"  {f'kubectl delete job notebook -n {work.OTHERS}':48} # a GPU comes free: see the gang start",
        ]
    )
    screen.say(PROGRAMS.format(logs=folder / "logs"))
    screen.say("To stop it:")
    screen.blank()
    screen.lines([f"  {sys.executable} -m localcluster down --dir {folder}"])


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo", description="Startgate's story on a real control plane.")
    parser.add_argument("--keep", action="store_true", help="leave the cluster and Startgate up")
    options = parser.parse_args()
    screen, checks = Screen(), Checks()
    if options.keep and read_record(directory()):
        screen.say("The cluster of an earlier `make demo KEEP=1` is up still, so there is no new one. Stop it first.")
        kept(screen)
        screen.lines(["", checks.closing])
        return 1
    began = time.monotonic()
    screen.say(
        f"""Startgate's demo. It starts a real Kubernetes {KUBERNETES} control plane on this machine. Only the nodes
        are made up: kwok plays their kubelets, so pods run without containers. The first time, the programs are built,
        which takes some minutes, some 5 GB of disk, and access to the package registries."""
    )
    try:
        up = asyncio.run(tell(screen, checks, keep=options.keep))
    except KeyboardInterrupt:
        screen.say("Stopped; nothing is left running.")
        return 130
    screen.chapter(8, "All claims")
    screen.ending(checks)
    if up:
        screen.say("The cluster stays up, and Startgate with it.")
        kept(screen)
    elif not checks.good and not options.keep:
        screen.note("To look into it, leave the cluster up: make demo KEEP=1")
    screen.say(f"It took {time.monotonic() - began:.0f} s.")
    screen.lines([checks.closing])
    return 0 if checks.good else 1


if __name__ == "__main__":
    sys.exit(main())
