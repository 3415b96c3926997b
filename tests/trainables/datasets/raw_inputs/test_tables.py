"""Rows of a table are read by column name, in any form, and every fault is named at once."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from trainables.datasets import load_dataset
from trainables.datasets.raw_inputs import Column, RefusedInputsError, TableRows, described, reader_of

#: Odd names, a column that lacks values, times, and booleans.
ROWS = [
    {"age": 50.5, 'it\'s "odd" |': "A", "True": True, "seen": "2026-01-02", "at": "10:00:00"},
    {"age": None, 'it\'s "odd" |': None, "True": False, "seen": "2026-03-01 12:00:00", "at": "10:00:01.5"},
]
READER = TableRows(
    (
        Column("age", "number", missing=True),
        Column('it\'s "odd" |', "text", ("", "A", "B")),
        Column("True", "bool", ("false", "true")),
        Column("seen", "timestamp"),
        Column("at", "time"),
    ),
    ("target", "id"),
)
SEEN = [pd.Timestamp(row["seen"]).timestamp() for row in ROWS]
EXPECTED = np.array([[50.5, 1, 1, SEEN[0], 36_000], [np.nan, 0, 0, SEEN[1], 36_001.5]])


def frame() -> pd.DataFrame:
    made = pd.DataFrame(ROWS)
    made["seen"] = pd.to_datetime(made["seen"], format="mixed")
    made['it\'s "odd" |'] = made['it\'s "odd" |'].astype("category")
    return made.rename(columns={"True": True})


@pytest.mark.parametrize(
    "given",
    [
        ROWS,
        {name: [row[name] for row in ROWS] for name in ROWS[0]},
        frame(),
        frame()[frame().columns[::-1]].assign(target=0, id=["a", "b"]),
        pa.Table.from_pylist(ROWS),
        [[*row.values()] for row in ROWS],
        EXPECTED,
        torch.from_numpy(EXPECTED),
        EXPECTED.tolist(),
    ],
)
def test_rows_in_any_form_are_the_same_numbers(given):
    assert np.array_equal(READER.array(given), EXPECTED, equal_nan=True)


def test_one_row_is_one_row():
    for given in (ROWS[0], EXPECTED[0], [*ROWS[0].values()], [ROWS[0]]):
        assert np.array_equal(READER.array(given), EXPECTED[:1])


def test_an_example_and_a_description_in_json_give_the_reader_and_the_row_again(tmp_path):
    again = reader_of(json.loads(json.dumps(described(READER))), tmp_path)
    assert again == READER
    for row in EXPECTED:
        example = json.loads(json.dumps(again.example(row[None])))
        assert np.array_equal(again.array([example]), row[None], equal_nan=True)


def changed(**values):
    return [{**ROWS[0], **values}]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (changed(age="old"), ["age holds texts such as 'old'", "numbers"]),
        (changed(age="45%"), ["age holds texts such as '45%'"]),
        (changed(age=True), ["age holds bool", "numbers"]),
        (changed(seen=None), ["seen is missing in row 0 (1 in all)"]),
        (changed(seen=3.0), ["seen holds double", "timestamps"]),
        (changed(at="soon"), ["at holds texts such as 'soon'"]),
        (changed(**{"it's \"odd\" |": "C"}), ["= 'C' in row 0 (1 in all)", "'', 'A', 'B'"]),
        (changed(**{"it's \"odd\" |": 1}), ["holds int64", "text values"]),
        (changed(**{"True": None}), ["True is missing in row 0 (1 in all)", "'false', 'true'"]),
        (changed(weight=1, height=2), ["has no column 'weight', 'height': remove it"]),
        ([{"age": 1.0, "seen": "2026-01-01"}], ["they lack the column", "'True', 'at'"]),
        ({**{name: [value] for name, value in ROWS[0].items()}, "age": [1.0, 2.0]}, ["unequal numbers"]),
        (changed(age=[1, 2]), ["age holds list"]),
        (changed() + changed(age="old"), ["age has values of several types, such as 50.5 and 'old'"]),
        ([[1, 2]], ["object [1, 2]"]),
        ([[1.0, 3, 0, 0, 0]], ["= 3 in row 0", "codes are 0 to 2"]),
        ([[1.0, 0.5, 0, 0, 0]], ["= 0.5 in row 0"]),
        (changed(age="old", seen=None, **{"True": "maybe"}), ["age holds", "seen is missing", "True = 'maybe'"]),
        (pd.DataFrame([[1, 2]], columns=["age", "age "]), ["several columns are called 'age'"]),
    ],
)  # fmt: skip
def test_every_fault_is_named_with_value_rule_and_remedy(given, said):
    with pytest.raises(RefusedInputsError) as refused:
        READER.array(given)
    assert all(words in refused.value.problem for words in said), refused.value.problem
    assert refused.value.remedy


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A data set with missing numbers, categories of which one is only in test rows, and its rows."""
    random, rows = np.random.RandomState(0), 120
    part = np.array(["train", "val", "test"])[np.arange(rows) % 3]
    data = pd.DataFrame({
        "size": np.where(np.arange(rows) % 7 == 0, np.nan, random.randn(rows)),
        "colour": [None if row % 11 == 0 else ["red", "blue", "NA "][row % 2] for row in range(rows)],
        "new": random.rand(rows) < 0.5,
        "made": np.datetime64("2026-01-01") + np.arange(rows),
        "part": part, "kind": np.arange(rows) % 2,
    })  # fmt: skip
    data.loc[5, "colour"] = "green"  # a test row
    file = tmp_path_factory.mktemp("table") / "data.csv"
    data.to_csv(file, index=False)
    return load_dataset("table", file=str(file), target="kind", split="part"), data[part == "test"]


def test_the_reader_and_the_module_make_the_data_sets_own_inputs(table):
    dataset, rows = table
    transform = dataset.transform
    known = rows.index != 5
    made = transform.reader.array(rows[known])
    assert torch.equal(transform.module(torch.from_numpy(made)), dataset.test.inputs[torch.from_numpy(known)])
    assert torch.equal(transform.module(transform.raw), dataset.test.inputs)
    with pytest.raises(
        RefusedInputsError, match=r"colour = 'green' in row \d+ \(1 in all\), which no training row has"
    ):
        transform.reader.array(rows)
