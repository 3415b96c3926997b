"""Offline files of Weights & Biases against the journal, read record by record."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sweeper.core.errors import SweeperError
from sweeper.core.ids import trial_name
from sweeper.journal.journal import read_journal
from sweeper.journal.state import fold
from sweeper.tracking.choice import checked
from sweeper.tracking.follower import Follower
from sweeper.tracking.sync import answer
from tests.faults.processes import wait_until
from tests.mlflow_stores import by_column, expected_points, free_port
from tests.patience import patient
from tests.running import sweeper
from tests.sweeper.tracking.test_sync import drive, with_tables

#: A file is a header of 7 bytes and blocks; a record's parts carry a checksum, their length and their kind.
HEADER, BLOCK, PART = 7, 2**15, struct.Struct("<IHB")
WHOLE, LAST = 1, 4


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))


def records_of(file: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record  # two seconds, which only these tests shall wait

    content, at, begun = file.read_bytes(), HEADER, b""
    while at + PART.size <= len(content):
        if (left := BLOCK - at % BLOCK) < PART.size:
            at += left
            continue
        _, length, kind = PART.unpack_from(content, at)
        begun += content[at + PART.size : at + PART.size + length]
        at += PART.size + length
        if kind in (WHOLE, LAST):
            yield Record.FromString(begun)
            begun = b""


def run_of(file: Path) -> dict[str, Any]:
    """The name, group, config, notes, summary and history {(key, step): value} of one run."""
    run: dict[str, Any] = {"summary": {}, "history": {}}
    for record in records_of(file):
        if record.HasField("run"):
            config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            run |= {"name": record.run.display_name, "group": record.run.run_group, "config": config}
            run["notes"] = record.run.notes
        for item in record.summary.update:
            run["summary"]["".join([item.key, *item.nested_key])] = json.loads(item.value_json)
        items = {"".join([i.key, *i.nested_key]): json.loads(i.value_json) for i in record.history.item}
        run["history"] |= {(key, items["_step"]): value for key, value in items.items() if key[0] != "_"}
    return run


def assert_complete(sweep: Any) -> None:
    """Compare names, hyperparameters, statuses and the value of each metric at each epoch with the journal's."""
    journal = list(read_journal(sweep.paths.journal))
    state, points = fold(journal, sweep.count), expected_points(journal)
    runs = [run_of(file) for file in sweep.root.glob("wandb/offline-run-*/*.wandb")]
    for index, metrics in points.items():
        (run,) = (run for run in runs if trial_name(index) in run["name"])
        keys = by_column({key for key, _ in run["history"]})
        assert keys.keys() == metrics.keys() and run["group"] == sweep.paths.name
        for name, expected in metrics.items():
            values = {step: value for (key, step), value in run["history"].items() if key == keys[name]}
            newest = {step: value for step, _, value in expected}
            assert values.keys() == newest.keys()
            for step, value in newest.items():
                assert value == -1.0 or values[step] == pytest.approx(value, rel=1e-6, abs=1e-9)
        assert run["summary"]["status"] == state.trials[index].status
        assert run["config"]["config_optimizer_lr"] == sweep.configurations[index]["optimizer"]["lr"]


@pytest.mark.integration
def test_a_killed_follower_leaves_one_complete_run_per_trial(random_sweep: Any) -> None:
    sweep = random_sweep(3, name="offline", count=3)
    with Follower(sweep.paths, "wandb:") as follower:
        drive(sweep, 5)
        wait_until(lambda: any(sweep.root.glob("wandb/offline-run-*/*.wandb")))
        follower._process.kill()
        follower._process.wait()
        follower.keep_alive()
        drive(sweep)
        (said,) = follower.wait(patient(60))
        assert said.endswith("Weights & Biases is complete")
    assert_complete(sweep)


@pytest.mark.integration
def test_sync_ends_its_runs_beside_a_service_of_ours_and_notes_the_answer(random_sweep: Any, tmp_path: Path) -> None:
    import wandb

    sweep = with_tables(random_sweep(3, name="offline", count=3))
    # Child processes find this service in the environment, and nothing ends it when they do.
    own = wandb.init(mode="offline", dir=tmp_path, settings=wandb.Settings(console="off", silent=True))
    try:
        output = ["--output", str(sweep.root.parent)]
        done = sweeper("manage", "sync", sweep.paths.name, "--tracking-uri", "wandb:", *output, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert_complete(sweep)
        notes = [run_of(file)["notes"] for file in sweep.root.glob("wandb/offline-run-*/*.wandb")]
        assert [note for note in notes if note] == [answer(sweep.root)[0]]
    finally:
        own.finish()
        wandb.teardown()


def test_a_missing_key_is_refused_before_the_sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import wandb

    assert checked("wandb:me/calibration") == "wandb:me/calibration"
    wandb.teardown()  # it read the environment once
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(SweeperError, match="has no API key"):
        checked("wandb:")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_HTTP_TIMEOUT", "1")
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port()}")
    wandb.teardown()
    with pytest.raises(SweeperError, match="does not take the API key"):
        checked("wandb:")
