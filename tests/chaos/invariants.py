"""What must hold whatever breaks, checked from outside: by what the API server says and what the audit logs say.

Nothing here knows what was submitted, or what was done to the programs; so it may stand beside any load. Two kinds of
looks: `look` is for any moment, and finds what has been wrong for too long or must never be; `settle` is for a moment
when no change is on its way, awaits that all is as it must be then, and finds what isn't. Always holds: what was found
once is never forgotten, and is told once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from startgate.kube.client import Client
from startgate.kube.kinds import GANGS, JOBS, PODS, QUEUES
from startgate.kube.reflector import Reflector
from startgate.kube.store import Change
from startgate.model import names
from startgate.model.duration import parse_seconds
from startgate.model.gang import Admission, Gang, Phase
from startgate.model.objects import Job, condition
from startgate.model.pods import Pod, pod_of
from startgate.model.queue import Queue
from startgate.model.resources import add, amounts, fits, show
from tests.chaos.audit import AuditLog

MENDS_WITHIN: Final = 40.0
"""Seconds beyond its start timeout in which a gang must be whole again, or gated whole: a lease that has to pass, a
program that has to start, pods that have to go, on a busy machine."""

LOOKS_EACH: Final = 0.2
FAILS: Final = f"{names.SIMULATE}fails"


@dataclass
class Findings:
    """Sentences, by what they are about."""

    half: dict[str, str] = field(default_factory=dict)
    """Gangs of which some members were past the gate and the rest wasn't, or that passed without a record."""
    leaks: dict[str, str] = field(default_factory=dict)
    """Quota, reservations and Gangs that are of nobody; queues over their ceiling."""
    failed: dict[str, str] = field(default_factory=dict)
    """Jobs that had a failure counted which isn't their own."""
    records: dict[str, str] = field(default_factory=dict)
    """What the audit log doesn't say."""

    def add(self, other: Findings) -> None:
        """Takes in what isn't known yet."""
        for mine, theirs in zip(self._kinds(), other._kinds(), strict=True):
            for key, sentence in theirs.items():
                mine.setdefault(key, sentence)

    def sentences(self) -> list[str]:
        """All of them."""
        return [sentence for kind in self._kinds() for sentence in kind.values()]

    def _kinds(self) -> tuple[dict[str, str], ...]:
        return self.half, self.leaks, self.failed, self.records


@dataclass(frozen=True)
class Members:
    """The pods of one gang that live and are to stay."""

    job: Job
    past: int
    bound: int
    gated: int
    minimum: int

    @property
    def half(self) -> bool:
        """Neither whole nor gated whole."""
        return self.past > 0 and self.bound < self.minimum

    @property
    def name(self) -> str:
        return f"{self.job.metadata.namespace}/{self.job.metadata.name}"

    def __str__(self) -> str:
        return f"{self.bound} bound, {self.past} past the gate, {self.gated} at it, {self.minimum} needed"


