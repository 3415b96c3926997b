"""What a claim is: a published sentence, a rule decided before looking, and a judge of result tables.

To add one, write a judge in the file of its subject; its name is the claim's, its docstring states claim and rule::

    @claim("mukhoti", "test")
    def focal_beats_cross_entropy(test: Rows) -> Estimates:
        '''Focal loss has a smaller ECE than cross-entropy.

        Rule: on each network, test ECE of cross-entropy minus focal loss's; holds where …

        Estimated: test ECE minus focal loss's

        Missing: both losses are needed on one network
        '''
        return differences(test, "ece", is_loss("focal"), losses(["cross_entropy"]))

A judge is given networks that were trained to the end. Claims are judged network by network; `verdict_of` makes one
verdict of several estimates, with the last two texts. A judge whose words depend on what it finds makes its own. A new
file is imported by the package.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

from search_spaces.papers.claims.numbers import REPLICATES, Estimate, Estimates, of_split, trained_to_the_end
from sweeper.core.cells import Rows
from sweeper.core.statistics.differences import SIGNIFICANT

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"


@dataclass(frozen=True)
class Verdict:
    """What one sweep says about one claim.

    Attributes:
        verdict: `holds`, `does not hold` or `undecided`.
        statistic: what the rule looks at, e.g. a rank correlation; `None` where it could not be formed.
        interval: its 95 % interval; `None` where there is none.
        n: how many independent values there were.
        unit: what `n` counts: configurations, settings, replicates of one configuration …
        sentence: statistic, interval and n in words, and what they do not show.
        details: further figures, by name, which the verdict does not rest on.
        claim: its name.
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


#: With further figures, by name, which the verdict does not rest on.
Detailed = tuple[Estimates, Mapping[str, object]]

#: Rows that were trained to the end → what is estimated from them, or a whole verdict, which need not name the claim.
Judge = Callable[[Rows], Estimates | Detailed | Verdict]


@dataclass(frozen=True)
class Claim:
    """A claim of a paper that a sweep's tables can speak for or against.

    Attributes:
        name: as headers and the command line write it.
        paper: short name of the paper.
        decide: the judge; pure. Its docstring states the claim, its rule, what is estimated, and what is missing where
            nothing can be.
        split: whose rows the judge takes; of all where empty.
        form: of the numbers.
        positive_holds: whether the claim's side of 0 is above it.
        weights: the judge needs the mean focal weights, which are computed from stored predictions.
        table: whose rows the judge takes: those of the view `final`; with traces of `blocks` by layer; or of `epochs`
            with their configuration.
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
        """Return what the rows of its table say."""
        held = trained_to_the_end(rows)
        found = self.decide(of_split(held, self.split) if self.split else held)
        if not isinstance(found, Verdict):
            estimates, details = found if isinstance(found, tuple) else (found, {})
            what, missing = self._texts["Estimated"], self._texts["Missing"]
            found = verdict_of(
                estimates, what, missing=missing, form=self.form, positive_holds=self.positive_holds, details=details
            )
        return replace(found, claim=self.name)

    @property
    def statement(self) -> str:
        """The claim, one sentence."""
        return self._texts[""]

    @property
    def rule(self) -> str:
        """When it holds and when it does not, decided before looking; as one line."""
        return self._texts["Rule"]

    @cached_property
    def _texts(self) -> dict[str, str]:
        """The paragraphs of the judge's docstring by their first word; the first has none."""
        first, *others = (" ".join(each.split()) for each in inspect.cleandoc(self.decide.__doc__ or "").split("\n\n"))
        return {"": first, **{word: text for word, _, text in (each.partition(": ") for each in others)}}


def undecided(sentence: str, n: int = 0) -> Verdict:
    """Return the verdict where the tables do not have what the claim is about."""
    return Verdict(UNDECIDED, None, None, n, "configurations", sentence, {})


#: The claims by name, filled in by `claim`.
CLAIMS: dict[str, Claim] = {}


def claim(paper: str, split: str = "", **options: Any) -> Callable[[Judge], Judge]:
    """Register the function below as the judge of a claim, which is called like it; options as of a `Claim`."""

    def register(decide: Judge) -> Judge:
        CLAIMS[decide.__name__] = Claim(decide.__name__, paper, decide, split, **options)
        return decide

    return register


def verdict_of(
    found: Estimates,
    what: str,
    *,
    missing: str,
    form: str = ".3g",
    positive_holds: bool = True,
    details: Mapping[str, object] | None = None,
) -> Verdict:
    """Return one verdict from an estimate for each comparison, or each network.

    It holds where every 95 % interval lies on the claim's side of 0: where the claim is true but of one, that one's
    interval errs in 2.5 %, however many there are. It does not hold where one lies on the other side even at 95 % for
    all together (Bonferroni), since of many some err. It is undecided otherwise. The verdict's statistic is that which
    is worst for the claim.

    Args:
        found: what was estimated, by network or comparison.
        what: the estimate in words, before the numbers.
        missing: the sentence where nothing could be estimated.
        form: of the numbers.
        positive_holds: whether the claim's side of 0 is above it.
        details: further ones.
    """
    known = {name: each for name, each in found.items() if each.value is not None}
    if not known:
        return undecided(missing)
    sign = 1 if positive_holds else -1
    verdicts = {name: _side(each, sign, len(known)) for name, each in found.items()}
    kinds = set(verdicts.values())
    verdict = HOLDS if kinds == {HOLDS} else FAILS if FAILS in kinds else UNDECIDED
    worst = min(known.values(), key=lambda each: sign * (each.value or 0.0))
    words = "; ".join(f"{name} {each.text(form)}" for name, each in found.items())
    sentence = f"{what}: {words}; n = {_counts(known)}"
    if any(each.unit == REPLICATES for each in known.values()):
        sentence += ", so of these settings alone"
    more = {"verdicts": verdicts, "estimates": {name: each.value for name, each in found.items()}}
    whole = {**more, **(details or {})}
    return Verdict(verdict, worst.value, worst.interval, worst.n, worst.unit, sentence, whole)


def _side(found: Estimate, sign: int, among: int) -> str:
    """Return what one of several estimates says by itself."""
    if found.value is None or found.p >= SIGNIFICANT:
        return UNDECIDED
    if sign * found.value > 0:
        return HOLDS
    return FAILS if found.p * among < SIGNIFICANT else UNDECIDED


def _counts(found: Estimates) -> str:
    """Return how many of what were compared each time: `16 settings`, or `12 to 16 configurations`."""
    parts = []
    for unit in dict.fromkeys(each.unit for each in found.values()):
        sizes = [each.n for each in found.values() if each.unit == unit]
        count = str(max(sizes)) if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        parts.append(f"{count} {unit}")
    return ", ".join(parts)
