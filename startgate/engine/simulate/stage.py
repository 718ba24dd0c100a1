"""What there is at one instant of a simulation, and how the cluster itself moves it.

The parts of API server, kubelets and kube-scheduler.

Pods are bound, run, end and terminate as kubelets would have it; pods past all gates are placed as kube-scheduler
places them, as far as the engine follows it. What always holds: the
engine's Cluster has each pod that is on a node, once; each change is noted for those who look again (`dirty`); nothing
here decides for a gang.
"""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, Final

from startgate.engine.cluster import Cluster
from startgate.engine.fit import Room
from startgate.engine.simulate import pods as making
from startgate.engine.simulate.admission import SYSTEM_CLASSES, create_pod, stored
from startgate.engine.simulate.jobs import Jobs
from startgate.engine.simulate.kinds import LimitRange, LimitRangeItem
from startgate.engine.simulate.manifests import MICRO, Life, decode
from startgate.engine.simulate.merge import merge
from startgate.engine.simulate.owners import MADE_UP, Loss, created_at
from startgate.engine.simulate.pods import Actor
from startgate.engine.simulate.timeline import LATER, Timeline
from startgate.engine.simulate.volumes import Volumes
from startgate.model import objects
from startgate.model.gang import Gang
from startgate.model.objects import rfc3339, timestamp
from startgate.model.pods import Pod
from startgate.model.queue import Queue, QueueSpec
from startgate.model.shape import narrowed
from startgate.model.taints import GIVEN, Taint, tolerates

KINDS_OF_VOLUMES: Final = (
    "StorageClass",
    "CSIDriver",
    "CSINode",
    "CSIStorageCapacity",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "VolumeAttachment",
)
SOON: Final = MICRO
"""How much longer a pod stays that was terminating when the dump was taken and is overdue."""


