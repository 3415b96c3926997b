"""What callers of the functions give, as the commands expect it: overrides, and where results and MLflow are."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.core.json_types import Plain
from sweeper.remote.reach import tracking

if TYPE_CHECKING:
    from sweeper.monitoring.live import NotebookProgress, Progress

Settings = Mapping[str, object] | Sequence[str] | None
"""Overrides: `{"scheduler.max_epochs": 9}`, or `key=value` texts as for `--set`."""

Space = str | Path | Mapping[str, Plain]
"""A search space: a file, the name of a shipped one, or its contents as a mapping."""


def overrides(settings: Settings) -> list[str]:
    """Return overrides as `--set` writes them: a mapping's values as JSON, which is YAML too."""
    if isinstance(settings, Mapping):
        return [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    return [settings] if isinstance(settings, str) else list(settings or ())


def output_folder(output: str | Path | None) -> str:
    """Return the directory or store of results: as given, else that of SWEEPER_OUTPUT, else `results`."""
    return str(output) if output is not None else os.environ.get("SWEEPER_OUTPUT", "results")


def tracking_address(uri: str | None, place: str, name: str | None = None) -> str | None:
    """Return the MLflow address of a sweep: as given, else that of MLFLOW_TRACKING_URI, else the folder's own."""
    return tracking(uri or os.environ.get("MLFLOW_TRACKING_URI"), place, name)


def progress_view() -> type[NotebookProgress] | type[Progress]:
    """Return how progress is shown here: as a cell's output in a notebook, else in the terminal."""
    from sweeper.monitoring.live import NotebookProgress, Progress, in_notebook

    return NotebookProgress if in_notebook() else Progress
