"""The final stage of a sweep as its search space asks for it: questions, lines, and the judge of fresh seeds."""

from __future__ import annotations

from collections.abc import Collection

from sweeper.core.statistics.racing import open_questions
from sweeper.scheduling.contenders import PARTS, FinalStage, Groups, Values
from sweeper.space.configurations import line_domains, named_components
from sweeper.space.spec import SweepSpec


def final_stage(spec: SweepSpec) -> FinalStage | None:
    """Return what chooses the seeds of a sweep's final stage; `None` for a sweep without one."""
    if spec.replicates.at_most is None:
        return None
    mode, margin = spec.objective.mode, spec.objective.margin
    if not spec.objective.metric.endswith("ece"):  # a margin is one of calibration error
        margin = None

    def judge(values: Values, groups: Groups, first: int) -> Collection[str]:
        return open_questions(values, groups, mode, margin, first=first).units

    domains = line_domains(spec.space)
    return FinalStage(
        spec.schedule,
        spec.replicate_seeds,
        spec.replicates.at_most,
        judge,
        [part for part in PARTS if part in spec.space.nodes and len(named_components(spec.space.nodes[part])) > 1],
        {name: {loss: found[name] for loss, found in domains.items() if name in found} for name in spec.which},
    )
