"""What a file of predictions must hold: everything that is wrong in one is said at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sweeper.core.errors import InvalidSearchSpace, SweeperError
from sweeper.execution.predictions_file import read_predictions
from tests.sweeper.execution.prediction_rows import CLASSES, written
from trainables.metrics import softmax64


def _configurations(path):
    return read_predictions(path).configurations


def without(*names):
    return lambda row: {key: value for key, value in row.items() if key not in names}


@pytest.mark.parametrize(
    ("change", "keep", "sentence"),
    [
        (without("logits"), lambda row: True, "has no scores"),
        (without("seed", "lr"), lambda row: True, "occurs twice with the same seed"),
        (
            lambda row: {**row, "logits": row["logits"][: 3 + (row["sample"] > 3)]},
            lambda row: True,
            "rows of .* have 3, 4 logits",
        ),
        (lambda row: {**row, "logits": "1, 2"}, lambda row: True, "logits of .* have the type string"),
        (lambda row: {**row, "logits": 1.0}, lambda row: True, "target is 2|target is 3"),
        (lambda row: {**row, "layers": [1, 2]}, lambda row: True, "'layers' of .* is no hyperparameter"),
        (
            lambda row: {**row, "split": "ood" if row["split"] == "val" else "test"},
            lambda row: True,
            "has no split val",
        ),
        (
            lambda row: row,
            lambda row: (row["lr"], row["epoch"]) != (0.3, 9),
            "lacks split .* at epoch 9, which others have",
        ),
        (lambda row: row, lambda row: (row["lr"], row["split"]) != (0.3, "test"), "lacks split test at epoch"),
        (lambda row: row, lambda row: (row["lr"], row["split"]) != (0.1, "test"), "lacks split test at epoch 2, which"),
        (lambda row: {**row, "target": 0} if row["lr"] == 0.3 else row, lambda row: True, "has other samples of"),
    ],
)
def test_what_a_file_lacks_is_one_sentence(tmp_path, change, keep, sentence):
    written(tmp_path / "bad.parquet", change, keep)
    with pytest.raises(SweeperError, match=sentence):
        read_predictions(tmp_path / "bad.parquet")


def test_names_that_are_no_loss_of_ours_stay_the_files_own(tmp_path):
    written(tmp_path / "own.parquet", lambda row: {**row, "loss": f"my_{row['loss']}", "optimizer": "sgd"})
    found = {repr(each["own_loss"]) + str(each["lr"]): each for each in _configurations(tmp_path / "own.parquet")}
    own, optimizer = {"name": "own"}, {"name": "sgd"}
    expected = {"loss": own, "architecture": own, "optimizer": optimizer, "own_loss": "my_cross_entropy", "lr": 0.1}
    assert found["'my_cross_entropy'0.1"] == expected
    assert found["'my_focal'0.1"]["own_loss_gamma"] == 2.0


def changed(**values):
    """Return a change that gives all rows these values; a function is called with the row."""
    return lambda row: {**row, **{key: each(row) if callable(each) else each for key, each in values.items()}}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (changed(target="cat"), "target holds string"),
        (
            changed(target=8.5),
            r"target is 8.5 in a row; \d,\d+ of \d,\d+ rows are not allowed\n    give whole numbers from 0 to",
        ),
        (changed(target=lambda row: None if row["sample"] == 3 else 1), "24 rows have no target"),
        (changed(target=lambda row: CLASSES if row["sample"] == 3 else 1), "target is 4 in a row; 24 of"),
        (changed(target=[1, 1]), "target holds list"),
        (changed(logits=[[1.0, 2.0]]), "logits of bad.parquet have the type list<element: list"),
        (changed(logits=[1.0, None, 0.0, 2.0]), "1,800 logits of bad.parquet are missing"),
        (changed(epoch=lambda row: row["epoch"] / 4), "epoch is 2.25 in a row|epoch is 0.5 in a row"),
        (changed(epoch=lambda row: None if row["sample"] else 1), "rows have no epoch"),
        (changed(epoch=0), "epoch is 0 in a row"),
        (changed(seed="one"), "seed holds string"),
        (changed(split=lambda row: "../../x" if row["split"] == "test" else "val"), r"split is '../../x'"),
        (changed(split=None), "split is missing in 1,800 rows"),
        (changed(config_lr=1.0), "the columns lr and config_lr are one hyperparameter"),
        (changed(sample=None), "sample holds null, some missing"),
        (
            changed(logits=lambda row: softmax64(row["logits"]).tolist()),
            "rows of logits are probabilities, each sums to 1",
        ),
        (changed(probabilities=[0.25] * 4), "logits and probabilities of bad.parquet are all scores"),
    ],
)
def test_a_wrong_column_is_a_sentence(tmp_path, change, sentence):
    written(tmp_path / "bad.parquet", change)
    with pytest.raises(InvalidSearchSpace, match=sentence):
        read_predictions(tmp_path / "bad.parquet")


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    written(tmp_path / "bad.parquet", changed(target="cat", seed=0.5, split="a b", layers=[1], logits="1, 2"))
    with pytest.raises(InvalidSearchSpace) as caught:
        read_predictions(tmp_path / "bad.parquet")
    assert len(caught.value.faults) == 5 and "5 errors, nothing was started" in str(caught.value)


def test_the_run_that_differs_from_most_is_named(tmp_path):
    def change(row):
        odd = (row["lr"], row["loss"], row["seed"]) == (0.1, "cross_entropy", 3)
        return {**row, "target": (row["target"] + odd) % CLASSES}

    written(tmp_path / "bad.parquet", change)
    with pytest.raises(InvalidSearchSpace) as caught:
        read_predictions(tmp_path / "bad.parquet")
    (fault,) = caught.value.faults
    assert "(lr = 0.1, loss = cross_entropy) with seed 3 at epoch" in fault.rule and "3 more" in fault.rule


def rows_of(tmp_path, targets, runs=2, **more):
    """Write runs of the same targets one after the other, without a seed."""
    logits = np.random.RandomState(0).randn(runs * len(targets), 3).tolist()
    rows = [{"split": "val", "target": int(each), "logits": z, **more} for each, z in zip([*targets] * runs, logits)]  # noqa: B905
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "runs.parquet")
    return tmp_path / "runs.parquet"


def test_two_runs_without_a_seed_are_not_one(tmp_path):
    drawn = np.random.RandomState(1).randint(0, 3, 30)
    with pytest.raises(InvalidSearchSpace, match="a sample of split val occurs twice with the same seed"):
        read_predictions(rows_of(tmp_path, drawn))
    assert len(read_predictions(rows_of(tmp_path, drawn, runs=1)).targets) == 30
    assert len(read_predictions(rows_of(tmp_path, np.arange(30) % 3)).targets) == 60, "classes take turns"
    assert len(read_predictions(rows_of(tmp_path, np.zeros(30))).targets) == 60


def test_probabilities_are_imported_as_their_logarithms(tmp_path):
    def change(row):
        votes = np.where(np.arange(CLASSES) == (row["target"] + 1) % CLASSES, 0.0, softmax64(row["logits"]))
        return {**without("logits")(row), "probabilities": (votes / votes.sum()).tolist()}

    rows = written(tmp_path / "p.parquet", change)
    found = read_predictions(tmp_path / "p.parquet")
    (first, *_) = found.rows
    values, (_, seed, epoch) = found.configurations[first[0]], first
    run = (values["loss"]["name"], values["lr"], seed, epoch, "val")
    own = [row for row in rows if tuple(row[key] for key in ("loss", "lr", "seed", "epoch", "split")) == run]
    expected = {row["sample"]: row["probabilities"] for row in own}
    logits = found.logits[found.rows[first]["val"]]
    assert np.isneginf(logits).sum() == len(logits)
    np.testing.assert_allclose(np.exp(logits), [expected[each] for each in sorted(expected)], rtol=1e-5)
    written(tmp_path / "bad.parquet", lambda row: {**without("logits")(row), "probabilities": [0.5, 0.6, 0.0, 0.0]})
    with pytest.raises(InvalidSearchSpace, match=r"probabilities of a row are 0.5, 0.6, 0, 0"):
        read_predictions(tmp_path / "bad.parquet")


def test_columns_of_one_name_and_a_column_called_dataset(tmp_path):
    table = pa.table({"split": ["val"], "target": [0], "logits": [[1.0, 2.0]], "dataset": ["mine"]})
    pq.write_table(table, tmp_path / "t.parquet")
    assert read_predictions(tmp_path / "t.parquet").configurations[0]["own_dataset"] == "mine"
    pq.write_table(
        pa.Table.from_arrays([*table.columns, table["split"]], [*table.column_names, "split"]), tmp_path / "t.parquet"
    )
    with pytest.raises(SweeperError, match="has several columns called 'split'"):
        read_predictions(tmp_path / "t.parquet")
