"""Seeds that join a sweep once its trials have ended: those that a user asks for.

Replicate r of any configuration beyond the sweep's own has the common seed number r, so configurations are paired by
their added seeds whoever asked for them.
"""

from __future__ import annotations

from collections.abc import Collection

from sweeper.core.errors import SweeperError
from sweeper.core.ids import FIRST_ADDED, ReplicateSeeds, trial_name
from sweeper.journal.records import Added, AddedSeed
from sweeper.journal.state import COMPLETED, SweepState, TrialState
from trainables.registry.names import nearest

#: So many seeds share a record.
TOGETHER = 500

#: The question of seeds that a user asked for.
REQUEST = "request"


def replicates_of(state: SweepState) -> dict[int, dict[int, TrialState]]:
    """Return the added seeds by trial and replicate, also of trials without any."""
    found: dict[int, dict[int, TrialState]] = {i: {} for i, trial in state.trials.items() if trial.added is None}
    for trial in state.added:
        assert trial.added is not None
        found.setdefault(trial.added.trial, {})[trial.added.replicate] = trial
    return found


def requested(state: SweepState, seeds: ReplicateSeeds, wanted: int, trials: Collection[int] = ()) -> list[Added]:
    """Return the seeds that configurations lack of `wanted` each.

    Args:
        state: of the sweep.
        seeds: of its replicates.
        wanted: seeds of each configuration in all.
        trials: whose; by default those that have reached the last epoch.

    Raises:
        SweeperError: there is no such trial.
    """
    known = replicates_of(state)
    unknown = [index for index in trials if index not in known]
    if unknown:
        name = trial_name(unknown[0])
        near = nearest(name, [trial_name(index) for index in known])
        raise SweeperError(f"the sweep has no trial {name}{near}", "see `sweeper results NAME --all`")
    chosen = trials or [
        index
        for index, added in known.items()
        if state.trials[index].status == COMPLETED or any(each.status == COMPLETED for each in added.values())
    ]
    lacking = [
        (replicate, index)
        for replicate in range(seeds.count, wanted)
        for index in sorted(chosen)
        if replicate not in known[index]
    ]
    first, made = FIRST_ADDED + len(state.added), list[AddedSeed]()
    for at, (replicate, index) in enumerate(lacking):
        values = state.values_of(index)
        assert values is not None, "whatever began was journaled before"
        made.append(AddedSeed(first + at, index, replicate, seeds.fresh(replicate), values, REQUEST))
    return [Added(0, made[at : at + TOGETHER]) for at in range(0, len(made), TOGETHER)]
