"""What a claim is: a published sentence, a rule decided before looking, and a judge of result tables.

To add a claim, write a judge, a function in the file of its subject. The function's name is the claim's name, and its
docstring states claim and rule::

    @claim("mukhoti", "test")
    def focal_beats_cross_entropy(test: Rows) -> Estimates:
        '''Focal loss has a smaller ECE than cross-entropy.

        Rule: on each network, test ECE of cross-entropy minus focal loss's; holds where …

        Estimated: test ECE minus focal loss's

        Missing: both losses are needed on one network
        '''
        return differences(test, "ece", is_loss("focal"), losses(["cross_entropy"]))

A judge receives networks that were trained to the end, and judges network by network. `Claim.judge` turns its estimates
into one verdict, with the texts after `Estimated` and `Missing`. A judge with a rule of another kind returns a whole
`Verdict` instead. The package imports every file of claims.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

from search_spaces.papers.claims.numbers import REPLICATES, Estimate, Estimates, of_split, trained_to_the_end
from sweeper.core.cells import Rows

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"


@dataclass(frozen=True)
class Verdict:
    """The verdict of one sweep on one claim.

    Attributes:
        verdict: `holds`, `does not hold` or `undecided`.
        statistic: the rule's statistic, e.g. a rank correlation; `None` if it cannot be computed.
        interval: 95 % interval of the statistic, if it has one.
        n: number of independent values.
        unit: the things that `n` counts: configurations, settings, replicates of one configuration …
        sentence: statistic, interval and n in words, and their limits.
        details: further numbers by name, which do not affect the verdict.
        claim: the claim's name.
    """

    verdict: str
    statistic: float | None
    interval: tuple[float, float] | None
    n: int
    unit: str
    sentence: str
    details: Mapping[str, object]
    claim: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {"claim": self.claim, **asdict(self)}


#: Estimates with further numbers by name, which do not affect the verdict.
Detailed = tuple[Estimates, Mapping[str, object]]

#: Rows of trials trained to the end → estimates from them, or a whole verdict, whose `claim` can be empty.
Judge = Callable[[Rows], Estimates | Detailed | Verdict]


@dataclass(frozen=True)
class Claim:
    """A claim of a paper that a sweep's tables can support or refute.

    Attributes:
        name: name in headers and on the command line.
        paper: short name of the paper.
        decide: pure function that judges. Its docstring states the claim, its rule, the name of the estimate, and the
            sentence for the case that nothing can be estimated.
        split: split of the rows that the judge receives; all splits if empty.
        form: format of the numbers.
        positive_holds: whether positive estimates support the claim.
        weights: whether the judge needs mean focal weights, which are computed from stored predictions.
        table: source of the rows: the view `final`; `final` with the layers' traces from `blocks`; or `epochs` with
            their configuration.
    """

    name: str
    paper: str
    decide: Judge
    split: str = ""
    form: str = ".3g"
    positive_holds: bool = True
    weights: bool = False
    table: Literal["final", "epochs", "blocks"] = "final"

    def judge(self, rows: Rows) -> Verdict:
        """Return the verdict of the rows of its table."""
        # Filtered here and not in each judge, so that no judge can forget it.
        held = trained_to_the_end(rows)
        outcome = self.decide(of_split(held, self.split) if self.split else held)
        if isinstance(outcome, Verdict):
            return replace(outcome, claim=self.name)
        estimates, details = outcome if isinstance(outcome, tuple) else (outcome, {})
        return self._verdict(estimates, details)

    def _verdict(self, estimates: Estimates, details: Mapping[str, object]) -> Verdict:
        """Return one verdict from an estimate for each comparison, or each network.

        The claim holds if every 95 % interval lies on its side of 0. If it is false for only one comparison, that
        interval errs in 2.5 %, whatever the number of comparisons. The claim does not hold if one interval lies on the
        other side even at 95 % for all together (Bonferroni), because some of many intervals err. Otherwise it is
        undecided. The verdict's statistic is the estimate that is worst for the claim.
        """
        known = {name: estimate for name, estimate in estimates.items() if estimate.value is not None}
        if not known:
            return replace(undecided(self._texts["Missing"]), claim=self.name)
        sign = 1 if self.positive_holds else -1
        verdicts = {name: _side(estimate, sign, len(known)) for name, estimate in estimates.items()}
        kinds = set(verdicts.values())
        verdict = HOLDS if kinds == {HOLDS} else FAILS if FAILS in kinds else UNDECIDED
        # One number represents all estimates: the worst one cannot make a claim look better than it is.
        worst = min(known.values(), key=lambda estimate: sign * (estimate.value or 0.0))
        words = "; ".join(f"{name} {estimate.text(self.form)}" for name, estimate in estimates.items())
        sentence = f"{self._texts['Estimated']}: {words}; n = {_counts(known)}"
        if any(estimate.unit == REPLICATES for estimate in known.values()):
            sentence += ", so of these settings alone"
        more = {"verdicts": verdicts, "estimates": {name: estimate.value for name, estimate in estimates.items()}}
        details = {**more, **details}
        return Verdict(verdict, worst.value, worst.interval, worst.n, worst.unit, sentence, details, self.name)

    @property
    def statement(self) -> str:
        """The claim, one sentence."""
        return self._texts[""]

    @property
    def rule(self) -> str:
        """The conditions under which the claim holds or does not hold, fixed in advance; one line."""
        return self._texts["Rule"]

    @cached_property
    def _texts(self) -> dict[str, str]:
        """The paragraphs of the judge's docstring by first word; the first paragraph by the empty string."""
        # The docstring is the only source of the rule, so the printed rule cannot differ from the documented one.
        first, *others = (" ".join(text.split()) for text in inspect.cleandoc(self.decide.__doc__ or "").split("\n\n"))
        return {"": first, **{word: text for word, _, text in (paragraph.partition(": ") for paragraph in others)}}


def undecided(sentence: str, n: int = 0) -> Verdict:
    """Return the verdict for tables that lack the data for the claim."""
    return Verdict(UNDECIDED, None, None, n, "configurations", sentence, {})


#: The claims by name, filled in by `claim`.
CLAIMS: dict[str, Claim] = {}


def claim(paper: str, split: str = "", **options: Any) -> Callable[[Judge], Judge]:
    """Register the decorated judge under its own name; the options are fields of `Claim`."""

    def register(decide: Judge) -> Judge:
        CLAIMS[decide.__name__] = Claim(decide.__name__, paper, decide, split, **options)
        return decide

    return register


def _side(estimate: Estimate, sign: int, among: int) -> str:
    """Return the verdict of one of several estimates by itself."""
    if estimate.value is None or not estimate.shown():
        return UNDECIDED
    # Only refuting is corrected for the number of comparisons: holding requires all of them at once.
    if sign * estimate.value > 0:
        return HOLDS
    return FAILS if estimate.shown(among) else UNDECIDED


def _counts(estimates: Estimates) -> str:
    """Return the numbers of compared units in words: `16 settings`, or `12 to 16 configurations`."""
    parts = []
    for unit in dict.fromkeys(estimate.unit for estimate in estimates.values()):
        sizes = [estimate.n for estimate in estimates.values() if estimate.unit == unit]
        count = str(max(sizes)) if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        parts.append(f"{count} {unit}")
    return ", ".join(parts)
