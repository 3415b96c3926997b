"""What can be asked of measured candidates, and what the answers say. No I/O, no sentences.

A question compares candidates (configurations, losses, a network before and after a post-hoc method) by one metric.
The same question on the same data has the same verdict wherever it is asked.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mode = Literal["min", "max"]

#: Codes of verdicts: the candidate is better or worse than its rival, they differ by at most the margin, neither is
#: shown, or nothing can be compared.
BETTER, WORSE, SAME, OPEN, NOT_COMPARED = "better", "worse", "same", "open", "not_compared"

#: What limits an open verdict: the number of seeds, or the number of test samples, where more seeds do not help.
SEEDS, SAMPLES = "seeds", "samples"


#: Values that differ by less than this share of the largest differ only by rounding.
ROUNDING = 1e-12

#: Level of questions on the best: "90 % sure".
LEVEL = 0.9


@dataclass(frozen=True)
class Question:
    """A question about candidates.

    Without `against`, each candidate is compared with each other one: which is the best? With `against`, each candidate
    is compared with its own rival, e.g. the networks after temperature scaling with the same networks before.

    Attributes:
        candidates: names of rows of the data.
        metric: the compared metric.
        mode: whether small (`min`) or large (`max`) values are better.
        unit: unit of the metric, in which margin, estimates and intervals are given.
        margin: largest difference that counts as none; 0 if every difference counts.
        relative: whether differences are judged as ratios, as for losses, which spread in proportion to their size.
        level: probability with which all intervals of the question hold.
        paired: whether a seed's values of two candidates belong together.
        against: the rival of each candidate; empty to compare all with each other.
        among: number of such questions that share the level, e.g. of metrics in one table.
        skewed: allow for skewed values, as those of configurations are: intervals are wider.
        samples_only: judge a single seed over test samples. The verdict holds for these networks, not for others.
        first: number of seeds at which the question was asked first, if it is asked again after each further one; 0 if
            it is asked once. The k-th time, a pair has 1/k of the error: looking often finds chance differences.
        stage: which seeds the data hold, e.g. `final`.
    """

    candidates: Sequence[str]
    metric: str
    mode: Mode = "min"
    unit: str = ""
    margin: float = 0.0
    relative: bool = False
    level: float = LEVEL
    paired: bool = True
    against: Sequence[str] = ()
    among: int = 1
    skewed: bool = False
    samples_only: bool = False
    first: int = 0
    stage: str = ""

    def pairs(self, data: Data) -> list[tuple[str, str]]:
        """Return the pairs of a candidate and its rival, each once.

        Without `against`, candidates with too few seeds are left out: thousands of them would be millions of pairs.
        """
        if self.against:
            return list(zip(self.candidates, self.against, strict=True))
        least = 1 if self.samples_only else 2
        enough = [name for name in self.candidates if len(data.values.get(name, ())) >= least]
        return [*combinations(enough, 2)]

    def error(self, seeds: int) -> float:
        """Return the probability that the interval of a pair with so many seeds lies on one side of the truth."""
        rivals = 1 if self.against else max(1, len(self.candidates) - 1)
        looks = max(1, seeds - self.first + 1) if self.first else 1
        return (1 - self.level) / 2 / rivals / self.among / looks


@dataclass(frozen=True)
class Data:
    """Measured values.

    Attributes:
        values: candidate → seed → finite value. Any independent unit can take the place of a seed.
        left_out: candidate → seed → values without each group of test samples, [groups] (`samples.left_out`). Empty
            treats the test set as exact.
        excess: candidate → seed → between which two values the measured one exceeds that of unlimited test samples, in
            the mean. Empty for metrics without bias, e.g. means over samples.
    """

    values: Mapping[str, Mapping[Any, float]]  # any hashable key: mappings are invariant in it
    left_out: Mapping[str, Mapping[Any, Floats]] = field(default_factory=dict)
    excess: Mapping[str, Mapping[Any, tuple[float, float]]] = field(default_factory=dict)

    @cached_property
    def resolution(self) -> float:
        """Smallest difference between two values, which bounds their precision; 0 if all are equal.

        Accuracies over 360 samples are multiples of 1/360: two equal ones do not show a spread of zero. Values that
        differ only by rounding count as equal.
        """
        distinct = np.unique([value for by_seed in self.values.values() for value in by_seed.values()])
        gaps = np.diff(distinct)
        gaps = gaps[gaps > ROUNDING * np.abs(distinct).max(initial=0.0)]
        return float(gaps.min()) if gaps.size else 0.0


@dataclass(frozen=True)
class Verdict:
    """The verdict on one candidate.

    Attributes:
        code: BETTER, WORSE, SAME, OPEN or NOT_COMPARED.
        metric, unit, margin, level: of the question.
        rival: the candidate it was compared with; empty if NOT_COMPARED.
        estimate: candidate minus rival as measured, in the question's unit.
        low, high: interval of the difference; of that over unlimited test samples, if the data say how far the metric
            exceeds it.
        largest: largest difference of either sign that is not excluded.
        p: two-sided p of no difference, of this pair alone; NaN if NOT_COMPARED.
        ratio: candidate's value over the rival's; NaN unless both are positive.
        limited_by: SEEDS or SAMPLES if the verdict is OPEN, else empty.
        seeds_needed: common seeds of both sides that probably decide; None if decided or if no number tried does.
        samples_needed: if limited by SAMPLES, how many times the present test samples probably decide; None if no
            number tried does.
        seeds: the seeds used: common ones if paired, else those of both sides.
        paired: whether the candidates were compared seed by seed.
    """

    code: str
    metric: str
    unit: str
    margin: float
    level: float
    rival: str = ""
    estimate: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    largest: float = float("nan")
    p: float = float("nan")
    ratio: float = float("nan")
    limited_by: str = ""
    seeds_needed: int | None = None
    samples_needed: float | None = None
    seeds: tuple[Hashable, ...] = ()
    paired: bool = False


@dataclass(frozen=True)
class Verdicts:
    """The verdicts of one question.

    Attributes:
        question: the question.
        leader: candidate with the best mean; None without `candidates` that have values. With `against`, None.
        of: candidate → its verdict. The leader's rival is the candidate nearest to it.
        most_lost: largest possible lead of another candidate over the leader, in the question's unit, at least 0.
        most_lost_ratio: the same as a share of the better value; None if values are not positive.
    """

    question: Question
    leader: str | None
    of: Mapping[str, Verdict]
    most_lost: float | None = None
    most_lost_ratio: float | None = None

    def named(self, *codes: str) -> list[str]:
        """Return the candidates with one of these codes."""
        return [name for name, verdict in self.of.items() if verdict.code in codes]

    @property
    def code(self) -> str:
        """The leader's code: BETTER if all others are worse, SAME if they differ by at most the margin."""
        return NOT_COMPARED if self.leader is None else self.of[self.leader].code

    @property
    def seeds_needed(self) -> int | None:
        """Common seeds of each candidate that probably decide every open verdict; None if some cannot be decided."""
        needed = [self.of[name].seeds_needed for name in self.named(OPEN)]
        return max((n for n in needed if n is not None), default=None) if None not in needed else None

    @property
    def in_play(self) -> list[str]:
        """Candidates whose verdicts further seeds could decide: open ones, and the leader they are compared with."""
        rivals = [name for name in self.named(OPEN) if self.of[name].limited_by == SEEDS and name != self.leader]
        return [self.leader, *rivals] if rivals and self.leader is not None else rivals
