"""Derivatives of every loss where probabilities round to 1: float32 networks beside dense float64 Hessians."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy

from tests.trainables.losses.test_every_loss import built, every_case
from trainables.curvature import CurvatureSettings, measure_curvature
from trainables.curvature.loss_of_logits import ComposedSoftmax, log_softmax, loss_of_logits

SETTINGS = CurvatureSettings(lanczos_steps=80, residual_tolerance=1e-6, statistics=("gauss_newton", "fisher"))


def confident(reference, least=18.0, wrong=0):
    """A network whose float32 numbers are those of the float64 one, its data, and margins of `least` and above."""
    model, (inputs, _) = reference.build("mlp", classes=4), reference.batch(12)
    model = model.float().double()
    logits = model(inputs).detach()
    top = logits.topk(2, dim=1).values
    scale = math.ceil(least / float((top[:, 0] - top[:, 1]).min()))
    model[-1].weight.data *= scale
    model[-1].bias.data *= scale
    targets = logits.argmax(1)
    targets[:wrong] = logits[:wrong].argmin(1)
    return model, inputs.float().double(), targets


@every_case
def test_every_losss_curvature_is_right_at_large_margins(reference, case):
    """Margins of 18, or of 8 for a loss whose derivatives at 18 (powers of 1 − p) are below the range of float32."""
    for least in (18.0, 8.0):
        model, inputs, targets = confident(reference, least)
        loss = built(case)
        with torch.no_grad():
            logits = model(inputs)
        truth = reference.dense_hessian(model, inputs, targets, loss.frozen(logits, targets))
        ends = torch.linalg.eigvalsh(truth)
        if float(ends.abs().max()) > 1e-25:
            break
    given = (model.float(), inputs.float(), targets)
    row = measure_curvature(*given, {"t": loss}, settings=SETTINGS, seed=0)["t"]
    size = float(ends.abs().max())
    assert row["lambda_max"] == pytest.approx(float(ends[-1]), rel=2e-3, abs=1e-3 * size)
    assert row["lambda_min"] == pytest.approx(float(ends[0]), rel=2e-3, abs=1e-3 * size)
    assert row["trace"] == pytest.approx(float(truth.trace()), rel=2e-3, abs=4 * row["trace_se"] + 1e-3 * size)


@pytest.mark.parametrize("wrong", [0, 3])
@pytest.mark.parametrize("loss", [cross_entropy, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 4.0]))])
def test_plain_losses_are_right_too(reference, loss, wrong):
    model, inputs, targets = confident(reference, wrong=wrong)
    truth = reference.dense_hessian(
        model, inputs, targets, loss if loss is cross_entropy else nn.CrossEntropyLoss(weight=loss.weight.double())
    )
    row = measure_curvature(model.float(), inputs.float(), targets, {"t": loss}, settings=SETTINGS, seed=0)["t"]
    assert row["lambda_max"] == pytest.approx(float(torch.linalg.eigvalsh(truth)[-1]), rel=1e-4)
    if loss is cross_entropy:
        assert row["trace"] == pytest.approx(float(truth.trace()), rel=1e-4)
        assert row["fisher_trace"] == pytest.approx(row["gauss_newton_trace"], rel=1e-4) or wrong


@pytest.mark.parametrize("margin", [1.0, 20.0, 40.0, 300.0])
@pytest.mark.parametrize("right", [True, False])
def test_second_derivatives_keep_relative_accuracy(margin, right):
    logits = torch.tensor([[margin, 0.0, -1.0, 0.5]], dtype=torch.float64)
    targets = torch.tensor([0 if right else 2])
    with ComposedSoftmax():
        hessian = torch.autograd.functional.hessian(lambda z: cross_entropy(z, targets), logits).view(4, 4)
    others = (logits[0, 1:] - margin).exp()
    p = others / (1 + others.sum())  # of all but the first, at which 1 − p is their sum
    truth = torch.cat([-p * (1 - p.sum()), p - p * p])
    assert torch.allclose(hessian[0, 1:], truth[:3], rtol=1e-12, atol=0.0)
    assert torch.allclose(hessian.diagonal()[1:], truth[3:], rtol=1e-12, atol=0.0)
    assert float(hessian[0, 0]) == pytest.approx(float(p.sum() * (1 - p.sum())), rel=1e-12)


def test_every_form_of_a_softmax_has_the_values_of_torchs_own():
    logits = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 10
    logits[0, 1] = -math.inf
    forms = [
        lambda z: functional.log_softmax(z, dim=1), lambda z: torch.log_softmax(z, -1), lambda z: z.log_softmax(dim=-1),
        lambda z: functional.softmax(z, 1), lambda z: torch.softmax(z, dim=0), lambda z: z.softmax(1),
        nn.LogSoftmax(1), nn.Softmax(0), lambda z: functional.softmax(z, dim=1, dtype=torch.float32).double(),
        lambda z: cross_entropy(z, torch.arange(5) % 4, reduction="none"),
        lambda z: cross_entropy(z[0], torch.tensor(2)),
        lambda z: cross_entropy(z[1:], torch.arange(4), logits[1:].exp().sum(0), ignore_index=2),
        lambda z: cross_entropy(z[1:], z[1:].softmax(1)),
        lambda z: cross_entropy(z[1:], torch.arange(4), label_smoothing=0.1),
    ]  # fmt: skip
    for form in forms:
        with ComposedSoftmax():
            found = form(logits)
        torch.testing.assert_close(found, form(logits))
    assert log_softmax(torch.zeros(2, 3), 1).exp().sum(1).tolist() == pytest.approx([1, 1])


def test_a_loss_of_float32_numbers_gets_its_logits_as_they_are():
    kept = torch.eye(3)

    def loss(logits, targets):
        return cross_entropy(logits @ kept, targets)

    logits, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    assert loss_of_logits(loss, logits, targets, logits).dtype == torch.float32
    assert loss_of_logits(cross_entropy, logits, targets, logits).dtype == torch.float64
