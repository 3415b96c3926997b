"""Configuration i is a function of (space, seed, i) alone; grids are complete; finite spaces are not drawn twice."""

import itertools
import json
import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from sweeper.core.domains.base import parse
from sweeper.core.domains.nodes import Uniforms
from sweeper.core.domains.space import Space
from sweeper.core.errors import InvalidSearchSpace
from sweeper.core.schemas import record_batch
from sweeper.space.components import resolve_component
from sweeper.space.configurations import configurations, examples, repeat_notes
from sweeper.space.loading import build_spec
from tests.sweeper.small_registries import MINIMAL, REGISTRIES
from trainables.registry import Component, Hyperparameter, Registry


def _spec(samples=None, seed=0, **parts):
    space = {**MINIMAL["space"], **parts}
    return build_spec({**MINIMAL, "space": space, "samples": samples, "seed": seed}, REGISTRIES)


CONDITIONAL = {
    "one_of": [
        "cross_entropy",
        {"name": "focal", "gamma": {"uniform": [0.5, 10]}},
        {"name": "selective_risk", "coverage": {"uniform": [0.1, 0.9]}, "nu": {"loguniform": [0.01, 0.3]}},
    ]
}


def test_only_the_chosen_branchs_hyperparameters_exist():
    keys = {
        "cross_entropy": {"name"},
        "focal": {"name", "gamma"},
        "selective_risk": {"name", "coverage", "nu", "score", "normalise"},
    }
    drawn = [c["loss"] for c in configurations(_spec(60, loss=CONDITIONAL))]
    assert {loss["name"] for loss in drawn} == keys.keys()
    for loss in drawn:
        assert loss.keys() == keys[loss["name"]]


def test_the_same_on_every_machine():
    loss = configurations(_spec(9, seed=3, loss=CONDITIONAL))[7]["loss"]
    script = (
        "import json, sys; from sweeper.space.configurations import configurations;"
        "from sweeper.space.loading import build_spec; from tests.sweeper.small_registries import REGISTRIES;"
        "print(json.dumps(configurations(build_spec(json.load(sys.stdin), REGISTRIES))[7]['loss'].plain()))"
    )
    spec = json.dumps(_spec(9, seed=3, loss=CONDITIONAL).resolved())
    run = subprocess.run([sys.executable, "-c", script], input=spec, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == loss
    recorded = _spec(3, loss={"name": "focal", "gamma": {"uniform": [0.5, 10]}})
    assert [c["loss"]["gamma"] for c in configurations(recorded)] == RECORDED_GAMMAS


RECORDED_GAMMAS = [1.9678802260564574, 0.5461197867780595, 8.110491260703554]


def test_an_added_key_changes_no_other_draw():
    optimizer = {"name": "sgd", "lr": {"loguniform": [0.01, 1]}}
    before = _spec(40, loss=CONDITIONAL, optimizer=optimizer)
    after = _spec(
        50,
        loss=CONDITIONAL,
        architecture={"choice": ["mlp", "resnet8"]},
        optimizer={"momentum": {"uniform": [0, 1]}, **optimizer},
    )
    for i, configuration_before in enumerate(configurations(before)):
        again = configurations(after)[i]
        assert again["loss"] == configuration_before["loss"]
        assert again["optimizer"]["lr"] == configuration_before["optimizer"]["lr"]


def test_sequence_behaviour():
    drawn = configurations(_spec(5, loss=CONDITIONAL))
    assert len(drawn) == 5
    assert drawn[-1] == drawn[4]
    assert drawn[1:3] == [drawn[1], drawn[2]]
    with pytest.raises(IndexError, match="configuration 5 of 5"):
        drawn[5]


def test_grid_times_samples():
    spec = _spec(
        2,
        loss={"grid": ["cross_entropy", {"name": "focal", "gamma": {"grid": [1, 2, 3]}}]},
        architecture={"grid": ["mlp", "resnet8"]},
        optimizer={"name": "sgd", "lr": {"uniform": [0.1, 1]}},
    )
    drawn = list(configurations(spec))
    points = [(c["loss"]["name"], c["loss"].get("gamma"), c["architecture"]["name"]) for c in drawn]
    assert len(points) == 16
    assert points[:8] == points[8:]
    losses = [("cross_entropy", None), *(("focal", g) for g in (1.0, 2.0, 3.0))]
    assert set(points) == {(n, g, a) for (n, g), a in itertools.product(losses, ("mlp", "resnet8"))}
    assert len({c["optimizer"]["lr"] for c in drawn}) == 16


def _every_point(value):
    """Enumerate a grid space the naive way."""
    if isinstance(value, dict) and "grid" in value:
        return [point for member in value["grid"] for point in _every_point(member)]
    if isinstance(value, dict):
        return [
            dict(zip(value, points, strict=True)) for points in itertools.product(*map(_every_point, value.values()))
        ]
    return [value]


_GRIDS = st.recursive(
    st.integers(0, 3),
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        | st.lists(inner, min_size=1, max_size=3, unique_by=repr).map(lambda members: {"grid": members})
    ),
    max_leaves=8,
)


