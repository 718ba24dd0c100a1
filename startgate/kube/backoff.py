"""How long to wait before the next try, so that a cluster in trouble isn't held down by those who wait for
it.
"""

import random
from collections.abc import Callable


class Backoff:
    """Doubles from `first` to `longest` seconds; each wait is a random part, half to all, of its step."""

    def __init__(self, first: float = 0.1, longest: float = 30.0, *, rand: Callable[[], float] = random.random) -> None:
        self._first = first
        self._longest = longest
        self._rand = rand
        self._step = first

    def next(self) -> float:
        """Seconds to wait now; the next wait is about twice as long."""
        step = self._step
        self._step = min(step * 2, self._longest)
        return step * (0.5 + self._rand() / 2)

    def reset(self) -> None:
        """After a success."""
        self._step = self._first
