"""Predictions in other files than Parquet: the same table from each form, and what is refused."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from sweeper.core.errors import SweeperError
from sweeper.execution.predictions_file import read_predictions

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


VAL = np.arange(40) < 15


def in_every_form(folder: Path, arrays: dict[str, np.ndarray]) -> list[Path]:
    """Write the same arrays, of one row per sample, in each format."""
    np.savez(folder / "a.npz", **arrays)
    with h5py.File(folder / "b.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array.astype(h5py.string_dtype()) if array.dtype.kind == "U" else array
    (folder / "c").mkdir()
    for name, array in arrays.items():
        np.save(folder / "c" / f"{name}.npy", array)
    listed = {name: [*array] if array.ndim == 1 else array.tolist() for name, array in arrays.items()}
    pq.write_table(pa.table(listed), folder / "d.parquet")
    (folder / "e.jsonl").write_text(pa.table(listed).to_pandas().to_json(orient="records", lines=True))
    wide = {name: array for name, array in arrays.items() if array.ndim == 1}
    in_csv(folder / "f.csv", **wide, **{f"logits_{k}": arrays["logits"][:, k] for k in range(3)})
    np.save(folder / "g.npy", arrays["logits"])
    np.savez(folder / "g.npz", **{name: array for name, array in arrays.items() if name != "logits"})
    return [folder / name for name in ("a.npz", "b.h5", "c", "d.parquet", "e.jsonl", "f.csv", "g.npy")]


def test_every_role_means_the_same_in_every_format(tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(80)
    split = np.where(VAL, "validation", "Test")
    arrays = {
        "logits": np.concatenate([LOGITS, LOGITS[::-1]])[order].astype(np.float64), "y_true": np.tile(LABELS, 2)[order],
        "split": np.tile(split, 2)[order], "seed": np.repeat([3, 8], 40)[order],
        "sample_id": np.tile(np.arange(40), 2)[order], "epochs": np.full(80, 7), "lr": np.full(80, 0.5),
        "sample_weight": np.tile(1.0 + np.arange(40), 2)[order],
    }  # fmt: skip
    for path in in_every_form(tmp_path, arrays):
        found = read_predictions(path, tmp_path / "g.npz" if path.name == "g.npy" else None)
        assert (found.splits, found.seeds, found.epochs, found.notes) == (["val", "test"], [3, 8], [7], []), path
        assert [configuration["lr"] for configuration in found.configurations] == [0.5]
        for seed, own in ((3, LOGITS), (8, LOGITS[::-1])):
            for name, rows in (("val", VAL), ("test", ~VAL)):
                place = found.rows[0, seed, 7][name]
                np.testing.assert_array_equal(found.logits[place], own[rows])
                np.testing.assert_array_equal(found.targets[place], LABELS[rows])
                np.testing.assert_array_equal(found.weights[place], 1.0 + np.arange(40)[rows])


def test_seeds_are_halved_alike(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz", logits=np.concatenate([LOGITS, LOGITS]), labels=np.tile(LABELS, 2),
        seed=np.repeat([0, 1], 40),
    )  # fmt: skip
    found = read_predictions(tmp_path / "a.npz")
    halves_of = [{name: rows % 40 for name, rows in found.rows[0, seed, 1].items()} for seed in (0, 1)]
    for name in ("val", "test"):
        np.testing.assert_array_equal(halves_of[0][name], halves_of[1][name])
    assert not {*halves_of[0]["val"]} & {*halves_of[0]["test"]} and len(found.notes) == 1


@pytest.mark.parametrize(
    "arrays",
    [
        {"logits": LOGITS, "preds": LOGITS[::-1], "labels": LABELS},
        {"logits": LOGITS, "prob": softmax(LOGITS), "labels": LABELS},
        {"logits": LOGITS, "labels": LABELS, "target": LABELS[::-1]},
        {"val_logits": LOGITS, "valid_logits": LOGITS[::-1], "val_labels": LABELS, "valid_labels": LABELS},
        {"logits": LOGITS, "val_logits": LOGITS, "labels": LABELS, "val_labels": LABELS},
        {"logits": LOGITS, "labels": LABELS, "seed": np.zeros(40, int), "replicate": np.zeros(40, int)},
        {"val_logits": LOGITS, "val_labels": LABELS, "split": np.array(["val", "test"] * 20)},
        {"Labels": LABELS, "labels": LABELS[::-1], "logits": LOGITS},
        {"val_logits": LOGITS, "val_labels": LABELS, "test_labels": LABELS},
        {"logits": LOGITS, "labels": LABELS, "split": np.array(["val", "valid"] * 20)},
        {"logits": LOGITS, "labels": LABELS, "weights": np.arange(40)},
        {"preds": LOGITS.argmax(1), "labels": LABELS},
        {"logits": LOGITS, "labels": np.arange(40).astype("datetime64[D]")},
    ],
)
def test_what_could_mean_two_things_or_nothing_is_refused_by_name(tmp_path: Path, arrays: dict) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(SweeperError) as refused:
        read_predictions(tmp_path / "a.npz")
    # what is refused is named: one of the arrays besides the first logits
    assert any(
        name in str(refused.value).split("started")[-1] for name in arrays if name not in ("logits", "val_logits")
    )


def test_what_is_not_used_is_named_once(tmp_path: Path) -> None:
    rows = {f"logits_{k}": LOGITS[:, k] for k in range(3)}
    in_csv(tmp_path / "a.csv", label=LABELS, file=np.array([f"{n}.png" for n in range(40)]), **rows)
    np.savez(
        tmp_path / "b.npz", logits=LOGITS, labels=LABELS, features=np.zeros((40, 9)),
        class_names=np.array(["a", "b", "c"]), label_smoothing=0.1,
        confidence=softmax(LOGITS).max(1), objects=np.array([{}], dtype=object),
    )  # fmt: skip
    for name, unused in (("a.csv", ["file"]), ("b.npz", ["features", "class_names", "objects", "confidence"])):
        found = read_predictions(tmp_path / name)
        assert len(found.configurations) == 1 and len(found.notes) == 2
        assert all(found.notes[1].count(one) == 1 for one in unused)
    assert found.configurations[0]["label_smoothing"] == 0.1


@pytest.mark.parametrize(
    "header",
    [
        "label,logits_0,logits_1,label", "label,logits_1,logits_2", "label,logits_0,logits_2",
        "label,prob_0,logits_0,logits_1", "class,logits_0,logits_1",
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_one_fault(tmp_path: Path, header: str) -> None:
    width = header.count(",")
    (tmp_path / "a.csv").write_text("\n".join([header, *(f"{n % 2}" + f",{n}.5" * width for n in range(20))]))
    with pytest.raises(SweeperError) as refused:
        read_predictions(tmp_path / "a.csv")
    assert len(getattr(refused.value, "faults", [None])) <= 2


@pytest.mark.parametrize("value", ["12:30:00", "2024-01-31", "2024-01-31 12:00:00", "true", "word"])
def test_scores_in_a_csv_are_numbers(tmp_path: Path, value: str) -> None:
    rows = [f"{n % 2},{value},{value}" for n in range(20)]
    (tmp_path / "a.csv").write_text("\n".join(["label,logits_0,logits_1", *rows]))
    with pytest.raises(SweeperError, match="have the type"):
        read_predictions(tmp_path / "a.csv")


def test_a_column_that_differs_between_samples_is_one_fault(tmp_path: Path) -> None:
    rows = {"label": LABELS, "right": (LOGITS.argmax(1) == LABELS), **{f"logits_{k}": LOGITS[:, k] for k in range(3)}}
    in_csv(tmp_path / "a.csv", **rows)
    with pytest.raises(SweeperError) as refused:
        read_predictions(tmp_path / "a.csv")
    (fault,) = refused.value.faults
    assert "right" in fault.remedy
