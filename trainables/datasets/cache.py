"""Data files on a node: a folder that all trials share, checked downloads, arrays decoded once, and one error type."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
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
    wait for each other. A file is checked once: its size and modification time are recorded in `data_folder()`, not
    in the folder of the file.

    Raises:
        DataSetUnavailableError: the file is missing and `download` is false, its checksum is wrong, or the download
            failed.
    """
    path = folder / source.file_name
    if path.is_file():
        if not _checked_before(path, source.checksum):
            _require_checksum(path, source.checksum, AGAIN)
            _remember_check(path, source.checksum)
    elif download:
        with locked(path):
            # another process of the node can have finished while this one waited
            if not path.is_file():
                _download(source, path)
                _remember_check(path, source.checksum)
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
        expected = answer.headers.get("Content-Length")
        received = 0
        while chunk := answer.read(CHUNK_BYTES):
            target.write(chunk)
            received += len(chunk)
    # urllib raises no error for a truncated response
    if expected is not None and received < int(expected):
        raise http.client.IncompleteRead(b"", int(expected) - received)


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


def _check_record(path: Path) -> Path:
    return data_folder() / "checked" / hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]


def _state(path: Path, checksum: str) -> str:
    status = path.stat()
    return f"{checksum} {status.st_size} {status.st_mtime_ns}"


def _checked_before(path: Path, checksum: str) -> bool:
    try:
        return _check_record(path).read_text() == _state(path, checksum)
    except OSError:
        return False


def _remember_check(path: Path, checksum: str) -> None:
    record = _check_record(path)
    with contextlib.suppress(OSError):  # if the record cannot be written, the file is checked every time
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(_state(path, checksum))


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


def prepared_arrays(
    name: str, files: Iterable[Path], settings: str, build: Callable[[], Mapping[str, NDArray[np.generic]]]
) -> dict[str, NDArray[np.generic]]:
    """Return arrays built from many files, once per node, and then mapped from disk.

    Args:
        name: name of the data set, for the name of the folder.
        files: files from which the arrays are built. If a file's size or modification time changes, the arrays are
            built again.
        settings: everything else that the arrays depend on, as text.
        build: function that builds the arrays.

    Returns:
        name -> read-only array.
    """
    digest = hashlib.sha256(settings.encode())
    for file in files:
        status = file.stat()
        digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    folder = data_folder() / "prepared" / f"{name}-{digest.hexdigest()[:16]}"
    with locked(folder):
        if not folder.is_dir():
            with temporary_beside(folder) as temporary:
                complete = temporary / "arrays"
                complete.mkdir()
                for key, array in build().items():
                    np.save(complete / f"{key}.npy", array, allow_pickle=False)
                # renamed when complete, so that a killed process leaves no folder that looks finished
                complete.rename(folder)
    return {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in sorted(folder.glob("*.npy"))}
