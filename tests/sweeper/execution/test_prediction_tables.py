"""Predictions in other files than Parquet: the same table from each form, and what is refused."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import sweeper
from sweeper.core.errors import SweeperError
from sweeper.execution.predictions_file import read_predictions
from sweeper.reporting.first_screen import first_screen
from sweeper.reporting.summary import posthoc_methods
from sweeper.results.leaderboard import leaderboard
from sweeper.results.listing import overview
from trainables.metrics import evaluate_probabilities

RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(0, 2, (40, 3)).astype(np.float32)
LABELS = RANDOM.integers(0, 3, 40)
Z = RANDOM.normal(0, 2, 40)
Y = (RANDOM.random(40) < 1 / (1 + np.exp(-Z))).astype(int)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def halves(file: Path, labels: Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the predicted probabilities and the targets of all samples, those of `val` first."""
    found = read_predictions(file, labels)
    rows = np.concatenate([found.rows[0, 0, 1][split] for split in ("val", "test")])
    assert len(found.notes) == 1
    return softmax(found.logits[rows].astype(np.float64)), found.targets[rows]


def in_csv(path: Path, **columns: np.ndarray) -> Path:
    pyarrow.csv.write_csv(pa.table({name: pa.array(column) for name, column in columns.items()}), path)
    return path


def test_every_form_of_the_same_predictions_is_the_same_table(tmp_path: Path) -> None:
    p = softmax(LOGITS.astype(np.float64))
    np.savez(tmp_path / "a.npz", logits=LOGITS, targets=LABELS)
    np.savez(tmp_path / "b.npz", probs=p, y=LABELS)
    with h5py.File(tmp_path / "h.h5", "w") as file:
        file["logits"], file["labels"] = LOGITS, LABELS
    np.save(tmp_path / "c.npy", LOGITS)
    np.save(tmp_path / "labels.npy", LABELS)
    np.save(tmp_path / "one_hot.npy", np.eye(3)[LABELS])
    in_csv(tmp_path / "labels.csv", number=LABELS)
    wide = {f"prob_{k}": p[:, k] for k in range(3)}
    in_csv(tmp_path / "d.csv", **wide, label=LABELS)
    in_csv(tmp_path / "e.csv", **wide)
    pq.write_table(pa.table({"logits": [*LOGITS.tolist()], "target": LABELS}), tmp_path / "f.parquet")
    forms = [
        halves(tmp_path / name, None if labels is None else tmp_path / labels)
        for name, labels in [
            ("a.npz", None), ("b.npz", None), ("h.h5", None), ("c.npy", "labels.npy"), ("c.npy", "one_hot.npy"),
            ("c.npy", "labels.csv"), ("d.csv", None), ("e.csv", "labels.npy"), ("f.parquet", None),
        ]
    ]  # fmt: skip
    for probabilities, targets in forms:
        np.testing.assert_allclose(probabilities, forms[0][0], atol=1e-6)
        np.testing.assert_array_equal(targets, forms[0][1])
    assert sorted(forms[0][1]) == sorted(LABELS)


def test_one_number_a_sample_is_two_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "z.npz", logit=Z, y=Y)
    np.savez(tmp_path / "column.npz", scores=Z[:, None], y=Y > 0)
    np.savez(tmp_path / "p.npz", prob=1 / (1 + np.exp(-Z)), y=Y)
    np.savez(tmp_path / "unnamed.npz", scores=1 / (1 + np.exp(-Z)), y=Y)
    in_csv(tmp_path / "z.csv", logit=Z, y=Y)
    in_csv(tmp_path / "p.csv", probability=1 / (1 + np.exp(-Z)), y=Y)
    pq.write_table(pa.table({"logits": [[z] for z in Z], "target": Y}), tmp_path / "lists.parquet")
    names = ("z.npz", "column.npz", "p.npz", "unnamed.npz", "z.csv", "p.csv", "lists.parquet")
    forms = [halves(tmp_path / name) for name in names]
    for probabilities, targets in forms:
        np.testing.assert_allclose(probabilities, forms[0][0], atol=1e-6)
        np.testing.assert_array_equal(targets, forms[0][1])
    order = np.argsort(forms[0][0][:, 1])
    np.testing.assert_allclose(forms[0][0][order, 1], np.sort(1 / (1 + np.exp(-Z))), atol=1e-6)


def test_splits_are_named_before_or_after(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "s.npz", valid_logits=LOGITS[:10], valid_labels=LABELS[:10], logits_test=LOGITS[10:],
        labels_test=LABELS[10:],
    )  # fmt: skip
    found = read_predictions(tmp_path / "s.npz")
    assert found.splits == ["val", "test"] and not found.notes
    np.testing.assert_array_equal(found.targets[found.rows[0, 0, 1]["test"]], LABELS[10:])


def test_cross_fitting_takes_one_set_of_samples_as_validation_data(tmp_path: Path) -> None:
    for name, split in (("test", ["test"] * 40), ("two", ["val", "test"] * 20)):
        rows = {"split": split, "target": LABELS, "logits": [*LOGITS.tolist()]}
        pq.write_table(pa.table(rows), tmp_path / f"{name}.parquet")
    found = read_predictions(tmp_path / "test.parquet", cross_fit=True)
    assert found.splits == ["val"] and len(found.rows[0, 0, 1]["val"]) == 40 and len(found.notes) == 1
    with pytest.raises(SweeperError, match="splits val, test"):
        read_predictions(tmp_path / "two.parquet", cross_fit=True)


