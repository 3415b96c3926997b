"""Curvature of a loss surface: λ_max, λ_min, Tr(H), gradient norm and the spectral density, with error bars.

Works on any module and mean loss: imports torch and the registry, and nothing of data, networks or training. How a
statistic is added is said in `trainables.curvature.statistics.base`.
"""

from typing import TYPE_CHECKING

from trainables.curvature.statistics import CURVATURE_FIELDS
from trainables.curvature.statistics.base import CurvatureSettings

if TYPE_CHECKING:
    from trainables.curvature.failures import CurvatureUnavailable
    from trainables.curvature.measure import measure_curvature, spectral_density

__all__ = ["CURVATURE_FIELDS", "CurvatureSettings", "CurvatureUnavailable", "measure_curvature", "spectral_density"]


def __getattr__(name: str) -> object:
    """Load what computes, and torch with it, when it is first asked for: readers of results only want the columns."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trainables.curvature import failures, measure

    return (vars(failures) | vars(measure))[name]
