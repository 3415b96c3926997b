"""The journal of a sweep: immutable records with checksums, the source of truth.

A record is written under a temporary name, flushed to disk and renamed. So a file under its final name is whole unless
the disk damaged it, and the checksum reveals damage. The driver is the only writer and numbers records without gaps.
Renames become durable together when `settle` flushes the folder. A power cut before that can lose the newest records,
but never a record between others. Old records are joined into segments, see `sweeper.journal.segments`. Everything else
(rungs, tables, trackers) is a fold of the journal and can be rebuilt from it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sweeper.core.errors import SweeperError, unwritable
from sweeper.core.ids import SweepPaths
from sweeper.journal import segments
from sweeper.journal.records import Body, Record
from trainables.files.atomic import read_bytes, write_bytes, write_new_bytes

#: The first bytes of a record up to this number contain its checksum, number and kind; a report can be much longer.
_HEAD = 120


class Journal:
    """The journal's writer. Opening it continues after the last record.

    Example:
        >>> from sweeper.journal.records import Ended
        >>> journal = Journal(Path("journal"), durable=False)
        >>> journal.append(Ended(attempt=1, outcome="finished")).sequence
        0
        >>> [record.kind for record in read_journal(Path("journal"))]
        ['ended']
    """

    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float] = time.time,
        durable: bool = True,
        joins_earlier: bool = True,
        alone: bool = True,
    ) -> None:
        """Open the journal in `folder` for appending.

        Args:
            folder: folder of the records; created if missing.
            clock: source of the records' times; tests and simulations pass their own.
            durable: flush records, and on `settle` their names, to disk.
            joins_earlier: also join records that exist already into segments.
            alone: whether no other process can write here. If one can, a record never replaces another, so that one of
                two writers stops.

        Raises SweeperError if the folder cannot be made.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _not_writable(folder, error) from error
        self._folder = folder
        self._clock = clock
        self._durable = durable
        self._alone = alone
        self._unsettled = False
        self._next = segments.last_sequence(folder) + 1
        self._singles: list[str] = []
        if joins_earlier:
            # A writer that was killed after writing a segment left the files of its records.
            for name in segments.covered(folder):
                (folder / name).unlink(missing_ok=True)
            self._singles = [piece.name for piece in segments.trailing_singles(folder)]
            self._join()

    def append(self, body: Body) -> Record:
        """Write one record and return it. It survives this process, and after `settle` a power cut.

        Raises SweeperError if the folder cannot be written to, or if another process has written this record; then
        nothing was recorded.
        """
        record = Record(self._next, self._clock(), body)
        try:
            if self._alone:
                name = record.file_name
                write_bytes(self._folder / name, record.to_bytes(), durable=self._durable)
            else:
                # This name depends on the number alone, so it can be created only once; the usual name contains the
                # kind.
                name = segments.segment_name(record.sequence, record.sequence)
                content = segments.joined([record.to_bytes()])
                write_new_bytes(self._folder / name, content, durable=self._durable)
        except FileExistsError as error:
            raise SweeperError(
                f"another process has written record {record.sequence} of the journal in {self._folder}: two drivers "
                "were running",
                f"nothing was lost; run `sweeper resume {SweepPaths(self._folder.parent).in_commands}` once neither "
                "is running",
            ) from error
        except OSError as error:
            raise _not_writable(self._folder, error) from error
        self._next += 1
        self._unsettled = True
        self._singles.append(name)
        return record

    def settle(self) -> None:
        """Make all records so far durable. The driver acts on a decision only after this.

        Raises SweeperError if the folder cannot be flushed.
        """
        if not self._unsettled:
            return
        if self._durable:
            _flush_folder(self._folder)
        self._unsettled = False
        self._join()  # only settled records: joining removes their files

    def _join(self) -> None:
        """Join settled records into segments, once there are enough for one; if that fails, their files stay."""
        while len(self._singles) >= segments.SEALED:
            names, self._singles = self._singles[: segments.SEALED], self._singles[segments.SEALED :]
            try:
                self._make_segment(names)
            except (OSError, SweeperError):
                return  # a full disk, or a damaged record, which the next reader reports

    def _make_segment(self, names: Sequence[str]) -> None:
        """Write a segment and remove the files of its records. Raises OSError, or SweeperError for a damaged record."""
        files = [piece for piece in map(segments.piece_of, names) if piece is not None]
        records = [c for piece in files for c in segments.split(piece, read_bytes(self._folder / piece.name))]
        for content in records:
            _sound(self._folder, content)  # a damaged record must not vanish inside a segment
        target = self._folder / segments.segment_name(files[0].first, records[-1].sequence)
        write_bytes(target, segments.joined([content.data for content in records]), durable=self._durable)
        if self._durable:
            # The segment's name must be durable before the files go, or a power cut could lose both.
            _flush_folder(self._folder)
        for name in names:
            (self._folder / name).unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """Make the names in `folder` durable, if its file system can; some network file systems cannot open folders."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        # Such a file system makes names durable by itself or not at all; there is nothing else to call.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise _not_writable(folder, error) from error


def _not_writable(folder: Path, error: OSError) -> SweeperError:
    if isinstance(error, FileNotFoundError):
        return SweeperError(f"{folder} was removed while the sweep ran", "put it back, or start the sweep again")
    return unwritable(
        f"the journal in {folder} cannot be written to",
        f"free space or make the folder writable, then run `sweeper resume {SweepPaths(folder.parent).in_commands}`; "
        "every record so far is kept",
        error,
    )


def read_journal(folder: Path, after: int = -1) -> Iterator[Record]:
    """Yield the records with a number above `after`, in order, after checking each.

    Raises SweeperError with the file's name if a record is damaged or missing in between.
    """
    try:
        with _named(folder):
            for content in segments.contents(folder, after):
                yield _sound(folder, content)
    except segments.GapError as gap:
        raise SweeperError(
            f"the journal in {folder} has {gap.file} where record {gap.expected:010d} was expected",
            "restore the missing record from a backup; results cannot be trusted without it",
        ) from gap


def read_kind(folder: Path, kind: type[Body], after: int = -1) -> Iterator[Record]:
    """Yield the records of one kind, e.g. `Suggested`, with a number above `after`, in order, after checking each.

    Files of other kinds are not opened, and other records of a segment are not parsed.

    Raises SweeperError with the file's name if a record is damaged.
    """
    sign = f'"kind":"{kind.kind}"'.encode()
    for piece in segments.pieces(folder):
        # A file's name contains its record's kind after ten digits and a hyphen.
        other = not piece.sealed and not piece.name[11:].startswith((f"{kind.kind}-", f"{kind.kind}."))
        if piece.last <= after or other:
            continue
        with _named(folder):
            data = _read_piece(folder, piece)
        for content in segments.split(piece, data, after + 1) if sign in data or not piece.sealed else ():
            if not piece.sealed or sign in content.data[:_HEAD]:
                yield _sound(folder, content)


def _read_piece(folder: Path, piece: segments.Piece) -> bytes:
    """Return a file's content; if its record was joined into a segment meanwhile, read it from there."""
    try:
        return read_bytes(folder / piece.name)
    except FileNotFoundError:
        content = next(segments.contents(folder, piece.first - 1), None)
        if piece.sealed or content is None:
            raise
        return content.data


