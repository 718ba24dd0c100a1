"""What changes for the pods of one shape as they are placed themselves: how many more each domain of a label takes.

Topology spread (a domain may have so many more pods than the emptiest) and anti-affinity to itself (one pod a domain).
What always holds: as many pods as there is `slack` can go into the domain one after the other, as far as this
constraint goes; and where there is none, there is none until another domain has taken some.
"""

from typing import Final, Protocol

import numpy as np

from startgate.engine.topology import NONE, Domains, Ints

ALL: Final = 2**62
"""No limit."""


class Limit(Protocol):
    """One constraint that the pods placed have a part in."""

    of: Ints
    """The domain of each slot."""
    lasting: bool
    """Whether a domain without slack never has any again."""

    def slack(self, domain: int) -> int:
        """How many more such pods may go into this domain now."""
        ...

    def level(self, domain: int) -> int:
        """How full it is, in comparison with others."""
        ...

    def take(self, domain: int, pods: int) -> bool:
        """Puts so many pods there. Whether domains that had no slack may have some now."""
        ...

    def most(self, caps: Ints) -> int:
        """How many pods it lets in altogether, where nodes have room for so many and nothing has been taken: exact."""
        ...

    def copy(self) -> "Limit":
        """Another one like this."""
        ...


class Apart:
    """At most one pod in a domain. Nodes without the label take any number."""

    lasting = True

    def __init__(self, of: Ints) -> None:
        self.of = of
        self._used: set[int] = set()

    def slack(self, domain: int) -> int:
        if domain == NONE:
            return ALL
        return 0 if domain in self._used else 1

    def level(self, domain: int) -> int:
        return 0

    def take(self, domain: int, pods: int) -> bool:
        if domain != NONE:
            self._used.add(domain)
        return False

    def most(self, caps: Ints) -> int:
        alone = self.of == NONE
        return len(np.unique(self.of[(caps > 0) & ~alone])) + int(caps[alone].sum())

    def copy(self) -> "Apart":
        return Apart(self.of)


class Skew:
    """At most `skew` pods more in a domain than in the emptiest one."""

    lasting = False

    def __init__(self, domains: Domains, eligible: Ints, counts: Ints, skew: int, min_domains: int) -> None:
        self.of = domains.of
        self.skew = skew
        self.eligible = eligible
        """The domains among which the emptiest is looked for."""
        self.counts = counts
        """By domain: the pods there that count."""
        self.floored = len(eligible) < min_domains
        """Too few domains: as if there were an empty one, whatever is placed."""
        self._levels: list[int] = counts.tolist()
        self._at: dict[int, int] = {}
        for level in counts[eligible].tolist():
            self._at[level] = self._at.get(level, 0) + 1
        self.least = 0 if self.floored else min(self._at, default=ALL)

    def slack(self, domain: int) -> int:
        return self.least + self.skew - self._levels[domain]

    def level(self, domain: int) -> int:
        return self._levels[domain]

    def take(self, domain: int, pods: int) -> bool:
        before = self._levels[domain]
        after = self._levels[domain] = before + pods
        self._at[after] = self._at.get(after, 0) + 1
        self._at[before] -= 1
        if self._at[before]:
            return False
        del self._at[before]
        if self.floored or before > self.least:
            return False
        # Nobody is below `after` but those who are in between: levels are few, and each is passed once.
        while self.least not in self._at:
            self.least += 1
        return True

    def most(self, caps: Ints) -> int:
        # The emptiest domain can be filled up to the level at which the first of them has no room; all others then to
        # `skew` above that. Whoever places one pod after the other where it is let in gets there, in any order.
        open_ = caps > 0
        room = np.zeros(len(self.counts), dtype=np.int64)
        np.add.at(room, self.of[open_], caps[open_])
        least = 0 if self.floored else int((self.counts + room)[self.eligible].min(initial=ALL))
        return int(np.clip(least + self.skew - self.counts, 0, room).sum())

    def copy(self) -> "Skew":
        twin = Skew.__new__(Skew)
        twin.of, twin.skew, twin.eligible, twin.counts = self.of, self.skew, self.eligible, self.counts
        twin.floored, twin.least = self.floored, self.least
        twin._levels, twin._at = list(self._levels), dict(self._at)
        return twin


def single(limit: Apart, slots: Ints) -> bool:
    """Whether each of these slots is in a domain of its own, so that one pod a node is what it comes to."""
    of = limit.of[slots]
    return bool((of != NONE).all()) and len(np.unique(of)) == len(of)
