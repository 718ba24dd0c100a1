"""The claims of the demo: each one looked up, counted, and said again at the end.

What always holds: a claim counts as passed only if what it was given is true; the closing line and the exit status
come from the same counts, so that a demo that showed something else can't end well.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Claim:
    """One sentence about the cluster, whether it holds, and what was seen there."""

    sentence: str
    holds: bool
    seen: str


@dataclass
class Checks:
    """All claims so far, in order."""

    claims: list[Claim] = field(default_factory=list)

    def claim(self, sentence: str, holds: bool, seen: str) -> Claim:
        """Counts a claim. `seen` are the numbers that it was judged by."""
        made = Claim(sentence, holds, seen)
        self.claims.append(made)
        return made

    @property
    def passed(self) -> int:
        """How many hold."""
        return sum(claim.holds for claim in self.claims)

    @property
    def failed(self) -> int:
        """How many don't."""
        return len(self.claims) - self.passed

    @property
    def good(self) -> bool:
        """Whether the demo has shown what it says."""
        return self.passed > 0 and self.failed == 0

    @property
    def closing(self) -> str:
        """The last line."""
        return f"demo: {self.passed} checks passed, {self.failed} failed"
