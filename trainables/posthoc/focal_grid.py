"""ECE and NLL of Ψ^γ(softmax(z/T)) over a whole grid of (γ, T): the search behind focal temperature scaling.

A direct double loop would map all N·K probabilities for every cell. This module visits each temperature once for all γ
(`log_masses`).

The argmax of Ψ^γ(softmax(z/T)) equals the argmax of z in every cell, so the top class is taken out once for the whole
grid. With

    rest = Σ_{k≠top} p_k/p_top,   mass_γ = Σ_{k≠top} h(p_k)/h(p_top),   p = softmax(z/T),

the mapped confidence is 1/(1 + mass_γ). A temperature needs one exp and one log per element, and each γ needs one more
exp and a sum. The arithmetic runs in blocks that fit in the processor's cache. All arithmetic is float64, and no sum
depends on thread order.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from trainables.metrics.base import Floats, Integers
from trainables.metrics.binning import equal_mass_starts

#: Elements per block: six float64 buffers of this size fit in a core's second-level cache.
_BLOCK_ELEMENTS = 20_000

#: Classes this many nats below the second largest are left out: each adds less than 3e-20 of its mass.
_NEGLIGIBLE = 45.0

_SMALLEST_NORMAL = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class TopFirst:
    """Logits with the top class taken out, as differences to the next larger logit, so that nothing cancels."""

    others: Floats  # [K−1, N] z_k − second largest z, for every class but the top one, descending: ≤ 0
    second: Floats  # [N] second largest z − largest z: ≤ 0
    of_target: Floats  # [N] z_y − largest z
    correct: Floats  # [N] 1 where the top class is the target, else 0

    @staticmethod
    def of(logits: Floats, targets: Integers) -> TopFirst:
        """Split `logits` [N, K] into the first largest class and the others."""
        values = np.array(logits, dtype=np.float64)
        samples, classes = values.shape
        rows = np.arange(samples)
        top = values.argmax(axis=1)
        values -= values[rows, top][:, None]
        of_target = values[rows, targets]
        keep = np.ones(values.shape, dtype=bool)
        keep[rows, top] = False
        others = np.ascontiguousarray(np.sort(values[keep].reshape(samples, classes - 1), axis=1)[:, ::-1].T)
        second = others[0].copy()
        others -= second
        return TopFirst(others, second, of_target, (top == targets).astype(np.float64))

    def rows(self, rows: slice | Integers) -> TopFirst:
        """Return the subset of samples `rows`."""
        return TopFirst(self.others[:, rows], self.second[rows], self.of_target[rows], self.correct[rows])

    def __len__(self) -> int:
        return len(self.second)


def slices(length: int, step: int) -> Iterator[slice]:
    """Return slices of at most `step` elements that cover `length`."""
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def log_masses(data: TopFirst, gammas: Floats, temperatures: Floats) -> Floats:
    """Return [T, 1 + G, N]: ln rest, then ln mass_γ for each γ; `gammas` [G, T] can differ by temperature."""
    masses = np.empty((len(temperatures), 1 + len(gammas), len(data)))
    others = len(data.others)
    width = max(1, _BLOCK_ELEMENTS // others)
    depth = max(1, width // len(data))
    # Confident samples have rest = 0. Its logarithm, −inf, is the right result.
    with np.errstate(under="ignore", divide="ignore"):
        for columns in slices(len(temperatures), depth):
            for rows in slices(len(data), width):
                _fill(masses[columns, :, rows], data.rows(rows), gammas[:, columns], temperatures[columns])
    return masses


def _fill(out: Floats, data: TopFirst, gammas: Floats, temperatures: Floats) -> None:
    """Write one block's `log_masses` to `out` [T, 1 + G, rows]. Arrays over classes have shape [K−1, T, rows]."""
    # In-place arithmetic keeps the block's buffers in the cache.
    near = int((data.others.max(axis=1) > -_NEGLIGIBLE * temperatures.max()).sum())
    x = data.others[:near, None, :] / temperatures[:, None]
    e = np.exp(x)
    second = data.second / temperatures[:, None]
    log_rest = second + np.log(e.sum(axis=0))
    log_all = np.log1p(np.exp(log_rest))
    log_t_top, w_top = _log_complement_and_w(log_rest, log_all)
    shift = second - log_all  # ln(p_k/e_k)
    p = e * np.exp(shift)
    log_t = np.log1p(-p)
    x += shift
    x *= p
    p -= 1.0
    w = np.divide(x, p, out=x)  # −p ln p/(1 − p)
    mapped = np.empty_like(e)
    out[:, 0] = log_rest
    for g, gamma in enumerate(gammas[:, :, None]):
        np.multiply(log_t, -gamma, out=mapped)
        np.exp(mapped, out=mapped)
        mapped *= e
        np.multiply(w, gamma, out=p)
        p += 1.0
        mapped /= p  # h(p_k)·e_k/p_k
        out[:, 1 + g] = second + np.log(mapped.sum(axis=0)) + gamma * log_t_top + np.log1p(gamma * w_top)


def _log_complement_and_w(log_rest: Floats, log_all: Floats) -> tuple[Floats, Floats]:
    """Return ln(1 − p) and w(p) = −p ln p/(1 − p) for the top class, from ln rest and ln(1 + rest)."""
    # w tends to 1 as p tends to 1; below the smallest normal number, the quotient would lose its digits.
    rest = np.exp(log_rest)
    tiny = rest <= _SMALLEST_NORMAL
    return log_rest - log_all, np.where(tiny, 1.0, log_all / np.where(tiny, 1.0, rest))


