"""A finite space is drawn without repeats; more samples than it has are refused, and repeats that remain are said."""

import json

import pytest
from hypothesis import given, settings, strategies as st

from sweeper.core.domains import at_grid_point, every_value, grid_size, parse, random_sizes
from sweeper.core.errors import InvalidSearchSpace
from sweeper.core.ids import config_hash
from sweeper.space.configurations import configurations, examples, repeat_notes
from sweeper.space.loading import build_spec
from tests.sweeper.small_registries import MINIMAL, REGISTRIES

SIX = {"loss": {"name": "focal", "gamma": {"choice": [1, 2, 3]}}, "architecture": {"choice": ["mlp", "resnet8"]}}

GRID = {"loss": {"grid": ["cross_entropy", SIX["loss"]]}}


def _spec(samples, parts=SIX, seed=0, **more):
    return build_spec(
        {**MINIMAL, "space": {**MINIMAL["space"], **parts}, "samples": samples, "seed": seed, **more}, REGISTRIES
    )


@pytest.mark.parametrize("seed", range(20))
def test_each_configuration_of_a_finite_space_comes_once(seed):
    drawn = [json.dumps(each) for each in configurations(_spec(6, seed=seed))]
    assert len(set(drawn)) == 6
    assert drawn[:4] == [json.dumps(each) for each in configurations(_spec(4, seed=seed))]
    assert json.dumps(configurations(_spec(6, seed=seed))[4]) == drawn[4]


def test_draws_that_repeat_nothing_are_those_of_every_space():
    spec = _spec(2)
    assert configurations(spec)[0] == examples(spec)[0]
    wide = {"architecture": {"name": "mlp", "width": {"randint": [1, 10**9]}}}
    assert len({config_hash(each) for each in configurations(_spec(300, wide))}) == 300


def test_each_grid_point_is_drawn_without_repeats():
    parts = {
        "loss": {"grid": ["cross_entropy", SIX["loss"]]},
        "architecture": {"name": "mlp", "width": {"randint": [1, 40]}},
    }
    drawn = [*configurations(_spec(40, parts))]
    assert len(drawn) == len({config_hash(each) for each in drawn}) == 80


@pytest.mark.parametrize(
    ("parts", "samples", "said"),
    [
        (SIX, 12, "samples = 12, but the space has only 6 configurations"),
        (
            {"loss": {"grid": ["cross_entropy", SIX["loss"]]}},
            4,
            "samples = 4, but a grid point has only 3 configurations",
        ),
    ],
)
def test_more_samples_than_configurations_are_refused(parts, samples, said):
    with pytest.raises(InvalidSearchSpace) as refused:
        _spec(samples, parts)
    assert said in str(refused.value) and "raise replicates.count" in str(refused.value)


def test_common_seeds_refuse_what_would_train_the_same_twice():
    assert repeat_notes(_spec(3, GRID)) == ["2 of 6 trials repeat the configuration of an earlier one on other seeds"]
    with pytest.raises(InvalidSearchSpace, match="a grid point has only 1 configuration"):
        _spec(3, GRID, replicates={"count": 2, "seeds": "common"})
    branches = {"loss": {"one_of": ["cross_entropy", {"name": "focal", "gamma": {"uniform": [0, 1]}}]}}
    (note,) = repeat_notes(_spec(20, branches, replicates={"count": 2, "seeds": "common"}))
    assert note.endswith(
        "of 20 trials repeat the configuration of an earlier one on the same seeds, so they repeat its numbers"
    )
    assert repeat_notes(_spec(6)) == []


_FINITE = st.recursive(
    st.integers(0, 3) | st.just({"randint": [1, 3]}) | st.just({"quniform": [0, 1, 0.5]}),
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        | st.lists(inner, min_size=1, max_size=3, unique_by=repr).map(lambda members: {"choice": members})
    ),
    max_leaves=6,
)


@given(st.lists(_FINITE, min_size=1, max_size=3, unique_by=repr))
@settings(max_examples=100, deadline=None)
def test_sizes_count_what_is_listed(members):
    node = parse({"x": {"grid": members}}, "", faults := [])
    assert not faults
    counts = [sum(1 for _ in every_value(at_grid_point(node, point))) for point in range(grid_size(node))]
    assert random_sizes(node) == (min(counts), max(counts))
