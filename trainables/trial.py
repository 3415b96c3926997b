"""One trial: a configuration's replicates, trained side by side from one report to the next.

`Trial.advance` trains up to the next rung, or until enough time has passed since the last report; it writes
predictions and a checkpoint, and returns a report of plain values that the driver journals. A checkpoint holds
the report that was sent with it, so a trial resumed from its newest checkpoint repeats a report that may have
been lost on the way, and the driver ignores one that it has.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainables.acceleration import HOST, PLAIN, TrainingSettings, data_place
from trainables.checkpoints import (
    load_newest_checkpoint,
    replicate_folder,
    write_checkpoint,
)
from trainables.datasets import load_dataset
from trainables.datasets.base import DataSet
from trainables.datasets.sharing import shared_dataset
from trainables.evaluation import Evaluation, EvaluationSettings
from trainables.extensions.code import take_up
from trainables.packing import SEQUENTIAL, Packed, chosen_packing, pack
from trainables.training import Replicate
from trainables.trial_files import TrialFiles
from trainables.trial_tables import write_predictions, write_reliability, write_spectra

NON_FINITE, TIMED_OUT = "non_finite", "timed_out"
"""The kinds of failure that a trial finds in itself."""

CONTEXT_BYTES = 512 * 2**20
"""What a process takes of a card beside torch's allocator: CUDA's context and its libraries' handles. Our allowance;
what it is on a card shows there as `nvidia-smi`'s figure less `torch.cuda.max_memory_reserved()`."""


@dataclass(frozen=True)
class TrialSettings:
    """What is the same for all trials of a sweep.

    Attributes:
        dataset: the data set's name and options.
        max_epochs: the last epoch.
        rungs: the epochs at which trials are evaluated; the last one is `max_epochs`.
        objective: the column that is judged, e.g. `val_nll`.
        evaluation: what an evaluation measures.
        tables: the folder that holds the tables, or `None` to write none.
        checkpoints: the folder of checkpoints, or `None` to keep none.
        store: the sweep's address in a store, where no folder is shared; then the folders are not looked at.
        report_seconds: a report is sent at the end of the epoch in which this much time has passed.
        batch_seconds: short configurations that no scheduler can stop are reported together for this long.
        threads: torch's threads in this process.
        device: `cpu` or `cuda`.
        gpu: the share of a card that is this process's; memory beyond it is refused. 0 or whole cards: no limit.
        packing: how replicates share this process: `sequential`, `fused` or `auto`; `trials` where each has its own.
        training: how training steps are computed.
        choices: the folder in which the sweep's processes keep what `auto` found, or `None` where none is shared.
        data_key: names the data set's contents, by which a node's processes share one copy; `None`: each has its own.
        timeout_seconds: a trial that trains for longer in one process fails after the epoch it is in; `None` for never.
        hang_seconds: a process that does no work for so long is ended, see `trainables.watchdog`; `None` for never.
        extensions: the archive with the code of the sweep's own components, see `trainables.extensions.code`.
    """

    dataset: Mapping[str, Any]
    max_epochs: int
    rungs: tuple[int, ...]
    objective: str
    evaluation: EvaluationSettings
    tables: Path | None = None
    checkpoints: Path | None = None
    store: str | None = None
    report_seconds: float = 10.0
    batch_seconds: float = 2.0
    threads: int = 1
    device: str = "cpu"
    gpu: float = 0.0
    packing: str = SEQUENTIAL
    training: TrainingSettings = PLAIN
    choices: Path | None = None
    data_key: str | None = None
    timeout_seconds: float | None = None
    hang_seconds: float | None = None
    extensions: bytes | None = None

    @staticmethod
    def from_mapping(settings: Mapping[str, Any]) -> TrialSettings:
        """Read settings made of plain values, as the driver sends them."""
        fields = dict(settings)
        fields["evaluation"] = EvaluationSettings.from_mapping(fields["evaluation"])
        fields["rungs"] = tuple(fields["rungs"])
        fields["training"] = TrainingSettings(**fields.get("training", {}))
        for folder in ("tables", "checkpoints", "choices"):
            fields[folder] = Path(fields[folder]) if fields.get(folder) else None
        return TrialSettings(**fields)

    def load_dataset(self) -> DataSet:
        """Return the data set, on the trial's device or streamed to it: the node's one copy where it has a key."""

        def load() -> DataSet:
            options = dict(self.dataset)
            return load_dataset(options.pop("name"), **options)

        dataset = load() if self.data_key is None else shared_dataset(self.data_key, load)
        place = data_place(self.training, dataset.nbytes, self.device, self.gpu)
        return dataset.to(self.device, streamed=place == HOST)


