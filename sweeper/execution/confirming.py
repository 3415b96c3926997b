"""Training the configurations that may be the best again, on fresh seeds, after a sweep with `confirm: n`.

Whoever survived the rungs and won was picked by its seeds, so these cannot say what it is worth. Fresh seeds can, and
need no correction. They are trained as a sweep of its own, `<name>-confirmed`, beside the first one: it is journaled,
audited, resumed and read like any other, and `sweeper.analysis.selection` takes what it reports of the winner from it.
"""

from __future__ import annotations

from sweeper.analysis.selection import candidates, confirmation_of
from sweeper.execution.outcome import Outcome
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.space.parts import SchedulerSettings
from sweeper.space.spec import MOST_CONFIRMED, Confirms, SweepSpec


def confirming_spec(spec: SweepSpec, name: str, trials: list[int]) -> SweepSpec:
    """Return the sweep that trains these configurations of the sweep `name` to the end, on `confirm` fresh seeds."""
    return spec.model_copy(
        update={
            "confirm": 0,
            "confirms": Confirms(sweep=name, configurations=trials),
            "header": spec.header.model_copy(update={"claims": [], "tables": []}),
            "scheduler": SchedulerSettings(name="none", max_epochs=spec.scheduler.max_epochs),
            "replicates": spec.replicates.model_copy(update={"count": spec.confirm}),
            "evaluation": spec.evaluation.model_copy(update={"curvature": False, "trajectory": None}),
            "constraints": [],
            "notify": [],
        }
    )


def to_confirm(outcome: Outcome) -> SweepSpec | None:
    """Return what is to be trained after a sweep; None where nothing is, or where it has been."""
    spec, name = outcome.sweep.spec, outcome.sweep.name
    if not spec.confirm or outcome.outcome != "finished" or outcome.unfinished:
        return None
    results = Results(outcome.paths.root)
    if confirmation_of(results) is not None:
        return None
    trials = candidates(results, leaderboard(results))[:MOST_CONFIRMED]
    return confirming_spec(spec, name, [int(trial.removeprefix("c")) for trial in trials]) if trials else None
