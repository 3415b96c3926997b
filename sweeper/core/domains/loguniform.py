"""The domain `loguniform`."""

import math
from dataclasses import dataclass
from typing import ClassVar

from sweeper.core.domains.base import Interval, Suggesting, domain
from sweeper.core.domains.nodes import Choice


@domain("loguniform")
@dataclass(frozen=True)
class LogUniform(Interval):
    """A real number, its logarithm evenly; 0 < low.

    Example:
        >>> round(LogUniform(0.01, 1.0).choice(0.5), 6)
        0.1
    """

    logarithmic: ClassVar[bool] = True

    @property
    def fault(self) -> str | None:
        """The rule that its ends break, or `None`."""
        if self.low < self.high and self.low <= 0:
            return f"low = {self.low} must be above 0: loguniform takes its logarithm"
        return super().fault

    def choice(self, u: float) -> Choice:
        """Return the number at a quantile."""
        value = math.exp(math.log(self.low) + u * (math.log(self.high) - math.log(self.low)))
        return min(max(value, float(self.low)), float(self.high))  # exp(log(low)) may round below the low end

    def suggested(self, trial: Suggesting, path: str) -> Choice:
        """Return the number that an Optuna trial suggests."""
        return trial.suggest_float(path, float(self.low), float(self.high), log=True)
