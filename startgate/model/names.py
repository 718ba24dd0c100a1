"""Every name that Startgate shares with a cluster, in one place.

Labels, annotations, the gate, the API group: what users write and what our programs write. A name is never spelled
out anywhere else, so that this file is the whole vocabulary (design: "What a user writes").
"""

from typing import Final

GROUP: Final = "startgate.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

GATE: Final = "startgate.dev/gang"
"""The scheduling gate on each pod of a gang (KEP-3521)."""

# Labels, on a Job and copied into its pod template.
QUEUE: Final = "startgate.dev/queue"
MIN_AVAILABLE: Final = "startgate.dev/min-available"

# Annotations that a user may set on a Job.
START_TIMEOUT: Final = "startgate.dev/start-timeout"
HOLD: Final = "startgate.dev/hold"
TOPOLOGY: Final = "startgate.dev/topology"
"""The key of a node label of which all of the gang's nodes must have one value."""
PREFER_TOPOLOGY: Final = "startgate.dev/prefer-topology"
"""The same, where it can be."""

# Annotations that are ours.
PARKED: Final = "startgate.dev/parked"
"""On a Job that we suspended: why, as a parking reason. Without it a suspended Job is the user's own doing."""

PARKED_MESSAGE: Final = "startgate.dev/parked-message"
"""Beside it, where the gang gave way to another: to which, and by which rule, in a sentence."""

KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Kueue's label; a Job has one gatekeeper, so a Job with both is refused."""

JOB_INDEX: Final = "batch.kubernetes.io/job-completion-index"
"""Set by the Job controller on the pods of an Indexed Job."""

JOB_CONTROLLER: Final = "kubernetes.io/job-controller"
"""In a Job's managedBy: Kubernetes' own controller, as without it."""

JOB_NAME: Final = ("job-name", "batch.kubernetes.io/job-name")
JOB_UID: Final = ("controller-uid", "batch.kubernetes.io/controller-uid")
"""Labels that the API server puts into the template of a new Job."""

# Annotations that `kubectl gang simulate` reads, on any object; the controller never does.
SIMULATE: Final = "simulate.startgate.dev/"
SIMULATE_AT: Final = f"{SIMULATE}at"
"""When it appears; a second document of the same name changes it then."""
SIMULATE_GONE: Final = f"{SIMULATE}gone"
"""When it is deleted."""
SIMULATE_RUNS: Final = f"{SIMULATE}runs"
"""How long its pods run, from their binding; without it for ever."""
SIMULATE_TERMINATES: Final = f"{SIMULATE}terminates"
"""How long its pods take to terminate, once they are deleted."""

SYSTEM_NAMESPACE: Final = "startgate-system"
WEBHOOK_SERVICE: Final = "startgate-webhook"
CONTROLLER_ACCOUNT: Final = "startgate-controller"
WEBHOOK_ACCOUNT: Final = "startgate-webhook"
LEASE: Final = "startgate-controller"
CERTIFICATE_SECRET: Final = "startgate-webhook-tls"  # noqa: S105  (a name, not a secret)
WEBHOOK_CONFIGURATION: Final = "startgate"

RELEASE_VERB: Final = "release"
"""The verb on gangs that whoever lifts our gate must have; asked by the ValidatingAdmissionPolicy."""

DEFAULT_START_TIMEOUT: Final = 300.0
"""Seconds from released to all bound, before a gang is taken back."""


def gang_of_job(job: str) -> str:
    """The name of the Gang of the Job with this name."""
    return f"job-{job}"
