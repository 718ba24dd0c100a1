"""What the webhook's tests have in common: objects as JSON, and a JSON patch applied."""

import copy
import json
from typing import Any

from msgspec import Raw

from startgate.model import names
from webhook import objects
from webhook.review import Verdict

Json = dict[str, Any]
QUEUE = {names.QUEUE: "q"}


def job_json(
    labels: Json | None = None,
    annotations: Json | None = None,
    *,
    template: Json | None = None,
    owner: str = "",
    **spec: Any,
) -> Json:
    """A Job named x. `template`: its pod template, without one a plain one; `owner`: kind of its controller."""
    metadata: Json = {"name": "x", "namespace": "eval", "uid": "u"}
    if labels is not None:
        metadata["labels"] = labels
    if annotations is not None:
        metadata["annotations"] = annotations
    if owner:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": owner, "name": "o", "uid": "1", "controller": True}]
    spec = {"template": {"spec": {"containers": []}} if template is None else template, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def job(value: Json) -> objects.Job:
    return objects.read_job(raw(value))


def apply(verdict: Verdict, value: Json) -> Json:
    """The object after the verdict's JSON patch, by RFC 6902 for the operations that we use."""
    result: Json = copy.deepcopy(value)
    for operation in verdict.patch:
        *path, last = [
            part.replace("~1", "/").replace("~0", "~") for part in operation.path.removeprefix("/").split("/")
        ]
        target: Any = result
        for part in path:
            target = target[part]
        if operation.op == "remove":
            del target[last]
        elif isinstance(target, list):
            assert last == "-"
            target.append(operation.value)
        else:
            assert isinstance(target, dict)
            target[last] = operation.value
    return result
