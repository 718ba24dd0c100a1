"""Writes the tables of docs/reference that follow from the code: `python docs/generate.py` in the repository.

Each stands between `<!-- generated: NAME -->` and `<!-- end -->`; the rest of a page is written by hand. A test fails
where a page and the code have drifted.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client import CollectorRegistry

from controller.metrics import Metrics
from startgate.model.reasons import SENTENCES, Code
from webhook.metrics import REGISTRY

DOCS: Final = Path(__file__).parent
BASE: Final = DOCS.parent / "manifests" / "base"
BLOCK: Final = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def reasons() -> str:
    """Every code with its sentence; facts as `{name}`."""
    return _table(("code", "sentence"), ((f"`{code}`", _escaped(SENTENCES[code])) for code in Code))


def fields(kind: str) -> str:
    """The fields of one of our kinds, as its CRD describes them."""
    crds = {each["spec"]["names"]["kind"]: each for each in yaml.safe_load_all((BASE / "crds.yaml").read_text())}
    schema = crds[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    rows = []
    for part in ("spec", "status"):
        rows += list(_fields(part, schema["properties"][part]))
    return _table(("field", "type", "meaning"), rows)


def _fields(path: str, schema: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    for name, each in schema.get("properties", {}).items():
        where = f"{path}.{name}"
        inner = each["items"] if each.get("type") == "array" else each
        if name != "conditions" or not inner.get("properties"):
            yield f"`{where}`", _type(each), _escaped(each.get("description", ""))
            yield from _fields(f"{where}[]" if inner is not each else where, inner)
        else:
            yield f"`{where}`", _type(each), _escaped(each.get("description", ""))


def _type(schema: Mapping[str, Any]) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "enum" in schema:
        return " \\| ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    values = schema.get("additionalProperties")
    return f"map to {_type(values)}" if isinstance(values, dict) else str(schema.get("type", ""))


def metrics(registry: CollectorRegistry) -> str:
    """Every series of one program, by its name as Prometheus sees it."""
    rows = []
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = getattr(collector, "_labelnames", ()) or getattr(family, "_labelnames", ())
            rows.append((f"`{name}`", family.type, _code(labels), _escaped(family.documentation)))
    return _table(("name", "type", "labels", "meaning"), rows)


def rights(file: str) -> str:
    """Every rule of the roles in one manifest."""
    rows = []
    for each in yaml.safe_load_all((BASE / file).read_text()):
        if each["kind"] not in ("ClusterRole", "Role"):
            continue
        name = each["metadata"]["name"] + ("" if each["kind"] == "ClusterRole" else " (Role)")
        for rule in each["rules"]:
            only = f", only {_code(rule['resourceNames'])}" if "resourceNames" in rule else ""
            groups = _code(group or "core" for group in rule["apiGroups"])
            rows.append((f"`{name}`", groups, _code(rule["resources"]) + only, _code(rule["verbs"])))
    return _table(("role", "API group", "resources", "verbs"), rows)


GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    "reasons": reasons,
    "gang": lambda: fields("Gang"),
    "queue": lambda: fields("Queue"),
    "controller-metrics": lambda: metrics(Metrics(list, ()).registry),
    "webhook-metrics": lambda: metrics(REGISTRY),
    "controller-rights": lambda: rights("controller-rights.yaml"),
    "webhook-rights": lambda: rights("webhook-rights.yaml"),
    "user-rights": lambda: rights("user-roles.yaml"),
}


def fresh(text: str) -> str:
    """A page with its generated parts as the code has them now."""
    return BLOCK.sub(lambda found: f"{found[1]}{GENERATED[found[2]]()}\n{found[3]}", text)


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _escaped(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    listed = [tuple(headings), *(tuple(row) for row in rows)]
    lines = [f"| {' | '.join(cells)} |" for cells in listed]
    lines.insert(1, f"|{' --- |' * len(listed[0])}")
    return "\n".join(lines)


if __name__ == "__main__":
    for page in sorted(DOCS.rglob("*.md")):
        before = page.read_text()
        if (after := fresh(before)) != before:
            page.write_text(after)
