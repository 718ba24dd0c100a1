"""What pods ask for, as exact integers by resource name.

One scale for each resource, everywhere: cpu in milli-units, bytes for what is counted in bytes, counts for
the rest. What always holds: amounts are integers, a resource that is left out means 0 for use (and no ceiling
for a capability), and a pod's request is what kube-scheduler counts for it.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from startgate.model import objects
from startgate.model.quantity import Quantity, format_amount, parse_milli, parse_units

Amounts: TypeAlias = Mapping[str, int]

PODS: Final = "pods"
"""Each pod asks for one of these; a node offers as many as its kubelet takes."""

RESIZE_PENDING: Final = "PodResizePending"
"""The condition of a pod whose node hasn't given what a resize asks for (KEP-1287)."""

FIRST: Final = ("cpu", "memory", "ephemeral-storage")


def amount(resource: str, quantity: Quantity) -> int:
    """A quantity in the scale of its resource: cpu in milli-units, everything else in units; rounded up.

    Raises QuantityError, as the functions below do for what they read.
    """
    return parse_milli(quantity) if resource == "cpu" else parse_units(quantity)


def amounts(quantities: Mapping[str, Quantity]) -> dict[str, int]:
    """Each quantity in the scale of its resource; zeros are kept, since a ceiling of 0 is one."""
    return {resource: amount(resource, quantity) for resource, quantity in quantities.items()}


def add(*many: Amounts) -> dict[str, int]:
    """The sum, resource by resource."""
    total: dict[str, int] = {}
    for each in many:
        for resource, count in each.items():
            total[resource] = total.get(resource, 0) + count
    return total


def subtract(whole: Amounts, part: Amounts) -> dict[str, int]:
    """What is left of `whole` without `part`; negative where there is too little."""
    left = dict(whole)
    for resource, count in part.items():
        left[resource] = left.get(resource, 0) - count
    return left


def scale(each: Amounts, times: int) -> dict[str, int]:
    """`times` as much."""
    return {resource: count * times for resource, count in each.items()}


def fits(need: Amounts, room: Amounts) -> bool:
    """Whether the room has all that is needed; what isn't needed can't stand in the way, however short."""
    return all(count <= 0 or count <= room.get(resource, 0) for resource, count in need.items())


def shortage(need: Amounts, room: Amounts) -> dict[str, int]:
    """What the room lacks, by resource, of what is needed; empty exactly when it fits.

    Room that is overdrawn (negative) counts as it is: then more is missing than is needed.
    """
    return {
        resource: count - room.get(resource, 0)
        for resource, count in need.items()
        if count > 0 and count > room.get(resource, 0)
    }


def quantities(held: Amounts) -> dict[str, str | int]:
    """As Kubernetes writes them, by resource name, for an object; zeros are left out."""
    return {resource: format_amount(resource, count) for resource, count in sorted(held.items()) if count}


def largest(*many: Amounts) -> dict[str, int]:
    """The greatest of each resource that any of them names, be it 0."""
    top: dict[str, int] = {}
    for each in many:
        for resource, count in each.items():
            if resource not in top or count > top[resource]:
                top[resource] = count
    return top


def show(held: Amounts) -> str:
    """For sentences: "4 cpu, 8Gi memory, 1 nvidia.com/gpu", always in the same order, pods last."""

    def place(resource: str) -> tuple[int, str]:
        if resource in FIRST:
            return FIRST.index(resource), ""
        return (len(FIRST) + (resource == PODS)), resource

    def words(resource: str, count: int) -> str:
        return "1 pod" if (resource, count) == (PODS, 1) else f"{format_amount(resource, count)} {resource}"

    return ", ".join(words(resource, held[resource]) for resource in sorted(held, key=place)) or "nothing"


def pod_request(spec: objects.PodSpec, status: objects.PodStatus | None = None) -> dict[str, int]:
    """What kube-scheduler counts for a pod with this spec (and status, once it has one).

    Without zeros, and with one of "pods".

    Per resource, the larger of

    * the sum of its containers and sidecars, and
    * for each init container, its own request and those of the sidecars started before it (KEP-753);

    then the pod's own requests instead, for cpu, memory and huge pages where they are given (KEP-2837), and
    the overhead on top. After a resize in place (KEP-1287) the greatest of what is asked, what the kubelet
    has granted and what runs, and without what is asked if the node can never give it (component-helpers,
    resource.PodRequests, with the feature gates as they are by default in 1.37).

    Requests that are left out are filled as the API server fills them for a pod, so that a template counts as
    its pods will: from limits, and for the pod's own requests from its containers, then from its own limits.
    What comes from elsewhere (LimitRange, RuntimeClass) is in stored pods alone.
    """
    asked: Amounts = _containers(spec, _spec_requests)
    own: Amounts = _own_requests(spec, asked)
    if status is not None:
        infeasible = _infeasible(status)
        asked = _resized(spec, status, asked, infeasible=infeasible)
        own = _own_resized(status, own, infeasible=infeasible)
    total = add({**asked, **own}, amounts(spec.overhead))
    total[PODS] = 1
    return {resource: count for resource, count in total.items() if count}


