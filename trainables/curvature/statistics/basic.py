"""The ends of the spectrum, the trace and the gradient, and how they were measured."""

from __future__ import annotations

from trainables.curvature.statistics.base import Statistic

COMPONENTS = (
    Statistic(
        "lambda_max", lambda found: found.ends.lambda_max, summary="largest eigenvalue", label="λ_max", headline=True
    ),
    Statistic("lambda_min", lambda found: found.ends.lambda_min, summary="smallest eigenvalue", label="λ_min"),
    Statistic("trace", lambda found: found.trace.value, summary="trace", label="Tr(H)", headline=True),
    Statistic(
        "trace_se", lambda found: found.trace.standard_error, summary="its standard error", label="error of Tr(H)"
    ),
    Statistic(
        "gradient_norm", lambda found: float(found.operator.gradient.norm()), summary="‖∇‖", label="gradient norm"
    ),
    Statistic(
        "matvecs",
        lambda found: float(found.operator.products),
        summary="Hessian-vector products that were taken",
        label="products",
        counted=True,
    ),
    Statistic(
        "residual",
        lambda found: found.ends.relative_residual,
        summary="‖Hv − λv‖/|λ| of λ_max",
        label="residual of λ_max",
    ),
    Statistic(
        "samples",
        lambda found: float(found.samples),
        summary="samples that the loss is a mean over",
        label="samples",
        counted=True,
    ),
)
