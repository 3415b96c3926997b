"""20 Newsgroups (Lang 1995), the original 19,997 messages, as mukhoti's released code reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.datasets.base import DATASETS, DataSet, Indices, divided
from trainables.datasets.cache import (
    DataSetUnavailableError,
    Download,
    Folder,
    Source,
    data_folder,
    extracted,
    fetch,
    prepared,
)
from trainables.datasets.raw_inputs import WordIds, words_of
from trainables.datasets.text import WordVectors, frequent_words, read_word_vectors
from trainables.datasets.transforms import Transform
from trainables.registry import DataSetSize

# The archive of the UCI repository contains 20_newsgroups.tar.gz, which contains a folder per newsgroup.
SOURCE = Source(
    "https://archive.ics.uci.edu/static/public/113/twenty+newsgroups.zip",
    "twenty_newsgroups.zip",
    "sha256:cfbb360d6c1e55c06d33a4c5da0789a93b78db74833a70be8ff2e133cc4e6a6e",
)
INNER_ARCHIVE = "20_newsgroups.tar.gz"
MEMBER = "20_newsgroups"
# seed, share and number of mukhoti's released code
SPLIT_SEED = 1
TEST_FRACTION = 0.2
VALIDATION_SAMPLES = 900
REMEDY = "delete the folder and give the data set download: true"


def newsgroup_folder(root: Path, download: bool) -> Path:
    """Return the folder of messages, unpacking `20_newsgroups.tar.gz` or downloading the archive around it.

    Raises:
        DataSetUnavailableError: folder and archives are missing and `download` is false, or an archive is broken.
    """
    if (root / MEMBER).is_dir():
        return root / MEMBER
    inner = root / INNER_ARCHIVE
    if not inner.is_file():
        inner = extracted(fetch(SOURCE, root, download), INNER_ARCHIVE)
    return extracted(inner, MEMBER)


def message_files(folder: Path) -> tuple[list[Path], NDArray[np.int64], tuple[str, ...]]:
    """Return message files in order of group and name, their classes, and the groups' names.

    Raises:
        DataSetUnavailableError: there are fewer than two groups, or one is empty.
    """
    groups = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [sorted(path for path in group.iterdir() if path.name.isdigit()) for group in groups]
    if len(groups) < 2 or not all(files):
        raise DataSetUnavailableError(folder, "does not contain a folder of numbered messages for each group", REMEDY)
    targets = np.repeat(np.arange(len(groups)), [len(group) for group in files]).astype(np.int64)
    return [path for group in files for path in group], targets, tuple(group.name for group in groups)


def message_body(path: Path) -> str:
    """Return a message without its header: the text from the first empty line on."""
    # the messages are older than UTF-8; Latin-1 decodes every byte
    text = path.read_text(encoding="latin-1", errors="strict")
    start = text.find("\n\n")
    return text[start:] if start > 0 else text


def newsgroup_split(samples: int) -> tuple[Indices, Indices, Indices]:
    """Return training, validation and test indices from one shuffle with seed 1, as in mukhoti's released code.

    The last fifth is for testing and the 900 before it for validation: 15,098 / 900 / 3,999 of 19,997.

    Raises:
        ValueError: there are too few messages.
    """
    order = np.random.RandomState(SPLIT_SEED).permutation(samples).astype(np.int64)
    test = int(TEST_FRACTION * samples)
    held_back = test + VALIDATION_SAMPLES
    if held_back >= samples:
        raise ValueError(f"{samples} messages are too few: {held_back} are held back for validation and test")
    return np.sort(order[:-held_back]), np.sort(order[-held_back:-test]), np.sort(order[-test:])


@DATASETS.add("newsgroups20", size=lambda options: DataSetSize((options["length"],), 20, 15_098, 900, 3_999, text=True))
def load_newsgroups(
    folder: Folder = None,
    download: Download = False,
    vocabulary: Annotated[int, "[2, inf)"] = 20_000,
    length: Annotated[int, "[1, inf)"] = 1000,
    word_vectors: WordVectors = None,
) -> DataSet:
    """20 Newsgroups, 15,098/900/3,999 messages as token ids.

    Load 20 Newsgroups as token ids int32 [N, length].

    The vocabulary comes from all messages, as in mukhoti's released code: ids 1 to `vocabulary` - 1, by frequency.

    Source: mukhoti App. D; Lang 1995.

    Args:
        folder: folder of the archive or its unpacked folder; see `data_folder`.
        download: download the archive if it is missing.
        vocabulary: number of token ids, padding included [mukhoti's released code].
        length: number of words kept at the end of each message [mukhoti's released code].
        word_vectors: file of pretrained vectors in GloVe's format.

    Raises:
        DataSetUnavailableError: files are missing or broken.
    """
    messages = newsgroup_folder(data_folder(folder), download)
    files, targets, names = message_files(messages)

    def tokenise() -> tuple[Tensor, list[str]]:
        texts = [message_body(path) for path in files]
        words = frequent_words(map(words_of, texts), vocabulary - 1)
        return torch.from_numpy(WordIds(length, vocabulary, words=tuple(words)).ids(texts)), words

    inputs, words = prepared("newsgroups", files, f"vocabulary={vocabulary} length={length}", tokenise)
    try:
        parts = newsgroup_split(len(files))
    except ValueError as error:
        raise DataSetUnavailableError(messages, str(error), REMEDY) from error
    vectors = read_word_vectors(word_vectors, words, vocabulary, first_id=1)
    return divided(
        "newsgroups20",
        inputs.numpy(),
        targets,
        parts,
        len(names),
        class_names=names,
        vocabulary=vocabulary,
        word_vectors=vectors,
        transform=Transform(reader=WordIds(length, vocabulary, words=tuple(words))),
    )
