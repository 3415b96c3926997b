"""A reader that never rests: polls every table of a sweep with DuckDB and pyarrow and notes whatever is wrong."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

import duckdb
import pyarrow.dataset as ds

from sweeper.core.ids import TABLES
from tests.patience import patient

KEYS = {
    "trials": "trial, replicate",
    "epochs": "trial, replicate, epoch",
    "evaluations": "trial, replicate, epoch, split",
    "reliability": "trial, replicate, epoch, split, bin",
    "predictions": "trial, replicate, epoch, split, sample",
    "spectra": "trial, replicate, epoch, loss, eigenvalue",
    "blocks": "trial, replicate, epoch, loss, block",
    "decisions": "trial, epoch, kind, stage, metric",
}


class Poller:
    """Polls in a thread while the context lasts; `faults` holds one sentence for each thing that was wrong."""

    def __init__(self, tables: Path) -> None:
        self._tables = tables
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self.faults: list[str] = []
        self.reads = 0
        self.largest = dict.fromkeys(TABLES, 0)

    def __enter__(self) -> Poller:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(patient(60))

    def _poll(self) -> None:
        while not self._stop.is_set():
            if not self._tables.exists():
                self._stop.wait(0.05)
                continue
            for table in TABLES:
                try:
                    self._read(table)
                except Exception as error:  # whatever a reader meets is a fault of the tables
                    self.faults.append(f"{table}: {type(error).__name__}: {error}")
            self._stop.wait(0.2)

    def _read(self, table: str) -> None:
        pattern = f"{self._tables}/{table}/**/*.parquet"
        query = f"SELECT count(*), count(DISTINCT ({KEYS[table]})) FROM read_parquet('{pattern}')"
        rows, distinct = duckdb.sql(query).fetchall()[0]
        if rows != distinct:
            self.faults.append(f"{table}: {rows} rows but {distinct} distinct keys")
        if rows < self.largest[table]:
            self.faults.append(f"{table}: shrank from {self.largest[table]} to {rows} rows")
        self.largest[table] = max(self.largest[table], rows)
        ds.dataset(self._tables / table, format="parquet").to_table()
        self.reads += 1
