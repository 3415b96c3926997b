"""A new SQLite store for MLflow: a copy of one that MLflow made once on this machine, with this release.

MLflow makes a store's tables by repeating all changes since its first release: two seconds of processor time, and two
more to import what does it, on cores that train. So the first store is kept, empty, and later ones are copies of it.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from importlib.metadata import version
from pathlib import Path

from sweeper.core.caching import cache_folder
from trainables.files.atomic import replacing, temporary_folder


def provide(path: Path) -> None:
    """Make an empty store at `path`, unless there is a file.

    Args:
        path: of the SQLite file; its folder exists. The caller holds a lock, so nobody else makes it.

    Raises what MLflow raises when it cannot make a store.
    """
    if path.exists() and path.stat().st_size:
        return
    kept = cache_folder() / f"mlflow-{version('mlflow')}.db"
    if not kept.is_file():
        # Where nothing can be kept, a full disk or no home, MLflow makes the store itself.
        with contextlib.suppress(OSError):
            _keep(kept)
    if kept.is_file():
        with replacing(path) as temporary:
            shutil.copyfile(kept, temporary)
            _place(temporary, path.parent)


def _keep(kept: Path) -> None:
    """Let MLflow make a store, and keep it."""
    from mlflow.tracking import MlflowClient

    kept.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(kept.parent) as folder:
        made = folder / "mlflow.db"
        MlflowClient(tracking_uri=f"sqlite:///{made}").get_experiment_by_name("Default")
        made.replace(kept)


def _place(store: Path, folder: Path) -> None:
    """Let the default experiment's artifacts belong into the store's own folder."""
    with contextlib.closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("UPDATE experiments SET artifact_location = ?", ((folder / "mlruns" / "0").as_uri(),))
