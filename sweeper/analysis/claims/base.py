"""What a claim is: a published sentence, a rule decided before looking, and a judge of result tables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from sweeper.text.cells import Rows

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"


@dataclass(frozen=True)
class Verdict:
    """What one sweep says about one claim.

    Attributes:
        claim: its name.
        verdict: `holds`, `does not hold` or `undecided`.
        statistic: what the rule looks at, e.g. a rank correlation; `None` where it could not be formed.
        interval: its 95 % interval; `None` where there is none.
        n: how many independent values there were.
        unit: what `n` counts: configurations, settings, replicates of one configuration …
        sentence: statistic, interval and n in words, and what they do not show.
        details: further figures, by name, which the verdict does not rest on.
    """

    claim: str
    verdict: str
    statistic: float | None
    interval: tuple[float, float] | None
    n: int
    unit: str
    sentence: str
    details: Mapping[str, object]

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Claim:
    """A claim of a paper that a sweep's tables can speak for or against.

    Attributes:
        name: as headers and the command line write it.
        paper: short name of the paper.
        statement: the claim, one sentence.
        judge: rows of its table → verdict; pure. Its docstring states the rule.
        weights: the judge needs the mean focal weights, which are computed from stored predictions.
        table: whose rows the judge takes: those of the view `final`, or of `epochs` with their configuration.
    """

    name: str
    paper: str
    statement: str
    judge: Callable[[Rows], Verdict]
    weights: bool = False
    table: Literal["final", "epochs"] = "final"

    @property
    def rule(self) -> str:
        """When it holds and when it does not, decided before looking; as one line."""
        return " ".join(inspect.cleandoc(self.judge.__doc__ or "").partition("Rule: ")[2].split())


def undecided(claim: str, sentence: str, n: int = 0, unit: str = "configurations") -> Verdict:
    """Return the verdict where the tables do not have what the claim is about."""
    return Verdict(claim, UNDECIDED, None, None, n, unit, sentence, {})
