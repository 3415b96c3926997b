"""Curvature of a loss surface: λ_max, λ_min, Tr(H), gradient norm and the spectral density, with error bars.

It works on any module and mean loss. It imports torch and the registry, but no data sets, networks or training.
`trainables.curvature.statistics.base` says how to add a statistic.
"""

from typing import TYPE_CHECKING

from trainables.curvature.statistics import CURVATURE_FIELDS
from trainables.curvature.statistics.base import CurvatureSettings

if TYPE_CHECKING:
    from trainables.curvature.failures import CurvatureUnavailable
    from trainables.curvature.measure import measure_curvature, spectral_density

__all__ = ["CURVATURE_FIELDS", "CurvatureSettings", "CurvatureUnavailable", "measure_curvature", "spectral_density"]


def __getattr__(name: str) -> object:
    """Import the measuring functions on first use."""
    # They import torch, which takes seconds; readers of results need only the column names.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trainables.curvature import failures, measure

    return (vars(failures) | vars(measure))[name]
