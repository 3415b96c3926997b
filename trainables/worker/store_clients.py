"""The two clients of a store: pyarrow's, which finds credentials wherever the cloud's own tools do, and obstore.

obstore needs one request where pyarrow sends two (to read an object) or three (to delete one, where obstore deletes a
thousand), and it knows conditional writes and copies within the store. It does not read the credentials of a profile.
So it is asked first, and pyarrow where it cannot be used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from pyarrow import fs

TRIES = 4
"""Tries of one request by the cloud's own retry rules; with their pauses an unreachable store is known in about 6 s."""

_Result = TypeVar("_Result")


class UnavailableError(Exception):
    """obstore cannot do it: it finds no credentials, or the store does not answer."""


class DirectClient:
    """A bucket as obstore sees it. Safe to use from threads."""

    def __init__(self, scheme: str, bucket: str, options: Mapping[str, str]) -> None:
        """Prepare to use a bucket; nothing is imported or sent yet."""
        self._address = (scheme, bucket, options)
        self._bucket: Any = None
        self._works, self._gone = False, False

    def get(self, key: str) -> bytes:
        """Return an object's bytes. Raises FileNotFoundError, or UnavailableError."""
        from obstore import get

        return self._ask(lambda bucket: bytes(get(bucket, key).bytes()))

    def create(self, key: str, content: bytes) -> bool:
        """Write an object unless there is one; return whether there was none. Raises UnavailableError."""
        from obstore import put
        from obstore.exceptions import AlreadyExistsError

        try:
            self._ask(lambda bucket: put(bucket, key, content, mode="create"))
        except AlreadyExistsError:
            return False
        return True

    def copy(self, key: str, target: str) -> None:
        """Copy an object within the bucket. Raises FileNotFoundError, or UnavailableError."""
        from obstore import copy

        self._ask(lambda bucket: copy(bucket, key, target))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that do not exist are no error. Raises UnavailableError."""
        from obstore import delete

        try:
            self._ask(lambda bucket: delete(bucket, [*keys]))
        except FileNotFoundError:
            # Where a store has no request for many, the first that is gone ends it.
            if len(keys) > 1:
                for key in keys:
                    self.delete([key])

    def _ask(self, work: Callable[[Any], _Result]) -> _Result:
        from obstore.exceptions import AlreadyExistsError, BaseError

        if self._gone:
            raise UnavailableError
        try:
            if self._bucket is None:
                self._bucket = _obstore(*self._address)
            answer = work(self._bucket)
        except (FileNotFoundError, AlreadyExistsError):
            self._works = True
            raise
        except (BaseError, ValueError, OSError) as error:
            # One that has never worked has no credentials: it would look for them each time, for seconds.
            self._gone = not self._works
            raise UnavailableError from error
        self._works = True
        return answer


def file_system(scheme: str, bucket: str, options: Mapping[str, str]) -> fs.FileSystem:
    """Return pyarrow's client. Raises OSError, or ArrowInvalid."""
    if scheme == "gs":
        # Without a limit the client tries for 15 minutes before it says that there is no network.
        return fs.GcsFileSystem(
            endpoint_override=options.get("endpoint_override"),
            scheme=options.get("scheme", "https"),
            anonymous=bool(options.get("endpoint_override")),
            retry_time_limit=timedelta(seconds=30),
        )
    endpoint, region = _endpoint(options), _region(bucket, options)
    return fs.S3FileSystem(
        region=region,
        endpoint_override=endpoint,
        scheme=options.get("scheme"),
        connect_timeout=10,
        request_timeout=60,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=TRIES),
        allow_delayed_open=True,  # an object that fits in one part is one request instead of three
    )


def _obstore(scheme: str, bucket: str, options: Mapping[str, str]) -> Any:
    """Return obstore's client. Raises its own errors, or ValueError."""
    from obstore.store import GCSStore, S3Store

    # Whoever asks does not wait for an instance's credentials that do not exist, and has a way without.
    patience: Any = {"max_retries": 2 * TRIES, "retry_timeout": timedelta(seconds=10)}
    if scheme == "gs":
        return GCSStore(bucket, retry_config=patience)
    endpoint = _endpoint(options)
    config: Any = {"region": _region(bucket, options), **({"endpoint": endpoint} if endpoint else {})}
    return S3Store(bucket, config=config, client_options={"allow_http": True}, retry_config=patience)


def _endpoint(options: Mapping[str, str]) -> str | None:
    named = options.get("endpoint_override")
    if named and "://" not in named:
        named = f"{options.get('scheme', 'https')}://{named}"
    return named or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _region(bucket: str, options: Mapping[str, str]) -> str:
    named = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if named:
        return named
    return "us-east-1" if _endpoint(options) else str(fs.resolve_s3_region(bucket))
