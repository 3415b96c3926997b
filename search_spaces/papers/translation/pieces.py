"""Pairs of sentences as word pieces.

A pair is int32 [2, L], the source's ids above the target's, each ended by END and padded with PADDING behind; what a
network is trained on is every token of the target, each after those before it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainables.datasets import DataSetUnavailableError

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

#: Token ids that are no word piece.
PADDING, UNKNOWN, BEGIN, END = range(4)

#: Pairs that are encoded at once.
CHUNK = 100_000

REMEDY = "pip install 'calibration-sweeper[translation]'"


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
