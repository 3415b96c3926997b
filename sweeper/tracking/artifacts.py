"""Artifacts of a sweep's runs: tables and report for the sweep's run, a reliability diagram for each ended trial.

The journal does not contain the bins of the diagrams, so they are read from the table `reliability`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import resources
from operator import itemgetter
from pathlib import Path
from typing import Any

import jinja2
import pyarrow.compute as pc
import pyarrow.dataset as ds

from sweeper.core.cells import grouped
from sweeper.core.ids import RECALIBRATIONS, SweepPaths, configuration_index, trial_name
from sweeper.journal.best import Mode, best_trial, best_words
from sweeper.journal.state import ENDED, SweepState
from sweeper.results.queries import current_generation, require_listed_files
from sweeper.tables.generations import recalibration_parts
from sweeper.tracking.base import DIAGRAM
from trainables.metrics.isotonic import consistency_bars
from trainables.worker.trial_reports import Row
from trainables.worker.trial_tables import write_parquet

#: The split that diagrams show: the other splits were used to train or to select.
SPLIT = "test"

_SIDE, _MARGIN = 360, 45  # pixels

Bins = Sequence[Row]

#: The attached tables, one file each; predictions are large and stay in the results folder.
TABLES = ("trials", "epochs", "evaluations", "decisions", "reliability")


def artifacts(paths: SweepPaths, state: SweepState, mode: Mode, folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Write the files to `folder` and yield each with its artifact folder.

    Args:
        paths: paths of the sweep.
        state: state of its trials, to find the best.
        mode: whether the objective should be small, `min`, or large, `max`.
        folder: folder for temporary files.

    Raises LostFilesError if files of the tables are lost.
    """
    tables = (*TABLES, *([RECALIBRATIONS] if recalibration_parts(paths) else []))
    require_listed_files(current_generation(paths.root), tables)
    for table in tables:
        source = ds.dataset(paths.tables / table, format="parquet")
        yield write_parquet(folder / f"{table}.parquet", source.schema, source.to_batches()), "tables"
    for file in (paths.report, paths.sweep_file):
        if file.is_file():
            yield file, None
    best = best_trial(state, mode)
    if best is not None:
        name = trial_name(best.configuration)
        epoch = best.last_evaluation_epoch
        if epoch is not None and (bins := reliability_of(paths, name, epoch)):
            target = folder / DIAGRAM
            target.write_text(reliability_diagram(bins, f"{name}, the {best_words(best)}", said_of(bins)), "utf-8")
            yield target, None


def reliability_of(paths: SweepPaths, trial: str, epoch: int) -> Bins:
    """Return the bins of a trial's evaluation at an epoch on the test split, pooled over all its replicates.

    Raises as `_rows_of`.
    """
    return merged([row for row in _rows_of(paths, {trial}) if row["epoch"] == epoch])


def _rows_of(paths: SweepPaths, trials: Collection[str]) -> list[Row]:
    """Return the rows of trials on the test split.

    Raises:
        OSError, ValueError: a file is damaged, or was replaced while it was read.
    """
    wanted = (pc.field("split") == SPLIT) & pc.field("trial").isin([*trials])
    rows: list[Row] = ds.dataset(paths.tables / "reliability", format="parquet").to_table(filter=wanted).to_pylist()
    return rows


def missing_diagrams(paths: SweepPaths, state: SweepState, drawn: Mapping[int, str]) -> dict[int, tuple[int, Bins]]:
    """Return configuration → (epoch, bins) of ended trials whose runs lack the diagram of their last evaluation.

    An added seed has a run and a diagram of its own; its trial's diagram is that of the trial's first seeds.

    Args:
        paths: paths of the sweep.
        state: state of its trials.
        drawn: configuration → epoch of the diagram that its run has.
    """
    added = {(trial_name(seed.trial), seed.replicate): i for i, trial in state.trials.items() if (seed := trial.added)}
    last = {i: trial.last_evaluation_epoch for i, trial in state.trials.items() if trial.status in ENDED}
    lacking = {i: epoch for i, epoch in last.items() if epoch is not None and drawn.get(i) != str(epoch)}
    trials = {trial_name(seed.trial if (seed := state.trials[i].added) else i) for i in lacking}
    try:
        rows = _rows_of(paths, trials) if trials else []
    except (OSError, ValueError):
        # The next process that opens the sweep quarantines a damaged file; diagrams are drawn after that.
        return {}
    runs = grouped(rows, lambda row: added.get((row["trial"], row["replicate"]), configuration_index(row["trial"])))
    of_run = {i: [row for row in runs.get(i, ()) if row["epoch"] == epoch] for i, epoch in lacking.items()}
    return {i: (lacking[i], merged(rows)) for i, rows in of_run.items() if rows}


def merged(rows: Bins) -> Bins:
    """Pool bins over replicates: `lower upper n confidence accuracy low high`, in order.

    Between `low` and `high` are 95 % of the accuracies of a calibrated network (`consistency_bars`). Replicates share
    their samples, so the bars are those of one replicate's samples.

    Args:
        rows: one row per replicate and bin, which also has the column `bin`.
    """
    bins: list[dict[str, Any]] = []
    for _, group in sorted(grouped(rows, itemgetter("bin")).items()):
        n = sum(row["n"] for row in group)
        bins.append({"lower": group[0]["lower"], "upper": group[0]["upper"], "n": n})
        for column in ("confidence", "accuracy"):
            total = math.fsum(row["n"] * row[column] for row in group if row["n"])
            bins[-1][column] = total / n if n else None
        if n:
            ends = consistency_bars([bins[-1]["confidence"]], [n / len(group)])
            bins[-1] |= {name: float(end[0]) for name, end in zip(("low", "high"), ends, strict=True)}
    return bins


def calibration_error(bins: Bins) -> float:
    """Return the expected calibration error of a diagram: Σ n/N · |accuracy − confidence| over its bins."""
    samples = sum(row["n"] for row in bins)
    gaps = (row["n"] * abs(row["accuracy"] - row["confidence"]) for row in bins if row["n"])
    return math.fsum(gaps) / samples if samples else math.nan


def said_of(bins: Bins) -> str:
    """Return a diagram's subtitle: number of samples, split and calibration error."""
    samples = sum(row["n"] for row in bins)
    return f"{SPLIT} split, {samples:,} predictions of all replicates, ECE {calibration_error(bins):.3f}"


def reliability_diagram(bins: Bins, title: str, subtitle: str = "") -> str:
    """Draw a reliability diagram as SVG: accuracy against confidence, one bar per bin, the diagonal dashed.

    Darker bars contain more samples. Red lines are the consistency bars.
    """
    filled = [row for row in bins if row["n"]]
    most = max((row["n"] for row in filled), default=0)
    return _template().render(bins=filled, most=most, side=_SIDE, margin=_MARGIN, title=title, subtitle=subtitle)


@functools.cache
def _template() -> jinja2.Template:
    text = resources.files("sweeper.tracking").joinpath("reliability.svg").read_text("utf-8")
    template: jinja2.Template = jinja2.Template(text, autoescape=True, trim_blocks=True)
    return template