Requests: TypeAlias = Callable[[objects.Container], Amounts]


def _spec_requests(container: objects.Container) -> dict[str, int]:
    """The requests of a container, those left out taken from its limits (SetDefaults_Pod)."""
    given = container.resources
    return amounts({**given.limits, **given.requests})


def _containers(spec: objects.PodSpec, requests: Requests) -> dict[str, int]:
    """Containers and init containers together, by KEP-753."""
    running = add(*map(requests, spec.containers))
    if not spec.init_containers:
        return running
    sidecars: Amounts = {}
    starting: list[Amounts] = []
    for container in spec.init_containers:
        request = requests(container)
        if container.sidecar:
            sidecars = add(sidecars, request)
            starting.append(sidecars)
        else:
            starting.append(add(sidecars, request))
    return largest(add(running, sidecars), *starting)


def _own_requests(spec: objects.PodSpec, asked: Amounts) -> dict[str, int]:
    """The pod's own requests in those resources that a pod can ask for as a whole (KEP-2837)."""
    if spec.resources is None:
        return {}
    own = _supported(amounts(spec.resources.requests))
    limits = _supported(amounts(spec.resources.limits))
    if limits:
        # Not so huge pages, which can't be overcommitted: there the pod's limit is its request.
        for resource in ("cpu", "memory"):
            if resource in asked:
                own.setdefault(resource, asked[resource])
        own = {**limits, **own}
    return own


def _supported(given: Amounts) -> dict[str, int]:
    return {
        resource: count
        for resource, count in given.items()
        if resource in ("cpu", "memory") or resource.startswith("hugepages-")
    }


def _infeasible(status: objects.PodStatus) -> bool:
    """Whether the node can never give what a resize asks for."""
    pending = objects.condition(status.conditions, RESIZE_PENDING)
    return pending is not None and pending.reason == "Infeasible"


def _resized(spec: objects.PodSpec, status: objects.PodStatus, asked: Amounts, *, infeasible: bool) -> Amounts:
    """The containers' request after a resize: what is granted and what runs count too (KEP-1287)."""
    if status.allocated_resources and status.resources is not None and status.resources.requests:
        granted: Amounts = amounts(status.allocated_resources)
        running: Amounts = amounts(status.resources.requests)
    else:
        known = {each.name: each for each in (*status.init_container_statuses, *status.container_statuses)}
        if not infeasible and not any(each.allocated_resources or each.resources for each in known.values()):
            return asked
        granted = _containers(spec, lambda container: _granted(container, known, infeasible=infeasible))
        running = _containers(spec, lambda container: _running(container, known, infeasible=infeasible))
    return largest(granted, running) if infeasible else largest(asked, granted, running)


def _granted(
    container: objects.Container, known: Mapping[str, objects.ContainerStatus], *, infeasible: bool
) -> Amounts:
    status = known.get(container.name)
    if status is not None and status.allocated_resources:
        return amounts(status.allocated_resources)
    return {} if infeasible else _spec_requests(container)


def _running(
    container: objects.Container, known: Mapping[str, objects.ContainerStatus], *, infeasible: bool
) -> Amounts:
    status = known.get(container.name)
    if status is not None and status.resources is not None and status.resources.requests:
        return amounts(status.resources.requests)
    return _granted(container, known, infeasible=infeasible)


def _own_resized(status: objects.PodStatus, own: Amounts, *, infeasible: bool) -> Amounts:
    """The pod's own requests, likewise.

    As in 1.37.2: what the kubelet reports has the overhead in it, and the overhead is added again. Later
    sources take it off; a pod with both, resized, counts a little more until then, here as in kube-scheduler.
    """
    if not own or status.resources is None:
        return own
    seen = _supported(largest(amounts(status.resources.requests), amounts(status.allocated_resources)))
    return seen if infeasible else largest(own, seen)
