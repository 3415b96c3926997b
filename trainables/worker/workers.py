"""The work of a trial process under any executor: it trains configurations in turn, or as lanes of one cohort.

Of a cohort everything happens between two epochs. A trial that reports waits for the driver's word with all others: the
driver ends it, lets it continue, and gives others the lanes that fall free. A trial that cannot be a lane trains alone.
"""

from __future__ import annotations

import errno
import math
import time
import traceback
from collections.abc import Callable, Sequence
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
from trainables.training.lanes.cohort import Cohort, curvature_together
from trainables.training.lanes.packing import chosen_width, cohort_key
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
    """Trains an assignment at a time; a step ends with the reports of at least one configuration.

    Attributes:
        settings: of all trials of the sweep.
    """

    def __init__(self, settings: TrialSettings, leaving: Callable[[], bool] = lambda: False) -> None:
        """Prepare this process and load the data set.

        Args:
            settings: of all trials of the sweep.
            leaving: returns whether the node is about to be taken away, so that a trial reports before its time.
        """
        self.settings, self._leaving = settings, leaving
        self._watchdog = Watchdog(settings.hang_seconds, settings.timeout_seconds)
        prepare_process(settings)
        with self._watchdog.watching():
            self._datasets = DataSets(settings)
        self._waiting: list[Assignment] = []
        self._trial: Trial | None = None

    def follow(self, command: WorkerCommand) -> WorkerReport | None:
        """Do what the driver wants, train until a report is due and return it; `None` where nothing is in hand."""
        if command.over:
            self.leave()
            self._waiting = []
        for trials in command.new:
            self._waiting, self._trial = [*trials], None
            prepare_process(self.settings)  # what a trial before changed in this process is set again
        return WorkerReport((self.step(),)) if self.current is not None else None

    @property
    def current(self) -> Assignment | None:
        """The assignment that is trained, or the next one; `None` when there is none."""
        return self._trial.assignment if self._trial is not None else next(iter(self._waiting), None)

    def leave(self) -> None:
        """Let go of the trial in hand, which continues in another process or later: it gets a checkpoint."""
        if self._trial is not None:
            trial, self._trial = self._trial, None
            trial.leave()

    def step(self) -> tuple[Sequence[TrialReport], bool]:
        """Return the reports of one configuration, of several when they are short; and whether these were the last."""
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
        """Train up to the next report, of the next configuration where none is begun, under the watchdog's eyes."""
        assignment = self.current
        assert assignment is not None
        with self._watchdog.watching(self._hung_folder(assignment)):
            if self._trial is None:
                dataset = self._datasets.named(assignment.values.get("dataset"))
                self._trial = Trial(self._waiting.pop(0), self.settings, dataset)
            return self._trial.advance(leaving=self._leaving)

    def _hung_folder(self, assignment: Assignment) -> Path | None:
        """Return where a killed process leaves its reason: in the trial's folder, where the driver sees it."""
        shared = self.settings.checkpoints if self.settings.store is None else None
        return assignment.checkpoints(shared) if shared is not None else None


#: Threads that write tables and checkpoints of the trials that report together.
WRITERS = 4


@dataclass
class _Slot:
    """A trial in this process, and its time since its last report."""

    trial: Trial
    spent: float = 0.0
    since: float = field(default_factory=time.monotonic)
    fresh: bool = True

    @property
    def configuration(self) -> int:
        return self.trial.assignment.configuration


