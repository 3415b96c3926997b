"""Copies of tables that reused trials wrote themselves: predictions, reliability, spectra."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sweeper.core.ids import SweepPaths
from sweeper.storage.copies import bring_predictions
from sweeper.tables.large_tables import ALWAYS_WRITTEN, LARGE_TABLES, MERGED_KEY
from trainables.worker.trial_reports import Row
from trainables.worker.trial_tables import part_name, write_parquet


class TablesOfTrials:
    """Finds one sweep's files by evaluation; each is read, and so checked, before it counts as there."""

    def __init__(self, paths: SweepPaths) -> None:
        """List the files of the sweep in `paths`; its predictions are fetched where they are in a store."""
        bring_predictions(paths)
        self._files: dict[str, dict[str, Path]] = {}
        for table in LARGE_TABLES:
            parts = sorted((paths.tables / table).glob("c*.parquet"))
            if parts or table in ALWAYS_WRITTEN:
                # Another table without any file is one that the sweep does not have.
                self._files[table] = {name: part for part in parts for name in _evaluations_in(part)}

    def has(self, trial: str, evaluations: Iterable[Row]) -> bool:
        """Return whether every table of some evaluations, rows of `evaluations`, is there and sound."""
        return all(self._read(table, *key) is not None for key in _keys(trial, evaluations) for table in self._files)

    def bring(self, trial: str, evaluations: Iterable[Row], incoming: Path) -> None:
        """Write the tables of some evaluations below `incoming`, as the trial's own process would have.

        Raises OSError when the folder cannot be written to.
        """
        for key in _keys(trial, evaluations):
            for table in self._files:
                rows = self._read(table, *key)
                if rows is not None:
                    write_parquet(incoming / table / part_name(*key), rows.schema, rows.to_batches(), durable=True)

    def _read(self, table: str, trial: str, replicate: int, epoch: int) -> pa.Table | None:
        part = self._files[table].get(part_name(trial, replicate, epoch))
        if part is None:
            return None
        try:
            with pq.ParquetFile(part, page_checksum_verification=True) as file:
                rows = file.read()
        except (OSError, ValueError):
            # Whoever opens that sweep next is told; here the trial is trained instead.
            return None
        mine = (pc.field("trial") == trial) & (pc.field("replicate") == replicate) & (pc.field("epoch") == epoch)
        return rows.filter(mine).replace_schema_metadata(None)


def _evaluations_in(part: Path) -> list[str]:
    """Return the names of the evaluations a file holds: several for a merged one, none for one that is damaged."""
    try:
        listed = (pq.read_metadata(part).metadata or {}).get(MERGED_KEY)
    except (OSError, ValueError):
        return []
    return listed.decode().split() if listed is not None else [part.name]


def _keys(trial: str, evaluations: Iterable[Row]) -> list[tuple[str, int, int]]:
    return list(dict.fromkeys((trial, row["replicate"], row["epoch"]) for row in evaluations))