def nll_of_wrong(data: TopFirst, masses: Floats, gammas: Floats, temperatures: Floats) -> Floats:
    """Return Σ ln h(p_top) − ln h(p_y) over wrongly predicted `data` as [T, G]: their NLL in excess of ln(1 + mass).

    Args:
        data: wrongly predicted samples.
        masses: `log_masses` of `data` [T, 1 + G, N].
        gammas: γ values [G, T].
        temperatures: temperatures [T].
    """
    log_rest = masses[:, :1]
    log_all = np.log1p(np.exp(log_rest))
    log_t_top, w_top = _log_complement_and_w(log_rest, log_all)
    log_p = data.of_target / temperatures[:, None, None] - log_all
    p = np.exp(log_p)
    log_t, w = np.log1p(-p), -p * log_p / (1.0 - p)
    own = gammas.T[:, :, None]
    log_h_target = log_p - own * log_t - np.log1p(own * w)
    log_h_top = -log_all - own * log_t_top - np.log1p(own * w_top)
    excess: Floats = (log_h_top - log_h_target).sum(-1)
    return excess


#: Temperatures per job of the thread pool.
_COLUMNS_A_JOB = 8


@dataclass(frozen=True)
class GridValues:
    """The objectives `ada_ece` and `nll`, both [G, T], in the cells (gammas[g, t], temperatures[t])."""

    gammas: Floats
    temperatures: Floats
    ada_ece: Floats
    nll: Floats


def focal_grid(
    logits: Floats, targets: Integers, gammas: Floats, temperatures: Floats, bins: int = 15, threads: int | None = None
) -> GridValues:
    """Return equal-mass ECE and NLL of Ψ^γ(softmax(z/T)) for every γ and T.

    Args:
        logits: finite float32 or float64 logits [N, K].
        targets: class indices [N].
        gammas: γ > −1, either [G] for all temperatures or [G, T] per temperature.
        temperatures: temperatures [T] > 0.
        bins: number of equal-mass bins, at most N.
        threads: number of worker threads; default torch's.

    Example:
        >>> logits, targets = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0, 1, 1])
        >>> focal_grid(logits, targets, np.array([0.0, 1.0]), np.array([1.0, 2.0]), bins=1).nll.round(3)
        array([[0.584, 0.587],
               [0.706, 0.578]])
    """
    data = TopFirst.of(logits, targets)
    temperatures, own = np.asarray(temperatures, dtype=np.float64), np.asarray(gammas, dtype=np.float64)
    own = np.broadcast_to(own[:, None], (len(own), len(temperatures))) if own.ndim == 1 else own
    grid = GridValues(own, temperatures, np.empty(own.shape), np.empty(own.shape))
    wrong = np.flatnonzero(data.correct == 0.0)
    mistakes = data.rows(wrong)

    def fill(columns: slice) -> None:
        some = own[:, columns], temperatures[columns]
        masses = log_masses(data, *some)
        offset = nll_of_wrong(mistakes, masses[:, :, wrong], *some)
        mass = np.exp(masses[:, 1:])
        grid.nll[:, columns] = ((np.log1p(mass).sum(axis=-1) + offset) / len(data)).T
        grid.ada_ece[:, columns] = equal_mass_errors(1.0 / (1.0 + mass), data.correct, bins).T

    # Threads, not processes: numpy releases the GIL in these loops, and the arrays are shared.
    with ThreadPoolExecutor(threads or torch.get_num_threads()) as pool:
        list(pool.map(fill, slices(len(temperatures), _COLUMNS_A_JOB)))  # `list` waits and raises the threads' errors
    return grid


def equal_mass_errors(confidence: Floats, correct: Floats, bins: int) -> Floats:
    """Return the equal-mass ECE [T, G] of confidences [T, G, N] against `correct` [N], binned as by a stable sort."""
    # Order within a bin does not matter, so a partition at the bins' first positions replaces the sort. The order
    # hardly changes from one temperature to the next, and an almost ordered row is partitioned faster, so each row
    # starts from the order of the row before it.
    _, kinds, samples = confidence.shape
    starts = equal_mass_starts(samples, bins)
    first = np.arange(kinds)[:, None] * samples  # flat indices: take is several times faster than take_along_axis
    outcome = np.tile(correct, kinds)
    errors: Floats = np.empty(confidence.shape[:-1])
    order = np.broadcast_to(np.arange(samples), (kinds, samples)) + first
    for t, rows in enumerate(confidence):
        binned = rows.take(order)
        step = np.argpartition(binned, starts[1:], axis=1) + first
        order, binned = order.take(step), binned.take(step)
        # Equal confidences that straddle two bins make the value depend on their order: only those rows are sorted.
        tied = (np.maximum.reduceat(binned, starts, axis=1)[:, :-1] == binned[:, starts[1:]]).any(axis=1)
        if tied.any():
            order[tied] = np.argsort(rows[tied], axis=1, kind="stable") + first[tied]
            binned[tied] = rows.take(order[tied])
        binned -= outcome.take(order)
        errors[t] = np.abs(np.add.reduceat(binned, starts, axis=1)).sum(axis=1)
    errors /= samples
    return errors
