"""The local cluster comes up whole, its pods live as they are told, and it goes without a trace."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localcluster import build, tools
from localcluster.cluster import Cluster
from localcluster.errors import ClusterError
from localcluster.nodes import Node
from localcluster.processes import Command
from localcluster.record import read_record

LOCALCLUSTER = [sys.executable, "-m", "localcluster"]
ROOT = Path(build.__file__).parent.parent

HELD_OPEN = """
import asyncio, sys
from pathlib import Path
from localcluster.cluster import Cluster

async def main():
    async with Cluster.start(dir=Path(sys.argv[1])):
        print("up", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def await_true(what: Callable[[], bool], within: float = 120.0) -> None:
    deadline = time.monotonic() + within
    while not what():
        assert time.monotonic() < deadline, f"did not become true within {within} s"
        time.sleep(0.05)


def kubectl(kubeconfig: Path, *arguments: str, given: str | None = None) -> str:
    answer = subprocess.run(
        [tools.kubectl(), "--kubeconfig", kubeconfig, *arguments],
        check=False,
        input=given,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def processes_of(directory: Path) -> set[int]:
    """Everything that was called with a path in this directory, but for zombies."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(directory).encode() in words:
                found.add(int(entry.name))
    return found


def pod(name: str, **simulated: str) -> str:
    annotations = {f"simulate.startgate.dev/{key}": value for key, value in simulated.items()}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]},
        }
    )


def status(cluster: Cluster, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(kubectl(cluster.kubeconfig, "get", "pod", name, "-o", "json"))["status"]
    return answer


def phase(cluster: Cluster, name: str) -> str:
    return str(status(cluster, name).get("phase"))


@pytest.fixture
def killed() -> Iterator[list[subprocess.Popen[str]]]:
    """Launchers that a test has started; whatever becomes of the test, they end."""
    launchers: list[subprocess.Popen[str]] = []
    yield launchers
    for launcher in launchers:
        launcher.kill()
        launcher.communicate()


def test_the_server_is_of_the_version_that_was_asked_for(cluster: Cluster) -> None:
    asked = build.KUBERNETES[os.environ.get("KUBERNETES", build.NEWEST)]
    versions = json.loads(kubectl(cluster.kubeconfig, "version", "-o", "json"))
    assert versions["serverVersion"]["gitVersion"] == f"v{asked.version}"


def test_up_and_down_beside_another_cluster(cluster: Cluster, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    up = [*LOCALCLUSTER, "up", "--dir", str(mine), "--nodes", "2", "--node-cpu", "16", "--gpus", "4"]
    try:
        subprocess.run(up, cwd=ROOT, check=True, capture_output=True)
        listed = json.loads(kubectl(mine / "kubeconfig", "get", "nodes", "-o", "json"))["items"]
        assert [node["status"]["allocatable"]["cpu"] for node in listed] == ["16", "16"]
        assert [node["status"]["allocatable"]["nvidia.com/gpu"] for node in listed] == ["4", "4"]
        assert "default" in kubectl(cluster.kubeconfig, "get", "namespaces")

        again = subprocess.run(up, check=False, cwd=ROOT, capture_output=True, text=True)
        assert again.returncode == 1
        assert "runs in" in again.stderr
        assert "Traceback" not in again.stderr

        others = set(cluster.pids.values())
        recorded = {process.pid for process in read_record(mine).values()}
        assert len(recorded) == 6
        assert recorded.isdisjoint(others)
    finally:
        subprocess.run([*LOCALCLUSTER, "down", "--dir", str(mine)], cwd=ROOT, check=True, capture_output=True)
    assert not read_record(mine)
    assert not processes_of(mine)
    assert set(cluster.pids.values()) == others


def test_up_leaves_alone_a_directory_that_is_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    up = subprocess.run(
        [*LOCALCLUSTER, "up", "--dir", str(tmp_path)], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert up.returncode == 1
    assert "choose an empty directory" in up.stderr
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize("moment", ["supervisor", "etcd", "kube-apiserver", "kwok"])
def test_up_killed_in_its_midst_leaves_nothing(
    cluster: Cluster, tmp_path: Path, killed: list[subprocess.Popen[str]], moment: str
) -> None:
    mine = tmp_path / "mine"
    launcher = subprocess.Popen([*LOCALCLUSTER, "up", "--dir", str(mine)], cwd=ROOT, text=True)
    killed.append(launcher)
    await_true(lambda: moment in read_record(mine))
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    await_true(lambda: not processes_of(mine))


@pytest.mark.parametrize("victim", ["launcher", "supervisor"])
def test_a_cluster_goes_with_its_launcher_and_with_its_supervisor(
    tmp_path: Path, killed: list[subprocess.Popen[str]], victim: str
) -> None:
    mine = tmp_path / "mine"
    launcher = subprocess.Popen(
        [sys.executable, "-c", HELD_OPEN, str(mine)], cwd=ROOT, text=True, stdout=subprocess.PIPE
    )
    killed.append(launcher)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "up\n"
    owned = read_record(mine)
    assert len(owned) == 6
    os.kill(launcher.pid if victim == "launcher" else owned["supervisor"].pid, signal.SIGKILL)
    await_true(lambda: not any(process.alive() for process in owned.values()))


async def test_pods_live_as_their_annotations_say(cluster: Cluster) -> None:
    await cluster.set_nodes([Node(name="only")])
    await asyncio.to_thread(pods_live_as_told, cluster)


def pods_live_as_told(cluster: Cluster) -> None:
    pods = {
        "ends-well": pod("ends-well", runs="1500ms"),
        "ends-badly": pod("ends-badly", fails="1s", runs="1h"),
        "stays": pod("stays"),
        "misspelt": pod("misspelt", runs="a while"),
        "lingers": pod("lingers", terminates="1h"),
    }
    for manifest in pods.values():
        kubectl(cluster.kubeconfig, "create", "-f", "-", given=manifest)

    def ended_although_written_to() -> bool:
        # Somebody's writes must not make a pod run longer.
        kubectl(cluster.kubeconfig, "label", "--overwrite", "pod", "ends-badly", f"at={time.monotonic_ns()}")
        return phase(cluster, "ends-badly") == "Failed"

    await_true(ended_although_written_to)
    await_true(lambda: phase(cluster, "ends-well") == "Succeeded")
    ended = status(cluster, "ends-badly")["containerStatuses"][0]["state"]["terminated"]
    assert ended["exitCode"] == 1
    await_true(lambda: phase(cluster, "misspelt") == phase(cluster, "stays") == "Running")

    kubectl(cluster.kubeconfig, "delete", "pod", "lingers", "--wait=false")
    kubectl(cluster.kubeconfig, "delete", "pod", "ends-well", "ends-badly", "stays", "misspelt")
    left = json.loads(kubectl(cluster.kubeconfig, "get", "pods", "-o", "json"))["items"]
    assert [it["metadata"]["name"] for it in left] == ["lingers"]
    kubectl(cluster.kubeconfig, "delete", "pod", "lingers", "--force", "--grace-period=0")


async def test_nodes_are_exactly_those_that_are_set(cluster: Cluster) -> None:
    taint = {"key": "only", "value": "gangs", "effect": "NoSchedule"}
    await cluster.set_nodes([Node(name="a"), Node(name="b", cpu="4", gpus=0, taints=[taint])])
    await cluster.set_nodes([Node(name="b", cpu="8", labels={"zone": "z"}), Node(name="c")])
    answer = await asyncio.to_thread(kubectl, cluster.kubeconfig, "get", "nodes", "-o", "json")
    found = {node["metadata"]["name"]: node for node in json.loads(answer)["items"]}
    assert found.keys() == {"b", "c"}
    assert found["b"]["status"]["allocatable"]["cpu"] == "8"
    assert found["b"]["metadata"]["labels"]["zone"] == "z"
    assert "taints" not in found["b"]["spec"]


async def test_a_process_restarts_alone(cluster: Cluster) -> None:
    before = cluster.pids
    await cluster.restart("kube-scheduler")
    after = cluster.pids
    assert {name for name in after if before[name] != after[name]} == {"kube-scheduler"}
    await cluster.stop_process("kwok")
    assert "kwok" not in cluster.pids
    await cluster.restart("kube-apiserver")
    await cluster.start_process("kwok")
    assert cluster.pids.keys() == before.keys()


async def test_a_program_that_cannot_start_is_told_with_its_last_words(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="unknown flag: --of-truce"):
        async with Cluster.start(dir=tmp_path / "mine", flags={"kube-apiserver": ["--of-truce"]}):
            pytest.fail("it came up")
    assert not processes_of(tmp_path)


async def test_more_programs_run_beside_the_control_plane(cluster: Cluster) -> None:
    sleeper = Command("sleeper", ["/bin/sleep", "1000"])
    assert await cluster.run(sleeper) == cluster.pids["sleeper"]
    await cluster.restart("sleeper")
    assert "sleeper" in cluster.pids
    await cluster.stop_process("sleeper")
    assert "sleeper" not in cluster.pids


async def test_users_and_accounts_are_who_they_say(cluster: Cluster) -> None:
    async def who(kubeconfig: Path) -> dict[str, Any]:
        answer = await asyncio.to_thread(kubectl, kubeconfig, "auth", "whoami", "-o", "json")
        identity: dict[str, Any] = json.loads(answer)["status"]["userInfo"]
        return identity

    ann = await cluster.user_kubeconfig("ann", groups=["team-a"])
    assert (await who(ann))["username"] == "ann"
    assert "team-a" in (await who(ann))["groups"]
    with pytest.raises(AssertionError, match="cannot list"):
        await asyncio.to_thread(kubectl, ann, "get", "pods")
    account = await cluster.service_account_kubeconfig("default", "default")
    assert (await who(account))["username"] == "system:serviceaccount:default:default"


def test_strangers_may_ask_after_health_and_nothing_else(cluster: Cluster) -> None:
    trusting = ssl.create_default_context(cadata=cluster.authority.certificate.decode())
    with urllib.request.urlopen(f"{cluster.server}/readyz", context=trusting) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{cluster.server}/api", context=trusting)


def test_writes_are_in_the_audit_log(cluster: Cluster) -> None:
    kubectl(cluster.kubeconfig, "create", "configmap", "noted")

    def noted() -> bool:
        entries = map(json.loads, cluster.audit_log.read_text().splitlines())
        return any(
            entry["verb"] == "create" and entry["objectRef"].get("name") == "noted"
            for entry in entries
            if "objectRef" in entry
        )

    await_true(noted)
    kubectl(cluster.kubeconfig, "delete", "configmap", "noted")


def test_everything_listens_on_loopback_alone(cluster: Cluster) -> None:
    owned = set()
    for name, number in cluster.pids.items():
        for entry in Path(f"/proc/{number}/fd").iterdir():
            target = str(entry.readlink())
            if target.startswith("socket:["):
                owned.add((name, target[8:-1]))
    listening = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                listening[words[9]] = words[1].partition(":")[0]
    addresses = {listening[inode] for _, inode in owned if inode in listening}
    assert addresses == {"0100007F"}
