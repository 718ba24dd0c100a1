"""What pods without our label use, by namespace: shown beside a queue's headroom, never charged to it.

Follows the pods one change at a time. Always holds: exactly those pods count that are on a node and haven't ended, so
what is here is what somebody would sum up who looked at all pods.
"""

from collections.abc import Iterable

from startgate.model.objects import Namespace
from startgate.model.pods import Pod
from startgate.model.queue import Queue
from startgate.model.resources import Amounts, add


class Unlabelled:
    """Sums by namespace, and for a queue the sum of those that it admits."""

    def __init__(self) -> None:
        self._used: dict[str, dict[str, int]] = {}

    def change(self, old: Pod | None, new: Pod | None) -> None:
        """A pod was seen for the first time, has changed, or has gone."""
        before, after = _counted(old), _counted(new)
        if before is not None and after is not None and before.shape is after.shape:
            return
        for pod, sign in ((before, -1), (after, 1)):
            if pod is not None:
                self._count(pod, sign)

    def _count(self, pod: Pod, sign: int) -> None:
        books = self._used.setdefault(pod.namespace, {})
        for resource, amount in pod.shape.request:
            books[resource] = books.get(resource, 0) + sign * amount
            if not books[resource]:
                del books[resource]
        if not books:
            del self._used[pod.namespace]

    def seen_by(self, queue: Queue, namespaces: Iterable[Namespace]) -> Amounts:
        """What is used in the namespaces that the queue admits; without a selector those are all."""
        selector = queue.spec.namespaces
        if not selector:
            return add(*self._used.values())
        admitted = (
            books
            for each in namespaces
            if (books := self._used.get(each.metadata.name)) and selector.matches(each.metadata.labels)
        )
        return add(*admitted)


def _counted(pod: Pod | None) -> Pod | None:
    return pod if pod is not None and pod.node and not pod.queue and not pod.ended else None
