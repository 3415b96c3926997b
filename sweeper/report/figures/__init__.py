"""The figures of the report, in the order in which they appear. A new figure is one file here and one line below."""

from __future__ import annotations

from typing import cast

from sweeper.report.figure import FigureModule
from sweeper.report.figures import (
    calibration_against_trace,
    curvature_against_gamma,
    ece_against_gamma,
    learning_curves,
    parallel_coordinates,
    posthoc_temperature,
    reliability,
    spectral_density,
)

FIGURES: tuple[FigureModule, ...] = cast(
    tuple[FigureModule, ...],
    (
        curvature_against_gamma,
        ece_against_gamma,
        calibration_against_trace,
        spectral_density,
        reliability,
        learning_curves,
        parallel_coordinates,
        posthoc_temperature,
    ),
)
