"""Open small files in folders that someone else may have made. Only regular files are opened; anything else is refused.

An ordinary `open` blocks on a pipe, reads a device without end, and follows a link out of the folder. A sweep writes
none of these.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

#: Larger files are refused: the content is held in memory, and the files that a sweep reads whole are far smaller.
MOST_BYTES = 2**30


class IrregularFileError(OSError):
    """A folder, link, pipe, socket or device stands where a file should be."""


def open_regular(path: Path | str, flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
    """Return the descriptor of a regular file; the caller closes it.

    Args:
        path: path of the file; a link is not followed.
        flags: flags of `os.open`. `O_TRUNC` is applied once the file is known to be regular.
        mode: permissions of a file that is created.

    Raises:
        IrregularFileError: something else is there.
        OSError: it cannot be opened.
    """
    try:
        # O_NONBLOCK: opening a pipe without a writer would wait for one.
        descriptor = os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
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
        content = file.read(most + 1)  # the size that `stat` gives may be outdated
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most} bytes", str(path))
    return content


def read_text(path: Path, errors: str = "strict") -> str:
    """Return the content of a UTF-8 text file. Raises as `read_bytes`, and ValueError for invalid UTF-8."""
    return read_bytes(path).decode("utf-8", errors)
