"""One measurement: exact against the dense Hessian, of the mean over all samples, and without side effects."""

import copy
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.benchmarks.oracles.networks import case, differences
from trainables.curvature import (
    CURVATURE_FIELDS,
    CurvatureSettings,
    CurvatureUnavailable,
    hessian as surface_module,
    measure_curvature,
    spectral_density,
)
from trainables.curvature.measure import SPECTRUM_PROBES, evenly_spaced, lanczos_quadrature, measure_by_block
from trainables.extensions.libraries import register_missing_operators
from trainables.losses import build_loss
from trainables.worker.trial_reports import Failure, TrialEnded


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lanczos_step": 3}, "did you mean 'lanczos_steps'"),
        ({"samples": 0}, "at least one sample"),
        ({"samples": 1.5}, "whole number"),
        ({"trace_probes": 1}, "two probes"),
        ({"residual_tolerance": 2}, r"outside \[0, 1\]"),
        ({"losses": []}, "must name a loss"),
        ({"losses": ["validation"]}, "must be a list"),
        ({"spectrum": "yes"}, "true or false"),
    ],
)
def test_names_the_rule(values, words):
    with pytest.raises(ValueError, match=words):
        CurvatureSettings.from_mapping(values)


THOROUGH = CurvatureSettings(lanczos_steps=80, residual_tolerance=1e-5, trace_probes=200)
FEW = CurvatureSettings(lanczos_steps=3, trace_probes=4)


def focal(logits, targets, gamma=3.0):
    log_p = torch.log_softmax(logits, 1).gather(1, targets[:, None])[:, 0]
    return (-((1 - log_p.exp()) ** gamma) * log_p).mean()


def concave(logits, targets):
    """The negative loss: its largest eigenvalue in magnitude is λ_min."""
    return -cross_entropy(logits, targets)


class Coupled:
    """A loss of all pairs in a batch, with a weight that depends on the logits and is frozen."""

    batch_coupled = True

    def __init__(self, weight=None):
        self.weight = weight

    def __call__(self, logits, targets):
        weight = logits.detach().std() if self.weight is None else self.weight
        confidence = torch.softmax(logits, 1).amax(1)
        gaps = (confidence[:, None] - confidence[None, :]).square()
        return cross_entropy(logits, targets) + weight * gaps.mean()

    def frozen(self, logits, targets):
        return Coupled(logits.std())


def measure(model, inputs, targets, loss, settings=THOROUGH, seed=0):
    return measure_curvature(model, inputs, targets, {"training": loss}, settings=settings, seed=seed)["training"]


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        *((kind, focal) for kind in ("mlp", "tanh", "conv", "attention", "attention with layer-norm weights")),
        ("tanh", cross_entropy),
        ("mlp", concave),
        ("attention", concave),
    ],
)
def test_matches_the_dense_hessian(reference, kind, loss):
    model, (inputs, targets) = reference.build(kind), reference.batch()
    hessian = reference.dense_hessian(model, inputs, targets, loss)
    eigenvalues = torch.linalg.eigvalsh(hessian)
    row = measure(model, inputs, targets, loss)
    assert set(row) == set(CURVATURE_FIELDS)
    assert math.isclose(row["lambda_max"], float(eigenvalues[-1]), rel_tol=1e-4)
    assert math.isclose(row["lambda_min"], float(eigenvalues[0]), rel_tol=1e-4)
    assert row["residual"] < 1e-4
    assert row["samples"] == 20
    if kind in ("mlp", "conv"):
        assert row["trace_se"] == 0
        assert math.isclose(row["trace"], float(hessian.trace()), rel_tol=1e-9)
    else:
        assert abs(row["trace"] - float(hessian.trace())) <= 3 * row["trace_se"] + 1e-9


@pytest.mark.parametrize(
    ("library", "name", "in_place"),
    [("torchvision", "squeezenet1_1", True), ("timm", "test_resnet", False), ("transformers", "gpt2", True)],
)
def test_public_networks_agree_with_their_plain_gradients(library, name, in_place):
    register_missing_operators()
    pytest.importorskip(library)
    for words, difference in differences(case(library, name, in_place)):
        assert abs(difference) < (5 if "standard errors" in words else 1e-5), words


