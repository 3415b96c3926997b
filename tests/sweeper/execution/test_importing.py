"""Predictions from elsewhere: what a file must hold, a sweep as any other made of it, and the documented callbacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import search_spaces
import sweeper
from sweeper.core.errors import SweeperError
from sweeper.execution.importing import read_predictions
from trainables.metrics import evaluate_probabilities

CLASSES, SIZES = 4, {"val": 90, "test": 60}
DOCUMENT = Path(search_spaces.__file__).parents[1] / "docs" / "your_own_loop.md"


def written(path, change=lambda row: row, keep=lambda row: True):
    """Write a file of three configurations, two seeds, two epochs and two splits; return its rows."""
    random = np.random.RandomState(0)
    targets = {split: random.randint(0, CLASSES, size) for split, size in SIZES.items()}
    rows = []
    runs = [(lr, loss) for lr, loss in ((0.1, "cross_entropy"), (0.1, "focal"), (0.3, "cross_entropy"))]
    for lr, loss in runs:
        for seed, epoch, split in ((s, e, p) for s in (3, 7) for e in (2, 9) for p in SIZES):
            logits = random.randn(SIZES[split], CLASSES)
            logits[np.arange(SIZES[split]), targets[split]] += 1 + epoch / 9 + 3 * lr
            for sample, target in enumerate(targets[split]):
                run = {"lr": lr, "loss": loss, "loss_gamma": 2.0 if loss == "focal" else None, "seed": seed}
                place = {"epoch": epoch, "split": split, "sample": sample, "target": int(target)}
                row = change({**run, **place, "logits": logits[sample].astype(np.float32).tolist()})
                rows += [row] if keep(row) else []
    random.shuffle(rows)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return rows


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported")
    rows = written(folder / "predictions.parquet")
    settings = {"evaluation.bootstrap": 0}
    done = sweeper.import_(folder / "predictions.parquet", set=settings, output=folder, mlflow=False)
    return done, rows, folder


def test_tables_are_those_of_the_predictions(imported):
    done, rows, _ = imported
    assert done.complete and done.name == "predictions" and done.counts["completed"] == 3
    trials = done.results.sql(
        "SELECT trial, seed, config_lr, config_loss_name, config_loss_gamma FROM trials ORDER BY ALL"
    )
    own = dict.fromkeys((r["lr"], r["loss"], r["loss_gamma"], r["seed"]) for r in rows)
    found = [(r["config_lr"], r["config_loss_name"], r["config_loss_gamma"], r["seed"]) for r in trials.to_pylist()]
    assert sorted(map(repr, found)) == sorted(map(repr, own))
    query = "SELECT * FROM evaluations JOIN trials USING (trial, replicate) WHERE config_loss_name = 'focal'"
    evaluated = [r for r in done.results.sql(query).to_pylist() if (r["seed"], r["epoch"]) == (7, 9)]
    for split in SIZES:
        mine = [r for r in rows if (r["loss"], r["seed"], r["epoch"], r["split"]) == ("focal", 7, 9, split)]
        mine = sorted(mine, key=lambda r: r["sample"])
        logits = np.array([r["logits"] for r in mine], np.float64)
        p = np.exp(logits - logits.max(1, keepdims=True))
        expected = evaluate_probabilities(p / p.sum(1, keepdims=True), np.array([r["target"] for r in mine]))
        (row,) = [r for r in evaluated if r["split"] == split]
        assert row["nll"] == pytest.approx(expected["nll"], rel=1e-6)
        assert row["ece"] == pytest.approx(expected["ece"], abs=1e-6)


def test_what_reads_a_sweep_reads_it(imported):
    _, _, folder = imported
    assert "lr" in (folder / "predictions" / "report.html").read_text()
    assert not sweeper.status("predictions", audit=True, output=folder).value
    assert sweeper.recalibrate("predictions", method=["vector"], output=folder) is not None
    assert sweeper.conformal("predictions", output=folder) is not None
    with pytest.raises(SweeperError, match="predictions that were imported, and no network"):
        sweeper.export("predictions", to=folder / "program", output=folder)
    assert sweeper.resume("predictions", output=folder, mlflow=False).complete
    assert sweeper.compare("predictions", "predictions", output=folder) is not None


def without(*names):
    return lambda row: {key: value for key, value in row.items() if key not in names}


@pytest.mark.parametrize(
    ("change", "keep", "sentence"),
    [
        (without("logits"), lambda row: True, "has no column logits"),
        (without("seed", "lr"), lambda row: True, "is there twice with the same seed"),
        (
            lambda row: {**row, "logits": row["logits"][: 3 + (row["sample"] > 3)]},
            lambda row: True,
            "rows of .* have 3, 4 logits",
        ),
        (lambda row: {**row, "logits": 1.0}, lambda row: True, "logits of .* are double"),
        (lambda row: {**row, "layers": [1, 2]}, lambda row: True, "'layers' of .* is no hyperparameter"),
        (lambda row: row, lambda row: row["split"] != "val", "has no split val"),
        (
            lambda row: row,
            lambda row: (row["lr"], row["epoch"]) != (0.3, 9),
            "lacks split .* at epoch 9, which others have",
        ),
        (lambda row: row, lambda row: (row["lr"], row["split"]) != (0.3, "test"), "lacks split test at epoch"),
        (lambda row: {**row, "target": 0} if row["lr"] == 0.3 else row, lambda row: True, "has other targets of"),
    ],
)
def test_what_a_file_lacks_is_one_sentence(tmp_path, change, keep, sentence):
    written(tmp_path / "bad.parquet", change, keep)
    with pytest.raises(SweeperError, match=sentence):
        read_predictions(tmp_path / "bad.parquet")


def test_no_parquet_is_one_sentence(tmp_path):
    (tmp_path / "bad.parquet").write_text("lr,target\n")
    with pytest.raises(SweeperError, match="cannot be read as Parquet"):
        read_predictions(tmp_path / "bad.parquet")
    with pytest.raises(SweeperError, match=r"none\.parquet cannot be read as Parquet"):
        read_predictions(tmp_path / "none.parquet")


def test_names_that_are_no_loss_of_ours_stay_the_files_own(tmp_path):
    written(tmp_path / "own.parquet", lambda row: {**row, "loss": f"my_{row['loss']}", "optimizer": "sgd"})
    found = {repr(each["own_loss"]) + str(each["lr"]): each for each in _configurations(tmp_path / "own.parquet")}
    own, optimizer = {"name": "own"}, {"name": "sgd"}
    expected = {"loss": own, "architecture": own, "optimizer": optimizer, "own_loss": "my_cross_entropy", "lr": 0.1}
    assert found["'my_cross_entropy'0.1"] == expected
    assert found["'my_focal'0.1"]["own_loss_gamma"] == 2.0


def test_a_hyperparameter_that_only_some_runs_have_is_imported(tmp_path):
    def change(row):
        lr = None if row["loss"] == "cross_entropy" and row["lr"] == 0.1 else row["lr"]
        return {**row, "lr": lr, "loss": "my_loss", "loss_gamma": None}

    written(tmp_path / "some.parquet", change)
    done = sweeper.import_(tmp_path / "some.parquet", set={"evaluation.bootstrap": 0}, output=tmp_path, mlflow=False)
    rates = done.results.sql("SELECT DISTINCT config_lr FROM trials ORDER BY config_lr").to_pylist()
    assert [row["config_lr"] for row in rates] == [0.1, 0.3, None]


def _configurations(path):
    return read_predictions(path).configurations


def test_a_seed_that_is_missing_or_not_finite_is_a_replicate_that_failed(tmp_path):
    def change(row):
        gone = (row["lr"], row["seed"], row["epoch"]) == (0.3, 3, 9)
        return {**row, "logits": [float("nan")] * CLASSES} if gone else row

    written(tmp_path / "some.parquet", change, lambda row: (row["loss"], row["seed"]) != ("focal", 7))
    done = sweeper.import_(tmp_path / "some.parquet", set={"evaluation.bootstrap": 0}, output=tmp_path, mlflow=False)
    query = "SELECT error FROM trials WHERE error IS NOT NULL ORDER BY error"
    errors = [row["error"] for row in done.results.sql(query).to_pylist()]
    assert errors == ["logits of seed 3 are not finite in epoch 9", "the file has no seed 7"]


def documented(title):
    text = DOCUMENT.read_text()
    return text.split(f"<!-- {title} -->\n```python\n")[1].split("```")[0]


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")  # of the libraries; a warning of theirs cannot be sent to xdist's main process
def test_the_trainers_callback_writes_a_file_that_is_imported(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    from search_spaces.examples.own_trainer import Digits, tiny

    monkeypatch.chdir(tmp_path)
    parts = {"train": Digits("train"), "val": Digits("val"), "test": Digits("test")}
    arguments = {"output_dir": "out", "num_train_epochs": 2, "save_strategy": "no", "report_to": [], "use_cpu": True}
    known = {name: getattr(transformers, name) for name in ("Trainer", "TrainerCallback", "TrainingArguments")}
    exec(
        documented("a Trainer's predictions"),
        {**known, **parts, "tiny": tiny, "arguments": arguments, "pa": pa, "pq": pq},
    )
    found = read_predictions(tmp_path / "predictions.parquet")
    assert (found.epochs, found.seeds, found.splits, len(found.configurations)) == ([1, 2], [1], ["val", "test"], 2)
    assert sweeper.import_(tmp_path / "predictions.parquet", output=tmp_path, mlflow=False).complete


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
def test_lightnings_callback_writes_a_file_that_is_imported(tmp_path, monkeypatch):
    lightning = pytest.importorskip("lightning")
    from search_spaces.examples.own_lightning import Net, Wine

    class Validated(Net):
        def validation_step(self, batch, number):
            return None

    monkeypatch.chdir(tmp_path)
    options = {"accelerator": "cpu", "max_epochs": 2, "logger": False, "enable_checkpointing": False}
    known = {"lightning": lightning, "Net": Validated, "Wine": Wine, "options": options, "pa": pa, "pq": pq}
    exec(documented("Lightning's predictions"), known)
    found = read_predictions(tmp_path / "predictions.parquet")
    assert (found.epochs, found.splits, len(found.targets)) == ([1, 2], ["val"], 160)
    assert sweeper.import_(tmp_path / "predictions.parquet", output=tmp_path, mlflow=False).complete
