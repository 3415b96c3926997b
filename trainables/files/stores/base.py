"""The protocol of a kind of object store.

To add one, write `trainables/files/stores/<scheme>.py`::

    def _bucket(name: str, options: Mapping[str, str], settings: ClientSettings) -> ObjectStore:
        from obstore.store import HTTPStore

        return HTTPStore(f"https://{name}", **settings)

    register(StoreKind("dav", "dav://host/prefix", _bucket, remedy="set DAV_TOKEN to one that may write there"))

Addresses, listings, uploads, retries, leases and messages then work. A store without conditional writes works with
weaker guarantees: see `Store.create`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig


class ClientSettings(TypedDict):
    """Timeouts and retries of every client."""

    client_options: ClientConfig
    retry_config: RetryConfig


def client_settings() -> ClientSettings:
    """Return a client's settings, which give up an unreachable store after 10 s, a stalled request after 60 s."""
    return {
        # Uploading a checkpoint of some GB exceeds obstore's limit of 30 s for a whole request; a stall is caught by
        # `read_timeout` instead.
        "client_options": {"allow_http": True, "connect_timeout": "10s", "read_timeout": "60s", "timeout": "6h"},
        "retry_config": {"max_retries": 8, "retry_timeout": timedelta(seconds=10)},
    }


@dataclass(frozen=True)
class StoreKind:
    """A kind of store.

    Attributes:
        scheme: scheme of its addresses.
        example: example of an address.
        bucket: function that opens a bucket from its name, the address's options and the client's settings; it sends
            nothing.
        remedy: what to do if it refuses the credentials.
        options: names of the options that an address can have after `?`.
    """

    scheme: str
    example: str
    bucket: Callable[[str, Mapping[str, str], ClientSettings], ObjectStore]
    remedy: str
    options: frozenset[str] = frozenset({"endpoint_override"})


#: Kinds of stores by the scheme of their addresses.
KINDS: dict[str, StoreKind] = {}


def register(kind: StoreKind) -> None:
    """Register a kind of store by its scheme."""
    KINDS[kind.scheme] = kind


class StoreError(OSError):
    """A store cannot be used; one sentence with the address, and the remedy.

    Attributes:
        message: what is wrong.
        remedy: what to do about it.
        exit_code: exit status of the command that raises it.
    """

    exit_code = 2

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy)
        self.message, self.remedy = message, remedy

    def __str__(self) -> str:
        return f"{self.message}\n  {self.remedy}"


@dataclass(frozen=True)
class Entry:
    """An object in a listing.

    Attributes:
        size: size in bytes.
        written: time of its last write, Unix time in nanoseconds; some stores know only the second.
        tag: the store's identifier of this content (ETag).
    """

    size: int
    written: int
    tag: str = ""


def is_store_address(text: str | os.PathLike[str]) -> bool:
    """Return whether `text` is the address of a store rather than a folder.

    Example:
        >>> import trainables.files.stores
        >>> is_store_address("s3://bucket/sweeps"), is_store_address("results")
        (True, False)
    """
    scheme, separator, _ = str(text).partition("://")
    return bool(separator) and scheme in KINDS
