"""`kubectl gang simulate`: what would happen, from files alone. Reads them, has the engine tell the story, prints it.

What always holds: no cluster is asked; a file that can't be read, or makes no sense, is one sentence that names it.
"""

import os
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from startgate.cli import output, tree
from startgate.cli.failure import NOT_FOUND, USAGE, VerbError
from startgate.engine.observe import COMPLETED
from startgate.engine.simulate import compare as comparing
from startgate.engine.simulate.compare import Change, Comparison, GangChange, Sum
from startgate.engine.simulate.documents import InputError, Source
from startgate.engine.simulate.kinds import KINDS
from startgate.engine.simulate.manifests import MICRO, Manifest, read
from startgate.engine.simulate.overlay import overlay
from startgate.engine.simulate.report import Event, Happened, Seconds, Story, Taken, clock
from startgate.engine.simulate.run import simulate
from startgate.engine.world import PATIENCE, Rule
from startgate.model.duration import DurationError, parse_seconds
from startgate.model.reasons import Code, reason
from startgate.model.resources import PODS

STDIN: Final = "-"
SAID: Final = {STDIN: "standard input"}
SUFFIXES: Final = (".yaml", ".yml", ".json")
WIDTH: Final = 100
"""Columns that sentences are wrapped to; fewer where the terminal has fewer."""

NARROWEST: Final = 40

BY: Final = {
    Rule.GUARANTEE: "within its guarantee",
    Rule.DESERVED: "within its deserved share",
    Rule.PRIORITY: "of higher priority",
}
"""What a claimant is, by the rule for it."""

COMPLETE: Final = reason(Code.FINISHED, outcome=COMPLETED).message
"""What is said of a Job that has ended well."""

NEAR: Final = 0.8
"""How alike a kind is to a known one, to be taken for it misspelt; CronJob is not Job."""

NODES_NAMED: Final = 3
"""So many nodes are named in a line of the table, at most; the rest are counted."""

Files: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("-f", "--filename", metavar="FILE|DIR", help="Manifests; a directory with all below it; - for stdin."),
]
WhatIf: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--what-if", metavar="FILE|DIR", help="Objects to lay over them; prints what that changes."),
]
Until: TypeAlias = Annotated[
    str | None, typer.Option("--until", metavar="DURATION", help="Where to stop, as 2h; else when no more can happen.")
]
Patience: TypeAlias = Annotated[
    str | None, typer.Option("--patience", metavar="DURATION", help="The controller's --patience; default 10m.")
]


def ask(
    files: Sequence[str], what_if: Sequence[str], until: str | None, patience: str | None
) -> Story | tuple[Comparison, tuple[str, ...]]:
    """The story of these files; with `what_if` a comparison, and what is to be said beside it."""
    if not files:
        raise VerbError(USAGE, "simulate needs something to simulate: -f FILE, -f DIR, or -f - for standard input.")
    if [*files, *what_if].count(STDIN) > 1:
        raise VerbError(USAGE, "standard input (-) can be read once only.")
    end = None if until is None else round(_duration("--until", until) * MICRO)
    calm = PATIENCE if patience is None else _duration("--patience", patience)
    try:
        base = _read(files)
        if not what_if:
            return simulate(base, until=end, patience=calm)
        changes = _read(what_if)
        known = {each.key for each in base}
        added = sorted({str(each.key) for each in changes if each.key not in known})
        before = simulate(base, until=end, patience=calm)
        after = simulate(overlay(base, changes), until=end, patience=calm)
    except InputError as error:
        raise VerbError(USAGE, f"{error}.") from None
    if added:
        output.note(f"New with the change, not in the files before: {', '.join(added)}.")
    new = [f"With the change: {each}" for each in after.notes if each not in before.notes]
    return comparing.compare(before, after), (*before.notes, *new)


def _duration(option: str, text: str) -> float:
    try:
        return parse_seconds(text)
    except DurationError as error:
        raise VerbError(USAGE, f"{option}: {error}.") from None


def _read(names: Sequence[str]) -> list[Manifest]:
    found = read(source for name in names for source in _sources(name))
    if found.ignored:
        output.note(f"Passed over, since they play no part: {_counted(found.ignored)}.")
    if not found.manifests:
        raise VerbError(
            NOT_FOUND, f"There is no object to simulate in {', '.join(SAID.get(name, name) for name in names)}."
        )
    return found.manifests


