"""One trial: a configuration's replicates, trained side by side from one report to the next.

`Trial.advance` trains up to the next rung, or until enough time has passed since the last report; it writes
predictions and, when one is due, a checkpoint, and returns a report of plain values that the driver journals. A
checkpoint holds the report that was sent with it, so a trial resumed from its newest checkpoint repeats a report that
may have been lost on the way, and the driver ignores one that it has, and rows that it has.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainables.datasets.base import DataSet
from trainables.training.evaluation import END, Evaluation
from trainables.training.lanes.packing import Packed, chosen_packing, pack
from trainables.training.loop import Replicate
from trainables.worker.checkpoint_writer import CheckpointWriter
from trainables.worker.checkpoints import load_newest_checkpoint
from trainables.worker.trial_files import TrialFiles
from trainables.worker.trial_reports import NON_FINITE, TIMED_OUT, Row, TrialReport, mean_objective, non_finite
from trainables.worker.trial_settings import Assignment, TrialSettings
from trainables.worker.trial_tables import (
    write_predictions,
    write_reliability,
    write_spectra,
    write_token_predictions,
)


class Trial:
    """A configuration's replicates between their first epoch and their last."""

    def __init__(self, assignment: Assignment, settings: TrialSettings, dataset: DataSet) -> None:
        """Build the replicates, and continue from the trial's newest sound checkpoint where there is one."""
        self.assignment = assignment
        self.settings = settings
        self._files = TrialFiles(
            assignment.checkpoints(Path()),
            tables=settings.tables,
            checkpoints=settings.checkpoints,
            store=settings.store,
        )
        self._folder = self._files.checkpoints
        self._writer = CheckpointWriter(self._files, settings.checkpoint_seconds, settings.checkpoints_kept)
        self._last_report: TrialReport | None = None
        self._wall_seconds = 0.0
        self._seconds_before = 0.0
        self._repeat: TrialReport | None = None
        self._dataset = dataset
        self._errors: dict[int, str] = {}
        self._packing: str | None = None
        seeds = zip(assignment.numbers, assignment.seeds, strict=True)
        self.replicates = {number: self._build(seed, dataset) for number, seed in seeds}
        self._restore()
        if self._packing is None:
            self._packing = chosen_packing(
                settings.packing,
                self._build,
                assignment.values,
                assignment.seeds,
                dataset,
                settings.device,
                settings.training,
                settings.choices,
            )
        self._group: Packed = pack([*self.replicates.values()], self._packing)

    @property
    def epoch(self) -> int:
        """Completed epochs."""
        return next(iter(self.replicates.values())).epoch

    @property
    def finished(self) -> bool:
        """Whether the last epoch is done and reported."""
        return self.epoch >= self.settings.max_epochs and self._repeat is None

    def advance(
        self, clock: Callable[[], float] = time.monotonic, leaving: Callable[[], bool] = lambda: False
    ) -> TrialReport:
        """Train to the next rung, for about `report_seconds`, or until `leaving` says so, and return the report.

        Each of the three is looked at after an epoch: at most one epoch's work is lost with a machine.
        """
        if self._repeat is not None:
            report, self._repeat = self._repeat, None
            return report
        # The last report was journaled, or this call would not have come: its checkpoint is one to keep.
        self._writer.prune()
        started, epoch_rows = clock(), list[Row]()
        failure: tuple[str, str] | None = None
        while failure is None:
            rows = self._train_epoch()
            epoch_rows += rows
            failure = self._all_diverged(rows) or self._timed_out(clock() - started)
            if self.epoch in self.settings.rungs or clock() - started >= self.settings.report_seconds or leaving():
                break
        at_rung = self.epoch in self.settings.rungs
        evaluations = self._evaluate() if failure is None and at_rung else []
        self._wall_seconds += clock() - started
        report = TrialReport(
            configuration=self.assignment.configuration,
            epoch=self.epoch,
            objective=math.nan if failure else self._objective(epoch_rows, evaluations),
            failure=failure[1] if failure else None,
            failure_kind=failure[0] if failure else None,
            device=self.settings.device,
            packing=self._packing,
            wall_seconds=self._wall_seconds,
            epochs=epoch_rows,
            evaluations=evaluations,
            replicate_errors=dict(self._errors),
        )
        self._last_report = report
        if failure is None:
            self._checkpoint(report, at_once=at_rung or not self.settings.checkpoint_seconds or leaving())
        return report

    def leave(self) -> None:
        """Write a checkpoint of what was reported and has none yet; another process may continue from there."""
        report = self._last_report
        if report is not None and not report.failure and self._writer.epoch < report.epoch:
            self._checkpoint(report, at_once=True)
        self._writer.settle()

    def _checkpoint(self, report: TrialReport, *, at_once: bool) -> None:
        """Write a checkpoint with its report if one is due; with `at_once`, it is written before this returns."""
        if self._folder is None or not (at_once or self._writer.due):
            return
        self._writer.write(self.epoch, self._state(report))
        if at_once:
            self._writer.settle()

    def _build(self, seed: int, dataset: DataSet) -> Replicate:
        return Replicate(
            self.assignment.values,
            seed=seed,
            dataset=dataset,
            max_epochs=self.settings.max_epochs,
            device=self.settings.device,
            training=self.settings.training,
            bins=self.settings.evaluation.bins,
        )

    def _train_epoch(self) -> list[dict[str, Any]]:
        """Train one epoch and return its rows; replicates that diverged in it train no further if others can."""
        numbers = [*self.replicates]
        rows = [{"replicate": n, **row} for n, row in zip(numbers, self._group.train_epoch(), strict=True)]
        diverged = non_finite(rows)
        self._errors.update(diverged)
        if diverged and len(diverged) < len(numbers):
            self._group.settle()
            for number in diverged:
                del self.replicates[number]
            self._group = pack([*self.replicates.values()], self._group.packing)
        wanted = self.settings.evaluation.trajectory
        if wanted is not None:
            for row in rows:
                if row["replicate"] not in self._errors:
                    row.update(self.replicates[row["replicate"]].trajectory_row(wanted))
        return rows

    def _all_diverged(self, rows: Sequence[Row]) -> tuple[str, str] | None:
        """Return kind and sentence of the failure when no replicate is left."""
        if len(self._errors) < len(self.assignment.seeds):
            return None
        return NON_FINITE, self._errors[rows[0]["replicate"]]

    def _objective(self, epoch_rows: Sequence[Row], evaluations: Sequence[Row]) -> float | None:
        """Return the judged metric's mean over the replicates that have not diverged."""
        sound = [row for row in epoch_rows if row["replicate"] not in self._errors]
        return mean_objective(self.settings.objective, sound, evaluations)

    def _timed_out(self, seconds: float) -> tuple[str, str] | None:
        """Return kind and sentence when the trial has trained for too long, `seconds` since its last report."""
        limit, taken = self.settings.timeout_seconds, self._wall_seconds - self._seconds_before + seconds
        if limit is None or taken <= limit or self.epoch >= self.settings.max_epochs:
            return None
        return TIMED_OUT, f"trained for {taken:.1f} s, longer than trial_timeout = {limit:g} s, by epoch {self.epoch}"

    def _evaluate(self) -> list[Row]:
        stage = END if self.epoch >= self.settings.max_epochs else "rung"
        rows: list[Row] = []
        for number, replicate in self.replicates.items():
            evaluation = replicate.evaluate(self.settings.evaluation, stage)
            rows += [{"replicate": number, "epoch": self.epoch, **row} for row in evaluation.rows]
            self._write_tables(number, evaluation)
        return rows

    def _write_tables(self, number: int, evaluation: Evaluation) -> None:
        if self._files.tables is None:
            return
        place = (self._files.tables, self.assignment.trial, number, self.epoch)
        written = [
            write_token_predictions(*place, tokens=evaluation.tokens)
            if evaluation.tokens
            else write_predictions(*place, logits=evaluation.logits, targets=evaluation.targets),
            write_reliability(*place, rows=evaluation.reliability),
        ]
        if evaluation.spectra is not None:
            written.append(write_spectra(*place, rows=evaluation.spectra))
        for path in written:
            self._files.table_written(path)

    def _state(self, report: TrialReport) -> dict[str, object]:
        self._group.settle()
        held = [self.replicates.get(number) for number in self.assignment.numbers]
        return {
            "trial": self.assignment.trial,
            "seeds": list(self.assignment.seeds),
            "wall_seconds": self._wall_seconds,
            "report": report.to_dict(),
            "replicates": [replicate and replicate.state_dict() for replicate in held],
        }

    def _restore(self) -> None:
        self._files.fetch_checkpoints()
        state = load_newest_checkpoint(self._folder) if self._folder else None
        if state is None or state["seeds"] != list(self.assignment.seeds):
            return
        for number, saved in zip(self.assignment.numbers, state["replicates"], strict=True):
            if saved is None:
                del self.replicates[number]
            else:
                self.replicates[number].load_state_dict(saved)
        report = TrialReport.from_dict(state["report"])
        self._errors = dict(report.replicate_errors)
        # Another packing rounds otherwise: a trial continues as it began, so that it ends as if never interrupted.
        self._packing = report.packing
        self._wall_seconds = self._seconds_before = state["wall_seconds"]
        self._repeat = report
