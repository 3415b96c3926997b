"""G and R against dense matrices, and γ's closed form in the logits against automatic differentiation.

SAM's and ASAM's sharpness at small radii and under rescaling, and the Fisher trace against per-sample gradients.
"""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from trainables.curvature import CurvatureSettings, CurvatureUnavailable, measure_curvature
from trainables.losses import build_loss

SETTINGS = CurvatureSettings(lanczos_steps=80, residual_tolerance=1e-6, trace_probes=300, statistics=("gauss_newton",))
FOCAL = build_loss("focal", gamma=3.0)


def dense_gauss_newton(model, inputs, targets, loss):
    """G [P, P], by the Jacobian of all logits and the Hessian of the mean loss in them."""
    names = [name for name, _ in model.named_parameters()]
    weights = [p.detach() for p in model.parameters()]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        outputs = torch.autograd.functional.jacobian(
            lambda *w: torch.func.functional_call(model, dict(zip(names, w, strict=True)), (inputs,)), tuple(weights)
        )
    logits = model(inputs).detach()
    jacobian = torch.cat([part.reshape(logits.numel(), -1) for part in outputs], dim=1)
    curved = torch.autograd.functional.hessian(lambda z: loss(z, targets), logits)
    return jacobian.T @ curved.reshape(logits.numel(), -1) @ jacobian


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        *((kind, loss) for kind in ("mlp", "tanh", "conv") for loss in (cross_entropy, FOCAL)),
        ("attention", FOCAL),
        ("conv", lambda z, y: z.gather(1, y[:, None]).mean()),
    ],
)
def test_both_parts_are_those_of_the_dense_split(reference, kind, loss):
    model, data = reference.build(kind), reference.batch()
    row = measure_curvature(model, *data, {"loss": loss}, settings=SETTINGS, seed=0)["loss"]
    part = dense_gauss_newton(model, *data, loss)
    rest = reference.dense_hessian(model, *data, loss) - part
    for name, matrix in (("gauss_newton", part), ("residual", rest)):
        top = float(torch.linalg.eigvalsh(matrix)[-1])
        assert math.isclose(row[f"{name}_lambda_max"], top, rel_tol=1e-4, abs_tol=1e-9)
        error = 4 * row[f"{name}_trace_se"] + 1e-9
        assert abs(row[f"{name}_trace"] - float(matrix.trace())) <= error * (1 + abs(float(matrix.trace())))
    if kind in ("mlp", "conv"):
        assert row["residual_trace"] == 0 == row["gauss_newton_trace_se"]


@pytest.mark.parametrize("kind", ["mlp", "tanh", "conv"])
def test_gauss_newton_is_curvlinops_own(reference, kind):
    curvlinops = pytest.importorskip("curvlinops")
    model, (inputs, targets) = reference.build(kind), reference.batch()
    parameters = [*model.parameters()]
    operator = curvlinops.GGNLinearOperator(
        model, nn.CrossEntropyLoss(), parameters, [(inputs, targets)], check_deterministic=False
    )
    dense = operator @ torch.eye(operator.shape[1], dtype=torch.float64)
    row = measure_curvature(model, inputs, targets, {"loss": cross_entropy}, settings=SETTINGS, seed=0)["loss"]
    assert math.isclose(row["gauss_newton_lambda_max"], float(torch.linalg.eigvalsh(dense)[-1]), rel_tol=1e-5)
    assert abs(row["gauss_newton_trace"] - float(dense.trace())) <= 4 * row["gauss_newton_trace_se"] + 1e-8


def measured(model, data, loss=cross_entropy, **settings):
    wanted = CurvatureSettings(lanczos_steps=2, trace_probes=64, statistics=("sharpness", "fisher"), **settings)
    return measure_curvature(model, *data, {"loss": loss}, settings=wanted, seed=0)["loss"]


@pytest.mark.parametrize("kind", ["mlp", "conv", "attention"])
@pytest.mark.parametrize("loss", [cross_entropy, build_loss("focal", gamma=3.0)])
def test_sharpness_is_the_second_order_rise_at_a_small_radius(reference, kind, loss):
    model, data = reference.build(kind), reference.batch()
    hessian, rho = reference.dense_hessian(model, *data, loss), 1e-4
    weights = [*model.parameters()]
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss(model(data[0]), data[1]), weights)])
    size = torch.cat([p.detach().abs().flatten() for p in weights])
    row = measured(model, data, loss, rho=rho, adaptive_rho=rho)
    for name, step in (("sam", gradient / gradient.norm()), ("asam", size**2 * gradient / (size * gradient).norm())):
        rise = float(rho * gradient @ step + rho**2 / 2 * step @ hessian @ step)
        assert math.isclose(row[name], rise, rel_tol=1e-4), name


def test_rescaling_a_unit_leaves_only_asams_as_it_is(reference):
    model, data = reference.build("mlp"), reference.batch()
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in scaled[1].parameters():
            parameter *= 8
        scaled[3].weight /= 8
    before, after = measured(model, data), measured(scaled, data)
    assert math.isclose(before["asam"], after["asam"], rel_tol=1e-9)
    assert not math.isclose(before["sam"], after["sam"], rel_tol=0.1)


def test_no_gradient_no_rise(reference):
    row = measured(reference.build("mlp"), reference.batch(), lambda z, y: 0 * z.sum() + 1)
    assert row["sam"] == row["asam"] == 0


def test_a_loss_that_is_not_finite_nearby_says_so(reference):
    with pytest.raises(CurvatureUnavailable, match="rho"):
        measured(reference.build("mlp"), reference.batch(), rho=1e308)


@pytest.mark.parametrize("kind", ["mlp", "conv", "tanh", "attention"])
def test_the_fisher_trace_is_the_mean_squared_gradient_under_the_networks_own_labels(reference, kind):
    model, (inputs, targets) = reference.build(kind), reference.batch()
    row = measured(model, (inputs, targets))
    total = 0.0
    for sample in inputs.split(1):
        logs = torch.log_softmax(model(sample), 1)[0]
        for log in logs:
            gradients = torch.autograd.grad(log, [*model.parameters()], retain_graph=True)
            total += float(log.detach().exp()) * sum(float(g.square().sum()) for g in gradients) / len(inputs)
    assert abs(row["fisher_trace"] - total) <= 4 * row["fisher_trace_se"] + 1e-9 * total
    assert (row["fisher_trace_se"] == 0) == (kind in ("mlp", "conv"))