@dataclass(frozen=True)
class Assignment:
    """One configuration to train: its index, name, values and the seed of each replicate.

    Where replicates are trained in processes of their own, `replicate` is the number of the one whose seed this is.
    """

    configuration: int
    trial: str
    values: Mapping[str, Any]
    seeds: Sequence[int]
    replicate: int | None = None

    @property
    def numbers(self) -> range:
        """The replicates' numbers in their configuration, in the order of `seeds`."""
        first = self.replicate or 0
        return range(first, first + len(self.seeds))

    def checkpoints(self, folder: Path) -> Path:
        """Return the folder of this assignment's checkpoints below that of all trials."""
        trial = folder / self.trial
        return trial if self.replicate is None else replicate_folder(trial, self.replicate)


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
        self._wall_seconds = 0.0
        self._seconds_before = 0.0
        self._repeat: dict[str, Any] | None = None
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
    ) -> dict[str, Any]:
        """Train to the next rung, for about `report_seconds`, or until `leaving` says so, and return the report.

        Each of the three is looked at after an epoch: at most one epoch's work is lost with a machine.
        """
        if self._repeat is not None:
            report, self._repeat = self._repeat, None
            return report
        # The last report was journaled, or this call would not have come: its checkpoint is the one to keep.
        self._files.remove_checkpoints_before(self.epoch)
        started, epoch_rows = clock(), []
        failure: tuple[str, str] | None = None
        while failure is None:
            rows = self._train_epoch()
            epoch_rows += rows
            failure = self._all_diverged(rows) or self._timed_out(clock() - started)
            if self.epoch in self.settings.rungs or clock() - started >= self.settings.report_seconds or leaving():
                break
        evaluations = self._evaluate() if failure is None and self.epoch in self.settings.rungs else []
        self._wall_seconds += clock() - started
        report = {
            "configuration": self.assignment.configuration,
            "epoch": self.epoch,
            "objective": math.nan if failure else self._objective(epoch_rows, evaluations),
            "failure": failure[1] if failure else None,
            "failure_kind": failure[0] if failure else None,
            "device": self.settings.device,
            "packing": self._packing,
            "wall_seconds": self._wall_seconds,
            "epochs": epoch_rows,
            "evaluations": evaluations,
        }
        if self._errors:
            report["replicate_errors"] = {str(number): error for number, error in self._errors.items()}
        if self._folder is not None and failure is None:
            written = write_checkpoint(self._folder, self.epoch, self._state(report))
            self._files.checkpoint_written(written, self.epoch)
        return report

    def _build(self, seed: int, dataset: DataSet) -> Replicate:
        return Replicate(
            self.assignment.values,
            seed=seed,
            dataset=dataset,
            max_epochs=self.settings.max_epochs,
            device=self.settings.device,
            training=self.settings.training,
        )

    def _train_epoch(self) -> list[dict[str, Any]]:
        """Train one epoch and return its rows; replicates that diverged in it train no further if others can."""
        numbers = [*self.replicates]
        rows = [{"replicate": n, **row} for n, row in zip(numbers, self._group.train_epoch(), strict=True)]
        diverged = _non_finite(rows)
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

    def _all_diverged(self, rows: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
        """Return kind and sentence of the failure when no replicate is left."""
        if len(self._errors) < len(self.assignment.seeds):
            return None
        return NON_FINITE, self._errors[rows[0]["replicate"]]

    def _objective(
        self, epoch_rows: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]
    ) -> float | None:
        """Return the judged metric's mean over the replicates that have not diverged."""
        sound = [row for row in epoch_rows if row["replicate"] not in self._errors]
        return mean_objective(self.settings.objective, sound, evaluations)

    def _timed_out(self, seconds: float) -> tuple[str, str] | None:
        """Return kind and sentence when the trial has trained for too long, `seconds` since its last report."""
        limit, taken = self.settings.timeout_seconds, self._wall_seconds - self._seconds_before + seconds
        if limit is None or taken <= limit or self.epoch >= self.settings.max_epochs:
            return None
        return TIMED_OUT, f"trained for {taken:.1f} s, longer than trial_timeout = {limit:g} s, by epoch {self.epoch}"

    def _evaluate(self) -> list[dict[str, Any]]:
        stage = "end" if self.epoch >= self.settings.max_epochs else "rung"
        rows: list[dict[str, Any]] = []
        for number, replicate in self.replicates.items():
            evaluation = replicate.evaluate(self.settings.evaluation, stage)
            rows += [{"replicate": number, "epoch": self.epoch, **row} for row in evaluation.rows]
            self._write_tables(number, evaluation, replicate)
        return rows

    def _write_tables(self, number: int, evaluation: Evaluation, replicate: Replicate) -> None:
        if self._files.tables is None:
            return
        place = (self._files.tables, self.assignment.trial, number, self.epoch)
        targets = {
            "val": replicate.dataset.val.targets.cpu().numpy(),
            "test": replicate.dataset.test.targets.cpu().numpy(),
        }
        written = [
            write_predictions(*place, logits=evaluation.logits, targets=targets),
            write_reliability(*place, rows=evaluation.reliability),
        ]
        if evaluation.spectra is not None:
            written.append(write_spectra(*place, rows=evaluation.spectra))
        for path in written:
            self._files.table_written(path)

    def _state(self, report: Mapping[str, Any]) -> dict[str, Any]:
        self._group.settle()
        held = [self.replicates.get(number) for number in self.assignment.numbers]
        return {
            "trial": self.assignment.trial,
            "seeds": list(self.assignment.seeds),
            "wall_seconds": self._wall_seconds,
            "report": dict(report),
            "replicates": [replicate and replicate.state_dict() for replicate in held],
        }

    def _restore(self) -> None:
        self._files.fetch_checkpoints()
        state = load_newest_checkpoint(self._folder, map_location=self.settings.device) if self._folder else None
        if state is None or state["seeds"] != list(self.assignment.seeds):
            return
        for number, saved in zip(self.assignment.numbers, state["replicates"], strict=True):
            if saved is None:
                del self.replicates[number]
            else:
                self.replicates[number].load_state_dict(saved)
        report = state["report"]
        self._errors = {int(number): error for number, error in report.get("replicate_errors", {}).items()}
        # Another packing rounds otherwise: a trial goes on as it began, so that it ends as if never interrupted.
        self._packing = report["packing"]
        self._wall_seconds = self._seconds_before = state["wall_seconds"]
        self._repeat = state["report"]


