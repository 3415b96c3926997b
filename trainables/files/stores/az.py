"""Azure Blob Storage: the container is the address's first part, the account comes from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainables.files.stores.base import ClientSettings, StoreError, StoreKind, register

if TYPE_CHECKING:
    from obstore.store import AzureConfig, AzureStore


def _bucket(name: str, options: Mapping[str, str], settings: ClientSettings) -> AzureStore:
    from obstore.store import AzureStore

    account = options.get("account") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise StoreError(
            f"the address az://{name} does not name the account of container {name!r}",
            "set AZURE_STORAGE_ACCOUNT_NAME on every machine, or write az://container/prefix?account=NAME",
        )
    config: AzureConfig = {"account_name": account}
    if "endpoint_override" in options:  # for Azurite with the account: http://127.0.0.1:10000/devstoreaccount1
        config["endpoint"] = options["endpoint_override"]
    return AzureStore(name, config=config, **settings)


register(
    StoreKind(
        "az",
        "az://container/prefix",
        _bucket,
        remedy="set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY (or AZURE_CLIENT_ID, AZURE_CLIENT_SECRET and "
        "AZURE_TENANT_ID, or the machine's identity) to ones that may list, read, write and delete there",
        options=frozenset({"account", "endpoint_override"}),
    )
)
