"""Answer a question from data. No I/O, no sentences.

Every comparison of the service is asked here. One candidate against its rival is Student's t test of their difference
(`pairs`) with a moderated variance (`moderation`). To find the best of k candidates, each is compared with all k − 1
others at once (multiple comparisons with the best: Hsu 1984, Constrained simultaneous confidence intervals for multiple
comparisons with the best): it is worse if one of them is better by more than luck explains, where each of the k − 1
tests has 1/(k − 1) of the error (Bonferroni). "No difference larger than x" is two one-sided tests (Schuirmann 1987, A
comparison of the two one-sided tests procedure and the power approach for assessing the equivalence of average
bioavailability).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sweeper.judging.advice import needed, samples_needed
from sweeper.judging.levels import weakest
from sweeper.judging.moderation import Prior
from sweeper.judging.pairs import Error, Pair, pair_of
from sweeper.judging.question import (
    BETTER,
    NOT_COMPARED,
    OPEN,
    SAME,
    SAMPLES,
    SEEDS,
    WORSE,
    Data,
    Question,
    Verdict,
    Verdicts,
)  # fmt: skip

#: Seeds of each side that are proposed if a side has only one. Two give a spread; a third shows whether one diverged.
FIRST_SEEDS = 3


def judge(question: Question, data: Data) -> Verdicts:
    """Return the verdicts of a question. The same question and data always have the same verdicts.

    Example:
        >>> values = {"a": {0: 0.10, 1: 0.11, 2: 0.10}, "b": {0: 0.30, 1: 0.31, 2: 0.32}}
        >>> verdicts = judge(Question(["a", "b"], "nll", relative=True), Data(values))
        >>> verdicts.leader, verdicts.code, verdicts.of["b"].code
        ('a', 'better', 'worse')
    """
    pairs = {names: pair_of(question, data, *names) for names in question.pairs(data)}
    known = {names: pair for names, pair in pairs.items() if pair is not None}
    priors = _priors(question, [*known.values()])
    judged = {
        names: _Judged(question, pair, pair.error(prior))
        for (names, pair), prior in zip(known.items(), priors, strict=True)
    }
    if question.against:
        of = {
            names[0]: judged[names].verdict() if names in judged else not_compared(question, data, names)
            for names in pairs
        }
        return Verdicts(question, None, of)
    return _best(question, data, judged)


def _priors(question: Question, pairs: Sequence[Pair]) -> list[Prior]:
    """Return for each pair the typical variance of the pairs like it.

    Spreads belong to candidates, so these are the pairs that share a candidate with it. Where each candidate has a
    rival of its own, all pairs are alike.
    """
    of = defaultdict[tuple[str, bool], list[Pair]](list)
    for pair in pairs:
        for name in (pair.candidate, pair.rival):
            of["" if question.against else name, pair.paired].append(pair)

    def alike(pair: Pair) -> list[Pair]:
        if question.against:
            return of["", pair.paired][::2]  # each pair was entered for both of its sides
        one, other = (of[name, pair.paired] for name in (pair.candidate, pair.rival))
        return [*one, *(shared for shared in other if shared is not pair)]

    return [Prior.of([(like.variance, like.freedom) for like in alike(pair)]) for pair in pairs]


def change(
    metric: str,
    before: Mapping[Any, float],
    after: Mapping[Any, float],
    among: int = 1,
    *,
    paired: bool = True,
    skewed: bool = False,
) -> Verdict:
    """Return the verdict on the values of some units after a change, against those before it; WORSE if they are larger.

    Args:
        metric: the metric.
        before, after: unit (a seed or a configuration) → value; if paired, only units in both are compared.
        among: number of such changes in one table, whose intervals hold together at 95 %.
        paired: whether a unit's values belong together; else both sides are independent samples.
        skewed: allow for skewed values.

    Example:
        >>> change("ece", {0: 0.30, 1: 0.31, 2: 0.33, 3: 0.32}, {0: 0.25, 1: 0.27, 2: 0.28, 3: 0.26}).code
        'better'
    """
    if paired:
        before = {unit: value for unit, value in before.items() if unit in after}
        after = {unit: after[unit] for unit in before}
    question = Question(["after"], metric, level=0.95, against=["before"], among=among, paired=paired, skewed=skewed)
    return judge(question, Data({"before": before, "after": after})).of["after"]


def not_compared(question: Question, data: Data, names: Sequence[str] = ()) -> Verdict:
    """Return the verdict on a candidate without a rival, or if one of both has too few seeds."""
    wanted = FIRST_SEEDS if len(names) > 1 and all(data.values.get(name) for name in names) else None
    return Verdict(NOT_COMPARED, question.metric, question.unit, question.margin, question.level, seeds_needed=wanted)


class _Judged:
    """A pair with its error, judged by a question."""

    def __init__(self, question: Question, pair: Pair, error: Error) -> None:
        self.question, self.pair, self.error = question, pair, error
        self.share = question.error(pair.count)
        self.reach = error.reach(self.share)

    @property
    def code(self) -> str:
        """BETTER, WORSE, SAME or OPEN."""
        low, high = self.ends(self.share)
        if low > 0 or high < 0:
            return WORSE if low > 0 else BETTER
        return SAME if self.largest <= self.question.margin else OPEN

    def ends(self, share: float) -> tuple[float, float]:
        """Return the interval of the difference, on the scale of comparison; `share` of the error is on each side."""
        least, most = self.pair.excess
        below, above = self.error.reaches(share)
        return self.pair.estimate - most - below, self.pair.estimate - least + above

    @property
    def p(self) -> float:
        """The two-sided p of no difference, of this pair alone."""
        least, most = self.pair.excess
        return self.error.p(max(0.0, self.pair.estimate - most) + min(0.0, self.pair.estimate - least))

    @property
    def largest(self) -> float:
        """Largest difference of either sign that two one-sided tests do not exclude, in the question's unit."""
        return max(abs(self.in_unit(end)) for end in self.ends(2 * self.share))

    def in_unit(self, score: float) -> float:
        """Convert a difference on the scale of comparison to candidate minus rival in the question's unit."""
        if self.pair.relative:
            return self.pair.means[1] * math.expm1(min(score, 700.0))
        return score if self.question.mode == "min" else -score

    def verdict(self) -> Verdict:
        """Return the verdict on the candidate."""
        question, pair, code = self.question, self.pair, self.code
        ends = [self.in_unit(end) for end in self.ends(self.share)]
        one, other = pair.means
        wanted = needed(question, pair, self.error) if code == OPEN else None
        few_samples = self.error.samples > self.error.seeds or pair.excess[1] - pair.excess[0] > self.reach
        by_samples = code == OPEN and wanted is None and few_samples
        samples = samples_needed(question, pair, self.error) if by_samples else None
        return Verdict(
            code, question.metric, question.unit, question.margin, question.level, pair.rival,
            one - other, min(ends), max(ends), self.largest, self.p, one / other if min(one, other) > 0 else math.nan,
            (SAMPLES if by_samples else SEEDS) if code == OPEN else "", wanted, samples, pair.seeds, pair.paired,
        )  # fmt: skip

    def mirrored(self) -> _Judged:
        """Return the same comparison from the rival's side."""
        pair = self.pair
        other = replace(
            pair, candidate=pair.rival, rival=pair.candidate, means=pair.means[::-1], estimate=-pair.estimate,
            excess=(-pair.excess[1], -pair.excess[0]), third=-pair.third,
        )  # fmt: skip
        return _Judged(self.question, other, replace(self.error, skewness=-self.error.skewness))


