"""The process that owns a cluster's processes, so that none of them outlives its owner.

It is started with a pipe to whoever wants the cluster. While that pipe is open it starts and stops
what it is told; when it closes (its other end died, however suddenly) everything is stopped, unless
it was told before to go on alone (`detach`). Should the supervisor itself be killed, the kernel kills
its children (PR_SET_PDEATHSIG). The order of stopping is the reverse of the order of starting:
kube-apiserver hangs, and keeps its port, when etcd goes first.

Single-threaded on purpose: the kernel ties a child's life to the thread that started it.
Run as `python -m localcluster.supervisor DIRECTORY`, JSON lines in and out.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Never

from localcluster.record import Process, write_record

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _die_with(parent: int) -> None:
    """In a child, before it becomes the program: be killed when `parent` dies, or has died already."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


class Supervisor:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._patience: dict[str, float] = {}

    def start(self, name: str, argv: list[str], env: dict[str, str], cwd: str, patience: float) -> int:
        running = self._children.get(name)
        if running is not None and running.poll() is None:
            raise ValueError(f"{name} runs already")
        self._children.pop(name, None)
        me = os.getpid()
        with (self._directory / "logs" / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=lambda: _die_with(me),  # noqa: PLW1509  no other thread can hold a lock here
            )
        self._children[name] = child
        self._patience[name] = patience
        self.record()
        return child.pid

    def stop(self, name: str) -> None:
        child = self._children.get(name)
        if child is None:
            raise ValueError(f"no process is called {name}")
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(self._patience[name])
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        # What it started itself (the compilers of a build) is of its process group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        self.record()

    def stop_all(self) -> None:
        for name in reversed(list(self._children)):
            self.stop(name)

    def status(self) -> dict[str, dict[str, int | None]]:
        return {name: {"pid": child.pid, "exit": child.poll()} for name, child in self._children.items()}

    def record(self) -> None:
        alive = {name: child.pid for name, child in self._children.items() if child.poll() is None}
        processes = {"supervisor": Process.of(os.getpid())} | {name: Process.of(pid) for name, pid in alive.items()}
        write_record(self._directory, {name: it for name, it in processes.items() if it is not None})

    def obey(self, command: dict[str, Any]) -> object:
        match command["do"]:
            case "start":
                return self.start(**{key: value for key, value in command.items() if key != "do"})
            case "stop":
                self.stop(command["name"])
                return None
            case "status":
                return self.status()
            case "detach":
                return None
        raise ValueError(f"no such command: {command['do']}")


def _lines(selector: selectors.BaseSelector, wakeup: int) -> Any:
    """Command lines as they come; None when a signal or the pipe's end says to stop."""
    rest = b""
    while True:
        for key, _ in selector.select():
            if key.fd == wakeup:
                if signal.SIGTERM in os.read(wakeup, 64):
                    yield None
                continue
            got = os.read(key.fd, 65536)
            if not got:
                yield None
            *lines, rest = (rest + got).split(b"\n")
            yield from lines


def run(directory: Path) -> Never:
    wakeup, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    supervisor = Supervisor(directory)
    supervisor.record()
    with selectors.DefaultSelector() as selector:
        selector.register(wakeup, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        for line in _lines(selector, wakeup):
            if line is None:
                break
            command = json.loads(line)
            try:
                answer = {"done": supervisor.obey(command)}
            except (ValueError, OSError) as problem:
                answer = {"failed": str(problem)}
            try:
                os.write(1, json.dumps(answer).encode() + b"\n")
            except BrokenPipeError:
                break  # nobody is left to hand over to
            if command["do"] == "detach":
                selector.unregister(0)
    supervisor.stop_all()
    sys.exit(0)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
