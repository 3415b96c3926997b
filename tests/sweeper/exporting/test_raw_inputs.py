"""A network that was trained on a table goes home with its transform: raw rows have the sweep's own probabilities."""

from __future__ import annotations

import json
from dataclasses import replace

import mlflow.pyfunc
import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch

import sweeper
from sweeper.exporting.program import RawNetworks, exported_program, raw_batches, reader_for
from tests.sweeper.exporting.swept import calibrated, odd_table, swept_table
from trainables.datasets import DataSet, Split, Transform, load_dataset
from trainables.datasets.raw_inputs import Numbers
from trainables.datasets.transforms import Undeclared


@pytest.mark.integration
@pytest.mark.parametrize("name", ["breast_cancer", "odd", "texts"])
def test_raw_rows_have_the_sweeps_probabilities_in_every_runtime(name, tmp_path):
    paths, rows = swept_table(tmp_path / name, name)
    done = sweeper.export(name, tmp_path / "model", replicate="all", onnx=True, output=paths.root.parent)
    expected = calibrated(paths, done.trial, [0, 1])
    model = sweeper.load_model(done.folder)
    shuffled = rows[np.random.RandomState(0).permutation(rows.columns)]
    forms = [rows, shuffled, shuffled.to_dict("list"), rows.to_dict("records")]
    for given in forms:
        assert np.abs(model.predict(given).numpy() - expected).max() < 1e-6
    rows.to_csv(tmp_path / "rows.csv", index=False)
    assert np.abs(model.predict(tmp_path / "rows.csv").numpy() - expected).max() < 1e-6
    served = mlflow.pyfunc.load_model(str(done.folder))
    assert np.abs(served.predict(shuffled) - expected).max() < 1e-6
    example = served.metadata.load_input_example(str(done.folder))
    assert np.abs(served.predict(example) - expected[:1]).max() < 1e-6
    session = onnxruntime.InferenceSession(str(done.folder / "model.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"inputs": model.reader.array(rows)})
    assert np.abs(found - expected).max() < 1e-5
    # the classes and columns are named where people and programs look for them
    card, names = (
        (done.folder / "model_card.md").read_text("utf-8"),
        json.loads((done.folder / "model.json").read_text()),
    )
    for word in model.class_names:
        assert word in card and word in names["class_names"]
    for column in getattr(model.reader, "columns", ()):
        assert column.name.replace("|", "\\|") in card
    if name == "breast_cancer":
        assert (model.predict(rows).argmax(1).numpy() == rows["target"]).mean() > 0.9


@pytest.fixture
def table(tmp_path):
    odd_table().to_csv(tmp_path / "rows.csv", index=False)
    return load_dataset("table", file=str(tmp_path / "rows.csv"), target="kind", split="part")


def test_the_program_of_a_table_takes_its_raw_rows(table):
    networks = RawNetworks(table, torch.nn.Identity())
    rows = odd_table().query("part == 'test'")
    assert torch.equal(networks(torch.from_numpy(reader_for(table).array(rows))), table.test.inputs)
    assert torch.equal(torch.cat([networks(raw) for raw in raw_batches(table, 7)]), table.test.inputs)


def test_a_data_set_that_cannot_say_its_transform_is_refused_and_one_without_is_raw(table):
    with pytest.raises(sweeper.SweeperError, match="table cannot say how its inputs are made from raw ones: a secret"):
        RawNetworks(replace(table, transform=Undeclared("a secret")), torch.nn.Identity())
    plain = replace(table, transform=None)
    assert reader_for(plain) == Numbers(table.input_shape, "float32", integers=False)
    assert torch.equal(next(raw_batches(plain, 1000)), table.test.inputs)


def test_a_data_sets_own_transform_travels_in_the_program():
    celsius = torch.tensor([[-4.0], [21.0], [30.0]])
    module = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Tanh())
    with torch.no_grad():
        split = Split(module(celsius), torch.tensor([0, 1, 1]))
    own = DataSet("own", split, split, split, 2, (1,), "", transform=Transform(module, celsius))
    assert reader_for(own) == Numbers((1,), "float32")
    program = exported_program(RawNetworks(own, torch.nn.Identity()).eval(), celsius)
    assert torch.allclose(program.module()(celsius[:2]), split.inputs[:2])
    with pytest.raises(ValueError, match="test split's raw inputs"):
        Transform(module)


def test_a_missing_number_that_no_row_lacks_is_not_replaced_in_silence(table):
    raw = table.transform.raw[:1].clone()
    raw[0, [column.name for column in reader_for(table).columns].index("made")] = torch.nan
    assert table.transform.module(raw).isnan().any()


def test_pandas_own_missing_values_are_missing_values(table):
    rows = odd_table().query("part == 'test'")
    given = rows.convert_dtypes()
    assert pd.isna(given.iloc[:, 0]).any()
    assert np.array_equal(reader_for(table).array(given), reader_for(table).array(rows), equal_nan=True)
