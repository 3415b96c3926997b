"""Objects in a store (`s3://`, `gs://`, `az://`): whole-object writes and reads below one address, through obstore.

A store holds the files that several machines need if they have no shared folder. An object is either absent or whole,
so nothing here needs a temporary name. obstore offers conditional writes, a thousand deletions per request, copies
within the store, and multipart uploads that are aborted if they fail (pyarrow published them when closed). Credentials
come from the sources that the cloud's own tools use (environment, instance role, profile). They never come from the
address, because it is written into manifests and job lists.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

from trainables.files.atomic import replacing
from trainables.files.stores.base import KINDS, Entry, StoreError, client_settings

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta
    from obstore.store import ObjectStore

#: Concurrent requests: each waits some tens of milliseconds, mostly for the network.
CONNECTIONS = 16

#: Seconds for which drivers and trials wait for an unreachable store: their unsaved results are lost if they give up.
PATIENCE_SECONDS = 120.0

#: Longest pause between two attempts, in seconds.
LONGEST_PAUSE = 10.0

#: Approximate size of the blocks in which a download passes through memory.
BLOCK_BYTES = 2**22

#: Without conditional writes: the pause after which other writers of the same object are expected to be done.
READ_BACK_SECONDS = 2.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_Result = TypeVar("_Result")


def patiently(
    work: Callable[[], _Result],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> _Result:
    """Call `work` and return its result, retrying for `PATIENCE_SECONDS` while the store cannot be used.

    Raises the last StoreError once that time is over.
    """
    deadline = clock() + PATIENCE_SECONDS
    pause = 0.5
    while True:
        try:
            return work()
        except StoreError:
            if clock() >= deadline:
                raise
        # At random, so that the trials of a cluster do not all retry at the same moment.
        sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, LONGEST_PAUSE)


class Store:
    """The objects below one address. Names are relative to it, with `/` between parts. Thread-safe."""

    def __init__(self, uri: str) -> None:
        """Prepare to use the store at `uri`, e.g. `s3://bucket/prefix`; nothing is sent yet.

        A private server is given by `?endpoint_override=http://host:port`, or by the settings of the cloud's own tools.
        Raises StoreError for an invalid address.
        """
        parts = urlsplit(uri)
        self._options = dict(parse_qsl(parts.query))
        _check_address(uri, parts, self._options)
        self.uri = uri.rstrip("/")
        self._kind, self._bucket_name = KINDS[parts.scheme], parts.netloc
        self._prefix = parts.path.strip("/")
        self._opening = threading.Lock()
        self._opened: ObjectStore | None = None

    @property
    def _bucket(self) -> ObjectStore:
        """The client of obstore, made at its first use, because making it may look up the bucket's region."""
        with self._opening:
            if self._opened is None:
                self._opened = self._kind.bucket(self._bucket_name, self._options, client_settings())
            return self._opened

    def child(self, name: str) -> Store:
        """Return the store below `name`."""
        address, _, query = self.uri.partition("?")
        return Store(f"{address}/{name}" + (f"?{query}" if query else ""))

    def put(self, name: str, content: bytes | Path) -> str:
        """Write an object from bytes or a file, replacing an existing object; return its tag. Raises StoreError.

        If the file cannot be read or the upload fails, the object stays unchanged.
        """
        if isinstance(content, Path) and not content.is_file():
            raise StoreError(f"{content} cannot be read, so it was not put into {self.uri}", "it was removed meanwhile")
        with self._errors():
            return _tag(self._bucket.put(self._key(name), content)["e_tag"])

    def put_all(self, contents: Mapping[str, bytes | Path]) -> dict[str, str]:
        """Write several objects concurrently; return their tags. Raises StoreError if one fails."""
        return self._each(lambda name: self.put(name, contents[name]), contents)

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless it exists already; return whether this call wrote it. Raises StoreError.

        With conditional writes (all three clouds, and most compatible servers), exactly one of several concurrent calls
        returns true. Without conditional writes, this call looks the object up first, and reads it back after a pause.
        If another call is delayed for longer than the pause, both can return true, and only the object shows which
        content was kept.
        """
        from obstore.exceptions import AlreadyExistsError, BaseError

        with self._errors():
            try:
                self._bucket.put(self._key(name), content, mode="create")
            except AlreadyExistsError:
                pass  # perhaps this call wrote it: obstore repeats a request whose response was lost
            except (BaseError, NotImplementedError) as error:
                if not any(sign in str(error) for sign in _UNCONDITIONAL):
                    raise
                if self.exists(name):
                    return False
                self.put(name, content)
                time.sleep(READ_BACK_SECONDS)
        # Servers that do not know the condition ignore it, so the stored content decides.
        return self.get(name) == content

    def get_all(self, names: Iterable[str]) -> dict[str, bytes | None]:
        """Return several objects' bytes by name; `None` for those that do not exist. Raises StoreError."""
        return self._each(self.get, names)

    def get(self, name: str) -> bytes | None:
        """Return an object's bytes; `None` if it does not exist. Raises StoreError."""
        with suppress(FileNotFoundError), self._errors():
            return bytes(self._bucket.get(self._key(name)).bytes())
        return None

    def move_all(self, targets: Mapping[str, str]) -> set[str]:
        """Rename objects within the store; return the names that did not exist. Raises StoreError.

        An interruption between an object's copy and its removal leaves both.
        """
        copied = self._each(lambda name: self._copy(name, targets[name]), targets)
        absent = {name for name, existed in copied.items() if not existed}
        self.delete(targets.keys() - absent)
        return absent

    def _copy(self, name: str, target: str) -> bool:
        with suppress(FileNotFoundError), self._errors():
            self._bucket.copy(self._key(name), self._key(target))
            return True
        return False

    def download(self, name: str, target: Path) -> Entry | None:
        """Download an object into the file `target`, whole or not at all; return its entry. Raises StoreError.

        If there is no object of that name, nothing is written and `None` is returned.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError), replacing(target) as temporary, temporary.open("wb") as file:
            with self._errors():
                response = self._bucket.get(self._key(name))
            for block in self._blocks(response):
                file.write(block)
            return _entry(response.meta)
        return None

    def _blocks(self, response: GetResult) -> Iterator[bytes]:
        # Separate from `download`: an error in writing the file there is not the store's.
        with self._errors():
            for block in response.stream(BLOCK_BYTES):
                yield bytes(block)

    def download_all(self, targets: Mapping[str, Path]) -> dict[str, Entry | None]:
        """Download several objects concurrently, see `download`. Raises StoreError."""
        return self._each(lambda name: self.download(name, targets[name]), targets)

    def exists(self, name: str) -> bool:
        """Return whether an object of that name exists. Raises StoreError."""
        with suppress(FileNotFoundError), self._errors():
            self._bucket.head(self._key(name))
            return True
        return False

    def entries(self, folder: str = "", *, recursive: bool = True) -> dict[str, Entry]:
        """Return the objects below `folder`, by name relative to the store. Raises StoreError."""
        prefix = self._key(folder) or None
        with self._errors():
            if recursive:
                listed = self._bucket.list(prefix).collect()
            else:
                listed = self._bucket.list_with_delimiter(prefix)["objects"]
        return {meta["path"].removeprefix(self._key("")).lstrip("/"): _entry(meta) for meta in listed}

    def folders(self) -> list[str]:
        """Return the names of the top-level folders, in order. Raises StoreError."""
        with self._errors():
            prefixes = self._bucket.list_with_delimiter(self._prefix or None)["common_prefixes"]
        return sorted(path.removeprefix(self._prefix).strip("/") for path in prefixes)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; a missing object is not an error. Raises StoreError."""
        listed = [*names]
        try:
            with self._errors():
                if listed:
                    self._bucket.delete([self._key(name) for name in listed])
        except FileNotFoundError:
            # A store without bulk deletion stops at the first missing object.
            if len(listed) > 1:
                self._each(lambda name: self.delete([name]), listed)

    def check(self) -> None:
        """Raise StoreError unless the store answers and its bucket can be listed."""
        self.entries(recursive=False)

    def _key(self, name: str) -> str:
        """Return an object's name in its bucket."""
        return f"{self._prefix}/{name}".strip("/")

    def _each(self, work: Callable[[str], _Result], names: Iterable[str]) -> dict[str, _Result]:
        """Call `work` for each name, `CONNECTIONS` at a time; return name → result."""
        listed = [*names]
        if len(listed) < 2:
            return {name: work(name) for name in listed}
        with ThreadPoolExecutor(min(CONNECTIONS, len(listed)), thread_name_prefix="store") as pool:
            return dict(zip(listed, pool.map(work, listed), strict=True))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate obstore's errors, except for an object that does not exist."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            # Raised for a missing bucket, too. The response to a HEAD request has no text, so a missing bucket and a
            # missing object look the same there.
            absent = isinstance(error, FileNotFoundError) and not any(sign in str(error) for sign in _NO_BUCKET)
            if absent or isinstance(error, StoreError):
                raise
            raise _explained(self.uri, self._kind.remedy, error) from error


