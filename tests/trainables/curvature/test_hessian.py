"""Folding keeps the Hessian over the original parameters; chunks keep to the memory they are given."""

import gc
import weakref
from functools import partial

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from trainables.curvature import (
    CurvatureSettings,
    CurvatureUnavailable,
    hessian as surface_module,
    measure_curvature,
    spectral_density,
)
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


def test_a_shared_batch_norm_is_not_folded(reference):
    norm = nn.BatchNorm2d(2)
    network = nn.Sequential(nn.Conv2d(1, 2, 3), norm, nn.Conv2d(2, 2, 3), norm, nn.Flatten()).double().eval()
    assert fold_batch_norm(network, reference.batch(4)[0]) == []


PLANS = {"cpu": 2**29, "cuda": 2**32}


@given(
    st.integers(1, 5000), st.floats(1, 1e7), st.integers(0, 10**10), st.integers(1, 10**10), st.integers(1, 600),
    st.sampled_from([*PLANS]),
)  # fmt: skip
def test_chunks_keep_to_the_budget(samples, per_sample, beside, budget, batch_size, device):
    size = chunk_size(samples, per_sample, beside, batch_size, torch.device(device))
    kept = kept_chunks(samples, size, per_sample, budget)
    chunks = -(-samples // size)
    assert size % batch_size == 0
    assert 0 <= kept <= chunks
    if size > batch_size:  # one batch is the least that can pass
        assert size * per_sample <= max(0, PLANS[device] - beside) * (1 + 1e-9)
    if samples * per_sample <= budget * (1 - 1e-9):
        assert kept == chunks
    elif 0 < kept < chunks:
        assert (kept + 1) * size * per_sample <= budget * (1 + 1e-9), "beside the graph that is rebuilt"


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_what_a_samples_graph_takes_does_not_grow_with_their_number(reference, kind):
    """A few samples that are a view of all of them were counted with all of them: then no graph fitted any more."""
    inputs, targets = reference.batch(600)
    planned = {}
    with surface_module.second_order(torch.device("cpu")):
        for samples in (6, 600):
            given = inputs[:samples], targets[:samples]
            planned[samples] = surface_module.Surface(reference.build(kind), *given, batch_size=3).graph_bytes / samples
    assert planned[600] == planned[6]


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
    model, (inputs, targets) = reference.build("attention").float(), reference.batch(23)
    found = []
    monkeypatch.setattr(surface_module, "_CPU_PLAN", 30_000)  # a few chunks of small batches
    for budget in (10**12, 60_000, 1):
        monkeypatch.setattr(surface_module, "graph_budget", lambda device, budget=budget: budget)
        settings = CurvatureSettings(lanczos_steps=5, trace_probes=3, batch_size=3)
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
        few = CurvatureSettings(lanczos_steps=2, spectrum_steps=3)
        measure(model, inputs, targets, {"training": cross_entropy}, settings=few, seed=0)
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


@pytest.fixture(scope="module")
def trained():
    """A network of 2 × 8 tanh units trained to a minimum on two noisy classes, with its data."""
    torch.manual_seed(0)
    inputs = torch.randn(150, 2, dtype=torch.float64)
    targets = ((inputs[:, 0] * inputs[:, 1] + 0.4 * torch.randn(150, dtype=torch.float64)) > 0).long()
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        value = cross_entropy(model(inputs), targets) + 1e-3 * sum(p.square().sum() for p in model.parameters())
        value.backward()
        return value

    optimiser.step(closure)
    return model, inputs, targets


def _traces(model, inputs, targets):
    """Return Tr ∂²ℓ, ‖∇ℓ‖² and p_y of each sample's −ln p, entry by entry."""
    parameters = dict(model.named_parameters())

    def nll(values, x, y):
        return -torch.func.functional_call(model, values, (x,)).log_softmax(-1) @ y

    def squared(values, x, y):
        return sum(g.square().sum() for g in torch.func.grad(nll)(values, x, y).values())

    def trace(values, x, y):
        blocks = torch.func.hessian(nll)(values, x, y)
        return sum(blocks[k][k].reshape(v.numel(), v.numel()).trace() for k, v in values.items())

    truth = torch.nn.functional.one_hot(targets).double()
    found = [torch.func.vmap(f, (None, 0, 0))(parameters, inputs, truth) for f in (trace, squared, nll)]
    return found[0].detach(), found[1].detach(), (-found[2]).exp().detach()


def test_equation_27_holds_to_the_order_it_is_written_in(trained):
    """Curvature Eq. 27 averaged over normal steps of deviation s: the mean loss grows by s²/2·Tr(H), then faster."""
    model, inputs, targets = trained
    traces, _, _ = _traces(model, inputs, targets)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    steps = {k: torch.randn(2000, *v.shape, generator=generator, dtype=v.dtype) for k, v in parameters.items()}

    def loss(values):
        return cross_entropy(torch.func.functional_call(model, values, (inputs,)), targets)

    def ratio(s):
        ways = [torch.func.vmap(loss)({k: v + t * steps[k] for k, v in parameters.items()}).mean() for t in (s, -s)]
        return float((sum(ways) / 2 - loss(parameters)) / (s**2 / 2 * traces.mean()))

    assert ratio(0.003) == pytest.approx(1, abs=0.1), "2,000 steps scatter by some per cent"
    assert ratio(3.0) < 0.5, "far away the expansion says little"


@pytest.mark.parametrize("gamma", [1.0, 3.0])
def test_equation_28_leaves_two_terms_out(trained, gamma):
    """Curvature Eq. 28 keeps (1 − p)^γ ∂²ℓ of a sample's focal Hessian; the rest is γ p (1 − p)^(γ−1)(ℓ ∂²ℓ + …).

    With ℓ = −ln p and w(ℓ) = (1 − e^(−ℓ))^γ, ∂²(wℓ) = (w + ℓw') ∂²ℓ + (2w' + ℓw'') ∇ℓ∇ℓᵀ.
    """
    model, inputs, targets = trained
    traces, squares, p = _traces(model, inputs, targets)
    found = dense = 0.0
    nll = -p.log()
    first = gamma * p * (1 - p) ** (gamma - 1)
    second = gamma * (gamma - 1) * p**2 * (1 - p) ** (gamma - 2) - first
    kept = ((1 - p) ** gamma * traces).mean()
    whole = kept + (nll * first * traces + (2 * first + nll * second) * squares).mean()
    parameters = list(model.parameters())
    values = (1 - model(inputs).softmax(1)[range(150), targets]) ** gamma
    loss = (values * -model(inputs).log_softmax(1)[range(150), targets]).mean()
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    for gradient, parameter in zip(gradients, parameters, strict=True):
        for at in range(parameter.numel()):
            (row,) = torch.autograd.grad(gradient.reshape(-1)[at], parameter, retain_graph=True)
            dense += float(row.reshape(-1)[at])
    found = float(kept) / dense
    assert float(whole) == pytest.approx(dense, rel=1e-6)
    assert found != pytest.approx(1, abs=0.05), "what is left out is not small on a trained network"
