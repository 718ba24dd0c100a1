"""Features by which other pods decide: host ports, inter-pod affinity and anti-affinity, topology spread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tests.oracle.case import HOME, NAMESPACES, Json
from tests.oracle.draft import HOSTNAME, ZONE, Draft

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
RACK: Final = "example.com/rack"
KEYS: Final = (HOSTNAME, HOSTNAME, ZONE, ZONE, RACK)
TOGETHER: Final = "podAffinity"
APART: Final = "podAntiAffinity"


def _port(draft: Draft) -> Json:
    port: Json = {"containerPort": draft.pick((80, 81)), "hostPort": draft.pick((80, 80, 81))}
    if draft.often(0.4):
        port["protocol"] = draft.pick(("TCP", "UDP"))
    if draft.often(0.4):
        port["hostIP"] = draft.pick(("0.0.0.0", "127.0.0.1", "127.0.0.1", "10.0.0.1", "::"))
    return port


def host_ports(draft: Draft) -> None:
    for pod in draft.pods(0.5):
        if draft.often(0.2):
            port = draft.pick((80, 81))
            pod["spec"]["hostNetwork"] = True
            pod["spec"]["containers"][0]["ports"] = [{"containerPort": port, "hostPort": port}]
            continue
        containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
        draft.pick(containers)["ports"] = [_port(draft)]


def mark_racks(draft: Draft) -> None:
    for node in draft.nodes:
        if RACK not in node["metadata"]["labels"] and draft.often(0.8):
            draft.mark(node, **{RACK: draft.pick("rs")})


def _selector(draft: Draft) -> Json | None:
    roll = draft.rng.random()
    if roll < 0.6:
        return {"matchLabels": {"app": draft.pick("ab")}}
    if roll < 0.65:
        return {}  # picks all
    if roll < 0.68:
        return None  # picks none
    operator = draft.pick(("In", "NotIn", "Exists", "DoesNotExist"))
    expression: Json = {"key": draft.pick(("app", "app", "rev")), "operator": operator}
    if operator in ("In", "NotIn"):
        expression["values"] = draft.some(("a", "b") if expression["key"] == "app" else ("1", "2"))
    return {"matchExpressions": [expression]}


def _term(draft: Draft, selector: Json | None) -> Json:
    term: Json = {"topologyKey": draft.pick(KEYS)}
    if selector is not None:
        term["labelSelector"] = selector
    return term


def _own(pod: Json) -> Json:
    """A selector that picks the pod itself."""
    return {"matchLabels": {"app": pod["metadata"]["labels"]["app"]}}


def _add(draft: Draft, pod: Json, side: str) -> None:
    mark_racks(draft)
    terms = pod["spec"].setdefault("affinity", {}).setdefault(side, {}).setdefault(REQUIRED, [])
    for _ in range(draft.pick((1, 1, 1, 2))):
        terms.append(_term(draft, _own(pod) if draft.often(0.5) else _selector(draft)))


def pod_affinity(draft: Draft) -> None:
    for pod in draft.some(draft.shapes):
        _add(draft, pod, TOGETHER)


def pod_anti_affinity(draft: Draft) -> None:
    for pod in draft.some(draft.shapes):
        _add(draft, pod, APART)


def wishes(draft: Draft) -> None:
    """Preferred terms, which change nothing."""
    for pod in draft.pods():
        wish = {"weight": 100, "podAffinityTerm": _term(draft, _selector(draft))}
        side = draft.pick((TOGETHER, APART))
        affinity = pod["spec"].setdefault("affinity", {}).setdefault(side, {})
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [wish]


def others_anti_affinity(draft: Draft) -> None:
    """Pods that run and keep others away."""
    for pod in draft.others:
        if draft.often(0.4):
            _add(draft, pod, APART)


def _terms(draft: Draft) -> Iterator[Json]:
    """All terms that pods have; some are made where there are none."""
    pods = [*draft.shapes, *draft.others]
    if not any(_has_terms(pod) for pod in pods):
        draft.pick((pod_affinity, pod_anti_affinity, others_anti_affinity))(draft)
    for pod in pods:
        for side in (TOGETHER, APART):
            yield from pod["spec"].get("affinity", {}).get(side, {}).get(REQUIRED, ())


def _has_terms(pod: Json) -> bool:
    affinity = pod["spec"].get("affinity", {})
    return any(affinity.get(side, {}).get(REQUIRED) for side in (TOGETHER, APART))


def namespaces(draft: Draft) -> None:
    """Terms about pods of other namespaces."""
    for term in _terms(draft):
        if draft.often(0.6):
            term["namespaces"] = draft.some(tuple(NAMESPACES))[:2]
        if draft.often(0.5):
            term["namespaceSelector"] = draft.pick(
                (
                    {},
                    {"matchLabels": {"team": draft.pick("ab")}},
                    {"matchExpressions": [{"key": "tier", "operator": draft.pick(("Exists", "DoesNotExist"))}]},
                    {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": [HOME]}]},
                )
            )


def _revise(draft: Draft) -> None:
    for pod in (*draft.shapes, *draft.others):
        if draft.often(0.8):
            pod["metadata"]["labels"].setdefault("rev", draft.pick("12"))


def term_label_keys(draft: Draft) -> None:
    _revise(draft)
    for term in _terms(draft):
        selector = term.get("labelSelector")
        if selector is not None and not any(it["key"] == "rev" for it in selector.get("matchExpressions", ())):
            term[draft.pick(("matchLabelKeys", "matchLabelKeys", "mismatchLabelKeys"))] = ["rev"]


def _constraints(draft: Draft) -> Iterator[Json]:
    if not any("topologySpreadConstraints" in pod["spec"] for pod in draft.shapes):
        topology_spread(draft)
    for pod in draft.shapes:
        for each in pod["spec"].get("topologySpreadConstraints", ()):
            if each["whenUnsatisfiable"] == "DoNotSchedule":
                yield each


def topology_spread(draft: Draft) -> None:
    mark_racks(draft)
    for pod in draft.some(draft.shapes):
        constraints = []
        for key in draft.rng.sample((HOSTNAME, ZONE, RACK), draft.pick((1, 1, 1, 2))):
            constraint: Json = {
                "topologyKey": key,
                "maxSkew": draft.pick((1, 1, 2)),
                "whenUnsatisfiable": "DoNotSchedule" if draft.often(0.9) else "ScheduleAnyway",
            }
            selector = _own(pod) if draft.often(0.7) else _selector(draft)
            if selector is not None:
                constraint["labelSelector"] = selector
            constraints.append(constraint)
        pod["spec"]["topologySpreadConstraints"] = constraints


def min_domains(draft: Draft) -> None:
    for constraint in _constraints(draft):
        constraint["minDomains"] = draft.pick((1, 2, 3, 4))


def spread_policies(draft: Draft) -> None:
    for constraint in _constraints(draft):
        for policy in draft.some(("nodeAffinityPolicy", "nodeTaintsPolicy")):
            constraint[policy] = draft.pick(("Honor", "Ignore"))


def spread_label_keys(draft: Draft) -> None:
    _revise(draft)
    for constraint in _constraints(draft):
        selector = constraint.get("labelSelector")
        if selector is not None and not any(it["key"] == "rev" for it in selector.get("matchExpressions", ())):
            constraint["matchLabelKeys"] = ["rev"]


FEATURES: Final[Mapping[str, Callable[[Draft], None]]] = {
    "host ports": host_ports,
    "pod affinity": pod_affinity,
    "pod anti-affinity": pod_anti_affinity,
    "anti-affinity of other pods": others_anti_affinity,
    "preferred terms": wishes,
    "namespaces of terms": namespaces,
    "matchLabelKeys of terms": term_label_keys,
    "topology spread": topology_spread,
    "minDomains": min_domains,
    "node policies of spread": spread_policies,
    "matchLabelKeys of spread": spread_label_keys,
}
