"""Amazon S3, and servers that speak its protocol."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainables.files.stores.base import ClientSettings, StoreError, StoreKind, register

if TYPE_CHECKING:
    from obstore.store import S3Config, S3CredentialProvider, S3Store

#: How long the keys in a profile's file are used before the file is read again.
KEYS_VALID = timedelta(minutes=10)


def _bucket(name: str, options: Mapping[str, str], settings: ClientSettings) -> S3Store:
    from obstore.store import S3Store

    endpoint = _endpoint(options)
    config: S3Config = {"region": _region(name, options), **({"endpoint": endpoint} if endpoint else {})}
    return S3Store(name, config=config, credential_provider=_profile_credentials(), **settings)


def _endpoint(options: Mapping[str, str]) -> str | None:
    named = options.get("endpoint_override")
    if named and "://" not in named:
        named = f"{options.get('scheme', 'https')}://{named}"
    return named or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _region(bucket: str, options: Mapping[str, str]) -> str:
    named = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    named = named or _profile().get("region") or ("us-east-1" if _endpoint(options) else None)
    if named:
        return named
    from pyarrow.fs import resolve_s3_region  # obstore 0.12 has no function for it

    return str(resolve_s3_region(bucket))


def _profile() -> dict[str, str]:
    """Return the settings of the chosen profile in the user's AWS files."""
    name = _profile_name()
    settings: dict[str, str] = {}
    for variable, default in (("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")):
        files = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            files.read(Path(os.environ.get(variable) or f"~/.aws/{default}").expanduser())
        except (OSError, configparser.Error):
            continue  # an unreadable file counts as missing: the credentials may be elsewhere
        for section in (f"profile {name}", name):
            settings |= dict(files[section]) if section in files else {}
    return settings


def _profile_name() -> str:
    return os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"


def _profile_credentials() -> S3CredentialProvider | None:
    """Return the credential provider of a profile; `None` if obstore finds other credentials by itself.

    obstore 0.12 searches the environment, web identities, containers and instances, but not profiles
    (apache/arrow-rs-object-store leaves them to a provider). Raises StoreError for a profile that needs boto3.
    """
    if os.environ.get("AWS_ACCESS_KEY_ID") or os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return None
    profile = _profile()
    if "aws_access_key_id" in profile and "aws_secret_access_key" in profile:
        return _keys
    if profile.keys() & {"sso_session", "sso_start_url", "role_arn", "credential_process", "login_session"}:
        try:
            from obstore.auth.boto3 import Boto3CredentialProvider
        except ImportError as error:
            raise StoreError(
                f"the AWS profile {_profile_name()!r} has no keys; it needs a login, a role or a credential process",
                "install boto3, which supports these, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            ) from error
        return Boto3CredentialProvider()
    return None


def _keys() -> Any:
    """Return a profile's keys in obstore's form, read anew each time, since programs renew the file."""
    profile = _profile()
    return {
        "access_key_id": profile["aws_access_key_id"],
        "secret_access_key": profile["aws_secret_access_key"],
        "token": profile.get("aws_session_token"),
        "expires_at": datetime.now(UTC) + KEYS_VALID,
    }


register(
    StoreKind(
        "s3",
        "s3://bucket/prefix",
        _bucket,
        remedy="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE, or the machine's role) to ones that "
        "may list, read, write and delete there",
        options=frozenset({"endpoint_override", "region", "scheme"}),
    )
)
