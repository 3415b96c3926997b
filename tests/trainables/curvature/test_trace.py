"""Estimated traces: unbiased, with intervals that cover and standard errors that match the spread."""

import math
import statistics
from functools import partial

import pytest
import torch
from scipy.stats import t as student
from torch import nn
from torch.nn.functional import cross_entropy

from trainables.curvature import CurvatureSettings, measure_curvature
from trainables.curvature.gauss_newton import affine_in_each_parameter, logit_gram, logit_hessian
from trainables.curvature.hessian import HessianOperator, Surface, second_order
from trainables.curvature.lanczos import Lanczos
from trainables.curvature.trace import hutchinson, per_sample_trace, signed_roots

REPETITIONS = 500


def matrix(size=80, decay=0.8, seed=0):
    """A symmetric matrix with a few large eigenvalues, a bulk, and some negative ones."""
    generator = torch.Generator().manual_seed(seed)
    vectors, _ = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    values = 10 * decay ** torch.arange(size, dtype=torch.float64)
    values[-10:] = -0.3
    return (vectors * values) @ vectors.T


def top_vectors(symmetric, count):
    return torch.linalg.eigh(symmetric)[1][:, -count:].T.contiguous() if count else symmetric[:0]


def known_on(basis, symmetric):
    """A Lanczos run that found these eigenvectors."""
    values = ((basis @ symmetric) * basis).sum(1)
    return Lanczos(values, torch.zeros_like(values), basis, torch.eye(len(basis), dtype=basis.dtype))


def covers(estimate, truth):
    """Whether the 99 % interval with Student's t at the estimate's degrees of freedom holds the truth."""
    return abs(estimate.value - truth) <= student.ppf(0.995, estimate.probes - 1) * estimate.standard_error


@pytest.mark.parametrize(("deflated", "probes"), [(0, 8), (6, 4), (6, 20)])
def test_intervals_cover_and_errors_match_the_spread(deflated, probes):
    symmetric = matrix()
    truth, basis = float(symmetric.trace()), top_vectors(symmetric, deflated)
    known = known_on(basis, symmetric)
    found = [
        hutchinson(lambda rows: rows @ symmetric, known, probes, torch.Generator().manual_seed(seed))
        for seed in range(REPETITIONS)
    ]
    covered = sum(covers(e, truth) for e in found) / REPETITIONS
    spread = statistics.stdev(e.value for e in found)
    stated = math.sqrt(statistics.fmean(e.standard_error**2 for e in found))
    assert covered >= 0.975
    assert abs(stated / spread - 1) <= 0.2
    assert abs(statistics.fmean(e.value for e in found) - truth) <= 3 * spread / math.sqrt(REPETITIONS)


def test_a_basis_of_the_whole_space_leaves_nothing_to_probe():
    symmetric = matrix(12)
    known = known_on(top_vectors(symmetric, 12), symmetric)
    found = hutchinson(lambda rows: rows @ symmetric, known, 4, torch.Generator())
    assert found.value == pytest.approx(float(symmetric.trace())) and found.standard_error == found.probes == 0


CPU = torch.device("cpu")


def randomise(model):
    """Give batch-norm statistics and weights that are not trivial, in double precision."""
    generator = torch.Generator().manual_seed(3)
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.running_mean.normal_(std=0.3, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
            if module.weight is not None:
                nn.init.uniform_(module.weight, -1.5, 1.5, generator)
    return model.double().eval()


def head(width, classes=3):
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]


class InPlace(nn.Module):
    def forward(self, inputs):
        return nn.functional.relu_(inputs)


class InPlaceResidual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, inputs):
        hidden = self.norm(self.conv(inputs))
        hidden += inputs
        return hidden.relu_()


class Normalise(nn.Module):
    def forward(self, inputs):
        return inputs.sub_(0.3).mul_(2)


