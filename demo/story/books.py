"""Chapter 7: the books. What must hold of all that went before, read once more from the API server and its own log."""

import json
from collections import Counter
from pathlib import Path

from demo import work
from demo.stage import Stage
from startgate.kube.kinds import JOBS
from startgate.model import names

CONTROLLER = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.CONTROLLER_ACCOUNT}"


async def play(stage: Stage) -> None:
    """Changes nothing."""
    stage.screen.chapter(7, "The books")
    jobs = [job for team in work.TEAMS for job in await stage.client.list_all(JOBS, team)]
    failed = {job.metadata.name: job.status.failed for job in jobs if job.status.failed}
    stage.claim(
        "no Job had a failure counted, for all the waiting, giving way and killing",
        bool(jobs) and not failed,
        f"{len(jobs)} Jobs of {' and '.join(work.TEAMS)}; failed: {failed or 'none'}",
    )
    lifters = patches(stage.cluster.audit_log)
    stage.claim(
        "by the audit log, nobody but the controller, and Kubernetes itself, has patched pods of the teams",
        lifters[CONTROLLER, True] > 0 and {who for who, taken in lifters if taken} == {CONTROLLER},
        f"{lifters[CONTROLLER, True]} patches by the controller's ServiceAccount were taken; "
        f"{lifters[work.USER, False]} by {work.USER} was refused",
    )


def patches(audit_log: Path) -> Counter[tuple[str, bool]]:
    """How many patches and updates of the teams' pods themselves there were, by user and whether they were taken."""
    counts: Counter[tuple[str, bool]] = Counter()
    for line in audit_log.read_text().splitlines():
        event = json.loads(line)
        about = event.get("objectRef", {})
        if event["verb"] not in ("patch", "update") or event.get("stage") != "ResponseComplete":
            continue
        if about.get("resource") == "pods" and about.get("namespace") in work.TEAMS and not about.get("subresource"):
            taken = event.get("responseStatus", {}).get("code", 500) < 300
            if event["user"]["username"].startswith("system:serviceaccount:kube-system:"):
                continue  # the Job controller takes its finalizer off
            counts[event["user"]["username"], taken] += 1
    return counts
