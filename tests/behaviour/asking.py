"""Asking the API server as somebody, and reading what it answers as it stands.

Beside the `Field`, which sees the cluster as its admin: ordinary users with the rights that RBAC gives them, the
sentence of a refusal, objects as they are stored, what `kubectl gang` prints, and the lines of our programs' audit
logs. What always holds: rights that are given or taken here are in force when the call returns, and are as before when
the context ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sysconfig
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from localcluster import tools
from localcluster.deploy import Program
from startgate.audit.record import DECODER, Record
from startgate.kube.client import Client
from startgate.kube.errors import ApiError
from startgate.kube.kinds import Kind
from startgate.model import names
from startgate.model.objects import Namespace
from tests.behaviour.kit import Field, Manifest, eventually

RBAC: Final = "rbac.authorization.k8s.io"
CLUSTER_ROLES: Final = Kind(RBAC, "v1", "clusterroles", "ClusterRole", False, Namespace)
ROLES: Final = Kind(RBAC, "v1", "roles", "Role", True, Namespace)
TELLING: Final = {
    "view": ("list", "", "pods"),
    "edit": ("create", "", "pods"),
    "startgate-view": ("list", names.GROUP, "queues"),
    "startgate-queue-admin": ("create", names.GROUP, "queues"),
    "startgate-break-glass": (names.RELEASE_VERB, names.GROUP, "gangs"),
}
"""By ClusterRole: a right by which one sees that it is in force."""


async def denial(work: Awaitable[object]) -> str:
    """The sentence with which the API server refuses this; fails if it lets it through."""
    try:
        done = await work
    except ApiError as error:
        return error.message
    raise AssertionError(f"it was let through: {done!r}")


def by_webhook(which: str, sentence: str) -> str:
    """What a user reads when our webhook says this."""
    return f'admission webhook "{which}.startgate.dev" denied the request: {sentence}'


async def stored(field: Field, kind: Kind[Any], name: str) -> Manifest:
    """The object as the API server has it; {} if there is none."""
    try:
        body = await field.client.request("GET", kind.path(field.namespace if kind.namespaced else "", name))
    except ApiError as error:
        if error.not_found:
            return {}
        raise
    found: Manifest = json.loads(body)
    return found


async def listed(field: Field, kind: Kind[Any]) -> list[Manifest]:
    """All objects of a kind in the field's namespace, as the API server has them."""
    found: list[Manifest] = json.loads(await field.client.request("GET", kind.path(field.namespace)))["items"]
    return found


async def may(field: Field, user: str, right: tuple[str, str, str], *, namespace: str = "", name: str = "") -> bool:
    """Whether the API server would let the user do this: (verb, group, resource or resource/subresource)."""
    verb, group, what = right
    resource, _, subresource = what.partition("/")
    asked = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": {**asked, "namespace": namespace, "name": name}},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    answer: Manifest = json.loads(await field.client.request("POST", path, body=review))
    return bool(answer["status"]["allowed"])


@asynccontextmanager
async def acting_as(
    field: Field, name: str, *, roles: Sequence[str] = ("edit",), everywhere: Sequence[str] = ()
) -> AsyncIterator[Client]:
    """A client of an ordinary user: `roles` are bound in the field's namespace, `everywhere` in the cluster."""
    user = user_name(field, name)
    for kind, bound in (("RoleBinding", roles), ("ClusterRoleBinding", everywhere)):
        for role in bound:
            await field.put(
                {
                    "apiVersion": f"{RBAC}/v1",
                    "kind": kind,
                    "metadata": {"name": f"{user}-{role}"},
                    "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
                    "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
                }
            )
    for role in (*roles, *everywhere):
        ask = partial(may, field, user, TELLING[role], namespace=field.namespace)
        await eventually(ask, bool, f"{user} has what {role} gives")
    async with await Client.connect(kubeconfig=str(await field.cluster.user_kubeconfig(user))) as client:
        yield client


def user_name(field: Field, name: str) -> str:
    """The full name of the user who is called so on this field."""
    return f"{name}-{field.namespace}"


def account(name: str) -> str:
    """The user name of one of our ServiceAccounts."""
    return f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{name}"


def records(program: Program, *, namespace: str = "", queue: str = "") -> list[Record]:
    """The program's audit log, of all that have run under its name; a line that is no record fails."""
    found = [DECODER.decode(line) for line in program.audit.read_bytes().splitlines()]
    return [each for each in found if (not namespace or each.namespace == namespace) and (queue in ("", each.queue))]


async def gang(kubeconfig: Path | None, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `kubectl gang`; `simulate` needs no kubeconfig."""
    process = await asyncio.create_subprocess_exec(
        str(tools.kubectl()),
        "gang",
        *arguments,
        *([f"--kubeconfig={kubeconfig}"] if kubeconfig else []),
        env={"PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]), "HOME": "/nonexistent"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()
