"""What can go wrong between us and an API server, as one family.

Whoever talks to the cluster catches `KubeError` and has caught everything that the outside can do to us: a
bad configuration, a server that is out of reach, an answer that says no. Anything else that escapes from this
package is a bug of ours. Each error's text is a sentence that a person can act on.
"""


class KubeError(Exception):
    """The family: catch this one."""


class ConfigurationError(KubeError):
    """We don't know which cluster to talk to, or as whom: kubeconfig, certificates or tokens are missing or
    wrong.
    """


class Unreachable(KubeError):  # noqa: N818
    """No answer: no connection, or a connection that broke, went silent or took too long.

    Whether a write took effect is not known after this.
    """


class Unreadable(KubeError):  # noqa: N818
    """An answer with success, whose body isn't what Kubernetes promises for it."""


class ApiError(KubeError):
    """The API server answered with an error status.

    `status` is HTTP's; `reason` is the word in the Status object (NotFound, AlreadyExists, Conflict, Invalid,
    Forbidden, Expired, …: k8s.io/apimachinery, metav1.StatusReason), empty where the answer had none;
    `message` is the server's sentence; `retry_after` is in seconds, None where the server asked for no wait.
    """

    def __init__(
        self, status: int, reason: str, message: str, *, retry_after: float | None = None, asked: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.asked = asked

    def __str__(self) -> str:
        said = f"{self.status} {self.reason}".strip()
        return f"{self.message} ({said}; {self.asked})" if self.asked else f"{self.message} ({said})"

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """A precondition (resourceVersion, uid) didn't hold, or the name is taken."""
        return self.status == 409

    @property
    def expired(self) -> bool:
        """The resourceVersion or continue token is too old (410 Gone, reason Expired): list again."""
        return self.status == 410
