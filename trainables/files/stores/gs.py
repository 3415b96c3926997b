"""Google Cloud Storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainables.files.stores.base import ClientSettings, StoreKind, register

if TYPE_CHECKING:
    from obstore.store import GCSStore


def _bucket(name: str, options: Mapping[str, str], settings: ClientSettings) -> GCSStore:
    from obstore.store import GCSStore

    endpoint = options.get("endpoint_override")
    if not endpoint:
        return GCSStore(name, **settings)
    if "://" not in endpoint:
        endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
    # A private server, such as fake-gcs-server, knows no Google accounts.
    return GCSStore(name, config={"base_url": endpoint, "skip_signature": True}, **settings)


register(
    StoreKind(
        "gs",
        "gs://bucket/prefix",
        _bucket,
        remedy="set GOOGLE_APPLICATION_CREDENTIALS (or the machine's service account) to one that may list, read, "
        "write and delete there",
        options=frozenset({"endpoint_override", "scheme"}),
    )
)
