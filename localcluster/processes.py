"""The launcher's side of the supervisor: start, stop and watch a cluster's processes.

Closing it, or dying with it open, stops everything that was started through it; only `detach` gives
the processes a life of their own.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localcluster.errors import ClusterError


@dataclass(frozen=True)
class Command:
    """A program to run; `env` is its whole environment, `patience` its seconds to end when it is asked to."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = Path("/")
    patience: float = 10.0


@dataclass(frozen=True)
class State:
    pid: int
    exit: int | None


class Processes:
    def __init__(self, directory: Path, inherit: Sequence[int] = ()) -> None:
        """Starts the supervisor; it keeps the file descriptors `inherit` open while it lives."""
        self._directory = directory
        self._talk = threading.Lock()
        self._detached = False
        logs = directory / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / "supervisor.log").open("ab") as log:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-m", "localcluster.supervisor", str(directory)],
                cwd=Path(__file__).parent.parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=tuple(inherit),
                start_new_session=True,  # Ctrl-C is for the launcher, which then closes the pipe
            )

    def log(self, name: str) -> Path:
        return self._directory / "logs" / f"{name}.log"

    def _ask(self, **command: object) -> Any:
        pipe, answers = self._supervisor.stdin, self._supervisor.stdout
        assert pipe is not None
        assert answers is not None
        with self._talk:
            try:
                pipe.write(json.dumps(command).encode() + b"\n")
                pipe.flush()
                line = answers.readline()
            except (OSError, ValueError):
                line = b""
        if not line:
            raise ClusterError(f"The cluster's supervisor is gone; look into {self.log('supervisor')}.")
        answer = json.loads(line)
        if "failed" in answer:
            raise ClusterError(f"The cluster's supervisor could not do it: {answer['failed']}.")
        return answer["done"]

    def start(self, command: Command) -> int:
        pid = self._ask(
            do="start",
            name=command.name,
            argv=list(command.argv),
            env=dict(command.env),
            cwd=str(command.cwd),
            patience=command.patience,
        )
        assert isinstance(pid, int)
        return pid

    def stop(self, name: str) -> None:
        self._ask(do="stop", name=name)

    def status(self) -> dict[str, State]:
        return {name: State(it["pid"], it["exit"]) for name, it in self._ask(do="status").items()}

    def detach(self) -> None:
        """From now on the processes live until someone ends the supervisor."""
        self._ask(do="detach")
        self._detached = True

    def last_words(self, name: str, lines: int = 5) -> str:
        try:
            text = self.log(name).read_text(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def close(self) -> None:
        """Stop everything, and wait until it is gone; what was detached lives on."""
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        with contextlib.suppress(OSError):
            self._supervisor.stdin.close()
        if not self._detached:
            self._supervisor.wait()
        self._supervisor.stdout.close()
