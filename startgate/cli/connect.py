"""Which cluster, and which namespace: the options that each verb shares, and a client for as long as it reads.

What always holds: nothing here or in a verb writes to the cluster; what goes wrong out there ends as a VerbError.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Final, TypeAlias

import msgspec
import typer

from startgate.cli.failure import of_cluster
from startgate.kube.client import Client
from startgate.kube.errors import KubeError

NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def _namespace(name: str | None) -> str | None:
    if name is not None and not NAMESPACE.fullmatch(name):
        raise typer.BadParameter(f"{name!r} can't be the name of a namespace.")
    return name


Kubeconfig: TypeAlias = Annotated[
    str | None, typer.Option("--kubeconfig", metavar="FILE", help="Instead of $KUBECONFIG or ~/.kube/config.")
]
Context: TypeAlias = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="Instead of the kubeconfig's current context.")
]
Namespace: TypeAlias = Annotated[
    str | None,
    typer.Option("--namespace", "-n", metavar="NAME", callback=_namespace, help="Instead of the context's namespace."),
]
AllNamespaces: TypeAlias = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Gangs of every namespace.")]


class Target(msgspec.Struct, frozen=True):
    """The cluster that the command line names."""

    kubeconfig: str | None
    context: str | None


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[Client]:
    """A client; a KubeError inside becomes a VerbError."""
    try:
        async with await Client.connect(kubeconfig=target.kubeconfig, context=target.context) as client:
            yield client
    except KubeError as error:
        raise of_cluster(error) from error
