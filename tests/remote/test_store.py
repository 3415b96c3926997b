"""Sweeps in an object store, against a real S3 server: port, mirror, resuming elsewhere, and what goes wrong."""

import _thread
import concurrent.futures
import contextlib
import os
import random
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest

from sweeper.core.errors import SweeperError
from sweeper.core.ids import TABLES, ReplicateSeeds, SweepPaths
from sweeper.core.schemas import table_schemas
from sweeper.journal.journal import Journal, read_journal
from sweeper.journal.records import Record
from sweeper.results import load
from sweeper.storage.lease import LeaseLostError, StoreLease
from sweeper.storage.mirror import Mirror
from sweeper.storage.places import fetch, local_copy, objects
from sweeper.storage.store_journal import StoredJournal
from sweeper.tables.file_list import FileList, LostFilesError
from sweeper.tables.large_tables import StoreArrivals
from sweeper.tables.writer import ParquetSink
from tests.remote.services import BUCKET, s3_server
from tests.sweeper.random_sweep import RandomSweep, expected_rows
from tests.sweeper.records import fields, made_body
from trainables.files.locks import BEAT_SECONDS, SILENCE_SECONDS
from trainables.files.stores.base import StoreError
from trainables.files.stores.object_store import PATIENCE_SECONDS, Store, patiently
from trainables.worker.checkpoints import TrialFiles
from trainables.worker.trial_tables import part_name, write_parquet, write_predictions

pytestmark = pytest.mark.integration


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
    tags = store.put_all({"a/b/one": b"second", "a/two": large, "three": b""})
    assert tags == {name: entry.tag for name, entry in store.entries().items()} and len({*tags.values()}) == 3
    assert store.get("a/b/one") == b"second" and store.get("a/none") is None
    assert {name: entry.size for name, entry in store.entries().items()} == {
        "a/b/one": 6,
        "a/two": 12_000_000,
        "three": 0,
    }
    assert set(store.entries("a", recursive=False)) == {"a/two"} and store.folders() == ["a"]
    assert (
        store.download("a/two", tmp_path / "copy") == store.entries()["a/two"]
        and (tmp_path / "copy").read_bytes() == large.read_bytes()
    )
    assert not store.download("a/none", tmp_path / "none") and not (tmp_path / "none").exists()
    assert store.child("a").get("b/one") == b"second"
    store.delete(["a/two", "a/none", "three"])
    assert set(store.entries()) == {"a/b/one"} and not store.exists("a/two") and store.exists("a/b/one")
    assert Store(f"{store.uri}-empty").entries() == {}


def test_an_upload_that_fails_publishes_nothing(store: Store, tmp_path: Path) -> None:
    store.put("checkpoint", b"whole")
    with pytest.raises(StoreError, match="cannot be read"):
        store.put("checkpoint", tmp_path / "removed meanwhile")
    assert store.get("checkpoint") == b"whole"

    large = tmp_path / "large"
    large.write_bytes(bytes(64_000_000))
    client, over = boto3.client("s3"), threading.Event()

    def interrupt() -> None:
        while not over.is_set() and not client.list_multipart_uploads(Bucket=BUCKET).get("Uploads"):
            time.sleep(0.001)
        if not over.is_set():
            _thread.interrupt_main()

    watching = threading.Thread(target=interrupt, daemon=True)
    watching.start()
    with contextlib.suppress(KeyboardInterrupt):
        store.put("checkpoint", large)
        over.set()
        watching.join()  # an interrupt that waits for the upload comes now
    assert len(store.get("checkpoint") or b"") in (5, 64_000_000)
    assert not client.list_multipart_uploads(Bucket=BUCKET).get("Uploads")


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


def test_an_object_is_created_once(store: Store) -> None:
    assert store.create("terms/00001.json", b"mine") and not store.create("terms/00001.json", b"yours")
    assert store.get("terms/00001.json") == b"mine"
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for number in range(5):
            told = [*pool.map(lambda each, n=number: store.create(f"raced/{n}", b"%d" % each), range(8))]
            assert sum(told) == 1 and store.get(f"raced/{number}") == b"%d" % told.index(True)


def test_a_store_without_conditional_writes_is_read_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = type(store._bucket)
    put = bucket.put

    def unconditional(*arguments: Any, mode: str | None = None) -> Any:
        if mode == "create":
            raise NotImplementedError("501 Not Implemented: A header you provided implies functionality NotImplemented")
        return put(*arguments)

    monkeypatch.setattr(bucket, "put", unconditional)
    monkeypatch.setattr("trainables.files.stores.object_store.READ_BACK_SECONDS", 0.0)
    assert store.create("a", b"mine") and not store.create("a", b"yours")
    monkeypatch.setattr("trainables.files.stores.object_store.time.sleep", lambda _: store.put("b", b"theirs"))
    assert not store.create("b", b"mine"), "another put it meanwhile"


