"""Losses with an estimate of the batch's calibration error as a penalty.

The penalties are the maximum mean calibration error (Kumar et al. 2018), a kernel density estimate (Popordanoska et al.
2022), and MDCA, the gap between each class's mean probability and its frequency (Hebbalaguppe et al. 2022).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional

from trainables.losses.base import LOSSES, Loss, Number, as_type, true_class, widened
from trainables.losses.focal import Focal

KERNEL_WIDTH = 0.4  # width of the Laplacian kernel (Kumar et al. 2018)


@LOSSES.add("mmce", apart=["right"], cross_entropy_at_zero=("weight",))
@dataclass(eq=False)
class MaximumMeanCalibrationError(Loss):
    """Cross-entropy plus a kernel penalty on calibration error; quadratic in the batch size.

    CE + λ·√(aᵀK a) with K_ij = exp(−|c_i − c_j|/0.4) over the top confidences c (Kumar et al. 2018).

    With `variant="plain"`, a_i = (r_i − c_i)/N. With `variant="weighted"`, a_i is (1 − c_i)/|C| for the correct samples
    C and −c_i/|W| for the wrong samples W, so both groups have equal weight. An empty group has no terms. Correctness
    is treated as a constant. The root has gradient 0 at 0. The cost is O(N²) in the batch.

    `form="released"` is the penalty of the focal_calibration code, which produced mukhoti's tables. Its weighted
    variant divides by |C|², |W|² and |C||W| twice, so a_i is (1 − c_i)/|C|² or −c_i/|W|², and is 0 if a group is empty.
    This penalty is 64 times weaker on a batch of 128 with half of the samples correct, and 4 to 20 times weaker with
    nine tenths correct. Its plain variant is aᵀK a, without the root.

    Source: Kumar et al. 2018; mukhoti §5.1; `Losses/mmce.py` of github.com/torrvision/focal_calibration.

    Args:
        weight: a negative weight would reward miscalibration [mukhoti App. D: λ = 2 for images, 8 for documents].
        variant: [Kumar et al. 2018 train with the weighted form].
        form: the formula of the paper or of the released code [Kumar et al. 2018].
        right: correctness of the samples, fixed by `frozen`.

    Example:
        >>> logits, targets = torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1])
        >>> loss = MaximumMeanCalibrationError(weight=2.0)(logits, targets)
        >>> loss - functional.cross_entropy(logits, targets)  # 2·|(1 − c) − c|, c = 0.8808
        tensor(1.5232)
    """

    batch_coupled = True

    weight: Annotated[Number, "[0, inf)"] = 2.0
    variant: Literal["weighted", "plain"] = "weighted"
    form: Literal["paper", "released"] = "paper"
    right: Tensor | None = None

    def value(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return cross-entropy plus the weighted penalty, a scalar, for logits [N, K] and targets [N]."""
        penalty = calibration_penalty(logits, self._right(logits, targets), self.variant, self.form)
        return functional.cross_entropy(logits, targets) + as_type(self.weight, logits) * penalty

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return the loss with fixed correctness of the samples. Nothing else is treated as constant."""
        right = self._right(widened(logits.detach()), targets)
        return MaximumMeanCalibrationError(self.weight, self.variant, self.form, right)

    def _right(self, logits: Tensor, targets: Tensor) -> Tensor:
        return logits.argmax(-1) == targets if self.right is None else self.right


def calibration_penalty(logits: Tensor, right: Tensor, variant: str, form: str = "paper") -> Tensor:
    """Return √(aᵀK a), a scalar, for logits [N, K] and booleans `right` [N]; aᵀK a for the released plain variant."""
    confidence = torch.softmax(logits, dim=-1).max(-1).values
    correct = right.to(logits.dtype)
    rights, wrongs = correct.sum(), (1 - correct).sum()
    if variant == "plain":
        residual = (correct - confidence) / len(confidence)
    else:
        # the released code takes means over the pairs and then divides by their number again
        power = 2 if form == "released" else 1
        shares = rights.clamp(min=1) ** power, wrongs.clamp(min=1) ** power
        residual = torch.where(right, (1 - confidence) / shares[0], -confidence / shares[1])
    kernel = torch.exp(-(confidence.unsqueeze(-1) - confidence).abs() / KERNEL_WIDTH)
    square = (residual * (kernel * residual).sum(-1)).sum()
    if form == "released" and variant == "plain":
        return square
    # two `where`: the gradient of √ at 0 is infinite, and 0·inf from a single `where` would be NaN
    positive = (square > 0) & ((form == "paper") | ((rights > 0) & (wrongs > 0)))
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)


SMALLEST = 1e-9  # probabilities stay this far from 0 and 1, where a Dirichlet density can be 0 or infinite
# The grid of Popordanoska et al.'s code without its 0, which is no bandwidth.
BANDWIDTHS = torch.cat(
    [torch.logspace(-5, -1, 15, dtype=torch.float64), torch.linspace(0.2, 1, 5, dtype=torch.float64)]
)


@LOSSES.add("kde_xe", cross_entropy_at_zero=("weight",))
@dataclass(eq=False)
class KernelCalibrationError(Loss):
    """Cross-entropy plus a kernel estimate of calibration error; quadratic in the batch size.

    CE + λ·(1/n) Σ_j ‖Σ_{i≠j} w_ji e_{y_i} − f_j‖_p^p with Dirichlet kernel weights w_ji over i ≠ j.

    The penalty is ECE^KDE of Popordanoska et al. 2022. `variant="canonical"` compares whole probability vectors;
    `variant="top_label"` compares the top confidence with correctness, f = (c, 1 − c). By default, the bandwidth
    maximises the leave-one-out likelihood of each batch, without gradient. The penalty of a single sample is 0. The
    cost is O(N²K), plus O(20·NK) for the bandwidth.

    Source: Popordanoska et al. 2022; selective App. E.1.

    Args:
        weight: a negative weight would reward miscalibration [selective App. E.1: .3 on CIFAR-10, .5 on
            CIFAR-100].
        variant: [Popordanoska et al. 2022].
        norm: only L1 and L2 calibration errors are in use [selective §5: p = 1].
        bandwidth: the kernel's concentration is divided by it [none: leave-one-out likelihood in each batch,
            Popordanoska et al. 2022].

    Example:
        >>> logits, targets = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 1])
        >>> KernelCalibrationError(weight=0.0)(logits, targets), KernelCalibrationError(weight=1.0)(logits, targets)
        (tensor(0.8557), tensor(1.6795))
    """

    batch_coupled = True

    weight: Annotated[Number, "[0, inf)"] = 0.3
    variant: Literal["canonical", "top_label"] = "canonical"
    norm: Annotated[int, "[1, 2]"] = 1
    bandwidth: Annotated[Number | None, "(0, inf)"] = None

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return CE_j + λ·‖…‖_p^p of sample j, [N]; each depends on the whole batch."""
        # float64: at small bandwidths the log kernels are large numbers whose differences matter
        log_p = torch.log_softmax(logits.double(), dim=-1)
        losses = -true_class(log_p, targets)
        if len(logits) > 1:
            f, outcome = self._outcomes(log_p.exp(), targets)
            bandwidth = select_bandwidth(f.detach()) if self.bandwidth is None else as_type(self.bandwidth, f)
            deviation = (kernel_weights(f, bandwidth) @ outcome - f).abs()
            # f = (c, 1 − c) counts the same deviation twice
            deviation = deviation if self.variant == "canonical" else deviation[..., :1]
            losses = losses + as_type(self.weight, losses) * deviation.pow(self.norm).sum(-1)
        return losses.to(logits.dtype)

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return the loss with the bandwidth that these logits select."""
        if self.bandwidth is not None or len(logits) < 2:
            return self
        with torch.no_grad():
            f, _ = self._outcomes(torch.softmax(logits.double(), dim=-1), targets)
            return KernelCalibrationError(self.weight, self.variant, self.norm, select_bandwidth(f))

    def _outcomes(self, p: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return forecasts f [N, D] and outcomes [N, D]."""
        if self.variant == "canonical":
            classes = torch.arange(p.shape[-1], device=p.device)
            return clamped(p), (classes == targets.unsqueeze(-1)).to(p.dtype)
        top = p.max(-1)
        right = (top.indices == targets).to(p.dtype)
        confidence = clamped(top.values)
        return torch.stack([confidence, 1 - confidence], dim=-1), torch.stack([right, 1 - right], dim=-1)


