"""Objects in a shared store (`s3://`, `gs://`): whole-object writes and reads below one address, through `pyarrow.fs`.

A store is for what several machines must see and no shared folder holds. An object is written in one request and is
either absent or whole, so nothing here needs a temporary name. Credentials come from where the cloud's own tools take
them (environment, instance role, profile) and never from the address, which is written into manifests and job lists.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pyarrow import ArrowInvalid, NativeFile, fs

from trainables.files.atomic import write_bytes
from trainables.worker.store_clients import DirectClient, UnavailableError, file_system

SCHEMES = ("s3", "gs")

CONNECTIONS = 16
"""Requests at once for many objects: a request waits some tens of milliseconds, most of it for the network."""

PATIENCE_SECONDS = 120.0
"""Seconds for which drivers and trials wait for a store that is out of reach: what they have is lost with them."""

LONGEST_PAUSE = 10.0

READ_BACK_SECONDS = 2.0
"""Where a store knows no conditional writes: after this time whoever wrote the same object meanwhile has done so."""

_Result = TypeVar("_Result")

_ABSENT = ("NO_SUCH_KEY", "NoSuchKey")
"""How a store's own words say that there is no such object, where pyarrow has no type for it."""

_OPTIONS = {
    "s3": frozenset({"region", "endpoint_override", "scheme"}),
    "gs": frozenset({"endpoint_override", "scheme"}),
}


class StoreError(OSError):
    """A store that cannot be used: one sentence with the address, and what to do.

    Attributes:
        message: what is wrong.
        remedy: what to do about it.
        exit_code: of a command that meets it.
    """

    exit_code = 2

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy)
        self.message, self.remedy = message, remedy

    def __str__(self) -> str:
        return f"{self.message}\n  {self.remedy}"


@dataclass(frozen=True)
class Entry:
    """What a listing says of an object: size in bytes, and when it was written, in nanoseconds of Unix time."""

    size: int
    written: int


def is_store_address(text: str | os.PathLike[str]) -> bool:
    """Return whether `text` is the address of a store, and not a folder."""
    return str(text).partition("://")[0] in SCHEMES and "://" in str(text)


def patiently(
    work: Callable[[], _Result],
    *,
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> _Result:
    """Do `work` and return its result, trying again while the store cannot be used, for `PATIENCE_SECONDS` or as given.

    Pauses double, and vary, so that the trials of a cluster do not all come back at the same moment.

    Raises the last StoreError once that time is over.
    """
    deadline = clock() + (PATIENCE_SECONDS if seconds is None else seconds)
    pause = 0.5
    while True:
        try:
            return work()
        except StoreError:
            if clock() >= deadline:
                raise
        sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, LONGEST_PAUSE)


