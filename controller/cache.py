"""What the API server holds, as the controller sees it: reflectors, and the few indexes that decisions need.

Every change ends up in one of three places: the engine's Cluster (what is on which node), a Group (the pods of one
owner, and its Job), or the set of groups to look at again. What always holds: nothing here is counted up or down by
hand; an index follows the store, change by change, and can be thrown away and built anew. Knows nothing of gangs'
phases or of what will be decided.
"""

from collections.abc import Callable, Iterable

from controller.unlabelled import Unlabelled
from controller.volumes import followed
from startgate.engine.cluster import Cluster
from startgate.engine.observe import template_preempts, template_shape
from startgate.kube.client import Client
from startgate.kube.kinds import GANGS, JOBS, NAMESPACES, NODES, PODS, PRIORITY_CLASSES, QUEUES
from startgate.kube.reflector import Reflector
from startgate.kube.store import Change
from startgate.model.gang import Gang
from startgate.model.objects import Job, Namespace, Node, PriorityClass
from startgate.model.pods import Pod, pod_of
from startgate.model.queue import Queue
from startgate.model.shape import Shape


class Group:
    """The pods that one owner controls, and the owner if it is a Job. A labelled pod without owner owns itself."""

    __slots__ = ("_template", "job", "kind", "name", "namespace", "pods", "uid")

    def __init__(self, uid: str, kind: str, namespace: str, name: str) -> None:
        self.uid = uid
        self.kind = kind
        self.namespace = namespace
        self.name = name
        self.job: Job | None = None
        self.pods: dict[str, Pod] = {}
        self._template: tuple[Job, Shape, bool] | None = None

    def template(self, classes: Iterable[PriorityClass]) -> tuple[Shape, bool]:
        """The shape of the Job's pods, and whether they preempt. Raises QuantityError.

        Worked out once for each version of the Job.
        """
        job = self.job
        assert job is not None
        if self._template is None or self._template[0] is not job:
            known = {each.metadata.name: each for each in classes}
            self._template = (job, template_shape(job, known), template_preempts(job, known))
        return self._template[1:]

    def forget_template(self) -> None:
        """What a PriorityClass is worth has changed."""
        self._template = None

    @property
    def idle(self) -> bool:
        """Whether there is nothing left to know about."""
        return self.job is None and not self.pods


