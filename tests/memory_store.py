"""A store in this process's memory, in place of S3: as fast as a dictionary, and with obstore's own rules."""

from dataclasses import replace

import obstore.store
import pytest

from trainables.files.stores.base import KINDS


def use_memory_store(monkeypatch: pytest.MonkeyPatch, scheme: str = "s3") -> obstore.store.MemoryStore:
    """Let every address of a kind of store mean one new, empty bucket; return the bucket."""
    bucket = obstore.store.MemoryStore()
    monkeypatch.setitem(KINDS, scheme, replace(KINDS[scheme], bucket=lambda *_: bucket))
    return bucket
