"""Reading a user's table from CSV, Parquet or JSON Lines as plain columns, written by any program.

Text files are UTF-8, UTF-16 with a byte-order mark, or else Windows-1252. The separator of a CSV is `,`, `;`, tab or
`|`, whichever gives its header the most columns. Whitespace around names and texts is removed. A text in `MISSING` is a
missing value. A column of numbers written as texts, such as `45.3%`, `1,234` or, in a file with semicolons, `1,5`,
becomes a column of numbers.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainables.datasets.array_files import reading
from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.raw_inputs import MISSING, trimmed

if TYPE_CHECKING:
    import pyarrow as pa

DELIMITERS = ",;\t|"
KNOWN = "CSV (.csv), Parquet (.parquet) or JSON Lines (.jsonl)"

_SCALE = r"([eE][+-]?[0-9]+)?"
_POINT = rf"^[+-]?([0-9]{{1,3}}(,[0-9]{{3}})+|[0-9]+|)(\.[0-9]*)?{_SCALE}\s*%?$"
_COMMA = rf"^[+-]?([0-9]{{1,3}}(\.[0-9]{{3}})+|[0-9]+|)(,[0-9]*)?{_SCALE}\s*%?$"


def read_table(path: str, texts: Collection[str] = ()) -> pa.Table:
    """Read a file by its extension; columns have no dictionaries, and texts no surrounding whitespace.

    Args:
        path: path of the file.
        texts: columns whose texts are not converted to numbers.

    Raises:
        DataSetUnavailableError: the file is missing or broken, has no rows, or has two columns of the same name.
    """
    import pyarrow as pa

    file = Path(path).expanduser()
    if not file.is_file():
        raise DataSetUnavailableError(file, "the file is missing", "check its path")
    if file.suffix not in (".csv", ".parquet", ".jsonl", ".json"):
        raise DataSetUnavailableError(file, f"is not called as {KNOWN} is", "rename or convert it")
    with reading(file, f"write {KNOWN}"):
        table, delimiter = _read(file)
        names = [name.strip() for name in table.column_names]
        if doubled := [name for name, count in Counter(names).items() if count > 1]:
            rule = f"has several columns called {', '.join(map(repr, doubled[:5]))}"
            raise DataSetUnavailableError(file, rule, "give each column its own name")
        table = table.rename_columns(names)
        columns = {
            name: _plain(table.column(name), name in texts, typed=delimiter is None, comma=delimiter == ";")
            for name in names
        }
    if not len(table):
        raise DataSetUnavailableError(file, "has no rows", "check how it was written")
    return pa.table(columns)


def _read(file: Path) -> tuple[pa.Table, str | None]:
    """Return the table in a file, and the separator of a CSV."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    if file.suffix == ".parquet":
        # not `read_table`, which takes folders named `key=value` as columns, too
        with pa.parquet.ParquetFile(file) as stored:
            return stored.read(), None
    content = _utf8(file)
    source = pa.BufferReader(content)
    if file.suffix != ".csv":
        if content.strip() and not content.lstrip().startswith(b"{"):  # pyarrow 25 crashes on a line `null`
            raise DataSetUnavailableError(file, "does not begin with an object", "write JSON Lines: an object a line")
        return pa.json.read_json(source), None
    delimiter = _delimiter(content)
    parsing = pa.csv.ParseOptions(delimiter=delimiter)
    return pa.csv.read_csv(source, None, parsing, pa.csv.ConvertOptions(null_values=[*MISSING])), delimiter


def _utf8(file: Path) -> bytes:
    content = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16").encode()
    try:
        content.decode()
    except UnicodeDecodeError:
        return content.decode("cp1252").encode()
    return content


def _delimiter(content: bytes) -> str:
    """Return the separator of the names in the first line; a comma if there is none."""
    # for equal counts, `max` returns the first, the comma; a header longer than 64 KiB is no header
    first = content[: 2**16].decode(errors="ignore").splitlines()[:1]
    return max(DELIMITERS, key=lambda delimiter: len(next(csv.reader(first, delimiter=delimiter), ())))


def _plain(column: pa.ChunkedArray, keep_text: bool, *, typed: bool, comma: bool) -> Any:
    """Return a column without a dictionary; texts have no surrounding whitespace, or become numbers.

    Args:
        column: column of a table.
        keep_text: whether texts stay texts.
        typed: whether the file format has types, so that texts of digits are meant as texts.
        comma: whether a comma can be the decimal point.
    """
    import pyarrow as pa

    kinds, kind = pa.types, column.type
    if kinds.is_float16(kind):
        return column.cast(pa.float32())
    if kinds.is_dictionary(kind):
        column = pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks], kind.value_type)
        kind = column.type
    if kinds.is_binary(kind) or kinds.is_large_binary(kind):
        try:
            column = column.cast(pa.string())
        except pa.ArrowInvalid:  # bytes that are not UTF-8: no text, and refused as a feature later
            return column
    elif not (kinds.is_string(kind) or kinds.is_large_string(kind)):
        return column
    text = trimmed(column)
    numbers = None if keep_text else numbers_in(text, typed=typed, comma=comma)
    return text if numbers is None else numbers


def numbers_in(text: Any, *, typed: bool = False, comma: bool = False) -> Any:
    """Return the texts of a column as float64 if all of them are numbers, else `None`; see `_plain`.

    Example:
        >>> import pyarrow as pa
        >>> numbers_in(pa.array(["1,234", "5%"])) is None, numbers_in(pa.array(["1,234", "5"])).to_pylist()
        (True, [1234.0, 5.0])
    """
    import pyarrow as pa
    import pyarrow.compute as compute

    def whole(values: Any, pattern: str) -> bool:
        return compute.all(compute.match_substring_regex(values, pattern)).as_py() is True

    any_comma = comma and compute.any(compute.match_substring(text, ",")).as_py()
    # the pattern also matches texts without a digit, such as "." and "%"
    if not all(whole(text, pattern) for pattern in (_COMMA if any_comma else _POINT, "[0-9]")):
        return None
    percent = compute.match_substring(text, "%")
    # shares and plain numbers in one column have no common unit
    mixed = compute.any(percent).as_py() and not compute.all(percent).as_py()
    if mixed or (typed and whole(text, "^[0-9]+$")):
        return None
    bare = compute.replace_substring_regex(text, r"^\+|[%\s.]" if any_comma else r"^\+|[%\s,]", "")
    return (compute.replace_substring(bare, ",", ".") if any_comma else bare).cast(pa.float64())
