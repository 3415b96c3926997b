"""The types of a record's fields: somebody else may have written the journal, with valid checksums.

A record is a dataclass whose annotations are all that is said of its fields; pydantic reads and writes them. So
whatever folds the journal, projects it or displays it meets the types and ranges that the records declare. What does
not fit raises ValueError with one sentence that names the field; the journal's readers add the record.
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

#: No sweep draws more configurations, or has more attempts, epochs or replicates
#: (`sweeper.space.spec.MAXIMUM_CONFIGURATIONS`).
MOST = 10**6

#: What a column of whole numbers holds.
LARGEST_INTEGER = 2**63 - 1

#: Seconds: the year 5138, and longer than any sweep takes. Calendars end at 2.5e11.
LATEST = 10**11

#: Levels of a search space, as `sweeper.space.file` reads them.
DEEPEST = 40

#: Columns of an evaluation that hold text, besides those of reasons, which end in `_unavailable`.
TEXT_COLUMNS = ("split", "stage")

_NUMBERS = (int, float, type(None))


def _number(value: object) -> object:
    if not (type(value) is float or (type(value) is int and abs(value) <= LARGEST_INTEGER)):
        raise ValueError("it should be a number")
    return value  # an int where the journal has one


def _require_plain(value: Any, levels: int = DEEPEST) -> Any:
    if levels == 0:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    if type(value) is int and abs(value) > LARGEST_INTEGER:
        raise ValueError("it holds a number of more than 64 bits")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _require_plain(inner, levels - 1)
    return value


Whole: TypeAlias = Annotated[StrictInt, Field(ge=0, le=MOST)]
#: Of a configuration that was drawn, or of an added seed (`sweeper.core.ids.FIRST_ADDED`).
Index: TypeAlias = Annotated[StrictInt, Field(ge=0, lt=2 * MOST)]
#: A number, which may also be infinite, or none (NaN).
Number: TypeAlias = Annotated[float, PlainValidator(_number)]
Seconds: TypeAlias = Annotated[Number, Field(ge=0, le=LATEST)]
Flag: TypeAlias = StrictBool
#: An object of plain values, nested no deeper than a search space may be.
Values: TypeAlias = Annotated[Mapping[str, Any], AfterValidator(_require_plain)]

#: A field that is not written where it is `None`.
LEFT_OUT = Field(exclude_if=lambda value: value is None)


class Written:
    """A dataclass that is written as its fields, in the types that they are annotated with.

    The keys of `ORDER` come first.
    """

    ORDER: ClassVar[Collection[str]] = ()

    def to_json(self) -> dict[str, object]:
        """Return the values written to disk."""
        values = _adapter(type(self)).dump_python(self, by_alias=True, warnings=False)
        return {key: values[key] for key in dict.fromkeys((*self.ORDER, *values)) if key in values}

    @classmethod
    def from_json(cls, fields: Json) -> Self:
        """Read what any release wrote. Raises ValueError for a field that is missing or odd."""
        read: Self = checked(cls, fields)
        return read


def checked(kind: Any, values: object) -> Any:
    """Return values as the type `kind` says. Raises ValueError, which names the first field that does not fit."""
    try:
        return _adapter(kind).validate_python(values)
    except ValidationError as error:
        raise ValueError(_sentence(error.errors(include_url=False)[0])) from error


_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter[Any])


def _sentence(detail: ErrorDetails) -> str:
    name = next((key for key in reversed(detail["loc"]) if isinstance(key, str) and key != "[key]"), "")
    if detail["type"] == "missing":
        return f"its field {name!r} is missing"
    rule = detail["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    return rule if rule.startswith("its ") else f"its field {name!r} is {_shown(detail['input'])}: {rule}"


def _shown(value: object) -> str:
    shown = repr(value) if not isinstance(value, int) or abs(value) <= LARGEST_INTEGER else "a huge number"
    return shown if len(shown) <= 60 else f"{shown[:59]}…"


def _check_row(table: str, row: Any) -> Json:
    """Require numbers in a row's columns, but for texts of evaluations and lists that epochs may hold."""
    if not isinstance(row, dict):
        raise ValueError("it should be an object")
    for key in ("replicate", "epoch"):
        if type(row.get(key)) is not int or not 0 <= row[key] <= MOST:
            raise ValueError(f"its field {key!r} is {_shown(row.get(key))}: it should be between 0 and {MOST}")
    # Nearly all cells are floats: sorted out first, they cost a tenth of what a record costs to parse.
    others = [(column, cell) for column, cell in row.items() if type(cell) is not float and cell is not None]
    for column, cell in others:
        kind = type(cell)
        if kind is int and -LARGEST_INTEGER <= cell <= LARGEST_INTEGER:
            continue
        if table == "evaluations" and kind is str and (column in TEXT_COLUMNS or column.endswith("_unavailable")):
            continue
        if table == "epochs" and (kind is bool or (kind is list and all(type(each) in _NUMBERS for each in cell))):
            continue  # what a trajectory measures: flags, counts of a histogram
        raise ValueError(f"its {table}.{column} is {_shown(cell)}, which that column does not hold")
    return row


_ByReplicate: TypeAlias = dict[Annotated[str, Field(pattern=r"^\d{1,6}$")], Failure]


@dataclass(frozen=True, kw_only=True)
class ReportFields:
    """The fields of a trial's report: what `trainables.worker.trial_reports.TrialReport` declares, with ranges."""

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
