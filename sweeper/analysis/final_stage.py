"""The final stage of a sweep as its search space asks for it: questions, lines, and the judge of fresh seeds."""

from __future__ import annotations

from collections.abc import Collection

from sweeper.analysis.statistics.best_set import best_set, level_of
from sweeper.scheduling.contenders import PARTS, FinalStage, Groups, Values
from sweeper.space.configurations import line_domains, named_components
from sweeper.space.spec import SweepSpec


def final_stage(spec: SweepSpec) -> FinalStage | None:
    """Return what chooses the seeds of a sweep's final stage; `None` for a sweep without one."""
    if spec.replicates.at_most is None:
        return None
    mode = spec.objective.mode

    def judge(values: Values, groups: Groups, first: int, at_most: int) -> Collection[str]:
        return in_play(values, groups, mode, first, at_most)

    domains = line_domains(spec.space)
    return FinalStage(
        spec.schedule,
        spec.replicate_seeds,
        spec.replicates.at_most,
        judge,
        [part for part in PARTS if part in spec.space.nodes and len(named_components(spec.space.nodes[part])) > 1],
        {name: {loss: found[name] for loss, found in domains.items() if name in found} for name in spec.which},
    )


def in_play(values: Values, groups: Groups, mode: str, first: int, at_most: int) -> list[str]:
    """Return the trials that get another seed: those between which a question is open, until all have `at_most`.

    Looks are taken after `first` seeds and after each further one; who is out at one stays out.
    """
    found: dict[str, None] = {}
    for levels in groups.values():
        left = [trial for trials in levels.values() for trial in trials]
        for look, seeds in enumerate(range(first, at_most + 1), 1):
            seen = [{seed: value for seed, value in values[trial].items() if seed < seeds} for trial in left]
            if len(left) < 2 or any(max(values[trial], default=-1) + 1 < seeds for trial in left):
                break
            answer = best_set(seen, mode, level_of(look))
            left = left if answer is None else [left[at] for at in answer.members]
        if len(left) > 1:
            found |= dict.fromkeys(left)
    return list(found)
