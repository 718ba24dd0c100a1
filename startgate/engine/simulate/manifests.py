"""Manifests: the objects of a simulation, each with the place that it came from and the times at which it changes.

What always holds: whatever is wrong with an object is an InputError that names the file, the document and the field,
before anything is simulated; an object of a kind that plays no part is counted, not read; the order of the documents
is kept, since it decides between gangs of the same age.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from startgate.engine.simulate.documents import Document, InputError, Source, documents
from startgate.engine.simulate.kinds import KINDS, Kind, complete
from startgate.engine.simulate.merge import merge, without_nulls
from startgate.model import names
from startgate.model.duration import DurationError, parse_seconds
from startgate.model.objects import timestamp

MICRO: Final = 1_000_000
"""Times are whole microseconds, from the beginning of the simulation."""

TIMES: Final = (names.SIMULATE_AT, names.SIMULATE_GONE, names.SIMULATE_RUNS, names.SIMULATE_TERMINATES)
WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "object": "a map",
    "array": "a list",
    "null": "nothing",
}
"""Types, as msgspec calls them, for people."""

TYPES: Final = re.compile(rf"\b({'|'.join(WORDS)})\b")
NOTHING: Final = re.compile(r"0+(h|m|s|ms)?")
NAME: Final = re.compile(r"[a-z0-9A-Z]([-a-z0-9A-Z.:_]{0,251}[a-z0-9A-Z])?")
DATED: Final = frozenset(
    {
        "creationTimestamp",
        "lastTransitionTime",
        "lastHeartbeatTime",
        "lastProbeTime",
        "startTime",
        "startedAt",
        "finishedAt",
        "completionTime",
        "time",
        "at",
        "since",
    }
)
"""Fields with a time at which something happened; together they say when a dump was taken."""


class Key(NamedTuple):
    """Which object."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class Manifest(msgspec.Struct, frozen=True):
    """One document: an object as it appears, or what is changed of it later."""

    where: str
    """For sentences: file, document and name."""
    file: str
    key: Key
    raw: dict[str, Any]
    order: int
    """Of all documents."""
    at: int
    gone: int | None = None


class Change(NamedTuple):
    """What is different from then on."""

    at: int
    patch: dict[str, Any]
    gone: int | None
    where: str


class Life(msgspec.Struct):
    """One object from when it appears until it is gone; a later one of the same name has a life of its own."""

    key: Key
    where: str
    order: int
    at: int
    raw: dict[str, Any]
    """As it appears."""
    gone: int | None
    """As it is known when it appears; a change may say otherwise."""
    changes: list[Change]


class Input(msgspec.Struct):
    """All that was read."""

    manifests: list[Manifest]
    ignored: Counter[str]
    """Objects that play no part, by kind."""


def read(sources: Iterable[Source]) -> Input:
    """Reads all files. Raises InputError."""
    found = Input([], Counter())
    for source in sources:
        for document in documents(source):
            try:
                for each in _flat(document):
                    _take(each, source.name, found)
            except RecursionError:
                raise InputError(f"{document.where}: it is nested too deeply") from None
    return found


def lives(manifests: Iterable[Manifest]) -> list[Life]:
    """The objects over time, in the order of their first documents. Raises InputError."""
    by_key: dict[Key, list[Manifest]] = {}
    for manifest in manifests:
        by_key.setdefault(manifest.key, []).append(manifest)
    found = [life for same in by_key.values() for life in _lives(same)]
    _check_uids(found)
    return sorted(found, key=lambda life: life.order)


def newest(manifests: Iterable[Manifest]) -> float:
    """Epoch seconds of the latest thing that is said to have happened; 0 where no time is named."""
    return max((moment for each in manifests for moment in _happened(each.raw)), default=0.0)


def decode(where: str, kind: str, raw: Mapping[str, Any]) -> Any:
    """The object as the rest of the house knows it, with what the API server or a kubelet would fill in."""
    return _decode(where, KINDS[kind], complete(kind, raw))


def lasting(where: str, metadata: Mapping[str, Any], annotation: str) -> int | None:
    """Microseconds that an annotation says; None without it."""
    text = (metadata.get("annotations") or {}).get(annotation)
    if text is None:
        return None
    if NOTHING.fullmatch(text):
        return 0
    try:
        return round(parse_seconds(text) * MICRO)
    except DurationError as error:
        raise InputError(f"{where}: metadata.annotations[{annotation}]: {error}") from None