def _best(question: Question, data: Data, judged: Mapping[tuple[str, str], _Judged]) -> Verdicts:
    """Return the verdicts on which candidate is the best."""
    versus: dict[str, dict[str, _Judged]] = {name: {} for name in question.candidates}
    for (one, other), pair in judged.items():
        versus[one][other], versus[other][one] = pair, pair.mirrored()
    beaten = {name: [pair for pair in rivals.values() if pair.code == WORSE] for name, rivals in versus.items()}
    leader = _leader(question, data, versus, beaten)
    of = {}
    for name in question.candidates:
        if name == leader:
            continue
        against_leader = versus[name].get(leader) if leader is not None else None
        clearest = max(beaten[name], key=lambda pair: pair.pair.estimate / pair.reach, default=None)
        shown = against_leader if against_leader is not None and against_leader.code == WORSE else clearest
        shown = shown or against_leader
        of[name] = not_compared(question, data, [name, leader or ""]) if shown is None else shown.verdict()
    if leader is None:
        return Verdicts(question, None, of)
    rivals = {name: versus[leader][name] for name in versus[leader] if of[name].code != WORSE}
    lost = max((_lost(pair) for pair in rivals.values()), default=(0.0, 0.0)) if versus[leader] else (None, None)
    return Verdicts(question, leader, {leader: _of_leader(question, data, versus[leader], of), **of}, *lost)


def _leader(
    question: Question, data: Data, versus: Mapping[str, Mapping[str, _Judged]], beaten: Mapping[str, Sequence[_Judged]]
) -> str | None:
    """Return the candidate that no other leads by much, each compared on their common seeds."""
    sign = 1 if question.mode == "min" else -1
    means = {n: sign * math.fsum(v.values()) / len(v) for n in question.candidates if (v := data.values.get(n))}
    compared = [name for name in question.candidates if versus[name]]
    left = [name for name in compared if not beaten[name]] or compared or [*means]

    def behind(name: str) -> tuple[float, float]:
        return max((pair.pair.estimate for pair in versus[name].values()), default=0.0), means[name]

    return min(left, key=behind, default=None)


def _lost(leader: _Judged) -> tuple[float, float | None]:
    """Return the largest lead of a rival over the leader, in the question's unit and as a share of its value."""
    lead = max(0.0, leader.pair.estimate + leader.error.reaches(leader.share)[1])
    share = math.expm1(min(lead, 700.0)) if leader.pair.relative else None
    return abs(leader.in_unit(lead)), share


def _of_leader(question: Question, data: Data, versus: Mapping[str, _Judged], of: Mapping[str, Verdict]) -> Verdict:
    """Return the leader's verdict: the weakest that it has against another candidate."""
    if not versus:
        return not_compared(question, data)
    nearest = min(versus, key=lambda name: abs(versus[name].pair.estimate))
    verdict = versus[nearest].verdict()
    together = weakest([verdict.code for verdict in of.values()])
    code = BETTER if together == WORSE else together
    wanted = [v.seeds_needed for v in of.values() if v.code in (OPEN, NOT_COMPARED)]
    most = max((n for n in wanted if n is not None), default=None) if None not in wanted else None
    limits = {v.limited_by for v in of.values()}
    limited = "" if code != OPEN else SEEDS if SEEDS in limits or SAMPLES not in limits else SAMPLES
    return replace(verdict, code=code, seeds_needed=most, limited_by=limited)
