"""Training and evaluating translations: against all logits flattened, and the rules for what cannot be measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import sacrebleu
import torch

from trainables.datasets import load_dataset
from trainables.datasets.base import DataSet
from trainables.metrics import RECALIBRATED, evaluate_probabilities, softmax64
from trainables.posthoc import fit
from trainables.training import translation
from trainables.training.evaluation import Evaluation, EvaluationSettings
from trainables.training.loop import Replicate
from trainables.training.translation import evaluate_translation, predicted_tokens, translation_faults
from trainables.worker.trial_tables import write_token_predictions

NETWORK = {"name": "transformer", "layers": 1, "width": 32, "heads": 2, "inner": 32, "dropout": 0.0}
ADAM = {"name": "adam", "lr": 0.01, "batch_size": 512, "schedule": "inverse_sqrt", "warmup_epochs": 0.2}
SETTINGS = EvaluationSettings(
    posthoc=(
        {"name": "temperature", "objective": "ece", "grid": "mukhoti"},
        {"name": "temperature", "label": "by_nll", "objective": "nll_on_grid", "grid": "mukhoti"},
    ),
    metrics=(("bleu", {"beams": 2}), ("bleu_by_temperature", {})),
)


@pytest.fixture(scope="module")
def dataset() -> DataSet:
    return load_dataset("number_words", train_samples=600, validation_samples=40, test_samples=30)


def replicate(dataset: DataSet, loss: dict[str, Any] | None = None, **optimizer: Any) -> Replicate:
    configuration = {
        "loss": loss or {"name": "cross_entropy"},
        "architecture": NETWORK,
        "optimizer": {**ADAM, **optimizer},
    }
    return Replicate(configuration, seed=0, dataset=dataset, max_epochs=8)


@pytest.fixture(scope="module")
def trained(dataset: DataSet) -> tuple[Replicate, list[dict[str, Any]], Evaluation]:
    held = replicate(dataset)
    rows = [held.train_epoch() for _ in range(8)]
    return held, rows, held.evaluate(SETTINGS, "end")


def flattened(held: Replicate, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits and classes of all tokens of a split."""
    model = held.model.eval()
    with torch.no_grad():
        logits = model(held.dataset.splits[split].inputs)
    return logits.numpy(), model.supervised(held.dataset.splits[split].inputs).numpy()  # type: ignore[operator]


def test_it_learns(trained: tuple[Replicate, list[dict[str, Any]], Evaluation]) -> None:
    _, rows, _ = trained
    losses = [row["val_nll"] for row in rows]
    assert losses[-1] < 0.6 * losses[0] < 0.6 * np.log(load_dataset("number_words", train_samples=20).classes)


def test_the_learning_rate_changes_with_every_step(dataset: DataSet) -> None:
    held = replicate(dataset)
    seen: list[float] = []
    step = held.optimizer.step
    held.optimizer.step = lambda *a, **k: (seen.append(held.optimizer.param_groups[0]["lr"]), step())[1]  # type: ignore[method-assign, func-returns-value, assignment]
    for _ in range(3):
        held.train_epoch()
    peak = max(range(len(seen)), key=seen.__getitem__)
    assert seen[: peak + 1] == sorted(set(seen[: peak + 1])) and seen[peak:] == sorted(set(seen[peak:]), reverse=True)
    warmup = 1.6  # epochs, a fifth of eight
    assert held.learning_rate_after(0) == pytest.approx(0.01 * (warmup / 3) ** 0.5)
    assert held.learning_rate_after(300) == pytest.approx(0.01 * (warmup / 3.5) ** 0.5)


def test_the_training_loss_is_the_mean_over_tokens(dataset: DataSet) -> None:
    held = replicate(dataset, {"name": "focal", "gamma": 1.0})
    inputs = dataset.train.inputs[:50]
    logits = held.model(inputs)
    targets = held.model.supervised(inputs)  # type: ignore[operator]
    assert held._loss_of(inputs, dataset.train.targets[:50]).item() == pytest.approx(held.loss(logits, targets).item())


