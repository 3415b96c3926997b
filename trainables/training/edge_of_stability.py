"""Sharpness after each epoch: λ_max of the training loss's Hessian, and its product with the learning rate against 2.

Gradient descent on a quadratic diverges along an eigenvector of eigenvalue λ once ηλ > 2, and networks train at that
edge (Cohen et al. 2021, arXiv:2103.00065). Every optimiser here moves by D½ for a diagonal D, of which λ is that of
D½HD½, and has a momentum that moves the edge; `sharpness_times_lr` is divided by the latter, so that 2 is the edge for
all of them:

| optimiser | D | divided by | source |
|---|---|---|---|
| SGD with momentum β | η | 1 + β | Cohen et al. 2021, section 3.2 |
| with Nesterov's | η | (1 + β)/(1 + 2β) | the same, appendix B |
| Adam, AdamW | η/((1 − β₁ᵗ)(√(v/(1 − β₂ᵗ)) + ε)) | (1 + β₁)/(1 − β₁) | Cohen et al. 2022 (arXiv:2207.14484), Eq. 3 |
| AdaGrad | η/(√v + ε) | 1 | the same, section 2 |

Lanczos starts from the vector of the measurement before, so that few products do; what they leave is the residual. H is
that of a fixed subset of the training samples, in evaluation mode and without weight decay: λ_max of few samples is
above that of all, and the edge is sharp for full batches alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainables.curvature.failures import CurvatureUnavailable, as_unavailable
from trainables.curvature.hessian import HessianOperator, Surface, second_order
from trainables.curvature.lanczos import Lanczos, gradient_start, lanczos
from trainables.datasets.base import Split
from trainables.losses import Loss
from trainables.training.evaluation import curvature_subset
from trainables.training.prediction import EpochRow, SharpnessSettings, State

#: One sample in so many, where no number is given: so a measurement stays below a tenth of an epoch's time
#: (`make bench-curvature-shares`).
SHARE = 128

#: The fewest samples: fewer take no less time, and their λ_max says little.
FEWEST = 16

#: Lanczos stops at this residual, relative to λ_max.
_TOLERANCE = 1e-3

#: How much of the gradient is in the next start: enough to see an eigenvector that has overtaken the last one.
_FRESH = 0.01

#: How many times the products the first measurement takes, which has no vector to start from.
_COLD = 4


class EdgeOfStability:
    """Measures one replicate's sharpness again and again, each time from where it was."""

    def __init__(self) -> None:
        """Begin without a vector."""
        self._vectors: dict[str, Tensor] = {}

    def row(
        self, model: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, train: Split, settings: SharpnessSettings
    ) -> EpochRow:
        """Return the columns `SHARPNESS_COLUMNS`; `{}` where the Hessian cannot be had.

        Args:
            model: the network that trains; it is left as it was.
            loss: the training loss; a regulariser around a loss counts as the loss alone.
            optimizer: of its trainable parameters, in their order.
            train: of which a part is taken.
            settings: how many samples and products.
        """
        samples = settings.samples or max(FEWEST, len(train.targets) // SHARE)
        data = curvature_subset(train, samples)
        try:
            with as_unavailable("sharpness"), second_order(next(model.parameters()).device):
                surface = Surface(model, *data, batch_size=128, basis_rows=settings.products)
                operator = HessianOperator(surface, getattr(loss, "base", loss))
                if not self._vectors:
                    operator.require_symmetric()
                row = self._measured(model, operator, optimizer, settings.products)
                return {"sharpness_samples": len(data[1]), **row}
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
        if all(each.numel() == 1 for each in scales) and len({float(each) for each in scales}) == 1:
            return {**row, "sharpness_times_lr": float(scales[0]) * plain.lambda_max / factor}
        parameters = operator.surface.parameters
        root = torch.cat([s.expand(p.shape).reshape(-1) for s, p in zip(scales, parameters, strict=True)]).sqrt()
        scaled = self._lanczos("scaled", operator, root.to(operator.surface.basis_type), products)
        more = {"sharpness_residual": max(plain.relative_residual, scaled.relative_residual)}
        return {**row, **more, "sharpness_times_lr": scaled.lambda_max / factor}

    def _lanczos(self, kind: str, operator: HessianOperator, root: Tensor | None, products: int) -> Lanczos:
        """Return Lanczos on H, or on D½HD½ for `root` D½ [P], from the vector of the last time beside the gradient."""
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
        found = lanczos(product, start, steps=products, tolerance=_TOLERANCE, generator=generator, arithmetic=precision)
        self._vectors[kind] = found.top.to(precision)
        return found

    def state_dict(self) -> State:
        """Return the vectors to continue from."""
        return dict(self._vectors)

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`'s result."""
        self._vectors = dict(state)


def step_scales(parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer) -> list[Tensor] | None:
    """Return D of each parameter, a number or of its shape; `None` of an optimiser without such a form, or a step."""
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    found = []
    for parameter in parameters:
        group, state = groups[id(parameter)], optimizer.state.get(parameter, {})
        rate = torch.tensor(float(group["lr"]), device=parameter.device)
        if isinstance(optimizer, torch.optim.SGD):
            found.append(rate)
        elif isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)) and "exp_avg_sq" in state:
            (first, second), step = group["betas"], float(state["step"])
            root = (state["exp_avg_sq"] / (1 - second**step)).sqrt()
            found.append(rate / (1 - first**step) / (root + group["eps"]))
        elif isinstance(optimizer, torch.optim.Adagrad) and "sum" in state:
            found.append(rate / (state["sum"].sqrt() + group["eps"]))
        else:
            return None
    return found


def momentum_factor(optimizer: torch.optim.Optimizer) -> float | None:
    """Return by how much momentum moves the edge; `None` of an optimiser of which that is not known."""
    group = optimizer.param_groups[0]
    if isinstance(optimizer, torch.optim.SGD):
        beta = float(group["momentum"])
        return (1 + beta) / (1 + 2 * beta) if group["nesterov"] else 1 + beta
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        beta = float(group["betas"][0])
        return (1 + beta) / (1 - beta)
    return 1.0 if isinstance(optimizer, torch.optim.Adagrad) else None
