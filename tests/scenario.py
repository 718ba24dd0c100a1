"""Scenario files: what is in one, and whether what happened is what it expects.

A file is a small story of a cluster: manifests as `kubectl gang simulate` takes them, and one document of kind
Scenario that says what has to come of them (tests/scenarios/README.md has the format). Both runners read files and
judge stories here, so that the simulator and the real control plane are held to the same words.

What always holds: an unknown word is an error, and so is an expectation that no story could fail; the order of two
events is never guessed from their times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from msgspec import UNSET, Struct, UnsetType

from startgate.model import names
from startgate.model.duration import DurationError, parse_seconds
from startgate.model.gang import Phase
from startgate.model.quantity import format_amount
from startgate.model.reasons import Code
from startgate.model.resources import amount

DIRECTORY: Final = Path(__file__).parent / "scenarios"
API_VERSION: Final = "simulate.startgate.dev/v1"
SIMULATE: Final = "simulate.startgate.dev"
PATIENCE: Final = "10m"
"""The controller's, where a scenario doesn't say."""
SLACK: Final = 1.0
"""Seconds: the times in objects have no parts of a second, so on a real cluster a time limit can be over that early."""

Manifest = dict[str, Any]


class ScenarioError(ValueError):
    """Not a scenario; the message says what is wrong with the file."""


class Event(StrEnum):
    """What can happen to a gang, as `kubectl gang simulate` calls it."""

    WAITING = "Waiting"
    RELEASED = "Released"
    RECLAIMED = "Reclaimed"
    PREEMPTED = "Preempted"
    TAKEN_BACK = "TakenBack"
    FINISHED = "Finished"


@dataclass(frozen=True, kw_only=True)
class Happening:
    """One event of a story."""

    at: float
    """Seconds since the story began."""
    order: int
    """Greater for what came later."""
    gang: str
    event: Event
    reason: str = ""
    message: str = ""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """How many pods went to which node."""

    def __str__(self) -> str:
        went = ", ".join(f"{count} on {node}" for node, count in sorted(self.nodes.items()))
        said = " ".join(filter(None, (self.reason, went, self.message)))
        return f"{self.at:8.1f}  {self.gang:24} {self.event:10} {said}"


class Written(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A part of a Scenario document."""


class Expectation(Written, frozen=True, kw_only=True):
    """One line under `expect`: an event that happens, or that never does."""

    gang: str = ""
    event: Event | None = None
    never: Event | None = None
    reason: Code | None = None
    says: str = ""
    nth: int | None = None
    count: int | None = None
    at: str = ""
    within: str = ""
    before: str = ""
    after: str = ""
    pods: int | None = None
    nodes: dict[str, int] = {}

    def __str__(self) -> str:
        said = {key: value for key, value in msgspec.to_builtins(self).items() if value not in (None, "", {})}
        return "{" + ", ".join(f"{key}: {value}" for key, value in said.items()) + "}"


class GangState(Written, frozen=True, kw_only=True):
    """How a gang stands in the end."""

    phase: Phase | list[Phase] | None = None
    reason: Code | None = None
    says: str = ""
    released: int | None = None
    min_available: int | None = None


class QueueState(Written, frozen=True, kw_only=True):
    """A queue's books in the end; a resource that isn't named isn't looked at."""

    allocated: dict[str, str] = {}
    deserved: dict[str, str] = {}
    headroom: dict[str, str] = {}
    share: float | UnsetType | None = UNSET


class Ending(Written, frozen=True, kw_only=True):
    """How all stands in the end."""

    gangs: dict[str, GangState] = {}
    queues: dict[str, QueueState] = {}


class Document(Written, frozen=True, kw_only=True):
    """The document of kind Scenario."""

    api_version: str
    kind: str
    metadata: dict[str, str]
    title: str
    """What must come of it, in words."""
    until: str
    case: int | None = None
    """Of the cases from the field; None for a scenario of our own."""
    patience: str = PATIENCE
    plane: str = ""
    """For so long it is also run on the control plane, at most."""
    offline: str = ""
    """Why it isn't."""
    expect: list[Expectation] = []
    final: Ending = Ending()