@given(_GRIDS)
@settings(max_examples=60, deadline=None)
def test_grids_are_enumerated_completely(value):
    faults = []
    node = parse(value, "", faults)
    assert faults == []
    assert node.plain() == value
    drawn = [node.draw("", point, Uniforms(lambda path: math.nan)) for point in range(node.points)]
    assert Counter(map(repr, drawn)) == Counter(map(repr, _every_point(value)))


def _draws(domain, n=400):
    node = parse(domain, "x", faults := [])
    assert faults == []
    random = np.random.default_rng(1)
    return [node.draw("x", 0, Uniforms(lambda path: random.random())) for _ in range(n)]


_ENDS = st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)).map(sorted).filter(lambda ends: ends[0] < ends[1])


@given(_ENDS, st.floats(0, 1, exclude_max=True))
@settings(max_examples=60, deadline=None)
def test_real_draws_stay_inside(ends, u):
    def at(domain):
        return parse(domain, "x", []).draw("x", 0, Uniforms(lambda path: u))

    assert ends[0] <= at({"uniform": ends}) <= ends[1]
    low, high = abs(ends[0]) + 1e-9, abs(ends[0]) + 1e-9 + ends[1] - ends[0]
    if low < high:
        assert low <= at({"loguniform": [low, high]}) <= high


@given(
    st.integers(-50, 50), st.integers(1, 40), st.sampled_from(["0.1", "0.25", "0.01", "3", "0.7"]), st.integers(0, 99)
)
@settings(max_examples=60, deadline=None)
def test_quniform_has_no_rounding_dust(start, count, step, share):
    from decimal import Decimal

    values = [float(Decimal(start) * Decimal(step) + k * Decimal(step)) for k in range(count + 1)]
    domain = {"quniform": [values[0], values[-1], float(step)]}
    node = parse(domain, "x", faults := [])
    assert faults == []
    assert node.draw("x", 0, Uniforms(lambda path: share / 100)) in values


def test_distributions():
    assert np.mean(_draws({"uniform": [2, 4]})) == pytest.approx(3, abs=0.1)
    logs = np.log10(_draws({"loguniform": [0.01, 1]}))
    assert np.mean(logs) == pytest.approx(-1, abs=0.1)
    assert np.std(logs) == pytest.approx(2 / math.sqrt(12), abs=0.05)
    for domain, values in [
        ({"randint": [1, 4]}, [1, 2, 3, 4]),
        ({"quniform": [0.1, 0.4, 0.1]}, [0.1, 0.2, 0.3, 0.4]),
        ({"choice": ["a", "b", "c", "d"]}, ["a", "b", "c", "d"]),
        ({"one_of": [{"k": i} for i in range(4)]}, [{"k": i} for i in range(4)]),
    ]:
        counts = Counter(map(repr, _draws(domain, 4000)))
        assert counts.keys() == set(map(repr, values))  # both ends are drawn
        assert max(abs(count - 1000) for count in counts.values()) < 150  # 5.5 standard deviations


