"""Pods with our label: the gate, for those whose template didn't bring it.

Pure rules, as in `jobs`. What always holds: a labelled pod that is let in has our gate, and no node name. A
Job's pods are not held to facts here: their Job was, and a queue that has vanished meanwhile is a reason to
wait, which the Gang says, not one to fail.
"""

from typing import Final

from startgate.audit.record import Decision
from startgate.model import names
from webhook.jobs import put_gate
from webhook.objects import Pod
from webhook.review import NOTHING_OF_OURS, Refusal, Verdict, pointer, refuse
from webhook.submission import Facts, check_labels, check_queue, warnings

GATES: Final = pointer("spec", "schedulingGates")


def needs_facts(pod: Pod) -> bool:
    """Whether the verdict depends on the queue."""
    return names.QUEUE in pod.labels and not pod.of_job


def create(pod: Pod, namespace: str, facts: Facts) -> Verdict:
    """A new pod. Without our label it isn't ours. `facts` count if `needs_facts`."""
    if names.QUEUE not in pod.labels:
        return NOTHING_OF_OURS
    queue = pod.labels[names.QUEUE]
    if pod.spec.node_name:
        return refuse(
            Refusal.NODE_NAME,
            f"the pod names the node {pod.spec.node_name}, which would pass by the queue {queue}: take off "
            f"spec.nodeName and choose nodes by nodeSelector or affinity, or take off the label {names.QUEUE}",
            code=422,
            queue=queue,
        )
    said: tuple[str, ...] = ()
    if needs_facts(pod):
        refusal = check_labels(pod.labels) or check_queue(queue, namespace, pod.spec.priority_class_name, facts)
        if refusal is not None:
            return refusal
        said = warnings(queue, facts)
    return Verdict(decision=Decision.GATE, patch=tuple(put_gate(GATES, pod.spec)), warnings=said, queue=queue)
