"""Startgate on a local cluster: the manifests as they ship, the programs as real processes.

kwok would only pretend that the Deployments run, so their programs run here, beside the cluster, with exactly
the command, the arguments, the environment and the ServiceAccount that the Deployments state. What differs from
a real cluster, and nothing else does: the Deployments have no replicas, since these processes are the replicas;
they listen on loopback, on free ports; the audit log is in the cluster's directory.

Use `async with Startgate.deploy(cluster) as startgate`. The programs die with the cluster's launcher, as the
control plane does.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import secrets
import signal
import socket
import sysconfig
import time
import urllib.request
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import yaml

from localcluster import tools
from localcluster.cluster import Cluster
from localcluster.errors import ClusterError
from localcluster.ports import LOOPBACK
from localcluster.processes import Command
from startgate.kube import kinds
from startgate.kube.client import ApiError, Client
from startgate.model import names

REPOSITORY: Final = Path(__file__).parent.parent
OVERLAY: Final = REPOSITORY / "manifests" / "overlays" / "local"
READY_WITHIN: Final = 60.0
POLL: Final = 0.05

PORTS: Final = range(20_000, 32_000)
"""Below those that Linux gives to outgoing connections, so that a port is still free when its program restarts."""

PROGRAMS: Final = (
    "Startgate's controller and webhook are processes of this machine, not pods; their logs are "
    "startgate-controller-0.log and startgate-webhook-0.log in {logs}."
)
"""What people must know who look for the pods."""

Manifest = dict[str, Any]


def free_port() -> int:
    """A loopback port that nobody listens on."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port


def expand(text: str, environment: Mapping[str, str]) -> str:
    """$(NAME) as the kubelet expands it: an unknown name stays as it is, $$(NAME) is a plain $(NAME)."""
    return re.sub(
        r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)",
        lambda found: "$" if found[0] == "$$" else environment.get(found[1], found[0]),
        text,
    )


@dataclass(frozen=True)
class Template:
    """What a Deployment says of the one container of its pods."""

    name: str
    namespace: str
    account: str
    command: tuple[str, ...]
    environment: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, deployment: Manifest) -> Self:
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        return cls(
            deployment["metadata"]["name"],
            deployment["metadata"]["namespace"],
            pod["serviceAccountName"],
            (*container["command"], *container["args"]),
            tuple(container["env"]),
        )

    def values(self, replaced: Mapping[str, str], fields: Mapping[str, str]) -> dict[str, str]:
        """The environment: `replaced` by variable, `fields` by the path of a fieldRef."""
        values: dict[str, str] = {}
        for variable in self.environment:
            name = variable["name"]
            if name in replaced:
                values[name] = replaced[name]
            elif "value" in variable:
                values[name] = expand(variable["value"], values)
            else:
                values[name] = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        missing = replaced.keys() - values.keys()
        assert not missing, f"Deployment {self.name} has no variable {', '.join(missing)} to replace"
        return values


class Program:
    """One of our programs, as a process of this machine. It keeps its name and its ports when it is restarted."""

    def __init__(self, cluster: Cluster, template: Template, kubeconfig: Path, number: int = 0) -> None:
        self.name = f"{template.name}-{number}"
        self.audit = cluster.dir / "startgate" / self.name / "audit.jsonl"
        self.audit.parent.mkdir(parents=True, exist_ok=True)
        self.health_port = free_port()
        self.port = free_port()
        """Where it serves the API server; only the webhook does."""
        self.kubeconfig = kubeconfig
        """By which it reaches the API server, from its next start on."""
        replaced = {"HOST": LOOPBACK, "HEALTH_PORT": str(self.health_port), "AUDIT_FILE": str(self.audit)}
        if any(variable["name"] == "PORT" for variable in template.environment):
            replaced["PORT"] = str(self.port)
        environment = template.values(
            replaced,
            {
                "metadata.name": self.name,
                "metadata.uid": str(uuid.uuid4()),
                "metadata.namespace": template.namespace,
            },
        )
        self._cluster = cluster
        self._template = template
        self._command = Command(
            self.name,
            [expand(each, environment) for each in template.command],
            environment
            | {
                # What the image and the kubelet give to the container.
                "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.defpath]),
                "PYTHONUNBUFFERED": "1",
            },
            cwd=REPOSITORY,
        )

    def replica(self, number: int) -> Program:
        """One more of its kind, which doesn't run yet."""
        return Program(self._cluster, self._template, self.kubeconfig, number)

    @property
    def pid(self) -> int:
        """Of the process that runs now; ClusterError if none does."""
        pid = self._cluster.pids.get(self.name)
        if pid is None:
            raise ClusterError(f"{self.name} does not run; its log is {self.log}.")
        return pid

    @property
    def log(self) -> Path:
        return self._cluster.log(self.name)

    async def start(self, *more: str) -> None:
        """Starts it, with more arguments than the Deployment gives if need be; see `wait_ready`."""
        environment = {**self._command.env, "KUBECONFIG": str(self.kubeconfig)}
        await self._cluster.run(dataclasses.replace(self._command, argv=[*self._command.argv, *more], env=environment))

    async def stop(self) -> None:
        """SIGTERM, as the kubelet stops a container; returns when it is gone."""
        await self._cluster.stop_process(self.name)

    async def kill(self) -> None:
        """SIGKILL, at once; returns when it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        await self._cluster.stop_process(self.name)

    async def wait_ready(self, within: float = READY_WITHIN) -> None:
        """Returns when /readyz says yes, as the Deployment's probe would see it."""
        deadline = time.monotonic() + within
        while not await asyncio.to_thread(self._answers, "/readyz"):
            if self.name not in self._cluster.pids:
                raise ClusterError(f"{self.name} ended; its log is {self.log}, which ends so: {self.tail()}")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{self.name} was not ready within {within:.0f} s; its log is {self.log}, "
                    f"which ends so: {self.tail()}"
                )
            await asyncio.sleep(POLL)

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        with contextlib.suppress(FileNotFoundError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return "(no log)"

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self.health_port}{path}", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:  # HTTPError, for a 503, is one
            return False


