"""Data files on a node: a folder that all trials share, checked downloads, values made once, and one error type."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from trainables.files.atomic import temporary_folder
from trainables.files.locks import file_lock
from trainables.registry import Hyperparameter


class DataSetUnavailableError(Exception):
    """Raised if a data set cannot be loaded: has the path, the broken rule and the remedy.

    Example:
        >>> str(DataSetUnavailableError("digits.csv", "the file is missing", "check the path"))
        'digits.csv: the file is missing; check the path'
    """

    def __init__(self, path: object, rule: str, remedy: str) -> None:
        """Join `path`, `rule` and `remedy` to the message."""
        self.path = str(path)
        self.rule = rule
        self.remedy = remedy
        super().__init__(f"{self.path}: {rule}; {remedy}")

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        """Pickle the three parts. By default, an error is rebuilt from its message, which is only one argument."""
        return type(self), (self.path, self.rule, self.remedy)


@contextlib.contextmanager
def refused(path: object, rule: str, remedy: str, *errors: type[Exception], typed: bool = False) -> Iterator[None]:
    """Convert `errors` within the context to a DataSetUnavailableError, with the original message in brackets.

    Args:
        path: path or address in the message.
        rule: broken rule.
        remedy: what the user can do.
        errors: types of errors to convert.
        typed: whether to add the type of the error; without it, the message of a KeyError is only a key.
    """
    try:
        yield
    except errors as error:
        words = f"{type(error).__name__}: {error}" if typed else error
        raise DataSetUnavailableError(path, f"{rule} ({words})", remedy) from error


Folder = Annotated[str | None, Hyperparameter(source="SWEEPER_DATA, else ~/.cache/calibration-sweeper")]
Download = Annotated[bool, Hyperparameter(source="nothing is fetched unless asked")]

FOLDER_VARIABLE = "SWEEPER_DATA"
WRITABLE = f"set {FOLDER_VARIABLE} to a writable folder"
AGAIN = "delete it and give the data set download: true"
CHUNK_BYTES = 2**20
UNPACKED = "unpacked "
TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Source:
    """A file to download.

    Attributes:
        url: address.
        file_name: name in the cache.
        checksum: `md5:…` or `sha256:…` of the file, in hex; with the prefix `unpacked `, of the contents of a gzipped
            file.
        package: Debian package that has the file; empty for none.
    """

    url: str
    file_name: str
    checksum: str
    package: str = ""


def data_folder(folder: str | None = None) -> Path:
    """Return the folder of data files: `folder`, else $SWEEPER_DATA, else ~/.cache/calibration-sweeper.

    Example:
        >>> data_folder("/data/images").as_posix()
        '/data/images'
    """
    chosen = folder or os.environ.get(FOLDER_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "calibration-sweeper"


def fetch(source: Source, folder: Path, download: bool) -> Path:
    """Return the checked file of `source` in `folder`, downloading it first if `download` is true.

    A download resumes an interrupted one, is checked, and gets its final name after the check. Processes of one node
    wait for each other.

    Raises:
        DataSetUnavailableError: the file is missing and `download` is false, its checksum is wrong, or the download
            failed.
    """
    path = folder / source.file_name
    if path.is_file():
        _require_checksum(path, source.checksum, AGAIN)
    elif download:
        with locked(path):
            # another process of the node can have finished while this one waited
            if not path.is_file():
                _download(source, path)
    else:
        remedy = f"give the data set download: true, or copy {source.url} there"
        if source.package:
            remedy += f"; on Debian, apt-get install {source.package}"
        raise DataSetUnavailableError(path, "the file is missing", remedy)
    return path


def _download(source: Source, path: Path) -> None:
    part = path.with_name(path.name + ".part")
    remedy = f"run again to resume it, or put a copy at {path}"
    with refused(source.url, "the download was interrupted", remedy, OSError, http.client.HTTPException):
        _receive(source.url, part)
    try:
        _require_checksum(part, source.checksum, "run again to download it again")
    except DataSetUnavailableError:
        part.unlink()
        raise
    part.replace(path)


def _receive(url: str, part: Path) -> None:
    """Append the missing bytes of `url` to `part`; start over if the server does not support ranges."""
    present = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={present}-"} if present else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and present:
            return  # nothing is left to fetch; the checksum decides whether the file is right
        raise
    with answer, part.open("ab" if answer.status == http.client.PARTIAL_CONTENT else "wb") as target:
        shutil.copyfileobj(answer, target, CHUNK_BYTES)
        # urllib raises no error for a truncated response; an address of a file has no `length`
        if missing := getattr(answer, "length", 0):
            raise http.client.IncompleteRead(b"", missing)


def checksum_of(path: Path, algorithm: str) -> str:
    """Return the checksum of a file, in hex; with the prefix `unpacked `, the checksum of a gzipped file's contents.

    Raises:
        DataSetUnavailableError: a file to unpack is not a complete gzip file.
    """
    if not algorithm.startswith(UNPACKED):
        with path.open("rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    digest = hashlib.new(algorithm.removeprefix(UNPACKED))
    with refused(path, "cannot be unpacked", "delete it", OSError, EOFError, zlib.error), gzip.open(path) as content:
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _require_checksum(path: Path, checksum: str, remedy: str) -> None:
    algorithm, _, expected = checksum.partition(":")
    actual = checksum_of(path, algorithm)
    if actual != expected:
        raise DataSetUnavailableError(path, f"its {algorithm} is {actual}, but must be {expected}", remedy)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock next to `path`, waiting for other processes of this node; a read-only folder needs no lock."""
    with refused(path.parent, "the folder cannot be created", WRITABLE, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        yield
        return
    with file_lock(path.with_name(f".{path.name}.lock")):
        yield


@contextlib.contextmanager
def temporary_beside(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `path`, on the same file system, so a rename onto `path` is atomic.

    Raises:
        DataSetUnavailableError: the folder around `path` cannot be written.
    """
    with contextlib.ExitStack() as guard:
        with refused(path.parent, "the folder cannot be written", WRITABLE, OSError):
            folder = guard.enter_context(temporary_folder(path.parent))
        yield folder


def extracted(archive: Path, member: str) -> Path:
    """Return the folder or file `member` next to `archive`, unpacking the archive if it is missing.

    Raises:
        DataSetUnavailableError: the archive is broken or does not contain `member`.
    """
    target = archive.parent / member
    if target.exists():
        return target
    with locked(target):
        # another process can have unpacked it while this one waited
        if target.exists():
            return target
        with temporary_beside(target) as temporary:
            unpack(archive, temporary)
            if not (temporary / member).exists():
                raise DataSetUnavailableError(archive, f"does not contain {member}", AGAIN)
            (temporary / member).rename(target)
    return target


def fetched_folder(source: Source, member: str, folder: str | None, download: bool) -> Path:
    """Return the folder `member` below `folder` (see `data_folder`), unpacking it from the archive if it is missing.

    Raises:
        DataSetUnavailableError: folder and archive are missing, or the archive cannot be fetched or unpacked.
    """
    root = data_folder(folder)
    return root / member if (root / member).is_dir() else extracted(fetch(source, root, download), member)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip or tar archive, refusing members outside `folder`.

    Raises:
        DataSetUnavailableError: the archive is truncated, broken or unsafe.
    """
    broken = (tarfile.TarError, zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError)
    with refused(archive, "cannot be unpacked", AGAIN, *broken):
        if archive.suffix == ".zip":
            shutil.unpack_archive(archive, folder, "zip")
        else:
            # the filter refuses absolute paths, `..`, devices and links that lead outside
            shutil.unpack_archive(archive, folder, "gztar", filter="data")


Kept = TypeVar("Kept")

#: Copies unused for this long are removed when the next one is made. Our choice: sweeps are resumed sooner.
UNUSED_DAYS = 30


def kept(
    key: str,
    make: Callable[[], Kept],
    *,
    classes: Sequence[type] = (),
    writable: Callable[[Kept], bool] = lambda _: True,
    sound: Callable[[Kept], bool] = lambda _: True,
) -> Kept:
    """Return a value that the first process of a node makes and writes to disk, from where all processes map it.

    Mapped pages belong to the operating system's file cache: all processes share them, and they are freed first when
    memory is short. A process that changes a value in a page gets its own copy of that page.

    If the value or its folder cannot be written, each process keeps what it makes.

    Args:
        key: name of the file, which identifies the value.
        make: function that makes the value, called under a lock.
        classes: classes of objects in the value besides tensors and plain values.
        writable: whether a value has no objects of other classes.
        sound: whether to use a value that other users could have written.
    """
    file = data_folder() / "shared" / f"{key}.pt"

    def mapped() -> Kept | None:
        try:
            with torch.serialization.safe_globals([*classes]):
                value: Kept = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            usable = _only_ours(file) or sound(value)
        except Exception:  # missing or damaged: torch raises any of a dozen types
            return None
        with contextlib.suppress(OSError):
            os.utime(file)  # counts as a use
        return value if usable else None

    if (copy := mapped()) is not None:
        return copy
    with contextlib.ExitStack() as guard:
        # a folder that cannot be written has no lock either: each process then makes its own
        with contextlib.suppress(DataSetUnavailableError, OSError):
            guard.enter_context(locked(file))
        # another process can have written it while this one waited
        if (copy := mapped()) is not None:
            return copy
        made = make()
        if writable(made):
            with contextlib.suppress(DataSetUnavailableError, OSError, RuntimeError):  # torch's error for a full disk
                _write(file, made)
    # mapped pages are shared with the other processes; the value just made is not
    copy = mapped()
    return made if copy is None else copy


def _only_ours(file: Path) -> bool:
    """Return whether only this user can have written a file."""
    status = file.lstat()  # not `stat`: a link's target could belong to anyone
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _write(file: Path, value: object) -> None:
    """Write `file` atomically, and remove copies unused for `UNUSED_DAYS`."""
    with temporary_beside(file) as temporary:
        complete = temporary / file.name
        torch.save(value, complete)
        complete.chmod(complete.stat().st_mode & ~0o022)  # for any umask: files that a group can write are not trusted
        complete.replace(file)
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for other in file.parent.glob("*.pt"):
        if other.stat().st_mtime < oldest:
            other.unlink()


def prepared(name: str, files: Iterable[Path], settings: str, build: Callable[[], Kept]) -> Kept:
    """Return what is built from many files, once per node, and then mapped from disk; see `kept`.

    Args:
        name: name of the data set, for the name of the file.
        files: files that the value is built from. If a file's size or modification time changes, it is built again.
        settings: everything else that the value depends on, as text.
        build: function that builds tensors and plain values.
    """
    digest = hashlib.sha256(settings.encode())
    for file in files:
        status = file.stat()
        digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return kept(f"{name}-{digest.hexdigest()[:16]}", build)


def prepared_arrays(
    name: str, files: Iterable[Path], settings: str, build: Callable[[], Mapping[str, NDArray[np.generic]]]
) -> dict[str, NDArray[np.generic]]:
    """Return arrays of numbers by name, as `prepared` does."""
    values = prepared(name, files, settings, lambda: {key: torch.tensor(array) for key, array in build().items()})
    return {key: value.numpy() for key, value in values.items()}
