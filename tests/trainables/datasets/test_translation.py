"""WMT 2014 from its files, and the pairs of numbers that stand in for it."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from trainables.datasets import load_dataset
from trainables.datasets.base import DATASETS, DataSet, batches, of_like_length
from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.sharing import content_key, shared_dataset
from trainables.datasets.text import END, UNKNOWN, encoded_pairs, loaded_tokenizer, trained_tokenizer

WORDS = {"the": "das", "house": "Haus", "is": "ist", "green": "grün", "and": "und", "old": "alt", "tree": "Baum"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEPER_DATA", str(tmp_path / "cache"))


def written(folder: Path, **parts: list[tuple[str, str]]) -> Path:
    """Write the six files; `parts` replace those of a part."""
    drawn = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 60), ("newstest2013", 5), ("newstest2014", 6)):
        lines = [drawn.choices([*WORDS], k=drawn.randint(2, 6)) for _ in range(count)]
        pairs = parts.get(part) or [(" ".join(line), " ".join(WORDS[word] for word in line)) for line in lines]
        for side, language in enumerate(("en", "de")):
            (folder / f"{part}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return folder


def loaded(folder: Path, **options: int) -> DataSet:
    return load_dataset("wmt14_en_de", folder=str(folder), **{"vocabulary": 60, "length": 30, **options})


def test_sentences_come_back_from_their_ids(tmp_path: Path) -> None:
    dataset = loaded(written(tmp_path / "wmt14_en_de"))
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (60, 5, 6)
    assert dataset.translation is not None
    for part, split in (("newstest2013", "val"), ("newstest2014", "test")):
        lines = (tmp_path / "wmt14_en_de" / f"{part}.de").read_text(encoding="utf-8").splitlines()
        assert list(dataset.translation.references(split) or ()) == lines
        assert dataset.translation.text(dataset.splits[split].inputs[:, 1].tolist()) == lines
    every = dataset.train.inputs
    assert dataset.input_shape == tuple(every.shape[1:]) and int(every.max()) < dataset.classes
    assert torch.equal((every == END).sum(2), torch.ones(60, 2, dtype=torch.int64)), "each side ends once"
    assert dataset.train.lengths is not None
    assert torch.equal(dataset.train.lengths, (every != 0).sum(2).max(1).values)
    assert dataset.translation.references("train") is None


def test_a_second_load_reads_what_the_first_one_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "wmt14_en_de")
    first = loaded(folder)
    monkeypatch.setattr("trainables.datasets.translation.trained_tokenizer", None)
    assert content_key(loaded(folder)) == content_key(first)


def test_pairs_that_are_too_long_or_empty_are_left_out_of_training_and_cut_in_tests(tmp_path: Path) -> None:
    long = " ".join(["house"] * 40), " ".join(["Haus"] * 40)
    train = [("the house", "das Haus"), long, ("", "das"), ("tree", ""), ("old tree", "alt Baum")] * 4
    folder = written(tmp_path / "data", train=train, newstest2014=[long, ("the tree", "das Baum")])
    dataset = loaded(folder)
    assert len(dataset.train) == 8
    assert len(dataset.test) == 2 and int((dataset.test.inputs[0, 1] != 0).sum()) == 30
    assert dataset.translation is not None and dataset.translation.test[0] == long[1], "the reference stays whole"


def test_separators_inside_a_sentence_do_not_shift_the_lines(tmp_path: Path) -> None:
    odd = [("the\u2028house", "das Haus"), ("green\x0ctree", "grün Baum")]
    dataset = loaded(written(tmp_path / "data", newstest2013=odd))
    assert dataset.translation is not None and dataset.translation.validation == ("das Haus", "grün Baum")


def test_missing_and_unequal_files_are_named_with_the_remedy(tmp_path: Path) -> None:
    folder = written(tmp_path / "data")
    (folder / "newstest2013.de").write_text("das\n")
    with pytest.raises(DataSetUnavailableError, match=r"has 5 lines, but newstest2013.de has 1"):
        loaded(folder)
    (folder / "train.en").unlink()
    with pytest.raises(DataSetUnavailableError, match=r"train.en: the file is missing; put train.en, train.de"):
        loaded(folder)
    with pytest.raises(DataSetUnavailableError, match="give the data set another vocabulary"):
        loaded(written(tmp_path / "other"), vocabulary=8)
    with pytest.raises(DataSetUnavailableError, match="no training pair of at most 2 tokens"):
        loaded(written(tmp_path / "third"), length=2)


@pytest.mark.parametrize("name", ["wmt14_en_de", "number_words"])
def test_without_sentencepiece_the_remedy_is_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(
        DataSetUnavailableError, match=r"not installed; pip install 'calibration-sweeper\[translation\]'"
    ):
        load_dataset(name)


def test_unknown_letters_become_the_unknown_token() -> None:
    tokenizer = loaded_tokenizer(trained_tokenizer(["ein Haus", "a house"] * 10, 40))
    rows, kept = encoded_pairs(tokenizer, ["a house", "ψ"], ["ein Haus", "Haus"], 12, cut=True)
    assert kept.tolist() == [0, 1]
    assert UNKNOWN in rows[1, 0] and UNKNOWN not in rows[0]


def test_numbers_are_read_backwards_in_german() -> None:
    dataset = load_dataset("number_words", train_samples=50, noise=0.0)
    assert dataset.translation is not None
    german = dict(
        zip(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"], NAMES, strict=True)
    )
    for row, reference in zip(dataset.val.inputs.tolist(), dataset.translation.validation, strict=True):
        (english,) = dataset.translation.text([row[0]])
        assert reference == " ".join(german[word] for word in reversed(english.split()))


NAMES = ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")


def test_noise_replaces_words_and_keeps_their_number() -> None:
    plain, noisy = (load_dataset("number_words", train_samples=400, noise=noise) for noise in (0.0, 0.5))
    assert plain.translation is not None and noisy.translation is not None
    again = load_dataset("number_words", train_samples=400, noise=0.5)
    assert content_key(again) == content_key(noisy) != content_key(plain)
    words = [text.split() for text in noisy.translation.test]
    sources = [text.split() for text in noisy.translation.text(noisy.test.inputs[:, 0].tolist())]
    assert [len(each) for each in words] == [len(each) for each in sources]
    german = dict(
        zip(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"], NAMES, strict=True)
    )
    told = [
        (german[s] == t)
        for row, other in zip(sources, words, strict=True)
        for s, t in zip(row[::-1], other, strict=True)
    ]
    assert np.mean(told) == pytest.approx(0.55, abs=0.06)  # half drawn anew, a tenth of these by chance the same


def test_the_size_on_paper_is_that_of_the_data() -> None:
    options = {h.name: h.default for h in DATASETS["number_words"].hyperparameters}
    size, dataset = DATASETS["number_words"].size(options), load_dataset("number_words")  # type: ignore[misc]
    assert (size.train, size.val, size.test) == (len(dataset.train), len(dataset.val), len(dataset.test))
    assert (size.classes, size.input_shape) == (dataset.classes, dataset.input_shape)


def test_a_shared_copy_holds_tokeniser_and_references() -> None:
    dataset = load_dataset("number_words", train_samples=30)
    key = content_key(dataset)
    shared_dataset(key, lambda: dataset)
    mapped = shared_dataset(key, lambda: pytest.fail("the copy was not used"))
    assert mapped.translation == dataset.translation
    assert torch.equal(mapped.train.inputs, dataset.train.inputs)


def test_batches_hold_pairs_of_like_length_and_as_many_tokens_as_asked() -> None:
    dataset = load_dataset("number_words", train_samples=300)
    generator = torch.Generator().manual_seed(0)
    found = [inputs for inputs, _ in batches(dataset.train, 100, generator)]
    assert sum(map(len, found)) == 300
    drawn = torch.cat(found)
    assert sorted(map(tuple, drawn.flatten(1).tolist())) == sorted(map(tuple, dataset.train.inputs.flatten(1).tolist()))
    for inputs in found:
        widths = (inputs != 0).sum(2).max(1).values
        assert int(widths.max()) * len(inputs) <= 100
        assert int(widths.max() - widths.min()) <= 1
    another = [inputs for inputs, _ in batches(dataset.train, 100, generator)]
    assert any(len(a) != len(b) or not torch.equal(a, b) for a, b in zip(found, another, strict=False)), "a new order"


def test_a_sample_longer_than_a_batch_is_a_batch_of_its_own() -> None:
    lengths = torch.tensor([3, 50, 4, 3])
    found = of_like_length(lengths, torch.arange(4), 8, torch.Generator().manual_seed(0))
    assert sorted(each.tolist() for each in found) == [[0, 3], [1], [2]]