class Stage:
    """The cluster."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.cluster = Cluster()
        self.volumes = Volumes(self.cluster.storage)
        self.queues: dict[str, QueueSpec] = {}
        self.namespaces: dict[str, dict[str, str]] = {}
        """Labels by namespace; one that isn't written down is there as soon as something is in it."""
        self.classes: dict[str, objects.PriorityClass] = dict(SYSTEM_CLASSES)
        self.gangs: dict[str, Gang] = {}
        """Gang objects of the input, by "namespace/name": what was recorded before the simulation."""
        self.actors: dict[str, Actor] = {}
        """All pods that are there, by uid."""
        self.unbound: dict[str, Actor] = {}
        """Those that kube-scheduler has to place: past all gates, on no node."""
        self.jobs = Jobs(self)
        self.dirty: dict[str, None] = {}
        """Owners to be looked at again, by uid."""
        self.changed = False
        """Whether something has changed that is no owner's."""
        self.notes: dict[str, None] = {}
        """What the user should know beside the answer, each once."""
        self.unknown_classes: dict[str, None] = {}
        """PriorityClasses that are named and aren't in the files."""
        self.made = 0
        """Pods that were made so far."""
        self._limits: dict[str, dict[str, list[LimitRangeItem]]] = {}
        self._nodes: dict[str, objects.Node] = {}
        self._on: dict[str, dict[str, None]] = {}
        """Pods (uids) by node."""
        self._by_name: dict[tuple[str, str], str] = {}
        """Pod uids by namespace and name."""
        self._serial = count(1)
        self._full = False
        """Whether no unbound pod can have a place until something changes."""

    # --- objects that are neither Jobs nor pods -----------------------------------------------------------------

    def set(self, where: str, kind: str, namespace: str, name: str, raw: dict[str, Any]) -> None:
        """It is there, or another one from now on."""
        made = decode(where, kind, raw)
        self.changed = True
        match kind:
            case "Node":
                self._set_node(made)
            case "Queue":
                assert isinstance(made, Queue)
                self.queues[name] = made.spec
            case "Namespace":
                self.set_namespace(name, made.metadata.labels)
            case "PriorityClass":
                self.classes[name] = made
                self.jobs.recast()
            case "LimitRange":
                assert isinstance(made, LimitRange)
                self._limits.setdefault(namespace, {})[name] = list(made.spec.limits)
                self.jobs.recast()
            case "Gang":
                self.gangs[f"{namespace}/{name}"] = made
            case _ if kind in KINDS_OF_VOLUMES:
                self.volumes.set(made, namespace=namespace, stored=stored(raw))
                self._full = False

    def unset(self, kind: str, namespace: str, name: str) -> None:
        """It is gone."""
        self.changed = True
        match kind:
            case "Node":
                self._lose_node(name)
            case "Queue":
                self.queues.pop(name, None)
            case "Namespace":
                self.set_namespace(name, {})
            case "PriorityClass":
                self.classes.pop(name, None)
                self.jobs.recast()
            case "LimitRange":
                self._limits.get(namespace, {}).pop(name, None)
                self.jobs.recast()
            case "Gang":
                self.gangs.pop(f"{namespace}/{name}", None)
            case _ if kind in KINDS_OF_VOLUMES:
                self.volumes.unset(kind, namespace, name)
                self._full = False

    def set_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """A namespace with these labels, and the one that each has."""
        self.namespaces[name] = {NAMESPACE_LABEL: name, **labels}
        self.cluster.set_namespace(name, self.namespaces[name])
        self._full = False

    def limits(self, namespace: str) -> list[LimitRangeItem]:
        """What is filled in for containers in this namespace."""
        found = self._limits.get(namespace, {})
        return [item for name in sorted(found) for item in found[name]]

    def check_class(self, name: str) -> None:
        """Says it where a PriorityClass is named that isn't in the files: the API server would make no such pods."""
        if name and name not in self.classes:
            self.unknown_classes[name] = None

    # --- nodes --------------------------------------------------------------------------------------------------

    def _set_node(self, node: objects.Node) -> None:
        name = node.metadata.name
        self.cluster.set_node(node)
        self._nodes[name] = node
        self._full = False
        evicting = [taint for taint in node.spec.taints if taint.effect == "NoExecute"]
        for uid in list(self._on.get(name, ())) if evicting else ():
            self._evict_if_untolerated(self.actors[uid], evicting)

    def _evict_if_untolerated(self, actor: Actor, taints: list[Taint]) -> None:
        # What every pod is given lasts five minutes only; here it isn't waited for.
        held = [each for each in actor.pod.shape.tolerations if each not in GIVEN]
        if not all(tolerates(held, taint) for taint in taints):
            self.delete(actor, Loss.DISRUPTED)

    def _lose_node(self, name: str) -> None:
        self.cluster.remove_node(name)
        self._nodes.pop(name, None)
        for uid in list(self._on.get(name, ())):
            actor = self.actors[uid]
            self.jobs.lost(actor, Loss.DISRUPTED)
            self.remove(actor)

    # --- pods ---------------------------------------------------------------------------------------------------

    def order(self) -> int:
        """The place of a new pod among all."""
        return next(self._serial)

    def pod(self, namespace: str, name: str) -> Actor | None:
        """The pod of this name."""
        uid = self._by_name.get((namespace, name))
        return self.actors[uid] if uid else None

    def new_pod(self, life: Life) -> None:
        """A pod of the files is there."""
        raw, key = life.raw, life.key
        metadata = dict(raw["metadata"])
        number = self.order()
        metadata.setdefault("uid", f"{MADE_UP}pod-{number}")
        metadata.setdefault("namespace", key.namespace)
        since = created_at(metadata, self.timeline.epoch)
        metadata["creationTimestamp"] = rfc3339(since)
        raw = {**raw, "metadata": metadata}
        if not stored(raw):
            self.check_class((raw.get("spec") or {}).get("priorityClassName") or "")
            raw = create_pod(raw, self.limits(key.namespace), self.classes)
        actor = making.from_raw(life.where, raw, number)
        actor.document, actor.since, actor.stored = life.order, since, stored(raw)
        pod = actor.pod
        self.add(actor)
        if pod.ended:
            self.jobs.found_ended(actor, raw)
            self.remove(actor)
            return
        if pod.node:
            begun = making.bound_since(raw)
            actor.bound_at = self.timeline.now if begun is None else self.timeline.moment(begun)
            self.run_on(actor)
        if pod.deleting:
            text = raw["metadata"].get("deletionTimestamp")
            until = self.timeline.moment(timestamp(text)) if text else 0
            self._leave_at(actor, max(until, self.timeline.now + max(self._terminates(actor), SOON)))

    def add(self, actor: Actor) -> None:
        """A pod is there."""
        pod = actor.pod
        self.made += 1
        self.actors[pod.uid] = actor
        self._by_name[(pod.namespace, pod.name)] = pod.uid
        self.jobs.join(actor)
        if pod.node and not pod.ended:
            self._place(actor)
        self._file(actor)

    def change_pod(self, actor: Actor, patch: dict[str, Any], where: str) -> None:
        """A pod is changed by somebody."""
        pod = actor.pod
        base = actor.raw or making.raw_of(pod, self.jobs.mold_of(actor))
        changed = making.from_raw(where, merge(base, patch), actor.order)
        actor.raw, actor.terminates = changed.raw, changed.terminates
        if pod.shape is not changed.pod.shape:
            pod.shape = changed.pod.shape
            if pod.node:
                self._place(actor)
        pod.foreign_gates = changed.pod.foreign_gates
        if changed.pod.ended:
            self.end(actor, changed.pod.phase)
        elif changed.pod.node and not pod.node and not pod.gated:
            self.bind(actor, changed.pod.node)
        if actor.runs != changed.runs:
            actor.runs = changed.runs
            self.run_on(actor)
        self._file(actor)

    def lift(self, actor: Actor, node_selector: Mapping[str, str]) -> None:
        """Opens our gate, and keeps the pod to nodes with these labels."""
        pod = actor.pod
        pod.gated = False
        if node_selector:
            pod.shape = narrowed(pod.shape, node_selector)
            if actor.raw is not None:
                actor.raw = merge(actor.raw, {"spec": {"nodeSelector": dict(node_selector)}})
        self._file(actor)

    def bind(self, actor: Actor, node: str) -> None:
        """kube-scheduler's binding; the kubelet starts it at once."""
        actor.pod.node, actor.pod.phase, actor.pod.nominated = node, "Running", ""
        actor.bound_at = self.timeline.now
        self._place(actor)
        self._file(actor)
        self.run_on(actor)

    def _place(self, actor: Actor) -> None:
        pod = actor.pod
        self.cluster.add_pod(pod.uid, pod.node, pod.shape, ours=bool(pod.queue), leaving=pod.deleting)
        self._on.setdefault(pod.node, {})[pod.uid] = None
        self._full = False

    def run_on(self, actor: Actor) -> None:
        """A pod on a node runs, for as long as it or its Job now says."""
        runs, began = self._runs(actor), actor.bound_at
        if runs is not None and actor.pod.node:
            self.timeline.at(began + runs, (LATER, actor.order), lambda: self._ends(actor, began, runs), sure=True)

    def _ends(self, actor: Actor, began: int, runs: int) -> None:
        if (actor.bound_at, self._runs(actor)) == (began, runs) and not actor.pod.deleting:
            self.end(actor, "Succeeded")

    def _runs(self, actor: Actor) -> int | None:
        made = self.jobs.mold_of(actor) if actor.runs is None else None
        return made.runs if made else actor.runs

    def _terminates(self, actor: Actor) -> int:
        made = self.jobs.mold_of(actor) if actor.terminates is None else None
        return (made.terminates if made else actor.terminates) or 0

    def end(self, actor: Actor, phase: str) -> None:
        """Its containers have ended: it takes no more room, and its Job counts it."""
        if actor.pod.uid in self.actors:
            actor.pod.phase = phase
            self.jobs.ended(actor)
            self.remove(actor)

    def delete(self, actor: Actor, loss: Loss) -> None:
        """A deletion; a pod on a node takes its time to terminate."""
        if actor.pod.deleting:
            return
        self.jobs.lost(actor, loss)
        terminates = self._terminates(actor)
        if not actor.pod.node or not terminates:
            self.remove(actor)
            return
        actor.pod.deleting = True
        self._place(actor)
        self._file(actor)
        self._leave_at(actor, self.timeline.now + terminates)

    def _leave_at(self, actor: Actor, moment: int) -> None:
        self.timeline.at(moment, (LATER, actor.order), lambda: self.remove(actor))

    def remove(self, actor: Actor) -> None:
        """It is gone; for one that is gone already nothing happens."""
        pod = actor.pod
        if self.actors.pop(pod.uid, None) is None:
            return
        if self._by_name.get((pod.namespace, pod.name)) == pod.uid:
            del self._by_name[(pod.namespace, pod.name)]
        self.unbound.pop(pod.uid, None)
        self.changed = True
        self.cluster.remove_pod(pod.uid)
        self._on.get(pod.node, {}).pop(pod.uid, None)
        self._full = False
        self.jobs.leave(actor)

    def _file(self, actor: Actor) -> None:
        pod = actor.pod
        self.changed = True
        if pod.node or pod.gated or pod.foreign_gates or pod.ended or pod.deleting:
            self.unbound.pop(pod.uid, None)
        elif pod.uid not in self.unbound:
            self.unbound[pod.uid] = actor
            self._full = False
        self.jobs.touch(actor)

    def others(self) -> Iterator[Pod]:
        """Pods that are not ours and wait for kube-scheduler."""
        return (actor.pod for actor in self.unbound.values() if not actor.pod.queue)

    # --- kube-scheduler -----------------------------------------------------------------------------------------

    def schedule(self) -> bool:
        """Binds what can be bound of the pods past all gates, by priority and age; whether any was."""
        if self._full or not self.unbound:
            return False
        room = Room(self.cluster)
        placed: list[tuple[Actor, str]] = []
        for actor in sorted(self.unbound.values(), key=_next_to_schedule):
            nodes = room.place_some(actor.pod.shape, 1).nodes
            placed += [(actor, node) for node, _ in nodes]
        for actor, node in placed:
            self.bind(actor, node)
        self._full = True
        return bool(placed)


def _next_to_schedule(actor: Actor) -> tuple[int, float, int]:
    return -actor.pod.shape.priority, actor.pod.created, actor.order


NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
