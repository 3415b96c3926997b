"""The ends of the spectrum, the trace and the gradient, and how they were measured."""

from __future__ import annotations

from trainables.curvature.statistics.base import STATISTICS

_add = STATISTICS.add

_add("lambda_max", "largest eigenvalue", label="λ_max", headline=True)(lambda found: found.ends.lambda_max)
_add("lambda_min", "smallest eigenvalue", label="λ_min")(lambda found: found.ends.lambda_min)
_add("trace", "trace", label="Tr(H)", headline=True)(lambda found: found.trace.value)
_add("trace_se", "its standard error", label="error of Tr(H)")(lambda found: found.trace.standard_error)
_add("gradient_norm", "‖∇‖", label="gradient norm")(lambda found: float(found.operator.gradient.norm()))
_add("matvecs", "Hessian-vector products that were taken", label="products", counted=True)(
    lambda found: float(found.operator.products)
)
_add("residual", "‖Hv − λv‖/|λ| of λ_max", label="residual of λ_max")(lambda found: found.ends.relative_residual)
_add("samples", "samples that the loss is a mean over", label="samples", counted=True)(
    lambda found: float(found.samples)
)
