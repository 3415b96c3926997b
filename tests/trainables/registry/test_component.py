"""Numbers read from values that may hold anything."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainables.registry import number_in


def test_a_number_is_returned_as_it_is():
    assert number_in({"depth": 20}, "depth") == 20
    assert isinstance(number_in({"depth": 20}, "depth"), int)
    assert number_in({"gamma": 0.1}, "gamma", 3.0) == 0.1


@pytest.mark.parametrize("value", [np.float32(0.5), np.int64(3), torch.tensor(0.5)])
def test_numbers_of_numpy_and_torch_become_floats(value):
    found = number_in({"gamma": value}, "gamma")
    assert isinstance(found, float)
    assert found == value


def test_the_default_stands_for_a_missing_value_and_for_none():
    assert number_in({}, "gamma", 3.0) == number_in({"gamma": None}, "gamma", 3.0) == 3.0
    assert number_in({}, "gamma") is None


@pytest.mark.parametrize("value", ["3", [3.0]])
def test_anything_else_is_refused_with_its_name_and_value(value):
    with pytest.raises(ValueError, match=r"gamma = .* must be a number"):
        number_in({"gamma": value}, "gamma")
