"""One trial: a configuration's replicates, trained side by side from one report to the next.

`Trial.advance` trains to the next rung, or until enough time has passed since the last report. It writes predictions
and, if due, a checkpoint, and returns a report of plain values that the driver journals. A checkpoint contains the
report that was sent with it. A trial that resumes from its newest checkpoint therefore repeats this report, which may
have been lost. The driver ignores reports and rows that it already has.

If the replicates are lanes of a cohort of several trials, the cohort's worker calls `begin`, then `take` after each
epoch until a report is due, then `report`.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainables.datasets.base import DataSet
from trainables.training.evaluation import END, Evaluation, Shared
from trainables.training.lanes.cohort import Cohort
from trainables.training.lanes.networks import needs_lane_functions
from trainables.training.lanes.packing import AUTO, LANES, SEQUENTIAL, Sequential, chosen_packing, cohort_key
from trainables.training.loop import Replicate
from trainables.training.own_loop import LoopReplicate, Task
from trainables.worker.checkpoints import CheckpointWriter, TrialFiles, load_newest_checkpoint, load_partial
from trainables.worker.trial_reports import TIMED_OUT, Failure, Row, TrialReport, mean_objective, non_finite
from trainables.worker.trial_settings import Assignment, TrialSettings
from trainables.worker.trial_tables import evaluation_rows, write_evaluations


def replicate_of(assignment: Assignment, settings: TrialSettings, seed: int, dataset: DataSet) -> Replicate:
    """Build a replicate of an assignment's configuration, at epoch 0."""
    return Replicate(assignment.values, seed=seed, dataset=dataset, **settings.of_replicates)