class Cache:
    """Reflectors over all that is read. `on_change` is called after each change; it must be quick."""

    def __init__(self, client: Client, on_change: Callable[[], None]) -> None:
        self.cluster = Cluster()
        self.groups: dict[str, Group] = {}
        """By the owner's uid."""
        self.others: dict[str, Pod] = {}
        """Pods that are not ours, have no node and stand at no gate: kube-scheduler may place them any moment."""
        self.unlabelled = Unlabelled()
        self.ownerless: dict[str, Gang] = {}
        """By uid: Gangs whose owner was taken off (`kubectl delete --cascade=orphan`), or is no gang any more: nobody
        will collect them."""
        self._reserved: dict[str, str] = {}
        """By pod uid: the node on which room is being reserved, for pods that stand at our gate still."""
        self._dirty: set[str] = set()
        self._wake = on_change
        self.pods = Reflector(client, PODS, view=pod_of, on_change=self._pod)
        self.nodes = Reflector(client, NODES, on_change=self._node)
        self.jobs = Reflector(client, JOBS, on_change=self._job)
        self.queues = Reflector(client, QUEUES, on_change=self._other)
        self.gangs = Reflector(client, GANGS, on_change=self._gang)
        self.namespaces = Reflector(client, NAMESPACES, on_change=self._namespace)
        self.classes = Reflector(client, PRIORITY_CLASSES, on_change=self._class)
        self._volumes = followed(client, self.cluster.storage, on_change)

    @property
    def reflectors(self) -> tuple[Reflector, ...]:  # type: ignore[type-arg]
        """All of them, to be run."""
        ours = (self.pods, self.nodes, self.jobs, self.queues, self.gangs, self.namespaces, self.classes)
        return (*ours, *self._volumes)

    @property
    def synced(self) -> bool:
        """Whether everything here may be decided on: complete, and in touch with the API server."""
        return all(reflector.synced for reflector in self.reflectors)

    def take_dirty(self) -> set[str]:
        """The owners whose group has changed since the last call."""
        taken, self._dirty = self._dirty, set()
        return taken

    def queue(self, name: str) -> Queue | None:
        """The Queue of this name."""
        return self.queues.store.get(name)

    def reserve(self, pod: Pod, node: str) -> None:
        """From now on the pod counts on this node, as if it were there: nobody else is given its room."""
        self._reserved[pod.uid] = node
        self.cluster.add_pod(pod.uid, node, pod.shape, ours=True, nominated=True)

    def unreserve(self, pod: Pod) -> None:
        """What `reserve` did is over: the pod counts where it is, or by its nomination, or not at all."""
        if self._reserved.pop(pod.uid, None) is None:
            return
        now = self.pods.store.get(pod.name, pod.namespace)
        self.cluster.remove_pod(pod.uid)
        if now is not None and now.uid == pod.uid and not now.ended:
            self._count(now)

    def reserved_on(self, pod: Pod) -> str:
        """The node on which room is being reserved for this pod, or ""."""
        return self._reserved.get(pod.uid, "")

    def touch(self, uid: str) -> None:
        """This owner's group is to be looked at again."""
        self._dirty.add(uid)
        self._wake()

    def _group(self, uid: str, kind: str, namespace: str, name: str) -> Group:
        group = self.groups.get(uid)
        if group is None:
            group = self.groups[uid] = Group(uid, kind, namespace, name)
        return group

    def _drop_if_idle(self, group: Group) -> None:
        if group.idle:
            self.groups.pop(group.uid, None)
        self.touch(group.uid)

    def _pod(self, change: Change[Pod]) -> None:
        old, new = change.old, change.new
        pod = new or old
        assert pod is not None
        if new is None or new.ended or not self._count(new):
            self.cluster.remove_pod(pod.uid)
        self.unlabelled.change(old, new)
        if new is not None and _outsider(new):
            self.others[pod.uid] = new
        else:
            self.others.pop(pod.uid, None)
        self._regroup(old, new)

    def _count(self, pod: Pod) -> bool:
        """Counts the pod on the node where it takes room; whether there is one."""
        place = self._place(pod)
        if place:
            self.cluster.add_pod(
                pod.uid, place, pod.shape, ours=bool(pod.queue), leaving=pod.deleting, nominated=not pod.node
            )
        return bool(place)

    def _place(self, pod: Pod) -> str:
        """The node on which a pod takes room: where it is bound, or, past all gates, where it is nominated.

        A nomination behind our gate counts while the flight that made it is under way, and is else a leftover.
        """
        if pod.node:
            return pod.node
        if pod.gated:
            return self._reserved.get(pod.uid, "")
        return "" if pod.foreign_gates else pod.nominated

    def _regroup(self, old: Pod | None, new: Pod | None) -> None:
        """A pod is in one group at most. It may change hands: orphaned when its Job is deleted alone, adopted."""
        before, after = old and _family(old), new and _family(new)
        if old is not None and before and before != after and (left := self.groups.get(before[0])):
            left.pods.pop(old.uid, None)
            self._drop_if_idle(left)
        if new is not None and after:
            group = self._group(*after)
            group.pods[new.uid] = new
            self._drop_if_idle(group)
        self._wake()

    def _job(self, change: Change[Job]) -> None:
        job = change.new or change.old
        assert job is not None
        meta = job.metadata
        group = self._group(meta.uid, "Job", meta.namespace, meta.name)
        group.job = change.new
        self._drop_if_idle(group)

    def _gang(self, change: Change[Gang]) -> None:
        gang = change.new or change.old
        assert gang is not None
        owner = gang.metadata.controller
        if owner is not None:
            self.touch(owner.uid)
        if owner is None and change.new is not None:
            self.ownerless[gang.metadata.uid] = gang
        else:
            self.ownerless.pop(gang.metadata.uid, None)
        self._wake()

    def _node(self, change: Change[Node]) -> None:
        if change.new is not None:
            self.cluster.set_node(change.new)
        elif change.old is not None:
            self.cluster.remove_node(change.old.metadata.name)
        self._wake()

    def _class(self, change: Change[PriorityClass]) -> None:
        # What parked gangs will be worth is read from here; rare enough to look at all of them.
        for group in self.groups.values():
            group.forget_template()
        self._dirty.update(self.groups)
        self._wake()

    def _namespace(self, change: Change[Namespace]) -> None:
        if change.new is not None:
            self.cluster.set_namespace(change.new.metadata.name, change.new.metadata.labels)
        elif change.old is not None:
            self.cluster.remove_namespace(change.old.metadata.name)
        self._wake()

    def _other(self, change: Change[Queue]) -> None:
        self._wake()


def _family(pod: Pod) -> tuple[str, str, str, str] | None:
    """The group that a pod belongs to, as `Cache._group` takes it; None for a pod that we don't follow."""
    owner = pod.owner
    if owner is not None and (pod.queue or owner.kind == "Job"):
        # Pods of unlabelled Jobs too: the label may come later, and then they have to be known.
        group = owner.api_version.rpartition("/")[0]
        kind = f"Job.{group}" if owner.kind == "Job" and group != "batch" else owner.kind  # Volcano has one too
        return owner.uid, kind, pod.namespace, owner.name
    return (pod.uid, "Pod", pod.namespace, pod.name) if pod.queue else None


def _outsider(pod: Pod) -> bool:
    return not (pod.queue or pod.node or pod.gated or pod.foreign_gates or pod.ended or pod.nominated or pod.deleting)
