"""Texts are read as the data sets read theirs, from a list or a column, and ids are taken, too."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from trainables.datasets import load_dataset
from trainables.datasets.raw_inputs import RefusedInputsError, TokenizerIds, WordIds, described, reader_of

READER = WordIds(4, 6, "review", ("film", "good", "bad"), first=2, unknown=1)
TEXTS = ["A good, good film!", "bad"]
IDS = np.array([[1, 3, 3, 2], [0, 0, 0, 4]], np.int32)


@pytest.mark.parametrize(
    "given",
    [
        TEXTS, tuple(TEXTS), np.array(TEXTS), pd.Series(TEXTS), pa.array(TEXTS), {"review": TEXTS},
        pd.DataFrame({"stars": [1, 0], "review": TEXTS}), [{"review": text} for text in TEXTS], IDS, IDS.tolist(),
        pa.table({"review": TEXTS}), {"review": np.array(TEXTS)},
    ],
)  # fmt: skip
def test_texts_in_any_form_are_the_same_ids(given):
    assert np.array_equal(READER.array(given), IDS)


def test_a_single_text_a_missing_one_and_ids_of_one():
    assert np.array_equal(READER.array(TEXTS[0]), IDS[:1]) and np.array_equal(READER.array(IDS[1]), IDS[1:])
    for nothing in (None, float("nan"), " n/a", ""):
        assert not READER.array([nothing]).any()
    assert np.array_equal(READER.array([READER.example(IDS[1:])]), IDS[1:])
    assert reader_of(json.loads(json.dumps(described(READER))), None) == READER


@pytest.mark.parametrize("given", [{"text": TEXTS}, [[1, 2, 3, 6]], [[1, 2]], [1.5, "a"], 7])
def test_anything_else_is_refused(given):
    with pytest.raises(RefusedInputsError):
        READER.array(given)


@pytest.mark.integration  # importing transformers takes seconds
def test_a_tokenizer_reads_texts_as_in_the_table_and_travels(tmp_path):
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "good", "bad", "film"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "tokenizer")
    texts = ["the " * (i % 7) + ("good" if i % 3 else "bad") for i in range(40)]
    rows = pa.table(
        {"review": texts, "stars": [i % 3 // 2 for i in range(40)], "part": ["train", "val", "test", "test"] * 10}
    )
    pa.parquet.write_table(rows, tmp_path / "r.parquet")
    given = {"file": str(tmp_path / "r.parquet"), "text": "review", "target": "stars", "split": "part", "length": 8}
    data = load_dataset("text_table", tokenizer=str(tmp_path / "tokenizer"), **given)
    reader = data.transform.reader
    assert isinstance(reader, TokenizerIds) and reader.length == data.input_shape[0] == 8
    test = [text for row, text in enumerate(texts) if row % 4 > 1]
    assert np.array_equal(reader.array(test), data.test.inputs.numpy())
    assert reader.array(["good"]).shape == (1, 8), "a batch of short texts has the program's length"
    again = reader_of(described(reader) | {"folder": "tokenizer"}, tmp_path)
    assert np.array_equal(again.array(test[:3]), data.test.inputs.numpy()[:3])
