"""Why gangs stay, once all is decided: the answer to each trial that failed.

What always holds: what is kept for others is lifted before it is asked, so that a reason names what is in the way
itself; a gang that would fit then stays for their sake, and is told for whom. Equal trials have equal answers.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from startgate.engine import explain
from startgate.engine.draft import Trial
from startgate.engine.explain import Verdict
from startgate.engine.ground import Ground, Hold
from startgate.engine.observe import amounts_of
from startgate.engine.patience import Patience
from startgate.model.resources import Amounts

LOOKED_AT: Final = 8
"""So many holds are looked at one by one, to say for whom it is held."""


class Verdicts:
    """Why gangs stay, once all is decided. What is held for others is lifted: if a gang fits then, that is why."""

    def __init__(self, ground: Ground, patience: Patience, holds: Sequence[Hold]) -> None:
        self._ground = ground
        self._protected = patience.lift()
        self._holds = holds
        for hold in holds:
            ground.lift(hold)
        self._books = ground.now.books.closed()
        self._known: dict[Trial, Verdict] = {}

    def of(self, tried: Iterable[Trial]) -> Verdict:
        """Why none of these could go: the first that may go some day, before those that never can."""
        found = []
        for trial in tried:
            if trial not in self._known:
                self._known[trial] = self._verdict(trial)
            found.append(self._known[trial])
        return next((each for each in found if not each.hopeless), found[0])

    def _verdict(self, trial: Trial) -> Verdict:
        ground, asks = self._ground, amounts_of(trial.batches)
        nothing_held = self._protected is None and not self._holds
        if nothing_held or not ground.now.fits(trial.queue, trial.batches, asks):
            return explain.refused(self._books, ground.now.room, trial.queue, trial.batches)
        if self._protected and not self._fits_beside(trial, asks, (self._protected,)):
            return explain.held(asks, self._protected.gang, "which has waited longer than patience allows")
        for hold in self._holds[:LOOKED_AT]:
            if not self._fits_beside(trial, asks, (hold,)):
                return explain.held(asks, hold.gang, "for which others make room")
        last = (*self._holds, *((self._protected,) if self._protected else ()))[-1]
        return explain.held(asks, last.gang, "beside others for which room is held")

    def _fits_beside(self, trial: Trial, asks: Amounts, holds: Iterable[Hold]) -> bool:
        for hold in holds:
            self._ground.hold(hold)
        fits = self._ground.now.fits(trial.queue, trial.batches, asks)
        for hold in holds:
            self._ground.lift(hold)
        return fits