def seconds(text: str) -> float:
    """A span of time as manifests have it, 0s too."""
    if text == "0s":
        return 0.0
    try:
        return parse_seconds(text)
    except DurationError as error:
        raise ScenarioError(str(error)) from None


def gang_key(name: str) -> str:
    """A gang as simulate names it; in a scenario the namespace default goes without saying."""
    return name if "/" in name else f"default/{name}"


@dataclass(frozen=True)
class Scenario:
    """A file that has been read and found sound."""

    path: Path
    document: Document
    manifests: Sequence[Manifest]

    @classmethod
    def read(cls, path: Path) -> Scenario:
        """Raises ScenarioError, with the name of the file."""
        try:
            found = [*_flat(yaml.safe_load_all(path.read_text()))]
            written = [each for each in found if each.get("kind") == "Scenario"]
            if len(written) != 1:
                raise ScenarioError(f"it has {len(written)} documents of kind Scenario, not one")
            document = msgspec.convert(written[0], Document)
            made = cls(path, document, [each for each in found if each is not written[0]])
            made._judge()
        except (ScenarioError, msgspec.ValidationError, yaml.YAMLError) as error:
            raise ScenarioError(f"{path.name}: {error}") from None
        return made

    @property
    def name(self) -> str:
        return self.document.metadata.get("name", "")

    @property
    def until(self) -> float:
        """When the simulation ends."""
        return seconds(self.document.until)

    @property
    def plane(self) -> float:
        """When the run on the control plane ends; 0 without one."""
        return seconds(self.document.plane or "0s")

    @cached_property
    def gangs(self) -> Mapping[str, float]:
        """Each gang of the manifests, with the time at which it is first there."""
        found: dict[str, float] = {}
        for each in self.manifests:
            spec = each.get("spec") or {}
            labels = each["metadata"].get("labels") or {}
            inner = (spec.get("template") or {}).get("metadata", {}).get("labels") or {}
            if each["kind"] == "Job" and names.QUEUE in {**labels, **inner}:
                key = gang_key(f"{each['metadata'].get('namespace', 'default')}/{each['metadata']['name']}")
                found[key] = min(found.get(key, self.until), appears(each))
        return found

    # --- what a file may say ------------------------------------------------------------------------------------

    def _judge(self) -> None:
        document = self.document
        _need(document.api_version == API_VERSION, f"apiVersion is {document.api_version}, not {API_VERSION}")
        _need(self.name == self.path.stem, f"metadata.name is {self.name!r}, not that of the file")
        _need(set(document.metadata) == {"name"}, "metadata has a name and nothing else")
        prefix = f"case-{document.case:02}-" if document.case else ""
        _need(self.path.stem.startswith(prefix or "") and bool(prefix) == self.path.stem.startswith("case-"),
              "the file's name starts with case-NN- where it is one of the cases, and only there")  # fmt: skip
        _need(bool(document.plane) != bool(document.offline), "say in `plane` for how long, or in `offline` why not")
        _need(bool(document.expect or document.final.gangs or document.final.queues), "it expects nothing")
        _need(len({str(each) for each in document.expect}) == len(document.expect), "it expects the same thing twice")
        seconds(document.patience)
        for each in self.manifests:
            _need(appears(each) <= (self.plane or self.until), f"{each['metadata']['name']} appears after the end")
        for expectation in document.expect:
            try:
                self._judge_expectation(expectation)
            except ScenarioError as error:
                raise ScenarioError(f"{expectation}: {error}") from None
        self._judge_final(document.final)

    def _judge_expectation(self, it: Expectation) -> None:
        one = it.event is not None and it.count is None
        _need((it.event is None) != (it.never is None), "it has either `event` or `never`")
        _need(it.never is None or it.count is None, "`count` goes with `event`")
        _need(it.count is None or it.count > 0, "instead of a count of none say `never`")
        _need(one or not (it.nth or it.at or it.within or it.nodes or it.pods is not None),
              "nth, at, within, pods and nodes are about one event")  # fmt: skip
        _need(not one or gang_key(it.gang) in self.gangs, f"there is no gang {it.gang}")
        matched = [key for key in self.gangs if _matches(it.gang, key)]
        _need(bool(matched), f"no gang is called {it.gang}")
        _need(it.nth is None or it.nth > 0, "nth counts from 1")
        _need(not it.within or bool(it.at), "`within` goes with `at`")
        _need(it.pods is None or it.pods > 0, "an event is about one pod at least")
        _need(it.event is Event.RELEASED or not (it.nodes or it.pods), "pods and nodes are of gangs that are released")
        for text in filter(None, (it.at, it.before, it.after)):
            moment = self._moment(text)
            _need(isinstance(moment, Reference) or moment <= self.until, f"{text} is after the end")
        if it.never is not None or it.count is not None:
            start, end = self._moment(it.after), self._moment(it.before)
            first = min(self.gangs[key] for key in matched)
            _need(isinstance(end, Reference) or not it.before or end > first, "it can't fail: they aren't there before")
            _need(isinstance(start, Reference) or not it.after or start < self.until, "it can't fail: that's the end")
            _need(not (self.document.plane and it.after and not isinstance(start, Reference)),
                  "on a real cluster a time is no upper bound: name an event")  # fmt: skip

    def _judge_final(self, final: Ending) -> None:
        queues = {each["metadata"]["name"] for each in self.manifests if each["kind"] == "Queue"}
        for name, gang in final.gangs.items():
            _need(gang_key(name) in self.gangs, f"final: there is no gang {name}")
            _need(gang != GangState(), f"final: nothing is said of gang {name}")
        for name, queue in final.queues.items():
            _need(name in queues, f"final: there is no queue {name}")
            _need(queue != QueueState(), f"final: nothing is said of queue {name}")

    def _moment(self, text: str) -> float | Reference:
        """A time, or an event: "90s", "a Finished", "a Released 2"."""
        found = re.fullmatch(r"(\S+) ([A-Z]\w+)(?: ([1-9]))?", text)
        if not found:
            return seconds(text) if text else 0.0
        _need(found[2] in [*Event], f"there is no event {found[2]}")
        _need(gang_key(found[1]) in self.gangs, f"there is no gang {found[1]}")
        return Reference(gang_key(found[1]), Event(found[2]), int(found[3] or 1))

    # --- what must hold of a story ------------------------------------------------------------------------------

    def failures(
        self, story: Sequence[Happening], *, exact: bool, of: Sequence[Expectation] | None = None
    ) -> list[str]:
        """What doesn't hold of the events (or of some of them), a sentence each.

        Without `exact`, as on a real cluster, times are lower bounds only, and where pods went isn't looked at.
        """
        return [
            f"{each}: {problem}"
            for each in (self.document.expect if of is None else of)
            if (problem := self._problem(each, story, exact=exact))
        ]

    def open(self, story: Sequence[Happening], now: float) -> bool:
        """Whether something that must not happen still could, and would count."""
        for each in self.document.expect:
            if each.never is not None or each.count is not None:
                end = self._moment(each.before) if each.before else self.until
                if (end.found(story) is None) if isinstance(end, Reference) else now < min(end, self.plane):
                    return True
        return False

    def _problem(self, it: Expectation, story: Sequence[Happening], *, exact: bool) -> str:
        slack = 0.0 if exact else SLACK
        kind = it.event or it.never
        found = [
            each
            for each in story
            if each.event == kind
            and _matches(it.gang, each.gang)
            and it.reason in (None, each.reason)
            and it.says in each.message
        ]
        bounds = [(text, self._moment(text)) for text in (it.after, it.before) if text]
        for text, moment in bounds:
            if isinstance(moment, Reference) and moment.found(story) is None:
                return f"there was no {text}"
        if it.event is None or it.count is not None:
            inside = [each for each in found if not self._outside(it, each, story, slack)]
            if it.event is None:
                return f"it did: {inside[0]}" if inside else ""
            return "" if len(inside) == it.count else f"it was {len(inside)} times"
        nth = it.nth or 1
        if len(found) < nth:
            return "it didn't happen" if not found else f"it happened {len(found)} times only"
        one = found[nth - 1]
        if outside := self._outside(it, one, story, slack, lower_only=not exact):
            return outside
        if it.at:
            first = seconds(it.at)
            last = first + (seconds(it.within) if it.within else 0.0)
            if one.at < first - slack or (exact and one.at > last):
                return f"it was at {one.at:g} s"
        if exact and it.pods not in (None, sum(one.nodes.values())):
            return f"it was {sum(one.nodes.values())} pods"
        if exact and it.nodes and it.nodes != one.nodes:
            return f"they went to {dict(one.nodes)}"
        return ""

    def _outside(
        self, it: Expectation, one: Happening, story: Sequence[Happening], slack: float, *, lower_only: bool = False
    ) -> str:
        """How it is out of the bounds that `after` and `before` set; "" if it isn't."""
        for text, sign in ((it.after, 1), (it.before, -1)):
            if not text:
                continue
            moment = self._moment(text)
            if isinstance(moment, Reference):
                other = moment.found(story)
                assert other is not None
                if (one.order - other.order) * sign <= 0:
                    return f"it was at {one.at:g} s, {text} at {other.at:g} s"
            elif one.at < moment - slack if sign > 0 else not lower_only and one.at >= moment - slack:
                return f"it was at {one.at:g} s"
        return ""

    def due(self, before: float) -> list[Expectation]:
        """What has to have been seen before anything more is done at this time; what comes after it doesn't matter."""
        return [
            msgspec.structs.replace(each, before="")
            for each in self.document.expect
            if each.event and not each.count and each.at and seconds(each.at) < before
        ]

    def final_failures(self, final: Mapping[str, Any], *, exact: bool) -> list[str]:
        """What doesn't hold in the end; `final` as simulate prints it, or less of a queue without `exact`."""
        found = []
        for name, gang in self.document.final.gangs.items():
            seen = final["gangs"].get(gang_key(name), {})
            found += [f"final, gang {name}: {problem}" for problem in _gang_problems(gang, seen)]
        for name, queue in self.document.final.queues.items():
            seen = final["queues"].get(name, {})
            found += [f"final, queue {name}: {problem}" for problem in _queue_problems(queue, seen, exact=exact)]
        return found


