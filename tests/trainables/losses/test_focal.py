import math

import numpy as np
import pytest
import torch
from scipy.special import lambertw

from trainables.losses import build_loss
from trainables.losses.focal import LARGEST_GAMMA, lambert_gamma


def soft_target(classes, y, smoothing, form):
    if form == "others":
        return [1 - smoothing if k == y else smoothing / (classes - 1) for k in range(classes)]
    return [(1 - smoothing) * (k == y) + smoothing / classes for k in range(classes)]


def naive(weight, smoothing=0.0, form="uniform", gamma_of=None):
    """−Σ v_k w(u_k, γ) log u_k with γ chosen by p_y."""

    def values(rows, targets):
        out = []
        for p, y in zip(rows, targets, strict=True):
            gamma = gamma_of(p[y]) if gamma_of else None
            soft = soft_target(len(p), y, smoothing, form)
            out.append(-sum(v * weight(u, gamma) * math.log(u) for v, u in zip(soft, p, strict=True) if v > 0))
        return out

    return values


SMOOTHINGS = [(0.0, "uniform"), (0.1, "uniform"), (0.2, "others")]


@pytest.mark.parametrize(("smoothing", "form"), SMOOTHINGS)
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 3.0, 7.5])
def test_focal_equals_reference(reference, gamma, smoothing, form):
    loss = build_loss("focal", gamma=gamma, smoothing=smoothing, smoothing_form=form)
    reference.check(loss, naive(lambda u, _: (1 - u) ** gamma, smoothing, form))
    reference.check_gradient(loss, range(3))


@pytest.mark.parametrize(("smoothing", "form"), SMOOTHINGS)
@pytest.mark.parametrize("gamma", [0.0, 1.5, 3.5])
def test_inverse_focal_equals_reference(reference, gamma, smoothing, form):
    loss = build_loss("inverse_focal", gamma=gamma, smoothing=smoothing, smoothing_form=form)
    reference.check(loss, naive(lambda u, _: (1 + u) ** gamma, smoothing, form))
    reference.check_gradient(loss, range(3))


@pytest.mark.parametrize(("smoothing", "form"), SMOOTHINGS)
@pytest.mark.parametrize("variant", ["flsd_53", "flsd_532"])
def test_sample_dependent_focal_equals_reference(reference, variant, smoothing, form):
    def gamma_of(p):
        if p < 0.2:
            return 5
        return 3 if p < 0.5 or variant == "flsd_53" else 2

    loss = build_loss("focal_sample_dependent", variant=variant, smoothing=smoothing, smoothing_form=form)
    reference.check(loss, naive(lambda u, gamma: (1 - u) ** gamma, smoothing, form, gamma_of))
    reference.check_gradient(loss, range(3))


def test_sample_dependent_gamma_at_its_boundaries():
    loss = build_loss("focal_sample_dependent", variant="flsd_532")
    log_p = torch.tensor([0.19999, 0.2, 0.49999, 0.5], dtype=torch.float64).log()
    assert loss.gammas(log_p).tolist() == [5, 3, 3, 2]


def test_sample_dependent_frozen_keeps_gamma(reference):
    logits, targets = reference.batch(4)
    loss = build_loss("focal_sample_dependent")
    frozen = loss.frozen(logits, targets)
    torch.testing.assert_close(frozen(logits, targets), loss(logits, targets))
    moved = logits * 3
    gammas = loss.gammas(torch.log_softmax(logits, -1).gather(1, targets[:, None]).squeeze(1))
    torch.testing.assert_close(frozen(moved, targets), build_loss("focal", gamma=gammas)(moved, targets))


@pytest.mark.parametrize(("variant", "last"), [("flsc_532", 2.0), ("flsc_531", 1.0)])
def test_scheduled_focal_switches_at_epochs_100_and_250_of_350(reference, variant, last):
    loss = build_loss("focal_scheduled", variant=variant)
    logits, targets = reference.batch(5)
    for epoch, gamma in [(0, 5.0), (99, 5.0), (100, 3.0), (249, 3.0), (250, last), (349, last)]:
        loss.begin_epoch(epoch, 350)
        assert loss(logits, targets) == build_loss("focal", gamma=gamma)(logits, targets), epoch


@pytest.mark.parametrize(("epoch", "gamma"), [(0, 5), (4, 3), (9, 2)])
@pytest.mark.parametrize(("smoothing", "form"), SMOOTHINGS)
def test_scheduled_focal_equals_reference(reference, epoch, gamma, smoothing, form):
    loss = build_loss("focal_scheduled", smoothing=smoothing, smoothing_form=form)
    loss.begin_epoch(epoch, 10)
    reference.check(loss, naive(lambda u, _: (1 - u) ** gamma, smoothing, form))
    reference.check_gradient(loss, range(2))


def test_scheduled_focal_keeps_and_restores_gamma(reference):
    logits, targets = reference.batch(6)
    loss, other = build_loss("focal_scheduled", smoothing=0.1), build_loss("focal_scheduled", smoothing=0.1)
    loss.begin_epoch(20, 27)
    frozen = loss.frozen(logits, targets)
    other.load_state_dict(loss.state_dict())
    assert other(logits, targets) == loss(logits, targets) == frozen(logits, targets)
    loss.begin_epoch(0, 27)
    assert frozen(logits, targets) == other(logits, targets)