def times(where: str, kind: str, raw: Mapping[str, Any]) -> tuple[int, int | None]:
    """When it appears and is gone. A pod template's annotations count where the object has none."""
    places = [raw["metadata"]]
    if kind == "Job":
        places += [inner for inner in [_template_metadata(raw)] if inner]
    for metadata in places:
        _check_texts(where, metadata)
        for annotation in TIMES:
            lasting(where, metadata, annotation)
    at, gone = (
        next((found for each in places if (found := lasting(where, each, annotation)) is not None), None)
        for annotation in TIMES[:2]
    )
    return at or 0, gone


def check_times(where: str, at: int, gone: int | None) -> None:
    """Nothing is gone before it appears."""
    if gone is not None and gone < at:
        raise InputError(f"{where}: metadata.annotations[{names.SIMULATE_GONE}]: it would be gone before it appears")


# --- one document -----------------------------------------------------------------------------------------------


def _flat(document: Document, *, inner: bool = False) -> Iterator[Document]:
    """The objects in it; a list of them (`kubectl get -o json` makes one) is opened."""
    where, value = document
    if not isinstance(value, dict):
        raise InputError(f"{where}: an object is expected here, a map with apiVersion, kind and metadata")
    kind = value.get("kind")
    items = value.get("items") or []
    if kind == "List" and not isinstance(items, list):
        raise InputError(f"{where}: items: a list is expected")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list) and not inner:
        for number, item in enumerate(items, 1):
            typed = item
            if isinstance(item, dict) and kind != "List" and "kind" not in item:  # kubectl get --raw leaves them out
                typed = {"apiVersion": value.get("apiVersion"), "kind": kind.removesuffix("List"), **item}
            yield from _flat(Document(f"{where}, item {number}", typed), inner=True)
        return
    yield document


def _take(document: Document, file: str, found: Input) -> None:
    where, raw = document
    assert isinstance(raw, dict)
    api_version, kind = _text(where, raw, "apiVersion"), _text(where, raw, "kind")
    known = KINDS.get(kind)
    group = api_version.partition("/")[0] if "/" in api_version else ""
    if known is None or ("." in group and group != known.group):
        found.ignored[kind if known is None else f"{kind}.{group}"] += 1
        return
    if api_version != known.api_version:
        raise InputError(f"{where}: apiVersion: {kind} is read as {known.api_version}, not as {api_version[:80]}")
    metadata = raw.get("metadata")
    if not isinstance(metadata, dict):
        raise InputError(f"{where}: metadata: a map with the object's name is expected")
    key = Key(kind, _namespace(where, metadata) if known.namespaced else "", _name(where, metadata))
    where = f"{where} ({key})"
    at, gone = times(where, kind, raw)
    check_times(where, at, gone)
    _decode(where, known, raw)
    found.manifests.append(Manifest(where, file, key, raw, len(found.manifests), at, gone))


def _text(where: str, raw: Mapping[str, Any], field: str) -> str:
    value = raw.get(field)
    if not isinstance(value, str) or not value:
        raise InputError(f"{where}: {field}: a text is expected, as in every Kubernetes object")
    return value


def _name(where: str, metadata: Mapping[str, Any]) -> str:
    name = metadata.get("name")
    if name is None and metadata.get("generateName"):
        raise InputError(f"{where}: metadata.name: missing; generateName gives none here")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(f"{where}: metadata.name: {_shown(name)} can't be the name of an object")
    return name


def _namespace(where: str, metadata: Mapping[str, Any]) -> str:
    namespace = metadata.get("namespace")
    if namespace is None:
        return "default"
    if not isinstance(namespace, str) or not NAME.fullmatch(namespace):
        raise InputError(f"{where}: metadata.namespace: {_shown(namespace)} can't be the name of a namespace")
    return namespace


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)[:80]


