"""Reports of a trial's process with the objective value in them, and what it and the driver tell each other.

First comes `WorkerInit`; then each `WorkerCommand` is answered by a `WorkerReport`, but for one that leaves nothing to
train, until there is `None` in the place of a command. `WorkerFailed` is the last that a process says where it raises.
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
    """Why something ended; `sweeper.journal.reasons` says it in words.

    Attributes:
        kind: a word, e.g. `non_finite`.
        values: what the case is, e.g. `{"metric": "val_nll", "epoch": 3}`.
        message: what was raised, or what somebody else's program said of it; one line.
    """

    kind: str
    values: Mapping[str, Scalar] = field(default_factory=dict)
    message: str = ""

    def having(self, **values: Scalar) -> Self:
        """Return the same with more values."""
        return replace(self, values={**self.values, **values})

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Failure(Reason):
    """Why a trial, one of its replicates or its process cannot continue.

    Attributes:
        counts: whether it counts against the trial's retries; nobody is at fault for a preempted node.
    """

    counts: bool = True


class TrialEnded(Exception):  # noqa: N818 -- it may be no fault of the trial
    """Ends a trial's process for a known reason."""

    interrupts = True  # what may fail without failing its trial lets it pass

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


#: A row of `epochs` or `evaluations`: column → number, text or `None`, as the tables' schemas say; always with
#: `replicate` and `epoch`.
Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TrialReport:
    """What one process measured since its last report.

    Attributes:
        configuration: the index of its configuration.
        epoch: completed epochs.
        objective: the judged value at that epoch, mean over the sound replicates; not a number when the trial failed,
            `None` where it was not measured.
        failure: why the trial cannot continue.
        device: `cpu` or `cuda`.
        packing: how the replicates shared the process; `None` where nothing was packed.
        wall_seconds: time spent in the trial so far.
        gpu: the share of a GPU that its process had, as the driver adds; `None` before.
        epochs: rows of `epochs`, one row per replicate and epoch.
        evaluations: rows of `evaluations`; none between rungs.
        replicate_errors: replicates that failed while others went on, and why.
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
        """Return plain values, for Ray and for checkpoints, which are read with `weights_only`."""
        plain = {**vars(self), "epochs": list(self.epochs), "evaluations": list(self.evaluations)}
        plain["failure"] = self.failure and self.failure.to_dict()
        # JSON knows no numbers as keys.
        plain["replicate_errors"] = {str(n): failure.to_dict() for n, failure in self.replicate_errors.items()}
        return {name: value for name, value in plain.items() if value or name not in _LEFT_OUT}

    @staticmethod
    def from_dict(written: Mapping[str, Any]) -> TrialReport:
        """Read what `to_dict` wrote, which leaves out what is empty."""
        given = {each.name: written[each.name] for each in fields(TrialReport) if each.name in written}
        if given.get("failure") is not None:
            given["failure"] = Failure(**given["failure"])
        errors = given.get("replicate_errors", {})
        given["replicate_errors"] = {int(number): Failure(**fields) for number, fields in errors.items()}
        return TrialReport(**given)


#: Not written where there is none.
_LEFT_OUT = ("failure", "replicate_errors", "gpu")


def non_finite(rows: Sequence[Row]) -> dict[int, Failure]:
    """Return the replicates that diverged in an epoch."""
    found: dict[int, Failure] = {}
    for row in rows:
        number, epoch = row["replicate"], row["epoch"]
        for column in ("train_loss", "val_nll"):
            if not math.isfinite(row.get(column, 0.0)):  # a user's own loop may measure no training loss
                values = {"metric": column, "replicate": number, "value": str(row[column]), "epoch": epoch}
                found.setdefault(number, Failure(NON_FINITE, values))
    return found


def mean_objective(metric: str, epoch_rows: Sequence[Row], evaluations: Sequence[Row]) -> float | None:
    """Return the mean over replicates of the judged metric at the last epoch; `None` where it was not measured."""
    values = objective_values(metric, epoch_rows, evaluations)
    return math.fsum(values) / len(values) if values else None


def objective_values(metric: str, epoch_rows: Sequence[Row], evaluations: Sequence[Row]) -> list[float]:
    """Return a metric of each replicate at the last epoch; none where it was not measured.

    The evaluation at a trial's end counts before the epoch's own measurement, see `of_kept_weights`.

    Args:
        metric: as an objective names it.
        epoch_rows: of the sound replicates; at least one.
        evaluations: of the same report.
    """
    split, name = measured_as(metric)
    last = max(row["epoch"] for row in epoch_rows)
    kept = of_kept_weights(epoch_rows, evaluations)
    values = [row[metric] for row in kept if row["epoch"] == last and metric in row]
    return values or [row[name] for row in evaluations if row.get("split") == split and name in row]


def of_kept_weights(epoch_rows: Iterable[Row], evaluations: Iterable[Row]) -> list[Row]:
    """Return epoch rows with the values of the evaluations at a trial's end in the place of the epoch's own.

    That evaluation is of the weights that are kept, which with `checkpoint: best_val_nll` are an earlier epoch's: what
    the last epoch itself measured is of weights that are gone. Everything that judges a trial by reports asks here,
    everything that judges it by tables asks `sweeper.results.results.measured_sql`.
    """
    at_the_end = [row for row in evaluations if row.get("stage") == "end"]
    ended = {(row["replicate"], row["epoch"], row.get("split")): row for row in at_the_end}
    if not ended:
        return list(epoch_rows)
    kept: list[Row] = []
    for row in epoch_rows:
        places = {column: measured_as(column) for column in row}
        found = {
            column: ended[row["replicate"], row["epoch"], split][name]
            for column, (split, name) in places.items()
            if name in ended.get((row["replicate"], row["epoch"], split), ())
        }
        kept.append({**row, **found})
    return kept


@dataclass(frozen=True)
class WorkerInit:
    """The first message to a process.

    Attributes:
        settings: of all trials.
        log: the file that takes what libraries print.
        together: trials train as a cohort.
    """

    settings: TrialSettings
    log: str
    together: bool = False


@dataclass(frozen=True)
class WorkerCommand:
    """What the driver wants of a process.

    Attributes:
        over: configurations that have ended or pause.
        new: assignments to take up, one after the other; one trial each where trials train together.
        most_lanes: of any cohort from now on; 0 for no limit.
        report_all: every trial reports after the next epoch.
    """

    over: tuple[int, ...] = ()
    new: tuple[Sequence[Assignment], ...] = ()
    most_lanes: int = 0
    report_all: bool = False


@dataclass(frozen=True)
class WorkerReport:
    """What a process reports before it continues.

    Attributes:
        reports: of each assignment that has any, with whether these are its last; in the order of configurations.
        room: how many more trials like these it could take.
        lost: configurations whose trial raised, and why.
        gave_up: the process has let go of all its trials but those, also of such as it had not taken up yet, for want
            of memory.
        most_lanes: the width that memory allows; 0 where it is not known to be short.
        trained: trials that train together were trained since the last command, these reports are not repeated ones.
    """

    reports: tuple[tuple[Sequence[TrialReport], bool], ...] = ()
    room: int = 0
    lost: tuple[tuple[int, Failure], ...] = ()
    gave_up: bool = False
    most_lanes: int = 0
    trained: bool = False


@dataclass(frozen=True)
class WorkerFailed:
    """Why the process ended: it raised."""

    failure: Failure


@dataclass(frozen=True)
class CardMemory:
    """What a configuration's process took of a GPU that it had to itself.

    Attributes:
        used_bytes: at its peak, CUDA's own context and libraries included.
        total_bytes: of the GPU.
        card: its name.
    """

    used_bytes: int
    total_bytes: int
    card: str
