"""Whether what the cluster's objects say is still kept up to date: a controller leads, by its Lease.

A Gang's reason is the controller's last word; without a controller it stays, and looks current. What always holds:
somebody who may not read the Lease, or a cluster that doesn't answer about it, is told nothing.
"""

import time
from typing import Final

from startgate.cli import output
from startgate.kube.client import Client
from startgate.kube.election import LEASES, LeaseSpec
from startgate.kube.errors import ApiError, KubeError
from startgate.model import names
from startgate.model.objects import rfc3339, timestamp

STALE_AFTER: Final = 60.0
"""Seconds without a renewal: four times as long as a Lease lasts, for clocks that differ a little."""

ASKED_FOR: Final = 5.0


async def stale(client: Client) -> str | None:
    """Why the answer may be out of date; None where it isn't, as far as one may know."""
    spec: LeaseSpec | None = None
    try:
        spec = (await client.get(LEASES, names.LEASE, names.SYSTEM_NAMESPACE, timeout=ASKED_FOR)).spec
    except ApiError as error:
        if not error.not_found:
            return None
    except KubeError:
        return None
    return judged(spec, time.time())


def judged(spec: LeaseSpec | None, now: float) -> str | None:
    """The sentence about this Lease (None: there is none), by our clock; None if somebody leads."""
    so = "the controller doesn't run or can't reach the API server, so this may be out of date."
    if spec is None:
        return f"Nobody has ever led: {so}"
    try:
        last = timestamp(spec.renew_time or "")
    except ValueError:
        return None if spec.holder_identity else f"Nobody leads: {so}"
    if spec.holder_identity and now - last <= STALE_AFTER:
        return None
    return f"Nobody has led since {rfc3339(last)} ({output.age(now - last)} ago): {so}"
