"""The journal of a sweep: immutable, self-checking records; the source of truth.

A record is written to a temporary name, flushed to the disk and renamed, so a file under its final name is
whole or the disk damaged it; its checksum tells which. Records are numbered without gaps by their one writer,
the driver. The renames become durable together, when `settle` flushes the folder: a power cut before that can
take the newest records, never one from between others. Old records are joined in segments, see
`sweeper.journal.segments`. Everything else (rungs, tables, trackers) is a fold of the journal and is rebuilt from it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sweeper.core.errors import SweeperError, unwritable
from sweeper.core.ids import SweepPaths
from sweeper.journal import segments
from sweeper.journal.records import Body, Record
from trainables.files.atomic import write_bytes, write_new_bytes
from trainables.files.regular import read_bytes

#: Bytes of a record within which its kind is found: its checksum, its number and its kind come first.
_HEAD = 120


class Journal:
    """The journal's one writer. Opening it continues after the last record there is."""

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
            folder: where the records are; created when missing.
            clock: gives the records' times, so that tests and simulations bring their own.
            durable: flush records, and on `settle` their names, to the disk.
            joins_earlier: join also what is there already in segments.
            alone: nobody else can write here. Otherwise a record never takes another's place: of two writers one stops.

        Raises SweeperError when the folder cannot be made.
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
            for name in segments.covered(folder):
                (folder / name).unlink(missing_ok=True)
            self._singles = [piece.name for piece in segments.trailing_singles(folder)]
            self._join()

    def append(self, body: Body) -> Record:
        """Write one record and return it; it outlives this process, and a power cut once `settle` was called.

        Raises SweeperError when the folder cannot be written to, or another has written this record; then nothing was
        recorded.
        """
        record = Record(self._next, self._clock(), body)
        try:
            if self._alone:
                name = record.file_name
                write_bytes(self._folder / name, record.to_bytes(), durable=self._durable)
            else:
                # A name that follows from the number alone can be given once.
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
        """Make all records so far durable under their names; a decision is acted upon only after this.

        Raises SweeperError when the folder cannot be flushed.
        """
        if not self._unsettled:
            return
        if self._durable:
            _flush_folder(self._folder)
        self._unsettled = False
        self._join()

    def _join(self) -> None:
        """Make segments of settled records, once there are enough for one; where that fails, files remain files."""
        while len(self._singles) >= segments.SEALED:
            names, self._singles = self._singles[: segments.SEALED], self._singles[segments.SEALED :]
            try:
                self._make_segment(names)
            except (OSError, SweeperError):
                return  # a full disk, or a damaged record: whoever reads it next is told

    def _make_segment(self, names: Sequence[str]) -> None:
        """Write a segment, and remove the files of its records. Raises OSError, or SweeperError for a damaged one."""
        files = [piece for piece in map(segments.piece_of, names) if piece is not None]
        found = [content for each in files for content in segments.split(each, read_bytes(self._folder / each.name))]
        for content in found:
            _sound(self._folder, content)
        target = self._folder / segments.segment_name(files[0].first, found[-1].sequence)
        write_bytes(target, segments.joined([content.data for content in found]), durable=self._durable)
        if self._durable:
            _flush_folder(self._folder)
        for name in names:
            (self._folder / name).unlink(missing_ok=True)


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
    if isinstance(error, FileNotFoundError):
        return SweeperError(f"{folder} was removed while the sweep ran", "put it back, or start the sweep again")
    return unwritable(
        f"the journal in {folder} cannot be written to",
        f"free space or make the folder writable, then run `sweeper resume {SweepPaths(folder.parent).in_commands}`; "
        "every record so far is kept",
        error,
    )


def read_journal(folder: Path, after: int = -1) -> Iterator[Record]:
    """Yield the records with a sequence above `after`, in order, each checked.

    Raises SweeperError naming the file when a record is damaged or one is missing in between.
    """
    try:
        for content in segments.contents(folder, after):
            yield _sound(folder, content)
    except segments.GapError as gap:
        raise SweeperError(
            f"the journal in {folder} has {gap.file} where record {gap.expected:010d} was expected",
            "restore the missing record from a backup; results cannot be trusted without it",
        ) from gap


