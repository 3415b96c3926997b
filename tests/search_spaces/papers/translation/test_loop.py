"""Training and measuring translations: against all logits flattened, and the rules for what cannot be measured."""

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch

from search_spaces.papers.translation import loop as translation
from search_spaces.papers.translation.loop import TranslationLoop, bleu, of_like_length, predicted_tokens
from search_spaces.papers.translation.pairs import Pairs, number_words
from search_spaces.papers.translation.tokens import TEMPERATURES, TOKEN_METRICS, column_at
from trainables.curvature import CurvatureSettings
from trainables.datasets import DataSet, load_dataset
from trainables.metrics import RECALIBRATED, evaluate_probabilities, softmax64
from trainables.posthoc import fit
from trainables.training.evaluation import Evaluation, EvaluationSettings
from trainables.training.own_loop import LoopError, LoopReplicate

PACKAGE = "search_spaces.papers.translation"
CONFIGURATION = {
    "loss": {"name": "cross_entropy"},
    "architecture": {
        "name": f"{PACKAGE}.transformer:Transformer", "layers": 1, "width": 32, "heads": 2, "inner": 32, "dropout": 0.0,
    },
    "optimizer": {"name": "adam", "lr": 0.01, "batch_size": 512, "schedule": "inverse_sqrt", "warmup_epochs": 0.2},
    "beams": 2,
    "length_penalty": 0.6,
}  # fmt: skip
SETTINGS = EvaluationSettings(
    posthoc=(
        {"name": "temperature", "objective": "ece", "grid": "mukhoti"},
        {"name": "temperature", "label": "by_nll", "objective": "nll_on_grid", "grid": "mukhoti"},
    )
)


@pytest.fixture(scope="module")
def dataset() -> Pairs:
    return number_words(train_samples=600, validation_samples=40, test_samples=30)


def replicate(dataset: DataSet, evaluation: EvaluationSettings = SETTINGS, **parts: Any) -> LoopReplicate:
    values = {
        key: {**value, **parts.get(key, {})} if isinstance(value, dict) else value
        for key, value in CONFIGURATION.items()
    }
    named = f"{PACKAGE}.loop:TranslationLoop"
    return LoopReplicate(named, values, seed=0, dataset=dataset, max_epochs=8, evaluation=evaluation)


Trained = tuple[LoopReplicate, list[dict[str, Any]], Evaluation]


@pytest.fixture(scope="module")
def trained(dataset: Pairs) -> Trained:
    held = replicate(dataset)
    rows = [held.train_epoch() for _ in range(8)]
    return held, rows, held.evaluate(SETTINGS, "end")


