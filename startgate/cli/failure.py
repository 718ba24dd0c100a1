"""How a verb ends without an answer: one sentence for a person, one number for a script.

What always holds: the sentence says what to do next; the numbers are those of `--help` and docs/reference/cli.md.
"""

from typing import Final

from startgate.kube.errors import ApiError, ConfigurationError, KubeError
from startgate.model import names

NOT_FOUND: Final = 1
USAGE: Final = 2
CLUSTER: Final = 3
INTERRUPTED: Final = 130

EXIT_CODES: Final = (
    "Exit codes: 0 an answer was given (also an empty list); 1 what was asked for isn't there; 2 the command line is "
    "wrong, or a file that it names makes no sense; 3 the cluster gives no answer (kubeconfig, network, credentials, "
    "rights, or Startgate isn't installed there); 130 interrupted."
)


class VerbError(Exception):
    """Ends the program with this sentence on standard error and this exit code."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def of_cluster(error: KubeError) -> VerbError:
    """What an error of the cluster means to whoever typed the command."""
    said = (error.message if isinstance(error, ApiError) else str(error)).rstrip(".")
    match error:
        case ApiError(status=401):
            said, hint = f"The API server doesn't take these credentials ({said})", "log in again"
        case ApiError(status=403):
            hint = "ask an admin for ClusterRole startgate-view (for queues, by a ClusterRoleBinding)"
        case ApiError(status=404) if no_such_kind(error):
            said = f"This cluster has no kinds of {names.GROUP}, so Startgate isn't installed in it"
            hint = "apply manifests/base, or choose another cluster with --context"
        case ApiError():
            hint = "try again"
        case ConfigurationError():
            hint = "choose another with KUBECONFIG, --kubeconfig or --context"
        case _:
            hint = "check that it runs, or choose another cluster with --context"
    return VerbError(CLUSTER, f"{said}; {hint}.")


def no_such_kind(error: ApiError) -> bool:
    """Whether a 404 is about the kind rather than one object of it, which the message then names in quotes."""
    return error.reason != "NotFound" or '"' not in error.message
