"""Finished networks are measured on shifts: rows of their own, others unchanged, logits where they are asked for."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from sweeper.core.schemas import evaluation_columns, record_batch, table_schemas
from sweeper.tracking.points import evaluation_points
from trainables.datasets import load_dataset
from trainables.datasets.splits import build_split
from trainables.losses import build_loss
from trainables.metrics import evaluate_probabilities, softmax64
from trainables.metrics.out_of_distribution import OOD_COLUMNS, ood_columns
from trainables.models import build_model
from trainables.posthoc import fit
from trainables.training.evaluation import EvaluationSettings, evaluate
from trainables.training.prediction import epoch_metrics, predict

CORRUPTED = {"name": "corrupted", "kinds": ["fog", "contrast"], "severities": [1, 5]}
OTHER = {"name": "other", "dataset": {"name": "digits_stand_in", "classes": 3, "test_samples": 20}, "logits": True}


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SWEEPER_DATA", str(tmp_path))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dataset = load_dataset("digits_stand_in", test_samples=40)
    model, loss = build_model("mlp", dataset.input_shape, dataset.classes, width=16), build_loss("cross_entropy")

    def run(stage: str, *splits: object):
        settings = {"posthoc": ["temperature"], "bootstrap": 5, "splits": ["val", "test", *splits]}
        return evaluate(model, loss, dataset, EvaluationSettings.from_mapping(settings), stage=stage, seed=0)

    return run, dataset, model


def test_shifts_are_measured_at_the_end_and_change_no_other_row(measured) -> None:
    run, dataset, model = measured
    plain, rung, end = run("end"), run("rung", CORRUPTED, OTHER), run("end", CORRUPTED, OTHER)
    assert [row["split"] for row in rung.rows] == ["val", "test"]
    names = ["corrupted_fog_1", "corrupted_fog_5", "corrupted_contrast_1", "corrupted_contrast_5"]
    assert [row["split"] for row in end.rows] == ["val", "test", *names, "other_digits_stand_in"]
    assert repr(end.rows[:2]) == repr(plain.rows) and end.reliability == plain.reliability
    rows = {row["split"]: row for row in end.rows}
    split = build_split(CORRUPTED).split(dataset, "corrupted_fog_5")
    logits = predict(model, split).numpy()
    wanted = evaluate_probabilities(softmax64(logits), split.targets.numpy(), 15)
    assert repr({key: rows["corrupted_fog_5"][key] for key in wanted}) == repr(wanted)
    calibrator = fit("temperature", plain.logits["val"], plain.targets["val"])
    after = evaluate_probabilities(calibrator(logits), split.targets.numpy(), 15)
    assert rows["corrupted_fog_5"]["posthoc_temperature_ece"] == after["ece"]
    assert "ece_se" not in rows["corrupted_fog_5"] and OOD_COLUMNS[0] not in rows["corrupted_fog_5"]


def test_other_data_are_told_apart_and_nothing_is_said_of_classes_that_are_not_the_networks(measured) -> None:
    run, dataset, model = measured
    end = run("end", OTHER)
    row = end.rows[-1]
    assert set(row) == {"split", "stage", *OOD_COLUMNS}
    other = predict(model, build_split(OTHER).split(dataset, "")).numpy()
    assert {key: row[key] for key in OOD_COLUMNS} == ood_columns(end.logits["test"], other)
    assert (
        np.array_equal(end.logits["other_digits_stand_in"], other) and len(end.targets["other_digits_stand_in"]) == 20
    )
    same = run("end", {**OTHER, "dataset": {"name": "digits_stand_in", "test_samples": 20}, "same_classes": True})
    assert same.rows[-1]["accuracy"] is not None and set(OOD_COLUMNS) < set(same.rows[-1])


def test_logits_of_corrupted_data_are_not_kept_unless_asked_for(measured) -> None:
    run, _, _ = measured
    assert set(run("end", CORRUPTED).logits) == {"val", "test"}
    kept = run("end", {**CORRUPTED, "logits": True, "kinds": ["fog"], "severities": [2]})
    assert set(kept.logits) == set(kept.targets) == {"val", "test", "corrupted_fog_2"}


def test_rows_fit_the_table_and_mlflow_gets_means_over_kinds(measured) -> None:
    run, _, _ = measured
    rows = [{"trial": "t", "replicate": 0, "epoch": 3, **row} for row in run("end", CORRUPTED, OTHER).rows]
    columns = evaluation_columns(["temperature"], splits=("val", "test", "other_digits_stand_in"))
    schema = table_schemas({}, 10, columns)["evaluations"]
    assert record_batch("evaluations", schema, rows).num_rows == len(rows)
    points = {key: value for key, value, _ in evaluation_points(rows)}
    by_split = {row["split"]: row for row in rows}
    mean = (by_split["corrupted_fog_5"]["ece"] + by_split["corrupted_contrast_5"]["ece"]) / 2
    assert points["corrupted_5_ece"] == pytest.approx(mean) and "test_ece" in points
    assert not any(key.startswith("corrupted_fog") for key in points)
    assert points["other_digits_stand_in_ood_msp_auroc"] == by_split["other_digits_stand_in"]["ood_msp_auroc"]


@pytest.mark.parametrize("seed", range(5))
def test_an_epochs_metrics_equal_plain_formulas(seed):
    rng = np.random.default_rng(seed)
    logits, targets = rng.normal(0, 3, (40, 5)), rng.integers(0, 5, 40)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    metrics = epoch_metrics(torch.tensor(logits), torch.tensor(targets), 15)
    nll = -np.mean([math.log(p[t]) for p, t in zip(probabilities, targets, strict=True)])
    assert metrics["val_nll"] == pytest.approx(nll, rel=1e-6)
    assert metrics["val_accuracy"] == np.mean(probabilities.argmax(1) == targets)
