"""Pictures from stored predictions: what is drawn is what the networks said, after methods fitted on their own data."""

from pathlib import Path

import numpy as np
import pytest

from search_spaces import packaged_files
from search_spaces.papers.computed_figures import gradients_by_true_class
from search_spaces.papers.prediction_pictures import prediction_pictures
from sweeper.results import Results
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from tests.search_spaces.papers.ideal_sweeps import ideal_sweep
from tests.sweeper.reporting.figures.drawn import layers, marks
from trainables.datasets import load_dataset
from trainables.metrics import evaluate_probabilities, softmax64
from trainables.metrics.base import log_softmax64
from trainables.posthoc.focal_map import focal_map
from trainables.worker.trial_tables import write_predictions

Splits = dict[str, np.ndarray]


def with_predictions(
    output: Path, space: str, splits: dict[str, int], classes: int, *, targets: Splits | None = None
) -> tuple[Results, dict[str, Splits]]:
    """Return a rehearsal with predictions of every trial's first replicate, and their logits by trial and split."""
    spec = load_spec(packaged_files()[space], rehearse=True)
    results = ideal_sweep(output, space, spec, f"{space}-rehearsal")
    (results.folder / "tables" / "predictions" / "part.parquet").unlink(missing_ok=True)
    random = np.random.default_rng(0)
    truth = targets or {split: random.integers(0, classes, n) for split, n in splits.items()}
    epochs = [*map(int, getattr(spec.scheduler, "evaluate_epochs", None) or ()), spec.scheduler.max_epochs]
    found: dict[str, Splits] = {}
    for index, _ in enumerate(configurations(spec)):
        trial = f"c{index:05d}"
        for epoch in epochs:
            logits = {
                split: random.normal(0, 1, (n, classes)) + 2.0 * np.eye(classes)[truth[split]]
                for split, n in splits.items()
            }
            write_predictions(results.folder / "tables", (trial, 0, epoch), logits, truth)
            found[trial] = logits
    return results, found


def test_scores_of_three_classes_are_drawn_beside_the_true_probabilities(tmp_path: Path) -> None:
    space = "posterior_figure_3"
    spec = load_spec(packaged_files()[space], rehearse=True)
    data = load_dataset(spec.dataset["name"], **{k: v for k, v in spec.dataset.items() if k != "name"})
    truth = {"val": data.val.targets.numpy(), "test": data.test.targets.numpy()}
    sizes = {split: len(values) for split, values in truth.items()}
    results, logits = with_predictions(tmp_path, space, sizes, 3, targets=truth)
    (figure,) = prediction_pictures(results)
    assert [panel.heading.partition(":")[0] for panel in figure.panels] == [
        "γ 0, raw", "γ 1, raw", "γ 5, raw", "γ 1, temperature by NLL", "γ 5, temperature by NLL", "γ 1, Ψ", "γ 5, Ψ"
    ]  # fmt: skip
    assert all(len(layers(panel, "line")) == 2 and len(marks(panel, "line")) <= 6 * 400 for panel in figure.panels)
    mapped = np.asarray(focal_map(softmax64(logits["c00002"]["test"].astype(np.float32)), 5))
    found = evaluate_probabilities(mapped, truth["test"], 10, ("accuracy", "ece"))
    assert figure.panels[-1].heading.endswith(f"ECE {found['ece']:.3f}")


def test_reliability_is_drawn_without_and_with_the_map_for_three_paradigms(tmp_path: Path) -> None:
    results, _ = with_predictions(tmp_path, "posterior_figures_4_5_svhn", {"val": 80, "test": 120}, 10)
    figures = prediction_pictures(results)
    (figure,) = [each for each in figures if each.title == "Reliability"]
    words = [panel.heading.partition(":")[0] for panel in figure.panels]
    assert {word.partition(",")[0] for word in words} == {"Standard", "TS_FL", "LS"}
    assert all(
        {row["name"] for row in layers(panel, "line")[1]["data"]["values"]} == {*figure.legend}
        for panel in figure.panels
    )


def test_images_that_all_networks_get_right_and_wrong_have_their_confidences(tmp_path: Path) -> None:
    results, logits = with_predictions(tmp_path, "mukhoti_tables_cifar10", {"val": 60, "test": 200}, 10)
    (figure,) = [each for each in prediction_pictures(results) if each.title == "Confidences"]
    assert figure.legend == ["cross-entropy", "Brier", "MMCE", "FLSD-53"]
    right, wrong = figure.panels
    drawn = marks(right, "point")
    assert right.heading == "right by all" and len(drawn) == 2 * 4 * 4 and marks(wrong, "point")
    place = int(drawn[0]["sample"].partition(" ")[0])
    expected = softmax64(logits["c00000"]["test"].astype(np.float32))[place].max()
    assert drawn[0]["confidence"] == pytest.approx(expected) and drawn[0]["loss"] == "cross-entropy"


def test_gradients_are_drawn_at_every_evaluated_epoch(tmp_path: Path) -> None:
    results, _ = with_predictions(tmp_path, "selective_figure_a3", {"train": 90, "val": 30, "test": 30}, 10)
    (figure,) = prediction_pictures(results)
    assert [panel.heading for panel in figure.panels] == ["epoch 1", "epoch 2", "epoch 4"]
    assert [*figure.legend] == ["cross-entropy", "focal γ 2", "inverse focal γ 2", "AU, κ .9, ν .1"]
    assert all({row["loss"] for row in marks(panel, "point")} == {*figure.legend} for panel in figure.panels)


def test_gradients_by_the_true_class_are_the_formulas() -> None:
    random = np.random.default_rng(0)
    logs, targets = log_softmax64(random.normal(0, 2, (50, 7))), random.integers(0, 7, 50)
    p, found = gradients_by_true_class(logs, targets, (2,))
    assert np.allclose(p, np.exp(logs[range(50), targets]).clip(1e-3))
    assert np.allclose(found["cross-entropy"], -1 / p)
    assert np.allclose(found["focal γ 2"], -((1 - p) ** 2) / p + 2 * (1 - p) * np.log(p))
    assert np.allclose(found["inverse focal γ 2"], -((1 + p) ** 2) / p - 2 * (1 + p) * np.log(p))


def test_selected_gammas_and_the_map_over_coverage_and_nu_are_drawn(tmp_path: Path) -> None:
    spec = load_spec(packaged_files()["selective_selection_cifar10"], rehearse=True)
    found = prediction_pictures(ideal_sweep(tmp_path, "selective_selection_cifar10", spec, "s-rehearsal"))
    assert [figure.title for figure in found] == ["Selection of γ", "Selective risk over coverage and ν"]
    assert [panel.heading for panel in found[0].panels] == ["inverse_focal", "dual_focal"]


def test_without_predictions_there_is_no_picture(tmp_path: Path) -> None:
    for space in ("posterior_figure_3", "selective_figure_a3", "mukhoti_tables_cifar10"):
        spec = load_spec(packaged_files()[space], rehearse=True)
        assert prediction_pictures(ideal_sweep(tmp_path / space, space, spec, f"{space}-rehearsal")) == []
