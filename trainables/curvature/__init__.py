"""Curvature of a loss surface: λ_max, λ_min, Tr(H), gradient norm and the spectral density, with error bars.

Works on any module and mean loss: imports torch and the registry, and nothing of data, networks or training.
"""

from trainables.curvature.density import spectral_density
from trainables.curvature.failures import CurvatureUnavailable
from trainables.curvature.hessian import hessian_vector_product
from trainables.curvature.measure import CURVATURE_FIELDS, measure_curvature
from trainables.curvature.settings import CurvatureSettings, settings_faults

__all__ = [
    "CURVATURE_FIELDS",
    "CurvatureSettings",
    "CurvatureUnavailable",
    "hessian_vector_product",
    "measure_curvature",
    "settings_faults",
    "spectral_density",
]
