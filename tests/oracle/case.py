"""One small cluster with one gang, as the objects that a user would write: what the oracle asks two answers about.

What always holds: a case is plain JSON, and its file says all that is needed to ask again; a case that is made smaller
is a case again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from startgate.model.names import TOPOLOGY

Json: TypeAlias = dict[str, Any]

NAMESPACES: Final[Mapping[str, Mapping[str, str]]] = {
    "oracle": {"team": "a", "tier": "front"},
    "oracle-b": {"team": "b", "tier": "front"},
    "oracle-c": {"team": "b"},
}
"""The namespaces that pods may be in, with their labels. The gang is in the first."""

HOME: Final = "oracle"

PRIORITIES: Final[Mapping[str, int]] = {"oracle-low": 10, "oracle-middle": 20, "oracle-high": 30}
"""PriorityClasses, all of which preempt nobody: whether a gang fits is asked without others giving way."""

FOREIGN_GATE: Final = "example.com/later"
"""Of somebody else, on pods that are nominated and must stay where they are."""

KEEPS_NAME: Final = frozenset({"Namespace", "PriorityClass"})


class _Plain(yaml.SafeDumper):
    """Spells out what is there twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


@dataclass(frozen=True)
class Case:
    """`objects`: nodes, other pods, volumes, …, in an order in which they can be made. `gang`: its pods, in order.

    A pod among the objects is running where spec.nodeName says so; on its way out with a deletionTimestamp; nominated
    with status.nominatedNodeName.
    """

    name: str
    features: tuple[str, ...]
    objects: tuple[Json, ...]
    gang: tuple[Json, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Of the gang's Job."""

    @property
    def topology(self) -> str:
        """The label of which all of its nodes must have one value; "" for none."""
        return self.annotations.get(TOPOLOGY, "")

    def cut(self, pods: int) -> Case:
        """With the first so many pods of the gang."""
        return replace(self, gang=self.gang[:pods])

    def renamed(self, suffix: str) -> Case:
        """The same with names of its own, so that nothing which lags behind is mistaken for another."""
        ours = {it["metadata"]["name"] for it in self.objects if it["kind"] not in KEEPS_NAME}
        names = {name: f"{name}-{suffix}" for name in ours}
        return replace(
            self,
            objects=tuple(_renamed(it, names) for it in self.objects),
            gang=tuple(_renamed(it, names) for it in self.gang),
        )

    def without(self, part: str, start: int, count: int) -> Case:
        """Without so many of the `objects`, or of the `gang`, from the one at this place on."""
        if part == "gang":
            return replace(self, gang=self.gang[:start] + self.gang[start + count :])
        return replace(self, objects=self.objects[:start] + self.objects[start + count :])

    def lesser(self) -> Iterator[Case]:
        """All that is this case with a part of one object, or of the pods of one shape, left out."""
        for name in self.annotations:
            yield replace(self, annotations={key: value for key, value in self.annotations.items() if key != name})
        for pod in [pod for index, pod in enumerate(self.gang) if pod not in self.gang[:index]]:
            for less in _less(pod):
                yield replace(self, gang=tuple(less if each == pod else each for each in self.gang))
        for index, it in enumerate(self.objects):
            for less in _less(it):
                yield replace(self, objects=(*self.objects[:index], less, *self.objects[index + 1 :]))

    def write(self, path: Path, **said: str) -> None:
        """As a file that `read` takes; `said`: what each side said, for people."""
        path.write_text(
            yaml.dump(
                {
                    "name": self.name,
                    **said,
                    "features": list(self.features),
                    **({"annotations": dict(self.annotations)} if self.annotations else {}),
                    "objects": list(self.objects),
                    "gang": list(self.gang),
                },
                Dumper=_Plain,
                sort_keys=False,
                width=120,
            )
        )

    @classmethod
    def read(cls, path: Path) -> Case:
        """What `write` has written."""
        it = yaml.safe_load(path.read_text())
        features, made, gang = (tuple(it[part]) for part in ("features", "objects", "gang"))
        return cls(str(it["name"]), features, made, gang, it.get("annotations", {}))


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {_renamed(key, names): _renamed(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [_renamed(inner, names) for inner in value]
    return names.get(value, value) if isinstance(value, str) else value


LIST_PARTS: Final[tuple[tuple[str, ...], ...]] = (
    ("spec", "taints"),
    ("spec", "tolerations"),
    ("spec", "initContainers"),
    ("spec", "topologySpreadConstraints"),
    ("spec", "volumes"),
    ("spec", "affinity", "podAffinity", "requiredDuringSchedulingIgnoredDuringExecution"),
    ("spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"),
    ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"),
)
PARTS: Final[tuple[tuple[str, ...], ...]] = (
    ("spec", "affinity"),
    ("spec", "affinity", "nodeAffinity"),
    ("spec", "affinity", "podAffinity"),
    ("spec", "affinity", "podAntiAffinity"),
    ("spec", "nodeSelector"),
    ("spec", "resources"),
    ("spec", "runtimeClassName"),
    ("spec", "hostNetwork"),
    ("spec", "unschedulable"),
    ("spec", "nodeAffinity"),
)
MAP_PARTS: Final[tuple[tuple[str, ...], ...]] = (
    ("metadata", "labels"),
    ("status", "allocatable"),
    ("spec", "nodeSelector"),
)


def _less(it: Json) -> Iterator[Json]:
    """The object without one of its parts that can be left out."""
    for path in PARTS:
        if (holder := _at(it, path[:-1])) is not None and path[-1] in holder:
            yield _cut_off(it, path[:-1], path[-1])
    for path in LIST_PARTS:
        for index in range(len(_at(it, path) or ())):
            yield _cut_off(it, path, index)
    for path in MAP_PARTS:
        for key in _at(it, path) or ():
            if key not in ("pods", "kubernetes.io/hostname"):
                yield _cut_off(it, path, key)
    for index, container in enumerate(_at(it, ("spec", "containers")) or ()):
        for part in ("ports", "resources"):
            if part in container:
                yield _cut_off(it, ("spec", "containers", index), part)


def _at(it: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        if isinstance(it, dict) and key not in it:
            return None
        it = it[key]
    return it


def _cut_off(it: Json, path: Sequence[str | int], key: str | int) -> Json:
    less = copy.deepcopy(it)
    del _at(less, path)[key]
    return less
