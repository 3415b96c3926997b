"""Points of metrics from a journal's rows: grouped names, means over replicates and their standard deviations.

A group is the part of a name before a slash. `finished/` contains the objective and test metrics of trials that ran to
the end, so that pages can rank these trials alone.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow.parquet as pq

from sweeper.core.cells import grouped
from sweeper.core.ids import configuration_index
from sweeper.core.schemas import EPOCHS_SCHEMA
from sweeper.results.recalibration import method_label
from sweeper.tables.generations import RecalibrationPart
from sweeper.tracking.base import Point
from trainables.curvature.statistics.base import headline_columns
from trainables.registry.names import CORRUPTED, corruption_of, is_corrupted
from trainables.worker.trial_reports import Row

#: Metric, value and epoch of each point.
Measured = Iterator[tuple[str, float, int]]

#: Metrics of recalibrations that become points, because a post-hoc method can change them; the table has all others.
RECALIBRATED = ("accuracy", "nll", "brier", "ece", "ada_ece", "mce", "cw_ece", "aurc")

FITTED = ("temperature", "gamma")

#: Limit of a recalibration's prefix: MLflow allows 250 characters, and the metric and `_std` follow.
LONGEST_KEY = 200

_KEY_COLUMNS = frozenset({"trial", "replicate", "epoch", "split", "stage"})
_EPOCH_METRICS = frozenset(EPOCHS_SCHEMA.names) - _KEY_COLUMNS


#: Columns about the computation of a number, which are not metrics; the tables have them.
UNLOGGED = re.compile(r".*_(matvecs|residual|samples|converged|at_bound)")

#: Sweeps of more trials log only the `CORE` columns of an evaluation. MLflow's SQLite file takes 0.5 kB for a metric of
#: a run (its primary key and two indexes repeat each row). 110 metrics of 10,000 trials took 577 MB, and everything
#: else took 404 MB.
MOST_TRIALS = 2000

#: Columns of evaluations that even the largest sweeps log; they also log the main curvature metrics and the objective.
CORE = re.compile(
    r"accuracy|nll|brier|ece|ada_ece|cw_ece|mce|aurc|(refinement|calibration)_nll"
    r"|posthoc_.*_(nll|temperature|gamma)|posthoc_.*(?<!_ada)(?<!_cw)_ece"
)

#: Largest number of points of one metric in one run, besides those at evaluations: pages that compare a hundred runs
#: fetch them all, and draw at most 320 of each. The tables have every epoch.
MOST_EPOCHS = 1000


def thinned(rows: Iterable[Row], max_epochs: int, evaluations: Iterable[Row]) -> list[Row]:
    """Return the epoch rows that become points: equally distant epochs, and all evaluated ones."""
    every = -(-max_epochs // MOST_EPOCHS)
    evaluated = {row["epoch"] for row in evaluations}
    return [row for row in rows if row["epoch"] % every == 0 or row["epoch"] in evaluated]


def epoch_points(rows: Iterable[Row]) -> Measured:
    """Yield (metric, value, epoch) of epoch rows: the mean over replicates and, for several, their `…_std`."""
    for epoch, group in grouped(rows, itemgetter("epoch")).items():
        yield from mean_and_spread(group, _columns(group), "", epoch)


def is_core(column: str) -> bool:
    """Return whether the largest sweeps log a column of evaluations."""
    return CORE.fullmatch(column) is not None or column in headline_columns()


def evaluation_points(rows: Iterable[Row], logged: Callable[[str], bool] = lambda column: True) -> Measured:
    """Yield (metric, value, epoch) of evaluation rows, named after their split, except for the Hessian.

    Columns in `UNLOGGED` are left out, as are columns that the epoch rows have (`val_nll` …). Pages show one group for
    each word before a slash: `calibration/test_mce`, `posthoc/test_posthoc_temperature_ece`. Corrupted splits are
    averaged over kinds for each severity, as `corrupted_3_ece`; the table has a row for each kind.

    Args:
        rows: evaluation rows.
        logged: whether a column becomes points.
    """
    rows = [*rows]
    means = _over_kinds(row for row in rows if is_corrupted(str(row.get("split"))))
    plain = [row for row in rows if not is_corrupted(str(row.get("split")))]
    for (epoch, split), group in grouped([*plain, *means], itemgetter("epoch", "split")).items():
        for column in filter(logged, _columns(group)):
            before = before_column(split, column)
            if before + column not in _EPOCH_METRICS:
                yield from mean_and_spread(group, (column,), before, epoch)


def _over_kinds(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield a row for each replicate, epoch and severity: means over kinds of the columns that all kinds have."""
    named = ({**row, "split": f"{CORRUPTED}{corruption_of(row['split'])[1]}"} for row in rows)
    for (replicate, epoch, split), group in grouped(named, itemgetter("replicate", "epoch", "split")).items():
        columns = [c for c in group[0] if c not in _KEY_COLUMNS]
        numbers = {c: [row[c] for row in group if isinstance(row.get(c), (int, float))] for c in columns}
        # A mean over only some kinds would not be comparable between trials.
        means = {c: math.fsum(values) / len(values) for c, values in numbers.items() if len(values) == len(group)}
        yield {"replicate": replicate, "epoch": epoch, "split": split, **means}


