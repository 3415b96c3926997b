"""Read a sweep's stored predictions one evaluation at a time, with bounded memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sweeper.core.cells import text_of
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths, trial_of
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.queries import current_generation
from sweeper.storage.places import bring_predictions
from sweeper.tables.generations import INCOMING
from trainables.files.sealed import require_sound
from trainables.metrics.base import Floats, softmax64
from trainables.posthoc import fit
from trainables.registry import HyperparameterValue
from trainables.worker.trial_tables import part_name

#: Number of rows read at once; 64 MiB for 1,000 classes in float32.
ROWS_A_BATCH = 16_384

#: Number of attempts to open a file while the tables are replaced by a new generation. Compactions are minutes apart,
#: so the second attempt usually succeeds. The limit only prevents an endless loop on a faulty file system.
MOVES = 8

FITTED_ON, MEASURED_ON = "val", "test"

Key = tuple[str, int, int]

#: (Key, split, logits [n, K], targets [n]) for consecutive rows of one evaluation and split.
Piece = tuple[Key, str, np.ndarray, np.ndarray]


@dataclass
class StoredPredictions:
    """The logits of one evaluation of one replicate.

    Attributes:
        trial, replicate, epoch: the evaluation.
        logits: split → float32 [N, K].
        targets: split → int64 [N].
    """

    trial: str
    replicate: int
    epoch: int
    logits: dict[str, np.ndarray] = field(default_factory=dict)
    targets: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Number of rows of all splits."""
        return sum(len(values) for values in self.targets.values())

    def probabilities(self, split: str, method: str | None = None, **options: HyperparameterValue) -> Floats:
        """Return a split's probabilities, [N, K], after a post-hoc method (or None) fitted on validation data.

        Raises PosthocUnavailable if the method cannot be fitted to the validation data.
        """
        if method is None:
            return softmax64(self.logits[split])
        return fit(method, self.logits[FITTED_ON], self.targets[FITTED_ON], **options)(self.logits[split])


class PredictionFiles:
    """The current files of the table `predictions`.

    A running sweep may publish a new generation at any time. File names do not change between generations. So the names
    are listed once, and each file is opened in the generation that is current at that time.
    """

    def __init__(self, paths: SweepPaths, trials: Collection[str] | None = None) -> None:
        """List the files. If the sweep is in a store, its files are fetched first.

        Args:
            paths: the sweep's files.
            trials: skip files that hold none of these trials; all trials by default.

        Raises SweeperError if no predictions are stored, StoreError if they cannot be fetched.
        """
        self._paths = paths
        self._seen: set[Key] = set()
        bring_predictions(paths, trials)
        folder = current_generation(paths.root) / "predictions"
        names = sorted(path.relative_to(folder).as_posix() for path in folder.glob("**/*.parquet"))
        # A compacted file holds several trials, and its name does not contain them, so it is always included.
        self._names = [name for name in names if trials is None or trial_of(name) in (None, *trials)]
        self.rows = sum(self._rows_of(name) for name in self._names)
        if not self.rows:
            raise SweeperError(
                f"the sweep {paths.name!r} has no stored predictions",
                "trials write them at the first rung: wait until a trial reaches it, or restore the table "
                "`predictions`; your own training loop needs the method `predict`",
            )

    def evaluations(self) -> Iterator[StoredPredictions]:
        """Yield every evaluation, in the order of the files.

        Raises SweeperError if a file is damaged or an evaluation's rows are not contiguous.
        """
        # Only one evaluation is in memory at a time. If its rows were not contiguous, the second part could not be
        # joined to the first and would count as another evaluation.
        self._seen.clear()
        for predictions in _whole(self._pieces()):
            key = (predictions.trial, predictions.replicate, predictions.epoch)
            if key in self._seen:
                raise SweeperError(
                    f"the predictions of {key[0]}, replicate {key[1]}, epoch {key[2]} are stored twice",
                    f"repair the table with `sweeper resume {self._paths.in_commands}`",
                )
            self._seen.add(key)
            yield predictions

    def missing(self) -> list[str]:
        """Return the names of the evaluations without stored predictions; call it after `evaluations`.

        Evaluations whose predictions a running sweep is about to publish do not count.
        """
        measured = Results(self._paths.root).sql("SELECT DISTINCT trial, replicate, epoch FROM evaluations")
        keys = sorted({*zip(*(column.to_pylist() for column in measured.columns), strict=True)} - self._seen)
        coming = self._paths.generations / INCOMING / "predictions"
        return [Path(name).stem for key in keys if not (coming / (name := part_name(*key))).exists()]

    def _pieces(self) -> Iterator[Piece]:
        """Yield runs of rows of one evaluation and split."""
        for name in self._names:
            try:
                with self._open(name) as file:
                    for batch in file.iter_batches(ROWS_A_BATCH):
                        yield from _runs(batch)
            except (OSError, pa.ArrowInvalid) as error:
                raise self._damaged(name, error) from error

    def _rows_of(self, name: str) -> int:
        with self._open(name) as file:
            return int(file.metadata.num_rows)

    def _open(self, name: str) -> pq.ParquetFile:
        for _ in range(MOVES):
            generation = current_generation(self._paths.root)
            try:
                require_sound(generation / "predictions" / name)
                return pq.ParquetFile(generation / "predictions" / name)
            except FileNotFoundError as error:  # this is damage only if the generation is still current
                if generation == current_generation(self._paths.root):
                    raise self._damaged(name, error) from error
            except (OSError, ValueError) as error:
                raise self._damaged(name, error) from error
        raise SweeperError(f"the tables were replaced {MOVES} times while they were read", "try again")

    def _damaged(self, name: str, error: Exception) -> SweeperError:
        reason = str(error).splitlines()[0]
        return SweeperError(
            f"the predictions in {Path('tables/predictions') / name} cannot be read: {reason}",
            f"`sweeper resume {self._paths.in_commands} --discard-damaged` quarantines it; recalibrate afterwards",
        )