class CohortWorker(Worker):
    """The trials of this process: one cohort of them, or one that is no lane."""

    def __init__(self, settings: TrialSettings, leaving: Callable[[], bool] = lambda: False) -> None:
        """Prepare this process and load the data set; the arguments are those of `Worker`."""
        super().__init__(settings, leaving)
        self._slots: dict[int, _Slot] = {}
        self._cohort: Cohort | None = None
        self._most = 0

    def follow(self, command: WorkerCommand) -> WorkerReport | None:
        """Do what the driver wants, train until a report is due and return it; `None` where nothing is in hand."""
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
            if not ran_out_of_memory(error) or self._cohort is None or len(given) - len(lost) < 2:
                raise
        return self._halve(lost)

    def leave(self) -> None:
        """Let go of all trials in hand, which continue elsewhere: each gets a checkpoint of its last report."""
        for configuration in [*self._slots]:
            self._drop(configuration)

    @property
    def _room(self) -> int:
        """How many more trials of the same kind fit."""
        if self._cohort is None:
            return 0
        lanes = min(filter(None, (self._cohort.width, self._most)))
        most = lanes - len(self._cohort.lanes)
        return max(0, most // max(len(slot.trial.assignment.seeds) for slot in self._slots.values()))

    def _take_up(self, assignment: Assignment) -> list[tuple[int, Failure]]:
        """Take a trial up; return what it raised, if anything."""
        if not self._slots:
            prepare_process(self.settings)  # what a trial before changed in this process is set again
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
        """Return the lanes of a cohort for an assignment; 0 where it trains alone."""
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
            (slot,) = self._slots.values()  # the one trial that is no lane
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
        # Disks are waited for beside the next evaluation; a trial's checkpoint comes after its tables, and after the
        # checkpoints of those before it: after a kill, who is ahead of the others is who began before them.
        before: Future[None] | None = None
        curved = [slot.trial for slot in due if slot.trial.evaluates and not slot.trial.assignment.final]
        together = [(each, trial.stage) for trial in curved for each in trial.networks]
        started = time.monotonic()
        with curvature_together(together, self.settings.evaluation), ThreadPoolExecutor(WRITERS) as writers:
            share = (time.monotonic() - started) / len(due)
            for slot in due:
                slot.spent += share
                try:
                    report, write = self._made(slot, at_once, before)
                    before = writers.submit(write)
                    written.append((slot, report, before))
                except Exception as error:
                    if ran_out_of_memory(error) and len(self._slots) > 1:
                        raise  # all of them take it; what is written by now is reported once more
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

    def _made(self, slot: _Slot, at_once: bool, before: Future[None] | None) -> tuple[TrialReport, Callable[[], None]]:
        """Return a report that is due, and what writes all that belongs to it, a checkpoint after what is `before`."""
        slot.fresh, started, trial = True, time.monotonic(), slot.trial
        evaluations = trial.evaluations() if trial.evaluates else {}
        rows, write_tables = trial.evaluated(evaluations)
        report = trial.report(rows, slot.spent + time.monotonic() - started)

        def write() -> None:
            write_tables()
            if before is not None:
                wait([before])
            trial.save(report, at_once=at_once)

        return report, write

    def _halve(self, lost: Sequence[tuple[int, Failure]]) -> WorkerReport:
        """Let go of all trials, for a cohort of half as many lanes has to be begun: memory ran out in this one."""
        assert self._cohort is not None
        self._most = max(1, self._cohort.width // 2)
        self._slots.clear()
        self._cohort = None
        if self.settings.device != "cpu":
            torch.cuda.empty_cache()
        return WorkerReport(lost=tuple(lost), gave_up=True, most_lanes=self._most)

    def _drop(self, configuration: int) -> None:
        slot = self._slots.pop(configuration, None)
        if slot is not None:
            slot.trial.leave()

    def _in_order(self) -> list[_Slot]:
        return [self._slots[configuration] for configuration in sorted(self._slots)]


#: What CUDA itself, cuBLAS and cuDNN say in a RuntimeError when a GPU's memory runs out; torch's allocator has a type.
_CARD_MEMORY = ("cuda out of memory", "cuda error: out of memory", "status_alloc_failed")


def failure_of(error: BaseException) -> Failure:
    """Return what an exception stands for."""
    if isinstance(error, TrialEnded):
        return error.failure
    lines = str(error).strip().splitlines()
    # A data loader's worker sends its whole traceback, which ends with the cause.
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
    # Full, over quota, or mounted read-only; torch's writer of archives has the system's words, and not its number.
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    if full or "no space left on device" in str(error).lower():
        return Failure(STORAGE, message=named, counts=False)
    return Failure(ERROR, message=named)


def _loss_of(configuration: int, error: Exception) -> tuple[int, Failure]:
    """Return a trial that raised and why; the log has the whole traceback."""
    traceback.print_exception(error)
    return configuration, failure_of(error)


def _neighbours(settings: TrialSettings) -> int:
    """Return how many processes like this one there may be beside it, this one included, on the card or the machine."""
    if settings.device != "cpu":
        return int(1 / settings.gpu) if 0 < settings.gpu < 1 else 1
    return max(1, int(usable_cores() / settings.threads))


#: Steps that are trained: the optimiser's state is there after the first, and the second meets it with gradients.
STEPS = 3


class CardProbe:
    """Measures assignments one after the other, in a process that has a GPU to itself."""

    def __init__(self, settings: TrialSettings) -> None:
        """Load the data set; `settings` are those of all trials."""
        self._settings = replace(settings, gpu=1.0)
        prepare_process(self._settings)
        self._dataset = self._settings.load_dataset()

    def measure(self, assignment: Assignment) -> CardMemory:
        """Return what an assignment takes; all of the GPU where that does not suffice.

        What is used is all that is not free: the process's own CUDA context counts, and so would somebody else's
        processes, beside which less is left.
        """
        torch.cuda.empty_cache()
        try:
            rehearse(assignment, self._settings, self._dataset)
            free, total = torch.cuda.mem_get_info()
        except torch.OutOfMemoryError:
            free, total = 0, torch.cuda.mem_get_info()[1]
        return CardMemory(total - free, total, torch.cuda.get_device_name())


def rehearse(assignment: Assignment, settings: TrialSettings, dataset: DataSet) -> TrialReport:
    """Train a few steps, evaluate all of the validation and test data as a sweep does, keep nothing; return the report.

    On a GPU torch's allocator holds on to the most that was needed at once. Curvature would keep graphs in whatever
    memory there is, here a whole GPU; what counts is what it cannot do without.
    """
    batch_size = assignment.values["optimizer"]["batch_size"]
    train = dataset.train
    few = train.first(STEPS * batch_size)
    unsaved = replace(settings, tables=None, checkpoints=None, store=None)
    short = replace(unsaved, max_epochs=1, rungs=(1,), timeout_seconds=None, report_seconds=math.inf)
    with no_graphs_kept():
        return Trial(assignment, short, replace(dataset, train=few)).advance()
