"""Azure's containers: the account comes from the address or the environment."""

import pytest

from trainables.files.stores.base import StoreError
from trainables.files.stores.object_store import Store


def test_an_address_needs_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreError, match="account of container 'images'") as refused:
        Store("az://images/x").check()
    assert "AZURE_STORAGE_ACCOUNT_NAME" in refused.value.remedy
    with pytest.raises(StoreError, match="unknown option 'key'"):
        Store("az://images/x?key=secret")
