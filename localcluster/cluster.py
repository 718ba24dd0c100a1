"""A running cluster: started and stopped as a whole, its processes in the caller's hands.

Its life is the caller's: leaving the context, or dying in any way, ends every process. `detach` is
the one exception, for `python -m localcluster up`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import shutil
import socket
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, TextIO

from localcluster import build, kubeconfig, nodes, ports
from localcluster.api import Api
from localcluster.errors import ApiError, ClusterError
from localcluster.nodes import Node
from localcluster.pki import Authority
from localcluster.plane import Plane, Ports
from localcluster.processes import Command, Processes
from localcluster.record import read_record

READY_WITHIN = 180.0  # some 8 s on an idle machine
POLL = 0.05
DAY = 24 * 60 * 60
ADMINS = "system:masters"
LOCK = "cluster.lock"


def _quiet(_: str) -> None:
    return None


def _claim(folder: Path) -> TextIO:
    """The folder, emptied, with a lock on it that the supervisor keeps for the cluster's life."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / LOCK).exists():
        raise ClusterError(f"{folder} holds something that is no cluster; choose an empty directory.")
    lock = (folder / LOCK).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ClusterError(
            f"A cluster runs in {folder} already; stop it by `python -m localcluster down --dir {folder}`."
        ) from None
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()
    return lock


