"""`kubectl gang why`: the one answer to "why doesn't it start?", and where there is no Gang, why there is none.

The sentence is the Gang's own, word for word; nothing here has an opinion of its own about quota or nodes.
"""

import time
from typing import Final

from startgate.cli import connect, leader, output
from startgate.cli.failure import NOT_FOUND, USAGE, VerbError, no_such_kind
from startgate.cli.views import Document, GangView, view
from startgate.engine.world import Rule
from startgate.kube.client import Client
from startgate.kube.errors import ApiError
from startgate.kube.kinds import GANGS, JOBS, Kind, T
from startgate.model import names
from startgate.model.gang import MOST_TRANSITIONS, Phase
from startgate.model.objects import Job, condition, timestamp
from startgate.model.reasons import Code

RULES: Final = {
    Rule.GUARANTEE: "it is within its queue's guarantee, and theirs are above their own",
    Rule.DESERVED: "it is within what its queue deserves, and theirs are above that",
    Rule.PRIORITY: "its priority is higher than theirs",
}
"""Why others have to give way for it."""

JOB: Final = frozenset({"job", "jobs", "job.batch", "jobs.batch"})
GANG: Final = frozenset({"gang", "gangs", "gg", f"gang.{names.GROUP}", f"gangs.{names.GROUP}"})


class Answer(Document):
    """The document of `why`. Without a Gang, `message` says why there is none."""

    namespace: str
    job: str | None
    gang: GangView | None
    message: str
    stale: str | None


class Asked(Document):
    """What the command line named: a Job, a Gang, or a name that may be of either."""

    job: str | None
    gang: str | None


def asked(text: str) -> Asked:
    """Reads NAME, job/NAME or gang/NAME."""
    kind, slash, name = text.rpartition("/")
    if not name or "/" in kind or (slash and kind not in JOB | GANG):
        raise VerbError(USAGE, f"why takes NAME, job/NAME or gang/NAME, and {text!r} is none of them.")
    return Asked(job=None if kind in GANG else name, gang=None if kind in JOB else name)


async def read(target: connect.Target, namespace: str | None, wanted: Asked) -> Answer:
    """The answer; VerbError where there is nothing to say anything about."""
    async with connect.connected(target) as client:
        where = namespace or client.namespace
        candidates = [names.gang_of_job(wanted.job)] if wanted.job else []
        candidates += [wanted.gang] if wanted.gang else []
        for name in candidates:
            if gang := await _find(client, GANGS, name, where):
                found = view(gang)
                job = found.owner.name if found.owner and found.owner.kind == "Job" else None
                stale = await leader.stale(client)
                return Answer(namespace=where, job=job, gang=found, message=found.message, stale=stale)
        if wanted.job and (owner := await _find(client, JOBS, wanted.job, where)):
            stale = await leader.stale(client)
            return Answer(namespace=where, job=wanted.job, gang=None, message=unseen(owner), stale=stale)
    what = " or ".join(kind for kind, name in (("Job", wanted.job), ("Gang", wanted.gang)) if name)
    raise VerbError(
        NOT_FOUND,
        f"There is no {what} named {wanted.job or wanted.gang} in namespace {where}; "
        "kubectl gang list -A shows all gangs, -n chooses a namespace.",
    )


def unseen(job: Job) -> str:
    """Why a Job has no Gang."""
    name = job.metadata.name
    queue = job.metadata.labels.get(names.QUEUE) or job.spec.template.metadata.labels.get(names.QUEUE)
    ended = next((kind for kind in ("Complete", "Failed") if _is_true(job, kind)), None)
    if ended is not None:
        return f"Job {name} has ended ({ended}) and has no Gang; there is nothing that it waits for"
    if queue is None:
        return (
            f"Job {name} has no label {names.QUEUE}, so Startgate leaves it alone and kube-scheduler places its pods "
            "one by one; label it with the name of a queue to have them start together"
        )
    return (
        f"Job {name} asks for queue {queue} and has no Gang yet; the controller makes one as soon as it sees the Job, "
        f"so if this stays, look at Deployment {names.CONTROLLER_ACCOUNT} in namespace {names.SYSTEM_NAMESPACE}"
    )


def show(answer: Answer) -> None:
    """As sentences and facts."""
    output.doubt(answer.stale)
    gang = answer.gang
    if gang is None:
        output.line(answer.message)
        return
    now = time.time()
    owner = f"{gang.owner.kind} {gang.owner.name}" if gang.owner else f"Gang {gang.name}"
    style = output.STYLES.get(gang.phase, "")
    reason = f": {gang.reason}" if gang.reason and gang.reason != gang.phase else ""
    output.line(f"{owner} in namespace {gang.namespace} is {gang.phase}{reason}", style)
    if gang.message:
        output.line(f"  {gang.message}")
    for more in (_before(gang, now), _joining(gang)):
        if more:
            output.line(f"  {more}")
    output.line("")
    output.facts(
        [
            ("Gang", gang.name),
            ("Queue", gang.queue),
            ("Priority", str(gang.priority)),
            ("Pods", _pods(gang)),
            ("Missing", ", ".join(f"{resource} {amount}" for resource, amount in gang.shortage.items())),
            ("Since", _since(gang, now)),
            *_course(gang, now),
            ("Making room", _making_room(gang, now)),
            ("Admitted", _admitted(gang)),
            ("Gave way", _gave_way(gang, now)),
            ("Taken back", _taken_back(gang)),
            ("Conditions", ", ".join(f"{each.type}={each.status}" for each in gang.conditions)),
            *_history(gang),
        ]
    )


