"""How the programs of a cluster are called: their flags, and the files that they read.

Flags are left at their defaults wherever a cluster could do with them (client limits above all: the
benchmarks measure what people run). What differs, and why:

- everything is on loopback, with ports that are held for us (see `ports`);
- no election among the controllers and schedulers, since there is one of each: a restart is instant;
- etcd doesn't wait for the disk: these data are worth nothing after a crash of the machine;
- no Endpoints of kube-apiserver itself: those can't be loopback addresses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster import kubeconfig
from localcluster.pki import Authority
from localcluster.ports import LOOPBACK
from localcluster.processes import Command
from startgate.model import names

STAGES = Path(__file__).parent / "stages"

# kube-apiserver would wait a minute for its watchers to go.
PATIENCE = {"kube-apiserver": 2.0}

# Only writes are of interest (webhooks leave their auditAnnotations there), and leases are noise. Of our own programs
# everything is, so that their rights can be held against what they do.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "userGroups": [f"system:serviceaccounts:{names.SYSTEM_NAMESPACE}"]},
        {"level": "None", "resources": [{"group": "coordination.k8s.io"}]},
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "Metadata"},
    ],
}

# Nobody without a name gets in, except to ask after the server's health.
AUTHENTICATION = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AuthenticationConfiguration",
    "anonymous": {
        "enabled": True,
        "conditions": [{"path": path} for path in ("/livez", "/readyz", "/healthz")],
    },
}


@dataclass(frozen=True)
class Ports:
    etcd: int
    etcd_peer: int
    apiserver: int
    controller_manager: int
    scheduler: int


class Plane:
    """The commands of one cluster, in the order in which they start."""

    def __init__(self, folder: Path, authority: Authority, ports: Ports, programs: Mapping[str, Path]) -> None:
        self._folder = folder
        self._authority = authority
        self._ports = ports
        self._programs = programs
        hosts = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        certificate, key = authority.files("serving", authority.server(hosts, [LOOPBACK, "10.0.0.1"]))
        self._serving = [f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}"]
        self.server = f"https://localhost:{ports.apiserver}"
        self.audit_log = folder / "logs" / "audit.log"

    def commands(self, extra_flags: Mapping[str, Sequence[str]]) -> list[Command]:
        flags = {
            "etcd": self._etcd(),
            "kube-apiserver": self._apiserver(),
            "kube-controller-manager": self._controller_manager(),
            "kube-scheduler": self._scheduler(),
            "kwok": self._kwok(),
        }
        # kwok would read settings of its own from the home folder.
        environment = {"HOME": str(self._folder), "KWOK_WORKDIR": str(self._folder / "kwok")}
        return [
            Command(
                name,
                [str(self._programs[name]), *own, *extra_flags.get(name, ())],
                environment,
                self._folder,
                PATIENCE.get(name, Command.patience),
            )
            for name, own in flags.items()
        ]

    def _etcd(self) -> list[str]:
        client = f"http://{LOOPBACK}:{self._ports.etcd}"
        peer = f"http://{LOOPBACK}:{self._ports.etcd_peer}"
        return [
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            # It waits one election before it makes itself the leader of one.
            "--heartbeat-interval=20",
            "--election-timeout=200",
            "--socket-reuse-port=true",
            "--unsafe-no-fsync=true",
            "--log-level=warn",
        ]

    def _apiserver(self) -> list[str]:
        return [
            f"--etcd-servers=http://{LOOPBACK}:{self._ports.etcd}",
            f"--bind-address={LOOPBACK}",
            f"--advertise-address={LOOPBACK}",
            f"--secure-port={self._ports.apiserver}",
            "--permit-port-sharing=true",
            "--endpoint-reconciler-type=none",
            *self._serving,
            f"--client-ca-file={self._authority.certificate_file}",
            f"--authentication-config={self._json('authentication', AUTHENTICATION)}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._authority.account_public_key_file}",
            f"--service-account-signing-key-file={self._authority.account_key_file}",
            f"--audit-policy-file={self._json('audit-policy', AUDIT_POLICY)}",
            f"--audit-log-path={self.audit_log}",
        ]

    def _controller_manager(self) -> list[str]:
        return [
            f"--kubeconfig={self._user('kube-controller-manager', 'system:kube-controller-manager')}",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={self._ports.controller_manager}",
            "--permit-port-sharing=true",
            *self._serving,
            "--leader-elect=false",
            # Each controller with the rights that a real cluster gives it.
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self._authority.account_key_file}",
            f"--root-ca-file={self._authority.certificate_file}",
        ]

    def _scheduler(self) -> list[str]:
        return [
            f"--kubeconfig={self._user('kube-scheduler', 'system:kube-scheduler')}",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={self._ports.scheduler}",
            "--permit-port-sharing=true",
            *self._serving,
            "--leader-elect=false",
        ]

    def _kwok(self) -> list[str]:
        stages = [f"--config={file}" for file in sorted(STAGES.glob("*.yaml"))]
        return [
            f"--kubeconfig={self._user('kwok', 'kwok', ['system:masters'])}",
            *stages,
            "--manage-all-nodes=true",
            "--node-lease-duration-seconds=40",
            f"--node-ip={LOOPBACK}",
            "--node-port=0",  # a kubelet's server, on all addresses, were there a port
            "--cidr=10.244.0.0/16",
        ]

    def _user(self, name: str, user: str, groups: Sequence[str] = ()) -> Path:
        return kubeconfig.with_certificate(
            self._authority.folder / f"{name}.kubeconfig",
            self.server,
            self._authority.certificate,
            user,
            self._authority.client(user, groups),
        )

    def _json(self, name: str, content: object) -> Path:
        file = self._folder / f"{name}.json"
        file.write_text(json.dumps(content, indent=2))
        return file