def _entry(meta: ObjectMeta) -> Entry:
    # In integers: a float of nanoseconds since 1970 is exact to 256 ns only, and equal times must stay equal.
    written = (meta["last_modified"] - _EPOCH) // timedelta(microseconds=1) * 1000
    return Entry(meta["size"], written, _tag(meta["e_tag"]))


def _tag(e_tag: str | None) -> str:
    """Return an ETag without quotes: Azure's listings omit them, and its other responses include them."""
    return (e_tag or "").strip('"')


def _check_address(uri: str, parts: SplitResult, options: Mapping[str, str]) -> None:
    if parts.username or parts.password or "@" in parts.netloc:
        raise StoreError(
            f"the address {parts.scheme}://***@{parts.netloc.rpartition('@')[2]}{parts.path} carries credentials",
            "leave them out, because addresses are stored in plain text; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY (or the cloud's equivalent) on every machine instead",
        )
    if parts.scheme not in KINDS or not parts.netloc:
        examples = " or ".join(kind.example for kind in KINDS.values())
        raise StoreError(f"{uri!r} is not the address of a store", f"write {examples}")
    known = KINDS[parts.scheme].options
    unknown = sorted(options.keys() - known)
    if unknown:
        raise StoreError(
            f"the store's address has an unknown option {unknown[0]!r}", f"the options are {', '.join(sorted(known))}"
        )