@dataclass(frozen=True)
class Reference:
    """An event as another one's bound."""

    gang: str
    event: Event
    nth: int

    def found(self, story: Sequence[Happening]) -> Happening | None:
        """The event in this story."""
        same = [each for each in story if (each.gang, each.event) == (self.gang, self.event)]
        return same[self.nth - 1] if len(same) >= self.nth else None


def appears(manifest: Manifest) -> float:
    """When it does, in seconds."""
    return seconds(simulated(manifest, "at") or "0s")


def simulated(manifest: Manifest, key: str) -> str:
    """What an annotation of the simulator says; "" without it."""
    return str((manifest["metadata"].get("annotations") or {}).get(f"{SIMULATE}/{key}", ""))


def files() -> list[Path]:
    """All scenario files."""
    return sorted(DIRECTORY.glob("*.yaml"))


def _flat(documents: Iterator[Any]) -> Iterator[Manifest]:
    """The objects, those in Lists too."""
    for each in documents:
        if each and each.get("kind") == "List":
            yield from _flat(iter(each["items"]))
        elif each:
            yield each


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ScenarioError(otherwise)


def _matches(pattern: str, key: str) -> bool:
    return not pattern or fnmatchcase(key, gang_key(pattern))


def _gang_problems(want: GangState, seen: Mapping[str, Any]) -> Iterator[str]:
    phases = want.phase if isinstance(want.phase, list) else [want.phase]
    if want.phase and seen.get("phase") not in phases:
        yield f"phase is {seen.get('phase')}, not {' or '.join(str(phase) for phase in phases)}"
    for key, value in (("reason", want.reason), ("released", want.released), ("minAvailable", want.min_available)):
        if value is not None and seen.get(key) != value:
            yield f"{key} is {seen.get(key)}, not {value}"
    if want.says not in seen.get("message", ""):
        yield f"it says {seen.get('message')!r}"


def _queue_problems(want: QueueState, seen: Mapping[str, Any], *, exact: bool) -> Iterator[str]:
    for key in ("allocated", "headroom", *(["deserved"] if exact else [])):
        for resource, quantity in getattr(want, key).items():
            have = amount(resource, seen.get(key, {}).get(resource, 0))
            if have != amount(resource, quantity):
                yield f"{key} is {format_amount(resource, have)} {resource}, not {quantity}"
    if exact and want.share is not UNSET and seen.get("share", "not there") != want.share:
        yield f"share is {seen.get('share', 'not there')}, not {want.share}"