@pytest.mark.parametrize("kind", ["mlp", "conv", "attention"])
def test_single_precision_agrees_with_double(reference, kind):
    model, (inputs, targets) = reference.build(kind), reference.batch()
    expected = measure(model, inputs, targets, focal)
    found = measure(model.float(), inputs.float(), targets, focal)
    for field in ("lambda_max", "lambda_min", "gradient_norm"):
        assert math.isclose(found[field], expected[field], rel_tol=1e-3)


@pytest.mark.parametrize(
    ("budget", "planned", "batch_size"),
    [(10**12, 10**12, 3), (10**12, 30_000, 7), (30_000, 30_000, 3), (30_000, 1, 64), (1, 10**12, 64), (1, 1, 7)],
)
def test_is_a_mean_over_samples_whatever_the_batches(reference, monkeypatch, budget, planned, batch_size):
    model, (inputs, targets) = reference.build("conv"), reference.batch(23)
    expected = measure(model, inputs, targets, cross_entropy)
    monkeypatch.setattr(surface_module, "graph_budget", lambda device: budget)
    monkeypatch.setattr(surface_module, "_CPU_PLAN", planned)
    found = measure(model, inputs, targets, cross_entropy, CurvatureSettings(
        lanczos_steps=80, residual_tolerance=1e-5, batch_size=batch_size))  # fmt: skip
    for field in ("lambda_max", "lambda_min", "trace", "gradient_norm"):
        assert math.isclose(found[field], expected[field], rel_tol=1e-6)


@pytest.mark.parametrize("budget", [10**12, 1])
def test_takes_a_coupled_loss_over_a_fixed_partition(reference, monkeypatch, budget):
    monkeypatch.setattr(surface_module, "graph_budget", lambda device: budget)
    monkeypatch.setattr(surface_module, "_CPU_PLAN", budget)
    model, (inputs, targets) = reference.build("mlp"), reference.batch(20)
    parts = [slice(0, 8), slice(8, 16), slice(16, 20)]
    with torch.no_grad():
        frozen = [Coupled().frozen(model(inputs)[part], targets[part]) for part in parts]

    def by_hand(logits, targets):
        terms = zip(frozen, parts, strict=True)
        return sum(loss(logits[part], targets[part]) * len(targets[part]) / 20 for loss, part in terms)

    hessian = reference.dense_hessian(model, inputs, targets, by_hand)
    row = measure(model, inputs, targets, Coupled(), CurvatureSettings(
        batch_size=8, lanczos_steps=80, residual_tolerance=1e-5, trace_probes=100))  # fmt: skip
    assert math.isclose(row["lambda_max"], float(torch.linalg.eigvalsh(hessian)[-1]), rel_tol=1e-4)
    assert row["trace_se"] > 0  # no exact trace where samples are coupled
    assert abs(row["trace"] - float(hessian.trace())) <= 3 * row["trace_se"]


@pytest.mark.parametrize("score", ["msp", "margin", "negative_entropy"])
def test_selective_risks_gradient_and_hessian_go_through_its_weights(reference, score):
    """Against the dense Hessian, and against differences of the gradient that training takes."""
    model, (inputs, targets) = reference.build("mlp"), reference.batch(20)
    loss = build_loss("selective_risk", coverage=0.8, nu=0.3, score=score)
    settings = CurvatureSettings(batch_size=12, lanczos_steps=80, residual_tolerance=1e-6)
    parts = [slice(0, 12), slice(12, 20)]

    def over(losses):
        def mean(logits, targets):
            terms = zip(losses, parts, strict=True)
            return sum(each(logits[part], targets[part]) * len(targets[part]) / 20 for each, part in terms)

        return mean

    with torch.no_grad():
        frozen = over([loss.frozen(model(inputs)[part], targets[part]) for part in parts])
    parameters = [*model.parameters()]
    trained = torch.autograd.grad(over([loss, loss])(model(inputs), targets), parameters)
    norm = math.sqrt(sum(float(each.square().sum()) for each in trained))
    hessian = reference.dense_hessian(model, inputs, targets, frozen)
    row = measure(model, inputs, targets, loss, settings)
    assert row["gradient_norm"] == pytest.approx(norm, rel=1e-6)
    assert row["lambda_max"] == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-5)
    assert row["trace"] == pytest.approx(float(hessian.trace()), rel=1e-5)
    direction = torch.randn(len(hessian), generator=torch.Generator().manual_seed(0), dtype=hessian.dtype)
    start = torch.nn.utils.parameters_to_vector(parameters).detach().clone()

    def gradient(vector):
        torch.nn.utils.vector_to_parameters(vector, parameters)
        found = torch.autograd.grad(frozen(model(inputs), targets), parameters)
        return torch.cat([each.reshape(-1) for each in found])

    step = 1e-5
    difference = (gradient(start + step * direction) - gradient(start - step * direction)) / (2 * step)
    torch.testing.assert_close(difference, hessian @ direction, rtol=1e-4, atol=1e-6)


