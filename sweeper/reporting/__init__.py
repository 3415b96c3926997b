"""The report: one HTML page a sweep, self-contained, from its Parquet tables alone.

Imports what reads tables (`sweeper.results`) and reckons with them; neither journal nor state, Ray nor MLflow.
"""

from __future__ import annotations

import os
from pathlib import Path

from sweeper.reporting.page import render
from sweeper.results import Results

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
    target = results.paths.report
    temporary = target.with_name(f".{target.name}-{os.getpid()}.tmp")
    temporary.write_text(page, encoding="utf-8")
    temporary.replace(target)
    return target