def _sound(folder: Path, content: segments.Content) -> Record:
    """Parse a record. Raises SweeperError if it is damaged."""
    try:
        record = Record.from_bytes(content.data)
        # A file that was renamed or copied over another has a valid checksum, but not this number or name.
        own = content.sealed or content.file == record.file_name
        if record.sequence != content.sequence or not own:
            raise ValueError(f"it holds {record.file_name}")
    except (ValueError, RecursionError) as error:
        inside = f", number {content.sequence:010d}," if content.sealed else ""
        raise SweeperError(
            f"the journal record {folder / content.file}{inside} is damaged: {error}", _DAMAGED
        ) from error
    return record


_DAMAGED = (
    "restore it from a backup, or run `sweeper resume --discard-damaged` to quarantine it and all later records and "
    "continue from the last valid one"
)


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Raise SweeperError for a file of the journal that the disk cannot read, or that is too large for a record."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EFBIG, errno.EIO):
            raise
        raise SweeperError(
            f"the journal record {error.filename or f'in {folder}'} is damaged: {error.strerror}", _DAMAGED
        ) from error


class JournalTail:
    """Reads the records of a growing journal; a missing record ends a read without an error."""

    def __init__(self, folder: Path) -> None:
        """Start at the first record of the journal in `folder`, which need not exist yet."""
        self._folder, self._next = folder, 0

    def read(self) -> Iterator[Record]:
        """Yield the records written since the last call. Raises SweeperError for a damaged record."""
        try:
            with _named(self._folder):
                for content in segments.contents(self._folder, self._next - 1):
                    record = _sound(self._folder, content)
                    self._next += 1
                    yield record
        except segments.GapError:
            # While a folder is written to, its listing can contain a later file and lack an earlier one.
            return


def set_aside_damaged(folder: Path) -> list[str]:
    """Quarantine the first damaged record and all later ones as `….damaged`; return their files' names.

    Their content is lost: trials continue from the records before them. A segment with a damaged record is split.
    """
    sound = -1
    try:
        for record in read_journal(folder):
            sound = record.sequence
    except SweeperError:
        later = [piece for piece in segments.pieces(folder) if piece.last > sound]
        return [_set_aside(folder, piece, sound) for piece in reversed(later)][::-1]
    return []


def _set_aside(folder: Path, piece: segments.Piece, sound: int) -> str:
    """Quarantine the part of a file after record `sound`, keep the part before; return the quarantined file's name."""
    if piece.first > sound:
        (folder / piece.name).rename(folder / f"{piece.name}.damaged")
        return piece.name
    lines = read_bytes(folder / piece.name).split(b"\n")
    # Each record has two lines, its checksum and its content.
    place, rest = 2 * (sound + 1 - piece.first), segments.segment_name(sound + 1, piece.last)
    write_bytes(folder / f"{rest}.damaged", b"\n".join(lines[place:]), durable=True)
    write_bytes(folder / segments.segment_name(piece.first, sound), b"\n".join(lines[:place]) + b"\n", durable=True)
    (folder / piece.name).unlink()
    return rest


def generation(folder: Path) -> str:
    """Return a short text that changes whenever records are quarantined; empty if none ever was.

    Numbers of quarantined records are used again, so a program that stores record numbers must start from the
    beginning.
    """
    names = sorted(name for name in os.listdir(folder) if name.endswith(".damaged"))
    content = b"".join(name.encode() + b"\0" + read_bytes(folder / name) for name in names)
    return hashlib.sha256(content).hexdigest()[:8] if names else ""