def test_a_hiccup_of_the_store_is_waited_out(tmp_path: Path, service: dict[str, str]) -> None:
    failing, naps = 5, []

    def work() -> str:
        nonlocal failing
        failing -= 1
        if failing:
            raise StoreError("out of reach", "wait")
        return "done"

    assert patiently(work, sleep=naps.append) == "done" and len(naps) == 4 and naps[0] < naps[3] <= 10
    clock = _Clock()
    failing = 10**6
    with pytest.raises(StoreError, match="out of reach"):
        patiently(work, clock=clock, sleep=clock.sleep)
    assert clock.now - 1000 >= PATIENCE_SECONDS


class _Drivers:
    """Drivers of one sweep, each on a machine of its own, with one clock."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder, self.clock = store, folder, _Clock()
        self.count = 0

    def take(self) -> tuple[StoreLease, StoredJournal]:
        """A new driver takes the sweep over, once the one before is silent."""
        lease = StoreLease(self.store, "sweep", clock=self.clock, sleep=self.clock.sleep)
        lease.take()
        self.count += 1
        root = self.folder / f"machine-{self.count}"
        fetch(self.store, root, tables=False)
        return lease, StoredJournal(root / "journal", self.store, lease)

    def read(self) -> list[int]:
        """What a reader finds: each record's own number."""
        fetch(self.store, self.folder / "reader", tables=False)
        return [int(str(fields(r)["configuration"])) for r in read_journal(self.folder / "reader" / "journal")]


def _append(journal: StoredJournal, *numbers: int) -> None:
    for number in numbers:
        journal.append(made_body("started", {"configuration": number, "attempt": 1}))


def test_a_driver_that_was_paused_changes_nothing_any_more(store: Store, tmp_path: Path) -> None:
    drivers = _Drivers(store, tmp_path)
    first, journal = drivers.take()
    _append(journal, 0, 1)
    journal.settle()
    second, other = drivers.take()
    _append(other, 102, 103)
    other.settle()
    # It was in the middle of putting a record when it was paused, and goes on where it was.
    _append(journal, 2)
    store.put(first.term.group_name(2, 2), store.get(second.term.group_name(2, 3)) or b"")
    with pytest.raises(LeaseLostError, match=r"has taken the sweep 'sweep' over"):
        journal.settle()
    first.beat()
    with pytest.raises(LeaseLostError):
        first.require()
    _append(other, 104)
    other.settle()
    assert drivers.read() == [0, 1, 102, 103, 104]
    first.release()
    assert store.exists("lease.json"), "it is the other's"


