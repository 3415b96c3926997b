"""The figures of the report, in the order in which they appear. A new figure is one file here and one line below.

A figure imports `sweeper.reporting.figure_parts.figure` and what asks tables; never the page or another command.
"""

from __future__ import annotations

from sweeper.reporting.figure_parts.figure import FigureModule
from sweeper.reporting.figures import (
    calibration_against_trace,
    coverage_nu_map,
    curvature_against_gamma,
    ece_against_gamma,
    importance,
    learning_curves,
    loss_families,
    parallel_coordinates,
    pareto_front,
    posthoc_temperature,
    reliability,
    scheduler_audit,
    shift,
    spectral_density,
    trace_regularisation,
)

FIGURES: tuple[FigureModule, ...] = (
    curvature_against_gamma,
    ece_against_gamma,
    calibration_against_trace,
    trace_regularisation,
    coverage_nu_map,
    spectral_density,
    reliability,
    shift,
    loss_families,
    pareto_front,
    parallel_coordinates,
    importance,
    learning_curves,
    scheduler_audit,
    posthoc_temperature,
)
