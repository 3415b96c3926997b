"""Build a sweep's final stage from its search space: the questions, the lines, and the judge of fresh seeds."""

from __future__ import annotations

from collections.abc import Collection

from sweeper.core.statistics.racing import open_questions
from sweeper.scheduling.contenders import PARTS, FinalStage, Groups, Values
from sweeper.space.configurations import line_domains, named_components
from sweeper.space.spec import SweepSpec


def final_stage(spec: SweepSpec) -> FinalStage | None:
    """Return the sweep's final stage, which chooses fresh seeds; None if the sweep has none."""
    if spec.replicates.at_most is None:
        return None
    mode, margin = spec.objective.mode, spec.objective.margin
    # `objective.margin` is a difference in ECE, so for another objective it would have the wrong unit.
    if not spec.objective.metric.endswith("ece"):
        margin = None

    def judge(values: Values, groups: Groups, first: int) -> Collection[str]:
        return open_questions(values, groups, mode, margin, first=first).units

    domains = line_domains(spec.space)
    return FinalStage(
        spec.schedule,
        spec.replicate_seeds,
        spec.replicates.at_most,
        judge,
        # A part with a single component has nothing to compare.
        [part for part in PARTS if part in spec.space.nodes and len(named_components(spec.space.nodes[part])) > 1],
        {name: {loss: domain[name] for loss, domain in domains.items() if name in domain} for name in spec.which},
    )
