"""The grid of `focal_grid` computed by a GPU: the same formulas on whole blocks of temperatures.

At K = 100 the grid takes seconds of a processor while the GPU has nothing to do. Everything is float64 and no sum
depends on the order of threads, so a value differs from the processor's in rounding alone: 1e-11 of it in tests. Which
of two cells within a few roundings of each other is the better one may so differ between GPU and processor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
from torch import Tensor

from trainables.metrics.base import Floats
from trainables.metrics.binning import equal_mass_starts
from trainables.posthoc.focal_masses import TopFirst, slices

BLOCK_BYTES = 64 * 2**20
"""Bytes of a block's largest tensor; a handful of these exist at a time."""

_chosen: ContextVar[torch.device | None] = ContextVar("grid device", default=None)


@contextmanager
def grids_on(device: torch.device) -> Iterator[None]:
    """Within this context grids are computed on `device`, where that is a GPU."""
    before = _chosen.set(device if device.type == "cuda" else None)
    try:
        yield
    finally:
        _chosen.reset(before)


def grid_device() -> torch.device | None:
    """Return the GPU that grids are computed on; `None` for the processor."""
    return _chosen.get()


class TensorData:
    """Logits with the top class taken out, as `TopFirst` has them, in float64 on a device."""

    def __init__(self, data: TopFirst, device: torch.device) -> None:
        """Send the arrays to `device`."""
        self.others, self.second, self.of_target, self.correct = (
            torch.as_tensor(np.array(part, order="C"), dtype=torch.float64, device=device)
            for part in (data.others, data.second, data.of_target, data.correct)
        )

    def __len__(self) -> int:
        return len(self.second)

    def rows(self, rows: Tensor) -> TensorData:
        """Return the samples `rows`, int64 [n]."""
        part = object.__new__(TensorData)
        part.others, part.second = self.others[:, rows], self.second[rows]
        part.of_target, part.correct = self.of_target[rows], self.correct[rows]
        return part


def log_masses(data: TensorData, gammas: Tensor, temperatures: Tensor) -> Tensor:
    """Return [T, 1 + G, N]: ln rest, then ln mass_γ of each γ; `gammas` [G, T] are each temperature's own."""
    found = data.second.new_empty((len(temperatures), 1 + len(gammas), len(data)))
    depth = max(1, BLOCK_BYTES // max(1, data.others.nbytes))
    for columns in slices(len(temperatures), depth):
        _fill(found[columns], data, gammas[:, columns], temperatures[columns])
    return found


def _fill(out: Tensor, data: TensorData, gammas: Tensor, temperatures: Tensor) -> None:
    """Write one block's masses to `out` [T, 1 + G, N]. Tensors over classes are [T, K−1, N]."""
    inverse = temperatures[:, None]
    x = data.others / inverse[:, None]
    e = x.exp()
    second = data.second / inverse
    log_rest = second + e.sum(1).log()
    log_all = log_rest.exp().log1p()
    log_t_top, w_top = log_complement_and_w(log_rest, log_all)
    shift = (second - log_all)[:, None]  # ln(p_k/e_k)
    p = e * shift.exp()
    log_t = (-p).log1p()
    w = (x + shift) * p / (p - 1.0)  # −p ln p/(1 − p)
    out[:, 0] = log_rest
    for g, gamma in enumerate(gammas):
        own = gamma[:, None, None]
        mapped = (-own * log_t).exp() * e / (1.0 + own * w)  # h(p_k)·e_k/p_k
        out[:, 1 + g] = second + mapped.sum(1).log() + own[:, 0] * log_t_top + (own[:, 0] * w_top).log1p()


def columns_at_a_time(masses: Tensor, samples: int) -> int:
    """Return how many temperatures' masses [1 + G, N] fit into a block."""
    return max(1, BLOCK_BYTES // max(1, masses.shape[1] * samples * masses.element_size()))


def log_complement_and_w(log_rest: Tensor, log_all: Tensor) -> tuple[Tensor, Tensor]:
    """Return ln(1 − p) and w(p) = −p ln p/(1 − p) of the top class from ln rest and ln(1 + rest)."""
    rest = log_rest.exp()
    tiny = rest <= torch.finfo(rest.dtype).tiny
    return log_rest - log_all, torch.where(tiny, 1.0, log_all / torch.where(tiny, 1.0, rest))


def objectives(
    data: TensorData, masses: Tensor, gammas: Tensor, temperatures: Tensor, bins: int
) -> tuple[Floats, Floats]:
    """Return equal-mass ECE and NLL, [G, T] each, from `masses` [T, 1 + G, N] of the whole data; `gammas` [G, T]."""
    wrong = torch.nonzero(data.correct == 0.0).squeeze(1)
    offset = nll_of_wrong(data.rows(wrong), masses[:, :, wrong], gammas, temperatures)
    mass = masses[:, 1:].exp()
    nll = (mass.log1p().sum(-1) + offset) / len(data)
    return equal_mass_errors(1.0 / (1.0 + mass), data.correct, bins).T.cpu().numpy(), nll.T.cpu().numpy()


def nll_of_wrong(data: TensorData, masses: Tensor, gammas: Tensor, temperatures: Tensor) -> Tensor:
    """Return the sums over `data`, all wrongly predicted, of ln h(p_top) − ln h(p_y), [T, G]: NLL beyond ln(1 + mass).

    `masses` [T, 1 + G, N] are their `log_masses`, `gammas` [G, T].
    """
    log_rest = masses[:, :1]
    log_all = log_rest.exp().log1p()
    log_t_top, w_top = log_complement_and_w(log_rest, log_all)
    log_p = data.of_target / temperatures[:, None, None] - log_all
    p = log_p.exp()
    log_t, w = (-p).log1p(), -p * log_p / (1.0 - p)
    own = gammas.T[:, :, None]
    log_h_target = log_p - own * log_t - (own * w).log1p()
    log_h_top = -log_all - own * log_t_top - (own * w_top).log1p()
    return (log_h_top - log_h_target).sum(-1)


def equal_mass_errors(confidence: Tensor, correct: Tensor, bins: int) -> Tensor:
    """Return the equal-mass ECE [T, G] of confidences [T, G, N] against `correct` [N]; ties as a stable sort has them.

    Each bin is summed for itself: torch's cumulative sum has no fixed order on a GPU.
    """
    samples = len(correct)
    ordered, order = confidence.sort(dim=-1, stable=True)
    gaps = ordered - correct[order]
    sizes = np.diff(equal_mass_starts(samples, bins), append=samples).tolist()
    return torch.stack([part.sum(-1).abs() for part in gaps.split(sizes, dim=-1)]).sum(0) / samples
