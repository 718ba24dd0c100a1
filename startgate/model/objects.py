"""Kubernetes objects as Startgate reads them: only the fields that something here uses.

Decoded straight from the bytes of the API server (`msgspec.json.decode(data, type=Pod)`), they cost a
fraction of full models. What always holds: they are frozen; a field that isn't read isn't kept; a list or a
map that is null on the wire is empty here; quantities and times stay the text that they were (`resources`,
`timestamp`); None means that the object doesn't say, where that differs from a default.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import field

from startgate.model.mounts import Volume
from startgate.model.selectors import Labels, LabelSelector, Many, NodeSelector
from startgate.model.taints import Taint, Toleration

# Whoever reads objects finds these three here.
from startgate.model.wire import ObjectMeta as ObjectMeta  # noqa: PLC0414
from startgate.model.wire import OwnerReference as OwnerReference  # noqa: PLC0414
from startgate.model.wire import Presence, Quantities, Wire
from startgate.model.wire import Resources as Resources  # noqa: PLC0414


class Condition(Wire, frozen=True):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


def condition(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    """The condition of this type, or None."""
    return next((each for each in conditions if each.type == kind), None)


class ContainerPort(Wire, frozen=True):
    container_port: int = 0
    host_port: int = 0
    protocol: str = ""
    host_ip: str = field(name="hostIP", default="")


class RestartRule(Wire, frozen=True):
    action: str = ""


class Container(Wire, frozen=True):
    nullable = {"ports": tuple, "restart_policy_rules": tuple}

    name: str = ""
    resources: Resources = Resources()
    restart_policy: str | None = None
    restart_policy_rules: Many[RestartRule] = ()
    ports: Many[ContainerPort] = ()

    @property
    def sidecar(self) -> bool:
        """Whether, among init containers, it goes on running beside the others (KEP-753)."""
        return self.restart_policy == "Always"


REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


class NodeAffinity(Wire, frozen=True):
    required: NodeSelector | None = field(name=REQUIRED, default=None)


class PodAffinityTerm(Wire, frozen=True):
    nullable = {"namespaces": tuple, "match_label_keys": tuple, "mismatch_label_keys": tuple}

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: Many[str] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: Many[str] = ()
    mismatch_label_keys: Many[str] = ()


class PodAffinity(Wire, frozen=True):
    """v1.PodAffinity or v1.PodAntiAffinity."""

    nullable = {"required": tuple}

    required: Many[PodAffinityTerm] = field(name=REQUIRED, default=())


class Affinity(Wire, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class SchedulingGate(Wire, frozen=True):
    name: str = ""


class TopologySpread(Wire, frozen=True):
    nullable = {"match_label_keys": tuple}

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: Many[str] = ()


class PodSpec(Wire, frozen=True):
    nullable = {
        "node_selector": dict,
        "tolerations": tuple,
        "scheduling_gates": tuple,
        "containers": tuple,
        "init_containers": tuple,
        "overhead": dict,
        "volumes": tuple,
        "topology_spread_constraints": tuple,
        "resource_claims": tuple,
    }

    node_name: str = ""
    node_selector: Labels = {}
    affinity: Affinity | None = None
    tolerations: Many[Toleration] = ()
    scheduling_gates: Many[SchedulingGate] = ()
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    containers: Many[Container] = ()
    init_containers: Many[Container] = ()
    overhead: Quantities = {}
    resources: Resources | None = None
    active_deadline_seconds: int | None = None
    termination_grace_period_seconds: int | None = None
    restart_policy: str = ""
    host_network: bool = False
    volumes: Many[Volume] = ()
    topology_spread_constraints: Many[TopologySpread] = ()
    resource_claims: Many[Presence] = ()
    scheduling_group: Presence | None = None


class ContainerStatus(Wire, frozen=True):
    """What the kubelet has given a container; it differs from the spec after a resize in place (KEP-1287)."""

    nullable = {"allocated_resources": dict}

    name: str = ""
    allocated_resources: Quantities = {}
    resources: Resources | None = None


class PodStatus(Wire, frozen=True):
    nullable = {
        "conditions": tuple,
        "container_statuses": tuple,
        "init_container_statuses": tuple,
        "allocated_resources": dict,
    }

    phase: str = ""
    nominated_node_name: str = ""
    conditions: Many[Condition] = ()
    container_statuses: Many[ContainerStatus] = ()
    init_container_statuses: Many[ContainerStatus] = ()
    allocated_resources: Quantities = {}
    resources: Resources | None = None


class Pod(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeSpec(Wire, frozen=True):
    nullable = {"taints": tuple}

    unschedulable: bool = False
    taints: Many[Taint] = ()


class NodeStatus(Wire, frozen=True):
    nullable = {"allocatable": dict, "conditions": tuple}

    allocatable: Quantities = {}
    conditions: Many[Condition] = ()


class Node(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """Whether its kubelet answers: condition Ready is True."""
        found = condition(self.status.conditions, "Ready")
        return found is not None and found.status == "True"


class PodTemplateSpec(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class OnExitCodes(Wire, frozen=True):
    nullable = {"values": tuple}

    container_name: str | None = None
    operator: str = ""
    values: Many[int] = ()


class OnPodCondition(Wire, frozen=True):
    type: str = ""
    status: str = "True"


class PodFailureRule(Wire, frozen=True):
    nullable = {"on_pod_conditions": tuple}

    action: str = ""
    on_exit_codes: OnExitCodes | None = None
    on_pod_conditions: Many[OnPodCondition] = ()


class PodFailurePolicy(Wire, frozen=True):
    nullable = {"rules": tuple}

    rules: Many[PodFailureRule] = ()


class JobSpec(Wire, frozen=True):
    parallelism: int | None = None
    completions: int | None = None
    suspend: bool | None = None
    completion_mode: str | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    pod_replacement_policy: str | None = None
    template: PodTemplateSpec = PodTemplateSpec()
    managed_by: str | None = None
    manual_selector: bool | None = None


class UncountedPods(Wire, frozen=True):
    """Pods (uids) that have ended and aren't in the Job's counters yet."""

    nullable = {"succeeded": tuple, "failed": tuple}

    succeeded: Many[str] = ()
    failed: Many[str] = ()


class JobStatus(Wire, frozen=True):
    nullable = {"conditions": tuple}

    active: int = 0
    ready: int | None = None
    succeeded: int = 0
    failed: int = 0
    terminating: int | None = None
    start_time: str | None = None
    completion_time: str | None = None
    conditions: Many[Condition] = ()
    completed_indexes: str = ""
    failed_indexes: str | None = None
    uncounted_terminated_pods: UncountedPods | None = None


class Job(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class Namespace(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class PriorityClass(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None


RFC3339: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp(text: str) -> float:
    """Seconds since 1970 (UTC) of an RFC 3339 time; digits beyond microseconds are dropped.

    Raises ValueError, with a sentence that names the text, for anything else.
    """
    match = RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:80]!r} is not a time: write it as 2030-01-31T12:00:00Z")
    day, clock, fraction, zone = match.groups(default="")
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{fraction}{'+00:00' if zone in 'Zz' else zone}")
    except ValueError as error:
        raise ValueError(f"{text[:80]!r} is not a time: {error}") from error
    return (moment - EPOCH).total_seconds()


def rfc3339(epoch: float, *, micro: bool = False) -> str:
    """The time as Kubernetes writes it (metav1.Time: whole seconds, what is left is dropped).

    With `micro`, as metav1.MicroTime, which Leases and Events have: always six digits after the point.
    """
    moment = EPOCH + timedelta(seconds=epoch)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")
