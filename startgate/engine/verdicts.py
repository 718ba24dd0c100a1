"""Why gangs stay, once all is decided: the answer to each trial that failed.

What always holds: what is kept for others is lifted before it is asked, so that a reason names what is in the way
itself; a gang that would fit then stays for their sake, and is told for whom. Equal trials have equal answers.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple

from startgate.engine import explain
from startgate.engine.draft import Trial
from startgate.engine.explain import Verdict
from startgate.engine.ground import Ground, Hold
from startgate.engine.outlook import GANGS, Outlook
from startgate.engine.patience import Patience
from startgate.engine.world import Holder
from startgate.model.resources import Amounts

LOOKED_AT: Final = 8
"""So many holds are looked at one by one, to say for whom it is held."""


class _Before(NamedTuple):
    """What was said of a trial in a decision before, without when it could start."""

    verdict: Verdict
    asks_when: bool
    """Whether that would be said, if it were looked into."""


class Verdicts:
    """Why gangs stay, once all is decided. What is held for others is lifted: if a gang fits then, that is why."""

    def __init__(
        self,
        ground: Ground,
        patience: Patience,
        holds: Sequence[Hold],
        holders: Iterable[Holder],
    ) -> None:
        """`holders`: gangs that run and haven't been told to give way."""
        self._ground = ground
        self._holders = holders
        self._outlook: Outlook | None = None
        self._told: set[str] = set()
        """Queues of which the first gang that waits for others' end has been told for whose."""
        self._protected = patience.lift()
        self._holds = holds
        for hold in holds:
            ground.lift(hold)
        self._books = ground.now.books.closed()
        nodes = ground.now.room.cluster
        self._before: dict[Hashable, _Before] = nodes.refusals.known((self._books.state(), nodes.epoch, nodes.remade))
        """By trial that quota refuses, of pods for which nodes alone decide whether they could ever have room."""
        self._kept_for = {hold.gang for hold in (*holds, *self._of_the_protected())}
        self._known: dict[tuple[Trial, str], Verdict] = {}

    def of(self, gang: str, tried: Iterable[Trial]) -> Verdict:
        """Why none of these could go: the first that may go some day, before those that never can."""
        own = gang if gang in self._kept_for else ""  # who has something kept isn't held up by that
        first = None
        for trial in tried:
            found = self._known.get((trial, own))
            if found is None:
                found = self._known[trial, own] = self._verdict(trial, own)
            if not found.hopeless:
                return found
            first = first or found
        assert first is not None
        return first

    def _of_the_protected(self) -> tuple[Hold, ...]:
        return (self._protected,) if self._protected else ()

    def _looks_into(self, queue: str) -> bool:
        """Whether the next of this queue is told when it could start: of each queue the first is, of so many queues."""
        return queue not in self._told and len(self._told) < GANGS

    def _until(self, trial: Trial, own: str) -> str:
        """When it could start; "" where that isn't looked into."""
        if not self._looks_into(trial.queue):
            return ""
        self._told.add(trial.queue)
        if self._outlook is None:
            view = self._ground.ahead.copy()
            self._outlook = Outlook(view, self._holders, (*self._holds, *self._of_the_protected()))
        return self._outlook.until(own, trial.queue, trial.batches, leaving=self._ground.parted)

    def _verdict(self, trial: Trial, own: str) -> Verdict:
        ground, asks = self._ground, trial.asks
        protected = [hold for hold in self._of_the_protected() if hold.gang != own]
        others = [hold for hold in self._holds if hold.gang != own]
        if not (protected or others) or not ground.now.fits(trial.queue, trial.batches, asks):
            return self._refused(trial, own)
        for hold in protected:
            if not self._fits_beside(trial, asks, (hold,)):
                return explain.held(asks, hold.gang, "which has waited longer than patience allows")
        for hold in others[:LOOKED_AT]:
            if not self._fits_beside(trial, asks, (hold,)):
                return explain.held(asks, hold.gang, "for which others make room")
        return explain.held(asks, (*others, *protected)[-1].gang, "beside others for which room is held")

    def _refused(self, trial: Trial, own: str) -> Verdict:
        before, looks_into, asked = self._before.get(trial), self._looks_into(trial.queue), []
        if before is not None and not (before.asks_when and looks_into):
            return before.verdict

        def until() -> str:
            asked.append(trial)
            return self._until(trial, own)

        found = explain.refused(self._books, self._ground.now.room, trial.queue, trial.batches, until)
        by_nodes_alone = not any(batch.shape.constrained or batch.within for batch in trial.batches)
        if by_nodes_alone and not (asked and looks_into) and self._books.refusal(trial.queue, trial.asks) is not None:
            self._before[trial] = _Before(found, asks_when=bool(asked))
        return found

    def _fits_beside(self, trial: Trial, asks: Amounts, holds: Iterable[Hold]) -> bool:
        for hold in holds:
            self._ground.hold(hold)
        fits = self._ground.now.fits(trial.queue, trial.batches, asks)
        for hold in holds:
            self._ground.lift(hold)
        return fits
