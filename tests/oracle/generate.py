"""Cases from a seed: the same seed and number, the same case.

Each case has a few features, in an order of their own; which can be drawn is said here, in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from tests.oracle import company, domains, nodes, volumes
from tests.oracle.case import Case
from tests.oracle.draft import Draft

FEATURES: Final = {**nodes.FEATURES, **company.FEATURES, **volumes.FEATURES, **domains.FEATURES}
"""By name, in the order in which they are put into a case: later ones build on what earlier ones have put there."""

ENABLED: Final = tuple(FEATURES)


def generate(seed: int, number: int, enabled: Sequence[str] = ENABLED) -> Case:
    """The case of this number, with a gang of as many pods as there can be: `Case.cut` makes it one that may fit."""
    rng = Random(f"{seed}/{number}")
    draft = Draft(rng)
    drawn = set(rng.sample(list(enabled), min(rng.choice((1, 2, 2, 3, 4)), len(enabled))))
    features = tuple(name for name in FEATURES if name in drawn)
    for name in features:
        FEATURES[name](draft)
    return Case(f"{seed}-{number}", features, draft.objects(), draft.gang(), draft.annotations)
