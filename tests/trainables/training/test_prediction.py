"""Finished networks are measured on shifts: rows of their own, others unchanged, logits where they are asked for."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sweeper.core.columns import evaluation_columns
from sweeper.core.schemas import record_batch, table_schemas
from sweeper.tracking.runs import evaluation_points
from trainables.datasets import load_dataset
from trainables.datasets.splits import build_split
from trainables.losses import build_loss
from trainables.metrics import evaluate_probabilities, softmax64
from trainables.metrics.out_of_distribution import OOD_COLUMNS, ood_columns
from trainables.models import build_for, build_model
from trainables.posthoc import fit
from trainables.training import prediction
from trainables.training.evaluation import EvaluationSettings, evaluate
from trainables.training.prediction import (
    GRADIENT_NORM_EDGES,
    TrajectorySettings,
    epoch_metrics,
    gradient_norm_counts,
    last_layer_gradient_norms,
    last_linear,
    predict,
    trajectory_columns,
    trajectory_row,
)
from trainables.worker.trial import Trial
from trainables.worker.trial_settings import Assignment, TrialSettings

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
    assert points["other/other_digits_stand_in_ood_msp_auroc"] == by_split["other_digits_stand_in"]["ood_msp_auroc"]


@pytest.mark.parametrize("seed", range(5))
def test_an_epochs_metrics_equal_plain_formulas(seed):
    rng = np.random.default_rng(seed)
    logits, targets = rng.normal(0, 3, (40, 5)), rng.integers(0, 5, 40)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    metrics = epoch_metrics(torch.tensor(logits), torch.tensor(targets), 15)
    nll = -np.mean([math.log(p[t]) for p, t in zip(probabilities, targets, strict=True)])
    assert metrics["val_nll"] == pytest.approx(nll, rel=1e-6)
    assert metrics["val_accuracy"] == np.mean(probabilities.argmax(1) == targets)


CONFIGURATION = {
    "loss": {"name": "focal", "gamma": 2.0},
    "architecture": {"name": "mlp", "depth": 1, "width": 8},
    "optimizer": {"name": "sgd", "lr": 0.1, "batch_size": 128},
}


def _network(seed: int, inputs: int = 5, classes: int = 4) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, classes)).double()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "name, options",
    [
        ("cross_entropy", {}),
        ("focal", {"gamma": 3.0}),
        ("brier", {}),
        ("focal_sample_dependent", {}),
        ("hessian_trace", {"base": "cross_entropy", "weight": 0.1}),
    ],
)
def test_gradient_norms_are_those_of_each_sample_alone(seed: int, name: str, options: dict) -> None:
    model, loss = _network(seed), build_loss(name, **options)
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 4, (7,), generator=generator)
    features = model[:2](inputs).detach()
    found = last_layer_gradient_norms(features, model(inputs).detach(), targets, loss)
    base = getattr(loss, "base", loss)
    for i in range(7):
        model.zero_grad()
        base(model(inputs[i : i + 1]), targets[i : i + 1]).backward()
        assert found[i].item() == pytest.approx(model[2].weight.grad.norm().item(), rel=1e-9, abs=1e-12)


def test_gradient_norms_are_right_where_probabilities_round_to_one() -> None:
    logits, targets = torch.tensor([[25.0, 0.0, 1.0], [0.0, 20.0, -3.0]]), torch.tensor([0, 1])
    for loss in (build_loss("cross_entropy"), build_loss("focal", gamma=0.5)):
        features = torch.ones(2, 4)
        found = last_layer_gradient_norms(features, logits, targets, loss)
        exact = last_layer_gradient_norms(features.double(), logits.double(), targets, loss)
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("architecture", ["mlp", "resnet8"])
def test_one_pass_gives_logits_and_norms(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "FEATURE_SAMPLES", 200)
    split = load_dataset("digits").val
    model = build_for(load_dataset("digits"), {"name": architecture})
    logits, norms = prediction.logits_and_norms(model, split)
    assert len(split) > 200 and torch.equal(logits, predict(model, split, batch_size=200))
    entered = []
    last_linear(model).register_forward_pre_hook(lambda _, arguments: entered.append(arguments[0]))
    predict(model, split.first(200))
    assert norms["feature_norm"] == float(entered[0].norm(dim=1).mean())
    assert norms["last_layer_weight_norm"] == float(last_linear(model).weight.detach().norm())


def test_features_are_what_enters_the_layer_whatever_the_network_makes_of_them() -> None:
    class Residual(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 64)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            features = inputs.flatten(1)
            features += self.layer(input=features)
            return features

    split = load_dataset("digits").val
    expected = float(split.head(prediction.FEATURE_SAMPLES).flatten(1).norm(dim=1).mean())
    assert prediction.logits_and_norms(Residual(), split)[1]["feature_norm"] == pytest.approx(expected, rel=1e-6)


def test_counts_lose_no_norm_but_those_that_are_not_finite() -> None:
    norms = np.concatenate([[0.0, 1e-9, 1e5, np.nan, np.inf], np.random.default_rng(0).lognormal(0, 3, 1000)])
    counts = gradient_norm_counts(norms)
    assert len(counts) == len(GRADIENT_NORM_EDGES) - 1 and sum(counts) == 1003
    for value, place in ((0.0, 0), (1e-9, 0), (1e5, len(counts) - 1), (1.05, 61)):
        assert gradient_norm_counts([value])[place] == 1


def test_a_row_holds_the_metrics_of_each_split_and_leaves_the_network_alone() -> None:
    dataset = load_dataset("digits")
    model = build_for(dataset, CONFIGURATION["architecture"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    asked = {"splits": ["train", "val", "test"], "gradient_norms": [4]}
    settings = TrajectorySettings.from_mapping(asked)
    row = trajectory_row(model, build_loss("focal", gamma=2.0), dataset, settings, epoch=4)
    assert model.training and all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert set(row) == set(trajectory_columns(asked))
    for split in ("train", "test"):
        samples = getattr(dataset, split)
        logits = predict(model, samples)
        expected = evaluate_probabilities(softmax64(logits.numpy()), samples.targets.numpy())
        for metric in ("nll", "nll_wrong", "entropy_correct", "accuracy", "ece", "confidence_wrong"):
            assert row[f"{split}_{metric}"] == pytest.approx(expected[metric], rel=1e-9)
        assert row[f"{split}_logit_norm"] == pytest.approx(float(logits.norm(dim=1).mean()), rel=1e-6)
    assert row["last_layer_weight_norm"] == pytest.approx(float(last_linear(model).weight.detach().norm()))
    assert sum(row["gradient_norm_counts"]) == len(dataset.train)
    assert trajectory_row(model, build_loss("cross_entropy"), dataset, TrajectorySettings(every=3), 4) == {}


def test_a_split_without_finite_outputs_gives_no_values() -> None:
    dataset = load_dataset("digits")
    model = build_for(dataset, CONFIGURATION["architecture"])
    with torch.no_grad():
        last_linear(model).bias.fill_(float("nan"))
    row = trajectory_row(model, build_loss("cross_entropy"), dataset, TrajectorySettings(), 1)
    assert set(row) == set()


@pytest.mark.parametrize("packing", ["sequential", "lanes"])
def test_a_trial_reports_it_every_epoch_for_every_replicate(packing: str, tmp_path: Path) -> None:
    asked = {"splits": ["test"], "every": 2, "gradient_norms": [1, 3]}
    settings = TrialSettings(
        dataset={"name": "digits"},
        max_epochs=4,
        rungs=(4,),
        objective="val_nll",
        evaluation=EvaluationSettings.from_mapping({"curvature": False, "bootstrap": 0, "trajectory": asked}),
        packing=packing,
        report_seconds=1e9,
    )
    trial = Trial(Assignment(0, "c00000", CONFIGURATION, [1, 2]), settings, settings.load_dataset())
    report = trial.advance()
    rows = {(row["epoch"], row["replicate"]): row for row in report.epochs}
    assert len(rows) == 8
    for (epoch, replicate), row in rows.items():
        assert ("test_nll" in row) == ("last_layer_weight_norm" in row) == (epoch % 2 == 0)
        assert ("gradient_norm_counts" in row) == (epoch in (1, 3)), (epoch, replicate)
    for evaluation in report.evaluations:
        if evaluation["split"] == "test":
            last = rows[4, evaluation["replicate"]]
            assert last["test_nll"] == pytest.approx(evaluation["nll"], rel=1e-6)
            assert last["last_layer_weight_norm"] == pytest.approx(evaluation["last_layer_weight_norm"], rel=1e-6)


def test_a_network_without_a_linear_layer_has_losses_but_no_norms_of_features() -> None:
    dataset = load_dataset("digits")
    model = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    logits, norms = prediction.logits_and_norms(model, dataset.val)
    assert logits.shape == (len(dataset.val), 10) and norms == {}
    row = trajectory_row(model, build_loss("cross_entropy"), dataset, TrajectorySettings(gradient_norms=(1,)), 1)
    assert "train_nll" in row and "test_logit_norm" in row
    assert not {"train_feature_norm", "last_layer_weight_norm", "gradient_norm_counts"} & set(row)
