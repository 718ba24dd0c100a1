"""The chapters, in order. Each is one module with one `play`, and leaves the stage as the next one needs it."""

from collections.abc import Awaitable, Callable
from typing import Final

from demo.stage import Stage
from demo.story import books, crash, deadlock, gate, stranded, tenants, together

CHAPTERS: Final[tuple[Callable[[Stage], Awaitable[None]], ...]] = (
    stranded.play,
    together.play,
    deadlock.play,
    tenants.play,
    gate.play,
    crash.play,
    books.play,
)