def test_a_spectrums_probes_are_taken_until_its_mean_is_known(reference):
    model, (inputs, targets) = reference.build("mlp"), reference.batch()
    hessian = reference.dense_hessian(model, inputs, targets, cross_entropy)
    settings = CurvatureSettings(spectrum_steps=40)
    for seed in range(2):
        rows = spectral_density(model, inputs, targets, {"training": cross_entropy}, settings=settings, seed=seed)
        first = rows["training"][0]
        assert first["mean_se"] <= 0.1 * abs(first["mean"]) or first["probes"] == SPECTRUM_PROBES
        assert abs(first["mean"] - float(hessian.diagonal().mean())) < 4.5 * first["mean_se"]
    assert first["probes"] > 2


def test_covers_trainable_parameters_only(reference):
    model, (inputs, targets) = reference.build("conv"), reference.batch()
    model[0].weight.requires_grad_(False)
    model[1].bias.requires_grad_(False)
    hessian = reference.dense_hessian(model, inputs, targets, cross_entropy)
    row = measure(model, inputs, targets, cross_entropy)
    assert math.isclose(row["lambda_max"], float(torch.linalg.eigvalsh(hessian)[-1]), rel_tol=1e-4)
    assert math.isclose(row["trace"], float(hessian.trace()), rel_tol=1e-9)


def test_takes_evenly_spaced_samples_whatever_the_seed():
    assert evenly_spaced(10, 4).tolist() == [0, 2, 5, 7]
    assert evenly_spaced(5, None).tolist() == [0, 1, 2, 3, 4]
    assert evenly_spaced(3, 128).tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["conv", "attention"])
def test_leaves_everything_as_it_was(reference, kind):
    model, (inputs, targets) = reference.build(kind), reference.batch()
    model.append(nn.Dropout(0.5)).train()
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    before = copy.deepcopy(model)
    gradient = next(model.parameters()).grad
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    hooks = [len(module._forward_hooks) for module in model.modules()]
    state = torch.get_rng_state()
    with torch.no_grad():
        first = measure(model, inputs, targets, cross_entropy, FEW)
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    for (name, old), (_, new) in zip(before.state_dict().items(), model.state_dict().items(), strict=True):
        assert torch.equal(old, new), name
    for old, new in zip(before.parameters(), model.parameters(), strict=True):
        assert old.requires_grad == new.requires_grad
    assert next(model.parameters()).grad is gradient and bool((gradient == 1).all())
    assert all(p.grad is None for p in list(model.parameters())[1:])
    assert all(module.training for module in model.modules())
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    torch.manual_seed(99)
    assert measure(model, inputs, targets, cross_entropy, FEW) == first


def test_works_in_every_mode_of_the_caller(reference):
    model, (inputs, targets) = reference.build("attention").float(), reference.batch()
    inputs = inputs.float()
    expected = measure(model, inputs, targets, cross_entropy, FEW)
    with torch.inference_mode():
        assert measure(model, inputs.clone(), targets.clone(), cross_entropy, FEW) == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert measure(model, inputs, targets, cross_entropy, FEW) == expected


