"""May this namespace submit work of this priority to this queue? The question that Jobs and pods have in
common.

Pure: the facts were looked up before (`facts`). What always holds: a denial for what a fact says is marked
`by_facts`, so that nobody is refused on a picture that was merely old.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import UNSET, Struct

from startgate.model import names, reasons
from startgate.model.queue import QueueSpec
from webhook.review import Refusal, Verdict, refuse


class Facts(Struct, frozen=True, kw_only=True):
    """What the cluster says about one submission."""

    queue: QueueSpec | None
    """None: there is no such queue."""
    nearest: str = ""
    """Then, the existing name most like it."""
    namespace: Mapping[str, str] = {}
    """The labels of the namespace."""
    priority: int | None = 0
    """The value of the PriorityClass, or of the global default; None: there is no such class."""
    waiting: int = 0
    """Pods that wait in the queue, as far as is known."""


KUEUE: Final = (
    f"the label {names.KUEUE_QUEUE} hands this to Kueue, and it can have one gatekeeper only: take off that label "
    f"or {names.QUEUE}"
)
EMPTY: Final = f"the label {names.QUEUE} is empty: name a queue in it (kubectl get queues), or take it off"


def check_labels(labels: Mapping[str, str]) -> Verdict | None:
    """The denial that the labels alone call for, or None."""
    if names.KUEUE_QUEUE in labels:
        return refuse(Refusal.KUEUE, KUEUE)
    if not labels.get(names.QUEUE):
        return refuse(Refusal.LABEL_INVALID, EMPTY, code=422)
    return None


def check_queue(queue: str, namespace: str, priority_class: str, facts: Facts) -> Verdict | None:
    """The denial that the facts call for, or None. `priority_class`: as the pod names it, "" for the default."""
    spec = facts.queue
    if spec is None:
        hint = f" (did you mean {facts.nearest}?)" if facts.nearest else ""
        return _by_facts(reasons.reason(reasons.Code.NO_SUCH_QUEUE, queue=queue, hint=hint), queue)
    if spec.namespaces is not UNSET and not spec.namespaces.matches(facts.namespace):
        return _by_facts(reasons.reason(reasons.Code.NAMESPACE_NOT_ADMITTED, queue=queue, namespace=namespace), queue)
    if spec.max_priority is UNSET:
        return None
    if facts.priority is None:
        return refuse(
            Refusal.NO_SUCH_PRIORITY,
            f"there is no PriorityClass {priority_class}, and queue {queue} takes priorities up to "
            f"{spec.max_priority} only: create the class, or name one that exists (kubectl get priorityclasses)",
            by_facts=True,
            queue=queue,
        )
    if facts.priority > spec.max_priority:
        whose = f"PriorityClass {priority_class}" if priority_class else "the default PriorityClass"
        return refuse(
            Refusal.PRIORITY_TOO_HIGH,
            f"{whose} has priority {facts.priority}, and queue {queue} takes priorities up to {spec.max_priority}: "
            f"name a lower PriorityClass in the pod template, or use another queue",
            by_facts=True,
            queue=queue,
            seen={"priority": facts.priority, "maxPriority": spec.max_priority},
        )
    return None


def _by_facts(why: reasons.Reason, queue: str) -> Verdict:
    return refuse(why.code, why.message, by_facts=True, queue=queue)


def warnings(queue: str, facts: Facts) -> tuple[str, ...]:
    """What whoever submits should know though it is allowed."""
    if facts.queue is not None and facts.queue.stopped:
        return (reasons.reason(reasons.Code.QUEUE_STOPPED, queue=queue).message,)
    return ()