def test_switches_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match="must not come after"):
        build_loss("focal_scheduled", first_switch=0.8)


def test_lambert_gamma_equals_scipy_and_solves_its_equation():
    for p in np.concatenate([np.geomspace(1e-4, 0.1, 20), np.linspace(0.1, 0.499, 40)]):
        a, b = 1 - p, p * math.log(p)
        w = lambertw(-(a ** (1 - a / b)) / b * math.log(a), -1).real
        gamma = lambert_gamma(float(p)).item()
        if p > 1e-2:  # below, SciPy's argument underflows
            assert gamma == pytest.approx(a / b + w / math.log(a), rel=1e-6)
        g = (1 - p) ** gamma - gamma * p * (1 - p) ** (gamma - 1) * math.log(p)
        assert g == pytest.approx(1, abs=1e-8)
        assert gamma > 0


def test_lambert_loss_is_focal_at_that_gamma(reference):
    loss = build_loss("focal_lambert", p0=0.2)
    gamma = lambert_gamma(0.2).item()
    reference.check(loss, naive(lambda u, _: (1 - u) ** gamma))
    reference.check_gradient(loss, range(2))
    for p0 in (0.0, 0.5, 0.7):
        with pytest.raises(ValueError, match=r"\(0, 0.5\).*only γ ≥ 0"):
            build_loss("focal_lambert", p0=p0)


def test_gradient_is_cross_entropys_times_g(reference):
    """∂focal/∂z = g(p_y, γ)·∂CE/∂z, mukhoti Prop. 1."""
    for seed in range(8):
        for gamma in (0.5, 1.0, 3.0):
            logits, targets = reference.batch(seed)
            logits.requires_grad_()
            (focal,) = torch.autograd.grad(build_loss("focal", gamma=gamma).per_sample(logits, targets).sum(), logits)
            (ce,) = torch.autograd.grad(build_loss("cross_entropy").per_sample(logits, targets).sum(), logits)
            p = torch.softmax(logits.detach(), -1).gather(1, targets[:, None])
            g = (1 - p) ** gamma - gamma * p * (1 - p) ** (gamma - 1) * p.log()
            torch.testing.assert_close(focal, g * ce, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 5.0])
def test_focal_is_convex_in_p(gamma):
    p = torch.linspace(1e-3, 1 - 1e-3, 2001, dtype=torch.float64)
    values = build_loss("focal", gamma=gamma).per_sample(torch.stack([p.log(), (1 - p).log()], -1), p.long() * 0)
    assert (values[:-2] + values[2:] - 2 * values[1:-1]).min() > 0


def slope_in_p(gamma, p):
    p = p.clone().requires_grad_()
    logits = torch.stack([p.log(), torch.log1p(-p)], -1)
    loss = build_loss("inverse_focal", gamma=gamma, allow_reversed_gradient=True)
    return torch.autograd.grad(loss.per_sample(logits, torch.zeros_like(p, dtype=torch.int64)).sum(), p)[0]


def test_inverse_focal_gradient_reverses_just_above_its_limit():
    p = torch.linspace(0.001, 0.999, 9981, dtype=torch.float64)
    assert slope_in_p(LARGEST_GAMMA - 1e-3, p).max() < 0
    reversed_slope = slope_in_p(LARGEST_GAMMA + 1e-3, p)
    assert reversed_slope.max() > 0
    assert p[reversed_slope.argmax()].item() == pytest.approx(0.27846, abs=0.02)
    assert lambertw(1 / math.e).real == pytest.approx(1 / LARGEST_GAMMA, rel=1e-12)


def test_inverse_focal_refuses_a_reversing_gamma_unless_allowed():
    with pytest.raises(ValueError, match=r"3\.5911.*gradient in p_y turns positive.*allow_reversed_gradient"):
        build_loss("inverse_focal", gamma=3.6)
    assert build_loss("inverse_focal", gamma=3.59).gamma == 3.59
    assert build_loss("inverse_focal", gamma=4.0, allow_reversed_gradient=True).gamma == 4.0


def test_two_stages_are_focal_loss_and_then_cross_entropy(reference):
    logits, targets = reference.batch(3, shape=(12, 6), scale=2.0)
    loss = build_loss("two_stage", gamma=2.0, switch=0.4)
    stages = []
    for epoch in range(10):
        loss.begin_epoch(epoch, 10)
        stages.append("focal" if loss(logits, targets) == build_loss("focal", gamma=2.0)(logits, targets) else "plain")
    assert stages == ["focal"] * 4 + ["plain"] * 6
    torch.testing.assert_close(loss(logits, targets), build_loss("cross_entropy")(logits, targets))
    again = build_loss("two_stage", gamma=2.0, switch=0.4)
    again.load_state_dict(loss.state_dict())
    assert again.gamma == 0.0
