"""A real sweep on a real Ray, from the command line to tables, MLflow and report."""

import json
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from mlflow.tracking import MlflowClient

from sweeper.core.ids import TABLES, SweepPaths
from sweeper.journal.state import ENDED
from sweeper.results import load
from sweeper.tracking.mlflow.pages import questions
from tests.patience import patient
from tests.running import in_process, metrics_by_key, reports, same, started, sweeper, wait_for_records, write_space
from tests.sweeper.records import fields

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Finished:
    """A finished sweep, what its command printed, what an onlooker saw, and its folder."""

    folder: Path
    paths: SweepPaths
    stdout: str
    stderr: str
    watched: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("end-to-end")
    paths = SweepPaths(folder / "results" / "small")
    with started("run", write_space(folder), cwd=folder) as process:
        wait_for_records(paths, 1, process)
        watched = sweeper("status", "small", "--watch", cwd=folder)
        code = process.wait(patient(60))
    stdout, stderr = (folder / "driver.out").read_text(), (folder / "driver.err").read_text()
    assert code == 0, stdout + stderr
    synced = sweeper("manage", "sync", "small", cwd=folder)  # the run waits for MLflow for 30 s at least, not longer
    assert synced.returncode == 0, synced.stderr
    return Finished(folder, paths, stdout, stderr, watched)


def test_an_onlooker_sees_it_until_its_driver_has_left(finished: Finished) -> None:
    assert finished.watched.returncode == 0, finished.watched.stderr
    lines = finished.watched.stdout.splitlines()
    # A quick sweep trains its last trial before the onlooker has started.
    assert lines[0].startswith(("small · running · process", "small · finished, writing tables")), lines[0]
    assert " · process " in lines[0], "its driver was there"
    assert lines[-1].startswith("small · finished · ") and "best val_nll" in lines[-1] and "epochs/s" in lines[-1]
    assert "\x1b[" not in finished.watched.stdout


def test_every_trial_ends_once(finished: Finished) -> None:
    statuses = load(finished.paths.root).rows("SELECT status, count(*) AS n FROM trials GROUP BY status")
    assert sum(row["n"] for row in statuses) == 20
    assert {row["status"] for row in statuses} <= {"completed", "early_stopped"}
    ended = [fields(r)["configuration"] for r in reports(finished.paths) if fields(r)["status"] in ENDED]
    assert sorted(ended) == list(range(10))


def test_every_table_is_filled_and_agrees_with_the_journal(finished: Finished) -> None:
    results = load(finished.paths.root)
    for table in TABLES:
        assert results.rows(f"SELECT count(*) AS n FROM {table}")[0]["n"] > 0, table
    journaled = metrics_by_key(reports(finished.paths))
    for row in results.rows("SELECT * FROM evaluations"):
        expected = journaled[int(row["trial"][1:]), row["replicate"], row["epoch"], row["split"]]
        for name, value in expected.items():
            assert same(row[name], value), (row["trial"], name)
    rungs = results.rows("SELECT trial, epoch FROM evaluations WHERE split = 'val' AND epoch = 1 AND replicate = 0")
    assert len(rungs) == 10, "every configuration has an evaluation, also those stopped at the first rung"


def test_predictions_give_the_recorded_metrics_again(finished: Finished) -> None:
    query = """
        WITH probabilities AS (
            SELECT trial, replicate, epoch, split, sample, target,
                   list_transform(logits, lambda z: exp(z::DOUBLE - list_max(logits))) AS e FROM predictions)
        SELECT p.trial, max(e.nll) AS stored,
               avg(-ln(p.e[p.target + 1] / list_sum(p.e))) AS again
        FROM probabilities p JOIN evaluations e USING (trial, replicate, epoch, split)
        GROUP BY p.trial, p.replicate, p.epoch, p.split"""
    rows = load(finished.paths.root).rows(query)
    assert len(rows) > 20
    for row in rows:
        assert row["stored"] == pytest.approx(row["again"], rel=1e-9), row