class Trial:
    """A configuration's replicates from their first epoch to their last."""

    def __init__(
        self, assignment: Assignment, settings: TrialSettings, dataset: DataSet, *, in_cohort: bool | None = None
    ) -> None:
        """Build the replicates, and continue from the trial's newest sound checkpoint if there is one.

        Args:
            assignment: the configuration and its seeds.
            settings: settings of all trials.
            dataset: the data set, on the device.
            in_cohort: whether its lanes may join the caller's cohort, which `wants_cohort` then requests; `None` if
                there is no cohort to join, so that lanes form their own.
        """
        self.assignment = assignment
        self.settings = settings = settings.suited(assignment)
        place = assignment.checkpoints(Path())
        self._files = TrialFiles(place, tables=settings.tables, checkpoints=settings.checkpoints, store=settings.store)
        self._folder = self._files.checkpoints
        self._writer = CheckpointWriter(self._files, settings.checkpoint_seconds, settings.checkpoints_kept)
        self._last_report: TrialReport | None = None
        self._cohort: Cohort | None = None
        self._shares = cohort_key(assignment.values, settings.training) is not None
        self._rows: list[Row] = []
        self._began = time.monotonic()
        self._failure: Failure | None = None
        seeds = zip(assignment.numbers, assignment.seeds, strict=True)
        self.replicates: dict[int, Task] = {number: self._task(seed, dataset) for number, seed in seeds}
        self._wall_seconds = self._seconds_before = 0.0
        self._reported: Mapping[str, object] | None = None
        self._repeat: TrialReport | None = None
        self._unreported, self._trained = list[Row](), list[dict[str, Any]]()
        self._errors, self._packing = dict[int, Failure](), None
        self._restore()
        if self._packing is None:
            self._packing = self._chosen_packing(dataset, in_cohort)
        self.wants_cohort = self._packing == LANES and self._shares and in_cohort is not None
        self._sequential = self._in_sequence()
        if self._packing == LANES and not self.wants_cohort:
            self.join(self._own_cohort())

    @property
    def epoch(self) -> int:
        """Number of epochs that every replicate has completed."""
        return min(replicate.epoch for replicate in self.replicates.values())

    @property
    def finished(self) -> bool:
        """Whether the last epoch is trained and reported."""
        return self.epoch >= self.settings.max_epochs and self._repeat is None

    @property
    def evaluates(self) -> bool:
        """Whether the due report has evaluations: at a rung, unless the trial failed."""
        return self._failure is None and self.epoch in self.settings.rungs

    def advance(
        self, clock: Callable[[], float] = time.monotonic, leaving: Callable[[], bool] = lambda: False
    ) -> TrialReport:
        """Train to the next rung, for about `report_seconds`, or until `leaving`, and return the report.

        All three are checked after each epoch, so a lost machine loses at most one epoch's work.
        """
        repeated = self.repeated()
        if repeated is not None:
            return repeated
        self.begin()
        started = clock()
        while not self.take(self._train_epoch(), clock() - started, clock() - started) and not leaving():
            pass
        evaluations = self._evaluate() if self.evaluates else []
        report = self.report(evaluations, clock() - started)
        self.save(report, at_once=leaving())
        return report

    def repeated(self) -> TrialReport | None:
        """Return, once, the report that was sent with the checkpoint; `None` if there is none to repeat."""
        report, self._repeat = self._repeat, None
        return report

    def join(self, cohort: Cohort) -> None:
        """Make the replicates lanes of `cohort`."""
        self._cohort = cohort
        for replicate in self.networks:
            cohort.join(replicate)

    def leave(self) -> None:
        """Write a checkpoint of the last report if it has none, and leave the cohort if there is one.

        Another process can continue from there.
        """
        report = self._last_report
        if report is not None and report.epoch == self.epoch and self._writer.epoch < report.epoch:
            self.save(report, at_once=True)
        self._writer.settle()
        if self._cohort is not None:
            for replicate in self.networks:
                self._cohort.leave(replicate)
        self.close()

    def close(self) -> None:
        """Close a user's training loop."""
        for replicate in self.replicates.values():
            if isinstance(replicate, LoopReplicate):
                replicate.close()

    def begin(self) -> None:
        """Begin training towards the next report."""
        # This call shows that the last report was journaled, so older checkpoints are no longer needed.
        self._writer.prune()
        self._rows, self._unreported, self._failure = self._unreported, [], None
        self._began = time.monotonic()

    def take(self, rows: Sequence[dict[str, Any]], seconds: float, waited: float) -> bool:
        """Add an epoch's rows, one per replicate in order; return whether a report is due.

        Args:
            rows: result of `train_epoch` of the replicates' group.
            seconds: time spent on this trial since its last report; in a cohort, the trial's share of the time.
            waited: time since the trial's last report.
        """
        numbers = [*self.replicates]
        numbered = [{"replicate": n, **row} for n, row in zip(numbers, rows, strict=True)]
        self._drop_diverged(numbered)
        wanted = self.settings.evaluation.trajectory
        if wanted is not None:
            for row in numbered:
                if row["replicate"] not in self._errors:
                    row.update(self.replicates[row["replicate"]].trajectory_row(wanted))
        self._rows += numbered
        if len(self._errors) < len(self.assignment.seeds):
            self._failure = self._timed_out(seconds)
        else:
            self._failure = self._errors[numbered[0]["replicate"]]
        return self._failure is not None or self.epoch in self.settings.rungs or waited >= self.settings.report_seconds

    def report(self, evaluations: Sequence[Row], seconds: float) -> TrialReport:
        """Return the due report; call `save` before it is sent.

        Args:
            evaluations: rows of the evaluations, if `evaluates`.
            seconds: time spent on this trial since its last report.
        """
        failure, self._wall_seconds = self._failure, self._wall_seconds + seconds
        sound = [row for row in self._rows if row["replicate"] not in self._errors]
        self._last_report = TrialReport(
            configuration=self.assignment.configuration,
            epoch=self.epoch,
            objective=math.nan if failure else mean_objective(self.settings.objective, sound, evaluations),
            failure=failure,
            device=self.settings.device,
            packing=self._packing,
            wall_seconds=self._wall_seconds,
            epochs=self._rows,
            evaluations=evaluations,
            replicate_errors=dict(self._errors),
        )
        self._reported = self._last_report.to_dict()
        return self._last_report

    def save(self, report: TrialReport, *, at_once: bool = False) -> None:
        """Write a checkpoint with its report if one is due: at every rung, with `at_once`, or after an interval.

        At a rung, with `at_once` and at interval 0, it is written before this returns. Otherwise it is written from a
        copy while training continues.
        """
        at_once = at_once or self.epoch in self.settings.rungs or not self.settings.checkpoint_seconds
        if self._folder is None or report.failure or not (at_once or self._writer.due):
            return
        self._settle()
        self._writer.write(self.epoch, self._held(self._wall_seconds, report.to_dict()))
        if at_once:
            self._writer.settle()

    def evaluations(self, shared: Mapping[Replicate, Shared]) -> dict[int, Evaluation]:
        """Evaluate each network of a cohort, given what was measured of several together; return them by number."""
        wanted, stage = self.settings.evaluation, self.stage
        numbered = zip(self.replicates, self.networks, strict=True)
        return {number: network.evaluate(wanted, stage, shared.get(network)) for number, network in numbered}

    def evaluated(self, evaluations: Mapping[int, Evaluation]) -> tuple[list[Row], Callable[[], None]]:
        """Return the rows of evaluations by replicate, and a function that writes their tables."""
        write = functools.partial(write_evaluations, self._files, self.assignment.trial, self.epoch, evaluations)
        return evaluation_rows(evaluations, self.epoch), write

    @property
    def stage(self) -> str:
        """Stage of an evaluation made now: `rung` or `end`."""
        return END if self.epoch >= self.settings.max_epochs else "rung"

    def _chosen_packing(self, dataset: DataSet, in_cohort: bool | None) -> str:
        """Return how the replicates share this process: as the settings request, if possible."""
        settings, values, asked = self.settings, self.assignment.values, self.settings.packing
        if not self.networks:
            return SEQUENTIAL
        if asked not in (LANES, AUTO):
            return asked
        if self._shares:  # the worker has measured the number of lanes, of which 0 means that none are as fast
            return SEQUENTIAL if in_cohort is False else LANES
        device, training, choices = settings.device, settings.training, settings.choices
        if training.compile and needs_lane_functions(self.networks[0].model):
            return SEQUENTIAL
        seeds = self.assignment.seeds
        return chosen_packing(asked, self._build, values, seeds, dataset, device, training, choices)

    def _own_cohort(self) -> Cohort:
        """Return a cohort for this trial alone."""
        # The rounding of convolutions depends on the width. The width is therefore the sweep's, if trials share lanes,
        # and it stays the same when replicates diverge.
        shared = self.settings.lanes if self._shares else 0
        return Cohort(self.networks[0], max(shared, len(self.assignment.seeds)))

    def _in_sequence(self) -> Sequential:
        trained, self._trained = self._trained, []
        return Sequential([*self.replicates.values()], self._after_step if self._folder is not None else None, trained)

    @property
    def networks(self) -> list[Replicate]:
        """The replicates that this program trains, as opposed to a user's training loop."""
        return [replicate for replicate in self.replicates.values() if isinstance(replicate, Replicate)]

    def _task(self, seed: int, dataset: DataSet) -> Task:
        settings = self.settings
        if settings.loop is None:
            return self._build(seed, dataset)
        return LoopReplicate(
            settings.loop,
            self.assignment.values,
            seed=seed,
            dataset=dataset,
            max_epochs=settings.max_epochs,
            device=settings.device,
            evaluation=settings.evaluation,
            columns=settings.loop_columns,
        )

    def _build(self, seed: int, dataset: DataSet) -> Replicate:
        return replicate_of(self.assignment, self.settings, seed, dataset)

    def _train_epoch(self) -> list[dict[str, Any]]:
        self._writer.begin_epoch()
        if self._cohort is None:
            return self._sequential.train_epoch()
        lanes = [*self._cohort.lanes]
        rows = {id(lane): row for lane, row in zip(lanes, self._cohort.train_epoch(), strict=True)}
        return [rows[id(own)] for own in self.replicates.values()]

    def _after_step(self) -> None:
        """Write a checkpoint in the middle of an epoch if the epoch lasts longer than the interval."""
        if not self._writer.due_within:
            return
        state = self._held(self._wall_seconds + time.monotonic() - self._began, self._reported)
        state |= {"epoch": self.epoch, "rows": self._rows, "trained": self._sequential.trained}
        state |= {"errors": {n: failure.to_dict() for n, failure in self._errors.items()}, "packing": self._packing}
        self._writer.write(None, state)

    def _drop_diverged(self, rows: Sequence[Row]) -> None:
        """Stop training replicates that diverged in an epoch, if others can continue."""
        diverged = non_finite(rows)
        self._errors.update(diverged)
        if not diverged or len(diverged) == len(self.replicates):
            return
        for number in diverged:
            replicate = self.replicates.pop(number)
            if self._cohort is not None and isinstance(replicate, Replicate):
                self._cohort.leave(replicate)
        self._sequential = self._in_sequence()

    def _timed_out(self, seconds: float) -> Failure | None:
        """Return the failure of a trial that exceeds its time limit, `seconds` after its last report; else `None`."""
        limit, taken = self.settings.timeout_seconds, self._wall_seconds - self._seconds_before + seconds
        if limit is None or taken <= limit or self.epoch >= self.settings.max_epochs:
            return None
        # Checked after an epoch only, so a trial that has just trained its last one is complete.
        return Failure(TIMED_OUT, {"seconds": taken, "trial_timeout": limit, "epoch": self.epoch})

    def _evaluate(self) -> list[Row]:
        rows: list[Row] = []
        for number, replicate in self.replicates.items():
            # One at a time, since predictions may be large.
            own, write = self.evaluated({number: replicate.evaluate(self.settings.evaluation, self.stage)})
            rows += own
            write()
        return rows

    def _settle(self) -> None:
        """Copy the state of the lanes back to the networks and their optimisers."""
        if self._cohort is not None:
            for replicate in self.networks:
                self._cohort.settle(replicate)

    def _held(self, wall_seconds: float, report: Mapping[str, object] | None) -> dict[str, object]:
        """Return a checkpoint's content, plain values and tensors; `None` stands for a diverged replicate."""
        held = [self.replicates.get(number) for number in self.assignment.numbers]
        return {
            "trial": self.assignment.trial,
            "seeds": list(self.assignment.seeds),
            "replicates": [None if replicate is None else replicate.state_dict() for replicate in held],
            "wall_seconds": wall_seconds,
            "report": report,
        }

    def _restore(self) -> None:
        """Continue from the newest sound checkpoint of these replicates, if there is one."""
        self._files.fetch_checkpoints()
        saved = (load_partial(self._folder) or load_newest_checkpoint(self._folder)) if self._folder else None
        if saved is None or saved["seeds"] != list(self.assignment.seeds):  # other seeds: a different training
            return
        for number, state in zip(self.assignment.numbers, saved["replicates"], strict=True):
            if state is None:  # the replicate has diverged
                del self.replicates[number]
            else:
                self.replicates[number].load_state_dict(state)
        self._wall_seconds = self._seconds_before = saved["wall_seconds"]
        self._reported = saved["report"]
        # Another packing rounds differently. With the same one, the trial ends as if it had never been interrupted.
        if self._reported is not None:
            self._repeat = TrialReport.from_dict(self._reported)
            self._errors, self._packing = dict(self._repeat.replicate_errors), self._repeat.packing
        if "trained" in saved:  # in the middle of an epoch, later than the report
            self._unreported, self._trained = [*saved["rows"]], [*saved["trained"]]
            self._errors = {number: Failure(**fields) for number, fields in saved["errors"].items()}
            self._packing = saved["packing"]