def test_drawn_values_are_plain_python_of_their_columns_types():
    spec = _spec(
        20,
        loss=CONDITIONAL,
        architecture={"choice": [{"name": "mlp", "width": {"randint": [8, 64]}}, "resnet8"]},
        optimizer={"name": "sgd", "lr": {"quniform": [1, 3, 1]}, "milestones": {"choice": [[1, 2], [3]]}},
    )
    types = spec.space.column_types
    assert (types["config_loss_gamma"], types["config_loss_normalise"], types["config_loss_score"]) == (
        float,
        bool,
        str,
    )
    assert (types["config_architecture_width"], types["config_optimizer_milestones"]) == (int, str)
    for drawn in configurations(spec):
        assert all(type(value) is types[column] for column, value in drawn.columns.items())


REAL = ("uniform", "loguniform", "quniform")


@pytest.mark.parametrize("typed", [None, "number", "integer"])
@pytest.mark.parametrize("kind", [*REAL, "randint", "choice", "grid"])
@pytest.mark.parametrize("ends", [[0, 1], [1, 10], [0.0, 2], [1, 2.5], [-3, 2], [1.0, 3.0]])
def test_a_value_is_one_in_draw_journal_and_table_whatever_its_ends(ends, kind, typed):
    """Whole ends do not make whole numbers: only `randint`, `choice` and `grid` do, or a type."""
    domain = {kind: [*ends, 0.25] if kind == "quniform" else ends}
    node = parse({"x": domain}, "space", faults := [])
    if typed is not None:
        registry = Registry("part")
        registry.register(Component("a", build=dict, hyperparameters=(Hyperparameter("x", typed, required=True),)))
        node = resolve_component({"name": "a", "x": domain}, registry, "part", faults)
    whole = all(float(end).is_integer() for end in ends)
    refused = (typed == "integer" and (kind in REAL or not whole)) or (kind == "randint" and not whole)
    assert bool(faults) == (refused or (kind == "loguniform" and ends[0] <= 0))
    if faults:
        return
    assert parse(json.loads(json.dumps(node.plain())), "space", []) == node
    drawn = [node.draw("", i % node.points, Uniforms(lambda _, i=i: (i * 0.37 + 0.29) % 1)) for i in range(9)]
    kept = json.loads(json.dumps(drawn))
    schema = pa.schema(
        [("config_x", pa.int64() if Space(node.nodes).column_types["config_x"] is int else pa.float64())]
    )
    table = record_batch("trials", schema, [{"config_x": each["x"]} for each in kept]).to_pylist()
    assert [row["config_x"] for row in table] == [each["x"] for each in kept] == [each["x"] for each in drawn]
    if kind in REAL:
        assert {type(each["x"]) for each in drawn} == {float} and len({each["x"] for each in drawn}) > 3
    elif kind == "randint":
        assert {type(each["x"]) for each in drawn} == {float if typed == "number" else int}


@pytest.mark.parametrize("ends", [[2**53, 2**53 + 1], [0, 10**400]])
def test_ends_that_no_float_holds_are_refused(ends):
    parse({"uniform": ends}, "x", faults := [])
    assert len(faults) == 1


def test_types_that_differ_between_branches():
    first, second = {"name": "a", "width": 3, "form": "x"}, {"name": "b", "width": 0.5, "form": 1}
    types = Space(parse({"architecture": {"choice": [first, second]}}, "", []).nodes).column_types
    assert types["config_architecture_width"] is float
    assert types["config_architecture_form"] is str


def test_varying_columns():
    spec = _spec(4, loss=CONDITIONAL, architecture={"grid": ["mlp", {"name": "mlp", "width": 8}]})
    assert set(spec.space.varying_columns) == {
        "config_loss_name",
        "config_loss_gamma",
        "config_loss_coverage",
        "config_loss_nu",
        "config_architecture_width",
    }


