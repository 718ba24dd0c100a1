"""When a write that was refused is tried again.

Most refusals pass in seconds: somebody else has written, the API server is busy. Others stand until a person mends a
policy or a quota, for hours. What always holds: the pause follows how long it has been refused, so that whoever has
mended it waits a part of that and no more than a minute and a half, and what can't be written costs the API server less
and less; and those that were refused together come apart.
"""

import random
from collections.abc import Callable
from typing import Final

from cachetools import TTLCache

PART: Final = 0.25
"""Of the time for which it has been refused."""

PAUSES: Final = (2.0, 60.0)
"""Seconds, at least and at most; by chance up to half as much comes on top."""


def pause(refused_for: float, rand: Callable[[], float] = random.random) -> float:
    """Seconds until that is tried again which has been refused for so many."""
    least, most = PAUSES
    return min(most, max(least, PART * refused_for)) * (1 + rand() / 2)


REMEMBERED: Final = (16_384, 600.0)
"""Things that were refused, and seconds for which each is remembered if it isn't refused again: it may be gone."""


class Retries:
    """Of many things, by a key of the caller's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        most, seconds = REMEMBERED
        self._since: TTLCache[str, tuple[float, float]] = TTLCache(most, seconds, timer=clock)
        """Since when it has been refused, and until when it rests."""

    def refused(self, key: str) -> None:
        """Once more."""
        now = self._clock()
        since, _ = self._since.get(key, (now, now))
        self._since[key] = since, now + pause(now - since)

    def until(self, key: str) -> float:
        """Epoch seconds before which it isn't to be tried; 0: it may be."""
        return self._since.get(key, (0.0, 0.0))[1]

    def rests(self, key: str) -> bool:
        """Whether it isn't to be tried yet."""
        return self._clock() < self.until(key)

    def went_well(self, key: str) -> None:
        """The next refusal is the first one again."""
        self._since.pop(key, None)
