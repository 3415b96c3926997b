"""Arrays are taken if their values are those that the program expects, whatever their type; others are refused."""

import numpy as np
import pytest
import torch

from trainables.datasets.raw_inputs.arrays import Numbers, RefusedInputsError

PIXELS = Numbers((2, 2), "uint8", 0, 16)


@pytest.mark.parametrize(
    "given",
    [
        np.full((3, 2, 2), 7, np.uint8),
        np.full((3, 2, 2), 7.0),
        torch.full((3, 2, 2), 7.0),
        np.full((3, 2, 2), 7).tolist(),
        np.full((3, 2, 2), 7)[:, ::-1],
    ],
)
def test_values_count_and_not_types(given):
    made = PIXELS.array(given)
    assert made.dtype == np.uint8 and made.shape == (3, 2, 2) and (made == 7).all()
    assert np.array_equal(PIXELS.array(given[0]), made[:1])


@pytest.mark.parametrize(
    ("reader", "given", "said"),
    [
        (PIXELS, np.full((1, 2, 2), 17), "the value 17 in sample 0"),
        (PIXELS, np.array([[[1, 2], [3, 4]], [[1, 2], [3, 0.5]]]), "the value 0.5 in sample 1"),
        (PIXELS, np.full((1, 2, 2), np.nan), "the value nan in sample 0"),
        (PIXELS, np.zeros((1, 2, 3)), r"float64 \[1, 2, 3\]"),
        (PIXELS, [[["a", "b"], ["c", "d"]]], r"<U1 \[1, 2, 2\]"),
        (PIXELS, [[1, 2], [3]], r"object \[\]"),
        (Numbers((2,), "float32"), [[1.0, np.inf]], "the value inf in sample 0"),
        (Numbers((2,), "float32", integers=False), np.zeros((1, 2), np.uint8), r"uint8 \[1, 2\]"),
    ],
)
def test_values_of_another_range_shape_or_type_are_refused(reader, given, said):
    with pytest.raises(RefusedInputsError, match=said) as refused:
        reader.array(given)
    assert reader.dtype in refused.value.remedy
