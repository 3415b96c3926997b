"""Files for a sweep's runs: tables and report for its own, a reliability diagram for each trial that has ended.

The bins of the diagrams are no part of the journal: they are read from the table `reliability` as its files appear,
each file once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from operator import itemgetter
from pathlib import Path

import jinja2
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from sweeper.core.cells import grouped
from sweeper.core.ids import RECALIBRATIONS, SweepPaths, configuration_index, trial_name
from sweeper.journal.best import Judging, best_trial, best_words
from sweeper.journal.state import ENDED, SweepState
from sweeper.tables.generations import recalibration_parts
from sweeper.tracking.base import DIAGRAM
from trainables.files.sealed import require_sound
from trainables.worker.trial_reports import Row
from trainables.worker.trial_tables import write_parquet

SPLIT = "test"

_SIDE, _MARGIN = 360, 45

Bins = Sequence[Row]

#: The attached tables, one file each; predictions are large and stay in the results folder.
TABLES = ("trials", "epochs", "evaluations", "decisions", "reliability")


def artifacts(
    paths: SweepPaths, state: SweepState, judging: Judging, folder: Path
) -> Iterator[tuple[Path, str | None]]:
    """Make the files in `folder` and yield each with the artifact folder it belongs to.

    Args:
        paths: of the sweep.
        state: of its trials, to find the best.
        judging: the scheduler, which says what is better.
        folder: for temporary files.
    """
    for table in (*TABLES, *([RECALIBRATIONS] if recalibration_parts(paths) else [])):
        source = ds.dataset(paths.tables / table, format="parquet")
        yield write_parquet(folder / f"{table}.parquet", source.schema, source.to_batches()), "tables"
    for file in (paths.report, paths.sweep_file):
        if file.is_file():
            yield file, None
    best = best_trial(state, judging)
    if best is not None:
        name = trial_name(best.configuration)
        bins = reliability_of(paths, name)
        if bins:
            target = folder / DIAGRAM
            target.write_text(reliability_diagram(bins, f"{name}, the {best_words(best)}", said_of(bins)), "utf-8")
            yield target, None


def reliability_of(paths: SweepPaths, trial: str) -> Bins:
    """Return the bins of a trial's last evaluation on the test split, counted together over its replicates."""
    rows = ds.dataset(paths.tables / "reliability", format="parquet").to_table(
        filter=(pc.field("trial") == trial) & (pc.field("split") == SPLIT)
    )
    return merged([row for row in rows.to_pylist() if row["epoch"] == pc.max(rows["epoch"]).as_py()])


class Diagrams:
    """What trials' diagrams are drawn from, gathered file by file."""

    def __init__(self, paths: SweepPaths) -> None:
        """Begin with nothing read."""
        self._folder = paths.tables / "reliability"
        self._read: set[str] = set()
        self._rows: dict[int, tuple[int, dict[tuple[int, int], Row]]] = {}

    def gather(self, drawn: Mapping[int, str]) -> None:
        """Read the files that have appeared since; of each trial the bins of its latest evaluation are kept.

        Args:
            drawn: configuration → epoch of the diagram that its run has already, which is not needed again.
        """
        for path in sorted(self._folder.glob("*.parquet")):
            if path.name not in self._read:
                try:
                    require_sound(path)
                    rows = pq.read_table(path, filters=[("split", "=", SPLIT)]).to_pylist()
                except FileNotFoundError:
                    continue  # merged or compacted meanwhile: its rows come again under another name
                except (OSError, ValueError):
                    self._read.add(path.name)  # damaged: the next process that opens the sweep quarantines it
                    continue
                self._read.add(path.name)
                for row in rows:
                    self._take(row, drawn)

    def due(self, state: SweepState) -> Iterator[tuple[int, int, Bins]]:
        """Yield (configuration, epoch, merged bins) of ended trials, each once; what was yielded is forgotten."""
        for index in list(self._rows):
            epoch, rows = self._rows[index]
            trial = state.trials.get(index)  # none yet where a search has suggested it later in the journal
            if trial is not None and trial.status in ENDED and trial.last_evaluation_epoch == epoch:
                del self._rows[index]
                yield index, epoch, merged([*rows.values()])

    def _take(self, row: Row, drawn: Mapping[int, str]) -> None:
        index, epoch = configuration_index(row["trial"]), row["epoch"]
        if drawn.get(index) == str(epoch):
            return
        latest, rows = self._rows.get(index, (0, {}))
        if epoch > latest:
            latest, rows = self._rows[index] = epoch, {}
        if epoch == latest:
            rows[row["replicate"], row["bin"]] = row  # files that were merged repeat what single ones held


def merged(rows: Bins) -> Bins:
    """Return bins counted together over replicates: `lower upper n confidence accuracy`, in order.

    Args:
        rows: one per replicate and bin, with `bin` besides.
    """
    bins: list[dict[str, object]] = []
    for _, group in sorted(grouped(rows, itemgetter("bin")).items()):
        n = sum(row["n"] for row in group)
        bins.append({"lower": group[0]["lower"], "upper": group[0]["upper"], "n": n})
        for column in ("confidence", "accuracy"):
            total = math.fsum(row["n"] * row[column] for row in group if row["n"])
            bins[-1][column] = total / n if n else None
    return bins


def calibration_error(bins: Bins) -> float:
    """Return the expected calibration error that a diagram shows: Σ n/N · |accuracy − confidence| over its bins."""
    samples = sum(row["n"] for row in bins)
    gaps = (row["n"] * abs(row["accuracy"] - row["confidence"]) for row in bins if row["n"])
    return math.fsum(gaps) / samples if samples else math.nan


def said_of(bins: Bins) -> str:
    """Return a diagram's subtitle: number of samples, split and calibration error."""
    samples = sum(row["n"] for row in bins)
    return f"{SPLIT} split, {samples:,} predictions of all replicates, ECE {calibration_error(bins):.3f}"


def reliability_diagram(bins: Bins, title: str, subtitle: str = "") -> str:
    """Return a reliability diagram as SVG: accuracy against confidence, a bar a bin, the diagonal dashed.

    The darker a bar, the more of the samples it holds.
    """
    filled = [row for row in bins if row["n"]]
    most = max((row["n"] for row in filled), default=0)
    return _template().render(bins=filled, most=most, side=_SIDE, margin=_MARGIN, title=title, subtitle=subtitle)


@functools.cache
def _template() -> jinja2.Template:
    text = resources.files("sweeper.tracking").joinpath("reliability.svg").read_text("utf-8")
    template: jinja2.Template = jinja2.Template(text, autoescape=True, trim_blocks=True)
    return template