def test_chatter_is_in_the_log_and_not_on_the_screen(finished: Finished) -> None:
    assert finished.paths.log.exists()
    for noise in ("ray", "Tune Status", "mlflow.store", "Warning"):
        assert noise not in finished.stderr.replace("starting Ray", "")


def test_the_folder_says_what_ran(finished: Finished) -> None:
    manifest = json.loads(finished.paths.manifest.read_text())
    assert manifest["versions"]["torch"]
    assert manifest["dataset"]["split_hash"]
    assert manifest["hardware"]["cores"] >= 1
    assert yaml.safe_load(finished.paths.sweep_file.read_text())["samples"] == 10
    assert finished.paths.report.stat().st_size > 10_000


def test_only_the_best_checkpoint_is_left(finished: Finished) -> None:
    left = [folder.name for folder in finished.paths.checkpoints.iterdir()]
    best = load(finished.paths.root).rows(
        "SELECT trial FROM trials WHERE status = 'completed' GROUP BY trial ORDER BY avg(objective) LIMIT 1"
    )
    assert left == [best[0]["trial"]]


def test_mlflow_holds_the_tree(finished: Finished) -> None:
    with closing(sqlite3.connect(finished.folder / "results" / "mlflow.db")) as store:
        runs = store.execute("SELECT status, count(*) FROM runs GROUP BY status").fetchall()
        children = store.execute("SELECT count(*) FROM tags WHERE key = 'mlflow.parentRunId'").fetchone()[0]
    assert runs == [("FINISHED", 11)]
    assert children == 10


ASKED = {
    "best calibrated": "status = 'completed'",
    "which γ": "status = 'completed' AND config_loss_name = 'focal'",
    "accurate and calibrated": "status = 'completed' AND a > 0.95 AND e < 0.03",
    "lower curvature": "status = 'completed' AND h > 0",
    "temperature scaling": "status = 'completed' AND t >= 0",
    "stopped early": "status = 'early_stopped'",
    "first rung": "stop_rung = 1",
    "failed": "status = 'failed'",
}
"""Words of each question → what its filter means in SQL, on means over replicates."""


def test_every_documented_filter_finds_in_mlflow_what_the_tables_say(finished: Finished) -> None:
    client = MlflowClient(f"sqlite:///{finished.folder / 'results' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("small")
    asked = questions(["cross_entropy", "focal", "selective_risk"], "val_nll", rung=1)
    for question in asked:
        assert f"`{question.filter}`" in experiment.tags["mlflow.note.content"]
        found = client.search_runs([experiment.experiment_id], question.filter, max_results=1000)
        if "sweep itself" in question.words:
            assert [run.info.run_name for run in found] == ["small"]
            continue
        (condition,) = (sql for words, sql in ASKED.items() if words in question.words)
        expected = load(finished.paths.root).rows(
            "SELECT trial FROM (SELECT trial, status, stop_rung, config_loss_name, "
            "avg(accuracy) FILTER (split = 'test') AS a, avg(ece) FILTER (split = 'test') AS e, "
            "avg(posthoc_temperature_ece) FILTER (split = 'test') AS t, "
            "avg(hessian_cross_entropy_lambda_max) FILTER (split = 'val') AS h "
            f"FROM final GROUP BY ALL) WHERE {condition}"
        )
        assert {run.data.tags["trial"] for run in found} == {row["trial"] for row in expected}, question.words
    assert len(asked) == len(ASKED) + 1


def test_the_same_seed_gives_the_same_metrics_and_a_new_name(tmp_path: Path) -> None:
    space, metrics = write_space(tmp_path), []
    for name in ("small", "small-2"):
        done = in_process("run", space, "--no-mlflow", "--set", "samples=4", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        metrics.append(metrics_by_key(reports(SweepPaths(tmp_path / "results" / name))))
    before, after = metrics
    assert before.keys() == after.keys() and len(before) > 24
    for key, row in before.items():
        for name, value in row.items():
            assert same(value, after[key][name]), (key, name)
