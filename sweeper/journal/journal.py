"""The journal of a sweep: immutable, self-checking records, one file each; the source of truth.

A record is written to a temporary name, flushed to the disk and renamed, so a file under its final name is
whole or the disk damaged it; its checksum tells which. Records are numbered without gaps by their one writer,
the driver. The renames become durable together, when `settle` flushes the folder: a power cut before that can
take the newest records, never one from between others. Everything else (rungs, tables, MLflow) is a fold of the
journal and can be rebuilt from it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sweeper.core.errors import SweeperError, unwritable
from sweeper.core.ids import SweepPaths
from sweeper.journal.records import Body, Record
from trainables.files.atomic import write_bytes

_NAME = re.compile(r"(\d{10})-[a-z]+(-c\d+)?(-e\d+)?\.json")


class Journal:
    """The journal's one writer. Opening it continues after the last record there is."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time, durable: bool = True) -> None:
        """Open the journal in `folder` for appending.

        Args:
            folder: where the records are; created when missing.
            clock: gives the records' times, so that tests and simulations bring their own.
            durable: flush records, and on `settle` their names, to the disk.

        Raises SweeperError when the folder cannot be made.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _not_writable(folder, error) from error
        self._folder = folder
        self._clock = clock
        self._durable = durable
        self._unsettled = False
        names = record_names(folder)
        self._next = int(names[-1][:10]) + 1 if names else 0

    def append(self, body: Body) -> Record:
        """Write one record and return it; it outlives this process, and a power cut once `settle` was called.

        Raises SweeperError when the folder cannot be written to; then nothing was recorded.
        """
        record = Record(self._next, self._clock(), body)
        try:
            write_bytes(self._folder / record.file_name, record.to_bytes(), durable=self._durable)
        except OSError as error:
            raise _not_writable(self._folder, error) from error
        self._next += 1
        self._unsettled = True
        return record

    def settle(self) -> None:
        """Make all records so far durable under their names; a decision is acted upon only after this.

        Raises SweeperError when the folder cannot be flushed.
        """
        if not self._unsettled:
            return
        if self._durable:
            _flush_folder(self._folder)
        self._unsettled = False


def _flush_folder(folder: Path) -> None:
    """Make the names in `folder` durable, where its file system can: some network ones cannot open folders."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise _not_writable(folder, error) from error


def _not_writable(folder: Path, error: OSError) -> SweeperError:
    return unwritable(
        f"the journal in {folder} cannot be written to",
        f"free space or make the folder writable, then run `sweeper resume {SweepPaths(folder.parent).in_commands}`; "
        "every record so far is kept",
        error,
    )


def record_names(folder: Path) -> list[str]:
    """Return the names of the record files in `folder`, in the order of their sequence."""
    return sorted(name for name in os.listdir(folder) if _NAME.fullmatch(name)) if folder.is_dir() else []


def read_journal(folder: Path, after: int = -1) -> Iterator[Record]:
    """Yield the records with a sequence above `after`, in order, each checked.

    Raises SweeperError naming the file when a record is damaged or one is missing in between.
    """
    expected = after + 1
    for name in record_names(folder):
        if int(name[:10]) <= after:
            continue
        if int(name[:10]) != expected:
            raise SweeperError(
                f"the journal in {folder} has {name} where record {expected:010d} was expected",
                "restore the missing record from a backup; results cannot be trusted without it",
            )
        yield _sound(folder, name)
        expected += 1


def read_kind(folder: Path, kind: type[Body], after: int = -1) -> Iterator[Record]:
    """Yield the records of one kind, e.g. `Suggested`, above sequence `after`, in order, each checked.

    No other is opened.

    Raises SweeperError naming the file when a record is damaged.
    """
    for name in record_names(folder):
        if int(name[:10]) > after and name[11:].startswith((f"{kind.kind}-", f"{kind.kind}.")):
            yield _sound(folder, name)


def _sound(folder: Path, name: str) -> Record:
    """Return a record. Raises SweeperError when it is damaged."""
    try:
        record = Record.from_bytes((folder / name).read_bytes())
        if record.file_name != name:
            raise ValueError(f"it holds {record.file_name}")
    except (ValueError, KeyError, TypeError) as error:
        raise SweeperError(
            f"the journal record {folder / name} is damaged: {error}",
            "restore it from a backup, or run `sweeper resume --discard-damaged` to quarantine it and all later "
            "records and continue from the last valid one",
        ) from error
    return record


def set_aside_damaged(folder: Path) -> list[str]:
    """Set the first damaged record and all after it aside as `….damaged`; return their names, none if all are sound.

    What they told is lost: its trials run again from what the records before them say.
    """
    sound = -1
    try:
        for record in read_journal(folder):
            sound = record.sequence
    except SweeperError:
        later = [name for name in record_names(folder) if int(name[:10]) > sound]
        for name in reversed(later):
            (folder / name).rename(folder / f"{name}.damaged")
        return later
    return []


def generation(folder: Path) -> str:
    """Return a short text that is another each time that records were quarantined, and empty if none ever was.

    The numbers of such records are given again: what knows a record by its number alone must start again.
    """
    names = sorted(name for name in os.listdir(folder) if name.endswith(".damaged"))
    content = b"".join(name.encode() + b"\0" + (folder / name).read_bytes() for name in names)
    return hashlib.sha256(content).hexdigest()[:8] if names else ""