_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist", "container does not exist")

#: Responses of servers without conditional writes.
_UNCONDITIONAL = ("NotImplemented", "501 Not Implemented")

_REFUSED = ("401 Unauthorized", "403 Forbidden", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch",
            "ExpiredToken", "UnrecognizedClient", "InvalidClientTokenId", "PermissionDenied", "Unauthenticated",
            "AuthenticationFailed", "Invalid Access Key", "AuthorizationFailure", "lacks valid authentication",
            "necessary privileges")  # fmt: skip

_BUSY = ("SlowDown", "503 Service Unavailable", "429 Too Many Requests", "ServerBusy", "TooManyRequests")

_UNREACHABLE = ("error sending request", "tcp connect error", "dns error", "timed out", "HTTP error")

#: The debug form of Rust's error, a screen long, which obstore appends to its messages.
_SOURCE = re.compile(r"\s*Debug source:.*", re.DOTALL)


def _explained(uri: str, credentials: str, error: Exception) -> StoreError:
    """Convert an error of obstore to a sentence with the likely cause and the remedy."""
    text = " ".join(_SOURCE.sub("", str(error)).split())
    if "Encountered object with invalid path" in text:
        return StoreError(
            f"the store {uri} contains an object whose name is not a path below it: {text}",
            "nothing was written; remove the object and find out who can write to this store",
        )
    causes = (
        (_NO_BUCKET, "its bucket does not exist", "create it, or correct the address"),
        (("169.254.169.254", "metadata.google"), "no credentials were found", credentials),
        (_REFUSED, "it refuses the credentials", credentials),
        (_BUSY, "it refuses requests because there are too many", "try again later"),
        (_UNREACHABLE, "it cannot be reached", "check the network, the address of its server and the region"),
    )
    for signs, sentence, remedy in causes:
        if any(sign in text for sign in signs):
            return StoreError(f"the store {uri} cannot be used: {sentence}", remedy)
    return StoreError(f"the store {uri} cannot be used: {text}", "see the message above; nothing local was lost")
