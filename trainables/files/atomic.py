"""Files that are whole or absent: written under a temporary name, then given their own in one step.

A temporary name begins with `.tmp-` and carries the writer's process id and a random part, so that no two writers
share one, no reader's pattern matches it, and what a killed writer left behind can be told from everything else. So
are kept the answers to measurements that all processes of a sweep share: the first one to be written counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainables.files.regular import read_bytes

#: How names of unfinished files begin.
TEMPORARY_PREFIX = ".tmp-"

_NAME = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}(?:(\d+)-)?.*")


def temporary_name() -> str:
    """Return a name for an unfinished file: process id and a random part, so no two writers share one."""
    return f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"


def own_temporary_names() -> str:
    """Return how the names of this process's unfinished files begin."""
    return f"{TEMPORARY_PREFIX}{os.getpid()}-"


@contextmanager
def temporary_file(folder: Path) -> Iterator[Path]:
    """Yield an unused path in `folder`; whatever is left there is removed on exit."""
    path = folder / temporary_name()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder in `folder`, from where a rename within `folder` is atomic; it is removed on exit.

    Raises OSError when it cannot be made.
    """
    path = folder / temporary_name()
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a path next to `path` to write to; on exit, the written file replaces `path` atomically.

    An exception inside leaves `path` as it was, and no temporary file.

    Args:
        path: the final name; its folder exists.
        durable: flush the file to the disk before it gets its name. The name itself is durable once the folder is
            flushed.

    Raises:
        OSError: the file cannot be flushed or renamed.
    """
    with temporary_file(path.parent) as temporary:
        yield temporary
        if durable:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)


def write_bytes(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write a whole file as `replacing` does. Raises OSError."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_bytes(content)


def write_new_bytes(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write a whole file unless there is one of that name. Raises FileExistsError, or OSError."""
    with temporary_file(path.parent) as temporary:
        temporary.write_bytes(content)
        if durable:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        os.link(temporary, path)  # fails where the name is taken, in one step


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a whole text file, in UTF-8, as `replacing` does. Raises OSError."""
    write_bytes(path, text.encode(), durable=durable)


def is_temporary(name: str) -> bool:
    """Return whether a file's name is that of an unfinished one."""
    return _NAME.fullmatch(name) is not None


def clear_leftovers(folder: Path, *, shared: bool = False) -> list[Path]:
    """Remove the unfinished files that writers which are gone left in `folder`; return their paths.

    Args:
        folder: looked through without what lies deeper; may be missing.
        shared: others may be writing there now: keep what other living processes of this machine
            have begun. Without it, the caller holds the only right to write.
    """
    found = [folder / name for name in os.listdir(folder) if is_temporary(name)] if folder.is_dir() else []
    leftovers = [path for path in found if not (shared and _writer_is_alive(path.name))]
    for path in leftovers:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return leftovers


def _writer_is_alive(name: str) -> bool:
    """Return whether the process that a temporary name carries is another one of this machine, and alive."""
    match = _NAME.fullmatch(name)
    process = int(match[1]) if match and match[1] else None
    if process is None or process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)
    return True


def kept_choice(folder: Path, key: str, measure: Callable[[], str]) -> str:
    """Return the answer kept in `folder` under `key`; measure it, and keep it, where there is none.

    Processes that measure at the same time all return the answer of the first to be done. A folder that cannot be
    written leaves each its own.

    Args:
        folder: shared by the processes; made where it is missing.
        key: everything that the answer depends on, as text.
        measure: finds the answer.
    """
    place = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    found = _read(place)
    if found is not None:
        return found
    answer = measure()
    text = json.dumps({"answer": answer, "measured_for": json.loads(key)}, indent=1)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            write_new_bytes(place, text.encode())
        if _read(place) is None:
            write_text(place, text)
    except OSError:
        return answer
    return _read(place) or answer


def _read(place: Path) -> str | None:
    try:
        return str(json.loads(read_bytes(place))["answer"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing, or cut off by a full disk: measured again
