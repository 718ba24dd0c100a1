"""What is done to an object on its way in: the webhook's part, the priority of its class, a LimitRange's defaults.

Of what the webhook does (webhook.jobs, webhook.pods) only what it changes: what it refuses is in here all the same, and
its gang says the reason. Pure functions from plain values to plain values. What always holds: an object that was stored
already (it has a resourceVersion) has all of this done to it, and is left alone.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from startgate.engine.observe import priority_of
from startgate.engine.simulate.kinds import LimitRangeItem
from startgate.engine.simulate.merge import merge
from startgate.model import names
from startgate.model.objects import PodTemplateSpec, PriorityClass
from startgate.model.quantity import Quantity
from startgate.model.reasons import Code
from startgate.model.taints import with_given

OURS: Final = (names.QUEUE, names.MIN_AVAILABLE)
GATE: Final = {"name": names.GATE}
SYSTEM_CLASSES: Final[Mapping[str, PriorityClass]] = {
    "system-cluster-critical": PriorityClass(value=2_000_000_000),
    "system-node-critical": PriorityClass(value=2_000_001_000),
}
"""Those that every cluster has."""


def stored(raw: Mapping[str, Any]) -> bool:
    """Whether it comes out of a cluster, rather than being written for one."""
    return bool(raw["metadata"].get("resourceVersion"))


def whole(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A Job that has a spec and a template, be they empty."""
    spec = raw.get("spec") or {}
    return {**raw, "spec": {**spec, "template": spec.get("template") or {}}}


def create_job(raw: dict[str, Any]) -> dict[str, Any]:
    """A new Job: labels and gate into its template; one with a deadline waits suspended (docs/reference/webhook.md)."""
    template = _template(raw)
    labels = raw["metadata"].get("labels") or template.get("metadata", {}).get("labels") or {}
    raw = merge(raw, {"metadata": {"labels": labels}})
    if names.QUEUE not in labels:
        return raw
    patch: dict[str, Any] = {
        "metadata": {"annotations": {names.PARKED: None}},
        "spec": {"template": _template_patch(raw, {key: labels.get(key) for key in OURS})},
    }
    if _waits_parked(raw) and not raw["spec"].get("suspend"):
        patch = merge(patch, _parked())
    return merge(raw, patch) if patch else raw


