"""Builds the programs of a cluster, once, into the user's cache.

A build is known by what it was made from (the Go modules beside this file, the version, Go's flags),
so a change of any of these makes a new one. The finished folder appears by a rename: whatever is
there is whole. One build runs at a time on a machine; a second one waits and then finds the first
one's work.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster import tools
from localcluster.errors import ClusterError
from localcluster.processes import Command, Processes

HERE = Path(__file__).parent
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
ON_TERMINAL, ON_PAPER = 1.0, 30.0
"""Seconds between two lines of progress: on a terminal each takes the place of the one before."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """A Go program: where its module is, what is built of it, and the names that it goes by."""

    title: str
    version: str
    folder: Path
    package: str
    modfile: str
    stamps: Mapping[str, str]
    names: tuple[str, ...]

    def flags(self) -> list[str]:
        stamps = " ".join(f"-X {variable}={value}" for variable, value in self.stamps.items())
        # The version control stamp would make a new program of every commit.
        return ["-trimpath", "-buildvcs=false", f"-modfile={self.modfile}", "-ldflags", f"-s -w {stamps}"]

    def digest(self) -> str:
        content = hashlib.sha256("\0".join([self.package, *self.flags()]).encode())
        sums = self.modfile.removesuffix(".mod") + ".sum"
        for file in sorted({self.modfile, sums} | {it.name for it in self.folder.glob("*.go")}):
            content.update((self.folder / file).read_bytes())
        return content.hexdigest()[:16]


def _kubernetes(version: str, modfile: str) -> Recipe:
    major, minor, _ = version.split(".")
    versions = "k8s.io/component-base/version"
    return Recipe(
        title=f"Kubernetes {version}",
        version=version,
        folder=HERE / "program",
        package=".",
        modfile=modfile,
        stamps={
            f"{versions}.gitVersion": f"v{version}",
            f"{versions}.gitMajor": major,
            f"{versions}.gitMinor": minor,
        },
        names=CONTROL_PLANE,
    )


KUBERNETES = {
    "1.37": _kubernetes("1.37.2", "go.mod"),
    "1.36": _kubernetes("1.36.3", "go-1.36.mod"),
}
NEWEST = "1.37"

KWOK = Recipe(
    title="kwok 0.8.0",
    version="0.8.0",
    folder=HERE / "kwok",
    package="sigs.k8s.io/kwok/cmd/kwok",
    modfile="go.mod",
    stamps={"sigs.k8s.io/kwok/pkg/consts.Version": "v0.8.0"},
    names=("kwok",),
)


def cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "startgate"


def ready_made() -> dict[str, Path] | None:
    """The control plane's programs that KUBEBUILDER_ASSETS names, if it names all of them."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        return None
    programs = {name: Path(folder) / name for name in CONTROL_PLANE}
    return programs if all(os.access(path, os.X_OK) for path in programs.values()) else None


def programs(kubernetes: str, progress: Progress) -> dict[str, Path]:
    """Every program of a cluster by name, built now where it isn't yet."""
    if kubernetes not in KUBERNETES:
        raise ClusterError(f"There is no Kubernetes {kubernetes} here; choose of {', '.join(KUBERNETES)}.")
    found = ready_made()
    if found is None:
        found = _built(KUBERNETES[kubernetes], progress)
    return found | _built(KWOK, progress)


def _built(recipe: Recipe, progress: Progress) -> dict[str, Path]:
    folder = cache() / recipe.version / recipe.digest()
    if not folder.is_dir():
        with _alone(progress):
            if not folder.is_dir():
                _build(recipe, folder, progress)
    return {name: folder / name for name in recipe.names}


@contextlib.contextmanager
def _alone(progress: Progress) -> Iterator[None]:
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("Another build is running; waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(recipe: Recipe, folder: Path, progress: Progress) -> None:
    go = str(tools.go())
    for left_over in cache().glob("unfinished-*"):  # of builds that were killed: we hold the lock
        shutil.rmtree(left_over)
    work = Path(tempfile.mkdtemp(prefix="unfinished-", dir=cache()))
    # The compilers are the supervisor's, so that they end when this process does.
    processes = Processes(work)
    try:
        made = work / "made"
        made.mkdir()
        program = made / recipe.names[0]
        progress(f"Fetching the sources of {recipe.title} (once).")
        flags = recipe.flags()
        _finish(processes, _go(recipe, "sources", [go, "list", "-deps", *flags, recipe.package]), lambda _: None)
        packages = len(processes.log("sources").read_text().splitlines())
        build = _go(recipe, "build", [go, "build", "-v", *flags, "-o", str(program), recipe.package])
        began = time.monotonic()

        def show(lines: int) -> None:
            # No guess of what is left: a package takes milliseconds or, as the last ones and linking do, minutes.
            done = f"{lines} of {packages} packages" if lines < packages else "all packages made, linking"
            _passing(f"Building {recipe.title} (once, some minutes): {done} after {_age(began)}.", progress)

        try:
            _finish(processes, build, show)
        finally:
            _passing("", progress)
        for name in recipe.names[1:]:
            (made / name).symlink_to(program.name)
        folder.parent.mkdir(parents=True, exist_ok=True)
        made.rename(folder)
        progress(f"Built {recipe.title} in {time.monotonic() - began:.0f} s.")
    finally:
        processes.close()
        shutil.rmtree(work)


def _age(began: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - began), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _passing(sentence: str, progress: Progress) -> None:
    """On a terminal a line that the next one replaces (nothing: it goes away), elsewhere a line like all others."""
    if sys.stderr.isatty():
        room = max(shutil.get_terminal_size().columns - 5, 1)
        sys.stderr.write(f"\r\x1b[2K  · {sentence[:room]}" if sentence else "\r\x1b[2K")
        sys.stderr.flush()
    elif sentence:
        progress(sentence)


def _go(recipe: Recipe, name: str, argv: list[str]) -> Command:
    return Command(name, argv, os.environ | {"GOTOOLCHAIN": "local", "GOWORK": "off"}, recipe.folder)


def _finish(processes: Processes, command: Command, show: Callable[[int], None]) -> None:
    processes.start(command)
    shown = time.monotonic()
    every = ON_TERMINAL if sys.stderr.isatty() else ON_PAPER
    while (code := processes.status()[command.name].exit) is None:
        time.sleep(0.1)
        if time.monotonic() - shown > every:
            shown = time.monotonic()
            show(len(processes.log(command.name).read_text().splitlines()))
    if code != 0:
        raise ClusterError(f"`{' '.join(command.argv[:2])}` failed: {processes.last_words(command.name)}")