def _before(gang: GangView, now: float) -> str:
    """To whom it gave way, as long as it waits for that; its own sentence says what it waits for by now."""
    if gang.yielded is None or gang.admission or gang.message == gang.yielded.message:
        return ""
    return f"{_ago(gang.yielded.at, now) or 'before this,'} it {gang.yielded.message}"


def _gave_way(gang: GangView, now: float) -> str:
    """When it did, and to whom where no sentence above says it."""
    if gang.yielded is None:
        return ""
    said = gang.yielded.reason
    if gang.admission:
        said += f": {gang.yielded.message}"
    return f"{_time(gang.yielded.at, now)}, {said}"


def _making_room(gang: GangView, now: float) -> str:
    """Who is on the way out for it."""
    made = gang.claim
    if made is None or gang.reason != Code.MAKING_ROOM:
        return ""
    rule = f", since {RULES[Rule(made.rule)]}" if made.rule in RULES else ""
    return f"{', '.join(made.victims)}, from {_time(made.at, now)} on{rule} (audit id {made.id})"


def _time(at: str, now: float) -> str:
    ago = _ago(at, now)
    return f"{at} ({ago})" if ago else at


def _ago(at: str, now: float) -> str:
    """How long ago that is, if it can be read."""
    try:
        return f"{output.age(now - timestamp(at))} ago"
    except ValueError:
        return ""


def _joining(gang: GangView) -> str:
    """What the gang's sentence leaves out once enough of it runs."""
    rest = gang.counts.gated
    if gang.reason != Code.RUNNING or not rest:
        return ""
    who = "1 more pod waits" if rest == 1 else f"{rest} more pods wait"
    made = gang.admission
    only = ",".join(f"{key}={value}" for key, value in made.node_selector.items()) if made else ""
    nodes = f"the nodes with {only}" if only else "nodes"
    return f"{who} to join, and will as far as quota and {nodes} have room"


def _course(gang: GangView, now: float) -> list[tuple[str, str]]:
    """Of a gang that has ended: when, and how long it waited and ran, as far as its history goes back."""
    if gang.phase != Phase.FINISHED or not gang.transitions:
        return []
    ended = ("Ended", _time(gang.transitions[-1].at, now))
    if len(gang.transitions) >= MOST_TRANSITIONS:  # what was before is forgotten
        return [ended]
    spans: dict[str, float] = {}
    phase, began = str(Phase.WAITING), gang.since or gang.transitions[0].at
    try:
        for each in gang.transitions:
            spans[phase] = spans.get(phase, 0.0) + timestamp(each.at) - timestamp(began)
            phase, began = each.phase, each.at
    except ValueError:
        return [ended]
    if Phase.RUNNING not in spans:
        return [ended]
    waited = sum(seconds for phase, seconds in spans.items() if phase not in (Phase.RUNNING, Phase.FINISHED))
    return [("Waited", output.age(waited)), ("Ran", output.age(spans[Phase.RUNNING])), ended]


def _pods(gang: GangView) -> str:
    counts = gang.counts
    if gang.phase == Phase.FINISHED and not (counts.bound or counts.terminating):
        return f"none any more; at least {gang.min_available} had to start together"
    parts = [f"{gang.bound or f'0/{gang.pods}'} bound"]
    parts += [f"{counts.gated} at the gate"] if counts.gated else []
    parts += [f"{counts.pending} past it without a node"] if counts.pending else []
    parts += [f"{counts.terminating} terminating"] if counts.terminating else []
    return f"{', '.join(parts)}; at least {gang.min_available} start together"


def _since(gang: GangView, now: float) -> str:
    return "" if gang.since is None else _time(gang.since, now)


def _admitted(gang: GangView) -> str:
    made = gang.admission
    if made is None:
        return ""
    gathering = ", its pods are being made" if made.gathering else ""
    return f"{made.at} for {made.slots} pods{gathering} (audit id {made.id})"


def _taken_back(gang: GangView) -> str:
    if not gang.taken_back:
        return ""
    later = f"; not tried again before {gang.not_before}" if gang.not_before else ""
    return f"{gang.taken_back} times{later}"


def _history(gang: GangView) -> list[tuple[str, str]]:
    return [
        (
            "History" if number == 0 else "",
            f"{each.at}  {each.phase}{f' ({each.reason})' if each.reason and each.reason != each.phase else ''}",
        )
        for number, each in enumerate(gang.transitions)
        if len(gang.transitions) > 1 or each.phase != Phase.WAITING
    ]


def _is_true(job: Job, kind: str) -> bool:
    found = condition(job.status.conditions, kind)
    return found is not None and found.status == "True"


async def _find(client: Client, kind: Kind[T], name: str, namespace: str) -> T | None:
    try:
        return await client.get(kind, name, namespace)
    except ValueError:  # no name that an object could have
        return None
    except ApiError as error:
        if error.not_found and not no_such_kind(error):
            return None
        raise
