"""Kubeconfig files, each complete in itself: it names no other file, and only its owner may read it."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import yaml

from localcluster.pki import Pair


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _write(path: Path, server: str, authority: bytes, name: str, user: dict[str, Any]) -> Path:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": {"server": server, "certificate-authority-data": _text(authority)}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": name}}],
        "current-context": "local",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        yaml.safe_dump(content, file, sort_keys=False)
    return path


def with_certificate(path: Path, server: str, authority: bytes, name: str, pair: Pair) -> Path:
    user = {"client-certificate-data": _text(pair.certificate), "client-key-data": _text(pair.key)}
    return _write(path, server, authority, name, user)


def with_token(path: Path, server: str, authority: bytes, name: str, token: str) -> Path:
    return _write(path, server, authority, name, {"token": token})
