"""What the demo submits: one Job of four workers, the same everywhere but for its name and one label."""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from localcluster.nodes import GPU, Node
from startgate.model import names

QUEUE: Final = "tenant-eval-batch"
EVAL: Final = "team-eval"
"""The namespace of the team whose Jobs we follow."""
OTHERS: Final = "team-research"
"""The namespace of a team that has never heard of Startgate."""
USER: Final = "eve"
"""An ordinary user, who may edit what is in EVAL."""

WORKERS: Final = 4
SWARM: Final = 120
"""Workers of the gang in whose release the controller is killed."""

Manifest = dict[str, Any]

NODES: Final = [Node(name=f"gpu-node-{number}", cpu="32", memory="128Gi", gpus=1) for number in range(1, 5)]


def job(
    name: str,
    *,
    namespace: str = EVAL,
    workers: int = WORKERS,
    queue: str = "",
    requests: Mapping[str, str] | None = None,
    image: str = "finetune:3",
) -> Manifest:
    """A Job whose workers need one another: all of them, or none is of use."""
    asks = dict(requests or {"cpu": "2", "memory": "8Gi", GPU: "1"})
    resources: Manifest = {"requests": asks}
    if GPU in asks:
        resources["limits"] = {GPU: asks[GPU]}
    metadata: Manifest = {"name": name, "namespace": namespace}
    if queue:
        metadata["labels"] = {names.QUEUE: queue}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "completions": workers,
            "parallelism": workers,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "worker", "image": image, "resources": resources}],
                }
            },
        },
    }


def notebook() -> Manifest:
    """What keeps one GPU busy: another team's, and none of Startgate's business."""
    return job("notebook", namespace=OTHERS, workers=1, image="notebook:1")


def queue() -> Manifest:
    """What the admin writes."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Queue",
        "metadata": {"name": QUEUE},
        "spec": {
            "capability": {"cpu": "64", GPU: "16"},
            "guarantee": {"cpu": "8", GPU: "2"},
            "deserved": {"cpu": "32", GPU: "8"},
        },
    }


def setting() -> list[Manifest]:
    """Two namespaces, and a user with the ordinary rights to edit one of them."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "editors", "namespace": EVAL},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
    }
    spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in (EVAL, OTHERS)]
    return [*spaces, binding]


class _Plain(yaml.SafeDumper):
    """Short maps on one line, as people write them."""


def _mapping(dumper: yaml.SafeDumper, value: dict[str, Any]) -> yaml.Node:
    short = all(isinstance(each, (str, int, bool)) for each in value.values()) and len(str(value)) < 80
    nested = "apiVersion" in value or "restartPolicy" in value or "roleRef" in value
    return dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=short and not nested)


_Plain.add_representer(dict, _mapping)


def text(manifest: Manifest) -> str:
    """The manifest as YAML."""
    return yaml.dump(manifest, Dumper=_Plain, sort_keys=False, width=200)
