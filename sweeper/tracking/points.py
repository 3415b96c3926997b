"""From rows of epochs and evaluations to the points of MLflow's metrics: means over replicates, and their spread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sweeper.core.schemas import EPOCHS_SCHEMA
from trainables.registry.split_names import CORRUPTED, corruption_of, is_corrupted
from trainables.worker.trial_reports import Row

_KEY_COLUMNS = frozenset({"trial", "replicate", "epoch", "split", "stage"})
_EPOCH_METRICS = frozenset(EPOCHS_SCHEMA.names) - _KEY_COLUMNS


class Point(NamedTuple):
    """One value of one metric: `timestamp` in milliseconds, `step` in epochs."""

    key: str
    value: float
    timestamp: int
    step: int


MOST_EPOCHS = 1000
"""Points of one measurement in one run, but for those at evaluations: pages that compare a hundred runs fetch them all,
and draw 320 of each at most. The tables have every epoch."""


def epochs_between_points(max_epochs: int) -> int:
    """Return the distance in epochs at which a run of `max_epochs` has no more than `MOST_EPOCHS` points."""
    return -(-max_epochs // MOST_EPOCHS)


def thinned(rows: Iterable[Row], every: int, evaluations: Iterable[Row]) -> list[Row]:
    """Return the epoch rows of a report that become points: each `every`-th epoch's, and those that were evaluated."""
    evaluated = {row["epoch"] for row in evaluations}
    return [row for row in rows if row["epoch"] % every == 0 or row["epoch"] in evaluated]


def epoch_points(rows: Iterable[Row]) -> Iterator[tuple[str, float, int]]:
    """Yield (metric, value, epoch) of epoch rows: the mean over replicates and, of several, its `…_std`."""
    for (epoch,), group in _grouped(rows, "epoch").items():
        yield from _mean_and_spread(group, "", epoch)


def evaluation_points(rows: Iterable[Row]) -> Iterator[tuple[str, float, int]]:
    """Yield (metric, value, epoch) of evaluation rows, named after their split except for the Hessian's.

    What the epoch rows measured on the validation split already (`val_nll` …) is not given a second time. Of corrupted
    splits each severity's mean over kinds is given, as `corrupted_3_ece`: the table has a row for each kind.
    """
    rows = [*rows]
    means = _over_kinds(row for row in rows if is_corrupted(row["split"]))
    plain = [row for row in rows if not is_corrupted(row["split"])]
    for (epoch, split), group in _grouped([*plain, *means], "epoch", "split").items():
        yield from _mean_and_spread(group, f"{split}_", epoch)


def _over_kinds(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield a row for each replicate, epoch and severity: the means over kinds of what all kinds have."""
    named = ({**row, "split": f"{CORRUPTED}{corruption_of(row['split'])[1]}"} for row in rows)
    for (replicate, epoch, split), group in _grouped(named, "replicate", "epoch", "split").items():
        columns = [c for c in group[0] if c not in _KEY_COLUMNS]
        numbers = {c: [row[c] for row in group if isinstance(row.get(c), (int, float))] for c in columns}
        means = {c: math.fsum(found) / len(found) for c, found in numbers.items() if len(found) == len(group)}
        yield {"replicate": replicate, "epoch": epoch, "split": split, **means}


def _grouped(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def _mean_and_spread(rows: Sequence[Row], prefix: str, epoch: int) -> Iterator[tuple[str, float, int]]:
    for column in dict.fromkeys(column for row in rows for column in row if column not in _KEY_COLUMNS):
        before = "" if column.startswith("hessian_") else prefix
        if not (prefix and before + column in _EPOCH_METRICS):
            yield from mean_and_spread(rows, (column,), before, epoch)


def mean_and_spread(
    rows: Sequence[Row], columns: Iterable[str], prefix: str, epoch: int
) -> Iterator[tuple[str, float, int]]:
    """Yield (prefix + column, mean over the rows that have a value, epoch) and, of several values, its `…_std`."""
    for column in columns:
        values = [row[column] for row in rows if isinstance(row.get(column), (int, float))]
        if not values:
            continue
        mean = math.fsum(values) / len(values)
        yield prefix + column, mean, epoch
        if len(values) > 1:
            deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
            yield f"{prefix}{column}_std", deviation, epoch
