"""Choices lead to configurations and back: what was drawn is found again, and what lies outside is not."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sweeper.core.domains import Uniforms, choices_of, draw, parse
from tests.sweeper.searches import Recorded, searched_spec

NODE = searched_spec().space


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_the_choices_of_what_was_drawn_lead_to_it_again(seed):
    random = np.random.default_rng(seed)
    drawn = draw(NODE, "", 0, Uniforms(lambda path: random.random()))
    kept = json.loads(json.dumps(drawn))
    choices = choices_of(NODE, kept)
    assert choices is not None
    assert json.dumps(draw(NODE, "", 0, Recorded(json.loads(json.dumps(choices))))) == json.dumps(drawn)


def test_a_choice_exists_only_where_its_branch_was_taken():
    drawn = draw(NODE, "", 0, Uniforms(lambda path: 0.0))
    choices = choices_of(NODE, drawn)
    assert choices is not None
    assert choices.pop("optimizer.lr") == pytest.approx(0.01)
    assert choices == {"loss": 0, "architecture": 0, "architecture.choice[0].width": 8, "optimizer.momentum": 0.5}


@pytest.mark.parametrize(
    ("domain", "inside", "outside"),
    [
        ({"uniform": [1, 2]}, [1, 1.5, 2.0], [0.9, 2.1, "1", True, None]),
        ({"loguniform": [0.1, 2]}, [0.1, 2], [0.0, 3]),
        ({"randint": [1, 3]}, [1, 3, 2.0], [0, 4, 1.5]),
        ({"quniform": [0.1, 0.4, 0.1]}, [0.1, 0.3, 0.4], [0.15, 0.30000000000000004, 0.5]),
        ({"choice": ["a", 2, False]}, ["a", 2, 2.0, False], ["b", 0, True, None]),
        ({"choice": [[1, 2], [3]]}, [[1, 2], [3]], [[1], [2, 1], "12"]),
        ([1, 2], [[1, 2], [1.0, 2.0]], [[1, 2, 3], 1]),
        ({"grid": [1, 2]}, [1, 2], [3]),
        ({"k": {"uniform": [0, 1]}, "c": 5}, [{"k": 0.5, "c": 5}], [{"k": 0.5}, {"k": 0.5, "c": 6}, 5]),
    ],
)
def test_what_lies_in_a_domain(domain, inside, outside):
    node = parse(domain, "x", faults := [])
    assert not faults
    assert all(choices_of(node, value, "x") is not None for value in inside)
    assert all(choices_of(node, value, "x") is None for value in outside)


def test_a_members_own_domains_decide_which_member_it_is():
    node = parse({"choice": [{"k": {"uniform": [0, 1]}}, {"k": {"uniform": [2, 3]}}]}, "x", [])
    assert choices_of(node, {"k": 2.5}, "x") == {"x": 1, "x.choice[1].k": 2.5}
