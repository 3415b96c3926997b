"""Tables as other programs write them: encodings, delimiters, missing values, numbers in text."""

import pyarrow as pa
import pyarrow.parquet
import pytest

from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.table_files import read_table


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_text_in_any_encoding_between_any_delimiter(tmp_path, encoding, delimiter):
    rows = [["größe", " klasse "], ["1.5", "Müller"], ["2.5", " Weiß"]]
    (tmp_path / "t.csv").write_bytes("\n".join(delimiter.join(row) for row in rows).encode(encoding))
    found = read_table(str(tmp_path / "t.csv"))
    assert found.to_pydict() == {"größe": [1.5, 2.5], "klasse": ["Müller", "Weiß"]}


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["45.3%", "7 %", None], [45.3, 7.0, None]),
        (["1,234", "1,234,567.5", "?"], [1234.0, 1234567.5, None]),
        ([" 39", " ?", "+5"], [39.0, None, 5.0]),
        (["45%", "0.3", "1"], ["45%", "0.3", "1"]),
        (["1", "2", " NA"], ["1", "2", None]),
        (["1,23", "4", "5"], ["1,23", "4", "5"]),
        (["%", ".", "1"], ["%", ".", "1"]),
        ([" >50K", ">50K", ""], [">50K", ">50K", None]),
    ],
)
def test_numbers_in_text_are_numbers_and_missing_values_are_missing(tmp_path, texts, expected):
    pa.parquet.write_table(pa.table({"x": texts}), tmp_path / "t.parquet")
    assert read_table(str(tmp_path / "t.parquet"))["x"].to_pylist() == expected
    assert read_table(str(tmp_path / "t.parquet"), ["x"])["x"].type == pa.string()


def test_a_comma_between_semicolons_is_a_decimal_point(tmp_path):
    (tmp_path / "t.csv").write_text("a;b\n1,5;1.234,5\n?;2\n")
    assert read_table(str(tmp_path / "t.csv")).to_pydict() == {"a": [1.5, None], "b": [1234.5, 2.0]}


def test_dictionaries_and_bytes_are_what_they_hold(tmp_path):
    kinds = pa.array(["b", "a ", "b"]).dictionary_encode()
    pa.parquet.write_table(pa.table({"kind": kinds, "name": [b"x", b"y", b" z"]}), tmp_path / "t.parquet")
    assert read_table(str(tmp_path / "t.parquet")).to_pydict() == {"kind": ["b", "a", "b"], "name": ["x", "y", "z"]}


def test_two_columns_of_a_name_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("a, b,b\n1,2,3\n")
    with pytest.raises(DataSetUnavailableError, match="has several columns called 'b'; give each column its own name"):
        read_table(str(tmp_path / "t.csv"))


@pytest.mark.parametrize("content", ["null", "[1]", '[{"a": 1}]'])
def test_json_without_objects_is_refused_before_pyarrow_reads_it(tmp_path, content):
    (tmp_path / "t.jsonl").write_text(content + "\n")
    with pytest.raises(DataSetUnavailableError, match="does not begin with an object; write JSON Lines"):
        read_table(str(tmp_path / "t.jsonl"))
