"""The work of a trial process under any executor: train configurations one after another, or as lanes of a cohort.

A cohort changes only between two epochs. When one of its trials reports, all trials wait for the driver's command. The
command ends the trial or lets it continue, and assigns free lanes to other trials. A trial that cannot be a lane trains
alone.
"""

from __future__ import annotations

import errno
import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from trainables.curvature.failures import ran_out_of_memory
from trainables.curvature.hessian import no_graphs_kept
from trainables.datasets.base import DataSet
from trainables.files.container import usable_cores
from trainables.files.stores.base import StoreError
from trainables.training.evaluation import Shared
from trainables.training.lanes.cohort import Cohort
from trainables.training.lanes.evaluation import measured_together
from trainables.training.lanes.packing import chosen_width, cohort_key
from trainables.training.loop import Replicate
from trainables.training.own_loop import LoopError
from trainables.worker.hang_watchdog import Watchdog
from trainables.worker.trial import Trial, replicate_of
from trainables.worker.trial_reports import (
    ERROR,
    GPU_OUT_OF_MEMORY,
    OUT_OF_MEMORY,
    STORAGE,
    STORE,
    CardMemory,
    Failure,
    TrialEnded,
    TrialReport,
    WorkerCommand,
    WorkerReport,
)
from trainables.worker.trial_settings import Assignment, DataSets, TrialSettings, prepare_process


class Worker:
    """Trains one assignment at a time; a step ends with the reports of at least one configuration.

    Attributes:
        settings: settings of all trials.
    """

    def __init__(self, settings: TrialSettings, leaving: Callable[[], bool] = lambda: False) -> None:
        """Prepare this process and load the data set.

        Args:
            settings: settings of all trials.
            leaving: function that returns whether the node is being drained; if it is, a trial reports early.
        """
        self.settings, self._leaving = settings, leaving
        self._watchdog = Watchdog(settings.hang_seconds, settings.timeout_seconds)
        prepare_process(settings)
        with self._watchdog.watching():
            self._datasets = DataSets(settings)
        self._waiting: list[Assignment] = []
        self._trial: Trial | None = None

    def follow(self, command: WorkerCommand) -> WorkerReport | None:
        """Execute a command, train until a report is due and return it; `None` if there is nothing to train."""
        if command.over:
            self.leave()
            self._waiting = []
        for trials in command.new:
            self._waiting, self._trial = [*trials], None
            prepare_process(self.settings)  # the trial before may have changed this process
        return WorkerReport((self.step(),)) if self.current is not None else None

    @property
    def current(self) -> Assignment | None:
        """The current assignment, or the next one; `None` if there is none."""
        return self._trial.assignment if self._trial is not None else next(iter(self._waiting), None)

    def leave(self) -> None:
        """Write a checkpoint of the current trial and drop it; it continues in another process or later."""
        if self._trial is not None:
            trial, self._trial = self._trial, None
            trial.leave()

    def step(self) -> tuple[Sequence[TrialReport], bool]:
        """Return the reports of one configuration, or of several short ones, and whether these were the last."""
        started, reports = time.monotonic(), list[TrialReport]()
        while self._waiting or self._trial is not None:
            reports.append(self._advance())
            assert self._trial is not None
            if not self._trial.finished and not reports[-1].failure:
                break
            self._trial.close()
            self._trial = None
            if time.monotonic() - started >= self.settings.batch_seconds or self._leaving():
                break
        return reports, not self._waiting and self._trial is None

    def _advance(self) -> TrialReport:
        """Train to the next report, watched by the watchdog; begin the next configuration if none is current."""
        assignment = self.current
        assert assignment is not None
        with self._watchdog.watching(self._hung_folder(assignment)):
            if self._trial is None:
                dataset = self._datasets.named(assignment.values.get("dataset"))
                self._trial = Trial(self._waiting.pop(0), self.settings, dataset)
            return self._trial.advance(leaving=self._leaving)

    def _hung_folder(self, assignment: Assignment) -> Path | None:
        """Return the folder in which a killed process leaves its reason: the trial's folder, which the driver reads."""
        # With a store there is no such folder: the driver then knows only that the process died.
        shared = self.settings.checkpoints if self.settings.store is None else None
        return assignment.checkpoints(shared) if shared is not None else None


