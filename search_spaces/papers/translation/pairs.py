"""Pairs of sentences to translate: WMT 2014, and numbers in two languages for rehearsals.

WMT 2014 English to German (Bojar et al. 2014) is plain text, one sentence per line, both languages line by line. The
training text is what statmt.org publishes for that task (Europarl v7, Common Crawl, News Commentary v9; some 4.5
million pairs), joined by the user; newstest2013 validates and newstest2014 tests, as in Vaswani et al. 2017.

As word pieces, a pair is int32 [2, L]: the source's ids, then the target's, each with END and then PADDING at the end.
A network is trained to predict every token of the target, given the tokens before it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainables.datasets import DataSet, DataSetUnavailableError, Split, hash_of_splits
from trainables.datasets.cache import Folder, data_folder, prepared_arrays

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor


MEMBER = "wmt14_en_de"
#: Training, validation and test text: `<part>.en` and `<part>.de`.
PARTS = ("train", "newstest2013", "newstest2014")

#: Most sentences from which the vocabulary is made. It depends only on the pieces' frequencies.
SAMPLED = 4_000_000

REMEDY = (
    "put train.en, train.de, newstest2013.en, newstest2013.de, newstest2014.en and newstest2014.de there, a sentence a "
    "line (`sacrebleu -t wmt14/full -l en-de --echo src ref` writes the tests)"
)


@dataclass(frozen=True)
class Pairs(DataSet):
    """Pairs of sentences.

    Attributes:
        tokenizer: sentencepiece model of both languages.
        references: original target sentences of `val` and `test`, with which translations are compared.
    """

    tokenizer: bytes = b""
    references: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @cached_property
    def _pieces(self) -> SentencePieceProcessor:
        return loaded_tokenizer(self.tokenizer)

    def text(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """Return sentences from their token ids, without special tokens."""
        known = [[token for token in row if token not in (PADDING, BEGIN, END)] for row in tokens]
        return [str(sentence) for sentence in self._pieces.decode(known)]


#: Sentences in two languages, line by line, of one split.
Parallel = tuple[list[str], list[str]]


def read_parallel(folder: Path, part: str) -> Parallel:
    """Read one part's two files.

    Raises:
        DataSetUnavailableError: a file is empty, or the two differ in their number of lines.
    """
    texts = []
    for language in ("en", "de"):
        path = folder / f"{part}.{language}"
        # Not splitlines(): it also cuts at Unicode separators inside a sentence, and then lines no longer match.
        lines = path.read_text(encoding="utf-8", errors="replace").removesuffix("\n").split("\n")
        texts.append([line.strip() for line in lines])
    source, target = texts
    if len(source) != len(target):
        rule = f"has {len(source):,} lines, but {part}.de has {len(target):,}; their lines translate each other"
        raise DataSetUnavailableError(folder / f"{part}.en", rule, REMEDY)
    if not any(source) or not any(target):
        raise DataSetUnavailableError(folder / f"{part}.en", "contains no sentences", REMEDY)
    return source, target


def wmt14_en_de(
    folder: Folder = None, vocabulary: Annotated[int, "[8, inf)"] = 37_000, length: Annotated[int, "[2, inf)"] = 128
) -> Pairs:
    """WMT 2014 English-German, 4,500,000/3,000/3,003 pairs of sentences as word pieces.

    Load WMT 2014 English to German as pairs of token ids, int32 [N, 2, L].

    The vocabulary is made from the training text of both languages. Training pairs with an empty side or more than
    `length` tokens on a side are left out. Test pairs are cut, and their translations compared with whole references.

    Source: mukhoti section 5.2; Bojar et al. 2014; Vaswani et al. 2017.

    Args:
        folder: folder that contains the six files, directly or in a folder `wmt14_en_de`; see `data_folder`.
        vocabulary: word pieces, shared by both languages (Vaswani et al. 2017, section 5.1: about 37,000)
            [Vaswani et al. 2017, section 5.1].
        length: most tokens of a sentence [our choice: .3 % of the pairs are longer].

    Raises:
        DataSetUnavailableError: files are missing or do not belong together, or sentencepiece is not installed.
    """
    required_sentencepiece()
    root = data_folder(folder)
    place = root / MEMBER if (root / MEMBER).is_dir() else root
    files = [place / f"{part}.{language}" for part in PARTS for language in ("en", "de")]
    for file in files:
        if not file.is_file():
            raise DataSetUnavailableError(file, "the file is missing", REMEDY)
    tests = [read_parallel(place, part) for part in PARTS[1:]]

    def encode() -> dict[str, NDArray[np.generic]]:
        return encoded_parts(read_parallel(place, PARTS[0]), tests, vocabulary, length, place)

    arrays = prepared_arrays(MEMBER, files, f"vocabulary={vocabulary} length={length}", encode)
    return translation_dataset(MEMBER, arrays, tests)


def encoded_parts(
    train: Parallel, tests: list[Parallel], vocabulary: int, length: int, place: Path | str
) -> dict[str, NDArray[np.generic]]:
    """Return the tokeniser and all parts' token ids as arrays: `tokenizer train val test kept`.

    Raises:
        DataSetUnavailableError: no vocabulary of that size can be made, or no training pair is short enough.
    """
    sampled = SAMPLED if 2 * len(train[0]) > SAMPLED else 0
    try:
        model = trained_tokenizer(chain(*train), vocabulary, sampled=sampled)
    except ValueError as error:
        raise DataSetUnavailableError(place, str(error), "give the data set another vocabulary") from error
    tokenizer = loaded_tokenizer(model)
    rows, kept = encoded_pairs(tokenizer, *train, length, cut=False)
    if not len(rows):
        rule = f"has no training pair of at most {length} tokens"
        raise DataSetUnavailableError(place, rule, "give the data set a larger length")
    val, test = (encoded_pairs(tokenizer, *part, length, cut=True)[0] for part in tests)
    return {"tokenizer": np.frombuffer(model, np.uint8), "train": rows, "val": val, "test": test, "kept": kept}


def translation_dataset(name: str, arrays: dict[str, NDArray[np.generic]], tests: list[Parallel]) -> Pairs:
    """Return the data set of encoded parts, padded to the longest pair of any split."""
    model = arrays["tokenizer"].tobytes()
    # One shape for all splits: the network's positions are sized by it.
    longest = max(arrays[part].shape[2] for part in ("train", "val", "test"))
    train, val, test = (_split(arrays[part], longest) for part in ("train", "val", "test"))
    classes = int(loaded_tokenizer(model).get_piece_size())
    references = {"val": tests[0][1], "test": tests[1][1]}
    order = (np.asarray(arrays["kept"], np.int64), np.arange(len(val)), np.arange(len(test)))
    digest = hash_of_splits(*order)
    return Pairs(name, train, val, test, classes, (2, longest), digest, tokenizer=model, references=references)


def _split(rows: NDArray[np.generic], longest: int) -> Split:
    missing = longest - rows.shape[2]
    inputs = np.pad(rows, ((0, 0), (0, 0), (0, missing))) if missing else np.require(rows, requirements=["C", "W"])
    # A pair has no class, but a `Split` needs targets: the first target token stands in.
    return Split(torch.from_numpy(inputs), torch.from_numpy(np.asarray(rows[:, 1, 0], np.int64)))


# Numbers are read digit by digit in English and backwards in German. A rehearsal of translation learns these words and
# their order in minutes on two cores. `seven one nine` is `neun eins sieben`. A share `noise` of the German words is
# drawn at random: no sentence can be predicted with certainty, so confidences can be compared with accuracy.
ENGLISH = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
GERMAN = ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")
SHORTEST, LONGEST = 3, 7
#: Most word pieces: the twenty words, and the letters and pieces from which they are joined.
VOCABULARY = 120
#: Most tokens of a sentence; no number has that many.
LONGEST_PAIR = 40


def number_words(
    train_samples: Annotated[int, "[20, inf)"] = 4000,
    validation_samples: Annotated[int, "[20, inf)"] = 200,
    test_samples: Annotated[int, "[20, inf)"] = 200,
    noise: Annotated[float, "[0, 1]"] = 0.1,
    seed: Annotated[int, "[0, inf)"] = 0,
) -> Pairs:
    """Numbers in English and, backwards, in German: a pair of languages learnt in minutes.

    Draw numbers of 3 to 7 digits and write them in both languages.

    Source: ours.

    Args:
        train_samples: pairs of the training split [our choice: two layers learn the order from them].
        validation_samples: pairs of the validation split [our choice].
        test_samples: pairs of the test split [our choice].
        noise: share of the German words that are drawn at random [our choice].
        seed: seed of the draws [arbitrary].

    Raises:
        DataSetUnavailableError: sentencepiece is not installed.
    """
    random = np.random.default_rng(seed)
    train, val, test = (_drawn(random, count, noise) for count in (train_samples, validation_samples, test_samples))
    arrays = encoded_parts(train, [val, test], VOCABULARY, LONGEST_PAIR, "number_words")
    return translation_dataset("number_words", arrays, [val, test])


def _drawn(random: np.random.Generator, count: int, noise: float) -> Parallel:
    sources, targets = [], []
    for _ in range(count):
        digits = random.integers(10, size=random.integers(SHORTEST, LONGEST + 1))
        sources.append(" ".join(ENGLISH[digit] for digit in digits))
        translated = np.where(random.random(len(digits)) < noise, random.integers(10, size=len(digits)), digits)
        targets.append(" ".join(GERMAN[digit] for digit in translated[::-1]))
    return sources, targets


#: Special token ids, which are no word pieces.
PADDING, UNKNOWN, BEGIN, END = range(4)

#: Pairs encoded at once: Python lists of all ids would take gigabytes.
CHUNK = 100_000

INSTALL = "pip install 'calibration-sweeper[translation]'"


def required_sentencepiece() -> Any:
    """Return the module `sentencepiece`. Raises DataSetUnavailableError where it is not installed."""
    try:
        import sentencepiece
    except ImportError as error:
        raise DataSetUnavailableError("sentencepiece", "the package is not installed", INSTALL) from error
    return sentencepiece


def trained_tokenizer(sentences: Iterable[str], size: int, *, sampled: int = 0, threads: int = 4) -> bytes:
    """Return a sentencepiece model of byte-pair encoding (Sennrich et al. 2016) with a vocabulary for all sentences.

    Args:
        sentences: sentences of both languages.
        size: most word pieces, including the four special ids; fewer if the sentences have no more.
        sampled: number of sentences to train on, drawn with a fixed seed; 0 for all.
        threads: threads of the training.

    Raises:
        DataSetUnavailableError: sentencepiece is not installed.
        ValueError: no vocabulary of that size can be made.
    """
    library = required_sentencepiece()
    library.set_random_generator_seed(0)  # the sample decides the vocabulary, and so every token id
    # In memory: the tokeniser is stored with the prepared arrays, not as a file of its own.
    model = io.BytesIO()
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            hard_vocab_limit=False,  # few sentences have fewer pieces than requested; that is no error
            character_coverage=1.0,  # both alphabets are small: no letter is unknown
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
        tokenizer: tokeniser of both languages.
        sources: sentences.
        targets: their translations.
        length: most tokens of the longer side, including END.
        cut: whether longer sentences are shortened, since evaluations need every pair. Otherwise longer pairs and pairs
            with an empty side are left out.

    Returns:
        Token ids int32 [N, 2, L] with the longest side L, and the indices of the kept pairs, int64 [N].
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
                # END is kept also when a sentence is cut: every target ends with END.
                ids = [*ids[: length - 1], END]
                row[side, : len(ids)] = ids
            kept.append(row)
            numbers.append(number)
    rows = np.stack(kept) if kept else np.zeros((0, 2, length), np.int32)
    return rows[:, :, : int(pair_lengths(rows).max(initial=1))], np.array(numbers, np.int64)


def pair_lengths(rows: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return the number of tokens on the longer side of each pair [N, 2, L]; it decides the width of a batch."""
    tokens = (np.asarray(rows) != PADDING).sum(axis=2, dtype=np.int64)
    lengths: NDArray[np.int64] = tokens.max(axis=1, initial=0)
    return lengths
