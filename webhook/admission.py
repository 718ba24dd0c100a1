"""From the bytes of a review to the bytes of its answer: decode, look up, judge, record, encode.

The one place where rules, facts and the audit log meet. What always holds: a decision is on record before it
is answered, dry runs aside, which leave no trace; what can't be recorded isn't allowed; a denial that rests
on facts rests on facts read afresh; whatever comes in, the outcome is an answer or a ReviewError.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from startgate.audit.journal import Journal, JournalError
from startgate.audit.record import Stage
from startgate.model import names
from startgate.model.queue import QueueSpec
from webhook import jobs, metrics, pods, queues, review
from webhook.facts import FactsError, Lookup
from webhook.objects import Job, Pod, read_job, read_pod
from webhook.review import NOTHING_OF_OURS, Refusal, Request, ReviewError, Verdict, refuse
from webhook.submission import Facts

log = logging.getLogger(__name__)

NO_FACTS: Final = Facts(queue=None)
"""For verdicts that look at none."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What a request is about, for the record."""

    job: str = ""
    pod: str = ""
    gang: str = ""
    queue: str = ""
    old: Raw | UnsetType = UNSET
    new: Raw | UnsetType = UNSET


Judged = tuple[Verdict, Subject]


class Admission:
    """Answers reviews. `controller`: the user name of the controller's ServiceAccount."""

    def __init__(
        self, lookup: Lookup, journal: Journal, *, controller: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._lookup = lookup
        self._journal = journal
        self._controller = controller
        self._clock = clock
        self._judges: dict[str, Callable[[Request], Awaitable[Judged]]] = {
            "/jobs": self._job,
            "/pods": self._pod,
            "/queues": self._queue,
        }

    @property
    def paths(self) -> frozenset[str]:
        """Where reviews are taken."""
        return frozenset(self._judges)

    async def answer(self, path: str, body: bytes) -> bytes:
        """The AdmissionReview that answers the one in `body`. ReviewError if it is none."""
        started = time.perf_counter()
        request = review.read(body)
        try:
            verdict, subject = await self._judges[path](request)
        except ReviewError as error:
            verdict, subject = refuse(Refusal.MALFORMED, str(error), code=400), Subject()
        except FactsError as error:
            verdict, subject = refuse(Refusal.UNAVAILABLE, str(error), code=503), Subject()
        if verdict.decision is not None and not request.dry_run:
            verdict = self._record(request, verdict, subject)
        metrics.REVIEWS.labels(path, verdict.decision or "None", verdict.reason).inc()
        metrics.SECONDS.labels(path).observe(time.perf_counter() - started)
        return review.write(request.uid, verdict)

    async def _job(self, request: Request) -> Judged:
        if request.operation == "CREATE":
            job = read_job(request.object)
            verdict = await self._with_facts(
                lambda facts: jobs.create(job, request.namespace, facts),
                job.queue,
                request.namespace,
                job.spec.template.spec.priority_class_name,
            )
            if verdict.decision is not None and verdict.allowed and not request.dry_run:
                self._lookup.let_in(job.queue, jobs.comes_to_wait(job))
        elif request.operation == "UPDATE":
            job = read_job(request.object)
            verdict = await self._job_update(request, read_job(request.old_object), job)
        else:
            return NOTHING_OF_OURS, Subject()
        name = job.metadata.name
        if not name:  # the API server makes it up after us
            return verdict, Subject(job=f"{job.metadata.generate_name}*")
        return verdict, Subject(job=name, gang=names.gang_of_job(name))

    async def _job_update(self, request: Request, old: Job, new: Job) -> Verdict:
        phase = None
        if jobs.needs_phase(old, new):
            phase = await self._lookup.phase(request.namespace, new.metadata.name, new.metadata.uid)
        return await self._with_facts(
            lambda facts: jobs.update(
                old, new, request.namespace, facts, phase=phase, ours=request.user == self._controller
            ),
            new.queue if new.queue != old.queue else "",
            request.namespace,
            new.spec.template.spec.priority_class_name,
        )

    async def _pod(self, request: Request) -> Judged:
        if request.operation != "CREATE":
            return NOTHING_OF_OURS, Subject()
        pod = read_pod(request.object)
        verdict = await self._with_facts(
            lambda facts: pods.create(pod, request.namespace, facts),
            pod.labels.get(names.QUEUE, "") if pods.needs_facts(pod) else "",
            request.namespace,
            pod.spec.priority_class_name,
        )
        return verdict, _pod_subject(pod)

    async def _with_facts(
        self, judge: Callable[[Facts], Verdict], queue: str, namespace: str, priority_class: str
    ) -> Verdict:
        """Judges by the caches, and again by what is read afresh if they are silent or speak against it.

        Without a queue nothing outside the request counts.
        """
        if not queue:
            return judge(NO_FACTS)
        facts = self._lookup.cached(queue, namespace, priority_class)
        if facts is not None:
            verdict = judge(facts)
            if not verdict.by_facts:
                return verdict
        return judge(await self._lookup.live(queue, namespace, priority_class))

    async def _queue(self, request: Request) -> Judged:
        if request.operation not in ("CREATE", "UPDATE", "DELETE"):
            return NOTHING_OF_OURS, Subject()
        old = None if request.operation == "CREATE" else review.decode(_queue_decoder, request.old_object)
        new = None if request.operation == "DELETE" else review.decode(_queue_decoder, request.object)
        name = request.name or (new.metadata.name if new is not None else "")  # generateName: in the object only
        judge = _queue_judge(name, old, new)
        cached = self._lookup.cached_queues()
        verdict = judge(cached) if cached is not None else None
        if verdict is None or verdict.by_facts:
            verdict = judge(await self._lookup.live_queues())
        return verdict, Subject(
            queue=name,
            old=UNSET if old is None else review.on_one_line(old.spec),
            new=UNSET if new is None else review.on_one_line(new.spec),
        )

    def _record(self, request: Request, verdict: Verdict, subject: Subject) -> Verdict:
        decision = verdict.decision
        assert decision is not None
        try:
            self._journal.write(
                Stage.VERDICT,
                decision,
                request.uid,
                at=self._clock(),
                user=request.user,
                namespace=request.namespace,
                gang=subject.gang,
                job=subject.job,
                pod=subject.pod,
                queue=verdict.queue or subject.queue,
                reason=verdict.reason,
                message=verdict.message,
                seen=verdict.seen,
                old=subject.old,
                new=subject.new,
            )
        except JournalError as error:
            metrics.JOURNAL_FAILURES.inc()
            log.critical("Denied, since it can't be recorded: %s", error)
            return refuse(
                Refusal.NOT_ON_RECORD,
                f"Startgate decides nothing that it can't put on record, and {error}; tell its admin",
                code=503,
            )
        return verdict


_queue_decoder = msgspec.json.Decoder(queues.Queue)
_spec_decoder = msgspec.json.Decoder(QueueSpec)


def _queue_judge(name: str, old: queues.Queue | None, new: queues.Queue | None) -> Callable[[queues.Queues], Verdict]:
    if new is None:
        assert old is not None
        counts = old.status
        return lambda known: queues.delete(name, counts.waiting, counts.running, known)
    try:
        spec = review.decode(_spec_decoder, new.spec)
    except ReviewError as error:
        invalid = refuse(Refusal.QUEUE_INVALID, f"spec: {error.__cause__}", code=422, queue=name)
        return lambda _: invalid
    before = None if old is None else _readable_spec(old.spec)
    return lambda known: queues.write(name, before, spec, known)


def _readable_spec(raw: Raw) -> QueueSpec:
    """The spec before; one that can't be read any more counts as empty, so that it can be mended."""
    try:
        return review.decode(_spec_decoder, raw)
    except ReviewError:
        return QueueSpec()


def _pod_subject(pod: Pod) -> Subject:
    owner = pod.metadata.controller
    job = owner.name if owner is not None and pod.of_job else ""
    return Subject(
        pod=pod.metadata.name or f"{pod.metadata.generate_name}*",
        job=job,
        gang=names.gang_of_job(job) if job else "",
    )