def _counted(ignored: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}{_meant(kind)}" for kind, count in sorted(ignored.items()))


def _meant(kind: str) -> str:
    """A kind that differs by a letter or its case is a slip of the pen."""
    by_lower = {known.lower(): known for known in KINDS}
    near = get_close_matches(kind.lower(), by_lower, n=1, cutoff=NEAR)
    return f" (is it {by_lower[near[0]]}?)" if near else ""


def _sources(name: str) -> Iterator[Source]:
    if name == STDIN:
        yield _source(SAID[STDIN], sys.stdin.buffer.read())
        return
    path = Path(name)
    if path.is_dir():
        inside = sorted(_below(path))
        if not inside:
            raise VerbError(NOT_FOUND, f"{name}: no {', '.join(SUFFIXES)} file is in this directory or below it.")
    else:
        inside = [path]
    for each in inside:
        try:
            content = each.read_bytes()
        except FileNotFoundError:
            raise VerbError(NOT_FOUND, f"{each}: there is no such file.") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise VerbError(NOT_FOUND, f"{each}: it can't be read ({why}).") from None
        yield _source(str(each), content)


def _below(directory: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(directory):
        yield from (Path(folder) / name for name in names if name.endswith(SUFFIXES))


def _source(name: str, content: bytes) -> Source:
    try:
        return Source(name, content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte {error.start} isn't UTF-8, so this is no text") from None


# --- printing --------------------------------------------------------------------------------------------------------


def write(document: object, notes: Sequence[str], form: output.Format) -> None:
    """For programs."""
    _notes(notes)
    output.write(document, form)


def show(story: Story) -> None:
    """As a table: what happened, who waits in the end, and the queues' books."""
    _notes(story.notes)
    told = story.told
    if told.events:
        _events(story)
    else:
        output.note("Nothing happened to any gang.")
    waiting = [(name, gang) for name, gang in told.final.gangs.items() if gang.phase not in ("Running", "Finished")]
    if waiting:
        output.line("")
        output.line(f"In the end, after {clock(story.ended)}, not running:", "bold")
        for name, gang in waiting:
            for line in _wrapped(f"{name} ({gang.phase}): ", gang.message or gang.reason):
                output.line(line)
    if told.final.queues:
        output.line("")
        _queues(story)


def _events(story: Story) -> None:
    """A line each, with as many nodes by their names as it has room for."""
    header = ["AT", "GANG", "EVENT", "PODS"]
    events = story.told.events
    leads = [[clock(event.at), event.gang, event.event, str(len(event.pods) or "-")] for event in events]
    left = output.left(header, leads)
    rows: list[list[str]] = []
    for place, (event, lead) in enumerate(zip(events, leads, strict=True)):
        rows.append([*lead, _what(event, story.taken.get(place), left)])
        if _needs_words(event):
            rows += [[line] for line in _wrapped("", event.message, "    ")]
    output.table([*header, "WHY, OR WHERE"], rows)


def show_comparison(comparison: Comparison, notes: Sequence[str]) -> None:
    """As tables: totals, then queues, then those gangs that fare differently."""
    _notes(notes)
    header = ["", "GANGS", "STARTED", "WAITED", "LONGEST", "FINISHED", "GAVE WAY", "SOONER", "LATER"]
    rows = [_change("all", comparison.total)]
    rows += [_change(f"queue {name}", change) for name, change in comparison.queues.items()]
    _fitted(header, rows, 1)
    moved = [(name, gang) for name, gang in comparison.gangs.items() if gang.before != gang.after]
    output.line("")
    if not moved:
        output.line("No gang starts, waits or ends in another way.")
        return
    header = ["GANG", "QUEUE", "STARTS", "WAITS", "ENDS", "GAVE WAY", "START MOVES BY"]
    gave = header.index("GAVE WAY")
    rows = [_gang_change(name, gang) for name, gang in moved]
    if not any("→" in row[gave] for row in rows):
        header, *rows = [[*line[:gave], *line[gave + 1 :]] for line in (header, *rows)]
    _fitted(header, rows, 2)


def _fitted(header: list[str], rows: list[list[str]], lead: int) -> None:
    """A table. If the terminal is too narrow: without columns of noughts; else what a row is about, which its first
    `lead` cells say, on a line of its own above the rest."""
    if not output.fits(header, rows):
        kept = [column for column in range(len(header)) if any(row[column] != "0" for row in rows)]
        header, *rows = [[line[column] for column in kept] for line in (header, *rows)]
    if not output.fits(header, rows):
        header = ["", *header[lead:]]
        rows = [part for row in rows for part in ([", ".join(row[:lead])], ["", *row[lead:]])]
    output.table(header, rows)


def _notes(notes: Sequence[str]) -> None:
    for note in notes:
        output.note(f"Note: {note}")


def _what(event: Event, taken: Taken | None, left: float) -> str:
    """In a few words, none of which the name of the event says already."""
    if event.event is Happened.RELEASED:
        return _nodes(event.pods, left)
    if taken:
        return f"for {taken.claimant}, {BY[taken.rule]}"
    if event.event is Happened.FINISHED:
        return "completed" if event.message == COMPLETE else "failed"
    return event.reason


def _needs_words(event: Event) -> bool:
    """Whether nobody would understand it without its sentence."""
    return event.event is Happened.TAKEN_BACK or (event.event is Happened.FINISHED and event.message != COMPLETE)


def _nodes(pods: Mapping[str, str], left: float) -> str:
    """Where to, for one line, in so many characters if that can be."""
    counts = Counter(node or "no node yet" for node in pods.values())
    told = ""
    for named in range(NODES_NAMED, 0, -1):
        more = len(counts) - named
        told = ", ".join(f"{count} on {node}" for node, count in list(counts.items())[:named])
        told += f" and {more} more node{'s' if more > 1 else ''}" if more > 0 else ""
        if len(told) <= left:
            break
    return told


def _wrapped(head: str, text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        head + text,
        int(min(WIDTH, max(output.room(), NARROWEST))),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _queues(story: Story) -> None:
    """In the words of `kubectl gang queues`, each below its parent: what is deserved or used."""
    rows: list[list[str]] = []
    for name, depth in tree.in_order(story.parents):
        queue = story.told.final.queues[name]
        resources = {*queue.allocated, *queue.deserved} or set(queue.headroom)
        if not tree.makes_share(PODS, queue.allocated, queue.deserved):
            resources = resources - {PODS} or resources
        shown = sorted(resources)
        share = "∞" if queue.share is None else f"{queue.share:.2f}"
        for number, resource in enumerate(shown):
            parts = [
                output.short(resource, part.get(resource, "-"))
                for part in (queue.deserved, queue.allocated, queue.headroom)
            ]
            rows.append([*((tree.STEP * depth + name, share) if number == 0 else ("", "")), resource, *parts])
    output.table(["QUEUE", "SHARE", "RESOURCE", "DESERVED", "ALLOCATED", "HEADROOM"], rows)


def _change(name: str, change: Change) -> list[str]:
    def both(field: str) -> str:
        return _both(*(str(getattr(each, field)) for each in (change.before, change.after)))

    waited = _both(*(_wait(each, each.waited) for each in (change.before, change.after)))
    longest = _both(*(_wait(each, each.longest) for each in (change.before, change.after)))
    return [
        name,
        both("gangs"),
        both("started"),
        waited,
        longest,
        both("finished"),
        both("gave_way"),
        str(change.sooner),
        str(change.later),
    ]


def _wait(total: Sum, seconds: Seconds) -> str:
    """No wait at all is not the same as a wait that doesn't end."""
    return clock(seconds) if total.started else "-"


def _gang_change(name: str, gang: GangChange) -> list[str]:
    moved = comparing.gain(gang)
    shift = "-" if moved is None else "0s" if not moved else f"{'-' if moved > 0 else '+'}{clock(abs(moved))}"
    return [
        name,
        gang.queue,
        _both(*(_time(way.started) if way else "-" for way in (gang.before, gang.after))),
        _both(*(_time(way.waited) if way else "-" for way in (gang.before, gang.after))),
        _both(*(_time(way.finished) if way else "-" for way in (gang.before, gang.after))),
        _both(*(str(way.gave_way) if way else "0" for way in (gang.before, gang.after))),
        shift,
    ]


def _time(seconds: Seconds | None) -> str:
    return "never" if seconds is None else clock(seconds)


def _both(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"