def test_a_name_shared_by_two_components_does_not_vary_by_itself():
    members = [{"name": "a", "width": 1}, {"name": "b", "width": 2}]
    assert Space(parse({"architecture": {"choice": members}}, "", []).nodes).varying_columns == (
        "config_architecture_name",
    )


SIX = {"loss": {"name": "focal", "gamma": {"choice": [1, 2, 3]}}, "architecture": {"choice": ["mlp", "resnet8"]}}

GRID = {"loss": {"grid": ["cross_entropy", SIX["loss"]]}}


def _finite(samples, parts=SIX, **changes):
    return build_spec({**MINIMAL, "space": {**MINIMAL["space"], **parts}, "samples": samples, **changes}, REGISTRIES)


@pytest.mark.parametrize("seed", range(20))
def test_each_configuration_of_a_finite_space_comes_once(seed):
    drawn = [each.text for each in configurations(_finite(6, seed=seed))]
    assert len(set(drawn)) == 6
    assert drawn[:4] == [each.text for each in configurations(_finite(4, seed=seed))]
    assert configurations(_finite(6, seed=seed))[4].text == drawn[4]


def test_draws_that_repeat_nothing_are_those_of_every_space():
    spec = _finite(2)
    assert configurations(spec)[0] == examples(spec)[0]
    wide = {"architecture": {"name": "mlp", "width": {"randint": [1, 10**9]}}}
    assert len({each.digest for each in configurations(_finite(300, wide))}) == 300


def test_each_grid_point_is_drawn_without_repeats():
    parts = {**GRID, "architecture": {"name": "mlp", "width": {"randint": [1, 40]}}}
    drawn = [*configurations(_finite(40, parts))]
    assert len(drawn) == len({each.digest for each in drawn}) == 80


@pytest.mark.parametrize(
    ("parts", "samples", "said"),
    [
        (SIX, 12, "samples = 12, but the space has only 6 configurations"),
        (GRID, 4, "samples = 4, but a grid point has only 3 configurations"),
    ],
)
def test_more_samples_than_configurations_are_refused(parts, samples, said):
    with pytest.raises(InvalidSearchSpace) as refused:
        _finite(samples, parts)
    assert said in str(refused.value) and "raise replicates.count" in str(refused.value)


def test_common_seeds_refuse_what_would_train_the_same_twice():
    assert repeat_notes(_finite(3, GRID)) == ["2 of 6 trials repeat the configuration of an earlier one on other seeds"]
    with pytest.raises(InvalidSearchSpace, match="a grid point has only 1 configuration"):
        _finite(3, GRID, replicates={"count": 2, "seeds": "common"})
    branches = {"loss": {"one_of": ["cross_entropy", {"name": "focal", "gamma": {"uniform": [0, 1]}}]}}
    (note,) = repeat_notes(_finite(20, branches, replicates={"count": 2, "seeds": "common"}))
    assert "of 20 trials repeat" in note and note.endswith("on the same seeds, so they repeat its numbers")
    assert repeat_notes(_finite(6)) == []


_LISTED = st.recursive(
    st.integers(0, 3) | st.just({"randint": [1, 3]}) | st.just({"quniform": [0, 1, 0.5]}),
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        | st.lists(inner, min_size=1, max_size=3, unique_by=repr).map(lambda members: {"choice": members})
    ),
    max_leaves=6,
)


@given(st.lists(_LISTED, min_size=1, max_size=3, unique_by=repr))
@settings(max_examples=100, deadline=None)
def test_sizes_count_what_is_listed(members):
    node = parse({"x": {"grid": members}}, "", faults := [])
    assert not faults
    counts = [sum(1 for _ in node.at_point(point).every_value()) for point in range(node.points)]
    assert node.sizes == (min(counts), max(counts))
