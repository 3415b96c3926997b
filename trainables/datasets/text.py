"""Vocabularies and pretrained word vectors; `raw_inputs` turns texts into token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.datasets.cache import DataSetUnavailableError
from trainables.registry import Hyperparameter

#: The token id of a word that is not in the vocabulary; 0 is padding.
UNKNOWN = 1

WordVectors = Annotated[str | None, Hyperparameter(source="mukhoti App. D: GloVe, optional here")]


def frequent_words(texts: Iterable[Sequence[str]], size: int) -> list[str]:
    """Return the `size` most frequent words, most frequent first; ties in order of first appearance.

    Example:
        >>> frequent_words([["b", "a"], ["a", "c"]], 2)
        ['a', 'b']
    """
    return [word for word, _ in Counter(chain.from_iterable(texts)).most_common(size)]


def read_word_vectors(path: str | None, words: Sequence[str], vocabulary: int, first_id: int) -> Tensor | None:
    """Read the vectors of `words` from a text file in GloVe's format: a word and its numbers per line.

    Args:
        path: file, e.g. `glove.6B.100d.txt`; `None` for no vectors.
        words: words; word i has token id `first_id + i`.
        vocabulary: number of rows in the result.
        first_id: token id of the first word.

    Returns:
        float32 [vocabulary, dimension]; words without a vector, and padding, are zero. `None` without a file.

    Raises:
        DataSetUnavailableError: the file is missing, a line is cut, or no word was found.
    """
    if path is None:
        return None
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataSetUnavailableError(file, "the word vectors are missing", "check word_vectors, or leave it out")
    ids = {word: first_id + number for number, word in enumerate(words)}
    vectors: dict[int, NDArray[np.float32]] = {}
    dimension, damaged = 0, "download the file again"
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            word, _, numbers = line.rstrip().partition(" ")
            if word not in ids:
                continue
            try:
                vector = np.array(numbers.split(" "), np.float32)
            except ValueError as error:
                raise DataSetUnavailableError(file, f"line {number} contains no numbers", damaged) from error
            dimension = dimension or len(vector)
            if len(vector) != dimension:
                rule = f"line {number} has {len(vector)} numbers; {dimension} are expected"
                raise DataSetUnavailableError(file, rule, damaged)
            vectors[ids[word]] = vector
    if not vectors:
        raise DataSetUnavailableError(file, "contains none of the words", "give word vectors in GloVe's format")
    matrix = np.zeros((vocabulary, dimension), np.float32)
    matrix[[*vectors]] = [*vectors.values()]
    return torch.from_numpy(matrix)
