"""A small pair of languages: numbers read digit by digit in English, and backwards in German.

What a rehearsal of translation learns in minutes on two cores: words to words, and their order.
`seven one nine` is `neun eins sieben`; one word in `noise` is another digit's, so that a sentence cannot be known for
certain and confidence has something to be compared with.
"""

from __future__ import annotations

import numpy as np

from trainables.datasets.base import DataSet
from trainables.datasets.wmt14 import ParallelText, encoded_parts, translation_dataset
from trainables.registry import Component, DataSetSize, Hyperparameter, Options

NAME = "number_words"
ENGLISH = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
GERMAN = ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")
SHORTEST, LONGEST = 3, 7
VOCABULARY = 120
"""Word pieces at most: the twenty words, and the letters and pieces that they are joined from."""
LONGEST_PAIR = 40
"""Tokens of a sentence at most; no number has so many."""


def load_number_words(
    train_samples: int = 4000,
    validation_samples: int = 200,
    test_samples: int = 200,
    noise: float = 0.1,
    seed: int = 0,
) -> DataSet:
    """Draw numbers of 3 to 7 digits and write them in both languages.

    Args:
        train_samples: pairs of the training split.
        validation_samples: of the validation split.
        test_samples: of the test split.
        noise: share of the German words that are drawn at random.
        seed: of the draws.

    Raises:
        DataSetUnavailableError: sentencepiece is not installed.
    """
    random = np.random.default_rng(seed)
    train, val, test = (_drawn(random, count, noise) for count in (train_samples, validation_samples, test_samples))
    arrays = encoded_parts(train, [val, test], VOCABULARY, LONGEST_PAIR, NAME)
    return translation_dataset(NAME, arrays, [val, test])


def _drawn(random: np.random.Generator, count: int, noise: float) -> ParallelText:
    sources, targets = [], []
    for _ in range(count):
        digits = random.integers(10, size=random.integers(SHORTEST, LONGEST + 1))
        sources.append(" ".join(ENGLISH[digit] for digit in digits))
        heard = np.where(random.random(len(digits)) < noise, random.integers(10, size=len(digits)), digits)
        targets.append(" ".join(GERMAN[digit] for digit in heard[::-1]))
    return ParallelText(sources, targets)


def _samples(name: str, default: int, source: str) -> Hyperparameter:
    return Hyperparameter(name, "integer", minimum=20, source=source)


def _on_paper(options: Options) -> DataSetSize:
    train, val, test = (int(options[f"{split}_samples"]) for split in ("train", "validation", "test"))
    return DataSetSize((2, LONGEST + 1), VOCABULARY, train, val, test, text=True)


COMPONENTS = (
    Component(
        NAME,
        load_number_words,
        (
            _samples("train_samples", 4000, "our choice: two layers learn the order from them"),
            _samples("validation_samples", 200, "our choice"),
            _samples("test_samples", 200, "our choice"),
            Hyperparameter("noise", "number", range="[0, 1]", source="our choice"),
            Hyperparameter("seed", "integer", minimum=0, source="arbitrary"),
        ),
        summary="numbers in English and, backwards, in German: a pair of languages learnt in minutes",
        source="ours",
        tags=frozenset({"translation"}),
        size=_on_paper,
        stand_in={},
    ),
)
