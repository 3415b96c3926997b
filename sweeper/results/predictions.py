"""Read a sweep's stored predictions one evaluation at a time, with bounded memory."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sweeper.core.cells import grouped, text_of
from sweeper.core.errors import SweeperError
from sweeper.core.ids import KEPT, SweepPaths, trial_of
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.queries import current_generation, require_listed_files
from sweeper.storage.places import bring_predictions
from sweeper.tables.file_list import EMPTY_PART, table_files
from sweeper.tables.generations import INCOMING
from trainables.files.sealed import require_sound
from trainables.metrics.base import Floats, softmax64
from trainables.posthoc import fit
from trainables.registry import HyperparameterValue
from trainables.worker.trial_tables import part_name

#: Number of attempts to open a file while the tables are replaced by a new generation. Compactions are minutes apart,
#: so the second attempt usually succeeds. The limit only prevents an endless loop on a faulty file system.
MOVES = 8

FITTED_ON, MEASURED_ON = "val", "test"

Key = tuple[str, int, int]


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
            trials: read only the predictions of these trials; all by default.

        Raises SweeperError if no predictions are stored or files are lost, StoreError if they cannot be fetched.
        """
        self._paths, self._trials = paths, None if trials is None else [*trials]
        self._seen: set[Key] = set()
        bring_predictions(paths, trials)
        generation = current_generation(paths.root)
        require_listed_files(generation, [KEPT], trials)
        folder = generation / KEPT
        files = (path for path in table_files(generation, KEPT) if path.name != EMPTY_PART)
        names = [path.relative_to(folder).as_posix() for path in files]
        # A merged file holds several trials, and its name does not contain them, so it is always included.
        self._names = [name for name in names if trials is None or trial_of(name) in (None, *trials)]
        # A loop without the method `predict` writes files without rows.
        if not any(map(self._has_rows, self._names)):
            raise SweeperError(
                f"the sweep {paths.name!r} has no stored predictions",
                "trials write them at the first rung: wait until a trial reaches it, or restore the table "
                "`predictions`; your own training loop needs the method `predict`",
            )

    def evaluations(self) -> Iterator[StoredPredictions]:
        """Yield the trials' evaluations, in the order of the files.

        Raises SweeperError if a file is damaged or two files have the same evaluation.
        """
        self._seen.clear()
        parts = itertools.chain.from_iterable(map(self._read, self._names))
        for key, of_one in itertools.groupby(parts, key=lambda part: (part.trial, part.replicate, part.epoch)):
            if key in self._seen:
                raise SweeperError(
                    f"the predictions of {key[0]}, replicate {key[1]}, epoch {key[2]} are stored twice",
                    f"repair the table with `sweeper resume {self._paths.in_commands}`",
                )
            self._seen.add(key)
            yield _joined([*of_one])

    def missing(self, expected: Collection[Key]) -> list[str]:
        """Return the names of the expected evaluations without stored predictions; call it after `evaluations`.

        Evaluations whose predictions a running sweep is about to publish do not count.
        """
        coming = self._paths.generations / INCOMING / "predictions"
        names = (part_name(*key) for key in sorted({*expected} - self._seen))
        return [Path(name).stem for name in names if not (coming / name).exists()]

    def _has_rows(self, name: str) -> bool:
        with self._open(name) as file:
            return bool(file.metadata.num_rows)

    def _read(self, name: str) -> list[StoredPredictions]:
        try:
            with self._open(name) as file:
                # Of a merged file, the logits are read only if it has a trial that is asked for.
                if self._trials is not None and not pc.any(_of(file.read(["trial"]), self._trials)).as_py():
                    return []
                return evaluations_in(file.read(), self._trials)
        except (OSError, pa.ArrowInvalid) as error:
            raise self._damaged(name, error) from error

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
        (predictions,) = evaluations_in(file.read())
    return predictions


def evaluations_in(table: pa.Table, trials: Collection[str] | None = None) -> list[StoredPredictions]:
    """Return the evaluations of some trials (default: all) in rows of the table `predictions`, in their order."""
    rows = table if trials is None else table.filter(_of(table, trials))
    evaluations = dict[Key, StoredPredictions]()
    for (*key, split), parts in grouped(
        _runs(rows, "trial", "replicate", "epoch", "split"), lambda run: run[0]
    ).items():
        part = pa.concat_tables([table for _, table in parts])
        own = evaluations.setdefault(tuple(key), StoredPredictions(*key))
        # Copied, because PyTorch warns of read-only arrays.
        own.logits[split], own.targets[split] = _matrix(part["logits"]), part["target"].to_numpy().copy()
    return [*evaluations.values()]


def _of(table: pa.Table, trials: Collection[str]) -> pa.ChunkedArray:
    """Return of each row whether it belongs to one of these trials."""
    return pc.is_in(table["trial"], pa.array(trials, pa.string()))


def _runs(table: pa.Table, *columns: str) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Yield consecutive rows with equal values in these columns, and the values."""
    # A filter per evaluation would read each of a merged file's rows for each of its 64 evaluations.
    codes = [table[name].combine_chunks().dictionary_encode().indices.to_numpy() for name in columns]
    changes = np.flatnonzero(np.any(np.diff(codes, axis=1), axis=0)) + 1
    for begin, end in pairwise([0, *changes.tolist(), len(table)] if len(table) else ()):
        yield tuple(table[name][begin].as_py() for name in columns), table.slice(begin, end - begin)


def _joined(parts: Sequence[StoredPredictions]) -> StoredPredictions:
    """Return one evaluation whose rows are in consecutive files."""
    first, *more = parts
    for part in more:
        for whole, further in ((first.logits, part.logits), (first.targets, part.targets)):
            for split, values in further.items():
                whole[split] = np.concatenate([whole[split], values]) if split in whole else values
    return first


def _matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of lists as a matrix."""
    return np.concatenate([part.flatten().to_numpy().reshape(len(part), part.type.list_size) for part in column.chunks])


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
