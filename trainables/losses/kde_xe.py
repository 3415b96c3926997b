"""Cross-entropy with a kernel density estimate of the calibration error as a penalty (Popordanoska et al. 2022)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from trainables.losses.base import LOSSES, Loss, Number, as_type, true_class

SMALLEST = 1e-9  # probabilities stay this far from 0 and 1, where a Dirichlet density may be 0 or infinite
BANDWIDTHS = torch.cat(
    [torch.logspace(-5, -1, 15, dtype=torch.float64), torch.linspace(0.2, 1, 5, dtype=torch.float64)]
)


@LOSSES.add("kde_xe")
@dataclass(eq=False)
class KernelCalibrationError(Loss):
    """Cross-entropy plus a kernel estimate of calibration error; quadratic in the batch size.

    CE + λ·(1/n) Σ_j ‖Σ_{i≠j} w_ji e_{y_i} − f_j‖_p^p with Dirichlet kernel weights w_ji over i ≠ j.

    The penalty is ECE^KDE of Popordanoska et al. 2022. `variant="canonical"` compares whole probability vectors;
    `variant="top_label"` the top confidence with correctness, f = (c, 1 − c). The bandwidth maximises the
    leave-one-out likelihood of each batch, without gradient, unless one is given. One sample alone has penalty 0.
    Computed in float64: at small bandwidths the log kernels are large numbers whose differences matter. Cost is
    O(N²K), plus O(20·NK) for the bandwidth.

    Source: Popordanoska et al. 2022; selective App. E.1.

    Args:
        weight: a negative weight would reward miscalibration [selective App. E.1: .3 on CIFAR-10, .5 on
            CIFAR-100].
        variant: [Popordanoska et al. 2022].
        norm: only L1 and L2 calibration errors are in use [selective §5: p = 1].
        bandwidth: the kernel's concentration is divided by it [none: leave-one-out likelihood in each batch,
            Popordanoska et al. 2022].
    """

    batch_coupled = True

    weight: Annotated[Number, "[0, inf)"] = 0.3
    variant: Literal["canonical", "top_label"] = "canonical"
    norm: Annotated[int, "[1, 2]"] = 1
    bandwidth: Annotated[Number | None, "(0, inf)"] = None

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return CE_j + λ·‖…‖_p^p of sample j, [N]; each depends on the whole batch."""
        log_p = torch.log_softmax(logits.double(), dim=-1)
        losses = -true_class(log_p, targets)
        if len(logits) > 1:
            f, outcome = self._outcomes(log_p.exp(), targets)
            bandwidth = select_bandwidth(f.detach()) if self.bandwidth is None else as_type(self.bandwidth, f)
            deviation = (kernel_weights(f, bandwidth) @ outcome - f).abs()
            deviation = deviation if self.variant == "canonical" else deviation[..., :1]
            losses = losses + as_type(self.weight, losses) * deviation.pow(self.norm).sum(-1)
        return losses.to(logits.dtype)

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return the loss at the bandwidth these logits select."""
        if self.bandwidth is not None or len(logits) < 2:
            return self
        with torch.no_grad():
            f, _ = self._outcomes(torch.softmax(logits.double(), dim=-1), targets)
            return KernelCalibrationError(self.weight, self.variant, self.norm, select_bandwidth(f))

    def _outcomes(self, p: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return forecasts f [N, D] and what came true [N, D]."""
        if self.variant == "canonical":
            classes = torch.arange(p.shape[-1], device=p.device)
            return clamped(p), (classes == targets.unsqueeze(-1)).to(p.dtype)
        top = p.max(-1)
        right = (top.indices == targets).to(p.dtype)
        confidence = clamped(top.values)
        return torch.stack([confidence, 1 - confidence], dim=-1), torch.stack([right, 1 - right], dim=-1)


def clamped(p: Tensor) -> Tensor:
    """Return probabilities kept away from 0 and 1."""
    return p.clamp(SMALLEST, 1 - SMALLEST)


def kernel_weights(f: Tensor, bandwidth: Tensor) -> Tensor:
    """Return w [N, N]: row j weighs the samples i ≠ j by the Dirichlet kernel k(f_j; f_i)."""
    log_kernel = (f.log() @ f.transpose(-1, -2)) / bandwidth + log_normaliser(f, bandwidth)
    return without_diagonal(log_kernel).softmax(-1)


def log_normaliser(f: Tensor, bandwidth: Tensor) -> Tensor:
    """Return lnΓ(Σ_k α_ik) − Σ_k lnΓ(α_ik), [N], for α_i = f_i/b + 1."""
    alpha = f / bandwidth + 1
    return torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1)


def without_diagonal(log_kernel: Tensor) -> Tensor:
    """Return a [N, N] log kernel with −∞ on its diagonal: no sample explains itself."""
    return log_kernel.masked_fill(torch.eye(len(log_kernel), device=log_kernel.device, dtype=torch.bool), -math.inf)


@functools.lru_cache(maxsize=16)  # copying them would stall a GPU's queue at every batch
def _bandwidths(dtype: torch.dtype, device: torch.device) -> Tensor:
    return BANDWIDTHS.to(dtype=dtype, device=device)


def select_bandwidth(f: Tensor) -> Tensor:
    """Return the bandwidth of 20 candidates with the largest leave-one-out likelihood of f [N, D], N ≥ 2."""
    products = f.log() @ f.transpose(-1, -2)  # the same for every bandwidth, which only scales it
    candidates = _bandwidths(f.dtype, f.device)
    likelihoods = [
        torch.logsumexp(without_diagonal(products / b + log_normaliser(f, b)), dim=-1).sum() for b in candidates
    ]
    return candidates.gather(0, torch.stack(likelihoods).argmax().reshape(1)).squeeze(0)
