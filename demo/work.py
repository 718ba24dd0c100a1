"""What the demo submits: Jobs of four workers, the same everywhere but for a name, a label, and how long they run."""

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
VISION: Final = "team-vision"
"""The namespace of the other tenant, who shares the GPUs with EVAL."""
TEAMS: Final = (EVAL, VISION)
TENANTS: Final = "tenants"
VISION_QUEUE: Final = "tenant-vision-batch"
USER: Final = "eve"
"""An ordinary user, who may edit what is in EVAL."""

WORKERS: Final = 4
SWARM: Final = 120
"""Workers of the gang in whose release the controller is killed."""

Manifest = dict[str, Any]


def _nodes(gpus: int) -> list[Node]:
    return [Node(name=f"gpu-node-{number}", cpu="32", memory="128Gi", gpus=gpus) for number in range(1, 5)]


NODES: Final = _nodes(gpus=1)
LARGER: Final = _nodes(gpus=4)
"""The same nodes, with enough GPUs that two tenants can share them."""


def job(
    name: str,
    *,
    namespace: str = EVAL,
    workers: int = WORKERS,
    queue: str = "",
    requests: Mapping[str, str] | None = None,
    image: str = "finetune:3",
    runs: str = "",
) -> Manifest:
    """A Job whose workers need one another: all of them, or none is of use."""
    asks = dict(requests or {"cpu": "2", "memory": "8Gi", GPU: "1"})
    resources: Manifest = {"requests": asks}
    if GPU in asks:
        resources["limits"] = {GPU: asks[GPU]}
    metadata: Manifest = {"name": name, "namespace": namespace}
    if queue:
        metadata["labels"] = {names.QUEUE: queue}
    template: Manifest = {
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "worker", "image": image, "resources": resources}],
        }
    }
    if runs:
        template = {"metadata": {"annotations": {names.SIMULATE_RUNS: runs}}, **template}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "completions": workers,
            "parallelism": workers,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": template,
        },
    }


def notebook() -> Manifest:
    """What keeps one GPU busy: another team's, and none of Startgate's business."""
    return job("notebook", namespace=OTHERS, workers=1, image="notebook:1")


def queue() -> Manifest:
    """What the admin writes for Eve's team."""
    return _queue(QUEUE, {"capability": {GPU: "16"}, "guarantee": {GPU: "2"}, "deserved": {GPU: "8"}})


def tenants() -> list[Manifest]:
    """A parent for the two tenants' queues: the one that there is, and one more that deserves as much."""
    theirs = queue()
    theirs["spec"] = {"parent": TENANTS, **theirs["spec"]}
    return [_queue(TENANTS, {}), theirs, vision_queue(8)]


def vision_queue(gpus: int) -> Manifest:
    """The other tenant's queue."""
    return _queue(VISION_QUEUE, {"parent": TENANTS, "deserved": {GPU: str(gpus)}})


def more(gpus: int, deserved: int) -> list[Manifest]:
    """What if there were a node more, of so many GPUs, and the other tenant's queue deserved so many?"""
    node = Node(name="gpu-node-5", cpu="32", memory="128Gi", gpus=gpus).manifest()
    offered = {key: node["status"]["capacity"][key] for key in ("cpu", "memory", GPU)}
    bare = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-node-5"}, "status": {"capacity": offered}}
    return [bare, vision_queue(deserved)]


def _queue(name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": names.API_VERSION, "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def setting() -> list[Manifest]:
    """Three namespaces, and a user with the ordinary rights to edit one of them."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "editors", "namespace": EVAL},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
    }
    spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in (EVAL, OTHERS, VISION)]
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
