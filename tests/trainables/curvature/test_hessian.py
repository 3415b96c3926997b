"""Folding keeps the Hessian over the original parameters; chunks keep to the memory they are given."""

import gc
import weakref
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from trainables.curvature import CurvatureSettings, CurvatureUnavailable, measure_curvature, spectral_density
from trainables.curvature import hessian as surface_module
from trainables.curvature.gauss_newton import fold_batch_norm
from trainables.curvature.hessian import (
    chunk_size,
    flatten,
    graph_budget,
    hessian_vector_product,
    kept_chunks,
    private_copy,
    split_like,
)

GIB = 2**30


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


@given(st.integers(1, 5000), st.floats(1, 1e7), st.integers(0, 10**10), st.integers(1, 10**10), st.integers(1, 600))
def test_chunks_keep_to_the_budget(samples, per_sample, beside, budget, batch_size):
    size = chunk_size(samples, per_sample, beside, batch_size)
    kept = kept_chunks(samples, size, per_sample, budget)
    chunks = -(-samples // size)
    assert size % batch_size == 0
    assert 0 <= kept <= chunks
    if size > batch_size:  # one batch is the least that can pass
        assert size * per_sample <= max(0, surface_module._PLANNED_BYTES - beside) * (1 + 1e-9)
    if samples * per_sample <= budget * (1 - 1e-9):
        assert kept == chunks
    elif 0 < kept < chunks:
        assert (kept + 1) * size * per_sample <= budget * (1 + 1e-9), "beside the graph that is rebuilt"


class Card:
    """What torch says of a card of 80 GiB, half of it a neighbour's, in a process that may take a quarter of it."""

    share, free, reserved, allocated = 0.25, 40 * GIB, 6 * GIB, 2 * GIB

    def __init__(self, monkeypatch):
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda device=None: (self.free, 80 * GIB))
        monkeypatch.setattr("torch.cuda.memory_reserved", lambda device=None: self.reserved)
        monkeypatch.setattr("torch.cuda.memory_allocated", lambda device=None: self.allocated)
        monkeypatch.setattr("torch.cuda.get_per_process_memory_fraction", lambda device=None: self.share)
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)


def test_graphs_on_a_card_take_their_part_of_the_process_s_share(monkeypatch):
    card = Card(monkeypatch)
    budget = partial(graph_budget, torch.device("cuda"))
    assert budget() == int(0.6 * (20 - 6 + 4) * GIB), "of the share, what is not reserved, and what is without use"
    card.share = 1.0
    assert budget() == int(0.6 * (40 + 4) * GIB), "of a whole card, what others leave"
    card.share, card.reserved = 0.05, 6 * GIB
    assert budget() == int(0.6 * 4 * GIB)


def test_the_memory_that_is_free_decides_no_digit(reference, monkeypatch):
    model, (inputs, targets) = reference.build("conv").float(), reference.batch(23)
    found = []
    monkeypatch.setattr(surface_module, "_PLANNED_BYTES", 30_000)  # a few chunks of small batches
    for budget in (10**12, 60_000, 1):
        monkeypatch.setattr(surface_module, "graph_budget", lambda device, budget=budget: budget)
        settings = CurvatureSettings(lanczos_steps=5, trace_probes=3, trace_method="hutchinson", batch_size=3)
        found.append(measure_curvature(
            model, inputs.float(), targets, {"training": cross_entropy}, settings=settings, seed=0))  # fmt: skip
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("kind", ["conv", "mlp", "attention"])
@pytest.mark.parametrize("measure", [measure_curvature, spectral_density])
def test_nothing_of_a_measurement_waits_for_the_garbage_collector(reference, monkeypatch, kind, measure):
    copies = []

    def noted(model):
        network = private_copy(model)
        copies.extend(weakref.ref(module) for module in network.modules())
        return network

    monkeypatch.setattr(surface_module, "private_copy", noted)
    model, (inputs, targets) = reference.build(kind), reference.batch()
    gc.collect()
    gc.disable()
    try:
        measure(
            model, inputs, targets, {"training": cross_entropy}, settings=CurvatureSettings(lanczos_steps=2), seed=0
        )
        assert copies and [copy() for copy in copies if copy() is not None] == []
    finally:
        gc.enable()


@pytest.mark.parametrize("place", ["forward", "gram"])
def test_too_little_memory_is_said_and_on_a_share_asks_for_a_larger_one(reference, monkeypatch, place):
    def hungry(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    model, (inputs, targets) = reference.build("conv"), reference.batch()
    if place == "forward":
        model.append(Hungry())
    else:
        monkeypatch.setattr(surface_module, "logit_gram", hungry)
    measure = partial(measure_curvature, model, inputs, targets, {"training": cross_entropy}, seed=0)
    with pytest.raises(CurvatureUnavailable, match=r"ran out of memory: lower evaluation.curvature"):
        measure(settings=CurvatureSettings())
    card = Card(monkeypatch)
    with pytest.raises(torch.OutOfMemoryError):
        measure(settings=CurvatureSettings())
    card.share = 1.0
    with pytest.raises(CurvatureUnavailable, match="ran out of memory"):
        measure(settings=CurvatureSettings())


class Hungry(nn.Module):
    """Takes more memory than any machine has."""

    def forward(self, inputs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_a_machine_without_memory_left_says_so_too(reference):
    class Endless(nn.Module):
        def forward(self, inputs):
            return inputs + torch.empty(10**15)

    model, (inputs, targets) = reference.build("mlp"), reference.batch()
    model.append(Endless())
    with pytest.raises(CurvatureUnavailable, match="ran out of memory"):
        measure_curvature(model, inputs, targets, {"t": cross_entropy}, settings=CurvatureSettings(), seed=0)
