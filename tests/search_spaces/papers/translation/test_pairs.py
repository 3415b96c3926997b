"""WMT 2014 from its files, and the pairs of numbers that stand in for it.

Sentences as word pieces.
"""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from search_spaces.papers.translation.pairs import (
    END,
    UNKNOWN,
    Pairs,
    encoded_pairs,
    loaded_tokenizer,
    number_words,
    trained_tokenizer,
    wmt14_en_de,
)
from trainables.datasets import DataSetUnavailableError
from trainables.datasets.sharing import content_key

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


def loaded(folder: Path, **options: int) -> Pairs:
    return wmt14_en_de(str(folder), **{"vocabulary": 60, "length": 30, **options})


def test_sentences_come_back_from_their_ids(tmp_path: Path) -> None:
    dataset = loaded(written(tmp_path / "wmt14_en_de"))
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (60, 5, 6)
    for part, split in (("newstest2013", "val"), ("newstest2014", "test")):
        lines = (tmp_path / "wmt14_en_de" / f"{part}.de").read_text(encoding="utf-8").splitlines()
        assert dataset.references[split] == lines
        assert dataset.text(dataset.splits[split].inputs[:, 1].tolist()) == lines
    every = dataset.train.inputs
    assert dataset.input_shape == tuple(every.shape[1:]) and int(every.max()) < dataset.classes
    assert torch.equal((every == END).sum(2), torch.ones(60, 2, dtype=torch.int64)), "each side ends once"


def test_a_second_load_reads_what_the_first_one_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "wmt14_en_de")
    first = loaded(folder)
    monkeypatch.setattr("search_spaces.papers.translation.pairs.trained_tokenizer", None)
    assert content_key(loaded(folder)) == content_key(first)


def test_pairs_that_are_too_long_or_empty_are_left_out_of_training_and_cut_in_tests(tmp_path: Path) -> None:
    long = " ".join(["house"] * 40), " ".join(["Haus"] * 40)
    train = [("the house", "das Haus"), long, ("", "das"), ("tree", ""), ("old tree", "alt Baum")] * 4
    folder = written(tmp_path / "data", train=train, newstest2014=[long, ("the tree", "das Baum")])
    dataset = loaded(folder)
    assert len(dataset.train) == 8
    assert len(dataset.test) == 2 and int((dataset.test.inputs[0, 1] != 0).sum()) == 30
    assert dataset.references["test"][0] == long[1], "the reference stays whole"


def test_separators_inside_a_sentence_do_not_shift_the_lines(tmp_path: Path) -> None:
    odd = [("the\u2028house", "das Haus"), ("green\x0ctree", "grün Baum")]
    dataset = loaded(written(tmp_path / "data", newstest2013=odd))
    assert dataset.references["val"] == ["das Haus", "grün Baum"]


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


def test_numbers_are_read_backwards_in_german() -> None:
    dataset = number_words(train_samples=50, noise=0.0)
    german = dict(
        zip(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"], NAMES, strict=True)
    )
    for row, reference in zip(dataset.val.inputs.tolist(), dataset.references["val"], strict=True):
        (english,) = dataset.text([row[0]])
        assert reference == " ".join(german[word] for word in reversed(english.split()))


NAMES = ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")


def test_noise_replaces_words_and_keeps_their_number() -> None:
    plain, noisy = (number_words(train_samples=400, noise=noise) for noise in (0.0, 0.5))
    again = number_words(train_samples=400, noise=0.5)
    assert content_key(again) == content_key(noisy) != content_key(plain)
    words = [text.split() for text in noisy.references["test"]]
    sources = [text.split() for text in noisy.text(noisy.test.inputs[:, 0].tolist())]
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


def test_unknown_letters_become_the_unknown_token() -> None:
    tokenizer = loaded_tokenizer(trained_tokenizer(["ein Haus", "a house"] * 10, 40))
    rows, kept = encoded_pairs(tokenizer, ["a house", "ψ"], ["ein Haus", "Haus"], 12, cut=True)
    assert kept.tolist() == [0, 1]
    assert UNKNOWN in rows[1, 0] and UNKNOWN not in rows[0]
