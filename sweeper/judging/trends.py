"""How a metric changes along the values of a hyperparameter, all else being equal. No I/O, no sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.judging.judge import judge
from sweeper.judging.question import BETTER, OPEN, WORSE, Data, Question, Verdict

#: Codes of trends: the metric falls or rises with the value, it does both, or neither is shown.
FALLS, RISES, TURNS = "falls", "rises", "turns"

#: The level of each step.
LEVEL = 0.95


@dataclass(frozen=True)
class Trend:
    """A metric along the values of a hyperparameter, from the smallest to the largest.

    Attributes:
        means: mean of the metric at each value.
        steps: verdicts on each value against the one before it, BETTER if the metric is smaller.
        ends: verdict on the largest value against the smallest.
    """

    means: Sequence[float]
    steps: Sequence[Verdict]
    ends: Verdict

    @property
    def code(self) -> str:
        """FALLS, RISES, TURNS or OPEN. Where a step is open and none goes the other way, both ends decide."""
        shown = {step.code for step in self.steps}
        if {BETTER, WORSE} <= shown:
            return TURNS
        code = self.ends.code if shown - {BETTER, WORSE} else self.steps[0].code
        opposite = {BETTER: WORSE, WORSE: BETTER}.get(code)
        return {BETTER: FALLS, WORSE: RISES}.get(code, OPEN) if opposite not in shown else OPEN

    @property
    def by_steps(self) -> bool:
        """Whether each step is decided, not only both ends."""
        return {step.code for step in self.steps} in ({BETTER}, {WORSE})


def trend(metric: str, values: Sequence[Mapping[Any, float]], *, relative: bool = True) -> Trend | None:
    """Return a metric's trend; None for fewer than two values of the hyperparameter, or if one has no value.

    Args:
        metric: name of the metric.
        values: seed → finite value, for each value of the hyperparameter, the smallest first.
        relative: whether steps are judged as ratios.

    Example:
        >>> falling = [{0: 14.0, 1: 15.0, 2: 13.0}, {0: 9.0, 1: 9.6, 2: 8.7}, {0: 5.0, 1: 5.2, 2: 4.9}]
        >>> trend("lambda_max", falling).code
        'falls'
    """
    if len(values) < 2 or not all(values):
        return None
    names = [str(at) for at in range(len(values))]
    pairs = [*zip(names[1:], names, strict=False), (names[-1], names[0])]
    of = dict(zip(names, values, strict=True))

    def judged(candidates: Sequence[tuple[str, str]]) -> list[Verdict]:
        # A candidate of two questions has two verdicts, so both ends are asked about apart.
        asked = [later for later, _ in candidates], [earlier for _, earlier in candidates]
        question = Question(asked[0], metric, level=LEVEL, relative=relative, against=asked[1])
        return [*judge(question, Data(of)).of.values()]

    means = [math.fsum(own.values()) / len(own) for own in values]
    return Trend(means, judged(pairs[:-1]), *judged(pairs[-1:]))