def _columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns of numbers that become points."""
    columns = dict.fromkeys(column for row in rows for column in row if column not in _KEY_COLUMNS)
    return [column for column in columns if not UNLOGGED.fullmatch(column)]


#: Groups for columns of evaluations; the first match counts. Accuracy, NLL and ECE have none, so pages show them first.
GROUPS = {
    "": re.compile(r"accuracy|nll|ece"),
    "posthoc/": re.compile(r"posthoc_.*"),
    "curvature/": re.compile(r"hessian_.*"),
    "calibration/": re.compile(r".*(ece|mce|calibration|confiden|posterior|region).*"),
    "other/": re.compile(r".*"),
}


def before_column(split: str, column: str) -> str:
    """Return the prefix of a metric's name: its group and, except for the Hessian, its split."""
    group = next(group for group, columns in GROUPS.items() if columns.fullmatch(column))
    return group if column.startswith("hessian_") else f"{group}{split}_"


#: Metrics under `finished/` of trials that ran to the end, besides the objective, if they are measured.
FINISHED = frozenset({"test_accuracy", "test_nll", "test_ece", "posthoc/test_posthoc_temperature_ece"})


def mean_and_spread(rows: Sequence[Row], columns: Iterable[str], prefix: str, epoch: int) -> Measured:
    """Yield (prefix + column, mean over rows with a value, epoch) and, for several values, their `…_std`."""
    for column in columns:
        values = [row[column] for row in rows if isinstance(row.get(column), (int, float))]
        if not values:
            continue
        mean = math.fsum(values) / len(values)
        yield prefix + column, mean, epoch
        # The spread of standard errors is not informative, and all replicates share the learning rate.
        if len(values) > 1 and column != "lr" and not column.endswith("_se"):
            deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
            yield f"{prefix}{column}_std", deviation, epoch


def recalibration_points(part: RecalibrationPart) -> Iterator[tuple[int, list[Point]]]:
    """Yield (configuration, points) of one file: means over replicates and, for several, their `…_std`.

    Keys are `recalibrated_<method>_<options>_bins<n>/<split>_<metric>`, which MLflow's pages show as one group.
    """
    table, by_trial = pq.read_table(part.path).to_pylist(), dict[int, list[Point]]()
    for (trial, epoch, split), rows in grouped(table, itemgetter("trial", "epoch", "split")).items():
        prefix = _prefix(rows[0]["method"], json.loads(rows[0]["options"]), rows[0]["bins"])
        measured = [*mean_and_spread(rows, RECALIBRATED, f"{prefix}/{split}_", epoch)]
        if split == "val":
            measured += mean_and_spread(rows, FITTED, f"{prefix}/", epoch)
        points = by_trial.setdefault(configuration_index(trial), [])
        points += [Point(key, value, part.written, step) for key, value, step in measured]
    yield from by_trial.items()


def _prefix(method: str, options: Mapping[str, Any], bins: int) -> str:
    """Return a name that MLflow allows: letters, digits, `_`, `-`, `.`, `:`, space and `/`."""
    words = method_label(method, options).replace("=", ":")
    return f"recalibrated_{re.sub(r'[^A-Za-z0-9_.:-]+', '_', words).strip('_')[:LONGEST_KEY]}_bins{bins}"
