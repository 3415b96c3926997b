"""Predictions from elsewhere: what a file must hold, a sweep as any other made of it, and the documented callbacks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

import search_spaces
import sweeper
from sweeper.core.errors import SweeperError
from sweeper.execution.predictions_file import read_predictions
from sweeper.execution.replay import SOURCE
from sweeper.reporting.tables import posthoc_tables
from sweeper.results.posthoc import posthoc_measurements
from tests.sweeper.execution.prediction_rows import CLASSES, SIZES, written
from tests.trainables.predictions import drawn_predictions
from trainables.metrics import evaluate_probabilities, softmax64
from trainables.metrics.refinement import folds_of
from trainables.posthoc import POSTHOC, fit
from trainables.training.own_loop import LoopReplicate

DOCS = Path(search_spaces.__file__).parents[1] / "docs"


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


def test_a_hyperparameter_that_only_some_runs_have_is_imported(tmp_path):
    def change(row):
        lr = None if row["loss"] == "cross_entropy" and row["lr"] == 0.1 else row["lr"]
        return {**row, "lr": lr, "loss": "my_loss", "loss_gamma": None}

    written(tmp_path / "some.parquet", change)
    done = sweeper.import_(tmp_path / "some.parquet", set={"evaluation.bootstrap": 0}, output=tmp_path, mlflow=False)
    rates = done.results.sql("SELECT DISTINCT config_lr FROM trials ORDER BY config_lr").to_pylist()
    assert [row["config_lr"] for row in rates] == [0.1, 0.3, None]


def test_a_seed_that_is_missing_or_not_finite_is_a_replicate_that_failed(tmp_path):
    def change(row):
        gone = (row["lr"], row["seed"], row["epoch"]) == (0.3, 3, 9)
        return {**row, "logits": [float("nan")] * CLASSES} if gone else row

    written(tmp_path / "some.parquet", change, lambda row: (row["loss"], row["seed"]) != ("focal", 7))
    done = sweeper.import_(tmp_path / "some.parquet", set={"evaluation.bootstrap": 0}, output=tmp_path, mlflow=False)
    query = "SELECT error FROM trials WHERE error IS NOT NULL ORDER BY error"
    errors = [row["error"] for row in done.results.sql(query).to_pylist()]
    assert errors == ["logits of seed 3 are not finite in epoch 9", "the file has no seed 7"]


def documented(page, title):
    return (DOCS / page).read_text().split(f"<!-- {title} -->\n```python\n")[1].split("```")[0]


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
        documented("hugging_face.md", "a Trainer's predictions"),
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
    exec(documented("lightning.md", "Lightning's predictions"), known)
    found = read_predictions(tmp_path / "predictions.parquet")
    assert (found.epochs, found.splits, len(found.targets)) == ([1, 2], ["val"], 160)
    assert sweeper.import_(tmp_path / "predictions.parquet", output=tmp_path, mlflow=False).complete


@pytest.mark.parametrize(
    ("change", "settings", "sentence"),
    [
        (lambda row: row, {"evaluation.bins": 70}, "60 samples are fewer than 70 bins"),
        (lambda row: row, {"evaluation.splits": ["val", "ood"]}, "ood"),
        (lambda row: {**row, "target": 9}, {}, "target is 9"),
    ],
)
def test_nothing_stays_of_an_import_that_is_refused(tmp_path, change, settings, sentence):
    written(tmp_path / "file.parquet", change)
    with pytest.raises(SweeperError, match=sentence):
        sweeper.import_(tmp_path / "file.parquet", set=settings, output=tmp_path / "sweeps", mlflow=False)
    assert not (tmp_path / "sweeps").exists()


def test_probabilities_of_zero_are_measured_and_recalibrated(tmp_path):
    def change(row):
        votes = np.where(np.arange(CLASSES) == (row["target"] + 1) % CLASSES, 0.0, np.exp(row["logits"]))
        return {**{key: row[key] for key in row if key != "logits"}, "probabilities": (votes / votes.sum()).tolist()}

    rows = written(tmp_path / "p.parquet", change)
    settings = {"evaluation.bootstrap": 0, "evaluation.posthoc": ["temperature", "isotonic"]}
    done = sweeper.import_(tmp_path / "p.parquet", set=settings, output=tmp_path, mlflow=False)
    assert done.complete
    chosen = [r for r in rows if (r["loss"], r["seed"], r["epoch"], r["split"]) == ("focal", 7, 9, "test")]
    found = evaluate_probabilities([r["probabilities"] for r in chosen], np.array([r["target"] for r in chosen]))
    query = (
        "SELECT ece, nll, posthoc_temperature_nll FROM evaluations JOIN trials USING (trial, replicate) "
        "WHERE config_loss_name = 'focal' AND seed = 7 AND epoch = 9 AND split = 'test'"
    )
    (row,) = done.results.sql(query).to_pylist()
    assert (row["ece"], row["nll"]) == pytest.approx((found["ece"], found["nll"]), abs=1e-6)
    assert np.isfinite(row["posthoc_temperature_nll"])
    assert sweeper.recalibrate("p", method=["venn_abers"], output=tmp_path) is not None
    assert sweeper.conformal("p", output=tmp_path) is not None


def test_half_precision_is_recalibrated_by_every_method_or_has_its_reason(tmp_path):
    scores, arrays = {}, {}
    for seed, split in enumerate(("val", "test")):
        logits, arrays[f"{split}_labels"] = drawn_predictions(seed, 60, 3, 3)
        scores[split] = softmax64(20 * logits).astype(np.float16)
        arrays[f"{split}_probabilities"] = scores[split]
    assert any((values == 0).any() for values in scores.values())
    np.savez(tmp_path / "half.npz", **arrays)
    methods = sorted({*POSTHOC} - {"focal_map"})  # without a γ of the loss there is nothing to map by
    settings = {"evaluation.bootstrap": 0, "evaluation.posthoc": methods}
    done = sweeper.import_(tmp_path / "half.npz", set=settings, output=tmp_path, mlflow=False)
    assert done.complete
    for row in done.results.sql("SELECT * FROM evaluations").to_pylist():
        for method in methods:
            nll, reason = row[f"posthoc_{method}_nll"], row[f"posthoc_{method}_unavailable"]
            assert reason if nll is None else np.isfinite(nll), method


def test_cross_fitting_measures_every_sample_after_fits_on_the_others(tmp_path):
    logits, targets = drawn_predictions(0, 90, 3, 3)
    np.savez(tmp_path / "few.npz", logits=logits, labels=targets)
    settings = {"evaluation.bootstrap": 0, "evaluation.posthoc": ["temperature", "platt"]}
    done = sweeper.import_(tmp_path / "few.npz", cross_fit=True, set=settings, output=tmp_path, mlflow=False)
    again = sweeper.recalibrate("few", method=["platt", "beta"], output=tmp_path).value
    rows, fold = posthoc_measurements(done.results).rows, folds_of(targets)
    assert {(row["method"], row["split"]) for row in rows} == {
        (m, "val") for m in ("none", "temperature", "platt", "beta")
    }
    for method in ("temperature", "platt", "beta"):
        probabilities = np.empty((90, 3))
        for held_out in (fold == number for number in range(5)):
            probabilities[held_out] = fit(method, logits[~held_out], targets[~held_out])(logits[held_out])
        expected = evaluate_probabilities(probabilities, targets)
        (row,) = [row for row in rows if row["method"] == method]
        assert (row["ece"], row["nll"]) == pytest.approx((expected["ece"], expected["nll"]), abs=1e-9)
    known = [(effect.request.method, effect.split, effect.free, effect.samples) for effect in again.effects]
    assert known == [("platt", "val", 3, 90), ("beta", "val", 4.5, 90)]
    assert posthoc_tables(done.results).split == "val"
    with pytest.raises(SweeperError) as refused:  # to wait would not help
        sweeper.compare("few", by="posthoc", output=tmp_path)
    assert "the split test" in str(refused.value)


def test_weights_are_measured(tmp_path):
    logits, targets = drawn_predictions(0, 80, 3, 3)
    weights = np.random.default_rng(0).uniform(0.5, 2, 80)
    split = np.where(np.arange(80) < 40, "val", "test")
    np.savez(tmp_path / "w.npz", logits=logits, labels=targets, weights=weights, split=split, notes=np.array(["x"] * 3))
    settings = {"evaluation.bootstrap": 0, "evaluation.posthoc": ["temperature"]}
    done = sweeper.import_(tmp_path / "w.npz", set=settings, output=tmp_path, mlflow=False)
    (row,) = done.results.rows("SELECT * FROM evaluations WHERE split = 'test'")
    losses = -log_softmax(logits[40:].astype(np.float64), axis=1)[np.arange(40), targets[40:]]
    assert row["nll"] == pytest.approx(losses.mean(), abs=1e-6)
    assert row["weighted_nll"] == pytest.approx(np.average(losses, weights=weights[40:]), abs=1e-6)

    def validation_nll(temperature):
        scaled = log_softmax(logits[:40].astype(np.float64) / temperature, axis=1)
        return -scaled[np.arange(40), targets[:40]].mean()

    best = minimize_scalar(validation_nll, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-9}).x
    assert row["posthoc_temperature_temperature"] == pytest.approx(best, rel=1e-4)
    assert [note for note in done.notes if "notes" in note] == ["not used: notes"]


@pytest.fixture
def interrupted(tmp_path):
    """Return the folder of an import that SIGTERM stopped after its first evaluation."""
    rows = written(tmp_path / "predictions.parquet")
    whole, stopped = LoopReplicate.evaluate, []

    def evaluate(replicate, *given):
        if not stopped:
            stopped.append(os.kill(os.getpid(), signal.SIGTERM))
        return whole(replicate, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoopReplicate, "evaluate", evaluate)
        done = sweeper.import_(
            tmp_path / "predictions.parquet", set={"evaluation.bootstrap": 0}, output=tmp_path, mlflow=False
        )
    assert (done.outcome, done.unfinished, done.results.manifest[SOURCE]["labels"]) == ("stopped", 2, None)
    return tmp_path, rows


def test_an_interrupted_import_continues_from_its_file(interrupted, imported):
    folder, _ = interrupted
    done = sweeper.resume("predictions", output=folder, mlflow=False)
    assert (
        done.complete
        and done.counts["completed"] == 3
        and not sweeper.status("predictions", audit=True, output=folder).value
    )
    query = "SELECT trial, replicate, epoch, split, nll, ece, posthoc_temperature_nll FROM evaluations ORDER BY ALL"
    assert done.results.sql(query).to_pylist() == imported[0].results.sql(query).to_pylist()


def test_an_interrupted_import_whose_file_changed_is_to_be_deleted(interrupted):
    folder, _ = interrupted
    file = folder / "predictions.parquet"
    for change in (lambda: file.write_bytes(file.read_bytes() + b" "), file.unlink):
        change()
        with pytest.raises(SweeperError) as refused:
            sweeper.resume("predictions", output=folder, mlflow=False)
        assert "manage delete" in refused.value.remedy
    sweeper.delete("predictions", yes=True, output=folder)
    written(file)
    settings = {"evaluation.bootstrap": 0}
    assert sweeper.import_(file, name="predictions", set=settings, output=folder, mlflow=False).complete


@pytest.mark.parametrize("options", [{"failed": True}, {"set": {"replicates": 9}}])
def test_nothing_is_trained_of_an_import(imported, options):
    with pytest.raises(SweeperError) as refused:
        sweeper.resume("predictions", output=imported[2], mlflow=False, **options)
    assert "nothing can train" in refused.value.message and "import" in refused.value.remedy