def test_seed_decides_the_probes(reference):
    model, (inputs, targets) = reference.build("tanh"), reference.batch()
    rows = [measure(model, inputs, targets, cross_entropy, FEW, seed) for seed in (0, 0, 1)]
    assert rows[0] == rows[1]
    assert rows[0]["trace"] != rows[2]["trace"]
    assert rows[0]["matvecs"] == 7


def test_a_loss_may_change_its_logits_in_place(reference):
    model, (inputs, targets) = reference.build("mlp"), reference.batch()

    def halved(logits, targets):
        return cross_entropy(logits.mul_(0.5), targets)

    settings = replace(THOROUGH, statistics=("sharpness", "gauss_newton"))
    losses = {"halved": halved, "again": lambda z, y: halved(z, y), "plain": lambda z, y: cross_entropy(z * 0.5, y)}
    found = measure_curvature(model, inputs, targets, losses, settings=settings, seed=0)
    assert found["halved"] == found["again"] == found["plain"]


class Scaled(nn.Module):
    """Has a parameter without dimensions, as ReZero, logit scales and NFNets do, and one without entries."""

    def __init__(self):
        super().__init__()
        self.scale, self.none = nn.Parameter(torch.tensor(1.3)), nn.Parameter(torch.zeros(0, 2))

    def forward(self, inputs):
        return inputs * self.scale + self.none.sum()


def test_parameters_of_every_shape_are_parameters(reference):
    model, (inputs, targets) = reference.build("mlp"), reference.batch()
    model = model.append(Scaled().double())
    settings = replace(THOROUGH, statistics=("gauss_newton", "sharpness", "fisher"))
    blocks = {name: name.partition(".")[0] for name, _ in model.named_parameters()}
    given = (model, inputs, targets, {"t": cross_entropy})
    values, rows = measure_by_block(*given, settings=settings, seed=0, blocks=blocks)["t"]
    hessian = reference.dense_hessian(model, inputs, targets, cross_entropy)
    assert values["lambda_max"] == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-4)
    assert abs(values["trace"] - float(hessian.trace())) <= 4 * values["trace_se"] + 1e-9
    assert sum(row["parameters"] for row in rows) == len(hessian)
    assert rows[-1]["lambda_max"] == pytest.approx(float(hessian[-1, -1]), rel=1e-6)
    spectral_density(*given, settings=CurvatureSettings(spectrum_steps=4), seed=0)


class Faulty:
    """A loss that works in training, and raises an error when its second derivative is to be taken, or when frozen."""

    def __init__(self, error, place):
        self.error, self.place = error, place

    def __call__(self, logits, targets):
        if self.place == "call":
            raise self.error
        return cross_entropy(logits, targets)

    def frozen(self, logits, targets):
        if self.place == "frozen":
            raise self.error
        return self


@pytest.mark.parametrize("error", [TypeError("no number"), ValueError("no number"), KeyError("no number")])
@pytest.mark.parametrize("place", ["forward", "call", "frozen"])
@pytest.mark.parametrize("compute", [measure_curvature, spectral_density])
def test_whatever_fails_in_networks_and_losses_is_a_sentence(reference, compute, place, error):
    model, (inputs, targets) = reference.build("mlp"), reference.batch()
    if place == "forward":
        model[1].register_forward_hook(partial(raise_it, error))
    with pytest.raises(CurvatureUnavailable, match=f"failed with {type(error).__name__}: '?no number") as caught:
        compute(model, inputs, targets, {"t": Faulty(error, place)}, settings=CurvatureSettings(), seed=0)
    assert type(caught.value.__cause__) is type(error)


def test_an_interruption_of_the_trial_is_none_of_curvatures(reference):
    model, (inputs, targets) = reference.build("mlp"), reference.batch()
    model[1].register_forward_hook(partial(raise_it, TrialEnded(Failure("hung"))))
    with pytest.raises(TrialEnded):
        measure(model, inputs, targets, cross_entropy)


def raise_it(error, *_):
    raise error


class FirstDerivativeOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs):
        return inputs * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient * 2


