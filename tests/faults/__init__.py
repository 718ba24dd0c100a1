"""Faults on purpose, between our programs and the real API server.

`Proxy` (tcp) stands before any server and knows nothing of what passes: it falls silent, cuts and refuses. `Gateway`
knows requests: it ends TLS, and treats each request and each watch event by rules that a test sets (rules); each
request has a number and a kind in its log (calls). `behind` starts our programs with the gateway in their way.
"""

from tests.faults.behind import behind, kept
from tests.faults.calls import Call, Log, which
from tests.faults.gateway import Gateway
from tests.faults.rules import Cut, Delay, Expire, Hang, Late, Refuse, Rule, Silent, Twice
from tests.faults.tcp import Proxy

__all__ = [
    "Call",
    "Cut",
    "Delay",
    "Expire",
    "Gateway",
    "Hang",
    "Late",
    "Log",
    "Proxy",
    "Refuse",
    "Rule",
    "Silent",
    "Twice",
    "behind",
    "kept",
    "which",
]
