"""Folding keeps the Hessian over the original parameters; chunks keep to the memory they are given."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from trainables.curvature.folding import fold_batch_norm
from trainables.curvature.hessian import flatten, hessian_vector_product, split_like
from trainables.curvature.surface import chunk_plan, private_copy


def product(network, inputs, targets, vector):
    parameters = list(network.parameters())
    gradients = torch.autograd.grad(cross_entropy(network(inputs), targets), parameters, create_graph=True)
    return flatten(hessian_vector_product(gradients, parameters, split_like(vector, parameters)), parameters)


def test_folding_keeps_logits_and_products(reference):
    model, (inputs, targets) = reference.build("conv"), reference.batch()
    folded = private_copy(model)
    assert len(fold_batch_norm(folded, inputs[:2])) == 3
    torch.testing.assert_close(folded(inputs), model(inputs))
    size = sum(p.numel() for p in model.parameters())
    for seed in range(5):
        vector = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        torch.testing.assert_close(product(folded, inputs, targets, vector), product(model, inputs, targets, vector))


class Fork(nn.Module):
    """The convolution's output also goes around its batch-norm."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1)

    def forward(self, inputs):
        hidden = self.conv(inputs)
        return (hidden + self.norm(hidden)).flatten(1)


@pytest.mark.parametrize(
    "build",
    [
        Fork,
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.BatchNorm2d(2), nn.Flatten()),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False), nn.Flatten()),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 2), nn.BatchNorm1d(2)),
    ],
)
def test_folds_nothing_else(build, reference):
    network = build().double().eval()
    inputs, _ = reference.batch(4)
    before = network(inputs)
    assert fold_batch_norm(network, inputs) == []
    torch.testing.assert_close(network(inputs), before)


def test_a_shared_batch_norm_is_not_folded(reference):
    norm = nn.BatchNorm2d(2)
    network = nn.Sequential(nn.Conv2d(1, 2, 3), norm, nn.Conv2d(2, 2, 3), norm, nn.Flatten()).double().eval()
    assert fold_batch_norm(network, reference.batch(4)[0]) == []


@given(st.integers(1, 5000), st.floats(1, 1e7), st.integers(1, 10**10), st.integers(1, 600))
def test_chunks_keep_to_the_budget(samples, per_sample, budget, batch_size):
    size, kept = chunk_plan(samples, per_sample, budget, batch_size)
    chunks = -(-samples // size)
    assert size % batch_size == 0
    assert 0 <= kept <= chunks
    if kept == chunks and size <= samples:
        assert samples * per_sample <= budget * (1 + 1e-9) or kept * size * per_sample <= budget / 2
    if size > batch_size:  # one batch is the least that can pass
        rebuilt = size * per_sample if kept < chunks else 0
        assert min(kept * size, samples) * per_sample + rebuilt <= budget * (1 + 1e-9)
