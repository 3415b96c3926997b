"""Any bytes as a search space file give a mapping or faults, never another exception."""

import copy
import math
import os
import string
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from search_spaces import locate
from sweeper.core.errors import InvalidSearchSpace
from sweeper.space.file import MAXIMUM_BYTES, Document, apply_overrides, parse_document, read_document
from sweeper.space.loading import load_spec


def test_values_and_lines():
    document = parse_document(b"seed: 3\nspace:\n  loss:\n    one_of:\n      - {name: focal}\n      - name: brier\n")
    assert document.faults == []
    assert document.values == {"seed": 3, "space": {"loss": {"one_of": [{"name": "focal"}, {"name": "brier"}]}}}
    assert document.line_of("space.loss.one_of[1].name") == 6
    assert document.line_of("space.loss.one_of[1].gamma") == 6  # absent: the nearest part that encloses it
    assert document.line_of("objective") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("5.0e-4", 0.0005),
        ("1E5", 1e5),
        (".5", 0.5),
        ("-2", -2),
        ("1_000", 1000),
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("true", True),
        ("null", None),
        ("", None),
        ("'3'", "3"),
        ("0x10", "0x10"),
        ("-.inf", -math.inf),
    ],
)
def test_plain_scalars(text, value):
    document = Document()
    apply_overrides(document, [f"key={text}"])
    found = document.values["key"]
    assert (found, type(found), document.faults) == (value, type(value), [])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"# only a comment\n", "empty"),
        (b"- a\n- b\n", "a list, not a mapping"),
        (b"42", "a number, not a mapping"),
        (b"a: [1, 2", "not valid YAML"),
        (b"a: 1\n---\nb: 2\n", "not valid YAML"),
        (b"a: 1\na: 2\n", "given twice (first on line 1)"),
        (b"a: {b: 1, b: 2}\n", "given twice"),
        (b"? [a, b]\n: 1\n", "a key is a list or mapping"),
        (b"\xff\xfe\x00\x01", "not UTF-8 text"),
        (b"a: \x00", "not valid YAML"),
        (b"PAR1\x15\x04\x15", "not valid YAML"),
        (b"a: !!python/object/apply:os.system [ls]", "is not allowed"),
        (b"a: !!set {b}", "is not allowed"),
        (b'a: "\\U00110000"', "not valid YAML"),
        (b'a: "\\UFFFFFFFF"', "not valid YAML"),
        (b"a: !!int x", "is not a whole number"),
        (b"a: &a [*a]", "contains itself"),
        (b"a: " + b"[" * 5000, "levels deep"),
        (b"a: [" + b"1," * 60_000 + b"]", "more than 50000 keys and values"),
        (b"a: " + b"9" * 5000, "of at most 64 bits"),
        (b"a: 9223372036854775808", "of at most 64 bits"),
        (b"a: " + b" " * MAXIMUM_BYTES, "larger than"),
    ],
)
def test_faults_of_the_text(content, words):
    document = parse_document(content)
    assert words in " ".join(map(str, document.faults))


def test_alias_bomb_ends_at_once():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    document = parse_document("\n".join(lines).encode())
    assert [f.rule for f in document.faults] == ["more than 50000 values after expanding aliases"]


def test_aliases_are_written_out():
    document = parse_document(b"a: &x {uniform: [0, 1]}\nb: *x\n")
    assert document.faults == []
    assert document.values["b"] == {"uniform": [0, 1]}


@pytest.mark.parametrize("name", ["missing.yaml", ".", "nul\0name", "x" * 300, "ä" * 200, "pipe", "circle"])
def test_unreadable_files(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    document = read_document(tmp_path / name)
    assert document.values == {}
    assert "cannot read" in document.faults[0].rule
    with pytest.raises(InvalidSearchSpace, match="cannot read"):
        load_spec(tmp_path / name)
    assert locate(name) == Path(name)


def _is_number(text):
    """Tell whether a text such as `1e5` reads as a number here: PyYAML takes it for a text and writes it unquoted."""
    try:
        float(text)
    except ValueError:
        return False
    return True


_TEXTS = st.text(string.printable, max_size=8).filter(lambda text: not _is_number(text))
_SCALARS = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | _TEXTS
_SCALARS |= st.floats(allow_nan=False)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(string.ascii_letters, min_size=1), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(string.ascii_letters, min_size=1), _VALUES, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_what_yaml_writes_is_read_back(values):
    document = parse_document(yaml.safe_dump(values).encode())
    assert document.faults == []
    assert document.values == values


VALUES = {
    "dataset": "digits",
    "replicates": 2,
    "scheduler": {"max_epochs": 27},
    "space": {"loss": {"one_of": [{"name": "focal"}, "brier"]}, "architecture": "mlp"},
    "evaluation": None,
}


def _apply(*overrides):
    document = Document(values=copy.deepcopy(VALUES))
    apply_overrides(document, overrides)
    return document


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("scheduler.max_epochs=9", {"scheduler": {"max_epochs": 9}}),
        ("seed=7", {"seed": 7}),
        ("dataset.size=16", {"dataset": {"name": "digits", "size": 16}}),
        ("replicates.packing=lanes", {"replicates": {"count": 2, "packing": "lanes"}}),
        ("replicates=5", {"replicates": 5}),
        ("evaluation.curvature=false", {"evaluation": {"curvature": False}}),
        ("evaluation.posthoc=[temperature]", {"evaluation": {"posthoc": ["temperature"]}}),
        ("objective.metric=val_ece=", {"objective": {"metric": "val_ece="}}),
    ],
)
def test_overrides(override, expected):
    document = _apply(override)
    assert document.faults == []
    assert document.values == {**VALUES, **expected}


def test_overrides_inside_the_space():
    document = _apply(
        "space.loss.one_of[0].gamma={uniform: [1, 2]}", "space.architecture.width=32", "space.loss.one_of[1]=aurc"
    )
    assert document.faults == []
    assert document.values["space"] == {
        "loss": {"one_of": [{"name": "focal", "gamma": {"uniform": [1, 2]}}, "aurc"]},
        "architecture": {"name": "mlp", "width": 32},
    }


def test_overridden_places_have_no_line():
    document = Document(values=copy.deepcopy(VALUES), lines={"space": 3, "space.loss": 4, "space.loss.one_of": 5})
    apply_overrides(document, ["space.loss=focal"])
    assert document.line_of("space.loss") is document.line_of("space.loss.one_of") is None
    assert document.line_of("space.loss.gama") is None and document.line_of("space") == 3
    assert document.line_of("space.optimizer") == 3  # absent from the file: the part that should hold it


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed", "not of the form key=value"),
        ("=3", "not of the form key=value"),
        ("a..b=3", "not of the form key=value"),
        ("[0]=3", "not of the form key=value"),
        ("a[b]=3", "not of the form key=value"),
        ("scheduler.max_epochs.deep=1", "space.loss.one_of[0]"),
        ("space.loss.one_of[2].gamma=1", "a list of 2"),
        ("space.loss.one_of.gamma=1", "a list; use [index]"),
        ("scheduler[0]=1", "not a list"),
        ("seed=[1", "not valid YAML"),
        ("seed=!!python/none x", "is not allowed"),
    ],
)
def test_faults(override, words):
    document = _apply(override)
    text = " ".join(map(str, document.faults))
    assert "--set" in text
    assert words in text or "27, not a mapping" in text
    assert document.values == VALUES


@given(st.text(max_size=30))
@settings(max_examples=80, deadline=None)
def test_any_text(override):
    document = _apply(override)
    assert isinstance(document.values, dict)
