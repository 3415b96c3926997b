"""What a line of values changes besides the objective: accuracy, and the curvature of the losses."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.core.cells import Row, measured_or_none
from sweeper.core.labels import group
from sweeper.core.statistics.basics import Correlation, correlation
from sweeper.judging.trends import Trend, trend
from sweeper.reporting.answering.answers import Along
from sweeper.reporting.answering.finalists import Series
from sweeper.reporting.answering.matrix import Matrix, evaluated
from sweeper.results import Results
from sweeper.results.deployed import Deployed
from trainables.curvature.statistics.base import headline_columns

#: The correlation's two columns of the leaderboard.
ECE, TRACE = "val_ece", "hessian_cross_entropy_trace"


def along_lines(results: Results, grid: Matrix, lines: Sequence[Series], deployed: Deployed | None) -> list[Along]:
    """Return for each line of finalists what changes along it.

    Curvature is judged along the values of a loss's hyperparameter, by the seeds that decide the objective.

    Args:
        results: the sweep.
        grid: its configurations.
        lines: lines of values.
        deployed: the finalists' test accuracies; None without stored predictions.
    """
    present = {*results.columns("evaluations")}
    columns = [name for name in headline_columns() if name in present and any(map(_is_curved, lines))]
    measured = evaluated(results, "val", columns)
    found = []
    for line in lines:
        order = sorted(line.numbers, key=lambda word: line.numbers[word]) if line.numbers else [*line.rows]
        trials = dict(zip(line.rows, line.trials, strict=True))
        reference = next((word for word in order if line.numbers.get(word) == 0), order[0])
        against = {} if deployed is None else deployed.accuracy_against(trials[reference], line.trials)
        accuracy = {word: against[trials[word]] for word in order if trials[word] in against}
        curvature = dict[str, Trend]()
        for column in columns if _is_curved(line) else ():
            epochs = [measured[column].get(trials[word], {}) for word in order]
            last = [of_one[max(of_one)] if of_one else {} for of_one in epochs]
            judged = trend(column, last)
            curvature |= {} if judged is None else {column: judged}
        found.append(Along(tuple(order), reference, accuracy, curvature))
    return found


def _is_curved(line: Series) -> bool:
    """Return whether curvature is judged along a line: along the values of a loss's hyperparameter."""
    return bool(line.numbers) and group(line.column) == "loss"


def ece_by_trace(finished: Sequence[Row]) -> tuple[Correlation | None, int] | None:
    """Return the correlation of ECE with the trace of cross-entropy's Hessian, within networks, and the number of rows.

    None if no row has both; the correlation is None for too few rows.

    Example:
        >>> ece_by_trace([{"val_ece": 0.1, "hessian_cross_entropy_trace": 3.0, "architecture": "mlp"}])
        (None, 1)
    """
    pairs = [(measured_or_none(row, TRACE), measured_or_none(row, ECE), row["architecture"]) for row in finished]
    known = [(x, y, network) for x, y, network in pairs if x is not None and y is not None]
    if not known:
        return None
    x, y, networks = zip(*known, strict=True)
    return correlation(x, y, networks), len(known)
