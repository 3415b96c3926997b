"""The domain `uniform`."""

from dataclasses import dataclass
from typing import ClassVar

from sweeper.core.domains.base import Interval, Suggesting, domain
from sweeper.core.domains.nodes import Choice


@domain("uniform")
@dataclass(frozen=True)
class Uniform(Interval):
    """A real number, evenly.

    Example:
        >>> Uniform(1.0, 3.0).choice(0.5)
        2.0
    """

    logarithmic: ClassVar[bool] = False

    def choice(self, u: float) -> Choice:
        """Return the number at a quantile."""
        return min(self.low + u * (self.high - self.low), float(self.high))  # the sum may round above the high end

    def suggested(self, trial: Suggesting, path: str) -> Choice:
        """Return the number that an Optuna trial suggests."""
        return trial.suggest_float(path, float(self.low), float(self.high), log=False)
