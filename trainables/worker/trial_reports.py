"""Reports of a trial's process, its objective, and the messages between process and driver.

The driver first sends `WorkerInit`. The process answers each `WorkerCommand` with a `WorkerReport`, unless the command
leaves nothing to train, until the driver sends `None`. A process that raises sends `WorkerFailed` as its last message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from trainables.registry.names import measured_as

if TYPE_CHECKING:
    from trainables.worker.trial_settings import Assignment, TrialSettings

#: The kinds of failure that a trial finds in itself.
NON_FINITE, TIMED_OUT = "non_finite", "timed_out"

#: The kinds of failure that end a trial's process.
PREEMPTED, OUT_OF_MEMORY, GPU_OUT_OF_MEMORY, STORAGE = "preempted", "out_of_memory", "gpu_out_of_memory", "storage"
STORE, HUNG, CRASH, ERROR = "store", "hung", "crash", "error"

Scalar: TypeAlias = str | int | float


@dataclass(frozen=True)
class Reason:
    """The reason why something ended; `sweeper.journal.reasons` converts it to text.

    Attributes:
        kind: kind of reason, e.g. `non_finite`.
        values: details, e.g. `{"metric": "val_nll", "epoch": 3}`.
        message: one line of the exception, or of another program's message.
    """

    kind: str
    values: Mapping[str, Scalar] = field(default_factory=dict)
    message: str = ""

    def having(self, **values: Scalar) -> Self:
        """Return a copy with more values."""
        return replace(self, values={**self.values, **values})

    def to_dict(self) -> dict[str, object]:
        """Convert to plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Failure(Reason):
    """The reason why a trial, one of its replicates or its process cannot continue.

    Attributes:
        counts: whether the failure counts against the trial's retries. Preemption of a node does not.
    """

    counts: bool = True


class TrialEnded(Exception):  # noqa: N818 -- it may be no fault of the trial
    """Ends a trial's process for a known reason."""

    interrupts = True  # measurements that may fail without failing their trial do not catch it

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


#: A row of `epochs` or `evaluations`: column → number, text or `None`, as the tables' schemas say; always with
#: `replicate` and `epoch`.
Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TrialReport:
    """The measurements of one process since its last report.

    Attributes:
        configuration: index of the configuration.
        epoch: completed epochs.
        objective: objective at that epoch, mean over the sound replicates; NaN if the trial failed, `None` if it was
            not measured.
        failure: why the trial cannot continue.
        device: `cpu` or `cuda`.
        packing: how the replicates shared the process; `None` if nothing was packed.
        wall_seconds: time spent in the trial so far.
        gpu: GPU fraction of its process, filled in by the driver; `None` before.
        epochs: rows of `epochs`, one row per replicate and epoch.
        evaluations: rows of `evaluations`; none between rungs.
        replicate_errors: replicates that failed while others continued, and why.
    """

    configuration: int
    epoch: int
    objective: float | None = None
    failure: Failure | None = None
    device: str
    packing: str | None = None
    wall_seconds: float
    epochs: Sequence[Row] = ()
    evaluations: Sequence[Row] = ()
    replicate_errors: Mapping[int, Failure] = field(default_factory=dict)
    gpu: float | None = None

    def to_dict(self) -> dict[str, object]:
        """Convert to plain values, for Ray and for checkpoints, which are loaded with `weights_only`."""
        plain = {**vars(self), "epochs": list(self.epochs), "evaluations": list(self.evaluations)}
        plain["failure"] = self.failure and self.failure.to_dict()
        # JSON has only text keys.
        plain["replicate_errors"] = {str(n): failure.to_dict() for n, failure in self.replicate_errors.items()}
        return {name: value for name, value in plain.items() if value or name not in _LEFT_OUT}

    @staticmethod
    def from_dict(written: Mapping[str, Any]) -> TrialReport:
        """Read the values of `to_dict`, which leaves out empty values."""
        given = {field.name: written[field.name] for field in fields(TrialReport) if field.name in written}
        if given.get("failure") is not None:
            given["failure"] = Failure(**given["failure"])
        errors = given.get("replicate_errors", {})
        given["replicate_errors"] = {int(number): Failure(**values) for number, values in errors.items()}
        return TrialReport(**given)


#: Fields that are written only if they have a value: nearly all reports lack them.
_LEFT_OUT = ("failure", "replicate_errors", "gpu")


