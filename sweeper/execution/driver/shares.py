"""The share of a GPU that a trial's process has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from trainables.worker.trial_reports import TrialReport


@dataclass(frozen=True)
class Shares:
    """What a configuration needs of a GPU.

    Attributes:
        measured: the share that a configuration needs; `None` where trials take none, or whole cards.
        usual: the share that each trial has where nothing was measured.
    """

    measured: Callable[[int], float] | None = None
    usual: float = 0.0

    def of(self, configuration: int, raised: float | None) -> float | None:
        """Return a configuration's share: what was measured, or `raised` where memory ran out; `None` as above."""
        return None if self.measured is None else raised or self.measured(configuration)

    def noted(self, report: TrialReport, share: float | None) -> TrialReport:
        """Return a report with what its process took of a GPU, where trials take any."""
        taken = share or self.usual
        return replace(report, gpu=taken) if taken else report


NO_SHARES = Shares()
"""Trials take nothing of a GPU, or whole cards."""