@pytest.mark.parametrize("seed", range(2))
def test_what_was_acted_on_counts(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Drivers write, are paused, are replaced and wake up at random; a reader looks in between."""
    monkeypatch.setattr("sweeper.journal.segments.SEALED", 8)
    draw, drivers = random.Random(seed), _Drivers(store, tmp_path)
    living = [drivers.take()]
    acted: list[int] = []
    for number in range(60):
        drivers.clock.sleep(draw.choice([0.1, 1.0, 6.0]))
        event = draw.random()
        if event < 0.12:
            living.append(drivers.take())
        lease, journal = living[-1] if event < 0.7 else draw.choice(living)
        _append(journal, number)
        if lease is living[-1][0]:
            journal.settle()
            acted.append(number)
            if draw.random() < 0.3:
                journal.seal()
        else:
            with pytest.raises(LeaseLostError):
                journal.settle()
        if draw.random() < 0.2:
            assert drivers.read() == acted
    assert drivers.read() == acted and len(living) > 2


def test_an_unreachable_store_ends_the_sweep(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, journal = _Drivers(store, tmp_path).take()
    _append(journal, 0)
    gone = Store(f"s3://{BUCKET}/x?endpoint_override=http://127.0.0.1:1")
    monkeypatch.setattr(journal, "_store", gone)
    monkeypatch.setattr("trainables.files.stores.object_store.PATIENCE_SECONDS", 0.0)
    with pytest.raises(SweeperError, match=r"cannot be reached.*\n.*sweeper resume s3://"):
        journal.settle()


def test_a_strangers_object_is_not_written_outside(store: Store, tmp_path: Path, service: dict[str, str]) -> None:
    store.put("sweep.yaml", b"samples: 1\n")
    store.put("notes.txt", b"kept there")
    fetch(store, tmp_path / "reader")
    assert sorted(path.name for path in (tmp_path / "reader").iterdir()) == [".store", "journal", "sweep.yaml"]
    client = boto3.client("s3", endpoint_url=service["AWS_ENDPOINT_URL"], aws_access_key_id="t",
                          aws_secret_access_key="t", region_name="us-east-1")  # fmt: skip
    prefix = store.uri.removeprefix(f"s3://{BUCKET}/")
    client.put_object(Bucket=BUCKET, Key=f"{prefix}/../../../../victim/.bashrc", Body=b"echo caught")
    with pytest.raises(StoreError, match=r"contains an object whose name is not a path below it: .*victim/\.bashrc"):
        fetch(store, tmp_path / "reader")
    places = [tmp_path / "reader" / ("../" * up) / "victim" for up in range(5)]
    assert not any(place.resolve().exists() for place in places)


def test_one_driver_a_sweep(store: Store) -> None:
    clock = _Clock()
    first = StoreLease(store, "sweep", clock=clock, sleep=clock.sleep)
    first.take()
    beaten = clock.now

    def beating(seconds: float) -> None:
        nonlocal beaten
        clock.sleep(seconds)
        if clock.now - beaten >= BEAT_SECONDS:
            beaten = clock.now
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


def test_a_sweep_goes_on_from_the_store_alone(store: Store, tmp_path: Path) -> None:
    """Drive in several attempts, each on a fresh machine, with trials that put their tables into the store."""
    sweep = None
    for attempt in range(3):
        machine = tmp_path / f"machine-{attempt}"
        fresh = RandomSweep(machine / "sweep", 0) if sweep is None else _moved(sweep, machine / "sweep")
        if sweep is None:
            fresh.paths.sweep_file.write_text("samples: 8\n")
        sweep = fresh
        with Mirror(sweep.paths, store) as mirror:
            _drive(sweep, mirror, 12 if attempt < 2 else 10_000, tmp_path / f"trials-{attempt}")
        assert not list((machine / "sweep").glob("checkpoints/*"))
        assert not list((machine / "sweep").glob("generations/*/predictions/c*")), "they never pass through the driver"
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
    kept = {f"tables/predictions/{part_name(*key)}" for key in evaluations}
    assert {name: entry.size for name, entry in store.entries("tables").items() if name not in kept} == {
        name: path.stat().st_size for name, path in objects(SweepPaths(copy)).items() if name.startswith("tables/")
    }
    assert kept == {name for name in store.entries("tables") if "/predictions/c" in name}


def _published(store: Store, machine: Path, names: list[str], *, only: bool = False) -> StoreArrivals:
    """A driver on a fresh machine has learnt what there is, and was told what is journaled."""
    kept = StoreArrivals(store, machine)
    kept.begin(store.entries())
    kept.publish(names, only=only)
    kept.work()
    return kept


def test_predictions_are_published_where_they_are(store: Store, tmp_path: Path) -> None:
    one, two, three, four = (part_name("c00001", 0, epoch) for epoch in (1, 3, 9, 27))
    store.put_all({f"incoming/predictions/{name}": name.encode() for name in (one, two, three)})
    assert _published(store, tmp_path, [one]).lost() == []
    assert {*store.entries("tables")} == {f"tables/predictions/{one}"}
    # Killed between the copy and the removal: it is there twice.
    store.put(f"tables/predictions/{two}", two.encode())
    assert _published(store, tmp_path, [one, two, four]).lost() == [four]
    assert {*store.entries("tables")} == {f"tables/predictions/{name}" for name in (one, two)}
    # The journal was cut off before the second: readers must not see it until it is measured again.
    _published(store, tmp_path, [one], only=True)
    assert {*store.entries("tables")} == {f"tables/predictions/{one}"}
    # That of an imported trial comes from the driver's machine.
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions" / four).write_text(four)
    assert _published(store, tmp_path, [one, two, three, four], only=True).lost() == []
    found = store.entries("tables")
    assert {name: store.get(name) for name in found} == {
        f"tables/predictions/{name}": name.encode() for name in (one, two, three, four)
    }
    assert not [*(tmp_path / "predictions").iterdir()] and not store.entries("incoming")


def test_predictions_that_the_store_has_lost_are_named(store: Store, tmp_path: Path, service: dict[str, str]) -> None:
    names = [part_name(trial, 0, 1) for trial in ("c00001", "c00002")]
    logits, targets = {"val": np.zeros((3, 2))}, {"val": np.zeros(3, int)}
    path = write_predictions(tmp_path, ("c00001", 0, 1), logits, targets)
    store.put(f"tables/predictions/{path.name}", path)
    store.put("sweep.yaml", b"samples: 2\n")
    schema = table_schemas({}, 2, ())["trials"].with_metadata(FileList({"predictions": {*names}}).metadata())
    store.put("tables/trials/trials.parquet", write_parquet(tmp_path / "trials.parquet", schema, []))
    found, query = load(store.uri), "SELECT count(*) AS n FROM predictions"
    assert found.rows(query, trials=["c00001"]) == [{"n": 3}]
    for trials in (None, ["c00002"]):
        with pytest.raises(LostFilesError) as caught:
            found.rows(query, trials=trials)
        assert caught.value.absent == {"predictions": names[1:]}


def test_predictions_are_fetched_when_they_are_read(store: Store, tmp_path: Path, service: dict[str, str]) -> None:
    for trial in ("c00001", "c00002"):
        logits, targets = {"val": np.zeros((3, 2))}, {"val": np.zeros(3, int)}
        path = write_predictions(tmp_path / trial, (trial, 0, 1), logits, targets)
        store.put(f"tables/predictions/{path.name}", path)
    store.put("sweep.yaml", b"samples: 2\n")
    for table in TABLES:
        empty = write_parquet(tmp_path / f"{table}.parquet", table_schemas({}, 2, ())[table], [])
        store.put(f"tables/{table}/empty.parquet", empty)
    found = load(store.uri)

    def here() -> set[str]:
        return {path.name[:6] for path in (found.folder / "tables" / "predictions").glob("c*")}

    assert found.rows("SELECT count(*) AS n FROM reliability") == [{"n": 0}] and here() == set()
    query = "SELECT count(*) AS n FROM predictions"
    assert found.rows(f"{query} WHERE trial = 'c00002'", trials=["c00002"]) == [{"n": 3}] and here() == {"c00002"}
    with found.snapshot() as frozen:
        assert frozen.rows(query) == [{"n": 6}]
    again = write_predictions(
        tmp_path / "again", ("c00001", 0, 1), {"val": np.zeros((5, 2))}, {"val": np.zeros(5, int)}
    )
    store.put(f"tables/predictions/{again.name}", again)
    store.delete(["tables/predictions/c00002-r0-e00001.parquet"])
    assert load(store.uri).rows(query) == [{"n": 5}]
    shutil.copytree(found.folder, tmp_path / "elsewhere", symlinks=True)
    (tmp_path / "elsewhere" / "tables" / "predictions" / again.name).unlink()
    assert load(tmp_path / "elsewhere").rows(query) == [{"n": 0}], "its address counts in the cache alone"


def _moved(sweep: RandomSweep, root: Path) -> RandomSweep:
    """Return the sweep on another machine, where nothing of it is."""
    sweep.root, sweep.paths = root, SweepPaths(root)
    return sweep


def _drive(sweep: RandomSweep, mirror: Mirror, steps: int, trials: Path) -> None:
    """Journal random events as a driver does; trials write where they run and put what they wrote into the store."""
    journal: Journal = mirror.journal()
    sink = ParquetSink(
        sweep.paths, sweep.schemas, sweep.configurations, ReplicateSeeds(sweep.seed, sweep.replicates),
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
    there.keep_newest(1)
    assert set(store.entries()) == {"checkpoints/c00003/r1/e00003.pt"}


def test_reading_fetches_only_what_has_changed(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    record = "journal/0000000000-attempt.json"
    body = made_body("attempt", {"attempt": 1, "host": "h", "pid": 1})
    content = Record(0, 0.0, body).to_bytes()
    store.put_all({"sweep.yaml": b"samples: 1\n", record: content, "tables/trials/x.parquet": b"2"})
    fetch(store, source)
    before = {path: path.stat().st_ino for path in source.rglob("*") if path.is_file() and not path.is_symlink()}
    store.put("tables/trials/x.parquet", b"three")
    store.delete([record])
    fetch(store, source)
    assert (source / "tables" / "trials" / "x.parquet").read_bytes() == b"three"
    assert not [*read_journal(source / "journal")]
    assert (source / "sweep.yaml").stat().st_ino == before[source / "sweep.yaml"]
    shutil.rmtree(source)
    with contextlib.suppress(FileNotFoundError):
        fetch(store, source, tables=False)
    assert not (source / "tables").exists()
