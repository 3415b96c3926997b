"""`--set` changes one place of a file; what cannot be followed is a fault with its path."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.space.file import Document
from sweeper.space.overrides import apply_overrides

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
        ("replicates.packing=fused", {"replicates": {"count": 2, "packing": "fused"}}),
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


def test_the_last_override_counts():
    assert _apply("seed=1", "seed=2").values["seed"] == 2


def test_overridden_places_have_no_line():
    document = Document(values=copy.deepcopy(VALUES), lines={"space": 3, "space.loss": 4, "space.loss.one_of": 5})
    apply_overrides(document, ["space.loss=focal"])
    assert document.lines == {"space": 3}
    assert document.line_of("space.loss.gama") is None
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
@settings(max_examples=300, deadline=None)
def test_any_text(override):
    document = _apply(override)
    assert isinstance(document.values, dict)