class NoSecondDerivative(nn.Module):
    def forward(self, inputs):
        return FirstDerivativeOnly.apply(inputs)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda model: model.append(NoSecondDerivative()), "without a second derivative"),
        (lambda model: model[1].weight.data.fill_(math.nan), "not finite"),
        (lambda model: model.requires_grad_(False), "no trainable parameter"),
        (lambda model: model.append(nn.Linear(7, 2).double()), "forward pass"),
        (lambda model: torch.nn.utils.parametrizations.weight_norm(model[1]), "Hessian is not symmetric"),
        (lambda model: setattr(model[1], "forward", lambda x: x @ model[1].weight.T), "the original's parameters"),
    ],
)
def test_failures_are_one_sentence(reference, spoil, words):
    model, (inputs, targets) = reference.build("tanh"), reference.batch()
    spoil(model)
    with pytest.raises(CurvatureUnavailable, match=words) as caught:
        measure(model, inputs, targets, cross_entropy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_agrees_with_curvlinops(reference, kind):
    curvlinops = pytest.importorskip("curvlinops")
    linalg = pytest.importorskip("scipy.sparse.linalg")
    model, (inputs, targets) = reference.build(kind), reference.batch()
    data = [(inputs[:12], targets[:12]), (inputs[12:], targets[12:])]
    parameters = list(model.parameters())
    operator = curvlinops.HessianLinearOperator(model, nn.CrossEntropyLoss(), parameters, data)
    top = linalg.eigsh(operator.to_scipy(), k=1, which="LA", return_eigenvectors=False)[0]
    row = measure(model, inputs, targets, cross_entropy)
    assert math.isclose(row["lambda_max"], float(top), rel_tol=1e-4)


def quadrature(symmetric, probes, steps):
    return lanczos_quadrature(
        lambda v: symmetric @ v, symmetric[0], probes=probes, steps=steps,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


def moment(found, function):
    """Return the mean of `function` over the spectrum, Σ w_i f(λ_i); times the dimension it is Tr f(H)."""
    return float((found.weights * function(found.nodes)).sum())


def test_full_runs_give_the_moments_of_their_start_vectors():
    generator = torch.Generator().manual_seed(1)
    raw = torch.randn(40, 40, generator=generator, dtype=torch.float64)
    symmetric = raw + raw.T
    found = quadrature(symmetric, 1, 40)
    signs = 2 * torch.randint(0, 2, (1, 40), generator=torch.Generator().manual_seed(0), dtype=torch.int8)[0] - 1
    start = signs.double() / math.sqrt(40)
    image = start
    for power in range(1, 5):
        image = symmetric @ image
        assert math.isclose(moment(found, lambda x, p=power: x**p), float(start @ image), rel_tol=1e-8, abs_tol=1e-8)


def test_rows_of_a_network(reference):
    model, (inputs, targets) = reference.build("conv"), reference.batch()
    eigenvalues = torch.linalg.eigvalsh(reference.dense_hessian(model, inputs, targets, cross_entropy))
    settings = CurvatureSettings(spectrum_steps=40)
    losses = {"training": cross_entropy, "same": cross_entropy, "twice": lambda z, y: 2 * cross_entropy(z, y)}
    found, again = (
        spectral_density(model, inputs, targets, each, settings=settings, seed=0, probes=2, precision=None)
        for each in (losses, {"training": cross_entropy})
    )
    assert found["training"] == again["training"]
    assert found["same"] == found["training"]
    assert math.isclose(found["twice"][-1]["eigenvalue"], 2 * found["training"][-1]["eigenvalue"], rel_tol=1e-4)
    rows = found["training"]
    spacing = rows[1]["eigenvalue"] - rows[0]["eigenvalue"]
    assert math.isclose(sum(row["density"] for row in rows) * spacing, 1.0, rel_tol=1e-3)
    assert math.isclose(sum(row["weight"] for row in rows), 1.0, rel_tol=1e-9)
    assert rows[0]["eigenvalue"] < float(eigenvalues[0]) < float(eigenvalues[-1]) < rows[-1]["eigenvalue"]