class Startgate:
    """What is deployed: the programs `webhook` and `controller`."""

    def __init__(self, cluster: Cluster, programs: Mapping[str, Program]) -> None:
        self.cluster = cluster
        self.webhook = programs["startgate-webhook"]
        self.controller = programs["startgate-controller"]

    @classmethod
    @contextlib.asynccontextmanager
    async def deploy(cls, cluster: Cluster) -> AsyncIterator[Self]:
        """Startgate for as long as the context lasts; what was applied stays until the cluster ends."""
        deployed = await cls.install(cluster)
        try:
            await deployed.up()
            yield deployed
        finally:
            await asyncio.shield(deployed.down())

    @classmethod
    async def install(cls, cluster: Cluster) -> Self:
        """Applies the manifests; starts nothing yet."""
        manifests = await render()
        templates = [Template.of(each) for each in manifests if each["kind"] == "Deployment"]
        # The accounts have to be there for their tokens; the webhook's port has to be known for the rest.
        await _apply(cluster, [each for each in manifests if each["kind"] in ("Namespace", "ServiceAccount")])
        programs = {
            each.name: Program(cluster, each, await cluster.service_account_kubeconfig(each.namespace, each.account))
            for each in templates
        }
        deployed = cls(cluster, programs)
        await _apply(cluster, [_here(each, deployed.webhook.port) for each in manifests])
        crds = [f"crd/{kind.plural}.{kind.group}" for kind in (kinds.QUEUES, kinds.GANGS)]
        await kubectl(cluster, "wait", "--for=condition=Established", "--timeout=30s", *crds)
        return deployed

    async def up(self) -> None:
        """Starts both programs, and returns when they do their work."""
        await self.webhook.start()
        await self.controller.start()
        await self.webhook.wait_ready()
        await self.controller.wait_ready()
        await self.wait_effective()

    async def down(self) -> None:
        """Stops both, whether or not they run."""
        for program in (self.controller, self.webhook):
            if program.name in self.cluster.pids:
                await program.stop()

    async def wait_effective(self, within: float = READY_WITHIN) -> None:
        """Returns when the API server asks the webhook and takes its answer, for all that it is to be asked."""
        deadline = time.monotonic() + within
        async with await Client.connect(kubeconfig=str(self.cluster.kubeconfig)) as client:
            while answer := await self._unasked(client):
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"The API server does not get on with the webhook after {within:.0f} s: {answer}; "
                        f"the webhook's log is {self.webhook.log}"
                    )
                await asyncio.sleep(POLL)

    @staticmethod
    async def _unasked(client: Client) -> str:
        """Why one of the webhooks is not asked yet, or nothing: each is tried, without leaving a trace."""
        meta = {"name": "startgate-probe", "labels": {names.QUEUE: "startgate-probe"}}
        pod = {
            "restartPolicy": "Never",
            "containers": [{"name": "probe", "image": "probe"}],
        }
        tried: list[tuple[kinds.Kind[Any], str, Manifest]] = [
            (kinds.JOBS, "default", {"template": {"spec": pod}}),
            (kinds.PODS, "default", pod),
            (kinds.QUEUES, "", {"parent": "startgate-probe-without-one"}),
        ]
        for kind, namespace, spec in tried:
            probe = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, "spec": spec}
            try:
                made = await client.request("POST", kind.path(namespace), query={"dryRun": "All"}, body=probe)
            except ApiError as error:
                if "denied the request" not in error.message:  # the webhook's own no is an answer
                    return error.message
            else:  # taken without a trace of the webhook: the API server hasn't read its configuration yet
                if kind is kinds.JOBS or (kind is kinds.PODS and names.GATE.encode() not in made):
                    return f"a {kind.kind} with our label went by the webhook"
        return ""


async def render() -> list[Manifest]:
    """The local overlay, as kustomize makes it."""
    text = await _run([str(tools.kubectl()), "kustomize", str(OVERLAY)])
    return [each for each in yaml.safe_load_all(text) if each]


async def kubectl(cluster: Cluster, *arguments: str, stdin: str = "") -> str:
    """What kubectl says, as the cluster's admin; ClusterError where it fails."""
    return await _run([str(tools.kubectl()), f"--kubeconfig={cluster.kubeconfig}", *arguments], stdin)


def _here(manifest: Manifest, port: int) -> Manifest:
    """The manifest, for this machine: no replicas but our processes, the webhook where it really listens."""
    if manifest["kind"] == "Deployment":
        return manifest | {"spec": manifest["spec"] | {"replicas": 0}}
    for webhook in manifest.get("webhooks", ()):
        webhook["clientConfig"]["service"]["port"] = port
    return manifest


async def _apply(cluster: Cluster, manifests: list[Manifest]) -> None:
    await kubectl(
        cluster,
        "apply",
        "--server-side",
        "--field-manager=startgate-install",
        "--filename=-",
        stdin=yaml.safe_dump_all(manifests),
    )


async def _run(argv: list[str], stdin: str = "") -> str:
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, complaint = await process.communicate(stdin.encode())
    if process.returncode != 0:
        raise ClusterError(f"{' '.join(argv[:4])} failed: {complaint.decode(errors='replace').strip()}")
    return output.decode()