class ByKeyword(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.layer = nn.Linear(width, units)

    def forward(self, inputs):
        return self.layer(input=inputs)


AFFINE = {
    "bias and batch-norm": lambda r: [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), *head(4)],
    "stride, dilation, reflection": lambda r: [
        nn.Conv2d(1, 3, 3, stride=2, padding=2, dilation=2, padding_mode="reflect"), nn.ReLU(), *head(3)],
    "grouped and depthwise": lambda r: [
        nn.Conv2d(1, 4, 3, padding="same"), nn.ReLU6(), nn.Conv2d(4, 4, 3, groups=4, bias=False),
        nn.BatchNorm2d(4), nn.LeakyReLU(), nn.Conv2d(4, 6, 1, groups=2), *head(6)],
    "batch-norm first": lambda r: [nn.BatchNorm2d(1), nn.ReLU(), nn.Conv2d(1, 3, 3), nn.AvgPool2d(2), *head(3)],
    "batch-norm without weights": lambda r: [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, affine=False), *head(3)],
    "batch-norm on features": lambda r: [
        nn.Flatten(), nn.Linear(36, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3, bias=False)],
    "two branches": lambda r: [r.Residual(1), nn.MaxPool2d(2), r.Residual(1), *head(1)],
    "a layer at each position": lambda r: [
        nn.Flatten(1, 2), nn.Linear(6, 4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)],
    "in place": lambda r: [
        nn.Flatten(), nn.Linear(36, 5), nn.ReLU(inplace=True), nn.Linear(5, 4), InPlace(), nn.Linear(4, 3)],
    "in place on images": lambda r: [
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU6(inplace=True), InPlaceResidual(4), nn.Conv2d(4, 4, 3),
        nn.Hardtanh(-1e9, 1e9, inplace=True), nn.BatchNorm2d(4), nn.LeakyReLU(inplace=True), *head(4)],
    "in place on the inputs": lambda r: [Normalise(), nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 3)],
    "a call by keyword": lambda r: [nn.Flatten(), ByKeyword(36, 5), nn.ReLU(), nn.Linear(5, 3)],
    "wide input": lambda r: [nn.Upsample(scale_factor=4), nn.Conv2d(1, 2, 3), nn.ReLU(), *head(2)],
}  # fmt: skip


def plain_network(name, reference):
    torch.manual_seed(1)
    layers = AFFINE[name](reference)
    if isinstance(layers[0], nn.Upsample):  # part of the data, not of the network
        return randomise(nn.Sequential(*layers[1:])), layers[0]
    return randomise(nn.Sequential(*layers)), nn.Identity()


@pytest.mark.parametrize("name", AFFINE)
def test_is_the_trace_of_the_dense_hessian(reference, name):
    model, prepare = plain_network(name, reference)
    inputs, targets = reference.batch(9)
    inputs = prepare(inputs)
    given = inputs.clone()
    assert affine_in_each_parameter(model, inputs.clone())
    row = measure_curvature(
        model, inputs, targets, {"training": cross_entropy}, settings=CurvatureSettings(lanczos_steps=2), seed=0
    )["training"]
    truth = float(reference.dense_hessian(model, given, targets, cross_entropy).trace())
    assert row["trace_se"] == 0
    assert row["matvecs"] == 2
    assert math.isclose(row["trace"], truth, rel_tol=1e-9)


@pytest.mark.parametrize("name", ["grouped and depthwise", "two branches", "a layer at each position"])
def test_gram_is_that_of_the_naive_jacobian(reference, name):
    model, prepare = plain_network(name, reference)
    inputs = prepare(reference.batch(4)[0])
    parameters = list(model.parameters())
    for index, gram in enumerate(logit_gram(model, {}, inputs)):
        rows = [torch.autograd.grad(z, parameters, retain_graph=True) for z in model(inputs[index : index + 1])[0]]
        jacobian = torch.stack([torch.cat([g.reshape(-1) for g in row]) for row in rows])
        torch.testing.assert_close(gram, jacobian @ jacobian.T)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(36, 36), nn.Linear(36, 3)

    def forward(self, inputs):
        return self.last(torch.relu(self.layer(torch.relu(self.layer(inputs.flatten(1))))))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(36, 36), nn.Linear(36, 3)

    def forward(self, inputs):
        hidden = torch.relu(self.layer(inputs.flatten(1)))
        return self.last(hidden @ self.layer.weight)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(36, 3), nn.Linear(36, 3)

    def forward(self, inputs):
        return self.first(inputs.flatten(1)) * self.second(inputs.flatten(1))


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(36, 3)

    def forward(self, inputs):
        logits = self.first(inputs.flatten(1))
        return logits - logits.mean(0)


def hooked():
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.ReLU(), nn.Linear(4, 3))
    network[1].register_forward_hook(lambda module, arguments, output: output * 2)
    return network


