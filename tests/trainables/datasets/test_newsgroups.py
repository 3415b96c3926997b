import numpy as np
import pytest
import torch

from trainables.datasets import DataSetUnavailableError, load_dataset, newsgroups as module
from trainables.datasets.base import hash_of_splits
from trainables.datasets.raw_inputs import padded_ids, words_of
from trainables.datasets.text import frequent_words, read_word_vectors

GROUPS = ("alt.atheism", "comp.graphics", "sci.space")
PINNED_SPLIT = "57efc371fee474536bae436f202425f5adaa359cccd26ba1d63c2d7d1f57e0e5"


@pytest.fixture(autouse=True)
def fewer_for_validation(monkeypatch):
    monkeypatch.setattr(module, "VALIDATION_SAMPLES", 6)


def write_messages(folder, per_group=20):
    tree = folder / module.MEMBER
    for number, group in enumerate(GROUPS):
        (tree / group).mkdir(parents=True)
        for message in range(per_group):
            body = f"Header: hidden{message}\nSubject: x\n\nThe word{number} of Caf\xe9, it's #{message}!\n"
            (tree / group / str(50_000 + message)).write_text(body, encoding="latin-1")
        (tree / group / ".hidden").write_text("no message")
    return tree


def test_messages_are_read_as_the_released_code_does(tmp_path):
    write_messages(tmp_path / "data")
    data = load_dataset("newsgroups20", folder=str(tmp_path / "data"), length=10, vocabulary=30)
    assert data.class_names == GROUPS and data.vocabulary == 30 and data.input_shape == (10,)
    assert [len(split) for split in (data.train, data.val, data.test)] == [42, 6, 12]
    inputs = torch.cat([data.train.inputs, data.val.inputs, data.test.inputs])
    assert inputs.max() < 30 and inputs.min() == 0 and (inputs[:, 0] == 0).all() and (inputs[:, -1] > 0).any()
    assert load_dataset("newsgroups20", folder=str(tmp_path / "data"), length=10, vocabulary=30).split_hash


def test_the_published_split_is_pinned(monkeypatch):
    monkeypatch.setattr(module, "VALIDATION_SAMPLES", 900)
    parts = module.newsgroup_split(19_997)
    assert [len(part) for part in parts] == [15_098, 900, 3_999]
    assert hash_of_splits(*parts) == PINNED_SPLIT
    order = np.arange(19_997)
    np.random.RandomState(1).shuffle(order)
    assert np.array_equal(np.sort(order[-3999:]), parts[2]) and np.array_equal(np.sort(order[:15_098]), parts[0])


def test_headers_go_and_accents_stay(tmp_path):
    tree = write_messages(tmp_path)
    body = module.message_body(tree / GROUPS[1] / "50003")
    assert words_of(body) == ["the", "word1", "of", "caf\xe9", "it's", "3"]


def test_words_are_counted_and_padded_in_front():
    texts = [["b", "a", "b"], ["c", "a", "b"]]
    words = frequent_words(texts, 2)
    assert words == ["b", "a"]
    rows = padded_ids([*texts, []], {"b": 1, "a": 2}, 4)
    assert rows.tolist() == [[0, 1, 2, 1], [0, 0, 2, 1], [0, 0, 0, 0]]
    assert padded_ids([["a", "b", "b", "b"]], {"b": 1, "a": 2}, 3).tolist() == [[1, 1, 1]]


def test_word_vectors_are_read_for_known_words(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2 3\nunknown 9 9 9\nword1 4 5.5 -6e-1\n")
    vectors = read_word_vectors(str(path), ["the", "of", "word1"], 6, first_id=1)
    assert vectors.tolist() == [[0, 0, 0], [1, 2, 3], [0, 0, 0], [4, 5.5, pytest.approx(-0.6)], [0, 0, 0], [0, 0, 0]]
    write_messages(tmp_path / "data")
    data = load_dataset("newsgroups20", folder=str(tmp_path / "data"), word_vectors=str(path), vocabulary=40)
    assert data.word_vectors.shape == (40, 3) and data.word_vectors.abs().sum(1).gt(0).sum() == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("the 1 2 3\nof 1 2\n", "line 2 has 2 numbers; 3 are expected"),
        ("the one two\n", "line 1 contains no numbers"),
        ("xyz 1 2\n", "contains none of the words"),
        (None, "are missing"),
    ],
)
def test_broken_word_vectors_are_named(tmp_path, text, sentence):
    path = tmp_path / "glove.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataSetUnavailableError, match=sentence):
        read_word_vectors(str(path), ["the", "of"], 5, first_id=1)


def test_missing_and_broken_messages_are_named(tmp_path, monkeypatch):
    with pytest.raises(DataSetUnavailableError, match=r"archive\.ics\.uci\.edu"):
        load_dataset("newsgroups20")
    tree = write_messages(tmp_path / "data", per_group=3)
    monkeypatch.setattr(module, "VALIDATION_SAMPLES", 900)
    with pytest.raises(DataSetUnavailableError, match="9 messages are too few"):
        load_dataset("newsgroups20", folder=str(tmp_path / "data"))
    for path in (tree / GROUPS[0]).glob("5*"):
        path.unlink()
    with pytest.raises(DataSetUnavailableError, match="numbered messages for each group"):
        load_dataset("newsgroups20", folder=str(tmp_path / "data"))
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / module.INNER_ARCHIVE).write_bytes(b"\x1f\x8b\x08\0garbage")
    with pytest.raises(DataSetUnavailableError, match="cannot be unpacked"):
        load_dataset("newsgroups20", folder=str(cut))
