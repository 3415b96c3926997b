"""Texts as raw inputs: words, vocabularies, tokenizers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainables.datasets.raw_inputs.arrays import Array, Numbers, RefusedInputsError, columns_by_name
from trainables.datasets.raw_inputs.arrow import MISSING

# Keras' Tokenizer, which mukhoti's released code uses, splits at these and at spaces, but not at apostrophes.
SEPARATORS = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, split at punctuation and whitespace as Keras' Tokenizer does.

    Example:
        >>> words_of("It's a test: one, two.")
        ["it's", 'a', 'test', 'one', 'two']
    """
    return [word for word in text.lower().translate(SEPARATORS).split(" ") if word]


def padded_ids(texts: Sequence[Sequence[str]], ids: Mapping[str, int], length: int) -> NDArray[np.int32]:
    """Return token ids [N, length]: the last `length` known words of each text, padded with 0 at the front.

    Example:
        >>> padded_ids([["a", "b", "x"], ["b"]], {"a": 1, "b": 2}, length=3).tolist()
        [[0, 1, 2], [0, 0, 2]]
    """
    # Padding and truncation at the front are Keras' defaults, which mukhoti's released code uses.
    rows = np.zeros((len(texts), length), np.int32)
    for row, words in zip(rows, texts, strict=True):
        known = [ids[word] for word in words if word in ids][-length:]
        if known:
            row[-len(known) :] = known
    return rows


@dataclass(frozen=True)
class _Texts:
    """Reads texts: a text, a list of texts, or rows with the column of texts. Token ids [N, length] are also taken.

    Attributes:
        length: number of token ids of a text.
        vocabulary: number of token ids in all.
        column: name of the column of texts in the training table; `None` if there is none.
    """

    length: int
    vocabulary: int
    column: str | None = None

    def array(self, inputs: Any) -> Array:
        """Return token ids, int32 [N, length].

        Raises:
            RefusedInputsError: the inputs are neither texts nor token ids.
        """
        named = columns_by_name(inputs)
        if named is not None:
            if self.name not in named:
                problem = f"the rows have no column {self.name!r} of texts; they have {', '.join(named) or 'none'}"
                raise RefusedInputsError(problem, "give that column, or a list of texts")
            inputs = named[self.name]
        if hasattr(inputs, "to_pylist"):
            inputs = inputs.to_pylist()
        texts = [inputs] if isinstance(inputs, str) or not hasattr(inputs, "__len__") else inputs
        kind = getattr(texts, "dtype", None)
        if kind is None or getattr(kind, "kind", "O") in "OUST":
            listed = ["" if text is None or text != text else text for text in texts]  # NaN is not equal to itself
            if all(isinstance(text, str) for text in listed):
                # a table's reader has taken these texts for missing values
                tabular = self.column is not None
                return self.ids(["" if tabular and text.strip() in MISSING else text for text in listed])
        return Numbers((self.length,), "int32", 0, self.vocabulary - 1).array(texts)

    def example(self, sample: Array) -> dict[str, Any]:
        """Return a row with the text of the one sample in an array [1, length]."""
        return {self.name: self.text(sample[0])}

    @property
    def name(self) -> str:
        """Name of the column of texts in rows."""
        return self.column or "text"

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the columns of texts."""
        return (self.name,)

    def ids(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Return token ids, int32 [N, length]."""
        raise NotImplementedError

    def text(self, ids: Array) -> str:
        """Return a text that has these token ids [length]."""
        raise NotImplementedError


@dataclass(frozen=True)
class WordIds(_Texts):
    """Reads texts as ids of words: the last `length` known words, padded with 0 at the front.

    Attributes:
        words: words by id.
        first: id of the first word.
        unknown: id of a word that is none of them; `None` to leave it out.
        punctuation: whether words end at punctuation, too (`words_of`), or at whitespace alone.
    """

    kind: ClassVar[str] = "words"

    words: tuple[str, ...] = ()
    first: int = 1
    unknown: int | None = None
    punctuation: bool = True

    def ids(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Return token ids, int32 [N, length]."""
        split = words_of if self.punctuation else lambda text: text.lower().split()
        ids = self._numbered
        listed = [split(text) for text in texts]
        if self.unknown is not None:
            listed = [[word if word in ids else "" for word in words] for words in listed]
        return padded_ids(listed, ids, self.length)

    def text(self, ids: Array) -> str:
        """Return a text that has these token ids [length]."""
        words = {number: word for word, number in self._numbered.items()}
        return " ".join(words.get(int(number), "") for number in ids if number)

    @functools.cached_property
    def _numbered(self) -> dict[str, int]:
        ids = {word: number for number, word in enumerate(self.words, start=self.first)}
        return ids if self.unknown is None else ids | {"": self.unknown}


@dataclass(frozen=True)
class TokenizerIds(_Texts):
    """Reads texts with a Hugging Face tokenizer: the first `length` tokens, padded at the end.

    Attributes:
        folder: folder of the tokenizer.
    """

    kind: ClassVar[str] = "tokenizer"

    folder: str = ""

    def ids(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Return token ids, int32 [N, length]."""
        ids = self.tokens(texts)
        return np.pad(ids, ((0, 0), (0, self.length - ids.shape[1])), constant_values=self.tokenizer.pad_token_id)

    def text(self, ids: Array) -> str:
        """Return a text that has these token ids [length]."""
        return str(self.tokenizer.decode(ids.tolist(), skip_special_tokens=True))

    def tokens(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Return token ids padded to the longest text, int32 [N, at most length]."""
        settings = {"truncation": True, "max_length": self.length, "padding": True, "return_tensors": "np"}
        return np.asarray(self.tokenizer([*texts], **settings)["input_ids"], np.int32)

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, read from its folder; nothing is downloaded."""
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            problem = "the model's tokenizer needs transformers, which is not installed"
            raise RefusedInputsError(problem, "pip install transformers, or give token ids") from error
        # right padding for every tokenizer, so that positions begin at 0 for every text
        settings = {"local_files_only": True, "trust_remote_code": False, "padding_side": "right"}
        return AutoTokenizer.from_pretrained(self.folder, **settings)