def patched():
    """As wrappers of large networks do: a forward that the graph does not tell of."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.ReLU(), nn.Linear(4, 3))
    network[1].forward = partial(doubled, network[1])
    return network


def doubled(layer, inputs):
    return nn.functional.linear(inputs, layer.weight, layer.bias) * 2


@pytest.mark.parametrize("build", [hooked, patched])
def test_what_changes_a_layers_output_is_in_the_trace(reference, build):
    torch.manual_seed(1)
    model, (inputs, targets) = build().double(), reference.batch(9)
    settings = CurvatureSettings(lanczos_steps=2, trace_probes=60)
    row = measure_curvature(model, inputs, targets, {"t": cross_entropy}, settings=settings, seed=0)["t"]
    truth = float(reference.dense_hessian(model, inputs, targets, cross_entropy).trace())
    assert abs(row["trace"] - truth) <= 4 * row["trace_se"] + 1e-9 * truth
    assert (row["trace_se"] > 0) == (build is patched)


class OwnParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.shift = nn.Linear(36, 3), nn.Parameter(torch.randn(36))

    def forward(self, inputs):
        return self.first(torch.relu(inputs.flatten(1) + self.shift))


NOT_AFFINE = {
    "tanh": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.Tanh(), nn.Linear(4, 3)),
    "gelu": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.GELU(), nn.Linear(4, 3)),
    "layer-norm": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
    "batch statistics": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, track_running_stats=False), *head(3)),
    "squared": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.Softplus(), nn.Linear(4, 3)),
    "a layer used twice": Shared,
    "a weight used twice": Tied,
    "a product of features": Gated,
    "samples that mix": Mixing,
    "a parameter outside the known layers": OwnParameter,
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_AFFINE)
def test_claims_nothing_where_it_does_not_know(reference, name):
    torch.manual_seed(1)
    model = NOT_AFFINE[name]().double().eval()
    inputs, targets = reference.batch(9)
    assert not affine_in_each_parameter(model, inputs)
    settings = CurvatureSettings(lanczos_steps=2, trace_probes=60)
    row = measure_curvature(model, inputs, targets, {"t": cross_entropy}, settings=settings, seed=0)["t"]
    truth = float(reference.dense_hessian(model, inputs, targets, cross_entropy).trace())
    assert row["trace_se"] > 0
    assert abs(row["trace"] - truth) <= 4 * row["trace_se"]


def test_blocks_are_the_hessian_in_the_logits():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 4, (5,), generator=generator)
    blocks = logit_hessian(cross_entropy(logits, targets), logits)
    p = torch.softmax(logits.detach(), 1)
    torch.testing.assert_close(blocks, (torch.diag_embed(p) - p[:, :, None] * p[:, None, :]) / 5)
    coupled = torch.softmax(logits, 1).amax(1)
    assert logit_hessian(coupled.mean() ** 2 + cross_entropy(logits, targets), logits) is None


def test_signed_roots_rebuild_the_blocks():
    blocks = torch.randn(6, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    blocks = blocks + blocks.transpose(1, 2)
    torch.testing.assert_close(sum(sign * root @ root.mT for sign, root in signed_roots(blocks)), blocks)
    assert len(signed_roots(blocks @ blocks)) == 1


def focal(logits, targets):
    log_p = torch.log_softmax(logits, 1).gather(1, targets[:, None])[:, 0]
    return (-((1 - log_p.exp()) ** 3) * log_p).mean()


@pytest.mark.parametrize("loss", [cross_entropy, pytest.param(focal, marks=pytest.mark.integration)])
def test_sketches_cover_and_state_their_spread(reference, loss):
    classes, repetitions = 36, 200
    model, (inputs, targets) = reference.build("mlp", classes), reference.batch(48, classes)
    with second_order(CPU):
        operator = HessianOperator(Surface(model, inputs, targets, batch_size=64), loss)
        truth = sum(
            float((operator.logit_blocks(chunk) * operator.surface.gram(index)).sum())
            for index, chunk in enumerate(operator.surface.chunks)
        )
        found = [per_sample_trace(operator, torch.Generator().manual_seed(seed)) for seed in range(repetitions)]
    assert abs(truth / float(reference.dense_hessian(model, inputs, targets, loss).trace()) - 1) < 1e-9
    spread = statistics.stdev(e.value for e in found)
    stated = math.sqrt(statistics.fmean(e.standard_error**2 for e in found))
    quantiles = [float(student.ppf(0.995, e.probes - 1)) for e in found]
    covered = sum(abs(e.value - truth) <= t * e.standard_error for e, t in zip(found, quantiles, strict=True))
    assert abs(stated / spread - 1) <= 0.2
    assert covered >= 0.975 * repetitions