def prepare_process(settings: TrialSettings) -> None:
    """Give this process the trial's threads and the user's own code; what a reused one may have changed is set again.

    Shares of a card isolate nothing: without a cap one trial's appetite would make its neighbours run out. The cap is
    on what torch allocates, so what CUDA takes beside it comes off the share.
    """
    if settings.extensions is not None:
        take_up(settings.extensions)
    torch.set_num_threads(settings.threads)
    torch.set_default_dtype(torch.float32)
    if settings.device == "cuda":
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(memory_cap(settings.gpu, total))


def memory_cap(share: float, total_bytes: int) -> float:
    """Return the fraction of a card's memory that torch may allocate in a process whose share of the card is `share`.

    0 and whole cards know no cap. A share so small that CUDA's context would be most of it keeps half for torch.
    """
    if not 0 < share < 1:
        return 1.0
    return max(share / 2, share - CONTEXT_BYTES / total_bytes)


def _non_finite(rows: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return the replicates that diverged in an epoch, with one sentence each."""
    found: dict[int, str] = {}
    for row in rows:
        number, epoch = row["replicate"], row["epoch"]
        for column in ("train_loss", "val_nll"):
            if not math.isfinite(row[column]):
                found.setdefault(number, f"{column} of replicate {number} is {row[column]} in epoch {epoch}")
    return found


def mean_objective(
    metric: str, epoch_rows: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]
) -> float | None:
    """Return the mean over replicates of the judged metric at the last epoch; `None` where it was not measured."""
    last = max(row["epoch"] for row in epoch_rows)
    values = [row[metric] for row in epoch_rows if row["epoch"] == last and metric in row]
    if not values:
        split, _, name = metric.partition("_")
        values = [row[name] for row in evaluations if row["split"] == split and name in row]
    return math.fsum(values) / len(values) if values else None