#: Threads that write tables and checkpoints of trials that report together; they mostly wait for the disk.
WRITERS = 4


@dataclass
class _Slot:
    """A trial of a cohort, and its time since its last report."""

    trial: Trial
    spent: float = 0.0
    since: float = field(default_factory=time.monotonic)
    fresh: bool = True

    @property
    def configuration(self) -> int:
        return self.trial.assignment.configuration


class CohortWorker(Worker):
    """Trains the trials of one cohort, or one trial that cannot be a lane."""

    def __init__(self, settings: TrialSettings, leaving: Callable[[], bool] = lambda: False) -> None:
        """Prepare this process and load the data set; see `Worker` for the arguments."""
        super().__init__(settings, leaving)
        self._slots: dict[int, _Slot] = {}
        self._cohort: Cohort | None = None
        self._most = 0

    def follow(self, command: WorkerCommand) -> WorkerReport | None:
        """Execute a command, train until a report is due and return it; `None` if there is nothing to train."""
        for configuration in command.over:
            self._drop(configuration)
        self._most = min(filter(None, (self._most, command.most_lanes)), default=0)
        empty, lost = not self._slots, list[tuple[int, Failure]]()
        new = [assignment for (assignment,) in command.new]
        given = {*self._slots, *(assignment.configuration for assignment in new)}
        try:
            for assignment in new:
                lost += self._take_up(assignment)
            repeated = [(slot.trial.repeated(), slot) for slot in self._in_order()]
            reports = tuple(([report], slot.trial.finished) for report, slot in repeated if report is not None)
            if not self._slots:
                return WorkerReport(lost=tuple(lost)) if lost else None
            if reports or lost or (empty and self._room):
                return WorkerReport(reports, self._room, tuple(lost))
            with self._watchdog.watching(self._hung_folder(self._in_order()[0].trial.assignment)):
                return self._train(command.report_all)
        except (MemoryError, RuntimeError) as error:
            # A cohort of one trial cannot shrink: its failure is the trial's.
            if not ran_out_of_memory(error) or self._cohort is None or len(given) - len(lost) < 2:
                raise
        return self._halve(lost)

    def leave(self) -> None:
        """Write a checkpoint of each trial's last report and drop all trials; they continue elsewhere."""
        for configuration in [*self._slots]:
            self._drop(configuration)

    @property
    def _room(self) -> int:
        """Number of further trials of the same kind that fit."""
        if self._cohort is None:
            return 0
        lanes = min(filter(None, (self._cohort.width, self._most)))
        most = lanes - len(self._cohort.lanes)
        return max(0, most // max(len(slot.trial.assignment.seeds) for slot in self._slots.values()))

    def _take_up(self, assignment: Assignment) -> list[tuple[int, Failure]]:
        """Start a trial; return its failure if it raised."""
        if not self._slots:
            prepare_process(self.settings)  # the trial before may have changed this process
            self._cohort = None
        try:
            dataset = self._datasets.named(assignment.values.get("dataset"))
            width = self._width(assignment, dataset) if self._cohort is None else self._cohort.width
            trial = Trial(assignment, self.settings, dataset, in_cohort=width > 0)
            if trial.wants_cohort:
                first = trial.networks[0]
                self._cohort = self._cohort or Cohort(first, max(width, len(assignment.seeds)))
                trial.join(self._cohort)
        except Exception as error:
            if ran_out_of_memory(error) and self._slots:
                raise
            return [_loss_of(assignment.configuration, error)]
        self._slots[assignment.configuration] = _Slot(trial)
        return []

    def _width(self, assignment: Assignment, dataset: DataSet) -> int:
        """Return the number of lanes of a cohort for an assignment; 0 if it trains alone."""
        settings, count = self.settings, len(assignment.seeds)
        if cohort_key(assignment.values, settings.training) is None:
            return 0
        width = settings.lanes
        if not width:
            width = chosen_width(
                lambda seed, few: replicate_of(assignment, settings, seed, few),
                assignment.values,
                dataset,
                settings.device,
                settings.training,
                most=max(count, settings.most_lanes),
                processes=_neighbours(settings),
                choices=settings.choices,
            )
        return min(width, self._most) if self._most else width

    def _train(self, report_all: bool) -> WorkerReport:
        """Train epochs until a report is due."""
        if self._cohort is None:
            (slot,) = self._slots.values()  # the one trial that cannot be a lane
            report = slot.trial.advance(leaving=lambda: report_all or self._leaving())
            return WorkerReport((([report], slot.trial.finished or report.failure is not None),), trained=True)
        for slot in self._slots.values():
            if slot.fresh:
                slot.trial.begin()
                slot.spent, slot.since, slot.fresh = 0.0, time.monotonic(), False
        due: list[_Slot] = []
        while not due:
            due = self._train_epoch(self._cohort, report_all)
        return self._report(due, report_all or self._leaving())

    def _train_epoch(self, cohort: Cohort, report_all: bool) -> list[_Slot]:
        """Train an epoch of all lanes; return the trials whose report is due."""
        started, lanes = time.monotonic(), list(cohort.lanes)
        rows: dict[int, dict[str, Any]] = {
            id(replicate): row for replicate, row in zip(lanes, cohort.train_epoch(), strict=True)
        }
        now, report_all = time.monotonic(), report_all or self._leaving()
        due = []
        for slot in self._in_order():
            own = [rows[id(replicate)] for replicate in slot.trial.replicates.values()]
            slot.spent += (now - started) * len(own) / len(lanes)
            if slot.trial.take(own, slot.spent, now - slot.since) or report_all:
                due.append(slot)
        return due

    def _report(self, due: Sequence[_Slot], at_once: bool) -> WorkerReport:
        """Evaluate the trials whose report is due, and report them, in order."""
        reports, lost, written = list[tuple[list[TrialReport], bool]](), list[tuple[int, Failure]](), []
        # Files are written while the next trial is evaluated. A trial's checkpoint is written after its tables and
        # after the checkpoints of the trials before it, so that after a kill only the first trials can be ahead.
        before: Future[None] | None = None
        started, evaluated = time.monotonic(), [slot.trial for slot in due if slot.trial.evaluates]
        wanted = evaluated[0].settings.evaluation if evaluated else self.settings.evaluation
        # Added seeds are measured differently. Those that are not like the first are measured one by one.
        alike = [trial for trial in evaluated if trial.settings.evaluation == wanted]
        together = [(network, trial.stage) for trial in alike for network in trial.networks]
        shared = measured_together(together, wanted)
        with ThreadPoolExecutor(WRITERS) as writers:
            share = (time.monotonic() - started) / len(due)
            for slot in due:
                slot.spent += share
                try:
                    report, write = self._made(slot, at_once, before, shared)
                    before = writers.submit(write)
                    written.append((slot, report, before))
                except Exception as error:
                    if ran_out_of_memory(error) and len(self._slots) > 1:
                        raise  # the cohort is halved; trials whose checkpoint is written repeat their report
                    lost.append(_loss_of(slot.configuration, error))
        for slot, report, writing in written:
            try:
                writing.result()
                reports.append(([report], slot.trial.finished or report.failure is not None))
            except Exception as error:
                lost.append(_loss_of(slot.configuration, error))
        for configuration, _ in lost:
            self._drop(configuration)
        return WorkerReport(tuple(reports), self._room, tuple(lost), trained=True)

    def _made(
        self, slot: _Slot, at_once: bool, before: Future[None] | None, shared: Mapping[Replicate, Shared]
    ) -> tuple[TrialReport, Callable[[], None]]:
        """Return a due report and a function that writes its files, the checkpoint only after those in `before`."""
        slot.fresh, started, trial = True, time.monotonic(), slot.trial
        evaluations = trial.evaluations(shared) if trial.evaluates else {}
        rows, write_tables = trial.evaluated(evaluations)
        report = trial.report(rows, slot.spent + time.monotonic() - started)

        def write() -> None:
            write_tables()
            if before is not None:
                wait([before])
            trial.save(report, at_once=at_once)

        return report, write

    def _halve(self, lost: Sequence[tuple[int, Failure]]) -> WorkerReport:
        """Drop all trials after memory ran out; the next cohort has half as many lanes."""
        assert self._cohort is not None
        self._most = max(1, self._cohort.width // 2)
        self._slots.clear()
        self._cohort = None
        if self.settings.device != "cpu":
            torch.cuda.empty_cache()  # blocks of the large cohort's sizes would not fit the smaller one's
        return WorkerReport(lost=tuple(lost), gave_up=True, most_lanes=self._most)

    def _drop(self, configuration: int) -> None:
        slot = self._slots.pop(configuration, None)
        if slot is not None:
            slot.trial.leave()

    def _in_order(self) -> list[_Slot]:
        return [self._slots[configuration] for configuration in sorted(self._slots)]


#: Texts of RuntimeErrors of CUDA, cuBLAS and cuDNN for a full GPU memory; torch's allocator has a separate exception
#: type.
_CARD_MEMORY = ("cuda out of memory", "cuda error: out of memory", "status_alloc_failed")


def failure_of(error: BaseException) -> Failure:
    """Convert an exception to a failure."""
    if isinstance(error, TrialEnded):
        return error.failure
    lines = str(error).strip().splitlines()
    # An error from a data loader's worker contains its whole traceback, which ends with the cause.
    said = (lines[-1 if "Traceback" in str(error) else 0] if lines else "").strip()
    named = f"{type(error).__name__}: {said}" if said else type(error).__name__
    if isinstance(error, StoreError):
        return Failure(STORE, message=error.message, counts=False)
    if isinstance(error, LoopError):
        return Failure(ERROR, message=said)
    if isinstance(error, torch.OutOfMemoryError) or any(words in str(error).lower() for words in _CARD_MEMORY):
        return Failure(GPU_OUT_OF_MEMORY, message=named)
    if ran_out_of_memory(error):
        return Failure(OUT_OF_MEMORY, message=named)
    # Full, over quota, or read-only. torch's archive writer has the system's text without the error number.
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    if full or "no space left on device" in str(error).lower():
        return Failure(STORAGE, message=named, counts=False)
    return Failure(ERROR, message=named)


def _loss_of(configuration: int, error: Exception) -> tuple[int, Failure]:
    """Return a configuration that raised with its failure, and print the traceback to the log."""
    traceback.print_exception(error)
    return configuration, failure_of(error)


def _neighbours(settings: TrialSettings) -> int:
    """Return how many processes like this one share the GPU or the machine, this one included."""
    if settings.device != "cpu":
        return int(1 / settings.gpu) if 0 < settings.gpu < 1 else 1
    return max(1, int(usable_cores() / settings.threads))


#: Training steps of a measurement: after the first, the optimiser has its state; the second has state and gradients.
STEPS = 3


class CardProbe:
    """Measures the GPU memory of assignments in turn, in a process with a whole GPU."""

    def __init__(self, settings: TrialSettings) -> None:
        """Load the data set; `settings` are the settings of all trials."""
        # A whole GPU: a share would limit the memory that is to be measured.
        self._settings = replace(settings, gpu=1.0)
        prepare_process(self._settings)
        self._dataset = self._settings.load_dataset()

    def measure(self, assignment: Assignment) -> CardMemory:
        """Return the GPU memory that an assignment needs; the memory of the whole GPU if even that is too little.

        All memory that is not free counts, including CUDA's context and other users' processes, because these leave
        less memory for the trials.
        """
        torch.cuda.empty_cache()
        try:
            rehearse(assignment, self._settings, self._dataset)
            free, total = torch.cuda.mem_get_info()
        except torch.OutOfMemoryError:
            free, total = 0, torch.cuda.mem_get_info()[1]
        return CardMemory(total - free, total, torch.cuda.get_device_name())


def rehearse(assignment: Assignment, settings: TrialSettings, dataset: DataSet) -> TrialReport:
    """Train a few steps, evaluate all validation and test data as in a sweep, and return the report. Nothing is kept.

    On a GPU, torch's allocator then still holds the peak memory.
    """
    batch_size = assignment.values["optimizer"]["batch_size"]
    train = dataset.train
    few = train.first(STEPS * batch_size)
    unsaved = replace(settings, tables=None, checkpoints=None, store=None)
    short = replace(unsaved, max_epochs=1, rungs=(1,), timeout_seconds=None, report_seconds=math.inf)
    # Curvature keeps graphs in all free memory, here a whole GPU; only the memory that it needs counts.
    with no_graphs_kept():
        return Trial(assignment, short, replace(dataset, train=few)).advance()