def update_job(old: Mapping[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A changed Job: what its template had of ours stays there; one with a deadline that is resumed waits its turn."""
    labels = _labels(old)
    if names.QUEUE not in labels:
        return new
    if names.QUEUE not in _labels(new):
        new = merge(new, {"metadata": {"labels": {names.QUEUE: labels[names.QUEUE]}}})  # it can't be taken off
    suspended = (bool(old["spec"].get("suspend")), bool(new["spec"].get("suspend")))
    kept = {key: value for key, value in _template_labels(old).items() if key in OURS}
    if all(suspended):
        kept = {key: _labels(new).get(key, value) for key, value in kept.items()}
    new = merge(new, {"spec": {"template": _template_patch(new, kept)}})
    if suspended[1]:
        return new
    if suspended[0] and _waits_parked(new):
        return merge(new, _parked())
    return _without_mark(new)


def resumed(raw: dict[str, Any]) -> dict[str, Any]:
    """Our controller's resume."""
    return _without_mark(merge(raw, {"spec": {"suspend": False}}))


def parked(raw: dict[str, Any], why: Code, message: str = "") -> dict[str, Any]:
    """Our controller's suspend, marked as its doing."""
    return merge(raw, _parked(why, message))


def unmarked(raw: dict[str, Any]) -> dict[str, Any]:
    """Our mark taken off a Job that somebody else has resumed."""
    return _without_mark(raw)


def prepared(raw: dict[str, Any]) -> dict[str, Any]:
    """Label and gate put into the template of a suspended Job that was labelled later."""
    labels = _labels(raw)
    return merge(raw, {"spec": {"template": _template_patch(raw, {key: labels[key] for key in OURS if key in labels})}})


def create_pod(
    raw: dict[str, Any], limits: Iterable[LimitRangeItem], classes: Mapping[str, PriorityClass]
) -> dict[str, Any]:
    """A new pod: our gate on a labelled one (that has no node yet), its class's priority, its namespace's defaults."""
    spec = dict(raw.get("spec") or {})
    if names.QUEUE in (raw["metadata"].get("labels") or {}) and not spec.get("nodeName"):
        spec["schedulingGates"] = _gated(spec)
    return {**raw, "spec": fill_in(spec, limits, classes)}


def fill_in(
    spec: Mapping[str, Any], limits: Iterable[LimitRangeItem], classes: Mapping[str, PriorityClass]
) -> dict[str, Any]:
    """A pod's spec with priority, preemption policy, tolerations, and the requests and limits of its namespace."""
    filled = dict(spec)
    template = msgspec.convert({"spec": spec}, PodTemplateSpec)
    filled["tolerations"] = msgspec.to_builtins(with_given(template.spec.tolerations))
    found = classes.get(template.spec.priority_class_name)
    filled.setdefault("priority", priority_of(template, classes))
    if found is not None and found.preemption_policy is not None:
        filled.setdefault("preemptionPolicy", found.preemption_policy)
    defaults = [_defaults(item) for item in limits if item.type == "Container"]
    for field in ("containers", "initContainers") if defaults else ():
        if held := spec.get(field):
            filled[field] = [_with_defaults(container, defaults) for container in held]
    return filled


def _defaults(item: LimitRangeItem) -> tuple[Mapping[str, Quantity], Mapping[str, Quantity]]:
    """(requests, limits) for containers that have none: from what is left out follows from the rest, as documented for
    LimitRange: a limit from the maximum, a request from the limit, else from the minimum.
    """
    most = {**item.max, **item.default}
    return {**item.min, **most, **item.default_request}, most


def _with_defaults(
    container: Mapping[str, Any], defaults: Iterable[tuple[Mapping[str, Quantity], Mapping[str, Quantity]]]
) -> dict[str, Any]:
    """A container's own limits are its requests before any default is."""
    given = container.get("resources") or {}
    limits = dict(given.get("limits") or {})
    requests = {**limits, **(given.get("requests") or {})}
    for least, most in defaults:
        requests = {**least, **requests}
        limits = {**most, **limits}
    return {**container, "resources": {**given, "requests": requests, "limits": limits}}


def _waits_parked(raw: Mapping[str, Any]) -> bool:
    owners = raw["metadata"].get("ownerReferences") or ()
    foreign = any(each.get("controller") and each.get("kind") != "CronJob" for each in owners)
    return raw["spec"].get("activeDeadlineSeconds") is not None and not foreign


def _parked(why: Code = Code.DEADLINE_PARKED, message: str = "") -> dict[str, Any]:
    marks = {names.PARKED: str(why), names.PARKED_MESSAGE: message or None}
    return {"metadata": {"annotations": marks}, "spec": {"suspend": True}}


def _without_mark(raw: dict[str, Any]) -> dict[str, Any]:
    return merge(raw, {"metadata": {"annotations": {names.PARKED: None, names.PARKED_MESSAGE: None}}})


def _template(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    return (raw.get("spec") or {}).get("template") or {}


def _labels(raw: Mapping[str, Any]) -> Mapping[str, str]:
    return raw["metadata"].get("labels") or {}


def _template_labels(raw: Mapping[str, Any]) -> Mapping[str, str]:
    return (_template(raw).get("metadata") or {}).get("labels") or {}


def _template_patch(raw: Mapping[str, Any], labels: Mapping[str, str | None]) -> dict[str, Any]:
    return {"metadata": {"labels": dict(labels)}, "spec": {"schedulingGates": _gated(_template(raw).get("spec") or {})}}


def _gated(spec: Mapping[str, Any]) -> list[Any]:
    gates = list(spec.get("schedulingGates") or ())
    return gates if GATE in gates else [*gates, GATE]
