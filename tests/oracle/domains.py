"""Features by which the gang's Job decides: whether its pods are to be in one topology domain, or should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from startgate.model import names
from tests.oracle.company import RACK, mark_racks
from tests.oracle.draft import HOSTNAME, ZONE, Draft


def _key(draft: Draft) -> str:
    key = draft.pick((ZONE, ZONE, RACK, RACK, HOSTNAME))
    if key == RACK:
        mark_racks(draft)
    return key


def one_domain(draft: Draft) -> None:
    draft.annotations[names.TOPOLOGY] = _key(draft)


def preferred_domain(draft: Draft) -> None:
    draft.annotations[names.PREFER_TOPOLOGY] = _key(draft)


FEATURES: Final[Mapping[str, Callable[[Draft], None]]] = {
    "one topology domain": one_domain,
    "preferred topology domain": preferred_domain,
}
