"""Sweeps in an object store, against a real S3 server: port, mirror, resuming elsewhere, and what goes wrong."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import Journal, read_journal
from sweeper.results import load
from sweeper.storage.mirror import Mirror
from sweeper.storage.places import fetch, local_copy, objects
from sweeper.storage.store_journal import TOGETHER, StoredJournal, remove_unsettled
from sweeper.storage.store_lease import BEAT_SECONDS, SILENCE_SECONDS, StoreLease
from sweeper.tables.writer import ParquetSink
from tests.remote.services import BUCKET, s3_server
from tests.sweeper.random_sweep import RandomSweep, expected_rows
from tests.sweeper.records import fields, made_body
from trainables.worker.object_store import Store, StoreError
from trainables.worker.trial_files import TrialFiles


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with s3_server(tmp_path_factory.mktemp("s3")) as environment, pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        patch.setenv("SWEEPER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield environment


@pytest.fixture
def store(service: Any, request: pytest.FixtureRequest) -> Store:
    return Store(f"s3://{BUCKET}/{request.node.name.replace('[', '-').rstrip(']')}")


def test_objects_are_whole_listed_and_gone_when_deleted(store: Store, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(os.urandom(12_000_000))
    store.put("a/b/one", b"first")
    store.put_all({"a/b/one": b"second", "a/two": large, "three": b""})
    assert store.get("a/b/one") == b"second" and store.get("a/none") is None
    assert {name: entry.size for name, entry in store.entries().items()} == {
        "a/b/one": 6,
        "a/two": 12_000_000,
        "three": 0,
    }
    assert set(store.entries("a", recursive=False)) == {"a/two"} and store.folders() == ["a"]
    assert store.download("a/two", tmp_path / "copy") and (tmp_path / "copy").read_bytes() == large.read_bytes()
    assert not store.download("a/none", tmp_path / "none") and not (tmp_path / "none").exists()
    assert store.child("a").get("b/one") == b"second"
    store.delete(["a/two", "a/none", "three"])
    assert set(store.entries()) == {"a/b/one"} and not store.exists("a/two") and store.exists("a/b/one")
    assert Store(f"{store.uri}-empty").entries() == {}


def test_what_is_wrong_with_a_store_is_one_sentence(service: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for address, sentence in {
        "s3://no-such-bucket/x": "its bucket does not exist",
        f"s3://{BUCKET}/x?endpoint_override=http://127.0.0.1:1": "it cannot be reached",
    }.items():
        with pytest.raises(StoreError, match=sentence) as raised:
            Store(address).check()
        assert raised.value.remedy and "\n" not in raised.value.message
        with pytest.raises(StoreError, match=sentence):
            Store(address).put("a", b"1")
    for address, sentence in {
        "s3://key:secret@bucket/x": "carries credentials",
        "s3://": "not the address of a store",
        "s3://bucket/x?regoin=here": "unknown option 'regoin'",
    }.items():
        with pytest.raises(StoreError, match=sentence) as raised:
            Store(address)
        assert "secret" not in str(raised.value)


def test_wrong_credentials_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # This server knows users from its first request on, and ours is none of them.
    with s3_server(tmp_path, bucket=False, INITIAL_NO_AUTH_ACTION_COUNT="0") as environment:
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        with pytest.raises(StoreError, match="it refuses the credentials") as raised:
            Store(f"s3://{BUCKET}/x").put("a", b"1")
        assert "AWS_ACCESS_KEY_ID" in raised.value.remedy


def test_commands_say_what_is_wrong_with_a_store(service: dict[str, str], tmp_path: Path) -> None:
    for address, sentence in {
        "s3://no-such-bucket/x": "its bucket does not exist",
        f"s3://{BUCKET}/x?endpoint_override=http://127.0.0.1:1": "it cannot be reached",
        f"s3://{BUCKET}/x": "there is no sweep 'small'",
    }.items():
        done = subprocess.run(
            [sys.executable, "-m", "sweeper", "results", "small", "--output", address],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, env=dict(os.environ),
        )  # fmt: skip
        assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_records_are_in_the_store_before_they_count(store: Store, tmp_path: Path) -> None:
    journal = StoredJournal(tmp_path / "journal", store)
    for number in range(TOGETHER + 5):
        journal.append(made_body("started", {"configuration": number, "attempt": 1}))
    assert store.entries() == {}
    journal.settle()
    fetch(store, tmp_path / "copy", tables=False)
    assert [fields(r) for r in read_journal(tmp_path / "copy" / "journal")] == [
        {"configuration": number, "attempt": 1} for number in range(TOGETHER + 5)
    ]


def test_records_after_a_gap_never_counted_unless_there_are_too_many(store: Store, tmp_path: Path) -> None:
    journal = StoredJournal(tmp_path / "journal", store)
    for number in range(10):
        journal.append(made_body("started", {"configuration": number, "attempt": 1}))
    journal.settle()
    names = sorted(store.entries("journal"))
    store.delete([names[6]])
    assert sorted(remove_unsettled(store)) == names[7:]
    assert sorted(store.entries("journal")) == names[:6] and remove_unsettled(store) == []
    store.put("journal/0000000080-started-c00080.json", b"a record far behind the gap")
    assert remove_unsettled(store) == [], "that is no driver's last batch, but a loss: it is for the reader to name"


def test_an_unreachable_store_ends_the_sweep_with_a_remedy(tmp_path: Path, service: Any) -> None:
    gone, naps = Store(f"s3://{BUCKET}/x?endpoint_override=http://127.0.0.1:1"), []
    journal = StoredJournal(tmp_path / "journal", gone, sleep=naps.append)
    journal.append(made_body("started", {"configuration": 0, "attempt": 1}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sweeper.storage.store_journal.PATIENCE_SECONDS", 0.0)
        with pytest.raises(SweeperError, match=r"cannot be reached.*\n.*sweeper resume s3://"):
            journal.settle()


def test_one_driver_a_sweep(store: Store) -> None:
    clock = _Clock()
    first = StoreLease(store, "sweep", clock=clock, sleep=clock.sleep)
    first.take()

    def beating(seconds: float) -> None:
        clock.sleep(seconds)
        first.beat()

    with pytest.raises(SweeperError, match="is already being driven by process"):
        StoreLease(store, "sweep", clock=clock, sleep=beating).take()
    assert clock.now < 1000 + BEAT_SECONDS + 2, "a living holder is found out by its next beat"
    began = clock.now
    second = StoreLease(store, "sweep", clock=clock, sleep=clock.sleep)
    second.take()
    assert SILENCE_SECONDS <= clock.now - began <= SILENCE_SECONDS + 2
    first.release()
    assert store.exists("lease.json"), "who has lost the lease cannot give it back"
    second.release()
    began = clock.now
    StoreLease(store, "sweep", clock=clock, sleep=clock.sleep).take()
    assert clock.now == began


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("seed", [0, 1])
def test_a_sweep_goes_on_from_the_store_alone(store: Store, tmp_path: Path, seed: int) -> None:
    """Drive in several attempts, each on a fresh machine, with trials that put their tables into the store."""
    sweep = None
    for attempt in range(4):
        machine = tmp_path / f"machine-{attempt}"
        fresh = RandomSweep(machine / "sweep", seed) if sweep is None else _moved(sweep, machine / "sweep")
        if sweep is None:
            fresh.paths.sweep_file.write_text("samples: 8\n")
        sweep = fresh
        with Mirror(sweep.paths, store) as mirror:
            _drive(sweep, mirror, 12 if attempt < 3 else 10_000, tmp_path / f"trials-{attempt}")
        assert not list((machine / "sweep").glob("checkpoints/*"))
    name, folder = local_copy(store.uri, "results")
    copy = folder / name
    records = list(read_journal(copy / "journal"))
    wanted = expected_rows(records)
    results = load(copy)
    for table, keys in (("epochs", "trial, replicate, epoch"), ("evaluations", "trial, replicate, epoch, split")):
        rows = results.rows(f"select count(*) n, count(distinct ({keys})) d from {table}")
        assert rows == [{"n": len(wanted[table]), "d": len(wanted[table])}]
    evaluations = {key[:3] for key in wanted["evaluations"]}
    stored = results.rows("select distinct trial, replicate, epoch from predictions")
    assert {(row["trial"], row["replicate"], row["epoch"]) for row in stored} == evaluations
    assert not store.entries("incoming") and "lease.json" not in store.entries(recursive=False)
    assert {name: entry.size for name, entry in store.entries("tables").items()} == {
        name: path.stat().st_size for name, path in objects(SweepPaths(copy)).items() if name.startswith("tables/")
    }


def _moved(sweep: RandomSweep, root: Path) -> RandomSweep:
    """Return the sweep on another machine, where nothing of it is."""
    sweep.root, sweep.paths = root, SweepPaths(root)
    return sweep


def _drive(sweep: RandomSweep, mirror: Mirror, steps: int, trials: Path) -> None:
    """Journal random events as a driver does; trials write where they run and put what they wrote into the store."""
    journal: Journal = mirror.journal()
    sink = ParquetSink(
        sweep.paths, sweep.schemas, sweep.configurations, replicates=sweep.replicates, sweep_seed=sweep.seed,
        arrivals=mirror.arrivals,
    )  # fmt: skip
    sink.rebuild(read_journal(sweep.paths.journal))
    for kind, body in sweep.events(trials, steps):
        for part in [*trials.glob("*/c*.parquet")]:
            files = TrialFiles(Path("c00000"), tables=None, checkpoints=None, store=mirror.store.uri)
            files.table_written(part)
        sink.append(journal.append(made_body(kind, body)))
        journal.settle()
    mirror.collect()
    sink.close()
    mirror.complete(ended=len(sweep.ended) == sweep.count)


def test_a_trial_goes_on_from_checkpoints_in_the_store(store: Store, tmp_path: Path) -> None:
    def files() -> TrialFiles:
        return TrialFiles(Path("c00003/r1"), tables=None, checkpoints=None, store=store.uri)

    here = files()
    assert here.checkpoints is not None
    for epoch in (1, 3):
        path = here.checkpoints / f"e{epoch:05d}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"state %d" % epoch)
        here.checkpoint_written(path, epoch)
    there = files()
    there.fetch_checkpoints()
    assert there.checkpoints is not None and there.checkpoints != here.checkpoints
    assert (there.checkpoints / "e00003.pt").read_bytes() == b"state 3"
    there.remove_checkpoints_before(3)
    assert set(store.entries()) == {"checkpoints/c00003/r1/e00003.pt"}


def test_reading_fetches_only_what_has_changed(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    record = "journal/0000000000-attempt.json"
    store.put_all({"sweep.yaml": b"samples: 1\n", record: b"1", "tables/trials/x.parquet": b"2"})
    fetch(store, source)
    before = {path: path.stat().st_ino for path in source.rglob("*") if path.is_file() and not path.is_symlink()}
    store.put("tables/trials/x.parquet", b"three")
    store.delete([record])
    fetch(store, source)
    assert (source / "tables" / "trials" / "x.parquet").read_bytes() == b"three"
    assert not (source / record).exists()
    assert (source / "sweep.yaml").stat().st_ino == before[source / "sweep.yaml"]
    shutil.rmtree(source)
    with contextlib.suppress(FileNotFoundError):
        fetch(store, source, tables=False)
    assert not (source / "tables").exists()
