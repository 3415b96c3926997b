"""Small files of a folder that somebody else may have made: opened if they are regular files, refused otherwise.

An ordinary `open` waits for ever at a pipe, reads a device without end, and follows a link out of the folder. Nothing
that a sweep writes is one of these.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

#: Bytes above which a small file is not read.
MOST_BYTES = 2**30


class IrregularFileError(OSError):
    """A folder, link, pipe, socket or device is in the place of a file."""


def open_regular(path: Path | str, flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
    """Return the descriptor of a regular file; the caller closes it.

    Args:
        path: of the file; a link is not followed.
        flags: as of `os.open`. `O_TRUNC` is applied once the file is known to be regular.
        mode: of a file that is created.

    Raises:
        IrregularFileError: something else is there.
        OSError: it cannot be opened.
    """
    try:
        descriptor = os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV):  # link, folder, pipe or socket
            raise _irregular(path) from error
        raise
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
    """Return a file's content. Raises as `open_regular`, and OSError where it is larger than `most` bytes."""
    with os.fdopen(open_regular(path), "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most} bytes", str(path))
    return content


def read_text(path: Path, errors: str = "strict") -> str:
    """Return a text file's content, in UTF-8. Raises as `read_bytes`, and ValueError for other bytes."""
    return read_bytes(path).decode("utf-8", errors)
