"""The driver and the mirror's thread work at the same time, and drivers one after the other."""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sweeper.core.ids import SweepPaths
from sweeper.storage.mirror import Mirror
from sweeper.tables.large_tables import StoreArrivals
from tests.memory_store import use_memory_store
from trainables.files.stores.base import StoreError
from trainables.files.stores.object_store import Store

FILE = "c00001-r0-e00003.parquet"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    use_memory_store(monkeypatch)
    monkeypatch.setattr("sweeper.storage.mirror.TURN_SECONDS", 1000.0)
    return Store("s3://sweeps/small")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let every request take a moment; return what was put."""
    put, delete = Store.put, Store.delete
    names: list[str] = []

    def slow_put(store: Store, name: str, content: bytes | Path) -> str:
        time.sleep(0.05)
        names.append(name)
        return put(store, name, content)

    def slow_delete(store: Store, listed: Iterable[str]) -> None:
        time.sleep(0.05)
        delete(store, listed)

    monkeypatch.setattr(Store, "put", slow_put)
    monkeypatch.setattr(Store, "delete", slow_delete)
    return names


def _sweep(folder: Path, contents: Mapping[str, bytes]) -> SweepPaths:
    paths = SweepPaths(folder)
    (paths.generations / "0001" / "epochs").mkdir(parents=True)
    paths.tables.symlink_to("generations/0001", target_is_directory=True)
    for name, content in {"sweep.yaml": b"samples: 1\n", **contents}.items():
        (folder / name).write_bytes(content)
    return paths


def test_two_threads_publish_a_file_of_the_driver_once(store: Store, slow: list[str], tmp_path: Path) -> None:
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions" / FILE).write_bytes(b"rows")
    kept = StoreArrivals(store, tmp_path)
    kept.publish([FILE], only=False)
    with ThreadPoolExecutor(2) as pool:
        for job in [pool.submit(kept.work) for _ in range(2)]:
            job.result()
    assert slow == [f"incoming/predictions/{FILE}"] and kept.lost() == []
    assert store.get(f"tables/predictions/{FILE}") == b"rows" and {*store.entries()} == {f"tables/predictions/{FILE}"}


def test_two_threads_push_a_change_once(store: Store, slow: list[str], tmp_path: Path) -> None:
    paths = _sweep(tmp_path, {"tables/epochs/c00001.parquet": b"1"})
    with Mirror(paths, store) as mirror:
        (paths.tables / "epochs" / "c00001.parquet").rename(paths.tables / "epochs" / "c00002.parquet")
        slow.clear()
        with ThreadPoolExecutor(2) as pool:
            for job in [pool.submit(mirror.complete) for _ in range(2)]:
                job.result()
        assert [name for name in slow if name != "lease.json"] == ["tables/epochs/c00002.parquet"]
    assert {*store.entries("tables")} == {"tables/epochs/c00002.parquet"}


def test_what_an_earlier_driver_puts_late_is_put_again_at_equal_size_too(store: Store, tmp_path: Path) -> None:
    paths = _sweep(tmp_path, {"tables/epochs/c00001.parquet": b"ours"})
    with Mirror(paths, store):
        pass
    with Mirror(paths, store) as mirror:
        store.put("tables/epochs/c00001.parquet", b"late")
        store.put("manifest.json", b"{}")
        mirror.complete()
        assert store.get("tables/epochs/c00001.parquet") == b"ours"


@pytest.mark.parametrize(("request_name", "first"), [("entries", "checkpoints"), ("put_all", None), ("create", None)])
def test_a_driver_that_begins_waits_for_a_store_that_leaves_just_then(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request_name: str, first: str | None
) -> None:
    refused: list[object] = []
    answered = getattr(Store, request_name)

    def refused_once(store: Store, *arguments: object, **options: object) -> object:
        if not refused and first in (None, *arguments):
            refused.append(arguments)
            raise StoreError("out of reach", "wait")
        return answered(store, *arguments, **options)

    with Mirror(_sweep(tmp_path, {}), store) as mirror:
        store.put("checkpoints/c00001/e00001.pt", b"weights")
        (tmp_path / "journal").mkdir(exist_ok=True)
        (tmp_path / "journal" / "000001.damaged").write_bytes(b"?")
        terms = len(store.entries("terms"))
        monkeypatch.setattr(Store, request_name, refused_once)
        assert mirror.trials_with_checkpoints() == {"c00001"}
        mirror.set_aside(["000001"])
        assert refused and store.get("journal/000001.damaged") == b"?" and len(store.entries("terms")) == terms + 1