class Cluster:
    """Use `async with Cluster.start(...) as cluster`. Paths and URLs are good from its first moment on."""

    def __init__(self, folder: Path, programs: Mapping[str, Path], flags: Mapping[str, Sequence[str]]) -> None:
        """Blocking. Whoever calls this must call `close`, whatever happens in between."""
        self.dir = folder.absolute()
        self.kubeconfig = self.dir / "kubeconfig"
        with contextlib.ExitStack() as ours:  # the supervisor inherits these, so that they outlive us
            lock = ours.enter_context(_claim(self.dir))
            held: list[socket.socket] = [ours.enter_context(ports.reserve()) for _ in range(5)]
            self._ports = Ports(*map(ports.number, held))
            self._authority = Authority(self.dir / "pki")
            self._plane = Plane(self.dir, self._authority, self._ports, programs)
            admin = self._authority.client("admin", [ADMINS])
            self._credentials = self._authority.files("admin", admin)
            kubeconfig.with_certificate(
                self.kubeconfig, self._plane.server, self._authority.certificate, "admin", admin
            )
            self._commands = {command.name: command for command in self._plane.commands(flags)}
            self._processes = Processes(self.dir, [lock.fileno(), *(it.fileno() for it in held)])

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls,
        *,
        kubernetes: str = build.NEWEST,
        nodes: int | Sequence[Node] = 0,
        dir: Path | None = None,  # noqa: A002  the command line calls it so as well
        flags: Mapping[str, Sequence[str]] | None = None,
        progress: Callable[[str], None] = _quiet,
    ) -> AsyncIterator[Self]:
        """A cluster for as long as the context lasts; `flags` adds flags to programs, by name.

        Without `dir` it lives in a temporary directory, which goes with it.
        """
        programs = await asyncio.to_thread(build.programs, kubernetes, progress)
        with contextlib.ExitStack() as stack:
            folder = dir
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="startgate-")))
            cluster = cls(folder, programs, flags or {})
            try:
                await asyncio.to_thread(cluster.bring_up, nodes)
                yield cluster
            finally:
                await asyncio.shield(asyncio.to_thread(cluster.close))

    @property
    def server(self) -> str:
        return self._plane.server

    @property
    def etcd(self) -> str:
        """Where etcd serves its clients, whoever they are."""
        return f"http://{ports.LOOPBACK}:{self._ports.etcd}"

    @property
    def scheduler(self) -> str:
        """Where kube-scheduler serves its metrics, to the admin."""
        return f"https://localhost:{self._ports.scheduler}"

    @property
    def audit_log(self) -> Path:
        """One JSON line for each write that the API server has answered, and for each request of our programs."""
        return self._plane.audit_log

    @property
    def authority(self) -> Authority:
        return self._authority

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run now, the supervisor among them."""
        return {name: process.pid for name, process in read_record(self.dir).items()}

    def log(self, name: str) -> Path:
        return self._processes.log(name)

    def bring_up(self, wanted: int | Sequence[Node]) -> None:
        """Blocking: start everything, and return when the cluster takes pods."""
        # Each of the two lets the next in as soon as it can serve; a program that finds nobody there
        # would wait seconds before it asks again.
        self._start_blocking("etcd")
        self._start_blocking("kube-apiserver")
        for name in ("kube-controller-manager", "kube-scheduler", "kwok"):
            self._processes.start(self._commands[name])
        for name in self._commands:
            self._await_ready(name)
        # Pods are refused until their namespace has its account.
        self._await("kube-controller-manager", self._takes_pods)
        node_list = nodes.same_nodes(wanted) if isinstance(wanted, int) else wanted
        if node_list:
            self._set_nodes_blocking(node_list)

    def close(self) -> None:
        """Blocking: stop everything, and return when it is gone."""
        self._processes.close()

    def detach(self) -> None:
        """Let the cluster live on without us, until `python -m localcluster down`."""
        self._processes.detach()

    async def run(self, command: Command) -> int:
        """Run one more program for as long as the cluster lives; its pid. It may be stopped by name."""
        self._commands[command.name] = command
        return await asyncio.to_thread(self._processes.start, command)

    async def stop_process(self, name: str) -> None:
        await asyncio.to_thread(self._processes.stop, name)

    async def start_process(self, name: str) -> None:
        """Start a process again that was stopped or has died, and await it ready."""
        await asyncio.to_thread(self._start_blocking, name)

    async def restart(self, name: str) -> None:
        await self.stop_process(name)
        await self.start_process(name)

    async def set_nodes(self, wanted: Sequence[Node]) -> None:
        """Make the nodes exactly these, and await them ready."""
        await asyncio.to_thread(self._set_nodes_blocking, wanted)

    async def user_kubeconfig(self, name: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig of an ordinary user, who has the rights that RBAC gives to that name and groups."""
        return kubeconfig.with_certificate(
            self.dir / "users" / f"{name}.kubeconfig",
            self.server,
            self._authority.certificate,
            name,
            self._authority.client(name, groups),
        )

    async def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """A kubeconfig with a token, good for a day, of a ServiceAccount that exists."""
        token = await asyncio.to_thread(self._token, namespace, name)
        return kubeconfig.with_token(
            self.dir / "users" / f"{namespace}.{name}.kubeconfig",
            self.server,
            self._authority.certificate,
            f"{namespace}:{name}",
            token,
        )

    def _token(self, namespace: str, name: str) -> str:
        with self._api().session() as session:
            answer = session.call(
                "POST",
                f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
                {
                    "apiVersion": "authentication.k8s.io/v1",
                    "kind": "TokenRequest",
                    "spec": {"expirationSeconds": DAY},
                },
            )
        return str(answer["status"]["token"])

    def _api(self, port: int | None = None) -> Api:
        return Api(port or self._ports.apiserver, self._authority.certificate_file, *self._credentials)

    def _set_nodes_blocking(self, wanted: Sequence[Node]) -> None:
        with self._api().session() as session:
            nodes.set_nodes(session, wanted)

    def _start_blocking(self, name: str) -> None:
        if name not in self._commands:
            raise ClusterError(f"No process is called {name}; there are {', '.join(self._commands)}.")
        self._processes.start(self._commands[name])
        self._await_ready(name)

    def _await_ready(self, name: str) -> None:
        probes = {
            "etcd": self._etcd_ready,
            "kube-apiserver": lambda: self._answers(self._ports.apiserver, "/readyz"),
            "kube-controller-manager": lambda: self._answers(self._ports.controller_manager, "/healthz"),
            "kube-scheduler": lambda: self._answers(self._ports.scheduler, "/readyz"),
        }
        if name in probes:
            self._await(name, probes[name])

    def _await(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_WITHIN
        while True:
            # Refused connections and refusals by the API server are what not being ready looks like.
            with contextlib.suppress(OSError, ApiError):
                if ready():
                    return
            ended = self._processes.status()[name].exit
            if ended is not None:
                raise ClusterError(
                    f"{name} ended with code {ended}; its log is {self.log(name)}, which ends so: "
                    f"{self._processes.last_words(name)}"
                )
            if time.monotonic() > deadline:
                raise ClusterError(f"{name} was not ready within {READY_WITHIN:.0f} s; look into {self.log(name)}.")
            time.sleep(POLL)

    def _etcd_ready(self) -> bool:
        with urllib.request.urlopen(f"http://{ports.LOOPBACK}:{self._ports.etcd}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)

    def _answers(self, port: int, path: str) -> bool:
        with self._api(port).session() as session:
            return session.text(path)[0] == 200

    def _takes_pods(self) -> bool:
        with self._api().session() as session:
            session.call("GET", "/api/v1/namespaces/default/serviceaccounts/default")
        return True
