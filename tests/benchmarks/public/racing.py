"""Racing seeds at rungs, a rule that was tried and not built: more seeds for who is near the cut-off, before a verdict.

All start with two seeds. Where the interval of a configuration's mean at a rung straddles the cut-off, it gets two
more, trained from epoch 0 to the rung, until the interval does not, or it has `at_most`; then its mean decides. Looks
are at levels that spend 5 % of error in all (`sweeper.analysis.statistics.best_set.level_of`); the seeds' spread is
pooled over what came to the rung, on logarithms. Whoever goes on goes on with all its seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri

from sweeper.analysis.statistics.best_set import level_of
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
    values: Floats, order: Floats, rungs: tuple[int, ...], factor: int, first: int, at_most: int
) -> tuple[dict[int, float], int]:
    """Return the finishers with their means, and the epochs of all seeds, of values [configurations, rungs, seeds]."""
    logs, state, spent = np.log(values), [RacingRung(1 / factor) for _ in rungs], 0
    finished: dict[int, float] = {}
    for trial in order:
        seeds, place = first, 0
        spent += seeds * rungs[0]
        while place < len(rungs) - 1:
            look = 1
            while (stops := state[place].verdict(logs[trial, place, :seeds], look)) is None and seeds < at_most:
                more = min(STEP, at_most - seeds)
                spent, seeds, look = spent + more * rungs[place], seeds + more, look + 1
            if stops is None:
                stops = logs[trial, place, :seeds].mean() > np.quantile(state[place].means, 1 / factor)
            state[place].add(logs[trial, place, :seeds])
            if stops:
                break
            spent += seeds * (rungs[place + 1] - rungs[place])
            place += 1
        else:
            finished[int(trial)] = float(logs[trial, -1, :seeds].mean())
    return finished, spent
