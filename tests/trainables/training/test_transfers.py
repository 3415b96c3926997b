"""Tensors that are brought to the host together are what they were, to the bit."""

from __future__ import annotations

import pytest
import torch

from trainables.training.prediction import joined, on_host, parted

MIXED = (
    torch.tensor(1.5),
    torch.randint(0, 10, (3,), generator=torch.Generator().manual_seed(0)),
    torch.tensor([True, False, True]),
    torch.tensor([[float("nan"), -0.0], [float("inf"), 1e-45]], dtype=torch.float64).t(),
    torch.randn(2, 3, generator=torch.Generator().manual_seed(1)).bfloat16(),
    torch.zeros(0, 4),
)


@pytest.mark.parametrize("order", [MIXED, MIXED[::-1]])
def test_tensors_of_any_type_and_shape_come_apart_as_they_were(order):
    for before, after in zip(order, parted(joined(order), order), strict=True):
        assert after.dtype == before.dtype and after.shape == before.shape
        assert after.contiguous().flatten().view(torch.uint8).equal(before.contiguous().flatten().view(torch.uint8))


def test_what_is_on_the_host_is_not_copied():
    assert all(after is before for before, after in zip(MIXED, on_host(*MIXED), strict=True))
