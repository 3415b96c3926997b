"""Focal temperature scaling: Ψ^γ(softmax(z/T)) with γ and T both chosen on validation data (properness §4.2).

Both searches evaluate ECE and NLL on a grid of (γ, T). A direct double loop would map all N·K probabilities for every
cell; here, each temperature is visited once for all γ (`log_masses`).

The argmax of Ψ^γ(softmax(z/T)) equals the argmax of z in every cell, so the top class is taken out once for the whole
grid. With

    rest = Σ_{k≠top} p_k/p_top,   mass_γ = Σ_{k≠top} h(p_k)/h(p_top),   p = softmax(z/T),

the mapped confidence is 1/(1 + mass_γ). A temperature needs one exp and one log per element, and each γ needs one more
exp and a sum. The arithmetic runs in blocks that fit in the processor's cache. All arithmetic is float64, and no sum
depends on thread order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Floats, Integers
from trainables.metrics.binning import Bins, equal_mass_starts, mean_of_ties
from trainables.posthoc.base import POSTHOC, validation_data
from trainables.posthoc.focal_map import FocalTemperatureCalibrator, focal_temperature_layer
from trainables.posthoc.temperature import TEMPERATURE_GRIDS, first_smallest

Objective = Literal["ada_ece", "nll"]
Search = Literal["grid", "line"]

#: γ values of the full grid, the paper's γ_ev (properness §5.1).
GAMMAS = (-0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)

#: Range of γ in the line search: properness §5.2 leaves it open, so it is the grid's.
LINE_GAMMAS = (-0.5, 5.0)

#: Column names for the best T at each γ (properness Fig. 8), e.g. `temperature_at_minus_0_5`. They need no quotes in
#: SQL.
TEMPERATURE_AT = tuple(f"temperature_at_{gamma:g}".replace("-", "minus_").replace(".", "_") for gamma in GAMMAS)

#: Reported parameters: the applied cell, the best of each search, the line, and the best T per γ.
PARAMETERS = (
    "gamma",
    "temperature",
    "value",
    "grid_gamma",
    "grid_temperature",
    "grid_value",
    "line_gamma",
    "line_temperature",
    "line_value",
    "line_intercept",
    "line_slope",
    *TEMPERATURE_AT,
    "at_bound",
)

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
    """Return logarithms [T, 1 + G, N]: of `rest`, then of mass_γ for each γ; `gammas` [G, T] has γ by temperature."""
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


def focal_grid(logits: Floats, targets: Integers, gammas: Floats, temperatures: Floats, bins: int = 15) -> GridValues:
    """Return equal-mass ECE and NLL of Ψ^γ(softmax(z/T)) for every γ and T.

    Args:
        logits: finite float32 or float64 logits [N, K].
        targets: class indices [N].
        gammas: γ > −1, either [G] for all temperatures or [G, T] per temperature.
        temperatures: temperatures [T] > 0.
        bins: number of equal-mass bins, at most N.

    Example:
        >>> logits, targets = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0, 1, 1])
        >>> focal_grid(logits, targets, np.array([0.0, 1.0]), np.array([1.0, 2.0]), bins=1).nll.round(3)
        array([[0.584, 0.587],
               [0.706, 0.578]])
    """
    import torch  # the import takes two seconds; other methods do not need it

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
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(fill, slices(len(temperatures), _COLUMNS_A_JOB)))  # `list` waits and raises the threads' errors
    return grid


def equal_mass_errors(confidence: Floats, correct: Floats, bins: int) -> Floats:
    """Return the equal-mass ECE [T, G] of confidences [T, G, N] against `correct` [N], as `binning` defines it."""
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
        right = outcome.take(order)
        # Equal confidences in two bins share their outcomes. Only rows that have such are sorted.
        tied = (np.maximum.reduceat(binned, starts, axis=1)[:, :-1] == binned[:, starts[1:]]).any(axis=1)
        if tied.any():
            order[tied] = np.argsort(rows[tied], axis=1) + first[tied]
            binned[tied] = rows.take(order[tied])
            right[tied] = mean_of_ties(binned[tied], outcome.take(order[tied]))
        binned -= right
        errors[t] = np.abs(np.add.reduceat(binned, starts, axis=1)).sum(axis=1)
    errors /= samples
    return errors


@dataclass(frozen=True)
class FocalTemperature:
    """A chosen cell: γ, T and the validation objective at that point."""

    gamma: float
    temperature: float
    value: float


@dataclass(frozen=True)
class Line:
    """T = intercept + slope·γ through the best T at γ = 0 and at γ = 1 (properness §5.2, Fig. 8)."""

    intercept: float
    slope: float


def best_temperatures(grid: GridValues, objective: Objective) -> list[FocalTemperature]:
    """Return the best T for each γ of a grid; of tied T, the smallest (properness Fig. 8)."""
    values = grid.ada_ece if objective == "ada_ece" else grid.nll
    chosen = [first_smallest(row) for row in values]
    return [
        FocalTemperature(float(grid.gammas[g, t]), float(grid.temperatures[t]), float(values[g, t]))
        for g, t in enumerate(chosen)
    ]


def full_grid_search(
    logits: Floats,
    targets: Integers,
    objective: Objective = "ada_ece",
    bins: int = 15,
    gammas: Sequence[float] = GAMMAS,
) -> tuple[FocalTemperature, GridValues]:
    """Return the best cell of γ × T for logits [N, K], and the whole grid (properness §5.1).

    Ties are decided for the first γ listed, then for the smallest T.

    Example:
        >>> logits, targets = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0, 1, 1])
        >>> full_grid_search(logits, targets, "nll", bins=2)[0]
        FocalTemperature(gamma=0.37, temperature=1.66, value=0.574...)
    """
    temperatures = TEMPERATURE_GRIDS["properness"]
    grid = focal_grid(logits, targets, np.asarray(gammas, dtype=np.float64), temperatures, bins)
    best = best_temperatures(grid, objective)
    return best[first_smallest(np.array([cell.value for cell in best]))], grid


def line_search(
    logits: Floats,
    targets: Integers,
    objective: Objective = "ada_ece",
    bins: int = 15,
    temperatures: Floats = TEMPERATURE_GRIDS["properness"],
) -> tuple[FocalTemperature, Line]:
    """Return the best cell on the line T(γ), and the line (properness §5.2).

    The search costs 3m cells for m temperatures. The best T among m cells at γ = 0 and the best T among m cells at γ =
    1 determine the line. Then m values of γ, evenly spaced in [−.5, 5], are tried on it.

    Example:
        >>> logits, targets = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0, 1, 1])
        >>> line_search(logits, targets, "nll", bins=2)[1]
        Line(intercept=1.32, slope=1.0...)
    """
    ends = focal_grid(logits, targets, np.array([0.0, 1.0]), temperatures, bins)
    at_zero, at_one = best_temperatures(ends, objective)
    line = Line(at_zero.temperature, at_one.temperature - at_zero.temperature)
    gammas = np.linspace(*LINE_GAMMAS, len(temperatures))
    on_line = line.intercept + line.slope * gammas
    # A steep line crosses T = 0 within the range of γ, where no temperature is left to try.
    gammas, on_line = gammas[on_line > 0.0], on_line[on_line > 0.0]
    cells = focal_grid(logits, targets, gammas[None, :], on_line, bins)
    return best_temperatures(cells, objective)[0], line


@POSTHOC.add("focal_temperature", columns=PARAMETERS, layer=focal_temperature_layer, free=lambda k, parameters: 2)
def fit_focal_temperature(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    objective: Objective = "ada_ece",
    search: Search = "grid",
    bins: Bins = 15,
    gamma_objective: Objective | None = None,
) -> FocalTemperatureCalibrator:
    """The focal map after a temperature, gamma and T chosen on a grid or a line; both results are reported.

    Fit Ψ^γ(softmax(z/T)), γ and T, on validation logits [N, K] and targets [N].

    Both searches run and are reported; the calibrator applies the result of `search`. `at_bound` is 1 if its T is the
    smallest or largest temperature tried.

    Example:
        >>> logits = [[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]
        >>> calibrator = fit_focal_temperature(logits, [0, 0, 1, 1, 1], objective="nll", bins=2)
        >>> calibrator.gamma, calibrator.temperature
        (0.37, 1.14)

    Source: properness §4.2, §5.1, §5.2.

    Args:
        logits: validation logits [N, K].
        targets: class indices [N].
        objective: `ada_ece` (equal-mass ECE) or `nll`, the metric of interest [properness §5.1].
        search: `grid` (9 γ × 500 T, properness §5.1) or `line` (3 × 500 cells, §5.2) [properness §5.1, §5.2].
        bins: number of equal-mass bins (15, properness §5.1) [mukhoti §5; properness §5.1].
        gamma_objective: objective that chooses γ, after which `objective` chooses T at that γ; `None` lets `objective`
            choose both. properness Table 1 prints one γ per row, with T and log-loss as well as T and ECE below it
            [properness Table 1].

    Raises:
        PosthocUnavailable: unusable validation data, including fewer samples than bins.
    """
    values, labels = validation_data(logits, targets, bins)
    # Both searches always run, whichever is applied: their columns compare the cheap search with the full one.
    on_grid, grid = full_grid_search(values, labels, gamma_objective or objective, bins)
    on_line, line = line_search(values, labels, gamma_objective or objective, bins)
    if gamma_objective not in (None, objective):
        on_grid, on_line = (
            full_grid_search(values, labels, objective, bins, (cell.gamma,))[0] for cell in (on_grid, on_line)
        )
    chosen = on_grid if search == "grid" else on_line
    cells = (chosen, on_grid, on_line)
    numbers = [number for cell in cells for number in (cell.gamma, cell.temperature, cell.value)]
    along = [cell.temperature for cell in best_temperatures(grid, objective)]
    at_bound = not grid.temperatures[0] < chosen.temperature < grid.temperatures[-1]
    parameters = dict(zip(PARAMETERS, [*numbers, line.intercept, line.slope, *along, at_bound], strict=True))
    return FocalTemperatureCalibrator(
        "focal_temperature", parameters, values.shape[1], chosen.temperature, chosen.gamma
    )