def read_kind(folder: Path, kind: type[Body], after: int = -1) -> Iterator[Record]:
    """Yield the records of one kind, e.g. `Suggested`, above sequence `after`, in order, each checked.

    No other file of one record is opened, and no other record of a segment parsed.

    Raises SweeperError naming the file when a record is damaged.
    """
    sign = f'"kind":"{kind.kind}"'.encode()
    for piece in segments.pieces(folder):
        other = not piece.sealed and not piece.name[11:].startswith((f"{kind.kind}-", f"{kind.kind}."))
        if piece.last <= after or other:
            continue
        data = _read_piece(folder, piece)
        for content in segments.split(piece, data, after + 1) if sign in data or not piece.sealed else ():
            if not piece.sealed or sign in content.data[:_HEAD]:
                yield _sound(folder, content)


def _read_piece(folder: Path, piece: segments.Piece) -> bytes:
    """Return a file's content; that of a record which was joined into a segment meanwhile comes from there."""
    try:
        return read_bytes(folder / piece.name)
    except FileNotFoundError:
        content = next(segments.contents(folder, piece.first - 1), None)
        if piece.sealed or content is None:
            raise
        return content.data


def _sound(folder: Path, content: segments.Content) -> Record:
    """Return a record. Raises SweeperError when it is damaged."""
    try:
        record = Record.from_bytes(content.data)
        own = content.sealed or content.file == record.file_name
        if record.sequence != content.sequence or not own:
            raise ValueError(f"it holds {record.file_name}")
    except (ValueError, RecursionError) as error:
        inside = f", number {content.sequence:010d}," if content.sealed else ""
        raise SweeperError(
            f"the journal record {folder / content.file}{inside} is damaged: {error}",
            "restore it from a backup, or run `sweeper resume --discard-damaged` to quarantine it and all later "
            "records and continue from the last valid one",
        ) from error
    return record


class JournalTail:
    """The records of a journal as they arrive; waits for a missing one."""

    def __init__(self, folder: Path) -> None:
        """Begin at the first record of the journal in `folder`, which need not exist yet."""
        self._folder, self._next = folder, 0

    def read(self) -> Iterator[Record]:
        """Yield the records that have come in since the last call. Raises SweeperError on a damaged one."""
        try:
            for content in segments.contents(self._folder, self._next - 1):
                record = _sound(self._folder, content)
                self._next += 1
                yield record
        except segments.GapError:
            # A folder that is being written to may list a later file without an earlier one.
            return


def set_aside_damaged(folder: Path) -> list[str]:
    """Set the first damaged record and all after it aside as `….damaged`; return their files, none if all are sound.

    What they told is lost: its trials run again from what the records before them say. A segment is cut in two.
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
    """Keep what a file has after the record `sound` as `….damaged`, and what it has before; return the first's name."""
    if piece.first > sound:
        (folder / piece.name).rename(folder / f"{piece.name}.damaged")
        return piece.name
    lines = read_bytes(folder / piece.name).split(b"\n")
    place, rest = 2 * (sound + 1 - piece.first), segments.segment_name(sound + 1, piece.last)
    write_bytes(folder / f"{rest}.damaged", b"\n".join(lines[place:]), durable=True)
    write_bytes(folder / segments.segment_name(piece.first, sound), b"\n".join(lines[:place]) + b"\n", durable=True)
    (folder / piece.name).unlink()
    return rest


def generation(folder: Path) -> str:
    """Return a short text that is another each time that records were quarantined, and empty if none ever was.

    The numbers of such records are given again: what knows a record by its number alone must start again.
    """
    names = sorted(name for name in os.listdir(folder) if name.endswith(".damaged"))
    content = b"".join(name.encode() + b"\0" + read_bytes(folder / name) for name in names)
    return hashlib.sha256(content).hexdigest()[:8] if names else ""
