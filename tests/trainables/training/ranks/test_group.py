"""Who has which rows, and which gradients travel together; what ranks compute is in test_replicate.py."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from trainables.training.ranks.group import BUCKET_BYTES, Ranks, buckets, rows_of


def test_rows_are_shared_out_as_numpy_splits_arrays() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        count, size = rng.randint(0, 50), rng.randint(1, 9)
        shares = [np.arange(count)[rows_of(count, rank, size)] for rank in range(size)]
        for share, wanted in zip(shares, np.array_split(np.arange(count), size), strict=True):
            np.testing.assert_array_equal(share, wanted)


def test_a_batch_with_fewer_samples_than_ranks_is_every_ranks_own() -> None:
    for rank in range(4):
        assert Ranks(rank, 4).part(slice(96, 99)) == slice(96, 99)
    parts = [Ranks(rank, 4).part(slice(64, 70)) for rank in range(4)]
    assert parts == [slice(64, 66), slice(66, 68), slice(68, 69), slice(69, 70)]


@pytest.mark.parametrize("seed", range(20))
def test_buckets_hold_all_tensors_in_order_each_of_one_type_and_size(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [torch.float32, torch.float64]
    tensors = [torch.empty(rng.choice([0, 1, 10, 2_000_000, 9_000_000]), dtype=rng.choice(kinds)) for _ in range(12)]
    found = buckets(tensors)
    assert [id(tensor) for bucket in found for tensor in bucket] == [id(tensor) for tensor in tensors]
    for bucket in found:
        assert len({tensor.dtype for tensor in bucket}) == 1
        assert len(bucket) == 1 or sum(tensor.nbytes for tensor in bucket) <= BUCKET_BYTES
