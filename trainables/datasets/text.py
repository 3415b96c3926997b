"""Words to numbers: tokens, vocabularies, padding, pretrained word vectors; and pairs of sentences as word pieces.

A pair is int32 [2, L], the source's ids above the target's, each ended by END and padded with PADDING behind; what a
network is trained on is every token of the target, each after those before it.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.datasets.cache import DataSetUnavailableError
from trainables.registry import Hyperparameter

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

# Keras' Tokenizer, which mukhoti's released code uses, cuts at these and at spaces; the apostrophe stays.
SEPARATORS = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))
#: Token ids that are no word, or no word piece; texts that are not translated have neither of the last two.
PADDING, UNKNOWN, BEGIN, END = range(4)

WordVectors = Annotated[str | None, Hyperparameter(source="mukhoti App. D: GloVe, optional here")]


def words_of(text: str) -> list[str]:
    """Return the words of a text: lower case, cut at punctuation and blanks, as Keras' Tokenizer does."""
    return [word for word in text.lower().translate(SEPARATORS).split(" ") if word]


def frequent_words(texts: Iterable[Sequence[str]], size: int) -> list[str]:
    """Return the `size` most frequent words, most frequent first; ties by first appearance."""
    return [word for word, _ in Counter(chain.from_iterable(texts)).most_common(size)]


def padded_ids(texts: Sequence[Sequence[str]], ids: dict[str, int], length: int) -> NDArray[np.int32]:
    """Return token ids [N, length]: known words only, the last `length` of them, padded in front with 0.

    Front padding and front truncation are Keras' defaults, which mukhoti's released code uses.
    """
    rows = np.zeros((len(texts), length), np.int32)
    for row, words in zip(rows, texts, strict=True):
        known = [ids[word] for word in words if word in ids][-length:]
        if known:
            row[-len(known) :] = known
    return rows


def read_word_vectors(path: str | None, words: Sequence[str], vocabulary: int, first_id: int) -> Tensor | None:
    """Read the vectors of `words` from a text file in GloVe's format: a word and its numbers a line.

    Args:
        path: the file, e.g. `glove.6B.100d.txt`; `None` where none are asked for.
        words: word i has token id `first_id + i`.
        vocabulary: rows of the result.
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
    found: dict[int, NDArray[np.float32]] = {}
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
            found[ids[word]] = vector
    if not found:
        raise DataSetUnavailableError(file, "contains none of the words", "give word vectors in GloVe's format")
    matrix = np.zeros((vocabulary, dimension), np.float32)
    matrix[[*found]] = [*found.values()]
    return torch.from_numpy(matrix)


#: Pairs that are encoded at once.
CHUNK = 100_000

REMEDY = "pip install 'calibration-sweeper[translation]'"


@dataclass(frozen=True)
class Translation:
    """What turns token ids into text, and the text that it is compared with.

    Attributes:
        tokenizer: a sentencepiece model, in base64.
        validation: the target sentences of `val` as they are written, which translations are compared with.
        test: those of `test`.
    """

    tokenizer: str
    validation: tuple[str, ...]
    test: tuple[str, ...]

    @cached_property
    def pieces(self) -> SentencePieceProcessor:
        """The tokeniser."""
        return loaded_tokenizer(base64.b64decode(self.tokenizer))

    def references(self, split: str) -> tuple[str, ...] | None:
        """Return the target sentences of `val` or `test`, `None` of another split."""
        return {"val": self.validation, "test": self.test}.get(split)

    def text(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """Return sentences from their token ids, without END and what follows it."""
        known = [[token for token in row if token not in (PADDING, BEGIN, END)] for row in tokens]
        return [str(sentence) for sentence in self.pieces.decode(known)]


def required_sentencepiece() -> Any:
    """Return the module `sentencepiece`. Raises DataSetUnavailableError where it is not installed."""
    try:
        import sentencepiece
    except ImportError as error:
        raise DataSetUnavailableError("sentencepiece", "the package is not installed", REMEDY) from error
    return sentencepiece


def trained_tokenizer(sentences: Iterable[str], size: int, *, sampled: int = 0, threads: int = 4) -> bytes:
    """Return a sentencepiece model of byte-pair encoding (Sennrich et al. 2016) with a vocabulary for all sentences.

    Args:
        sentences: of both languages.
        size: word pieces at most, the four special ids among them; fewer where the sentences have no more.
        sampled: train on so many of the sentences, drawn with a fixed seed; 0 for all.
        threads: of the training.

    Raises:
        DataSetUnavailableError: sentencepiece is not installed.
        ValueError: no vocabulary of that size can be made.
    """
    library = required_sentencepiece()
    library.set_random_generator_seed(0)
    model = io.BytesIO()
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            input_sentence_size=sampled,
            shuffle_input_sentence=bool(sampled),
            num_threads=threads,
            pad_id=PADDING,
            unk_id=UNKNOWN,
            bos_id=BEGIN,
            eos_id=END,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(f"no vocabulary of {size} word pieces: {str(error).splitlines()[-1]}") from error
    return model.getvalue()


def loaded_tokenizer(model: bytes) -> SentencePieceProcessor:
    """Return the tokeniser of a sentencepiece model. Raises DataSetUnavailableError where that is not installed."""
    processor: SentencePieceProcessor = required_sentencepiece().SentencePieceProcessor(model_proto=model)
    return processor


def encoded_pairs(
    tokenizer: SentencePieceProcessor, sources: Sequence[str], targets: Sequence[str], length: int, *, cut: bool
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return pairs of sentences as token ids.

    Args:
        tokenizer: of both languages.
        sources: sentences.
        targets: their translations.
        length: tokens of the longer side at most, END among them.
        cut: shorten longer sentences, as evaluations need every pair; otherwise such pairs are left out, and those
            with an empty side.

    Returns:
        int32 [N, 2, L], L the longest side that there is; and the numbers of the pairs kept, int64 [N].
    """
    kept: list[NDArray[np.int32]] = []
    numbers: list[int] = []
    for start in range(0, len(sources), CHUNK):
        sides = [tokenizer.encode(list(texts[start : start + CHUNK])) for texts in (sources, targets)]
        for number, pair in enumerate(zip(*sides, strict=True), start=start):
            if not cut and (max(map(len, pair)) >= length or not all(pair)):
                continue
            row = np.zeros((2, length), np.int32)
            for side, ids in enumerate(pair):
                ids = [*ids[: length - 1], END]
                row[side, : len(ids)] = ids
            kept.append(row)
            numbers.append(number)
    rows = np.stack(kept) if kept else np.zeros((0, 2, length), np.int32)
    return rows[:, :, : int(pair_lengths(rows).max(initial=1))], np.array(numbers, np.int64)


def pair_lengths(rows: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return the tokens of the longer side of each pair [N, 2, L]: what a batch is as wide as."""
    tokens = (np.asarray(rows) != PADDING).sum(axis=2, dtype=np.int64)
    lengths: NDArray[np.int64] = tokens.max(axis=1, initial=0)
    return lengths
