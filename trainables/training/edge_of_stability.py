"""Sharpness after each epoch: λ_max of the training loss's Hessian, and its product with the learning rate.

Gradient descent on a quadratic diverges along an eigenvector with eigenvalue λ once ηλ > 2, and networks train at that
edge of stability (Cohen et al. 2021, arXiv:2103.00065). The optimisers here scale steps by a diagonal D, so the
relevant eigenvalue is that of D½HD½. Their momentum moves the edge by a factor. `sharpness_times_lr` is divided by this
factor, so that 2 is the edge for every optimiser:

| optimiser | D | divided by | source |
|---|---|---|---|
| SGD with momentum β | η | 1 + β | Cohen et al. 2021, section 3.2 |
| with Nesterov momentum | η | (1 + β)/(1 + 2β) | the same, appendix B |
| Adam, AdamW | η/((1 − β₁ᵗ)(√(v/(1 − β₂ᵗ)) + ε)) | (1 + β₁)/(1 − β₁) | Cohen et al. 2022 (arXiv:2207.14484), Eq. 3 |
| AdaGrad | η/(√v + ε) | 1 | the same, section 2 |

Lanczos starts from the previous measurement's vector, so that few products suffice; the residual shows their error. H
is computed on a fixed subset of the training samples, in evaluation mode and without weight decay. λ_max estimated from
few samples is too large, and the edge is sharp only for full batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainables.curvature.failures import CurvatureUnavailable, as_unavailable
from trainables.curvature.hessian import HessianOperator, Surface, second_order
from trainables.curvature.lanczos import Lanczos, gradient_start, lanczos
from trainables.curvature.loss_of_logits import LossFunction
from trainables.curvature.measure import OfRows
from trainables.datasets.base import Split
from trainables.losses import Loss
from trainables.training.evaluation import curvature_subset
from trainables.training.prediction import EpochRow, SharpnessSettings, State

#: By default, one sample in this many is used, so that a measurement takes less than a tenth of an epoch's time
#: (`make bench-curvature-shares`).
SHARE = 128

#: Minimum number of samples: fewer take no less time, and their λ_max says little.
FEWEST = 16

#: Residual relative to λ_max at which Lanczos stops.
_TOLERANCE = 1e-3

#: Weight of the gradient in the next start vector: enough to detect an eigenvector that has overtaken the last one.
_FRESH = 0.01

#: Factor on the products of the first measurement, which has no vector to start from.
_COLD = 4


class EdgeOfStability:
    """Measures one replicate's sharpness repeatedly, each time starting from the last result."""

    def __init__(self) -> None:
        """Start without a vector."""
        self._vectors: dict[str, Tensor] = {}

    def row(
        self, model: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, train: Split, settings: SharpnessSettings
    ) -> EpochRow:
        """Return the columns `SHARPNESS_COLUMNS`, or `{}` if the Hessian is unavailable.

        Args:
            model: network in training, which stays unchanged.
            loss: training loss; a regulariser around a loss is left out.
            optimizer: optimiser of the trainable parameters, in their order.
            train: training split, from which a subset is taken.
            settings: numbers of samples and products.
        """
        samples = settings.samples or max(FEWEST, len(train.targets) // SHARE)
        inputs, targets, weights = curvature_subset(train, samples)
        loss_function: LossFunction = getattr(loss, "base", loss)
        if weights is not None:
            loss_function = OfRows(loss_function, targets, weights)
            targets = torch.arange(len(targets), device=targets.device)
        try:
            with as_unavailable("sharpness"), second_order(next(model.parameters()).device):
                surface = Surface(model, inputs, targets, batch_size=128, basis_rows=settings.products)
                operator = HessianOperator(surface, loss_function)
                # Once is enough: a wrong second derivative does not depend on the weights.
                if not self._vectors:
                    operator.require_symmetric()
                row = self._measured(model, operator, optimizer, settings.products)
                return {"sharpness_samples": len(targets), **row}
        except CurvatureUnavailable:
            return {}

    def _measured(
        self, model: nn.Module, operator: HessianOperator, optimizer: torch.optim.Optimizer, products: int
    ) -> EpochRow:
        plain = self._lanczos("plain", operator, None, products)
        row: EpochRow = {"sharpness": plain.lambda_max, "sharpness_residual": plain.relative_residual}
        scales = step_scales([p for p in model.parameters() if p.requires_grad], optimizer)
        factor = momentum_factor(optimizer)
        if scales is None or factor is None:
            return row
        # One rate for all parameters, as with SGD: D½HD½ has the same eigenvectors, so a second run is not needed.
        if all(scale.numel() == 1 for scale in scales) and len({float(scale) for scale in scales}) == 1:
            return {**row, "sharpness_times_lr": float(scales[0]) * plain.lambda_max / factor}
        parameters = operator.surface.parameters
        root = torch.cat([s.expand(p.shape).reshape(-1) for s, p in zip(scales, parameters, strict=True)]).sqrt()
        scaled = self._lanczos("scaled", operator, root.to(operator.surface.basis_type), products)
        more = {"sharpness_residual": max(plain.relative_residual, scaled.relative_residual)}
        return {**row, **more, "sharpness_times_lr": scaled.lambda_max / factor}

    def _lanczos(self, kind: str, operator: HessianOperator, root: Tensor | None, products: int) -> Lanczos:
        """Run Lanczos on H, or on D½HD½ for `root` D½ [P], from the last vector plus a little of the gradient."""
        generator = torch.Generator().manual_seed(0)
        gradient = operator.gradient if root is None else operator.gradient * root
        start = gradient_start(gradient, generator).to(operator.surface.basis_type)
        if kind in self._vectors:
            start = self._vectors[kind].to(start) + _FRESH * start
        else:
            products *= _COLD

        def product(vector: Tensor) -> Tensor:
            return operator.product(vector) if root is None else root * operator.product(root * vector)

        precision = operator.surface.parameters[0].dtype
        run = lanczos(product, start, steps=products, tolerance=_TOLERANCE, generator=generator, arithmetic=precision)
        # Kept in the parameters' dtype: checkpoints hold it, and float64 would double its size.
        self._vectors[kind] = run.top.to(precision)
        return run

    def state_dict(self) -> State:
        """Return the start vectors for the next measurement."""
        return dict(self._vectors)

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`'s result."""
        self._vectors = dict(state)


def step_scales(parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer) -> list[Tensor] | None:
    """Return D per parameter as a scalar or in its shape; `None` for other optimisers or before the first step.

    Example:
        >>> weight = nn.Parameter(torch.ones(2))
        >>> step_scales([weight], torch.optim.SGD([weight], lr=0.1))
        [tensor(0.1000)]
    """
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    scales = []
    for parameter in parameters:
        group, state = groups[id(parameter)], optimizer.state.get(parameter, {})
        rate = torch.tensor(float(group["lr"]), device=parameter.device)
        if isinstance(optimizer, torch.optim.SGD):
            scales.append(rate)
        elif isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)) and "exp_avg_sq" in state:
            (first, second), step = group["betas"], float(state["step"])
            root = (state["exp_avg_sq"] / (1 - second**step)).sqrt()
            scales.append(rate / (1 - first**step) / (root + group["eps"]))
        elif isinstance(optimizer, torch.optim.Adagrad) and "sum" in state:
            scales.append(rate / (state["sum"].sqrt() + group["eps"]))
        else:
            return None
    return scales


def momentum_factor(optimizer: torch.optim.Optimizer) -> float | None:
    """Return the factor by which momentum moves the edge, or `None` if it is unknown for the optimiser.

    Example:
        >>> momentum_factor(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9))
        1.9
    """
    group = optimizer.param_groups[0]
    if isinstance(optimizer, torch.optim.SGD):
        beta = float(group["momentum"])
        return (1 + beta) / (1 + 2 * beta) if group["nesterov"] else 1 + beta
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        beta = float(group["betas"][0])
        return (1 + beta) / (1 - beta)
    return 1.0 if isinstance(optimizer, torch.optim.Adagrad) else None
