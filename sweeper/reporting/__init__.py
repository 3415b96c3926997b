"""The report: one self-contained HTML page per sweep, built from its Parquet tables alone.

Imports what reads tables (`sweeper.results`) and computes with them; neither journal nor state, Ray nor MLflow.
"""

from __future__ import annotations

from pathlib import Path

from sweeper.reporting.page import render
from sweeper.results import Results
from trainables.files.atomic import write_text

__all__ = ["write_report"]


def write_report(sweep_folder: Path | str) -> Path:
    """Write `<sweep folder>/report.html` and return its path. May be called while the sweep runs.

    The page is written under a temporary name and renamed, so a browser never opens half of it.

    Raises:
        QueryError: when the sweep's tables cannot be read.
    """
    results = Results(Path(sweep_folder).resolve())
    with results.snapshot() as snapshot:
        page = render(snapshot)
    write_text(results.paths.report, page)
    return results.paths.report