def test_an_epochs_metrics_are_those_of_all_tokens(trained: tuple[Replicate, list[dict[str, Any]], Evaluation]) -> None:
    held, rows, _ = trained
    logits, targets = flattened(held, "val")
    measured = evaluate_probabilities(softmax64(logits), targets)
    for name in ("nll", "accuracy", "ece"):
        assert rows[-1][f"val_{name}"] == pytest.approx(measured[name], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("split", ["val", "test"])
def test_an_evaluation_is_that_of_all_logits(
    trained: tuple[Replicate, list[dict[str, Any]], Evaluation], split: str
) -> None:
    held, _, evaluation = trained
    (row,) = (row for row in evaluation.rows if row["split"] == split)
    calibrator = fit("temperature", *flattened(held, "val"), objective="ece", grid="mukhoti")
    logits, targets = flattened(held, split)
    measured = evaluate_probabilities(softmax64(logits), targets)
    scaled = evaluate_probabilities(calibrator(logits), targets)
    for name in ("accuracy", "top5", "nll", "brier", "ece", "ada_ece", "mce", "entropy_wrong"):
        assert row[name] == pytest.approx(measured[name], rel=1e-3, abs=1e-4), name
    assert row["posthoc_temperature_temperature"] == calibrator.parameters["temperature"]
    for name in RECALIBRATED:
        if name != "cw_ece":
            assert row[f"posthoc_temperature_{name}"] == pytest.approx(scaled[name], rel=1e-3, abs=1e-3, nan_ok=True), (
                name
            )
    assert row["ece_at_1"] == row["ece"]
    by_nll = fit("temperature", *flattened(held, "val"), objective="nll_on_grid", grid="mukhoti")
    assert row["posthoc_by_nll_temperature"] == by_nll.parameters["temperature"]


def test_bleu_is_sacrebleus_of_the_translations(
    trained: tuple[Replicate, list[dict[str, Any]], Evaluation], dataset: DataSet
) -> None:
    held, _, evaluation = trained
    rows = {str(row["split"]): row for row in evaluation.rows}
    assert dataset.translation is not None
    texts = translation.translated(held.model, dataset, "test", translation.Decoding(beams=2))
    expected = sacrebleu.corpus_bleu(texts, [list(dataset.translation.test)]).score
    assert rows["test"]["bleu"] == rows["test"]["bleu_at_1"] == pytest.approx(expected)
    curve = [rows["test"][translation.column_at("bleu", each)] for each in translation.TEMPERATURES]
    assert rows["test"]["best_bleu"] == max(curve)
    assert "best_bleu" not in rows["val"] and 0 < float(rows["val"]["bleu"]) <= 100


def test_translations_stay_in_the_order_of_their_sentences(
    trained: tuple[Replicate, list[dict[str, Any]], Evaluation], dataset: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, _, _ = trained
    whole = translation.translated(held.model, dataset, "test", translation.Decoding())
    monkeypatch.setattr(translation, "SENTENCES", 7)
    assert translation.translated(held.model, dataset, "test", translation.Decoding()) == whole


def test_at_a_rung_no_curve_is_measured(trained: tuple[Replicate, list[dict[str, Any]], Evaluation]) -> None:
    held, _, _ = trained
    rows = evaluate_translation(held.model, held.dataset, SETTINGS, stage="rung").rows
    assert all("bleu" in row and "best_bleu" not in row and "ece_at_1" not in row for row in rows)


def test_many_logits_are_predicted_in_parts(
    trained: tuple[Replicate, list[dict[str, Any]], Evaluation], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, _, _ = trained
    whole = predicted_tokens(held.model, held.dataset.val, [1.0])
    monkeypatch.setattr(translation, "LOGITS_AT_ONCE", 1000)
    parts = predicted_tokens(held.model, held.dataset.val, [1.0])
    assert np.allclose(parts.sums, whole.sums, rtol=1e-4) and np.array_equal(parts.targets, whole.targets)


def test_the_largest_logits_of_each_token_are_stored(
    trained: tuple[Replicate, list[dict[str, Any]], Evaluation], tmp_path: Path
) -> None:
    held, _, evaluation = trained
    path = write_token_predictions(tmp_path, ("c00000", 0, 8), evaluation.tokens)
    table = pq.read_table(path)
    logits, targets = flattened(held, "val")
    rows = table.filter(np.array(table["split"].to_pylist()) == "val")
    assert rows["target"].to_pylist() == targets.tolist()
    assert rows["sample"].to_pylist() == list(range(len(targets)))
    top = np.array(rows["top_classes"].to_pylist())
    assert np.allclose(np.take_along_axis(logits, top, 1), np.array(rows["top_logits"].to_pylist()), atol=1e-4)
    assert np.allclose(np.log(np.exp(logits.astype(float)).sum(1)), rows["log_sum_exp"].to_numpy(), atol=1e-4)


def test_a_checkpoint_continues_as_if_never_interrupted(dataset: DataSet) -> None:
    alone, first, second = (replicate(dataset) for _ in range(3))
    expected = [alone.train_epoch() for _ in range(2)][-1]
    first.train_epoch()
    second.load_state_dict(first.state_dict())
    found = second.train_epoch()
    assert {k: v for k, v in found.items() if k != "seconds"} == {k: v for k, v in expected.items() if k != "seconds"}


EVALUATION: dict[str, Any] = {"metrics": [], "posthoc": [], "curvature": False, "trajectory": None}


@pytest.mark.parametrize(
    ("evaluation", "names", "place"),
    [
        ({}, ("cross_entropy", "mlp"), "space.architecture"),
        ({}, ("adafocal", "transformer"), "space.loss"),
        ({}, ("aurc", "transformer"), "space.loss"),
        ({}, ("hessian_trace", "transformer"), "space.loss"),
        ({"curvature": {"samples": 3}}, ("focal", "transformer"), "evaluation.curvature"),
        ({"trajectory": {"every": 1}}, ("focal", "transformer"), "evaluation.trajectory"),
        ({"metrics": [{"name": "skce"}]}, ("focal", "transformer"), "evaluation.metrics"),
        ({"posthoc": [{"name": "temperature", "objective": "nll"}]}, ("focal", "transformer"), "evaluation.posthoc"),
        ({"posthoc": [{"name": "focal_map"}]}, ("focal", "transformer"), "evaluation.posthoc"),
    ],
)
def test_what_does_not_suit_translations_is_named(
    dataset: DataSet, evaluation: dict[str, Any], names: tuple[str, str], place: str
) -> None:
    found = translation_faults(dataset, {**EVALUATION, **evaluation}, [("focal", "transformer"), names])
    assert [each for each, _ in found] == [place]
    right = {**EVALUATION, "metrics": [{"name": "bleu"}], "posthoc": [{"name": "temperature", "objective": "ece"}]}
    assert [*translation_faults(dataset, right, [("label_smoothing", "transformer")])] == []


def test_bleu_of_anything_else_is_refused(dataset: DataSet) -> None:
    other = replace(dataset, translation=None)
    found = translation_faults(other, {**EVALUATION, "metrics": [{"name": "bleu"}]}, [("focal", "mlp")])
    assert [place for place, _ in found] == ["evaluation.metrics"]
