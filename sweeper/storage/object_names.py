"""Which objects of a store become files, and where: the one place that turns a stranger's name into a path.

Who can write to a store chooses the names in it. Only names of the patterns below become files; others stay in the
store. A name that would leave its folder is refused aloud: nobody puts it there by accident.
"""

from __future__ import annotations

import re
from pathlib import Path

from sweeper.core.errors import SweeperError
from sweeper.core.ids import RECALIBRATIONS, TABLES, SweepPaths

WHOLE_FILES = ("sweep.yaml", "manifest.json", "extensions.zip", "report.html", "sweeper.log", "mlflow.log")
"""Files of a sweep that are uploaded unchanged."""

LEASE = "lease.json"

_DAMAGED_RECORD = re.compile(r"\d{10}-([a-z]+(-c\d+)?(-e\d+)?\.json|\d{10}\.records)\.damaged")
_TABLE_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.parquet")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\\]")


def is_table_file(table: str, name: str) -> bool:
    """Return whether `name` can be a file of the table `table`: one file name, of a table that sweeps have."""
    return table in TABLES and _TABLE_FILE.fullmatch(name) is not None


def local_path(paths: SweepPaths, name: str) -> Path | None:
    """Return the file that an object becomes in a sweep's folder; `None` for one that stays in the store.

    The journal's objects are unpacked by `sweeper.storage.store_journal`.

    Raises SweeperError when the name would leave the folder.
    """
    require_plain(name)
    first, _, rest = name.partition("/")
    if name in WHOLE_FILES or name == LEASE:
        return paths.root / name
    if first == "journal" and _DAMAGED_RECORD.fullmatch(rest):
        return paths.journal / rest
    table, _, file = rest.partition("/")
    if first == "tables" and table == RECALIBRATIONS and _TABLE_FILE.fullmatch(file):
        return paths.recalibrations / file
    if first == "tables" and is_table_file(table, file):
        return paths.tables.resolve() / table / file
    return None


def require_plain(name: str) -> None:
    """Raise SweeperError when an object's name has a part that is empty, `.` or `..`, or unprintable characters."""
    if not {"", ".", ".."}.isdisjoint(name.split("/")) or _UNPRINTABLE.search(name):
        raise SweeperError(
            f"the store holds an object whose name would leave the sweep's folder: {name!r}",
            "nothing was written; somebody put it there: remove it, and find out who can write to this store",
        )
