"""A large cluster's objects as its API server stores them: nodes, gangs that run, and other people's Deployments.

Pods are as a kubelet leaves them, with managed fields, statuses and a token's volume: what the controller has to read
through, and hold a small part of. Always holds: the same number gives the same object.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, Final

from startgate.model import names
from startgate.model.gang import Phase

NAMESPACE: Final = "scale"
QUEUE: Final = "scale"
ZONES: Final = 3
RACK: Final = 40
"""Nodes of one rack."""
SIZE: Final = 20
"""Pods of a gang, and of a Deployment."""
BORN: Final = "2026-01-02T03:04:05Z"
NODE: Final = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "500Gi", "pods": "110"}
HOSTNAME: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"

Manifest = dict[str, Any]


def nodes(count: int) -> Iterator[Manifest]:
    for number in range(count):
        name = _node_name(number)
        labels = {
            "beta.kubernetes.io/arch": "amd64",
            "beta.kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            HOSTNAME: name,
            "node.kubernetes.io/instance-type": "large-64",
            "topology.kubernetes.io/region": "here",
            ZONE: f"here-{number % ZONES}",
            "example.com/rack": f"rack-{number // RACK}",
            "example.com/pool": "general" if number % 4 else "accelerated",
        }
        kinds = ("MemoryPressure", "DiskPressure", "PIDPressure")
        calm = [_condition(kind, "False", "KubeletIsFine") for kind in kinds]
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "uid": _uid(name),
                "creationTimestamp": BORN,
                "labels": labels,
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
                "managedFields": [
                    _managed("kubelet", {"f:metadata": {"f:labels": {f"f:{key}": {} for key in labels}}})
                ],
            },
            "spec": {"podCIDR": f"10.{number // 256}.{number % 256}.0/24"},
            "status": {
                "capacity": NODE,
                "allocatable": NODE,
                "conditions": [*calm, _condition("Ready", "True", "KubeletReady")],
                "addresses": [{"type": "Hostname", "address": name}],
                "images": [
                    {"names": [f"images.example/team/image-{i}@sha256:{i:064x}"], "sizeBytes": 10**9} for i in range(20)
                ],
                "nodeInfo": {"kubeletVersion": "v1.37.2", "architecture": "amd64", "operatingSystem": "linux"},
            },
        }


def jobs(count: int) -> Iterator[Manifest]:
    """The Jobs of gangs that run."""
    for number in range(count):
        name = job_name(number)
        yield job(name) | {
            "status": {
                "active": SIZE,
                "ready": SIZE,
                "startTime": BORN,
                "uncountedTerminatedPods": {},
                "terminating": 0,
            }
        }


def gangs(count: int) -> Iterator[Manifest]:
    """Their Gangs, as the controller has written them."""
    for number in range(count):
        name = job_name(number)
        steps = [{"at": BORN, "phase": Phase.RELEASING}, {"at": BORN, "phase": Phase.RUNNING}]
        yield {
            "apiVersion": names.API_VERSION,
            "kind": "Gang",
            "metadata": _meta(names.gang_of_job(name), owner=("batch/v1", "Job", name)),
            "spec": {"queue": QUEUE, "minAvailable": SIZE, "pods": SIZE},
            "status": {
                "phase": Phase.RUNNING,
                "bound": f"{SIZE}/{SIZE}",
                "counts": {"bound": SIZE},
                "since": BORN,
                "admission": {"id": _uid(f"{name} admitted"), "at": BORN, "slots": SIZE},
                "transitions": steps,
            },
        }


def pods_of_jobs(count: int, nodes: int) -> Iterator[Manifest]:
    """The pods of `jobs(count)`, on these nodes."""
    for number in range(count):
        for index in range(SIZE):
            yield _running(pod_of_job(job_name(number), index), (number * SIZE + index) % nodes)


def pods_of_deployments(count: int, nodes: int, *, named: bool = False) -> Iterator[Manifest]:
    """Twenty of each Deployment. One in four keeps its pods apart, another spreads them over the zones. `named`: each
    pod has a label with its name, as those of a StatefulSet have, so that no two are alike."""
    for number in range(count):
        app = f"service-{number:04}"
        replicas = f"{app}-{number:09x}"
        labels = {
            "app.kubernetes.io/name": app,
            "app.kubernetes.io/version": f"v1.{number % 7}",
            "pod-template-hash": f"{number:09x}",
            "team": f"team-{number % 30}",
        }
        spec: Manifest = {}
        selector = {"labelSelector": {"matchLabels": {"app.kubernetes.io/name": app}}}
        if number % 4 == 0:
            term = {**selector, "topologyKey": HOSTNAME}
            spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        elif number % 4 == 1:
            spread = {**selector, "topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
            spec["topologySpreadConstraints"] = [spread]
        for index in range(SIZE):
            name = f"{replicas}-{index:05}"
            own = {"statefulset.kubernetes.io/pod-name": name} if named else {}
            meta = _meta(name, labels | own, owner=("apps/v1", "ReplicaSet", replicas))
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": _pod_spec("250m", "512Mi") | spec}
            yield _running(pod, (number * SIZE + index) % nodes)


def queue() -> Manifest:
    return {"apiVersion": names.API_VERSION, "kind": "Queue", "metadata": {"name": QUEUE}, "spec": {}}


def job_name(number: int) -> str:
    return f"training-{number:04}"


def job(name: str) -> Manifest:
    """A Job with our label, as the webhook and the API server have left it."""
    labels = _job_labels(name)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _meta(name, {names.QUEUE: QUEUE, "team": "training"}),
        "spec": {
            "parallelism": SIZE,
            "completions": SIZE,
            "completionMode": "Indexed",
            "backoffLimit": 6,
            "suspend": False,
            "podReplacementPolicy": "TerminatingOrFailed",
            "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": _uid(name)}},
            "template": {"metadata": {"labels": labels}, "spec": _pod_spec("2", "8Gi")},
        },
    }


def pod_of_job(name: str, index: int) -> Manifest:
    """A pod as the Job controller makes it, without any gate."""
    labels = _job_labels(name) | {names.JOB_INDEX: str(index)}
    meta = _meta(f"{name}-{index}-{_uid(name)[:5]}", labels, owner=("batch/v1", "Job", name))
    meta["annotations"] = {names.JOB_INDEX: str(index)}
    meta["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": _pod_spec("2", "8Gi")}


def _job_labels(name: str) -> dict[str, str]:
    uid = _uid(name)
    return {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
        names.QUEUE: QUEUE,
        "team": "training",
    }


def _running(pod: Manifest, node: int) -> Manifest:
    """The pod as it is once it runs on this node."""
    address = f"10.{node // 256}.{node % 256}.7"
    images = [
        {
            "name": each["name"],
            "image": each["image"],
            "imageID": f"{each['image']}@sha256:{node:064x}",
            "containerID": f"containerd://{node:064x}",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "lastState": {},
            "state": {"running": {"startedAt": BORN}},
            "allocatedResources": each["resources"]["requests"],
            "resources": each["resources"],
        }
        for each in pod["spec"]["containers"]
    ]
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return pod | {
        "spec": pod["spec"] | {"nodeName": _node_name(node)},
        "status": {
            "phase": "Running",
            "conditions": [_condition(kind, "True") for kind in kinds],
            "containerStatuses": images,
            "hostIP": address,
            "hostIPs": [{"ip": address}],
            "podIP": address,
            "podIPs": [{"ip": address}],
            "qosClass": "Burstable",
            "startTime": BORN,
        },
    }


def _pod_spec(cpu: str, memory: str) -> Manifest:
    mounts = [
        {"name": "api-access", "mountPath": "/var/run/secrets", "readOnly": True},
        {"name": "data", "mountPath": "/d"},
    ]
    container = {
        "name": "main",
        "image": "images.example/team/main:v1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "work"],
        "env": [{"name": f"SETTING_{i}", "value": f"value number {i}"} for i in range(8)],
        "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}},
        "volumeMounts": mounts,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }
    away = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    return {
        "restartPolicy": "Never",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [
            {"key": "node.kubernetes.io/not-ready", **away},
            {"key": "node.kubernetes.io/unreachable", **away},
        ],
        "containers": [container],
        "volumes": [
            {"name": "data", "emptyDir": {}},
            {
                "name": "api-access",
                "projected": {
                    "defaultMode": 420,
                    "sources": [
                        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    ],
                },
            },
        ],
    }


def _meta(name: str, labels: dict[str, str] | None = None, owner: tuple[str, str, str] | None = None) -> Manifest:
    meta: Manifest = {
        "name": name,
        "namespace": NAMESPACE,
        "uid": _uid(name),
        "generation": 1,
        "creationTimestamp": BORN,
        "labels": labels or {},
    }
    if owner is not None:
        version, kind, of = owner
        reference = {"apiVersion": version, "kind": kind, "name": of, "uid": _uid(of)}
        meta["ownerReferences"] = [reference | {"controller": True, "blockOwnerDeletion": True}]
    spec: Manifest = {f"f:{field}": {} for field in _pod_spec("1", "1Gi")}
    conditions: Manifest = {
        f'k:{{"type":"{kind}"}}': {"f:status": {}, "f:type": {}} for kind in ("Initialized", "Ready")
    }
    made = {"f:metadata": {"f:labels": {f"f:{key}": {} for key in labels or {}}}, "f:spec": spec}
    meta["managedFields"] = [
        _managed("kube-controller-manager", made),
        _managed(
            "kubelet", {"f:status": {"f:conditions": conditions, "f:phase": {}, "f:podIP": {}, "f:startTime": {}}}
        ),
    ]
    return meta


def _managed(manager: str, fields: Manifest) -> Manifest:
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": BORN,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }


def _condition(kind: str, status: str, reason: str = "") -> Manifest:
    made = {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": BORN}
    return made | ({"reason": reason} if reason else {})


def _node_name(number: int) -> str:
    return f"node-{number:05}.example"


def _uid(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))
