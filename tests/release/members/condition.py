"""How much longer than wide the surface is."""

from __future__ import annotations

from trainables.curvature.statistics.base import STATISTICS, Measurement


@STATISTICS.add("condition", "largest eigenvalue over the smallest", label="κ", headline=True)
def condition(found: Measurement) -> float:
    """Return λ_max/|λ_min|; of a singular Hessian a large number."""
    return found.ends.lambda_max / max(abs(found.ends.lambda_min), 1e-12)
