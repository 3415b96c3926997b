"""Racing seeds at rungs, a rule that was tried and not built: more seeds for who is near the cut-off, before a verdict.

All start with two seeds. Where the interval of a configuration's mean at a rung straddles the cut-off, it gets two
more, trained from epoch 0 to the rung, until the interval does not, or it has `at_most`; then its mean decides. Looks
are at levels that spend 5 % of error in all (`sweeper.core.statistics.best_set.level_of`); the seeds' spread is
pooled over what came to the rung, on logarithms. Whoever goes on goes on with all its seeds, or with the first two
alone, the others having served the verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri

from sweeper.core.statistics.best_set import level_of
from tests.benchmarks.public.curves import Floats

STEP = 2


@dataclass
class RacingRung:
    """What came to a rung: means of logarithms, and what their seeds' spread adds up to."""

    share: float
    means: list[float] = field(default_factory=list)
    squares: float = 0.0
    freedom: int = 0

    def verdict(self, values: Floats, look: int) -> bool | None:
        """Return whether a configuration with these seeds' logarithms stops; None where more seeds must say."""
        if not self.means:
            return False
        gap = float(values.mean() - np.quantile(self.means, self.share))
        freedom = self.freedom + len(values) - 1
        variance = (self.squares + float(((values - values.mean()) ** 2).sum())) / max(freedom, 1)
        half = float(ndtri((1 + level_of(look)) / 2)) * math.sqrt(variance / len(values))
        return gap > 0 if abs(gap) > half else None

    def add(self, values: Floats) -> None:
        """Take a configuration in."""
        self.means.append(float(values.mean()))
        self.squares += float(((values - values.mean()) ** 2).sum())
        self.freedom += len(values) - 1


def race(
    values: Floats, order: Floats, rungs: tuple[int, ...], factor: int, first: int, at_most: int, *, keep: bool
) -> tuple[dict[int, float], int]:
    """Return the finishers with their means, and the epochs of all seeds, of values [configurations, rungs, seeds].

    `keep` lets all seeds of a configuration that goes on go on.
    """
    logs, state, spent = np.log(values), [RacingRung(1 / factor) for _ in rungs], 0
    finished: dict[int, float] = {}
    for trial in order:
        trained, seeds = np.zeros(at_most, dtype=int), first
        for place, rung in enumerate(rungs):
            asked = seeds
            spent += _train(trained, asked, rung)
            if place == len(rungs) - 1:
                finished[int(trial)] = float(logs[trial, place, :seeds].mean())
                break
            look, here = 1, state[place]
            while (stops := here.verdict(logs[trial, place, :asked], look)) is None and asked < at_most:
                asked, look = min(asked + STEP, at_most), look + 1
                spent += _train(trained, asked, rung)
            measured = logs[trial, place, :asked]
            if stops is None:
                stops = measured.mean() > np.quantile(here.means, here.share)
            here.add(measured)
            if stops:
                break
            seeds = asked if keep else seeds
    return finished, spent


def _train(trained: Floats, seeds: int, rung: int) -> int:
    """Train the first seeds to a rung, each from where it is; return the epochs."""
    epochs = int((rung - trained[:seeds]).sum())
    trained[:seeds] = rung
    return epochs
