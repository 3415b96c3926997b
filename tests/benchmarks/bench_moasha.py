"""Hypervolume at equal epochs: several objectives here, and Syne Tune's MOASHA, on sweeps that were trained in full.

Both decide on the same random orders of the same trials, whose values at every rung are in the sweep's tables (train
one with `scheduler: {name: none, evaluate_epochs: […]}`). After as many epochs as the cheaper of the two spent, the
hypervolume of the trials that each has finished is compared, in shares of each objective's range over all trials.

    python -m tests.benchmarks.bench_moasha results/quickstart --objective val_error --objective val_ada_ece

Syne Tune is no dependency: `pip install --no-deps --target FOLDER syne-tune==0.16`, and FOLDER in PYTHONPATH.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sweeper.analysis.replays import Curves, read_curves
from sweeper.journal.best import Objective
from sweeper.journal.records import Decision
from sweeper.results import load
from sweeper.scheduling.asha import Halving, RankedHalving
from sweeper.scheduling.base import Measured, RungState, Scheduler
from sweeper.scheduling.ranking import hypervolume
from sweeper.scheduling.simulation import play
from trainables.metrics.base import larger_is_better

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moasha(RankedHalving):
    """Syne Tune's MOASHA as it is, in this project's loop."""

    def begin(self) -> RungState:
        """Return the state before the first record."""
        return MoashaRungs(self)


class MoashaRungs(RungState):
    """Syne Tune's one bracket."""

    def __init__(self, scheduler: Moasha) -> None:
        from syne_tune.optimizer.schedulers.asha import Bracket
        from syne_tune.optimizer.schedulers.multiobjective.multiobjective_priority import NonDominatedPriority

        super().__init__(scheduler)
        self._goals, settings = scheduler.goals, (scheduler.grace_epochs, scheduler.max_epochs)
        self._bracket: Any = Bracket(*settings, scheduler.reduction_factor, 0, NonDominatedPriority())

    def add(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> None:
        """Nothing: a bracket takes a value in when it decides."""

    def competitors(self, rung: int) -> int:
        """Return how many configurations have reached a rung."""
        return sum(len(recorded) for milestone, recorded in self._bracket.rungs if milestone == rung)

    def compare(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> Decision:
        """Return what the bracket decides."""
        costs = [goal.cost((measured or {})[goal.metric][0]) for goal in self._goals]
        action = self._bracket.on_result(configuration, rung, dict(enumerate(costs)))
        return Decision(rung, "stop" if action == "STOP" else "continue", "", metric, None, 0)


def course(
    scheduler: Scheduler, curves: Curves, goals: Sequence[Objective], order: Sequence[int], workers: int
) -> tuple[list[int], list[int]]:
    """Return the epochs spent when each trial finishes, then in all, with those trials."""
    rungs = scheduler.rungs
    at = {goal.metric: curves.at(goal.metric, rungs) for goal in goals}

    def measured(trial: int, place: int) -> Measured:
        return {name: (float(values[trial, place]), 0.0) for name, values in at.items()}

    played = play(scheduler, order, at[goals[0].metric], curves.pace, workers, measured)
    spent, finished, epochs = 0, [], []
    for trial, place in played.visits:
        spent += rungs[place] - (rungs[place - 1] if place else 0)
        if place == len(rungs) - 1:
            finished.append(trial)
            epochs.append(spent)
    return finished, [*epochs, spent]


def compare(
    curves: Curves, goals: Sequence[Objective], grace: int, factor: int, seeds: int, samples: int, workers: int
) -> tuple[Floats, Floats]:
    """Return hypervolumes [seeds, 2], ours first, and the epochs [seeds, 3]: ours, theirs, those compared at."""
    halving = Halving(goals[0].metric, goals[0].mode, curves.max_epochs, grace, factor)
    ours = halving.comparing(tuple(goals), ())
    theirs = Moasha(halving.metric, halving.mode, curves.max_epochs, grace, factor, goals=tuple(goals))
    last = np.stack([curves.last(g.metric) * (1 if g.mode == "min" else -1) for g in goals], axis=1)
    sound = np.isfinite(last).all(axis=1)
    low, width = last[sound].min(axis=0), np.ptp(last[sound], axis=0)
    shares = np.where(np.isfinite(last), (last - low) / width, 1.0)
    volumes, spent = np.zeros((seeds, 2)), np.zeros((seeds, 3))
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(np.flatnonzero(sound))[:samples].tolist()
        found = [course(each, curves, goals, order, workers) for each in (ours, theirs)]
        budget = min(epochs[-1] for _, epochs in found)
        spent[seed] = [found[0][1][-1], found[1][1][-1], budget]
        for place, (finished, epochs) in enumerate(found):
            by_then = [trial for trial, at in zip(finished, epochs, strict=False) if at <= budget]
            volumes[seed, place] = hypervolume(shares[by_then], [1.0] * len(goals)) if by_then else 0.0
    return volumes, spent


def main() -> None:
    """Print a line for each sweep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", type=Path, nargs="+", help="results folders of sweeps trained in full")
    parser.add_argument("--objective", action="append", required=True)
    parser.add_argument("--grace", type=int, default=3)
    parser.add_argument("--factor", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    goals = [Objective(name, "max" if larger_is_better(name) else "min") for name in options.objective]
    for folder in options.sweeps:
        curves = read_curves(load(folder))
        chosen = (options.grace, options.factor, options.seeds, options.samples, options.workers)
        volumes, spent = compare(curves, goals, *chosen)
        difference = volumes[:, 0] - volumes[:, 1]
        half = stats.t.ppf(0.975, len(difference) - 1) * difference.std(ddof=1) / np.sqrt(len(difference))
        print(
            f"{folder.name}, {', '.join(options.objective)}: hypervolume ours {volumes[:, 0].mean():.4f}, MOASHA "
            f"{volumes[:, 1].mean():.4f}, difference {difference.mean():+.4f} (95 % {difference.mean() - half:+.4f} … "
            f"{difference.mean() + half:+.4f}), n = {len(difference)} orders of {options.samples} trials; epochs "
            f"{spent[:, 0].mean():.0f} and {spent[:, 1].mean():.0f}, compared at {spent[:, 2].mean():.0f}"
        )


if __name__ == "__main__":
    main()
