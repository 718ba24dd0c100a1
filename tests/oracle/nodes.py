"""Features that the node alone decides: what it offers, and whom it lets in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tests.oracle.case import Json
from tests.oracle.draft import SINCE, ZONE, Draft

GPU: Final = "example.com/gpu"
HUGE: Final = "hugepages-2Mi"


def memory(draft: Draft) -> None:
    draft.offer("memory", ("1Gi", "2Gi", "2147483648", "3000Mi", "2e9"))
    for pod in draft.pods():
        draft.request(pod, "memory", draft.pick(("512Mi", "700Mi", "1Gi", "1073741825", "1G", "1.5Gi", "100e6")))


def ephemeral_storage(draft: Draft) -> None:
    draft.offer("ephemeral-storage", ("10Gi", "20Gi", "15G"), 0.9)
    for pod in draft.pods():
        draft.request(pod, "ephemeral-storage", draft.pick(("5Gi", "5G", "10Gi", "7.5Gi")))


def pod_count(draft: Draft) -> None:
    draft.offer("pods", ("0", "1", "2", "3", "4"))


def extended(draft: Draft) -> None:
    draft.offer(GPU, ("1", "2", "4"), 0.7)
    for pod in draft.pods(0.3):
        draft.request(pod, GPU, draft.pick("112"), limit=True)


def hugepages(draft: Draft) -> None:
    draft.offer(HUGE, ("4Mi", "8Mi", "16Mi"), 0.8)
    for pod in draft.pods(0.3):
        draft.request(pod, HUGE, draft.pick(("2Mi", "4Mi", "6Mi")), limit=True)
        draft.request(pod, "cpu", draft.pick(("100m", "500m")))


def quantities(draft: Draft) -> None:
    """Amounts that are written in unusual ways, or are so small that rounding counts."""
    draft.offer("cpu", ("1", "1000m", "1.001", "0.999", "2e0", "1.5"))
    for pod in draft.pods():
        draft.request(pod, "cpu", draft.pick(("0.1", "333m", "0.334", "5e-1", ".25", "1n", "1001m")))


def _init(name: str, cpu: str) -> Json:
    return {"name": name, "image": "none", "resources": {"requests": {"cpu": cpu}}}


def init_containers(draft: Draft) -> None:
    for pod in draft.pods():
        containers = [_init(f"i{n}", draft.pick(("200m", "600m", "1", "1500m"))) for n in range(draft.pick((1, 2)))]
        pod["spec"].setdefault("initContainers", []).extend(containers)


def sidecars(draft: Draft) -> None:
    for pod in draft.pods():
        containers = pod["spec"].setdefault("initContainers", [])
        sidecar = _init("s", draft.pick(("100m", "300m", "500m"))) | {"restartPolicy": "Always"}
        containers.insert(draft.rng.randint(0, len(containers)), sidecar)


def overhead(draft: Draft) -> None:
    """By RuntimeClass, some of which also choose nodes."""
    runtime: Json = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "runtime-0"},
        "handler": "h",
        "overhead": {"podFixed": {"cpu": draft.pick(("100m", "250m", "500m"))}},
    }
    if draft.often(0.3):
        runtime["scheduling"] = {"nodeSelector": {"runtime": "yes"}}
        for node in draft.some(draft.nodes):
            draft.mark(node, runtime="yes")
        for pod in draft.others:  # where they run already is not asked
            node = next(it for it in draft.nodes if it["metadata"]["name"] == pod["spec"].get("nodeName"))
            draft.mark(node, runtime="yes")
    draft.extra.append(runtime)
    for pod in draft.pods():
        pod["spec"]["runtimeClassName"] = "runtime-0"


def pod_resources(draft: Draft) -> None:
    """Resources of the pod as a whole."""
    for pod in draft.pods():
        # No less than what its containers ask for.
        asked = draft.pick(("2500m",) if "initContainers" in pod["spec"] else ("1", "1500m", "2"))
        part = draft.pick(("requests", "limits"))
        pod["spec"]["resources"] = {part: {"cpu": asked}}
        container = pod["spec"]["containers"][0]["resources"]
        container.setdefault("requests", {})["cpu"] = draft.pick(("100m", "500m", "1"))
        if "limits" not in container and draft.often(0.3):
            del container["requests"]


def limits(draft: Draft) -> None:
    """Limits without requests."""
    for pod in draft.pods():
        if "resources" in pod["spec"]:
            continue
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
            asked = container["resources"].pop("requests", {})
            container["resources"].setdefault("limits", {}).update(asked)


def resized(draft: Draft) -> None:
    """Running pods whose containers have got more, or less, than they ask for now."""
    for pod in draft.others:
        if "initContainers" in pod["spec"] or "resources" in pod["spec"] or not draft.often(0.6):
            continue
        given = pod["spec"]["containers"][0]["resources"]
        asked = {**given.get("limits", {}), **given.get("requests", {})}  # of which a kubelet reports all
        status = {
            "name": "c",
            "image": "none",
            "imageID": "none",
            "ready": True,
            "restartCount": 0,
            "allocatedResources": {**asked, "cpu": draft.pick(("100m", "500m", "1"))},
        }
        status["resources"] = {"requests": {**asked, "cpu": draft.pick(("250m", "1", "1500m"))}}
        pod.setdefault("status", {})["containerStatuses"] = [status]
        if draft.often(0.4):
            pod["status"]["conditions"] = [
                {"type": "PodResizePending", "status": "True", "reason": draft.pick(("Infeasible", "Deferred"))}
            ]


def unschedulable(draft: Draft) -> None:
    for node in draft.some(draft.nodes)[:2]:
        node["spec"]["unschedulable"] = True
    for pod in draft.shapes:
        if draft.often(0.4):
            draft.tolerate(pod, key="node.kubernetes.io/unschedulable", operator="Exists", effect="NoSchedule")


def node_selector(draft: Draft) -> None:
    _label(draft)
    for pod in draft.some(draft.shapes):
        pod["spec"]["nodeSelector"] = draft.pick(
            ({"disk": "ssd"}, {"disk": ""}, {ZONE: "a"}, {"disk": "ssd", ZONE: draft.pick("ab")})
        )


def node_affinity(draft: Draft) -> None:
    _label(draft)
    for pod in draft.some(draft.shapes):
        terms = [_term(draft) for _ in range(draft.pick((1, 1, 2)))]
        affinity = pod["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
        if draft.often(0.2):  # a wish, which changes nothing
            wish = {"weight": 1, "preference": {"matchExpressions": [_expression(draft)]}}
            affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [wish]


def _label(draft: Draft) -> None:
    for node in draft.nodes:
        if draft.often(0.8):
            draft.mark(node, disk=draft.pick(("ssd", "ssd", "hdd", "")))
        if draft.often(0.8):
            draft.mark(node, rank=draft.pick(("0", "1", "2", "3", "02", "x", "10")))


def _term(draft: Draft) -> Json:
    term: Json = {}
    if draft.often(0.85):
        term["matchExpressions"] = [_expression(draft) for _ in range(draft.pick((1, 1, 2)))]
    if not term or draft.often(0.15):
        name = draft.pick(draft.nodes)["metadata"]["name"]
        term["matchFields"] = [
            {"key": "metadata.name", "operator": draft.pick(("In", "NotIn", "NotIn")), "values": [name]}
        ]
    if draft.often(0.03):
        return {}  # picks no node
    return term


def _expression(draft: Draft) -> Json:
    operator = draft.pick(("In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    if operator in ("Gt", "Lt"):
        return {"key": "rank", "operator": operator, "values": [draft.pick(("0", "1", "2", "9"))]}
    key = draft.pick(("disk", ZONE, "rank", "absent"))
    if operator in ("Exists", "DoesNotExist"):
        return {"key": key, "operator": operator}
    values = {"disk": ("ssd", "hdd", ""), ZONE: ("a", "b", "c"), "rank": ("1", "2", "3"), "absent": ("x",)}[key]
    return {"key": key, "operator": operator, "values": draft.some(values)[:2]}


def taints(draft: Draft) -> None:
    for node in draft.nodes:
        if draft.often(0.6):
            node["spec"]["taints"] = [_taint(draft, key) for key in draft.some(("k", "l"))]
    for pod in draft.shapes:
        for _ in range(draft.pick((0, 1, 1, 2))):
            draft.tolerate(pod, **_toleration(draft))


def _taint(draft: Draft, key: str) -> Json:
    effect = draft.pick(("NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule"))
    taint = {"key": key, "effect": effect}
    if value := draft.pick(("", "v", "w")):
        taint["value"] = value
    if effect == "NoExecute" and draft.often(0.5):
        taint["timeAdded"] = SINCE
    return taint


def _toleration(draft: Draft) -> Json:
    toleration: Json = {}
    operator = draft.pick(("", "Equal", "Exists", "Exists"))
    if operator:
        toleration["operator"] = operator
    if operator != "Exists" or draft.often(0.8):
        toleration["key"] = draft.pick("kl")
    if operator != "Exists" and (value := draft.pick(("", "v", "w"))):
        toleration["value"] = value
    if effect := draft.pick(("", "NoSchedule", "NoExecute", "PreferNoSchedule")):
        toleration["effect"] = effect
    if effect == "NoExecute" and draft.often(0.3):
        toleration["tolerationSeconds"] = 60
    return toleration


def terminating(draft: Draft) -> None:
    """Other pods on their way out, which count until they are gone."""
    for pod in draft.others:
        if "nodeName" in pod["spec"] and draft.often(0.5):
            pod["metadata"]["deletionTimestamp"] = SINCE


def nominated(draft: Draft) -> None:
    """Pods that are to run on a node and don't yet; of a lower, the same or a higher priority."""
    for pod in draft.shapes:
        draft.prioritise(pod, "oracle-middle")
    for pod in draft.others:
        if draft.often(0.6):
            draft.prioritise(pod, draft.pick(("oracle-low", "oracle-middle", "oracle-high")))
            if draft.often(0.6) and "deletionTimestamp" not in pod["metadata"]:
                draft.nominate(pod)


FEATURES: Final[Mapping[str, Callable[[Draft], None]]] = {
    "memory": memory,
    "ephemeral storage": ephemeral_storage,
    "pod count": pod_count,
    "extended resource": extended,
    "huge pages": hugepages,
    "odd quantities": quantities,
    "init containers": init_containers,
    "sidecars": sidecars,
    "overhead": overhead,
    "pod-level resources": pod_resources,
    "limits alone": limits,
    "resized in place": resized,
    "unschedulable nodes": unschedulable,
    "node selector": node_selector,
    "node affinity": node_affinity,
    "taints": taints,
    "terminating pods": terminating,
    "nominated pods": nominated,
}