def test_names_that_scores_and_hyperparameters_share_are_hyperparameters_beside_scores(tmp_path: Path) -> None:
    rows = {"split": ["val"] * 40, "target": LABELS, "logits": [*LOGITS.tolist()]}
    pq.write_table(pa.table({**rows, "p": [0.1] * 40, "y": [2] * 40}), tmp_path / "one.parquet")
    pq.write_table(pa.table({**rows, "p0": [0.1] * 40, "p1": [0.2] * 40}), tmp_path / "wide.parquet")
    for name, values in (("one", {"p": 0.1, "y": 2}), ("wide", {"p0": 0.1, "p1": 0.2})):
        (configuration,) = read_predictions(tmp_path / f"{name}.parquet").configurations
        assert values.items() <= configuration.items()


def test_a_sample_that_is_there_twice_is_in_no_two_halves(tmp_path: Path) -> None:
    rows = {"sample": np.arange(40) // 2, "target": LABELS, "logits": [*LOGITS.tolist()]}
    pq.write_table(pa.table(rows), tmp_path / "twice.parquet")
    with pytest.raises(SweeperError, match="occurs twice"):
        read_predictions(tmp_path / "twice.parquet")


@pytest.mark.parametrize(
    ("arrays", "labels", "fault"),
    [
        ({"logits": LOGITS}, None, "has no target, but logits"),
        ({"logits": LOGITS, "y": LABELS[:7]}, None, "y has 7 rows, and other arrays 40"),
        ({"features": LOGITS, "y": LABELS}, None, "has no scores, but y, features"),
        ({"logits": np.zeros((4, 2, 2)), "y": LABELS[:4]}, None, r"shape \[4, 2, 2\]"),
        ({"logits": LOGITS}, {"labels": LOGITS}, "no one-hot rows"),
        ({"logits": np.array(3.0), "y": LABELS[:1]}, None, r"shape \[\]"),
        ({"logits": LOGITS.astype(np.complex64), "y": LABELS}, None, "type complex64"),
        ({"logits": LOGITS}, {"a": LABELS, "b": LABELS}, "has no target, but logits, a, b"),
        ({"logits": np.array([{}], dtype=object), "y": np.zeros(1)}, None, "pickle"),
        ({"logits": LOGITS, "y": LABELS + 7}, None, "rows are not allowed"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(tmp_path: Path, arrays: dict, labels: dict | None, fault: str) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    if labels is not None:
        np.savez(tmp_path / "y.npz", **labels)
    with pytest.raises(SweeperError, match=fault):
        read_predictions(tmp_path / "x.npz", None if labels is None else tmp_path / "y.npz")


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pickle").write_bytes(b"")
    (tmp_path / "b.npz").write_bytes(b"no archive")
    (tmp_path / "c.csv").write_text("")
    (tmp_path / "e.parquet").write_text("lr,target\n")
    for name in ("a.pickle", "b.npz", "c.csv", "d.npy", "e.parquet", "f.parquet"):
        with pytest.raises(SweeperError):
            read_predictions(tmp_path / name)


def test_a_file_of_one_logit_is_measured_as_two_classes(tmp_path: Path) -> None:
    """Import scikit-learn's breast cancer data, judged by a logistic regression's one logit."""
    datasets, linear = pytest.importorskip("sklearn.datasets"), pytest.importorskip("sklearn.linear_model")
    features, targets = datasets.load_breast_cancer(return_X_y=True)
    features = (features - features.mean(0)) / features.std(0)
    model = linear.LogisticRegression(C=1e4, max_iter=5000).fit(features[::3], targets[::3])
    rest = np.arange(len(targets)) % 3 > 0
    np.savez(tmp_path / "cancer.npz", logit=model.decision_function(features[rest]), y=targets[rest])
    done = sweeper.import_(tmp_path / "cancer.npz", set={"evaluation.bootstrap": 0}, output=tmp_path, mlflow=False)
    (row,) = done.results.rows("SELECT * FROM evaluations WHERE split = 'test'")
    found = read_predictions(tmp_path / "cancer.npz")
    rows = found.rows[0, 0, 1]["test"]
    p = softmax(found.logits[rows].astype(np.float64))
    assert row["ece"] == pytest.approx(evaluate_probabilities(p, found.targets[rows])["ece"], abs=1e-6)
    assert row["calibration_slope"] < 1  # trained on few samples without a penalty, it is overconfident
    with done.results.snapshot() as frozen:
        (line,) = first_screen(frozen, leaderboard(frozen), overview(frozen)).lines
        assert posthoc_methods(frozen) is not None
    assert line.change is not None and line.change.verdict is not None  # over test samples: there is one network
    low, high = line.change.verdict.interval
    assert line.change.verdict.seeds == 1 and low < line.change.verdict.estimate < high
    assert row["posthoc_isotonic_nll"] == row["posthoc_isotonic_nll"] and row["ece_positive"] > 0
