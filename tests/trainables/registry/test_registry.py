"""One description of a component builds it, checks it and lists it."""

from __future__ import annotations

import importlib
import math

import pytest
from hypothesis import given, strategies as st

from trainables.datasets.base import DATASETS
from trainables.losses import LOSSES
from trainables.models import ARCHITECTURES
from trainables.posthoc import POSTHOC
from trainables.registry import Component, Hyperparameter, Registry
from trainables.training.recipe import OPTIMIZERS

REGISTRIES = {r.kind: r for r in (LOSSES, ARCHITECTURES, OPTIMIZERS, DATASETS, POSTHOC)}
GAMMA = Hyperparameter("gamma", default=2.0, minimum=0, maximum=10, open_minimum=True, reason="it is an exponent")


def _registry():
    registry = Registry("loss")
    registry.register(Component("plain", lambda: "plain"))
    registry.register(
        Component(
            "focal",
            lambda gamma=2.0, rate=None: ("focal", gamma, rate),
            (GAMMA, Hyperparameter("rate", required=True, minimum=0)),
            check=lambda values: (
                ("rate", "rate must be below gamma") if values["rate"] >= values.get("gamma", 2) else None
            ),
        )
    )
    return registry


@pytest.mark.parametrize(
    ("hyperparameter", "text"),
    [
        (GAMMA, "(0, 10]"),
        (Hyperparameter("x", minimum=0), "[0, inf)"),
        (Hyperparameter("x", maximum=1, open_maximum=True), "(-inf, 1)"),
        (Hyperparameter("x"), "any number"),
        (Hyperparameter("x", "integer"), "any whole number"),
        (Hyperparameter("x", "boolean"), "true | false"),
        (Hyperparameter("x", "text"), "text"),
        (Hyperparameter("x", "text", choices=("a", "b")), "a | b"),
    ],
)
def test_ranges_in_words(hyperparameter, text):
    assert hyperparameter.range_text == text


@pytest.mark.parametrize(
    ("hyperparameter", "good", "bad"),
    [
        (GAMMA, [0.1, 10, 10.0, 3], [0, -1, 10.1, "3", None, True, math.nan, math.inf, [3]]),
        (Hyperparameter("n", "integer", 1, 1), [1, 2, 3.0], [0, 1.5, "1", None, True]),
        (Hyperparameter("n", "integer", 1), [1, -1, 2**60], [math.nan, math.inf, 10**400]),
        (Hyperparameter("b", "boolean", False), [True, False], [0, 1, "true", None]),
        (Hyperparameter("t", "text", "a", choices=("a", "b")), ["a", "b"], ["c", 1, None]),
        (Hyperparameter("t", "text", "x"), ["anything"], [1, None]),
        (
            Hyperparameter("l", "numbers", (1,), minimum=0),
            [[1, 2.5], (), [0]],
            [1, "12", [-1], ["a"], [math.nan], [True]],
        ),
        (Hyperparameter("o", default=None, minimum=0), [None, 1], [-1, "x"]),
    ],
)
def test_values_in_and_out_of_range(hyperparameter, good, bad):
    for value in good:
        assert hyperparameter.fault(value) is None, value
    for value in bad:
        fault = hyperparameter.fault(value)
        assert fault and fault.startswith(f"{hyperparameter.name} = "), value


@given(st.one_of(st.floats(), st.integers(), st.text(max_size=3), st.none(), st.booleans(), st.lists(st.floats())))
def test_no_value_makes_the_check_itself_fail(value):
    for kind in ("number", "integer", "text", "boolean", "numbers"):
        fault = Hyperparameter("x", kind, 1, minimum=0, choices=("a",)).fault(value)
        assert fault is None or isinstance(fault, str)


def test_all_faults_of_a_component_at_once():
    faults = _registry()["focal"].faults({"gama": 1, "gamma": 11})
    assert len(faults) == 3
    assert "takes no hyperparameter 'gama'; did you mean 'gamma'?" in faults[0]
    assert "outside (0, 10]" in faults[1] and "focal needs rate ([0, inf))" in faults[2]


def test_rules_over_several_values_come_after_the_single_ones():
    component = _registry()["focal"]
    assert component.faults({"gamma": 1, "rate": 3}) == ["rate must be below gamma"]
    assert component.faults({"gamma": 1, "rate": 0.5}) == []


def test_building():
    registry = _registry()
    assert registry.build("focal", gamma=3, rate=1) == ("focal", 3, 1)
    with pytest.raises(ValueError, match=r"unknown loss 'fokal'; did you mean 'focal'\?"):
        registry.build("fokal")
    with pytest.raises(ValueError, match=r"outside.*; focal needs rate"):
        registry.build("focal", gamma=11)


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="'plain' is registered already"):
        _registry().register(Component("plain", lambda: None))


def test_a_default_is_declared_once_in_the_signature():
    def build(gamma=2.0, rate=None, steps=()):
        return gamma

    taken = tuple(map(Hyperparameter, ("gamma", "rate", "steps", "other")))
    assert [h.default for h in Component("focal", build, taken).hyperparameters] == [2.0, None, None, None]
    given = (Hyperparameter("gamma", default=3.0),)
    assert Component("focal", build, given).hyperparameters[0].default == 3.0
    assert Component("mapping", dict, taken).hyperparameters == taken


def test_a_family_has_what_its_folder_holds(tmp_path, monkeypatch):
    own = "from shared import FAMILY\n@FAMILY.add({!r})\ndef build(): return 1\n"
    (tmp_path / "shared.py").write_text("from trainables.registry import Registry\nFAMILY = Registry('member')\n")
    (tmp_path / "family" / "deeper").mkdir(parents=True)
    for name, text in {"__init__": "", "b": own.format("second"), "a": own.format("first"), "helpers": "X = 1"}.items():
        (tmp_path / "family" / f"{name}.py").write_text(text)
    (tmp_path / "family" / "deeper" / "__init__.py").write_text("raise RuntimeError('a folder is a family of its own')")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = importlib.import_module("shared").FAMILY
    importlib.import_module("family.b")
    registry.discover("family")
    assert list(registry) == ["first", "second"]


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_component_is_described_and_its_defaults_are_valid(kind):
    registry = REGISTRIES[kind]
    assert len(registry) > 0
    for name, component in registry.items():
        assert component.name == name
        assert component.summary, f"{kind} {name} has no summary"
        for hyperparameter in component.hyperparameters:
            if hyperparameter.default is not None:
                assert hyperparameter.fault(hyperparameter.default) is None, (kind, name, hyperparameter.name)
        names = [h.name for h in component.hyperparameters]
        assert len(names) == len(set(names)), (kind, name)
        assert "name" not in names, "it is the key of the component itself"
