"""What is asked of the API server, request by request: who asks for what, and what became of it.

Always holds: numbers follow the order in which requests came; a write has a number among the writes of its program,
too, which is the same in each run in which that program writes the same things. What a write is for (`kind`) is read
from its body, in the words of ARCHITECTURE.md's protocol: that is what crash points are named by.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

METHODS: Final[Mapping[str, str]] = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

PATH: Final = re.compile(
    r"(?:/api/v1|/apis/(?P<group>[^/]+)/[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<subresource>.+))?)?"
)
"""As the API's URLs are made (Kubernetes API concepts, "Resource URIs")."""


ALWAYS: Final[Mapping[str, str]] = {
    "leases": "lease",
    "events": "event",
    "pods/eviction": "evict",
    "queues/status": "queue",
}
"""What a write to these is for."""


@dataclass(eq=False, slots=True)
class Call:
    """One request. Its end is known when `took` is set."""

    number: int
    program: str
    """Whose kubeconfig it came by."""
    verb: str
    """get, list, watch, create, update, patch, delete; of other paths the method."""
    path: str
    agent: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    write: int = 0
    """Number among the writes of its program, from 1; 0: it is a read."""
    kind: str = ""
    """What it is for: "lift", "record", "lease" and so on; else verb and resource."""
    at: float = 0.0
    """Seconds on the proxy's clock."""
    took: float | None = None
    """Seconds to its end."""
    status: int = 0
    """What the program was answered; 0: nothing."""
    reached: bool = False
    """Whether it was passed to the API server."""
    fault: str = ""
    """What was done to it."""

    @property
    def what(self) -> str:
        """As "pods", "pods/status"."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def call_of(number: int, program: str, method: str, path: str, query: Mapping[str, str], body: bytes) -> Call:
    """The call that this request is; writes have no number yet."""
    found = PATH.fullmatch(path)
    if found is None:
        return Call(number, program, method.lower(), path, kind=f"{method.lower()} {path}")
    part = {key: value or "" for key, value in found.groupdict().items()}
    if method == "GET":
        verb = "get" if part["name"] else "list"
        if query.get("watch", "") in ("1", "true"):
            verb = "watch"
    else:
        verb = METHODS.get(method, method.lower())
    call = Call(
        number,
        program,
        verb,
        path,
        resource=part["resource"],
        subresource=part["subresource"],
        namespace=part["namespace"],
        name=part["name"],
    )
    call.kind = _purpose(call, body)
    return call


def _purpose(call: Call, body: bytes) -> str:
    plain = f"{call.verb} {call.what}"
    if call.verb in ("get", "list", "watch"):
        return plain
    if call.what in ALWAYS:
        return ALWAYS[call.what]
    said: dict[str, Any] = {}
    if call.verb in ("patch", "create") and (call.what, call.verb) != ("jobs", "create"):
        with suppress(ValueError):
            said = json.loads(body)
    spec, status = said.get("spec") or {}, said.get("status") or {}
    match call.what:
        case "pods" if call.verb == "patch" and "schedulingGates" in spec:
            return "lift"
        case "pods/status" if "nominatedNodeName" in status:
            return "nominate" if status["nominatedNodeName"] else "unreserve"
        case "jobs" if call.verb == "patch":
            return _of_job(spec)
        case "gangs" if said:
            return _of_gang(status)
    return plain


def _of_job(spec: Mapping[str, Any]) -> str:
    if "suspend" in spec:
        return "suspend" if spec["suspend"] else "resume"
    return "prepare" if "template" in spec else "unmark"


def _of_gang(status: Mapping[str, Any]) -> str:
    if status.get("admission"):
        return "record"
    if status.get("claim"):
        return "pledge"
    return "forget" if "admission" in status else "tell"


Match = Callable[[Call], bool]


def which(
    *,
    program: str = "",
    verb: str = "",
    what: str = "",
    kind: str = "",
    namespace: str = "",
    name: str = "",
    agent: str = "",
    writes: bool | None = None,
) -> Match:
    """Those calls of which all that is given is so. `program`: its beginning, as "startgate-controller"; `what`: as
    "pods/status"; `agent`: a part of it.
    """

    def matches(call: Call) -> bool:
        return (
            call.program.startswith(program)
            and verb in ("", call.verb)
            and what in ("", call.what)
            and kind in ("", call.kind)
            and namespace in ("", call.namespace)
            and name in ("", call.name)
            and agent in call.agent
            and writes in (None, bool(call.write))
        )

    return matches


@dataclass
class Log:
    """All calls, oldest first; the newest `maxlen` of them."""

    calls: deque[Call] = field(default_factory=lambda: deque(maxlen=200_000))
    writes: dict[str, int] = field(default_factory=dict)
    """By program: how many writes have come."""
    numbered: int = 0

    def enter(self, method: str, call: Call) -> None:
        """A request has come."""
        self.numbered = call.number
        if method not in ("GET", "HEAD", "OPTIONS"):
            call.write = self.writes[call.program] = self.writes.get(call.program, 0) + 1
        self.calls.append(call)

    def __iter__(self) -> Iterator[Call]:
        return iter(tuple(self.calls))

    def of(self, match: Match, since: int = 0) -> list[Call]:
        """Those that match, with a number above `since`."""
        return [call for call in self if call.number > since and match(call)]

    def most_within(self, seconds: float, match: Match, since: int = 0) -> int:
        """How many calls at most came in any span of so many seconds."""
        times: deque[float] = deque()
        most = 0
        for call in self.of(match, since):
            times.append(call.at)
            while times[0] < call.at - seconds:
                times.popleft()
            most = max(most, len(times))
        return most
