"""The list of a sweep's table files, in the footer of the table `trials`: a lost file is an error, not fewer rows.

The driver writes `trials` last in every flush, so all files of the list were published before it. A reader takes the
list first and looks for the files afterwards. So neither a running sweep, nor a killed driver, nor a new generation
looks like a loss. Only names are compared; no other file is opened. Files of a generation without a list, which another
program wrote, are not checked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sweeper.core.errors import SweeperError
from sweeper.core.ids import RECALIBRATIONS, TABLES, SweepPaths, is_table_file
from trainables.files.atomic import open_regular
from trainables.files.sealed import DamagedFileError, require_sound

#: The file with the list, below a generation; it is replaced as a whole.
TRIALS_FILE = Path("trials", "trials.parquet")

#: A file without rows, so that readers find a schema before the first row. That of `recalibrations` lists its files.
EMPTY_PART = "empty.parquet"

#: The tables whose rows the journal has, so that `sweeper resume` writes a lost file again.
REBUILT = ("trials", "epochs", "evaluations", "decisions")

#: Key of the Parquet metadata with the list.
_KEY = b"files"

#: Table → names of files.
Names = dict[str, list[str]]


@dataclass
class FileList:
    """Names of files by table.

    Attributes:
        published: files that readers must find.
        lost: files of journaled evaluations that trials wrote and nobody can restore.
    """

    published: dict[str, set[str]] = field(default_factory=dict)
    lost: dict[str, set[str]] = field(default_factory=dict)

    def add(self, table: str, name: str) -> None:
        """Add a file that was published."""
        self.published.setdefault(table, set()).add(name)

    def metadata(self) -> dict[bytes, bytes]:
        """Return the list as Parquet metadata."""
        kinds = {"published": self.published, "lost": self.lost}
        return {_KEY: json.dumps({kind: _sorted(names) for kind, names in kinds.items()}).encode()}


def _sorted(names: Mapping[str, Iterable[str]]) -> Names:
    return {table: sorted(of_table) for table, of_table in names.items() if of_table}


def read_list(path: Path) -> FileList | None:
    """Return the list in a file's footer; `None` if the file is missing or has none.

    Raises OSError, or ValueError if the file or its list is damaged.
    """
    try:
        require_sound(path)
        with os.fdopen(open_regular(path), "rb") as file:
            written = (pq.read_schema(file).metadata or {}).get(_KEY)
    except FileNotFoundError:
        return None
    return None if written is None else _parsed(written)


def _parsed(written: bytes) -> FileList:
    """Parse a list. The folder can be anybody's, so the names are checked before they become paths."""
    try:
        values: Any = json.loads(written)
        kinds = [{table: {*names} for table, names in values[kind].items()} for kind in ("published", "lost")]
        sound = all(is_table_file(table, name) for kind in kinds for table in kind for name in kind[table])
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFileError("its list of files is not one that sweeps write") from error
    if not sound:
        raise DamagedFileError("its list of files has a name that no sweep writes")
    return FileList(*kinds)


def table_files(generation: Path, table: str) -> list[Path]:
    """Return the Parquet files of a table, in order."""
    return sorted((generation / table).glob("**/*.parquet"))


def absent_files(generation: Path, tables: Iterable[str]) -> Names:
    """Return, by table, the published files that are missing. Raises as `read_list`."""
    files = read_list(generation / TRIALS_FILE)
    published = {} if files is None else files.published
    if RECALIBRATIONS in tables and published:
        made = read_list(generation / RECALIBRATIONS / EMPTY_PART)
        published = published | (made.published if made is not None else {RECALIBRATIONS: {EMPTY_PART}})
    absent = {table: _absent(generation / table, published.get(table, ())) for table in tables}
    if "trials" not in published and not table_files(generation, "trials"):
        others = (table for table in TABLES if table_files(generation, table))
        absent["trials"] = [TRIALS_FILE.name] if next(others, None) is not None else []
    return _sorted(absent)


def _absent(folder: Path, names: Iterable[str]) -> list[str]:
    try:
        present = {*os.listdir(folder)}
    except (FileNotFoundError, NotADirectoryError):
        present = set()
    # Looked up by name, too: a network file system can list a folder as it was a minute ago.
    return [name for name in names if name not in present and not os.path.lexists(folder / name)]


class LostFilesError(SweeperError):
    """Published files of a sweep's tables are missing.

    Attributes:
        absent: names of the files, by table.
    """

    def __init__(self, paths: SweepPaths, absent: Names) -> None:
        self.paths, self.absent = paths, absent
        message = f"files of the sweep {paths.name!r} are lost: {lost_sentence(absent)}"
        super().__init__(message, "; ".join(self._remedies(f"`sweeper resume {paths.in_commands}`")))

    def __reduce__(self) -> tuple[type[LostFilesError], tuple[SweepPaths, Names]]:
        return type(self), (self.paths, self.absent)

    def _remedies(self, resume: str) -> Iterator[str]:
        rebuilt = [table for table in self.absent if table in REBUILT]
        if rebuilt:
            yield f"{resume} restores {', '.join(rebuilt)} from the journal"
        if RECALIBRATIONS in self.absent:
            yield f"{resume} drops lost recalibrations, and `sweeper recalibrate` makes them again"
        if written := self.absent.keys() - {*REBUILT, RECALIBRATIONS}:
            yield (
                f"only trials write {', '.join(sorted(written))}: put the files back from a backup; without one, "
                f"{resume} notes what is lost, and then the rest can be read"
            )


def lost_sentence(absent: Mapping[str, Iterable[str]]) -> str:
    """Return which files are lost, e.g. `predictions of c00003-r0-e00010 and 2 more`."""
    said = []
    for table, names in ((table, names) for table, names in absent.items() if names):
        first, *more = [Path(name).stem for name in names]
        what = "records" if first[0].isdigit() else "of"
        said.append(f"{table} {what} {first}" + (f" and {len(more)} more" if more else ""))
    return "; ".join(said)
