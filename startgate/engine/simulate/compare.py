"""What a change would make of the waits and starts: two simulations side by side, by gang and by queue, and in sum.

What always holds: a wait is from when a gang comes to its first start; one that never starts has none, and is counted
as such rather than given a number. One that runs from the beginning starts no more, even if it gives way and comes
back.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from startgate.engine.simulate.report import Happened, Seconds, Story, Told

ROUNDED: Final = 6
"""Digits after the point of a sum or difference of times."""

GAVE_WAY: Final = (Happened.RECLAIMED, Happened.PREEMPTED, Happened.TAKEN_BACK)


class Way(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """How one gang fared in one of both."""

    started: Seconds | None
    """When it first started; None: never."""
    waited: Seconds | None
    """Until then."""
    finished: Seconds | None
    gave_way: int
    """How often it was reclaimed, preempted or taken back."""


class GangChange(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One gang in both; None where it isn't there."""

    queue: str
    before: Way | None
    after: Way | None


class Sum(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """Gangs together, in one of both."""

    gangs: int
    started: int
    finished: int
    gave_way: int
    waited: Seconds
    """Of those that started, together."""
    longest: Seconds
    """The longest of these waits."""


class Change(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """Gangs together, in both."""

    before: Sum
    after: Sum
    sooner: int
    """Gangs that start earlier, or at all; and those that run from the beginning and give way less often."""
    later: int
    """Gangs that start later, or not any more; and those that run from the beginning and give way more often."""


class Comparison(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The document."""

    total: Change
    queues: Mapping[str, Change]
    gangs: Mapping[str, GangChange]
    before: Told
    after: Told


def compare(before: Story, after: Story) -> Comparison:
    """What is different after a change."""
    names = sorted({*before.gangs, *after.gangs})
    first, second = _ways(before), _ways(after)
    gangs = {
        name: GangChange(
            queue=(after.gangs.get(name) or before.gangs[name]).queue,
            before=first.get(name),
            after=second.get(name),
        )
        for name in names
    }
    queues = sorted({gang.queue for gang in gangs.values()})
    return Comparison(
        total=_change(gangs.values()),
        queues={queue: _change(each for each in gangs.values() if each.queue == queue) for queue in queues},
        gangs=gangs,
        before=before.told,
        after=after.told,
    )


def gain(gang: GangChange) -> Seconds | None:
    """How much earlier it starts, negative for later; None unless it starts in both."""
    if gang.before is None or gang.after is None or gang.before.started is None or gang.after.started is None:
        return None
    return _rounded(gang.before.started - gang.after.started)


def _ways(story: Story) -> dict[str, Way]:
    started: dict[str, Seconds] = {}
    finished: dict[str, Seconds] = {}
    gave_way: dict[str, int] = {}
    for event in story.told.events:
        if event.event is Happened.RELEASED:
            if event.gang in started or not gave_way.get(event.gang):  # who gave way before ran from the beginning
                started.setdefault(event.gang, event.at)
        elif event.event is Happened.FINISHED:
            finished[event.gang] = event.at
        elif event.event in GAVE_WAY:
            gave_way[event.gang] = gave_way.get(event.gang, 0) + 1
    return {
        name: Way(
            started=started.get(name),
            waited=_rounded(started[name] - course.came) if name in started else None,
            finished=finished.get(name),
            gave_way=gave_way.get(name, 0),
        )
        for name, course in story.gangs.items()
    }


def _change(gangs: Iterable[GangChange]) -> Change:
    listed = list(gangs)
    moved = [_moved(gang) for gang in listed]
    return Change(
        before=_sum(gang.before for gang in listed),
        after=_sum(gang.after for gang in listed),
        sooner=sum(each > 0 for each in moved),
        later=sum(each < 0 for each in moved),
    )


def _moved(gang: GangChange) -> int:
    """1: it starts sooner, -1: later. Of one that ran from the beginning, whether it gives way less or more often."""
    if (difference := gain(gang)) is not None:
        return (difference > 0) - (difference < 0)
    if gang.before is None or gang.after is None:
        return 0
    if gang.before.started is None and gang.after.started is None:
        return (gang.after.gave_way < gang.before.gave_way) - (gang.after.gave_way > gang.before.gave_way)
    return (gang.after.started is not None) - (gang.before.started is not None)


def _sum(ways: Iterable[Way | None]) -> Sum:
    there = [way for way in ways if way is not None]
    waits = [way.waited for way in there if way.waited is not None]
    return Sum(
        gangs=len(there),
        started=len(waits),
        finished=sum(way.finished is not None for way in there),
        gave_way=sum(way.gave_way for way in there),
        waited=_rounded(sum(waits)),
        longest=max(waits, default=0),
    )


def _rounded(seconds: Seconds) -> Seconds:
    exact = round(seconds, ROUNDED)
    return int(exact) if exact == int(exact) else exact
