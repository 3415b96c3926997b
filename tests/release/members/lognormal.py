"""The domain `lognormal`."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

from sweeper.core.domains.base import Interval, Number, Suggesting, domain
from sweeper.core.domains.nodes import Choice

#: Standard deviations between the middle and an end; beyond the ends, nothing is drawn.
REACH = 2


@domain("lognormal")
@dataclass(frozen=True)
class LogNormal(Interval):
    """A real number whose logarithm is normal about the middle of the ends' logarithms. Its choice is a quantile."""

    logarithmic: ClassVar[bool] = True

    @property
    def fault(self) -> str | None:
        """The rule that its ends break, or `None`."""
        return "lognormal needs low > 0" if self.low <= 0 else super().fault

    def choice(self, u: float) -> Choice:
        """Return the quantile itself."""
        return u

    def suggested(self, trial: Suggesting, path: str) -> Choice:
        """Return the quantile that an Optuna trial suggests."""
        return trial.suggest_float(path, 0, 1)

    def number(self, choice: Choice) -> Number:
        """Return the number at a quantile."""
        law = NormalDist()
        below = law.cdf(-REACH)
        deviations = law.inv_cdf(below + choice * (1 - 2 * below))
        low, high = math.log(self.low), math.log(self.high)
        value = math.exp((low + high) / 2 + deviations * (high - low) / (2 * REACH))
        return min(max(value, float(self.low)), float(self.high))
