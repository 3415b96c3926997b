"""What a fully trained sweep measured: every trial's objective after each epoch at which there was one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeper.core.errors import SweeperError
from sweeper.results import Results
from sweeper.results.queries import measured_sql
from sweeper.text.cells import float_of, int_of, text_of
from sweeper.text.labels import plural
from trainables.registry.names import measured_as

JUDGES = ("test_posthoc_temperature_nll", "test_refinement_nll", "test_nll")
"""What a trial is worth in the end: the first of these that was measured, on data that no scheduler saw."""

TRIALS_SQL = (
    "SELECT trials.*, seconds FROM (SELECT DISTINCT ON (trial) * FROM trials WHERE status = 'completed' "
    "ORDER BY trial, replicate) AS trials JOIN (SELECT trial, avg(wall_seconds) AS seconds FROM trials GROUP BY trial) "
    "USING (trial) ORDER BY trial"
)

STOPPED_SQL = (
    "SELECT count(DISTINCT trial) FILTER (status = 'early_stopped') AS stopped, count(DISTINCT trial) FILTER "
    "(status NOT IN ('completed', 'early_stopped')) AS others FROM trials"
)


@dataclass(frozen=True)
class Curves:
    """The trials of a sweep that ran to their end.

    Attributes:
        results: the sweep's tables.
        trials: their names.
        configurations: their values, a mapping for each part of the space.
        pace: seconds of an epoch [trials].
        max_epochs: their last epoch.
        left_out: how many trials failed or never ended.
    """

    results: Results
    trials: list[str]
    configurations: list[dict[str, dict[str, Any]]]
    pace: NDArray[np.float64]
    max_epochs: int
    left_out: int

    def at(self, metric: str, epochs: tuple[int, ...]) -> NDArray[np.float64]:
        """Return a metric, mean over replicates, after each of `epochs` [trials, epochs].

        Raises:
            SweeperError: it was not measured then.
        """
        measured = self._measured(metric)
        known = sorted({epoch for _, epoch in measured})
        missing = [epoch for epoch in epochs if epoch not in known]
        if missing:
            measured_after = ", ".join(map(str, known)) or "none"
            raise SweeperError(
                f"{metric} was not measured after epoch {missing[0]}, only after {measured_after}",
                "replay a scheduler with these rungs, or train a sweep in full with scheduler: "
                f"{{name: none, evaluate_epochs: {[*epochs[:-1]]}}}",
            )
        values = [[measured.get((trial, epoch), np.nan) for epoch in epochs] for trial in self.trials]
        return np.array(values, dtype=np.float64)

    def last(self, metric: str) -> NDArray[np.float64]:
        """Return a metric, mean over replicates, after the last epoch [trials]. Raises SweeperError as `at` does."""
        return self.at(metric, (self.max_epochs,))[:, 0]

    def judge(self, asked: str | None = None) -> str:
        """Return what trials are worth: as asked for, or the first of `JUDGES` that was measured."""
        columns = self.results.columns("evaluations")
        return asked or next(each for each in JUDGES if measured_as(each)[1] in columns)

    def _measured(self, metric: str) -> dict[tuple[str, int], float]:
        measured = measured_sql(self.results, metric)
        rows = self.results.rows(f"SELECT trial, epoch, avg(value) AS value FROM ({measured}) GROUP BY trial, epoch")
        return {(text_of(row, "trial"), int_of(row, "epoch")): float_of(row, "value") for row in rows}


def read_curves(results: Results) -> Curves:
    """Return the curves of a sweep that was trained in full.

    Raises:
        SweeperError: a scheduler stopped trials, or none has ended.
    """
    counts = results.rows(STOPPED_SQL)[0]
    stopped = int_of(counts, "stopped")
    if stopped:
        raise SweeperError(
            f"{results.name} stopped {plural(stopped, 'trial')} early: their final values are unknown",
            "replay a sweep that was trained in full, with scheduler: {name: none, evaluate_epochs: […]}",
        )
    rows = results.rows(TRIALS_SQL)
    if not rows:
        raise SweeperError(f"no trial of {results.name} has ended", "replay it when it has finished")
    pace = np.array([float_of(row, "seconds") / int_of(row, "epochs") for row in rows])
    return Curves(
        results,
        [text_of(row, "trial") for row in rows],
        [_configuration(row) for row in rows],
        np.maximum(pace, 1e-9),
        max(int_of(row, "epochs") for row in rows),
        int_of(counts, "others"),
    )


def _configuration(row: Any) -> dict[str, dict[str, Any]]:
    """Return a trial's values as its search space nests them, from the columns `config_<part>_<key>`."""
    values: dict[str, dict[str, Any]] = {}
    for column, value in row.items():
        if column.startswith("config_") and column != "config_hash" and value is not None:
            part, _, key = column.removeprefix("config_").partition("_")
            values.setdefault(part, {})[key] = value
    return values
