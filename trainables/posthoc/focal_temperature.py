"""Focal temperature scaling: Ψ^γ(softmax(z/T)) with γ and T both chosen on validation data (properness §4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Floats, Integers
from trainables.metrics.binning import Bins
from trainables.posthoc.base import POSTHOC, validation_data
from trainables.posthoc.focal_grid import GridValues, focal_grid
from trainables.posthoc.focal_map import FocalTemperatureCalibrator, FocalTemperatureLayer
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
    temperatures: Floats = TEMPERATURE_GRIDS["properness"],
) -> tuple[FocalTemperature, GridValues]:
    """Return the best cell of γ × T for logits [N, K], and the whole grid (properness §5.1).

    Ties are decided for the first γ listed, then for the smallest T.

    Example:
        >>> logits, targets = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0, 1, 1])
        >>> full_grid_search(logits, targets, "nll", bins=2)[0]
        FocalTemperature(gamma=0.37, temperature=1.66, value=0.574...)
    """
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


@POSTHOC.add("focal_temperature", columns=PARAMETERS, layer=FocalTemperatureLayer, free=lambda k, parameters: 2)
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