class Store:
    """The objects below one address. Names are relative to it, with `/` between parts. Safe to use from threads."""

    def __init__(self, uri: str) -> None:
        """Prepare to use the store at `uri`, e.g. `s3://bucket/prefix`; nothing is sent yet.

        An S3-compatible server of one's own is named by `AWS_ENDPOINT_URL` or `?endpoint_override=http://host:port`.
        Raises StoreError when the address cannot be one.
        """
        parts = urlsplit(uri)
        options = dict(parse_qsl(parts.query))
        _check_address(uri, parts, options)
        self.uri = uri.rstrip("/")
        self._root = f"{parts.netloc}{parts.path}".rstrip("/")
        self._direct = DirectClient(parts.scheme, parts.netloc, options)
        try:
            self._files = file_system(parts.scheme, parts.netloc, options)
        except (OSError, ArrowInvalid) as error:
            raise _explained(self.uri, error) from error

    def child(self, name: str) -> Store:
        """Return the store below `name`."""
        address, _, query = self.uri.partition("?")
        return Store(f"{address}/{name}" + (f"?{query}" if query else ""))

    def put(self, name: str, content: bytes | Path) -> None:
        """Write an object, given its bytes or a file, in place of one of that name. Raises StoreError."""
        with self._errors(), self._files.open_output_stream(self._path(name)) as stream:
            if isinstance(content, bytes):
                stream.write(content)
                return
            with content.open("rb") as file:
                while block := file.read(2**22):
                    stream.write(block)

    def put_all(self, contents: Mapping[str, bytes | Path]) -> None:
        """Write several objects at once. Raises StoreError when one cannot be written; others may be."""
        self._each(lambda name: self.put(name, contents[name]), contents)

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless there is one of that name; return whether this call wrote it. Raises StoreError.

        Of several that create the same object, one is told that it did, where the store has conditional writes (S3,
        Google Cloud Storage and most of their kind). Elsewhere the object is looked for before, and read back after a
        pause: then two can be told so if one of them is held up for longer than that, and only the object says which.
        """
        with self._errors():
            try:
                # An answer that was lost is asked for again, and then the object is there already: it may be ours.
                self._direct.create(self._key(name), content)
            except UnavailableError:
                if self.exists(name):
                    return False
                self.put(name, content)
                time.sleep(READ_BACK_SECONDS)
        return self.get(name) == content

    def get_all(self, names: Iterable[str]) -> dict[str, bytes | None]:
        """Return several objects' bytes by name, `None` for those that do not exist. Raises StoreError."""
        found: dict[str, bytes | None] = {}

        def get(name: str) -> None:
            found[name] = self.get(name)

        self._each(get, names)
        return found

    def get(self, name: str) -> bytes | None:
        """Return an object's bytes, or `None` when there is none of that name. Raises StoreError."""
        with self._errors():
            try:
                return self._direct.get(self._key(name))
            except FileNotFoundError:
                return None
            except UnavailableError:
                pass  # pyarrow, below, can
            try:
                with self.open(name) as stream:
                    content: bytes = stream.read()
                    return content
            except FileNotFoundError:
                return None

    def open(self, name: str) -> NativeFile:
        """Open an object to read parts of it. Raises FileNotFoundError where there is none, or StoreError."""
        with self._errors():
            try:
                return self._files.open_input_file(self._path(name))
            except FileNotFoundError:
                raise
            except OSError as error:
                if any(sign in str(error) for sign in _ABSENT):
                    raise FileNotFoundError(name) from error
                raise

    def move_all(self, targets: Mapping[str, str]) -> set[str]:
        """Give objects other names, without their content coming here; return those that did not exist.

        Who is interrupted between the copy and the removal of an object leaves both. Raises StoreError.
        """
        absent: set[str] = set()

        def copy(name: str) -> None:
            if not self._copy(name, targets[name]):
                absent.add(name)

        self._each(copy, targets)
        self.delete(targets.keys() - absent)
        return absent

    def _copy(self, name: str, target: str) -> bool:
        with self._errors():
            try:
                self._direct.copy(self._key(name), self._key(target))
                return True
            except FileNotFoundError:
                return False
            except UnavailableError:
                pass  # pyarrow, below, can
            try:
                self._files.copy_file(self._path(name), self._path(target))
            except OSError as error:
                if isinstance(error, FileNotFoundError) or any(sign in str(error) for sign in _ABSENT):
                    return False
                raise
            return True

    def download(self, name: str, target: Path) -> bool:
        """Write an object into the file `target`, whole or not at all; tell whether it exists. Raises StoreError."""
        content = self.get(name)
        if content is None:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, content)
        return True

    def download_all(self, targets: Mapping[str, Path]) -> None:
        """Write several objects into files; those that do not exist any more are left out. Raises StoreError."""
        self._each(lambda name: self.download(name, targets[name]), targets)

    def exists(self, name: str) -> bool:
        """Return whether there is an object of that name. Raises StoreError."""
        with self._errors():
            return bool(self._files.get_file_info(self._path(name)).type == fs.FileType.File)

    def entries(self, folder: str = "", *, recursive: bool = True) -> dict[str, Entry]:
        """Return the objects below `folder`, by name relative to the store. Raises StoreError."""
        return {name: entry for name, entry in self._listing(folder, recursive=recursive) if entry is not None}

    def folders(self) -> list[str]:
        """Return the names that have objects below them, one level deep, in order. Raises StoreError."""
        return sorted(name for name, entry in self._listing("", recursive=False) if entry is None)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that do not exist are no error. Raises StoreError."""

        def delete(name: str) -> None:
            with self._errors():
                try:
                    self._files.delete_file(self._path(name))
                except FileNotFoundError:
                    return

        listed = [*names]
        try:
            if listed:
                self._direct.delete([self._key(name) for name in listed])
        except UnavailableError:
            self._each(delete, listed)

    def check(self) -> None:
        """Raise StoreError unless the store answers and its bucket can be listed."""
        self.entries(recursive=False)

    def _listing(self, folder: str, *, recursive: bool) -> Iterator[tuple[str, Entry | None]]:
        selector = fs.FileSelector(self._path(folder), recursive=recursive, allow_not_found=True)
        with self._errors():
            found = self._files.get_file_info(selector)
            bucket = self._root.partition("/")[0]
            # A prefix without objects is empty; so looks a bucket that does not exist.
            if not found and self._files.get_file_info(bucket).type == fs.FileType.NotFound:
                raise OSError(f"the bucket does not exist: {bucket}")
        for info in found:
            name = info.path[len(self._root) + 1 :]
            if info.type == fs.FileType.File:
                yield name, Entry(info.size, info.mtime_ns or 0)
            elif info.type == fs.FileType.Directory:
                yield name, None

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _key(self, name: str) -> str:
        """Return an object's name in its bucket."""
        return self._path(name).partition("/")[2]

    def _each(self, work: Any, names: Iterable[str]) -> None:
        listed = [*names]
        if len(listed) == 1:
            work(listed[0])
        elif listed:
            with ThreadPoolExecutor(min(CONNECTIONS, len(listed)), thread_name_prefix="store") as pool:
                for _ in pool.map(work, listed):
                    pass

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            raise _explained(self.uri, error) from error


