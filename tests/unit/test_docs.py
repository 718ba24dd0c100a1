"""The documentation says what the code does, as far as a machine can tell, and its links lead somewhere."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from startgate.model import names
from startgate.model.gang import Phase
from startgate.model.reasons import Code
from webhook.review import Refusal

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]
LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")
PROGRAMS = ("webhook", "controller", "certs", "localcluster", "demo")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _anchors(text: str) -> set[str]:
    """As the usual renderers make them of headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{_name(page)} links to {link}"
        assert target.is_relative_to(ROOT), f"{_name(page)} links out of the repository: {link}"
        if anchor:
            assert anchor in _anchors(target.read_text()), f"{_name(page)} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_generated_tables_are_fresh(page: Path) -> None:
    text = page.read_text()
    assert _generator().fresh(text) == text, "run: python docs/generate.py"


def test_every_generated_table_is_on_a_page() -> None:
    pages = "".join(page.read_text() for page in PAGES)
    for name in _generator().GENERATED:
        assert f"<!-- generated: {name} -->" in pages


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text()
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in LINK.findall(index)}
    assert {page for page in DOCS.rglob("*.md") if page.name != "README.md"} <= linked


def test_every_name_that_users_meet_is_documented() -> None:
    page = (DOCS / "reference" / "labels-and-annotations.md").read_text()
    shared = (names.QUEUE, names.MIN_AVAILABLE, names.START_TIMEOUT, names.HOLD, names.PARKED, names.GATE)
    for name in (*shared, names.KUEUE_QUEUE):
        assert f"`{name}`" in page


def test_the_phases_are_those_of_the_transition_table() -> None:
    from startgate.engine.lifecycle import FOLLOWS

    page = (DOCS / "reference" / "gang.md").read_text().partition("## Phases")[2]
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([^|]+) \|$", page, re.MULTILINE)
    written = {phase: set(re.findall(r"[A-Z]\w+", follows)) for phase, follows in rows if phase in set(Phase)}
    assert written == {str(phase): set(map(str, after)) for phase, after in FOLLOWS.items()}


def test_codes_in_the_howto_exist() -> None:
    page = (DOCS / "how-to" / "why-is-my-job-stuck.md").read_text()
    named = set(re.findall(r"`([A-Z][a-zA-Z]+)`", page.partition("**There is no Gang")[0]))
    assert named and named <= set(map(str, Code))


def test_the_webhooks_refusals_are_documented() -> None:
    page = (DOCS / "reference" / "webhook.md").read_text()
    for refusal in Refusal:
        assert f"`{refusal}`" in page


def test_architecture_names_every_module() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## The modules")[2].partition("## What always holds")[0]
    sections = dict(re.findall(r"\*\*`([\w/]+)`\*\*(.*?)(?=\n\*\*`|\Z)", text, re.DOTALL))
    folders = [each for each in (ROOT / "startgate").iterdir() if (each / "__init__.py").exists()]
    for folder in [*folders, *(ROOT / program for program in PROGRAMS)]:
        body = sections[str(folder.relative_to(ROOT))]
        for module in folder.glob("*.py"):
            if not module.name.startswith("__"):
                assert f"`{module.stem}`" in body, f"ARCHITECTURE.md says nothing of {_name(module)}"
