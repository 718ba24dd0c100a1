"""The command line: `python -m localcluster up`, `down` and `build`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path

from localcluster import build, nodes
from localcluster.cluster import Cluster
from localcluster.deploy import PROGRAMS, Startgate
from localcluster.errors import ClusterError
from localcluster.record import read_record

STOPPED_WITHIN = 60.0


def default_directory() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "startgate" / "default"


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


def _up(arguments: argparse.Namespace) -> None:
    programs = build.programs(arguments.kubernetes, _say)
    began = time.monotonic()
    cluster = Cluster(arguments.dir, programs, {})
    try:
        fakes = nodes.same_nodes(
            arguments.nodes,
            cpu=arguments.node_cpu,
            memory=arguments.node_memory,
            gpus=arguments.gpus,
        )
        cluster.bring_up(fakes)
        if arguments.startgate:
            _say("Deploying Startgate.")
            asyncio.run(_deploy(cluster))
        cluster.detach()
    except BaseException:
        cluster.close()
        raise
    if arguments.startgate:
        _say(PROGRAMS.format(logs=cluster.dir / "logs"))
    _say(f"The cluster is up after {time.monotonic() - began:.1f} s. To use it:")
    sys.stdout.write(f"export KUBECONFIG={cluster.kubeconfig}\n")


async def _deploy(cluster: Cluster) -> None:
    await (await Startgate.install(cluster)).up()


def _down(arguments: argparse.Namespace) -> None:
    supervisor = read_record(arguments.dir).get("supervisor")
    if supervisor is None:
        _say(f"No cluster runs in {arguments.dir}.")
        return
    supervisor.terminate(STOPPED_WITHIN)
    _say(
        f"The cluster is down. Its logs stay in {arguments.dir}, until you delete that directory or run `up` with it: "
        "that begins with an empty cluster."
    )


def _build(arguments: argparse.Namespace) -> None:
    for name, path in build.programs(arguments.kubernetes, _say).items():
        sys.stdout.write(f"{name} {path}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m localcluster", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    up = verbs.add_parser("up", help="start an empty cluster that lives until `down`")
    down = verbs.add_parser("down", help="stop it, and exactly it; its logs stay")
    only_build = verbs.add_parser("build", help="build the programs, start nothing")
    for verb in (up, only_build):
        verb.add_argument("--kubernetes", choices=list(build.KUBERNETES), default=build.NEWEST)
    for verb in (up, down):
        verb.add_argument(
            "--dir",
            type=lambda text: Path(text).absolute(),
            default=default_directory(),
            help="where the cluster keeps its files (default: %(default)s)",
        )
    up.add_argument("--nodes", type=int, default=3, help="how many fake nodes (default: %(default)s)")
    up.add_argument("--node-cpu", default="32", help="of each node (default: %(default)s)")
    up.add_argument("--node-memory", default="128Gi", help="of each node (default: %(default)s)")
    up.add_argument("--gpus", type=int, default=8, help="of each node (default: %(default)s)")
    up.add_argument("--startgate", action="store_true", help="deploy Startgate on it")
    up.set_defaults(do=_up)
    down.set_defaults(do=_down)
    only_build.set_defaults(do=_build)
    return parser


def main() -> int:
    arguments = _parser().parse_args()
    try:
        arguments.do(arguments)
    except ClusterError as problem:
        _say(str(problem))
        return 1
    except KeyboardInterrupt:
        _say("Stopped; nothing is left running.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
