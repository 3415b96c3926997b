"""The built-in statistics: first the statistics that are always measured, then the groups.

`trainables.curvature.further` computes the groups.
"""

from functools import partial

from trainables.curvature.statistics.base import STATISTICS

_add = STATISTICS.add

_add("lambda_max", "largest eigenvalue", label="λ_max", headline=True)(lambda m: m.ends.lambda_max)
_add("lambda_min", "smallest eigenvalue", label="λ_min")(lambda m: m.ends.lambda_min)
_add("trace", "trace", label="Tr(H)", headline=True)(lambda m: m.trace.value)
_add("trace_se", "its standard error", label="error of Tr(H)")(lambda m: m.trace.standard_error)
_add("gradient_norm", "‖∇‖", label="gradient norm")(lambda m: float(m.operator.gradient.norm()))
_add("matvecs", "number of Hessian-vector products", label="products", counted=True)(
    lambda m: float(m.operator.products)
)
_add("residual", "‖Hv − λv‖/|λ| for λ_max", label="residual of λ_max")(lambda m: m.ends.relative_residual)
_add("lambda_min_residual", "‖Hv − λv‖/|λ| for λ_min", label="residual of λ_min")(lambda m: m.ends.lambda_min_residual)
_add("samples", "number of samples in the mean loss", label="samples", counted=True)(lambda m: float(m.samples))

_fisher = partial(_add, group="fisher")
_fisher("fisher_trace", "trace of the Fisher information", label="Tr(F)")(lambda m: m.fisher().value)
_fisher("fisher_trace_se", "its standard error", label="error of Tr(F)")(lambda m: m.fisher().standard_error)

# H = G + R: the generalised Gauss–Newton matrix and the residual (Schraudolph 2002).
_split = partial(_add, group="gauss_newton")
_split("gauss_newton_trace", "trace of the Gauss–Newton matrix", label="Tr(G)")(lambda m: m.gauss_newton().trace.value)
_split("gauss_newton_trace_se", "its standard error", label="error of Tr(G)")(
    lambda m: m.gauss_newton().trace.standard_error
)
_split("gauss_newton_lambda_max", "largest eigenvalue of the Gauss–Newton matrix", label="λ_max of G")(
    lambda m: m.gauss_newton().ends.lambda_max
)
_split("residual_trace", "trace of the residual H − G", label="Tr(R)")(lambda m: m.gauss_newton().residual_trace.value)
_split("residual_trace_se", "its standard error", label="error of Tr(R)")(
    lambda m: m.gauss_newton().residual_trace.standard_error
)
_split("residual_lambda_max", "largest eigenvalue of the residual H − G", label="λ_max of R")(
    lambda m: m.gauss_newton().residual_ends.lambda_max
)

# Rise of the loss near the weights: SAM's sharpness, and ASAM's, which is invariant to rescaling weights.
_rise = partial(_add, group="sharpness")
_rise("sam", "rise of the loss after SAM's step of length rho", label="SAM sharpness")(lambda m: m.sharpness(False))
_rise("asam", "rise of the loss after a step of length adaptive_rho, scaled by |w|", label="ASAM sharpness")(
    lambda m: m.sharpness(True)
)
