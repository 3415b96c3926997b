"""Curvature by layer, H = G + R and sharpness beside dense matrices, and H, G beside two packages'.

Differences are relative to the oracle's largest eigenvalue or trace; a probed trace's are in its own standard errors.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.trainables.curvature.conftest import batch, build, dense_hessian
from trainables.curvature import CurvatureSettings
from trainables.curvature.measure import measure_by_block
from trainables.losses import build_loss

SETTINGS = CurvatureSettings(
    lanczos_steps=80, block_steps=60, residual_tolerance=1e-6, trace_probes=64,
    statistics=("gauss_newton", "sharpness", "fisher"), rho=1e-4, adaptive_rho=1e-4,
)  # fmt: skip
KINDS = ("mlp", "tanh", "conv", "attention")


def dense_gauss_newton(model: nn.Module, inputs: Tensor, targets: Tensor, loss: nn.Module) -> Tensor:
    """G [P, P], by the Jacobian of all logits and the Hessian of the mean loss in them."""
    names, weights = zip(*((name, p.detach()) for name, p in model.named_parameters()), strict=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        parts = torch.autograd.functional.jacobian(
            lambda *w: torch.func.functional_call(model, dict(zip(names, w, strict=True)), (inputs,)), weights
        )
    logits = model(inputs).detach()
    jacobian = torch.cat([part.reshape(logits.numel(), -1) for part in parts], dim=1)
    curved = torch.autograd.functional.hessian(lambda z: loss(z, targets), logits).reshape(logits.numel(), -1)
    return jacobian.T @ curved @ jacobian


def of_dense(seed: int) -> Iterator[tuple[str, float]]:
    """Yield differences from dense matrices of a small network, kind and loss by the seed."""
    kind, loss = KINDS[seed % 4], build_loss("focal", gamma=3.0) if seed % 2 else cross_entropy
    model, data = build(kind), batch(seed=seed)
    names = {name: name.rpartition(".")[0] for name, _ in model.named_parameters()}
    found = measure_by_block(model, *data, {"loss": loss}, settings=SETTINGS, seed=seed, blocks=names)
    values, rows = found["loss"]
    whole, part = dense_hessian(model, *data, loss), dense_gauss_newton(model, *data, loss)
    exact = kind in ("mlp", "conv")
    for name, matrix in (("gauss_newton", part), ("residual", whole - part)):
        words = {"gauss_newton": "G", "residual": "R"}[name]
        top, trace = float(torch.linalg.eigvalsh(matrix)[-1]), float(matrix.trace())
        yield f"λ_max of {words}, relative", values[f"{name}_lambda_max"] / top - 1
        if exact:
            yield f"Tr({words}), exact, over Tr(G)", (values[f"{name}_trace"] - trace) / float(part.trace())
        else:
            yield (
                f"Tr({words}), probed, in standard errors",
                (values[f"{name}_trace"] - trace) / values[f"{name}_trace_se"],
            )
    places: dict[str, list[int]] = {}
    at = 0
    for name, parameter in model.named_parameters():
        places.setdefault(names[name], []).extend(range(at, at + parameter.numel()))
        at += parameter.numel()
    for row in rows:
        block = whole[places[str(row["block"])]][:, places[str(row["block"])]]
        yield "λ_max of a layer, relative", float(row["lambda_max"]) / float(torch.linalg.eigvalsh(block)[-1]) - 1
        away = float(row["trace"]) - float(block.trace())
        if exact:
            yield "trace of a layer, exact, relative", away / float(block.trace())
        elif row["trace_se"]:
            yield "trace of a layer, probed, in standard errors", away / float(row["trace_se"])
    yield "sum of layers' traces beside Tr(H), relative", sum(float(r["trace"]) for r in rows) / values["trace"] - 1
    gradients = torch.autograd.grad(loss(model(data[0]), data[1]), [*model.parameters()])
    gradient = torch.cat([g.flatten() for g in gradients])
    size = torch.cat([p.detach().abs().flatten() for p in model.parameters()])
    asam = size**2 * gradient / (size * gradient).norm()
    for name, step in (("sam", gradient / gradient.norm()), ("asam", asam)):
        rise = float(1e-4 * gradient @ step + 1e-8 / 2 * step @ whole @ step)
        yield f"{name.upper()} sharpness at ρ = 1e-4 beside second order, relative", values[name] / rise - 1


def of_curvlinops(seed: int) -> Iterator[tuple[str, float]]:
    """Yield differences from curvlinops' Gauss–Newton and Hessian operators, for cross-entropy."""
    import curvlinops

    kind = KINDS[seed % 3]
    model, data = build(kind), batch(seed=seed)
    found = measure_by_block(model, *data, {"loss": cross_entropy}, settings=SETTINGS, seed=seed, blocks=None)
    values, _ = found["loss"]
    for words, name, operator in (
        ("λ_max of G, relative", "gauss_newton_lambda_max", curvlinops.GGNLinearOperator),
        ("λ_max of H, relative", "lambda_max", curvlinops.HessianLinearOperator),
    ):
        built = operator(model, nn.CrossEntropyLoss(), [*model.parameters()], [data], check_deterministic=False)
        dense = built @ torch.eye(built.shape[1], dtype=torch.float64)
        yield words, values[name] / float(torch.linalg.eigvalsh(dense)[-1]) - 1
        if name == "gauss_newton_lambda_max" and kind != "tanh":
            yield "Fisher trace beside Tr(G), exact, relative", values["fisher_trace"] / float(dense.trace()) - 1


def of_eigenthings(seed: int) -> Iterator[tuple[str, float]]:
    """Yield differences from hessian-eigenthings' operators, of the whole network and by layer, for both losses."""
    from hessian_eigenthings.loss_fns import standard
    from hessian_eigenthings.operators import GGNOperator, HessianOperator

    kind, loss = KINDS[seed % 3], build_loss("focal", gamma=3.0) if seed % 2 else cross_entropy
    model, data = build(kind), batch(seed=seed)
    names = {name: name.rpartition(".")[0] for name, _ in model.named_parameters()}
    settings = replace(SETTINGS, statistics=("gauss_newton",))
    values, rows = measure_by_block(model, *data, {"loss": loss}, settings=settings, seed=seed, blocks=names)["loss"]
    whole = HessianOperator(model, [data], standard.supervised_loss(loss))
    split = GGNOperator(model, [data], standard.supervised_forward, standard.supervised_loss_of_output(loss))
    for words, name, operator in (("H", "lambda_max", whole), ("G", "gauss_newton_lambda_max", split)):
        yield f"λ_max of {words}, relative", values[name] / float(torch.linalg.eigvalsh(_dense(operator))[-1]) - 1
    for row in rows:
        inside = partial(_of_block, names, str(row["block"]))
        dense = _dense(HessianOperator(model, [data], standard.supervised_loss(loss), param_filter=inside))
        yield "λ_max of a layer, relative", float(row["lambda_max"]) / float(torch.linalg.eigvalsh(dense)[-1]) - 1
        if kind != "tanh":
            yield "trace of a layer, exact, relative", float(row["trace"]) / float(dense.trace()) - 1


def _of_block(names: dict[str, str], block: str, name: str, _: nn.Parameter) -> bool:
    return names[name] == block


def _dense(operator: Any) -> Tensor:
    """The matrix of an operator of hessian-eigenthings."""
    columns = [operator.matvec(each) for each in torch.eye(operator.size, dtype=torch.float64)]
    return torch.stack(columns).detach()