def _check_address(uri: str, parts: SplitResult, options: Mapping[str, str]) -> None:
    if parts.username or parts.password or "@" in parts.netloc:
        raise StoreError(
            f"the address {parts.scheme}://***@{parts.netloc.rpartition('@')[2]}{parts.path} carries credentials",
            "leave them out, because addresses are stored in plain text; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY (or the cloud's equivalent) on every machine instead",
        )
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise StoreError(f"{uri!r} is not the address of a store", "write s3://bucket/prefix or gs://bucket/prefix")
    unknown = sorted(options.keys() - _OPTIONS[parts.scheme])
    if unknown:
        known = ", ".join(sorted(_OPTIONS[parts.scheme]))
        raise StoreError(f"the store's address has an unknown option {unknown[0]!r}", f"the options are {known}")


_CAUSES = (
    (
        ("NO_SUCH_BUCKET", "bucket does not exist"),
        "its bucket does not exist",
        "create it, or correct the address",
    ),
    (
        ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "INVALID_CLIENT_TOKEN_ID", "SIGNATURE_DOES_NOT_MATCH", "HTTP 403",
         "UNRECOGNIZED_CLIENT", "EXPIRED_TOKEN", "HTTP status code 403", "PERMISSION_DENIED", "UNAUTHENTICATED"),
        "it refuses the credentials",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or GOOGLE_APPLICATION_CREDENTIALS, or the machine's role) "
        "to ones that may list, read, write and delete there",
    ),
    (
        ("SLOW_DOWN", "SlowDown", "HTTP status code 503"),
        "it refuses requests, because there are too many",
        "try again later",
    ),
    (
        ("NETWORK_CONNECTION", "Could not connect", "Couldn't connect", "resolve host", "REQUEST_TIMEOUT", "curlCode",
         "UNAVAILABLE", "EOF", "Timeout was reached"),
        "it cannot be reached",
        "check the network, AWS_ENDPOINT_URL and the region",
    ),
)  # fmt: skip


def _explained(uri: str, error: Exception) -> StoreError:
    """Return an error of pyarrow's as a sentence: which of the usual causes it names, and the remedy."""
    text = " ".join(str(error).split())
    for signs, sentence, remedy in _CAUSES:
        if any(sign in text for sign in signs):
            return StoreError(f"the store {uri} cannot be used: {sentence}", remedy)
    return StoreError(f"the store {uri} cannot be used: {text}", "see the message above; nothing local was lost")
