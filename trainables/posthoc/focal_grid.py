"""ECE and NLL of Ψ^γ(softmax(z/T)) over a whole grid of (γ, T): the search behind focal temperature scaling.

A direct double loop maps all N·K probabilities for every cell. Here each temperature is visited once for all γ
(`focal_masses`), and where temperatures are dense it is not visited at all: ln mass_γ is an analytic function of
ln T, so on an octave of T that holds many grid points it is computed at 25 Chebyshev points and interpolated. Its
Chebyshev coefficients fall geometrically; a sample whose last ones are not below 1e-11 is computed directly
instead, so that every ln mass, and with it every confidence, is good to about 1e-11.

At K = 100 the grid takes seconds of a processor while a GPU has nothing to do, so a GPU computes it where there is one.
Its values differ from the processor's in rounding alone: 1e-11 of them in tests. Which of two cells within a few
roundings of each other is the better one may so differ between GPU and processor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainables.metrics.base import Floats, Integers
from trainables.metrics.binning import equal_mass_starts
from trainables.posthoc.focal_masses import (
    BLOCK_BYTES,
    TopFirst,
    log_masses,
    log_masses_of_tensors,
    nll_of_wrong,
    slices,
)
from trainables.registry import set_within

#: On an octave of T, 25 points leave coefficients of 1e-12 or less on real and on random logits.
CHEBYSHEV_POINTS = 25

TOLERANCE = 1e-11

_COLUMNS_A_JOB = 8


_chosen: ContextVar[torch.device | None] = ContextVar("grid device", default=None)


def grids_on(device: torch.device) -> AbstractContextManager[None]:
    """Within this context grids are computed on `device`, where that is a GPU."""
    return set_within(_chosen, device if device.type == "cuda" else None)


def grid_device() -> torch.device | None:
    """Return the GPU that grids are computed on; `None` for the processor."""
    return _chosen.get()


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
    logits: Floats,
    targets: Integers,
    gammas: Floats,
    temperatures: Floats,
    bins: int = 15,
    threads: int | None = None,
    device: torch.device | None = None,
) -> GridValues:
    """Return equal-mass ECE and NLL of Ψ^γ(softmax(z/T)) for every γ and T.

    Args:
        logits: [N, K], finite, float32 or float64; computed in float64.
        targets: [N] class indices.
        gammas: [G] > −1, the same for every T, or [G, T], each T's own.
        temperatures: [T] > 0, ascending.
        bins: equal-mass bins, at most N.
        threads: worker threads; default torch's own number.
        device: compute as tensors there; by default where `grids_on` says, and otherwise by the processor.
    """
    data = TopFirst.of(logits, targets)
    temperatures = np.asarray(temperatures, dtype=np.float64)
    own = np.asarray(gammas, dtype=np.float64)
    smooth = own.ndim == 1
    own = np.broadcast_to(own[:, None], (len(own), len(temperatures))) if smooth else own
    found = GridValues(own, temperatures, np.empty(own.shape), np.empty(own.shape))
    device = grid_device() if device is None else device
    if device is not None:
        on_device = data.on(device)
        for segment in _segments(temperatures, smooth):
            _fill_on_device(found, on_device, segment, bins)
        return found
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


def _fill_segment(
    found: GridValues, data: TopFirst[Floats], segment: _Segment, bins: int, pool: ThreadPoolExecutor
) -> None:
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


def _fill_on_device(found: GridValues, data: TopFirst[Tensor], segment: _Segment, bins: int) -> None:
    """Compute the segment's columns of `found` as tensors."""

    def sent(values: Floats) -> Tensor:
        return torch.as_tensor(np.array(values), device=data.second.device)

    gammas, temperatures = found.gammas[:, segment.columns], found.temperatures[segment.columns]
    at_points = gammas[:, :1].repeat(len(segment.points), axis=1) if segment.weights is not None else gammas
    masses = log_masses_of_tensors(data, sent(at_points), sent(segment.points))
    rough = torch.zeros(0, dtype=torch.int64, device=masses.device)
    if segment.tail is not None:
        rough = torch.nonzero(torch.tensordot(sent(segment.tail), masses, 1).abs().amax((0, 1)) > TOLERANCE).squeeze(1)
    direct, wrong = data.rows(rough), torch.nonzero(data.correct == 0.0).squeeze(1)
    mistakes = data.rows(wrong)
    at_a_time = max(1, BLOCK_BYTES // max(1, masses[0].nbytes))
    for columns in slices(len(temperatures), at_a_time):
        own, chosen = sent(gammas[:, columns]), sent(temperatures[columns])
        values = masses[columns]
        if segment.weights is not None:
            values = torch.tensordot(sent(segment.weights[columns]), masses, 1)
        if len(rough):
            values[:, :, rough] = log_masses_of_tensors(direct, own, chosen)
        place = slice(segment.columns.start + columns.start, segment.columns.start + columns.stop)
        offset, mass = nll_of_wrong(mistakes, values[:, :, wrong], own, chosen), values[:, 1:].exp()
        found.nll[:, place] = ((mass.log1p().sum(-1) + offset) / len(data)).T.cpu().numpy()
        found.ada_ece[:, place] = equal_mass_errors_of_tensors(1.0 / (1.0 + mass), data.correct, bins).T.cpu().numpy()


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


def equal_mass_errors_of_tensors(confidence: Tensor, correct: Tensor, bins: int) -> Tensor:
    """Return `equal_mass_errors` of tensors.

    Each bin is summed for itself: torch's cumulative sum has no fixed order on a GPU.
    """
    samples = len(correct)
    ordered, order = confidence.sort(dim=-1, stable=True)
    gaps = ordered - correct[order]
    sizes = np.diff(equal_mass_starts(samples, bins), append=samples).tolist()
    return torch.stack([part.sum(-1).abs() for part in gaps.split(sizes, dim=-1)]).sum(0) / samples
