"""Safe reads and atomic writes: a file is whole or absent, written under a temporary name and renamed in one step.

A temporary name begins with `.tmp-` and contains the writer's process id and a random part. So no two writers use the
same name, no reader's pattern matches it, and files of killed writers can be recognised. `kept_choice` uses atomic
writes for measurements that all processes of a sweep share: the first result written is used.

`open_regular` opens small files in folders that someone else may have made. Only regular files are opened; anything
else is refused. An ordinary `open` blocks on a pipe, reads a device without end, and follows a link out of the folder.
A sweep writes none of these.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

#: Prefix of unfinished files.
TEMPORARY_PREFIX = ".tmp-"

_NAME = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}(?:(\d+)-)?.*")


def temporary_name() -> str:
    """Return a name for an unfinished file, from the process id and a random part."""
    return f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"


def own_temporary_names() -> str:
    """Return the prefix of this process's unfinished files."""
    return f"{TEMPORARY_PREFIX}{os.getpid()}-"


@contextmanager
def temporary_file(folder: Path) -> Iterator[Path]:
    """Yield an unused path in `folder`; a file left there is removed on exit."""
    path = folder / temporary_name()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder inside `folder`, so that renames within `folder` are atomic; it is removed on exit.

    Raises OSError if it cannot be made.
    """
    path = folder / temporary_name()
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path next to `path`; on exit, the file written there replaces `path` atomically.

    An exception inside leaves `path` unchanged and removes the temporary file.

    Args:
        path: the final name; its folder exists.
        durable: flush the file to disk before the rename. The rename itself is durable once the folder is flushed.

    Raises:
        OSError: the file cannot be flushed or renamed.

    Example:
        >>> with replacing(Path("settings.json")) as temporary:
        ...     _ = temporary.write_text("{}")
        >>> Path("settings.json").read_text()
        '{}'
    """
    # In the same folder, because a rename is atomic only within one file system.
    with temporary_file(path.parent) as temporary:
        yield temporary
        if durable:
            # Before the rename: some file systems write the new name first, and a power cut would leave an empty file.
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)


@contextmanager
def creating(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file without a name; on exit it gets the name `path`. A killed process leaves no file behind.

    File systems without unnamed files get a temporary one (`replacing`), which a killed process leaves.

    Raises:
        FileExistsError: something of that name exists.
        OSError: the file cannot be created.
    """
    try:
        descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, 0o644)
    except (AttributeError, OSError):  # macOS, and network file systems
        with temporary_file(path.parent) as temporary:
            with temporary.open("xb") as file:
                yield file
            os.link(temporary, path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            # With a folder's descriptor, Python calls `linkat`, which follows the link in /proc; `link` does not.
            os.link(f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=folder)
    finally:
        os.close(folder)


def write_bytes(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write a file atomically, see `replacing`. Raises OSError."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_bytes(content)


def write_new_bytes(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write a file atomically unless one of that name exists. Raises FileExistsError or another OSError."""
    with temporary_file(path.parent) as temporary:
        temporary.write_bytes(content)
        if durable:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        os.link(temporary, path)  # unlike a rename, it fails if the name is taken, in one step


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a UTF-8 text file atomically, see `replacing`. Raises OSError."""
    write_bytes(path, text.encode(), durable=durable)


def is_temporary(name: str) -> bool:
    """Return whether `name` is the name of an unfinished file."""
    return _NAME.fullmatch(name) is not None


def clear_leftovers(folder: Path, *, shared: bool = False) -> list[Path]:
    """Remove unfinished files of dead writers from `folder`, and return their paths.

    Args:
        folder: the folder, without its sub-folders; may be missing.
        shared: whether others may be writing there now. If true, files of other living processes of this machine are
            kept. If false, the caller must be the only writer.
    """
    unfinished = [folder / name for name in os.listdir(folder) if is_temporary(name)] if folder.is_dir() else []
    leftovers = [path for path in unfinished if not (shared and _writer_is_alive(path.name))]
    for path in leftovers:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return leftovers


def _writer_is_alive(name: str) -> bool:
    """Return whether a temporary name belongs to another living process of this machine."""
    match = _NAME.fullmatch(name)
    process = int(match[1]) if match and match[1] else None
    if process is None or process == os.getpid():
        return False
    try:
        os.kill(process, 0)  # sends nothing: it only checks whether the process exists
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)  # it exists, and is another user's
    return True


def kept_choice(folder: Path, key: str, measure: Callable[[], str]) -> str:
    """Return the answer stored in `folder` under `key`; measure and store it if there is none.

    Processes that measure at the same time all return the answer stored first. If the folder cannot be written, each
    process uses its own answer.

    Args:
        folder: folder shared by the processes; made if it is missing.
        key: everything that the answer depends on, as JSON text.
        measure: returns the answer.
    """
    place = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    stored = _read(place)
    if stored is not None:
        return stored
    answer = measure()
    text = json.dumps({"answer": answer, "measured_for": json.loads(key)}, indent=1)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            write_new_bytes(place, text.encode())
        if _read(place) is None:  # an earlier file is damaged: replace it
            write_text(place, text)
    except OSError:
        return answer
    return _read(place) or answer


def _read(place: Path) -> str | None:
    try:
        return str(json.loads(read_bytes(place))["answer"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing, or cut off by a full disk: measured again


#: Larger files are refused: the content is held in memory, and the files that a sweep reads whole are far smaller.
MOST_BYTES = 2**30


class IrregularFileError(OSError):
    """A folder, link, pipe, socket or device stands where a file should be."""


def open_regular(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Return the descriptor of a regular file; the caller closes it.

    Args:
        path: path of the file; a link is not followed.
        flags: flags of `os.open`. `O_TRUNC` is applied once the file is known to be regular.

    Raises:
        IrregularFileError: something else is there.
        OSError: it cannot be opened.
    """
    try:
        # O_NONBLOCK: opening a pipe without a writer would wait for one.
        descriptor = os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV):  # link, folder, pipe or socket
            raise _irregular(path) from error
        raise
    # Checked on the open file: between a check of the path and its opening the file could be exchanged.
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _irregular(path)
    os.set_blocking(descriptor, True)
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
    return descriptor


def _irregular(path: Path | str) -> IrregularFileError:
    return IrregularFileError(errno.EISDIR, "it is not a regular file", str(path))


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return a file's content. Raises as `open_regular`, and OSError if it is larger than `most` bytes."""
    with os.fdopen(open_regular(path), "rb") as file:
        # The size is compared before anything is read: a sparse file can be larger than the memory.
        too_large = os.fstat(file.fileno()).st_size > most
        content = b"" if too_large else file.read(most + 1)  # the file may have grown meanwhile
    if too_large or len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most} bytes", str(path))
    return content


def read_text(path: Path, errors: str = "strict") -> str:
    """Return the content of a UTF-8 text file. Raises as `read_bytes`, and ValueError for invalid UTF-8."""
    return read_bytes(path).decode("utf-8", errors)