def predictions_in(path: Path) -> StoredPredictions:
    """Return the single evaluation of a file that a trial wrote. Raises OSError or ValueError."""
    require_sound(path)
    with pq.ParquetFile(path) as file:
        return next(_whole(run for batch in file.iter_batches(ROWS_A_BATCH) for run in _runs(batch)))


def _whole(pieces: Iterable[Piece]) -> Iterator[StoredPredictions]:
    """Join consecutive pieces into evaluations."""
    for key, of_one in groupby(pieces, key=lambda piece: piece[0]):
        gathered: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for _, split, logits, targets in of_one:
            gathered.setdefault(split, []).append((logits, targets))
        predictions = StoredPredictions(*key)
        for split, parts in gathered.items():
            predictions.logits[split] = np.concatenate([logits for logits, _ in parts])
            predictions.targets[split] = np.concatenate([targets for _, targets in parts])
        yield predictions


def _runs(batch: pa.RecordBatch) -> Iterator[Piece]:
    """Cut a batch where trial, replicate, epoch or split changes."""
    if not batch.num_rows:
        return
    columns = [batch.column(name) for name in ("trial", "replicate", "epoch", "split")]
    ends = {end for column in columns for end in pc.run_end_encode(column).run_ends.to_pylist()}
    for first, end in pairwise([0, *sorted(ends)]):
        trial, replicate, epoch, split = (column[first].as_py() for column in columns)
        # `flatten` respects the slice; `values` would return the whole batch's numbers.
        logits = batch.column("logits").slice(first, end - first)
        values = logits.flatten().to_numpy(zero_copy_only=False).reshape(end - first, logits.type.list_size)
        yield (trial, replicate, epoch), split, values, batch.column("target").to_numpy()[first:end]


def finished_members(results: Results, most: int) -> list[StoredPredictions]:
    """Return the networks of the best finished configurations, grouped by configuration.

    Args:
        results: the sweep.
        most: largest number of configurations; the best by the sweep's objective are taken.

    Raises:
        SweeperError: no configuration finished with predictions of both splits, or networks were measured on different
            samples.
    """
    trials = [text_of(row, "trial") for row in leaderboard(results).finished[:most]]
    return members_of(results, trials)


def members_of(results: Results, trials: Sequence[str]) -> list[StoredPredictions]:
    """Return the networks of these trials at their last evaluation, grouped by trial.

    Raises what `finished_members` raises.
    """
    last = results.rows("SELECT trial, replicate, max(epoch) AS epoch FROM final GROUP BY trial, replicate")
    wanted = {(row["trial"], row["replicate"], row["epoch"]) for row in last if row["trial"] in trials}
    files = PredictionFiles(results.paths, trials)
    both = (FITTED_ON, MEASURED_ON)
    members = []
    for predictions in files.evaluations():
        if (predictions.trial, predictions.replicate, predictions.epoch) in wanted and set(both) <= set(
            predictions.logits
        ):
            # Further splits, such as shifted ones, are dropped, because they may be many times as large.
            kept = ({split: part[split] for split in both} for part in (predictions.logits, predictions.targets))
            members.append(StoredPredictions(predictions.trial, predictions.replicate, predictions.epoch, *kept))
    if not members:
        measured = results.specification.get("evaluation", {}).get("splits", both)
        later, never = "wait until one finishes, or resume the sweep", "make one whose evaluation has the split test"
        raise SweeperError(
            f"the sweep {results.name!r} has no finished trial with predictions on validation and test data",
            later if MEASURED_ON in measured else never,
        )
    require_same_samples(members)
    return sorted(members, key=lambda member: (trials.index(member.trial), member.replicate))


def require_same_samples(members: Sequence[StoredPredictions]) -> None:
    """Raise SweeperError if networks were measured on different samples and so cannot be averaged or paired."""
    for member in members:
        for split, targets in member.targets.items():
            if not np.array_equal(targets, members[0].targets[split]):
                raise SweeperError(
                    f"{member.trial} and {members[0].trial} were measured on different {split} samples",
                    "compare configurations on one data set: a sweep over data-set options has no common samples",
                )