class Outside:
    """See the module. `logs`: the audit logs of all programs, read from where they end now."""

    def __init__(self, client: Client, logs: Iterable[Path], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.found = Findings()
        self._logs = [AuditLog(path) for path in logs]
        self._clock = clock
        self._pods = Reflector(client, PODS, view=pod_of, on_change=self._pod)
        self._jobs = Reflector(client, JOBS, on_change=self._job)
        self._gangs = Reflector(client, GANGS, on_change=self._gang)
        self._queues = Reflector(client, QUEUES)
        self._by_owner: dict[str, dict[str, Pod]] = {}
        self._by_uid: dict[str, Job] = {}
        self._half_since: dict[str, float] = {}
        self._told: dict[str, list[tuple[int, Admission | None]]] = {}
        """By owner uid: versions of its Gang, with the admission that stood in them."""
        self._lifted: list[tuple[Pod, bool]] = []
        """Pods whose gate was opened, as they were then, and whether its Job needed no more than one at once then."""

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Looks all along, for as long as the context lasts."""
        reflectors = (self._queues, self._gangs, self._jobs, self._pods)
        tasks = [asyncio.create_task(reflector.run()) for reflector in reflectors]
        try:
            for reflector in reflectors:
                await reflector.wait_synced()
            tasks.append(asyncio.create_task(self._look_on()))
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_on(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOKS_EACH)

    def look(self) -> None:
        """Finds what has been wrong for too long, and what must never be."""
        now = self._clock()
        half = {each.job.metadata.uid: each for each in self._gangs_of_jobs() if each.half}
        self._half_since = {uid: self._half_since.get(uid, now) for uid in half}
        for uid, since in self._half_since.items():
            if now - since > _start_timeout(half[uid].job) + MENDS_WITHIN:
                sentence = f"{half[uid].name} is half a gang for {now - since:.0f} s: {half[uid]}"
                self.found.half.setdefault(uid, sentence)
        self.found.leaks |= {key: it for key, it in self._over().items() if key not in self.found.leaks}

    async def settle(self, within: float) -> Findings:
        """What isn't as it must be when nothing changes any more, after so many seconds; it is in `found` as well."""
        end = self._clock() + within
        while True:
            wrong = self._unsettled()
            if not wrong.sentences() or self._clock() > end:
                break
            await asyncio.sleep(LOOKS_EACH)
        self._check_lifts(wrong)
        self._check_admissions(wrong)
        self.look()
        self.found.add(wrong)
        return wrong

    def _unsettled(self) -> Findings:
        wrong = Findings()
        for each in self._gangs_of_jobs():
            if each.half:
                wrong.half[each.job.metadata.uid] = f"{each.name} is half a gang: {each}"
        wrong.leaks = dict(self._leaks())
        for log in self._logs:
            log.read()
            for (key, decision), record in log.open.items():
                about = f"{record.namespace}/{record.gang}"
                wrong.records[f"{decision} {key}"] = f"{log.path.parent.name}: {decision} of {about} has no effect"
            wrong.records |= {fault: fault for fault in log.faults}
        return wrong

    # --- gangs --------------------------------------------------------------------------------------------------

    def _gangs_of_jobs(self) -> Iterator[Members]:
        for uid, job in self._by_uid.items():
            if _queue_of(job) and not _ended(job) and job.metadata.deletion_timestamp is None:
                yield self._members(job, self._by_owner.get(uid, {}).values())

    @staticmethod
    def _members(job: Job, pods: Iterable[Pod]) -> Members:
        alive = [pod for pod in pods if not pod.ended and not pod.deleting]
        return Members(
            job,
            past=sum(1 for pod in alive if not pod.gated),
            bound=sum(1 for pod in alive if pod.bound),
            gated=sum(1 for pod in alive if pod.gated),
            minimum=_minimum(job),
        )

    def _check_lifts(self, wrong: Findings) -> None:
        """No gate opens before the admission is on record; a gang of one has its record in the opening."""
        for pod, by_itself in self._lifted:
            assert pod.owner
            told = self._told.get(pod.owner.uid, [])
            before = [admission for version, admission in told if version < pod.version]
            after = [admission for version, admission in told if version > pod.version and admission]
            job = self._by_uid.get(pod.owner.uid)
            alone = after[0].slots == 1 if after and after[0] else job is None or _minimum(job) <= 1
            if not (before and before[-1]) and not (alone or by_itself):
                sentence = f"the gate of {pod.namespace}/{pod.name} was opened with no admission on record"
                wrong.half.setdefault(f"unrecorded {pod.owner.uid}", sentence)
        self._lifted.clear()

    def _check_admissions(self, wrong: Findings) -> None:
        """Each admission that stood in a Gang was in the audit log as an intent."""
        known = {each for log in self._logs for each in log.admitted}
        for uid, told in self._told.items():
            for _, admission in told:
                if admission and admission.id not in known and not admission.id.startswith("found-"):
                    wrong.records[admission.id] = f"the admission {admission.id} of {uid} isn't in the audit log"
        living = self._by_uid.keys()
        self._told = {uid: told[-1:] for uid, told in self._told.items() if uid in living}

    # --- leaks --------------------------------------------------------------------------------------------------

    def _used(self) -> dict[str, Mapping[str, int]]:
        """By queue: what its own pods ask for that have passed the gate."""
        used: dict[str, Mapping[str, int]] = {}
        for pod in self._pods.store:
            if pod.queue and not pod.gated and not pod.ended:
                job = self._by_uid.get(pod.owner.uid) if pod.owner else None
                queue = _queue_of(job) if job else pod.queue
                used[queue] = add(used.get(queue, {}), dict(pod.shape.request))
        return used

    def _sums(self) -> dict[str, Mapping[str, int]]:
        """The same with what is used below it."""
        used = self._used()
        sums: dict[str, Mapping[str, int]] = {}
        parents = {queue.metadata.name: queue.spec.parent for queue in self._queues.store}
        for name, amount in used.items():
            at: str | None = name
            seen: set[str] = set()
            while at and at not in seen:
                seen.add(at)
                sums[at] = add(sums.get(at, {}), amount)
                at = parents.get(at)
        return sums

    def _over(self) -> dict[str, str]:
        """Queues whose pods ask for more than their ceiling."""
        sums = self._sums()
        over = {}
        for queue in self._queues.store:
            ceiling = amounts(queue.spec.capability)
            used = {what: much for what, much in sums.get(queue.metadata.name, {}).items() if what in ceiling}
            if not fits(used, ceiling):
                name = queue.metadata.name
                over[f"over {name}"] = f"queue {name} uses {show(used)}, above its ceiling"
        return over

    def _leaks(self) -> Iterator[tuple[str, str]]:
        sums = self._sums()
        for queue in self._queues.store:
            yield from _books(queue, sums.get(queue.metadata.name, {}))
        gangs = {gang.metadata.controller.uid: gang for gang in self._gangs.store if gang.metadata.controller}
        for gang in self._gangs.store:
            owner, about = gang.metadata.controller, f"{gang.metadata.namespace}/{gang.metadata.name}"
            if owner is None or (owner.kind == "Job" and owner.uid not in self._by_uid):
                yield gang.metadata.uid, f"Gang {about} has no owner any more"
            if gang.status.claim and gang.status.phase not in (Phase.WAITING, Phase.PARKED):
                yield gang.metadata.uid, f"Gang {about} is {gang.status.phase}, and others are to make room for it"
        for uid, job in self._by_uid.items():
            if _queue_of(job) and not _ended(job) and uid not in gangs:
                yield uid, f"Job {job.metadata.namespace}/{job.metadata.name} has no Gang"
        for pod in self._pods.store:
            if pod.queue and pod.gated and pod.nominated and not pod.ended:
                yield pod.uid, f"{pod.nominated} is reserved for pod {pod.namespace}/{pod.name}, which is at the gate"

    # --- the watches' side --------------------------------------------------------------------------------------

    def _pod(self, change: Change[Pod]) -> None:
        old, new = change.old, change.new
        either = new or old
        if either is None or either.owner is None:
            return
        held = self._by_owner.setdefault(either.owner.uid, {})
        if new is None:
            held.pop(either.uid, None)
            if not held:
                del self._by_owner[either.owner.uid]
            return
        held[new.uid] = new
        if old is not None and old.gated and not new.gated:
            job = self._by_uid.get(either.owner.uid)
            self._lifted.append((new, job is not None and _minimum(job) <= 1))

    def _job(self, change: Change[Job]) -> None:
        if change.new is None:
            if change.old is not None:
                self._by_uid.pop(change.old.metadata.uid, None)
            return
        job = change.new
        self._by_uid[job.metadata.uid] = job
        if _queue_of(job) and FAILS not in job.spec.template.metadata.annotations:
            ended = condition(job.status.conditions, "Failed")
            if job.status.failed or ended:
                name = f"{job.metadata.namespace}/{job.metadata.name}"
                self.found.failed.setdefault(job.metadata.uid, f"Job {name} has {job.status.failed} failures counted")

    def _gang(self, change: Change[Gang]) -> None:
        gang = change.new
        if gang is not None and (owner := gang.metadata.controller) is not None:
            admission = gang.status.admission
            told = (int(gang.metadata.resource_version), admission if isinstance(admission, Admission) else None)
            self._told.setdefault(owner.uid, []).append(told)


def _books(queue: Queue, used: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Whether its status says what its pods ask for."""
    said = {what: much for what, much in amounts(queue.status.allocated).items() if much}
    real = {what: much for what, much in used.items() if much}
    name = queue.metadata.name
    if said != real:
        yield f"books {name}", f"queue {name} says that {show(said)} is in use, and its pods ask for {show(real)}"
    if queue.status.reserved:
        yield f"held {name}", f"queue {name} holds {queue.status.reserved} for pods that don't come"


def _queue_of(job: Job) -> str:
    return job.metadata.labels.get(names.QUEUE, "")


def _ended(job: Job) -> bool:
    return any(condition(job.status.conditions, kind) for kind in ("Complete", "Failed", "SuccessCriteriaMet"))


def _minimum(job: Job) -> int:
    """How many of its pods start together, now (docs/how-to/label-a-job.md)."""
    parallelism = 1 if job.spec.parallelism is None else job.spec.parallelism
    label = job.metadata.labels.get(names.MIN_AVAILABLE)
    left = parallelism if job.spec.completions is None else job.spec.completions - job.status.succeeded
    return max(0, min(parallelism, left, parallelism if label is None else int(label)))


def _start_timeout(job: Job) -> float:
    said = job.metadata.annotations.get(names.START_TIMEOUT)
    return names.DEFAULT_START_TIMEOUT if said is None else parse_seconds(said)
