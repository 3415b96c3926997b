"""Tables of the user's own: columns by type, divisions, what is said of them, and what is wrong with one."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from sklearn import datasets as sklearn_datasets

from sweeper.planning.preparation import describe_data_file, prepare_dataset
from sweeper.space.loading import load_spec
from trainables.datasets import DataSet, load_dataset
from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.own_tables import describe_file

ROWS = 200


def mixed(seed: int = 0) -> pa.Table:
    random = np.random.RandomState(seed)
    age = random.normal(50, 10, ROWS)
    return pa.table(
        {
            "age": pa.array([None if i % 20 == 0 else float(v) for i, v in enumerate(age)]),
            "visits": pa.array(random.randint(0, 9, ROWS)),
            "ward": pa.array([None if i % 50 == 0 else "ABC"[i % 3] for i in range(ROWS)]),
            "smokes": pa.array(random.rand(ROWS) < 0.5),
            "seen": pa.array(np.datetime64("2026-01-01") + np.arange(ROWS)),
            "key": pa.array([f"patient {i}" for i in range(ROWS)]),
            "person": pa.array([i // 4 for i in range(ROWS)]),
            "part": pa.array([("train", "train", "val", "test")[i % 4] for i in range(ROWS)]),
            "outcome": pa.array([("well", "ill")[i % 5 == 0] for i in range(ROWS)]),
        }
    )


def options(**more):
    return {"target": "outcome", "drop": ["key", "part", "person"], **more}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data.parquet"
    pa.parquet.write_table(mixed(), path)
    return path


def test_columns_are_encoded_by_their_type_from_training_rows_alone(file):
    data = load_dataset("table", file=str(file), **options())
    assert (data.classes, data.class_names, data.input_shape) == (2, ("ill", "well"), (2 + 1 + 4 + 2 + 1,))
    assert [len(split) for split in data.splits.values()] == [120, 40, 40]
    numbers = data.train.inputs[:, 0]
    present = data.train.inputs[:, 1] == 0
    assert abs(float(numbers[present].mean())) < 1e-6 and abs(float(numbers[present].std(correction=0)) - 1) < 1e-5
    assert not numbers[~present].any() and data.train.inputs[:, 3:7].sum(1).eq(1).all()
    assert [int((split.targets == 0).sum()) for split in data.splits.values()] == [24, 8, 8]
    other = load_dataset("table", file=str(file), **options(split_seed=1))
    assert other.split_hash != data.split_hash


def test_one_table_in_three_formats_is_one_data_set(file, tmp_path):
    table = mixed().drop_columns(["seen", "smokes"])
    pa.csv.write_csv(table, tmp_path / "data.csv", pa.csv.WriteOptions(quoting_style="needed"))
    (tmp_path / "data.jsonl").write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    given = options(drop=["key", "part", "person", "seen", "smokes"])
    whole = load_dataset("table", file=str(file), **given)
    for name in ("data.csv", "data.jsonl"):
        less = load_dataset("table", file=str(tmp_path / name), **options())
        assert less.split_hash == whole.split_hash and torch.equal(less.train.inputs, whole.train.inputs)


def test_groups_stay_together_and_given_splits_are_kept(file):
    data = load_dataset("table", file=str(file), **options(drop=["key", "part"], group="person"))
    sizes = [len(split) for split in data.splits.values()]
    assert sum(sizes) == ROWS and all(size % 4 == 0 for size in sizes) and abs(sizes[0] - 120) <= 4
    given = load_dataset("table", file=str(file), **options(drop=["key", "person"], split="part"))
    assert [len(split) for split in given.splits.values()] == [100, 50, 50]


@pytest.mark.parametrize("name", ["table", "text_table"])
def test_a_column_of_weights_follows_its_rows_and_is_no_feature(file, name):
    more = {"drop": ["key", "part", "person", "ward", "smokes", "seen", "age"]} if name == "table" else {"text": "key"}
    table = mixed().append_column("weight", pa.array(np.arange(ROWS) + 0.5))
    table = table.set_column(table.column_names.index("visits"), "visits", pa.array(np.arange(ROWS)))
    pa.parquet.write_table(table, file)
    given = {"target": "outcome", "split": "part", "weight": "weight", **more}
    data = load_dataset(name, file=str(file), **given)
    assert data.train.weights.tolist() == [i + 0.5 for i in range(ROWS) if i % 4 < 2]
    assert data.test.weights.tolist() == [i + 0.5 for i in range(ROWS) if i % 4 == 3]
    assert name == "text_table" or data.input_shape == (1,)


def test_texts_are_words_of_the_training_rows(tmp_path):
    texts = [f"the {'good' if i % 2 else 'bad'} film number n{i}" for i in range(40)]
    pa.parquet.write_table(pa.table({"review": texts, "stars": [i % 2 for i in range(40)]}), tmp_path / "r.parquet")
    data = load_dataset("text_table", file=str(tmp_path / "r.parquet"), text="review", target="stars", length=6)
    assert data.vocabulary == 20_000 and data.train.inputs.shape == (24, 6) and data.class_names == ("0", "1")
    assert (data.test.inputs[:, :-4] == 0).all(), "a word that only a test text has is unknown"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": "outcom"}, r"has no column 'outcom'; did you mean 'outcome'"),
        ({"drop": ["part", "person"]}, r"key has \d+ values: it is a text or a key; write drop: \[key\]"),
        ({"target": "key", "drop": []}, r"key has 200 values in 200 rows, which are no classes"),
        ({"target": "ward"}, r"4 of 200 rows have no ward; leave these rows out"),
        ({"split": "ward"}, r"has unknown splits"),
        ({"weight": "visits"}, r"\d+ weights in visits are not above 0, first 0 in row \d+; leave these rows out"),
        ({"weight": "age"}, r"10 weights in age are not above 0, first nan in row 1"),
        ({"weight": "ward"}, r"the weights in ward are string, not numbers; choose another column"),
        ({"weight": "wait"}, r"has no column 'wait'"),
        ({"file": "missing.csv"}, "the file is missing"),
        ({"drop": [name for name in mixed().column_names if name != "outcome"]}, "no column besides the target"),
    ],
)
def test_a_table_that_cannot_be_used_is_a_sentence(file, change, said):
    with pytest.raises(DataSetUnavailableError, match=said):
        load_dataset("table", **{"file": str(file), **options(), **change})


def test_a_broken_file_and_one_of_another_kind(tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not really")
    (tmp_path / "data.xlsx").write_bytes(b"")
    (tmp_path / "lists.jsonl").write_text('{"a": [1, 2], "y": 1}\n{"a": [3], "y": 0}\n' * 5)
    wrong = {"broken.parquet": "cannot be read", "data.xlsx": "rename or convert", "lists.jsonl": "holds"}
    for name, said in wrong.items():
        with pytest.raises(DataSetUnavailableError, match=said):
            load_dataset("table", file=str(tmp_path / name), target="y")


def loaded(tmp_path, drop=(), **columns):
    pa.parquet.write_table(pa.table({"x": np.random.RandomState(0).randn(ROWS), **columns}), tmp_path / "t.parquet")
    return load_dataset("table", file=str(tmp_path / "t.parquet"), target="y", drop=drop)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([["", "a", "b", "a"][i % 4] for i in range(ROWS)], "50 of 200 rows have no y; leave these rows out"),
        ([["NA", "a"][i % 2] for i in range(ROWS)], "100 of 200 rows have no y"),
        ([[float("nan"), 1.0, 2.0, 1.0][i % 4] for i in range(ROWS)], "50 of 200 rows have no y"),
        (
            [round(5 + i % 60 / 10, 1) for i in range(ROWS)],
            "60 numbers, such as 5.1, which are predicted by regression",
        ),
        (
            [5 + i % 60 for i in range(ROWS)],
            "60 numbers from 5 to 64, which are predicted by regression and are no cla",
        ),
        ([float(i % 60) for i in range(ROWS)], "60 numbers from 0 to 59, which are predicted by regression"),
        ([f"{i % 30 + 0.5}%" for i in range(ROWS)], "30 numbers, such as 0.5, .* or write the classes as texts"),
        ([[1, 2]] * ROWS, "y holds list<element: int64>; choose a column of texts or numbers"),
        (pa.array([20000, 20001] * 100, pa.date32()), "y holds date32"),
    ],
)
def test_a_target_that_is_no_class_is_a_sentence(tmp_path, values, said):
    with pytest.raises(DataSetUnavailableError, match=said):
        loaded(tmp_path, y=values)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([[" >50K", ">50K", "<=50K"][i % 3] for i in range(ROWS)], ("<=50K", ">50K")),
        ([float(3 + i % 6) for i in range(ROWS)], ("3", "4", "5", "6", "7", "8")),
        ([1 + i % 30 for i in range(ROWS)], tuple(map(str, range(1, 31)))),
        (pa.array(["a", "b"] * 100 + ["unused"]).dictionary_encode()[:ROWS], ("a", "b")),
        ([i % 2 == 0 for i in range(ROWS)], ("False", "True")),
    ],
)
def test_classes_are_named_by_their_values(tmp_path, values, names):
    assert loaded(tmp_path, y=values).class_names == names


def test_times_percentages_and_large_numbers_are_numbers_and_empty_columns_are_left_out(tmp_path):
    seconds = np.arange(ROWS) % 50
    columns = {
        "time": pa.array(seconds.astype("int32"), pa.time32("s")),
        "day": pa.array(seconds * 10**9, pa.time64("ns")),
        "at": pa.array(seconds * 1_500_000_001, pa.timestamp("ns")),
        "took": pa.array(seconds * 10**6, pa.duration("us")),
        "share": [f"{i}.5%" for i in seconds],
        "large": pa.array([2**63 + 2**40 * int(i) for i in seconds], pa.uint64()),
        "nothing": pa.nulls(ROWS),
        "blank": ["", "?"] * 100,
        "__index_level_0__": np.arange(ROWS),
    }
    data = loaded(tmp_path, y=[i % 2 for i in range(ROWS)], **columns)
    assert data.input_shape == (7,)
    for number in range(2, 7):
        assert torch.allclose(data.train.inputs[:, number], data.train.inputs[:, 1], atol=1e-5)
    said = describe_file(dict(FOUND, file=str(tmp_path / "t.parquet"), target="y"))
    assert "without '__index_level_0__' (row numbers); without 'nothing' (empty); without 'blank' (empty)" in said


FOUND = {
    "name": "table", "drop": [], "validation_fraction": 0.2, "test_fraction": 0.2, "split_seed": 0
}  # fmt: skip


@pytest.mark.parametrize(
    ("column", "warned"),
    [
        (np.arange(ROWS), True),
        (-np.arange(ROWS) * 0.5, True),
        ([f"answer {i // 70}" for i in range(ROWS)], True),
        (np.arange(ROWS) % 140, False),
        (np.ones(ROWS), False),
        ([f"ward {i % 5}" for i in range(ROWS)], False),
    ],
)
def test_a_column_that_gives_the_target_away_is_warned_of(tmp_path, column, warned):
    columns = {"y": [i // 70 for i in range(ROWS)], "n": column}
    data = loaded(tmp_path, **columns)
    assert len(data.notes) == warned and all("n alone tells y in 120 training rows" in note for note in data.notes)
    said = describe_file(dict(FOUND, file=str(tmp_path / "t.parquet"), target="y"))
    assert ("; warning: n alone tells y" in said) == warned
    assert not loaded(tmp_path, drop=["n"], **columns).notes


def test_a_torch_data_set_is_one_in_a_line():
    parts = [torch.utils.data.TensorDataset(torch.randn(n, 3), torch.arange(n) % 4) for n in (40, 10, 12)]
    data = DataSet.from_torch(*parts, name="mine")
    assert (data.name, data.classes, data.input_shape, len(data.test)) == ("mine", 4, (3,), 12)
    assert torch.equal(data.train.inputs, parts[0].tensors[0]) and len(data.split_hash) == 64
    listed = DataSet.from_torch(*[[(torch.ones(2), 1), (torch.zeros(2), 0)]] * 3)
    assert listed.classes == 2 and listed.val.targets.tolist() == [1, 0]
    with pytest.raises(ValueError, match="train holds samples of several shapes"):
        DataSet.from_torch([(torch.ones(2), 1), (torch.ones(3), 0)], *parts[1:])


def test_the_example_says_what_it_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sklearn_datasets.load_wine(as_frame=True).frame.to_csv("wine.csv", index=False)
    spec = load_spec("examples/own_table")
    assert len(prepare_dataset(spec).test) == 36
    said = "wine.csv: 178 rows (106 train, 36 val, 36 test); target: 0 59, 1 71, 2 48; 13 features of 13 columns"
    assert describe_data_file(spec) == f"{said} (13 plain numbers)"
