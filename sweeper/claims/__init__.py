"""The papers' main claims, each judged from result tables by a rule that was fixed before looking.

    from sweeper.claims import CLAIMS
    CLAIMS["curvature_falls_with_gamma"].judge(results.table("final").to_pylist())

A claim is a pure function of rows of `final`: it holds where a 95 % interval lies on its side of 0, does not hold
where it lies on the other, and is undecided otherwise, or where too few configurations or replicates were run.
"""

from __future__ import annotations

CLAIMS: dict[str, None] = dict.fromkeys(
    (
        "curvature_falls_with_gamma",
        "ece_smallest_at_intermediate_trace",
        "trace_regularisation_calibrates",
        "focal_temperature_beats_temperature",
        "focal_map_recovers_posterior",
        "coverage_and_nu_move_ece",
        "cross_entropy_overconfident_on_mistakes",
        "every_loss_controls_curvature",
    )
)
"""The claims by name."""
