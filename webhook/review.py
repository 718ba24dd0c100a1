"""AdmissionReview v1: what the API server asks and what we answer, as bytes.

What always holds: whatever bytes come in, the outcome is a Request or a ReviewError with a sentence; an
answer carries the uid that was asked with; and a verdict's patch changes nothing when it is applied a second
time (reinvocation), because it only says what differs.

Wire format: Kubernetes, "Dynamic Admission Control"; JSON patch: RFC 6902; pointers: RFC 6901.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from startgate.audit.record import Decision
from startgate.model import reasons

NULL: Final = Raw(b"null")
LONGEST_MESSAGE: Final = 2000
"""Characters of a denial: names from a request are quoted in it, and a request may be large."""


class Refusal(StrEnum):
    """Why a request is denied; docs/reference/webhook.md says more on each. Codes of model.reasons come
    beside these where a waiting gang can have the same trouble.
    """

    MALFORMED = "Malformed"
    UNAVAILABLE = "Unavailable"
    NOT_ON_RECORD = "NotOnRecord"
    # Jobs and pods.
    LABEL_INVALID = "LabelInvalid"
    ANNOTATION_INVALID = "AnnotationInvalid"
    MINIMUM_TOO_HIGH = "MinimumTooHigh"
    PRIORITY_TOO_HIGH = "PriorityTooHigh"
    NO_SUCH_PRIORITY = "NoSuchPriority"
    KUEUE = "Kueue"
    NODE_NAME = "NodeName"
    ALREADY_RELEASED = "AlreadyReleased"
    LABEL_REMOVED = "LabelRemoved"
    # Queues.
    QUEUE_INVALID = "QueueInvalid"
    NO_SUCH_PARENT = "NoSuchParent"
    PARENT_CYCLE = "ParentCycle"
    CONTRADICTION = "Contradiction"
    QUEUE_IN_USE = "QueueInUse"


class ReviewError(Exception):
    """The request isn't an AdmissionReview that we can answer: HTTP 400, with this sentence."""


class UserInfo(Struct):
    username: str = ""


class Request(Struct, rename="camel"):
    """One question of the API server, with the fields that we read."""

    uid: Annotated[str, Meta(min_length=1, max_length=256)]
    operation: Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
    namespace: str = ""
    name: str = ""
    user_info: UserInfo = msgspec.field(default_factory=UserInfo)
    dry_run: bool | None = None
    object: Raw = NULL
    old_object: Raw = NULL

    @property
    def user(self) -> str:
        return self.user_info.username


class _Review(Struct, rename="camel"):
    api_version: Literal["admission.k8s.io/v1"]
    kind: Literal["AdmissionReview"]
    request: Request


_decode = msgspec.json.Decoder(_Review).decode


def read(body: bytes) -> Request:
    """The request in an AdmissionReview; ReviewError for anything else."""
    try:
        body.decode()  # all of it: msgspec skips what isn't read, unlooked at, and the audit log would get it
        return _decode(body).request
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise ReviewError(f"This is not an AdmissionReview of admission.k8s.io/v1: {error}") from error


T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], raw: Raw) -> T:
    """An object of the request; ReviewError where it isn't of the kind that the path is for."""
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ReviewError(f"The object of the request can't be read: {error}") from error


def on_one_line(raw: Raw) -> Raw:
    """The same JSON, however it was laid out: a line of the audit log is one line. ReviewError as of `decode`."""
    try:
        return Raw(msgspec.json.format(bytes(raw), indent=-1))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ReviewError(f"The object of the request can't be read: {error}") from error


class Operation(Struct, omit_defaults=True):
    """One operation of a JSON patch."""

    op: Literal["add", "remove"]
    path: str
    value: Any = UNSET


def pointer(*parts: str) -> str:
    """A JSON pointer to a member."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def put(base: str, held: Mapping[str, str] | None, wanted: Mapping[str, str | None]) -> list[Operation]:
    """The operations after which the map of texts at `base` has each of `wanted`, and lacks what is None
    there.

    `held` is the map as it is; None where there is none.
    """
    if held is None:
        members = {key: value for key, value in wanted.items() if value is not None}
        return [Operation("add", base, members)] if members else []
    operations = []
    for key, value in wanted.items():
        if value is None:
            if key in held:
                operations.append(Operation("remove", base + pointer(key)))
        elif held.get(key) != value:
            operations.append(Operation("add", base + pointer(key), value))
    return operations


class Verdict(Struct, frozen=True, kw_only=True):
    """What we say to a request, and what of it goes on record."""

    decision: Decision | None
    """None: nothing of ours is in it; it is allowed, unchanged and unrecorded."""
    reason: str = ""
    message: str = ""
    code: int = 200
    """HTTP's, of a denial."""
    by_facts: bool = False
    """Denied for something outside the request, so that newer facts may change the answer."""
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    queue: str = ""
    seen: Mapping[str, str | int] = {}

    @property
    def allowed(self) -> bool:
        return self.decision is not Decision.REFUSE


def refuse(
    reason: Refusal | reasons.Code,
    message: str,
    *,
    code: int = 403,
    by_facts: bool = False,
    queue: str = "",
    seen: Mapping[str, str | int] | None = None,
) -> Verdict:
    """A denial. The message says what to do."""
    return Verdict(
        decision=Decision.REFUSE,
        reason=reason,
        message=message[:LONGEST_MESSAGE],
        code=code,
        by_facts=by_facts,
        queue=queue[:LONGEST_MESSAGE],
        seen=seen or {},
    )


NOTHING_OF_OURS: Final = Verdict(decision=None)


class _Status(Struct):
    code: int
    message: str
    reason: str = "Forbidden"


class _Response(Struct, rename="camel", omit_defaults=True):
    uid: str
    allowed: bool
    status: _Status | UnsetType = UNSET
    patch_type: str = ""
    patch: bytes = b""  # msgspec writes bytes as base64, which is what the API server wants
    warnings: tuple[str, ...] = ()
    audit_annotations: dict[str, str] = {}


class _Answer(Struct, rename="camel"):
    response: _Response
    api_version: str = "admission.k8s.io/v1"
    kind: str = "AdmissionReview"


_encode = msgspec.json.Encoder().encode


def write(uid: str, verdict: Verdict) -> bytes:
    """The AdmissionReview that answers the request with this uid."""
    annotations = {}
    if verdict.decision is not None:
        annotations["decision"] = str(verdict.decision)
        annotations["id"] = uid  # the API server makes it up for us, and writes it nowhere else
        if verdict.queue:
            annotations["queue"] = verdict.queue
        if verdict.reason:
            annotations["reason"] = verdict.reason
    response = _Response(uid, verdict.allowed, warnings=verdict.warnings, audit_annotations=annotations)
    if not verdict.allowed:
        response.status = _Status(verdict.code, verdict.message)
    elif verdict.patch:
        response.patch_type = "JSONPatch"
        response.patch = _encode(verdict.patch)
    return _encode(_Answer(response))
