"""The types of a record's fields, which are checked: a journal with valid checksums can come from somebody else.

A record is a dataclass whose annotations fully describe its fields; pydantic reads and writes them. So all code that
folds, projects or displays the journal can rely on the declared types and ranges. An invalid value raises ValueError
with one sentence that names the field; the journal's readers add the record.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import AfterValidator, Field, PlainValidator, StrictBool, StrictInt, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from trainables.worker.trial_reports import Failure

#: A JSON object as it comes from a file.
Json: TypeAlias = Mapping[str, Any]

#: Largest number of configurations, attempts, epochs or replicates (`sweeper.space.spec.MAXIMUM_CONFIGURATIONS`).
MOST = 10**6

#: Largest value of an int64 column.
LARGEST_INTEGER = 2**63 - 1

#: Largest time in seconds: the year 5138. Python's `datetime` ends at 2.5e11.
LATEST = 10**11

#: Levels of nesting in a search space, as `sweeper.space.file` reads it.
DEEPEST = 40

#: Text columns of an evaluation, besides the reasons, which end in `_unavailable`.
TEXT_COLUMNS = ("split", "stage")

_NUMBERS = (int, float, type(None))


def _number(value: object) -> object:
    if not (type(value) is float or (type(value) is int and abs(value) <= LARGEST_INTEGER)):
        raise ValueError("it should be a number")
    return value  # an int stays one, so that a record is written back as it was read


def _require_plain(value: object, levels: int = DEEPEST) -> Any:
    if levels == 0:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    if type(value) is int and abs(value) > LARGEST_INTEGER:
        raise ValueError("it holds a number of more than 64 bits")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _require_plain(inner, levels - 1)
    return value


Whole: TypeAlias = Annotated[StrictInt, Field(ge=0, le=MOST)]
#: Index of a drawn configuration or of an added seed (`sweeper.core.ids.FIRST_ADDED`).
Index: TypeAlias = Annotated[StrictInt, Field(ge=0, lt=2 * MOST)]
#: A number, which may be infinite or NaN.
Number: TypeAlias = Annotated[float, PlainValidator(_number)]
Seconds: TypeAlias = Annotated[Number, Field(ge=0, le=LATEST)]
Flag: TypeAlias = StrictBool
#: An object of plain values, nested no deeper than a search space can be.
Values: TypeAlias = Annotated[Mapping[str, Any], AfterValidator(_require_plain)]

#: A field that is not written if it is `None`.
LEFT_OUT = Field(exclude_if=lambda value: value is None)


class Written:
    """A dataclass that is written field by field, by the annotated types; the keys of `ORDER` come first."""

    ORDER: ClassVar[Collection[str]] = ()

    def to_json(self) -> dict[str, object]:
        """Return the values that are written to disk."""
        values = _adapter(type(self)).dump_python(self, by_alias=True, warnings=False)
        return {key: values[key] for key in dict.fromkeys((*self.ORDER, *values)) if key in values}

    @classmethod
    def from_json(cls, fields: Json) -> Self:
        """Build a record from written values. Raises ValueError for a missing or invalid field."""
        read: Self = checked(cls, fields)
        return read


def checked(kind: object, values: object) -> Any:
    """Validate values against the type `kind`. Raises ValueError, which names the first invalid field."""
    try:
        return _adapter(kind).validate_python(values)
    except ValidationError as error:
        raise ValueError(_sentence(error.errors(include_url=False)[0])) from error


#: Building an adapter takes milliseconds, and a journal has many thousand records of the same few types.
_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter[Any])


def _sentence(detail: ErrorDetails) -> str:
    name = next((key for key in reversed(detail["loc"]) if isinstance(key, str) and key != "[key]"), "")
    if detail["type"] == "missing":
        return f"its field {name!r} is missing"
    rule = detail["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    return rule if rule.startswith("its ") else f"its field {name!r} is {_shown(detail['input'])}: {rule}"


def _shown(value: object) -> str:
    # Python refuses to convert integers of more than 4,300 digits to text.
    shown = repr(value) if not isinstance(value, int) or abs(value) <= LARGEST_INTEGER else "a huge number"
    return shown if len(shown) <= 60 else f"{shown[:59]}…"


def _check_row(table: str, row: object) -> Json:
    """Require numbers in a row's columns; evaluations can also have texts, and epochs flags and lists."""
    if not isinstance(row, dict):
        raise ValueError("it should be an object")
    for key in ("replicate", "epoch"):
        if type(row.get(key)) is not int or not 0 <= row[key] <= MOST:
            raise ValueError(f"its field {key!r} is {_shown(row.get(key))}: it should be between 0 and {MOST}")
    # Nearly all cells are floats. Excluding them first reduces the cost to a tenth of parsing a record.
    others = [(column, cell) for column, cell in row.items() if type(cell) is not float and cell is not None]
    for column, cell in others:
        kind = type(cell)
        if kind is int and -LARGEST_INTEGER <= cell <= LARGEST_INTEGER:
            continue
        if table == "evaluations" and kind is str and (column in TEXT_COLUMNS or column.endswith("_unavailable")):
            continue
        if table == "epochs" and (kind is bool or (kind is list and all(type(count) in _NUMBERS for count in cell))):
            continue  # measurements of a trajectory: flags, counts of a histogram
        raise ValueError(f"its {table}.{column} is {_shown(cell)}, which that column cannot hold")
    return row


_ByReplicate: TypeAlias = dict[Annotated[str, Field(pattern=r"^\d{1,6}$")], Failure]


@dataclass(frozen=True, kw_only=True)
class ReportFields:
    """The fields of `trainables.worker.trial_reports.TrialReport`, with ranges."""

    configuration: Index
    epoch: Whole
    objective: Number | None = None
    failure: Failure | None = None
    device: str
    packing: str | None = None
    wall_seconds: Seconds
    epochs: list[Annotated[Json, PlainValidator(functools.partial(_check_row, "epochs"))]]
    evaluations: list[Annotated[Json, PlainValidator(functools.partial(_check_row, "evaluations"))]]
    replicate_errors: _ByReplicate = field(default_factory=dict)
    gpu: Number | None = None
