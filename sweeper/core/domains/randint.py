"""The domain `randint`."""

from dataclasses import dataclass
from typing import ClassVar

from sweeper.core.domains.base import Number, Stepped, Suggesting, domain
from sweeper.core.domains.nodes import Choice


@domain("randint")
@dataclass(frozen=True)
class RandInt(Stepped):
    """A whole number, both ends included.

    Example:
        >>> [RandInt(1, 3).choice(u) for u in (0, 0.5, 0.99)]
        [1, 2, 3]
    """

    written_as: ClassVar[type[int] | type[float]] = int

    @property
    def fault(self) -> str | None:
        """The rule that its ends break, or `None`."""
        if self.low < self.high and not all(float(end).is_integer() for end in self.numbers):
            return f"randint needs whole numbers, not {[*self.numbers]!r}"
        return super().fault

    @property
    def whole(self) -> bool:
        """Whether it draws whole numbers only."""
        return True

    def choice(self, u: float) -> Choice:
        """Return the number at a quantile."""
        return int(self.low) + int(u * (int(self.high) - int(self.low) + 1))

    def suggested(self, trial: Suggesting, path: str) -> Choice:
        """Return the number that an Optuna trial suggests."""
        return trial.suggest_int(path, int(self.low), int(self.high))

    def number(self, choice: Choice) -> Number:
        """Return the number, with the type of the ends."""
        return type(self.low)(choice)