def non_finite(rows: Sequence[Row]) -> dict[int, Failure]:
    """Return the replicates that diverged in an epoch, with the failure of each."""
    diverged: dict[int, Failure] = {}
    for row in rows:
        number, epoch = row["replicate"], row["epoch"]
        for column in ("train_loss", "val_nll"):
            if not math.isfinite(row.get(column, 0.0)):  # a user's own loop may measure no training loss
                values = {"metric": column, "replicate": number, "value": str(row[column]), "epoch": epoch}
                diverged.setdefault(number, Failure(NON_FINITE, values))
    return diverged


def mean_objective(metric: str, epoch_rows: Sequence[Row], evaluations: Sequence[Row]) -> float | None:
    """Return the mean of a metric over replicates at the last epoch; `None` if it was not measured."""
    values = objective_values(metric, epoch_rows, evaluations)
    return math.fsum(values) / len(values) if values else None


def objective_values(metric: str, epoch_rows: Sequence[Row], evaluations: Sequence[Row]) -> list[float]:
    """Return a metric of each replicate at the last epoch; an empty list if it was not measured.

    The evaluation at a trial's end takes precedence over the epoch's measurement, see `of_kept_weights`.

    Args:
        metric: the objective's name.
        epoch_rows: epoch rows of the sound replicates; at least one.
        evaluations: evaluation rows of the same report.
    """
    split, name = measured_as(metric)
    last = max(row["epoch"] for row in epoch_rows)
    kept = of_kept_weights(epoch_rows, evaluations)
    values = [row[metric] for row in kept if row["epoch"] == last and metric in row]
    return values or [row[name] for row in evaluations if row.get("split") == split and name in row]


def of_kept_weights(epoch_rows: Iterable[Row], evaluations: Iterable[Row]) -> list[Row]:
    """Return epoch rows in which evaluations at a trial's end replace the epoch's measurements.

    Such an evaluation measures the kept weights. With `checkpoint: best_val_nll`, these come from an earlier epoch, and
    the last epoch's own measurements belong to weights that are discarded. Code that judges trials by reports uses this
    function; code that judges them by tables uses `sweeper.results.results.measured_sql`.
    """
    at_the_end = [row for row in evaluations if row.get("stage") == "end"]
    ended = {(row["replicate"], row["epoch"], row.get("split")): row for row in at_the_end}
    if not ended:
        return list(epoch_rows)
    kept: list[Row] = []
    for row in epoch_rows:
        places = {column: measured_as(column) for column in row}
        replaced = {
            column: ended[row["replicate"], row["epoch"], split][name]
            for column, (split, name) in places.items()
            if name in ended.get((row["replicate"], row["epoch"], split), ())
        }
        kept.append({**row, **replaced})
    return kept


@dataclass(frozen=True)
class WorkerInit:
    """The first message to a process.

    Attributes:
        settings: settings of all trials.
        log: file for the output of libraries.
        together: whether trials train as a cohort.
    """

    settings: TrialSettings
    log: str
    together: bool = False


@dataclass(frozen=True)
class WorkerCommand:
    """The driver's command to a process.

    Attributes:
        over: configurations that have ended or are paused.
        new: assignments to train one after another; if trials train together, each is one trial.
        most_lanes: largest number of lanes of a cohort from now on; 0 for no limit.
        report_all: whether every trial reports after the next epoch.
    """

    over: tuple[int, ...] = ()
    new: tuple[Sequence[Assignment], ...] = ()
    most_lanes: int = 0
    report_all: bool = False


@dataclass(frozen=True)
class WorkerReport:
    """A process's answer to a command.

    Attributes:
        reports: for each assignment with reports, in the order of configurations: its reports, and whether they are the
            last.
        room: number of further trials of the same kind that the process could take.
        lost: configurations whose trial raised an exception, with the failure.
        gave_up: whether the process dropped all other trials for lack of memory, including trials not started yet.
        most_lanes: number of lanes that memory allows; 0 if no shortage is known.
        trained: whether the cohort was trained since the last command, so that the reports are not repetitions.
    """

    reports: tuple[tuple[Sequence[TrialReport], bool], ...] = ()
    room: int = 0
    lost: tuple[tuple[int, Failure], ...] = ()
    gave_up: bool = False
    most_lanes: int = 0
    trained: bool = False


@dataclass(frozen=True)
class WorkerFailed:
    """The last message of a process that raised."""

    failure: Failure


@dataclass(frozen=True)
class CardMemory:
    """GPU memory that a configuration used in a process with a whole GPU.

    Attributes:
        used_bytes: peak use, including CUDA's context and libraries.
        total_bytes: memory of the GPU.
        card: name of the GPU.
    """

    used_bytes: int
    total_bytes: int
    card: str
