"""The report: one self-contained HTML page per sweep, built from its Parquet tables alone.

Imports what reads tables (`sweeper.results`) and computes with them; neither journal nor state, Ray nor trackers.
"""

from __future__ import annotations

from pathlib import Path

from sweeper.core.errors import writing_to
from sweeper.reporting.page import render
from sweeper.results import Results
from trainables.files.atomic import write_text

__all__ = ["write_report"]


def write_report(sweep_folder: Path | str, to: Path | None = None) -> Path:
    """Write a sweep's report and return its path. May be called while the sweep runs.

    The page is written under a temporary name and renamed, so a browser never opens half of it.

    Args:
        sweep_folder: of the sweep.
        to: the file; `report.html` in that folder where none is given.

    Raises:
        QueryError: when the sweep's tables cannot be read.
        SweeperError: when the file cannot be written.
    """
    results = Results(Path(sweep_folder).resolve())
    with results.snapshot() as snapshot:
        page = render(snapshot)
    file = to if to is not None else results.paths.report
    with writing_to(file, "write the page elsewhere with --to FILE" if to is None else "give --to another file"):
        write_text(file, page)
    return file
