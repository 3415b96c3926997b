"""ECE and NLL of Ψ^γ(softmax(z/T)) over a whole grid of (γ, T): the search behind focal temperature scaling.

A direct double loop maps all N·K probabilities for every cell. Here each temperature is visited once for all γ
(`log_masses`), and where temperatures are dense it is not visited at all: ln mass_γ is an analytic function of
ln T, so on an octave of T that holds many grid points it is computed at 25 Chebyshev points and interpolated. Its
Chebyshev coefficients fall geometrically; a sample whose last ones are not below 1e-11 is computed directly
instead, so that every ln mass, and with it every confidence, is good to about 1e-11.

The argmax of Ψ^γ(softmax(z/T)) is that of z in every cell, so the top class is taken out once and for all. With

    rest = Σ_{k≠top} p_k/p_top,   mass_γ = Σ_{k≠top} h(p_k)/h(p_top),   p = softmax(z/T),

the mapped confidence is 1/(1 + mass_γ). A temperature costs an exp and a log for each element, each γ one more exp and
a sum, in blocks that stay in the processor's cache. Everything is float64, and no sum depends on the order of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from trainables.metrics.base import Floats, Integers
from trainables.metrics.binning import equal_mass_starts

#: Elements a block holds: six float64 buffers of it stay in a core's second-level cache.
_BLOCK_ELEMENTS = 20_000

#: Classes this many nats below the second largest add less than 3e-20 of its mass each: they are left out.
_NEGLIGIBLE = 45.0

_SMALLEST_NORMAL = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class TopFirst:
    """Logits with the top class taken out; every difference is to the next larger logit, so nothing cancels."""

    others: Floats  # [K−1, N] z_k − second largest z, for every class but the top one, descending: ≤ 0
    second: Floats  # [N] second largest z − largest z: ≤ 0
    of_target: Floats  # [N] z_y − largest z
    correct: Floats  # [N] 1 where the top class is the target, else 0

    @staticmethod
    def of(logits: Floats, targets: Integers) -> TopFirst:
        """Take the first largest class out of `logits` [N, K]."""
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
        """Return the samples `rows`."""
        return TopFirst(self.others[:, rows], self.second[rows], self.of_target[rows], self.correct[rows])

    def __len__(self) -> int:
        return len(self.second)


def slices(length: int, step: int) -> Iterator[slice]:
    """Yield slices of at most `step` that cover `length`."""
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def log_masses(data: TopFirst, gammas: Floats, temperatures: Floats) -> Floats:
    """Return [T, 1 + G, N]: ln rest, then ln mass_γ of each γ; `gammas` [G, T] are each temperature's own."""
    found = np.empty((len(temperatures), 1 + len(gammas), len(data)))
    others = len(data.others)
    width = max(1, _BLOCK_ELEMENTS // others)
    depth = max(1, width // len(data))
    with np.errstate(under="ignore", divide="ignore"):
        for columns in slices(len(temperatures), depth):
            for rows in slices(len(data), width):
                _fill(found[columns, :, rows], data.rows(rows), gammas[:, columns], temperatures[columns])
    return found


def _fill(out: Floats, data: TopFirst, gammas: Floats, temperatures: Floats) -> None:
    """Write one block's `log_masses` to `out` [T, 1 + G, rows]. Arrays over classes are [K−1, T, rows]."""
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
    """Return ln(1 − p) and w(p) = −p ln p/(1 − p) of the top class from ln rest and ln(1 + rest)."""
    rest = np.exp(log_rest)
    tiny = rest <= _SMALLEST_NORMAL
    return log_rest - log_all, np.where(tiny, 1.0, log_all / np.where(tiny, 1.0, rest))


def nll_of_wrong(data: TopFirst, masses: Floats, gammas: Floats, temperatures: Floats) -> Floats:
    """Return the sums over `data`, all wrongly predicted, of ln h(p_top) − ln h(p_y), [T, G]: NLL beyond ln(1 + mass).

    `masses` [T, 1 + G, N] are their `log_masses`, `gammas` [G, T].
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
    found: Floats = (log_h_top - log_h_target).sum(-1)
    return found


#: On an octave of T, 25 points leave coefficients of 1e-12 or less on real and on random logits.
CHEBYSHEV_POINTS = 25

TOLERANCE = 1e-11

_COLUMNS_A_JOB = 8


@dataclass(frozen=True)
class GridValues:
    """Objectives of the cells (gammas[g, t], temperatures[t]): `ada_ece` and `nll`, both [G, T]."""

    gammas: Floats
    temperatures: Floats
    ada_ece: Floats
    nll: Floats


@dataclass(frozen=True)
class _Segment:
    """Consecutive temperatures, the points at which masses are computed, and the map from those to these, if any."""

    columns: slice
    points: Floats  # [E]
    weights: Floats | None  # [len(columns), E]; None: the points are the temperatures
    tail: Floats | None  # [3, E] last Chebyshev coefficients of values at the points


def focal_grid(
    logits: Floats, targets: Integers, gammas: Floats, temperatures: Floats, bins: int = 15, threads: int | None = None
) -> GridValues:
    """Return equal-mass ECE and NLL of Ψ^γ(softmax(z/T)) for every γ and T.

    Args:
        logits: [N, K], finite, float32 or float64; computed in float64.
        targets: [N] class indices.
        gammas: [G] > −1, the same for every T, or [G, T], each T's own.
        temperatures: [T] > 0, ascending.
        bins: equal-mass bins, at most N.
        threads: worker threads; default torch's own number.
    """
    data = TopFirst.of(logits, targets)
    temperatures = np.asarray(temperatures, dtype=np.float64)
    own = np.asarray(gammas, dtype=np.float64)
    smooth = own.ndim == 1
    own = np.broadcast_to(own[:, None], (len(own), len(temperatures))) if smooth else own
    found = GridValues(own, temperatures, np.empty(own.shape), np.empty(own.shape))
    with ThreadPoolExecutor(threads or torch.get_num_threads()) as pool:
        for segment in _segments(temperatures, smooth):
            _fill_segment(found, data, segment, bins, pool)
    return found


def _segments(temperatures: Floats, smooth: bool) -> Iterator[_Segment]:
    """Split ascending temperatures into octaves from the top; sparse ones, or γ that change with T, go directly."""
    stop = len(temperatures)
    while stop > 0:
        top = temperatures[stop - 1]
        start = int(np.searchsorted(temperatures, top / 2.0, side="right"))
        if not smooth or stop - start < 2 * CHEBYSHEV_POINTS:
            start = max(start, stop - CHEBYSHEV_POINTS)
            yield _Segment(slice(start, stop), temperatures[start:stop], None, None)
        else:
            yield _chebyshev_segment(slice(start, stop), temperatures[start:stop])
        stop = start


def _chebyshev_segment(columns: slice, temperatures: Floats) -> _Segment:
    low, high = math.log(temperatures[0]), math.log(temperatures[-1])
    degree = CHEBYSHEV_POINTS - 1
    angles = math.pi * np.arange(CHEBYSHEV_POINTS) / degree
    halved = np.ones(CHEBYSHEV_POINTS)
    halved[[0, -1]] = 0.5
    to_coefficients = 2.0 / degree * np.cos(np.outer(np.arange(CHEBYSHEV_POINTS), angles)) * halved
    to_coefficients[[0, -1]] *= 0.5
    points = np.exp(low + (np.cos(angles) + 1.0) / 2.0 * (high - low))
    place = np.clip(2.0 * (np.log(temperatures) - low) / (high - low) - 1.0, -1.0, 1.0)
    polynomials = np.cos(np.outer(np.arccos(place), np.arange(CHEBYSHEV_POINTS)))
    return _Segment(columns, points, polynomials @ to_coefficients, to_coefficients[-3:])


def _fill_segment(found: GridValues, data: TopFirst, segment: _Segment, bins: int, pool: ThreadPoolExecutor) -> None:
    """Compute the segment's columns of `found`: masses by blocks of samples, then objectives by blocks of columns."""
    gammas, temperatures = found.gammas[:, segment.columns], found.temperatures[segment.columns]
    at_points = gammas[:, :1] if segment.weights is not None else gammas
    at_points = np.broadcast_to(at_points, (len(gammas), len(segment.points)))
    masses = np.empty((len(segment.points), 1 + len(gammas), len(data)))

    def compute(rows: slice) -> None:
        masses[:, :, rows] = log_masses(data.rows(rows), at_points, segment.points)

    list(pool.map(compute, slices(len(data), 1024)))  # which raises what any of them raised
    rough = _unconverged(masses, segment.tail)
    direct = log_masses(data.rows(rough), gammas, temperatures) if len(rough) else None
    wrong = np.flatnonzero(data.correct == 0.0)
    mistakes = data.rows(wrong)

    def reduce(columns: slice) -> None:
        values = masses[columns] if segment.weights is None else _interpolated(segment.weights[columns], masses)
        if direct is not None:
            values[:, :, rough] = direct[columns]
        offset = nll_of_wrong(mistakes, values[:, :, wrong], gammas[:, columns], temperatures[columns])
        mass = np.exp(values[:, 1:])
        place = slice(segment.columns.start + columns.start, segment.columns.start + columns.stop)
        found.nll[:, place] = ((np.log1p(mass).sum(axis=-1) + offset) / len(data)).T
        found.ada_ece[:, place] = equal_mass_errors(1.0 / (1.0 + mass), data.correct, bins).T

    list(pool.map(reduce, slices(len(temperatures), _COLUMNS_A_JOB)))


def _interpolated(weights: Floats, masses: Floats) -> Floats:
    """Return weights [T, E] times masses [E, ...].

    In pieces small enough for the linear algebra library to stay on this thread: the pool keeps every core busy.
    """
    flat = masses.reshape(len(masses), -1)
    found = np.empty((len(weights), flat.shape[1]))
    for part in slices(flat.shape[1], 1024):
        found[:, part] = weights @ flat[:, part]
    return found.reshape(len(weights), *masses.shape[1:])


def _unconverged(masses: Floats, tail: Floats | None) -> Integers:
    """Return the samples of `masses` [E, 1 + G, N] whose last Chebyshev coefficients exceed the tolerance."""
    if tail is None:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(np.abs(_interpolated(tail, masses)).max(axis=(0, 1)) > TOLERANCE)


def equal_mass_errors(confidence: Floats, correct: Floats, bins: int) -> Floats:
    """Return the equal-mass ECE [T, G] of confidences [T, G, N] against `correct` [N], as a stable sort would.

    Bins need no order within: a partition at their first places suffices. From one temperature to the next the
    order hardly changes, and what is almost in place is partitioned faster still, so each row starts from the order
    before it. Only where equal confidences straddle two bins does that change the value: those rows are sorted.
    """
    _, kinds, samples = confidence.shape
    starts = equal_mass_starts(samples, bins)
    first = np.arange(kinds)[:, None] * samples  # flat indices: take is several times faster than take_along_axis
    outcome = np.tile(correct, kinds)
    found: Floats = np.empty(confidence.shape[:-1])
    order = np.broadcast_to(np.arange(samples), (kinds, samples)) + first
    for t, rows in enumerate(confidence):
        binned = rows.take(order)
        step = np.argpartition(binned, starts[1:], axis=1) + first
        order, binned = order.take(step), binned.take(step)
        tied = (np.maximum.reduceat(binned, starts, axis=1)[:, :-1] == binned[:, starts[1:]]).any(axis=1)
        if tied.any():
            order[tied] = np.argsort(rows[tied], axis=1, kind="stable") + first[tied]
            binned[tied] = rows.take(order[tied])
        binned -= outcome.take(order)
        found[t] = np.abs(np.add.reduceat(binned, starts, axis=1)).sum(axis=1)
    found /= samples
    return found
