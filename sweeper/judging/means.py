"""The mean of one candidate over all seeds, with its interval. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sweeper.judging.moderation import Prior
from sweeper.judging.pairs import Error
from sweeper.judging.question import Data, Question
from sweeper.judging.samples import shared_variance


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and test samples.

    Attributes:
        value: the mean.
        low, high: its interval; NaN for a single seed.
        seeds: number of seeds.
    """

    value: float
    low: float
    high: float
    seeds: int


def means(question: Question, data: Data, chosen_from: int = 1) -> dict[str, Mean]:
    """Return the mean of each candidate with its interval at the question's level.

    Spreads are moderated over the question's candidates. A candidate that was chosen for its mean among `chosen_from`
    ones has a mean that is too good: its error is at most the largest of so many. So that side of the interval is as
    wide as for the largest of so many errors, and covers however the choice was made, also by earlier values of the
    same seeds.

    Args:
        question: the question; its level holds for one interval.
        data: the values.
        chosen_from: number of candidates that each one was chosen from.

    Example:
        >>> mean = means(Question(["a"], "nll", level=0.95), Data({"a": {0: 0.10, 1: 0.12, 2: 0.11}}))["a"]
        >>> round(mean.low, 3), round(mean.high, 3)
        (0.084, 0.136)
    """
    values = {name: np.array([*data.values[name].values()]) for name in question.candidates if data.values.get(name)}
    relative = {n: question.relative and question.mode == "min" and float(v.min()) > 0 for n, v in values.items()}
    scale = {name: float(v.mean()) if relative[name] else 1.0 for name, v in values.items()}
    variances = {
        name: float(v.var(ddof=1)) / scale[name] ** 2 + (data.resolution / scale[name]) ** 2 / 12
        for name, v in values.items()
        if len(v) > 1
    }
    prior = Prior.of([(variance, len(values[name]) - 1) for name, variance in variances.items()])
    known = dict[str, Mean]()
    for name, of in values.items():
        mean = float(of.mean())
        if name not in variances:
            known[name] = Mean(mean, math.nan, math.nan, len(of))
            continue
        variance, freedom = prior.moderated(variances[name], len(of) - 1)
        left_out = data.left_out.get(name, {})
        samples = (0.0, 0)
        if all(seed in left_out for seed in data.values[name]):
            samples = shared_variance(np.stack([left_out[seed] for seed in data.values[name]], axis=1) / scale[name])
        error, side = Error.of((variance / len(of), freedom), samples), (1 - question.level) / 2
        # `worse` reaches towards worse values: luck made a chosen mean too good.
        worse, better = error.reach(side / chosen_from), error.reach(side)
        sign = 1 if question.mode == "min" else -1
        ends = [mean * math.exp(end) if relative[name] else mean + end for end in (sign * worse, -sign * better)]
        known[name] = Mean(mean, min(ends), max(ends), len(of))
    return known