def _template_metadata(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    inner: Any = raw
    for step in ("spec", "template", "metadata"):
        inner = inner.get(step) if isinstance(inner, dict) else None
    return inner if isinstance(inner, dict) else None


def _check_texts(where: str, metadata: Mapping[str, Any]) -> None:
    """Labels and annotations are texts, and of ours only those that there are."""
    for field in ("labels", "annotations"):
        held = metadata.get(field)
        if held is None:
            continue
        if not isinstance(held, dict):
            raise InputError(f"{where}: metadata.{field}: a map is expected")
        for key, value in held.items():
            if value is not None and not isinstance(value, str):
                raise InputError(
                    f"{where}: metadata.{field}[{key[:80]}]: {_shown(value)} is not a text; put it in quotes"
                )
            if key.startswith(names.SIMULATE) and key not in TIMES:
                known = ", ".join(each.removeprefix(names.SIMULATE) for each in TIMES)
                raise InputError(f"{where}: metadata.{field}[{key[:80]}]: simulate knows {known}")


def _decode(where: str, kind: Kind, raw: Mapping[str, Any]) -> Any:
    try:
        made = msgspec.convert(raw, kind.type)
    except msgspec.ValidationError:
        try:
            made = msgspec.convert(without_nulls(raw), kind.type)
        except msgspec.ValidationError as error:
            raise InputError(f"{where}: {_said(error)}") from None
    for problem in kind.problems(made, raw):
        raise InputError(f"{where}: {problem}")
    return made


def _said(error: msgspec.ValidationError) -> str:
    """Of msgspec's sentence: the field first, as in all others here, and types in words."""
    problem, _, path = str(error).replace("`", "").rpartition(" - at ")
    if not problem:
        problem, path = path, ""
    field = path.removeprefix("$").lstrip(".")
    problem = problem[:1].lower() + problem[1:].replace(" | null", "")
    problem = TYPES.sub(lambda found: WORDS[found[0]], problem)
    return f"{field}: {problem}" if field else problem


# --- over time --------------------------------------------------------------------------------------------------


def _lives(same: list[Manifest]) -> Iterator[Life]:
    """Documents of one name: who comes while it lives changes it, who comes after is another one."""
    ordered = sorted(same, key=lambda each: (each.at, each.order))
    current: Life | None = None
    now: dict[str, Any] = {}
    until: int | None = None
    before: Manifest | None = None
    for each in ordered:
        if before is not None and before.at == each.at and not (before.gone == each.at):
            raise InputError(
                f"{each.where}: there is one of this name already ({before.where}); "
                f"a change needs a later {names.SIMULATE_AT}"
            )
        if current is None or (until is not None and until <= each.at):
            if current is not None:
                yield current
            now = each.raw if _reads_as_it_is(each) else without_nulls(each.raw)
            if each.key.kind == "Job" and not (now.get("spec") or {}).get("template"):
                raise InputError(
                    f"{each.where}: spec.template: missing, as only in a change of a Job that is there already; is its "
                    f"name right, its namespace, and {names.SIMULATE_AT} later than when the Job comes"
                )
            until = each.gone
            current = Life(each.key, each.where, each.order, each.at, now, each.gone, [])
        else:
            after = merge(now, each.raw)
            if each.gone is not None:
                until = each.gone
            decode(each.where, each.key.kind, after)
            current.changes.append(Change(each.at, each.raw, each.gone, each.where))
            now = after
        before = each
    assert current is not None
    yield current


def _check_uids(found: Iterable[Life]) -> None:
    """Pods are told apart by theirs, and find their owners by it."""
    known: dict[str, Life] = {}
    for life in found:
        uid = life.raw["metadata"].get("uid")
        if uid and life.key.kind in ("Job", "Pod") and (other := known.setdefault(uid, life)) is not life:
            raise InputError(f"{life.where}: metadata.uid: {uid[:80]} is that of another object too ({other.where})")


def _reads_as_it_is(manifest: Manifest) -> bool:
    """Whether nothing has to be taken out of it: dumps are long, and the API server writes few nulls."""
    if not manifest.raw["metadata"].get("resourceVersion"):
        return False
    try:
        msgspec.convert(manifest.raw, KINDS[manifest.key.kind].type)
    except msgspec.ValidationError:
        return False
    return True


def _happened(raw: Mapping[str, Any]) -> Iterator[float]:
    yield from _moments({"at": raw["metadata"].get("creationTimestamp"), "status": raw.get("status")})


def _moments(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for key, each in value.items():
            if key in DATED and isinstance(each, str):
                try:
                    yield timestamp(each)
                except ValueError:
                    continue
            elif isinstance(each, dict | list):
                yield from _moments(each)
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, dict | list):
                yield from _moments(each)
