"""Which fits may be missed, by what the engine says of itself: there a no may be one that a cleverer search would find.

What isn't of one of these kinds is a mistake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from startgate.model.reasons import Code
from tests.oracle.case import Case, Json
from tests.oracle.engine import QUOTA, Answer


class Careful(StrEnum):
    UNCHECKED = "with something that Startgate doesn't check yet, so that they wait"
    QUOTA = "that ask for more in sum than all nodes that aren't cordoned have"
    MIXED = "of several shapes"
    SHARED = "that share a claim which has no volume yet"
    VOLUMES = "for which there are volumes that can be used from different nodes"
    NOMINATED = "with a topology spread, where other pods are nominated to nodes"
    ONE_POD = "that want a volume for one pod at a time, which a nominated pod wants too"
    BONDS = "whose pods put several constraints on one another"


def why_careful(case: Case, answer: Answer) -> Careful | None:
    """The kind of gang for which this no may be careful; None if it has to be right."""
    if answer.code in QUOTA:
        return Careful.QUOTA
    if answer.code == Code.CANNOT_CHECK:
        return Careful.UNCHECKED
    if answer.shapes > 1:
        return Careful.MIXED
    if answer.code == Code.VOLUMES and _wants_what_a_nominee_wants(case):
        return Careful.ONE_POD
    return _by_volumes(case) or _by_others(case, answer)


def _by_volumes(case: Case) -> Careful | None:
    unbound = {
        it["metadata"]["name"]: it["spec"]["storageClassName"]
        for it in case.objects
        if it["kind"] == "PersistentVolumeClaim" and "volumeName" not in it["spec"]
    }
    volumes = [volume for pod in case.gang for volume in pod["spec"].get("volumes", ())]
    claims = Counter(it["persistentVolumeClaim"]["claimName"] for it in volumes if "persistentVolumeClaim" in it)
    if any(claims[name] > 1 for name in unbound):
        return Careful.SHARED
    classes = {unbound[name] for name in claims if name in unbound}
    classes |= {
        it["ephemeral"]["volumeClaimTemplate"]["spec"]["storageClassName"] for it in volumes if "ephemeral" in it
    }
    return Careful.VOLUMES if any(len(set(_reaches(case, each))) > 1 for each in classes) else None


def _wants_what_a_nominee_wants(case: Case) -> bool:
    single = {
        it["metadata"]["name"]
        for it in case.objects
        if it["kind"] == "PersistentVolumeClaim" and "ReadWriteOncePod" in it["spec"]["accessModes"]
    }
    nominees = [it for it in case.objects if it.get("status", {}).get("nominatedNodeName")]
    return any(single & _claims(pod) & _claims(other) for pod in case.gang for other in nominees)


def _claims(pod: Json) -> set[str]:
    volumes = pod["spec"].get("volumes") or []
    return {it["persistentVolumeClaim"]["claimName"] for it in volumes if "persistentVolumeClaim" in it}


def _reaches(case: Case, storage_class: str) -> Iterator[str]:
    """From where the volumes of this class that are there can be used."""
    for it in case.objects:
        if it["kind"] == "PersistentVolume" and it["spec"]["storageClassName"] == storage_class:
            yield str(it["spec"].get("nodeAffinity"))


def _by_others(case: Case, answer: Answer) -> Careful | None:
    spreads = any(_is_required(each) for pod in case.gang for each in _spreads(pod))
    nominated = any(it.get("status", {}).get("nominatedNodeName") for it in case.objects)
    if spreads and nominated:
        return Careful.NOMINATED
    return Careful.BONDS if answer.bonds > 1 else None


def _spreads(pod: Json) -> list[dict[str, Any]]:
    return pod["spec"].get("topologySpreadConstraints") or []


def _is_required(spread: dict[str, Any]) -> bool:
    return bool(spread["whenUnsatisfiable"] == "DoNotSchedule")