def flattened(loop: TranslationLoop, dataset: Pairs, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits and classes of all tokens of a split."""
    model, inputs = loop.model.eval(), dataset.splits[split].inputs
    with torch.no_grad():
        return model(inputs).numpy(), model.supervised(inputs).numpy()


def row_of(evaluation: Evaluation, split: str) -> Mapping[str, Any]:
    (row,) = (row for row in evaluation.rows if row["split"] == split)
    return row


def test_the_learning_rate_changes_with_every_step(dataset: Pairs) -> None:
    held = replicate(dataset)
    optimizer, seen = held.loop.optimizer, []
    step = optimizer.step
    optimizer.step = lambda: (seen.append(optimizer.param_groups[0]["lr"]), step())[1]
    rows = [held.train_epoch() for _ in range(3)]
    peak = max(range(len(seen)), key=seen.__getitem__)
    assert seen[: peak + 1] == sorted(set(seen[: peak + 1])) and seen[peak:] == sorted(set(seen[peak:]), reverse=True)
    warmup = 1.6  # epochs, a fifth of eight
    assert rows[2]["lr"] == pytest.approx(0.01 * (warmup / 2) ** 0.5)


def test_an_epochs_metrics_are_those_of_all_tokens(trained: Trained, dataset: Pairs) -> None:
    held, rows, _ = trained
    logits, targets = flattened(held.loop, dataset, "val")
    measured = evaluate_probabilities(softmax64(logits), targets)
    for name in ("nll", "accuracy", "ece"):
        assert rows[-1][f"val_{name}"] == pytest.approx(measured[name], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("split", ["val", "test"])
def test_an_evaluation_is_that_of_all_logits(trained: Trained, dataset: Pairs, split: str) -> None:
    held, _, evaluation = trained
    row = row_of(evaluation, split)
    known = flattened(held.loop, dataset, "val")
    calibrator = fit("temperature", *known, objective="ece", grid="mukhoti")
    logits, targets = flattened(held.loop, dataset, split)
    measured = evaluate_probabilities(softmax64(logits), targets)
    scaled = evaluate_probabilities(calibrator(logits), targets)
    for name in ("accuracy", "top5", "nll", "brier", "ece", "ada_ece", "mce", "entropy_wrong"):
        assert row[name] == pytest.approx(measured[name], rel=1e-3, abs=1e-4), name
    assert row["posthoc_temperature_temperature"] == calibrator.parameters["temperature"]
    for name in RECALIBRATED:
        if name in TOKEN_METRICS:
            found = row[f"posthoc_temperature_{name}"]
            assert found == pytest.approx(scaled[name], rel=1e-3, abs=1e-3, nan_ok=True), name
    assert row["ece_at_1"] == row["ece"]
    by_nll = fit("temperature", *known, objective="nll_on_grid", grid="mukhoti")
    assert row["posthoc_by_nll_temperature"] == by_nll.parameters["temperature"]


def test_no_logits_are_kept_and_every_column_is_declared(trained: Trained) -> None:
    held, _, evaluation = trained
    assert {split: len(each) for split, each in evaluation.logits.items()} == {"val": 0}
    assert evaluation.reliability == []
    assert all({*row} - {"split", "stage"} <= {*held.loop.measures} for row in evaluation.rows)
    assert {*row_of(evaluation, "test")} - {"split", "stage"} == {*held.loop.measures}


def test_bleu_is_sacrebleus_of_the_translations(trained: Trained, dataset: Pairs) -> None:
    held, _, evaluation = trained
    row, texts = row_of(evaluation, "test"), held.loop.translated("test")
    expected = sacrebleu.corpus_bleu(texts, [list(dataset.references["test"])]).score
    assert row["bleu"] == row["bleu_at_1"] == pytest.approx(expected)
    assert row["best_bleu"] == max(row[column_at("bleu", each)] for each in TEMPERATURES)
    val = row_of(evaluation, "val")
    assert "best_bleu" not in val and 0 < val["bleu"] <= 100


def test_translations_stay_in_the_order_of_their_sentences(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = trained[0].loop
    whole = loop.translated("test")
    monkeypatch.setattr(translation, "SENTENCES", 7)
    assert loop.translated("test") == whole


def test_at_a_rung_no_curve_is_measured(trained: Trained) -> None:
    held, _, _ = trained
    rows = held.evaluate(SETTINGS, "rung").rows
    assert all("bleu" in row and "best_bleu" not in row and "ece_at_1" not in row for row in rows)


def test_many_logits_are_predicted_in_parts(trained: Trained, dataset: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = trained[0].loop.model, dataset.val.inputs
    whole = predicted_tokens(model, inputs, [1.0])
    monkeypatch.setattr(translation, "LOGITS_AT_ONCE", 1000)
    parts = predicted_tokens(model, inputs, [1.0])
    assert np.allclose(parts.sums, whole.sums, rtol=1e-4) and np.array_equal(parts.targets, whole.targets)


def test_logits_that_are_not_finite_end_the_trial(dataset: Pairs) -> None:
    held = replicate(dataset)
    with torch.no_grad():
        held.loop.model.classifier.weight[0] = math.nan
    assert math.isnan(held.loop.measure("val", "epoch")["nll"])


def test_a_checkpoint_continues_as_if_never_interrupted(dataset: Pairs) -> None:
    alone, first, second = (replicate(dataset, optimizer={"ema": 0.9}) for _ in range(3))
    expected = [alone.train_epoch() for _ in range(2)][-1]
    first.train_epoch()
    second.load_state_dict(first.state_dict())
    found = second.train_epoch()
    assert {k: v for k, v in found.items() if k != "seconds"} == {k: v for k, v in expected.items() if k != "seconds"}


@pytest.mark.parametrize(
    ("evaluation", "parts", "said"),
    [
        ({}, {"loss": {"name": "adafocal"}}, "adafocal is a function of whole batches"),
        ({}, {"loss": {"name": "aurc"}}, "aurc is a function of whole batches"),
        ({}, {"optimizer": {"sharpness": "sam"}}, "optimizer.sharpness is not supported"),
        ({}, {"optimizer": {"checkpoint": "best_val_nll"}}, "optimizer.checkpoint is not supported"),
        ({"curvature": CurvatureSettings(samples=3)}, {}, "set evaluation.curvature: false"),
        ({"metrics": (("skce", {}),)}, {}, "no metrics"),
        ({"posthoc": ({"name": "temperature", "objective": "nll"},)}, {}, "temperature needs all logits"),
        ({"posthoc": ({"name": "focal_map"},)}, {}, "focal_map needs all logits of every token"),
        ({"posthoc": ({"name": "temperature", "objective": "ece", "fitted_on": "train"},)}, {}, "on a grid by val"),
    ],
)
def test_unsuitable_settings(dataset: Pairs, evaluation: dict[str, Any], parts: dict[str, Any], said: str) -> None:
    with pytest.raises(LoopError, match=said):
        replicate(dataset, replace(SETTINGS, **evaluation), **parts)


def test_other_data_are_refused() -> None:
    with pytest.raises(LoopError, match="the data set has no pairs of sentences"):
        replicate(load_dataset("digits"))


def test_bleu_is_the_geometric_mean_of_precisions_and_brevity() -> None:
    # Papineni et al. 2002, Eqs. 2 and 3: six of seven words, four of six pairs, two of five triples, one of four
    made, reference = "the cat sat on the red mat", "the cat sat on the mat today now"
    precisions = (6 / 7, 4 / 6, 3 / 5, 2 / 4)
    expected = 100 * math.exp(1 - 8 / 7) * math.exp(np.mean(np.log(precisions)))
    assert bleu([made], [reference]) == pytest.approx(expected)


def test_the_corpus_is_scored_as_a_whole() -> None:
    assert bleu(["a b c d e", "x"], ["a b c d e", "x y z w v"]) == pytest.approx(100 * math.exp(1 - 10 / 6))
    assert bleu(["a b c d"], ["a b c d"]) == pytest.approx(100)


def test_without_sacrebleu_the_remedy_is_to_install_it(dataset: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(LoopError, match=r"pip install 'calibration-sweeper\[translation\]'"):
        replicate(dataset)


def test_batches_hold_pairs_of_like_length_and_as_many_tokens_as_asked(dataset: Pairs) -> None:
    lengths = (dataset.train.inputs != 0).sum(2).amax(1)
    generator = torch.Generator().manual_seed(0)
    found = of_like_length(lengths, torch.randperm(600, generator=generator), 100, generator)
    assert sorted(torch.cat(found).tolist()) == [*range(600)]
    for places in found:
        widths = lengths[places]
        assert int(widths.max()) * len(places) <= 100
        assert int(widths.max() - widths.min()) <= 1
    another = of_like_length(lengths, torch.randperm(600, generator=generator), 100, generator)
    assert any(len(a) != len(b) or not torch.equal(a, b) for a, b in zip(found, another, strict=False)), "a new order"


def test_a_sample_longer_than_a_batch_is_a_batch_of_its_own() -> None:
    lengths = torch.tensor([3, 50, 4, 3])
    found = of_like_length(lengths, torch.arange(4), 8, torch.Generator().manual_seed(0))
    assert sorted(each.tolist() for each in found) == [[0, 3], [1], [2]]