def clamped(p: Tensor) -> Tensor:
    """Return probabilities clamped to [`SMALLEST`, 1 − `SMALLEST`]."""
    return p.clamp(SMALLEST, 1 - SMALLEST)


def kernel_weights(f: Tensor, bandwidth: Tensor) -> Tensor:
    """Return w [N, N]: row j holds the weights of the samples i ≠ j by the Dirichlet kernel k(f_j; f_i)."""
    # Σ_k (α_ik − 1) log f_jk is a matrix product, because α_i − 1 = f_i/b
    log_kernel = (f.log() @ f.transpose(-1, -2)) / bandwidth + log_normaliser(f, bandwidth)
    return without_diagonal(log_kernel).softmax(-1)


def log_normaliser(f: Tensor, bandwidth: Tensor) -> Tensor:
    """Return lnΓ(Σ_k α_ik) − Σ_k lnΓ(α_ik), [N], for α_i = f_i/b + 1."""
    alpha = f / bandwidth + 1
    return torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1)


def without_diagonal(log_kernel: Tensor) -> Tensor:
    """Return a [N, N] log kernel with −∞ on its diagonal, so that no sample counts for itself."""
    return log_kernel.masked_fill(torch.eye(len(log_kernel), device=log_kernel.device, dtype=torch.bool), -math.inf)


@functools.lru_cache(maxsize=16)  # a copy to the GPU at every batch would stall its queue
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


@LOSSES.add("mdca", cross_entropy_at_zero=("weight", "gamma"))
@dataclass(eq=False)
class MultiClassDifference(Loss):
    """Focal loss or cross-entropy, plus the mean gap over classes of confidence and frequency in the batch.

    FL_γ + β·(1/K) Σ_k |(1/N) Σ_i p_ik − (1/N) Σ_i 1[y_i = k]|.

    Source: Hebbalaguppe et al. 2022, A stitch in time saves nine, arXiv:2203.13834.

    Args:
        weight: β; a negative one would reward miscalibration [Hebbalaguppe et al. 2022 search from 1 on].
        gamma: γ of the focal loss; a negative γ puts more weight on correctly classified samples [0: cross-entropy;
            Hebbalaguppe et al. 2022 search 1 to 3].

    Example:
        >>> logits, targets = torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])  # mean p = 1/2, frequencies 3/4 and 1/4
        >>> MultiClassDifference(weight=1.0)(logits, targets) - MultiClassDifference(weight=0.0)(logits, targets)
        tensor(0.2500)
    """

    batch_coupled = True

    weight: Annotated[Number, "[0, inf)"] = 1.0
    gamma: Annotated[Number, "[0, inf)"] = 0.0

    def value(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, a scalar, for logits [N, K] and targets [N]."""
        one_hot = (torch.arange(logits.shape[-1], device=logits.device) == targets.unsqueeze(-1)).to(logits)
        gap = (torch.softmax(logits, dim=-1).mean(0) - one_hot.mean(0)).abs().mean()
        return Focal(self.gamma).value(logits, targets) + as_type(self.weight, logits) * gap
