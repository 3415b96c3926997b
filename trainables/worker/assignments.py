"""The work of a trial process under any executor: trains the configurations of an assignment in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from trainables.training.ranks import Crew
from trainables.worker.hang_watchdog import Watchdog
from trainables.worker.trial import Trial
from trainables.worker.trial_reports import TrialReport
from trainables.worker.trial_settings import Assignment, DataSets, TrialSettings, prepare_process


class Assignments:
    """Trains assignments; a step ends with the reports of at least one configuration.

    Attributes:
        settings: of all trials of the sweep.
    """

    def __init__(
        self, settings: TrialSettings, leaving: Callable[[], bool] = lambda: False, crew: Crew | None = None
    ) -> None:
        """Prepare this process and load the data set.

        Args:
            settings: of all trials of the sweep.
            leaving: tells whether the node is about to be taken away, so that a trial reports before its time.
            crew: the other ranks, where several processes train a trial together.
        """
        self.settings, self._leaving, self._crew = settings, leaving, crew
        self._watchdog = Watchdog(settings.hang_seconds, settings.timeout_seconds)
        prepare_process(settings)
        with self._watchdog.watching():
            self._datasets = DataSets(settings)
        self._waiting: list[Assignment] = []
        self._trial: Trial | None = None

    @property
    def current(self) -> Assignment | None:
        """The assignment that is trained, or the next one; `None` when there is none."""
        return self._trial.assignment if self._trial is not None else next(iter(self._waiting), None)

    def leave(self) -> None:
        """Let go of the trial in hand, which continues in another process or later: it gets a checkpoint."""
        if self._trial is not None:
            trial, self._trial = self._trial, None
            trial.leave()

    def take(self, assignments: Iterable[Assignment]) -> None:
        """Take up other configurations; what a trial before them changed in this process is set again."""
        self._waiting, self._trial = list(assignments), None
        prepare_process(self.settings)

    def step(self) -> tuple[Sequence[TrialReport], bool]:
        """Return the reports of one configuration, of several when they are short; and whether these were the last."""
        started, reports = time.monotonic(), list[TrialReport]()
        while self._waiting or self._trial is not None:
            reports.append(self._advance())
            assert self._trial is not None
            if not self._trial.finished and not reports[-1].failure:
                break
            self._trial = None
            if time.monotonic() - started >= self.settings.batch_seconds or self._leaving():
                break
        return reports, not self._waiting and self._trial is None

    def _advance(self) -> TrialReport:
        """Train up to the next report, of the next configuration where none is begun, under the watchdog's eyes."""
        assignment = self.current
        assert assignment is not None
        shared = self.settings.checkpoints if self.settings.store is None else None
        folder = assignment.checkpoints(shared) if shared is not None else None
        with self._watchdog.watching(folder):
            if self._trial is None:
                dataset = self._datasets.of(assignment)
                self._trial = Trial(self._waiting.pop(0), self.settings, dataset, crew=self._crew)
            return self._trial.advance(leaving=self._leaving)
