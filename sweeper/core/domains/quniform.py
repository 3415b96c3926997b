"""The domain `quniform`."""

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import ClassVar, Self

from sweeper.core.domains.base import Number, Stepped, Suggesting, domain
from sweeper.core.domains.nodes import Choice

#: More values than this are an interval of real numbers in all but name (our choice).
MOST_STEPS = 1_000_000


@domain("quniform")
@dataclass(frozen=True)
class QUniform(Stepped):
    """`low`, `low + step`, … `high`, each equally likely; real numbers. Its choice is the number of steps.

    Example:
        >>> domain = QUniform(0.1, 0.4, 0.1)
        >>> domain.number(domain.choice(0.6))
        0.3
    """

    step: Number
    form: ClassVar[str] = "[low, high, step]"

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The ends and the step."""
        return self.low, self.high, self.step

    @property
    def fault(self) -> str | None:
        """The rule that its ends and step break, or `None`."""
        if (fault := super().fault) is not None:
            return fault
        if self.step <= 0:
            return f"step = {self.step} must be above 0"
        # In decimal, because 0.3 % 0.1 is not 0 in binary.
        width = Decimal(repr(self.high)) - Decimal(repr(self.low))
        if width / self._step > MOST_STEPS:
            return f"step = {self.step} divides the interval into more than a million values; use uniform"
        if width % self._step != 0:
            return f"step = {self.step} does not divide the interval from {self.low} to {self.high} evenly"
        return None

    @property
    def whole(self) -> bool:
        """Whether it draws whole numbers only."""
        return all(float(number).is_integer() for number in self.numbers)

    @property
    def _step(self) -> Decimal:
        return Decimal(repr(self.step))

    def typed(self, number: type[int] | type[float]) -> Self:
        """Return the interval with ends and step of this type."""
        return replace(super().typed(number), step=number(self.step))

    def choice(self, u: float) -> Choice:
        """Return the number of steps at a quantile."""
        return int(u * (self.steps + 1))

    def suggested(self, trial: Suggesting, path: str) -> Choice:
        """Return the number of steps that an Optuna trial suggests, from which `number` makes the same floats."""
        return trial.suggest_int(path, 0, self.steps)

    def number(self, choice: Choice) -> Number:
        """Return the value after so many steps."""
        return self.on_step(int(choice))
