"""Readers of raw inputs: from arrays, rows of a table or texts to the one array that an exported program takes.

An export copies this folder next to its MLflow loader, so that servers can read raw inputs without this project. Its
files therefore import nothing else of the project, and pyarrow and transformers only where they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeAlias

from trainables.datasets.raw_inputs.arrays import Array, Numbers, RefusedInputsError
from trainables.datasets.raw_inputs.arrow import MISSING, NUMERIC, as_numbers, as_texts, form_of, trimmed
from trainables.datasets.raw_inputs.tables import Column, TableRows
from trainables.datasets.raw_inputs.texts import TokenizerIds, WordIds, padded_ids, words_of

Reader: TypeAlias = Numbers | TableRows | WordIds | TokenizerIds

#: Kind of reader → its class.
READERS: dict[str, Any] = {reader.kind: reader for reader in (Numbers, TableRows, WordIds, TokenizerIds)}


def described(reader: Reader) -> dict[str, Any]:
    """Return a reader as JSON values, from which `reader_of` makes it again.

    Example:
        >>> reader = TableRows((Column("ward", "text", ("A", "B")),), ("outcome",))
        >>> reader_of(described(reader), Path()) == reader
        True
    """
    return {"kind": reader.kind, **asdict(reader)}


def reader_of(description: Mapping[str, Any], folder: Path) -> Reader:
    """Return the reader in the description of a model's input; a tokenizer is in the model's folder."""
    kind = READERS[description["kind"]]
    own = {field.name: description[field.name] for field in fields(kind) if field.name in description}
    kept: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in own.items()}
    if kind is TableRows:
        kept["columns"] = tuple(Column(**{**column, "levels": tuple(column["levels"])}) for column in kept["columns"])
    if kind is TokenizerIds:
        kept["folder"] = str(folder / kept["folder"])
    reader: Reader = kind(**kept)
    return reader


__all__ = [
    "MISSING", "NUMERIC", "READERS", "Array", "Column", "Numbers", "Reader", "RefusedInputsError", "TableRows",
    "TokenizerIds", "WordIds", "as_numbers", "as_texts", "described", "form_of", "padded_ids", "reader_of",
    "trimmed", "words_of",
]  # fmt: skip
