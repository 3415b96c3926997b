"""Compare losses, configurations and sweeps by every estimator, before and after post-hoc methods.

Everything is computed from stored logits; nothing is trained. Each loss is represented by its best finished
configuration on each network. If there are seeds of the final stage, only these are used, because they selected
nothing. Otherwise all seeds are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from sweeper.core.cells import Row, grouped, int_of, text_of
from sweeper.core.errors import SweeperError
from sweeper.judging.outliers import Outliers, outliers
from sweeper.results import Results
from sweeper.results.deployed import Deployed, deployed
from sweeper.results.estimators import ESTIMATORS, MARGIN, SHOWN, Judgement, Networks, Scored, judged
from sweeper.results.leaderboard import Leaderboard, fresh_replicates, leaderboard, objective, replicate_values
from sweeper.results.predictions import FITTED_ON, MEASURED_ON, StoredPredictions, members_of, require_same_samples
from sweeper.results.recalibration import UNCALIBRATED, method_label, options_that_differ
from sweeper.results.selection import Selection, selections, stated_coverage
from trainables.metrics.base import UnusablePredictions, softmax64
from trainables.posthoc import POSTHOC, fit
from trainables.posthoc.focal_map import with_training_gamma
from trainables.registry import FITTED_ON as FITTED_ON_SPLIT, LABEL, hyperparameter_values
from trainables.registry.names import CROSS_FITTED, did_you_mean

#: Largest number of logits of all finalists with which the first screen judges them. They take 80 MB and a few seconds
#: of one core.
MOST_VALUES = 20_000_000

#: Start of the columns of a loss's hyperparameters.
OF_LOSS = "config_loss_"

#: A post-hoc method and its options.
Method = tuple[str, Mapping[str, object]]

BEFORE: Method = (UNCALIBRATED, {})
TEMPERATURE: Method = ("temperature", {})


def outlying_seeds(results: Results, board: Leaderboard) -> Outliers:
    """Return the finished seeds whose objective is far from that of their configuration's other seeds."""
    return outliers(replicate_values(results, board.objective), board.objective.mode)


class TrainedNetworks:
    """The stored networks of some finished trials of one sweep. Seeds that ended far from the others are left out.

    Attributes:
        members: trial → seed → predictions.
    """

    def __init__(self, results: Results, trials: Sequence[str]) -> None:
        """Read the predictions. Raises SweeperError if there are none, or if they are of different samples."""
        rows = results.rows("SELECT DISTINCT trial, replicate, coalesce(seed, replicate) AS seed FROM trials")
        seeds = {(text_of(row, "trial"), int_of(row, "replicate")): int_of(row, "seed") for row in rows}
        fresh, self.members = fresh_replicates(results), dict[str, dict[int, StoredPredictions]]()
        flagged = outlying_seeds(results, leaderboard(results)).flagged
        for trial, every in grouped(members_of(results, trials), lambda member: member.trial).items():
            used = [member for member in every if (trial, member.replicate) in fresh] or every
            of_seed = {seeds[trial, member.replicate]: member for member in used}
            self.members[trial] = {seed: member for seed, member in of_seed.items() if (trial, seed) not in flagged}

    @cached_property
    def samples(self) -> int:
        """Number of test samples."""
        return len(next(self.all()).targets[MEASURED_ON])

    def all(self) -> Iterator[StoredPredictions]:
        """Yield every network."""
        return (network for of_one in self.members.values() for network in of_one.values())

    def after(self, row: Row, method: Method) -> Networks:
        """Return a trial's test predictions after a method fitted on validation data; empty if it cannot be fitted.

        The focal map uses the γ of the trial's loss.
        """
        name, options = method
        # The loss itself says which of its hyperparameters determine a γ.
        settings = {name: value for name, value in row.items() if name.startswith(OF_LOSS)}
        loss = {name.removeprefix(OF_LOSS): value for name, value in settings.items()} | {"name": row["loss"]}
        given, scored = with_training_gamma(name, hyperparameter_values(options), loss), dict[int, Scored]()
        try:
            for seed, of in self.members[text_of(row, "trial")].items():
                logits, targets = of.logits[MEASURED_ON].astype(np.float64), of.targets[MEASURED_ON]
                if name == UNCALIBRATED:
                    scored[seed] = Scored.of(softmax64(logits), targets, logits)
                else:
                    calibrated = fit(name, of.logits[FITTED_ON], of.targets[FITTED_ON], **given)(logits)
                    scored[seed] = Scored.of(calibrated, targets)
        except UnusablePredictions:  # one failed seed excludes the method: means over other seeds are not comparable
            return {}
        return scored


def margin_of(results: Results, estimator: str = SHOWN) -> float:
    """Return the largest difference by an estimator that counts as none: `objective.margin`, if that is in its unit."""
    metric = next((name for name in ("ece", "nll", "brier") if objective(results).column.endswith(name)), "")
    measures = metric and metric.upper() in estimator.upper() and not estimator.startswith("refinement")
    return objective_margin(results) or MARGIN if measures else MARGIN


def objective_margin(results: Results) -> float:
    """Return the largest difference of the objective that counts as none, in its own unit; 0 if every one counts."""
    return float((results.specification.get("objective") or {}).get("margin") or 0.0)


@dataclass(frozen=True)
class Calibration:
    """The test ECE of some configurations, before and after temperature scaling.

    Attributes:
        changes: trial → judgement of after minus before.
        between: judgements of the first minus the second configuration, before and after.
        deployed: verdicts on their test NLL after it, or before it if the objective is measured after it.
        selective: AURC, and accuracy at a coverage, of those with a selective loss.
    """

    changes: Mapping[str, Judgement]
    between: tuple[Judgement, Judgement] | None = None
    deployed: Deployed | None = None
    selective: Sequence[Selection] = ()


def calibration(results: Results, rows: Sequence[Row], *, between: bool = False, first: int = 0) -> Calibration:
    """Return the effect of temperature scaling on finished configurations, on test data.

    Empty without stored predictions, or if there are more than MOST_VALUES logits.

    Args:
        results: the sweep.
        rows: rows of its leaderboard.
        between: also compare the first row with the second.
        first: seeds at which the sweep judged first, if it judged again after each further one; else 0.
    """
    try:
        # One trial is read first. Its size times the number of rows decides whether the others are read.
        trained = TrainedNetworks(results, [text_of(rows[0], "trial")])
        size = sum(logits.size for network in trained.all() for logits in network.logits.values())
        if size * len(rows) > MOST_VALUES:
            return Calibration({})
        trained = TrainedNetworks(results, [text_of(row, "trial") for row in rows])
    except (SweeperError, IndexError):  # predictions were deleted or never written; IndexError: no rows
        return Calibration({})
    stages = {
        text_of(row, "trial"): (trained.after(row, BEFORE), trained.after(row, TEMPERATURE))
        for row in rows
        if row["trial"] in trained.members
    }
    margin = margin_of(results)
    pairs = {trial: (after, before) for trial, (before, after) in stages.items() if before and after}
    # Of an imported network no further seed can be trained, so a single one is judged over test samples.
    alone = "imported" in results.manifest
    changes = judged(SHOWN, pairs, margin, alone=alone)
    first_two = zip(*[*stages.values()][:2], strict=True) if between else ()
    pair = [judged(SHOWN, {"": (first, second)}, margin).get("") for first, second in first_two]
    both = (pair[0], pair[1]) if len(pair) == 2 and pair[0] and pair[1] else None
    of_nll = objective_margin(results) if objective(results).column.endswith("nll") else 0.0
    # The objective may be the NLL after temperature scaling already.
    scaled = not objective(results).column.startswith(f"{CROSS_FITTED}temperature")
    judged_nll = deployed(stages, scaled=scaled, margin=of_nll, alone=alone, first=first)
    coverage = stated_coverage(results.specification.get("evaluation", {}).get("metrics") or ())
    return Calibration(changes, both, judged_nll, selections(stages, rows, coverage, alone=alone))


@dataclass(frozen=True)
class Estimates:
    """Two configurations of one network by every estimator.

    Attributes:
        network: the architecture.
        sides: for each side, the requested name and the configuration that represents it.
        stages: `uncalibrated`, then each post-hoc method in words → judgements of first minus second.
        changes: each side after a method, in words → judgements of after minus before.
        seeds: number of seeds of each side.
        samples: number of test samples.
        margin: largest difference in ECE that counts as no difference.
    """

    network: str
    sides: tuple[tuple[str, str], tuple[str, str]]
    stages: Mapping[str, Sequence[Judgement]]
    changes: Mapping[str, Sequence[Judgement]]
    seeds: tuple[int, int]
    samples: int
    margin: float

    def shown(self, stage: str) -> Judgement | None:
        """Return the judgement of the first screen's estimator at a stage; None if the stage has none."""
        return next((one for one in self.stages.get(stage, ()) if one.estimator == SHOWN), None)


#: (Sweep, loss or trial to compare); None means the sweep's best finished configuration.
Side = tuple[Results, str | None]


def estimates(
    first: Side, second: Side, network: str | None = None, known: Mapping[str, Judgement] = MappingProxyType({})
) -> list[Estimates]:
    """Return the comparisons of two sides, one for each network on which both have a finished configuration.

    The methods are temperature scaling and those of the first sweep that were fitted on validation data.

    Args:
        first, second: the sides. A loss is represented by its best finished configuration on each network.
        network: network to compare on; all by default.
        known: trial → the first screen's judgement of temperature scaling, which replaces the one computed here.

    Raises:
        SweeperError: no finished configuration matches a side, or there are no predictions of the same samples.
    """
    chosen = [best_on_networks(*side) for side in (first, second)]
    names = [asked or results.name for results, asked in (first, second)]
    shared = [name for name in chosen[0] if name in chosen[1] and network in (None, name)]
    if not shared:
        networks = ", ".join(sorted({*chosen[0], *chosen[1]}))
        raise SweeperError(
            f"{names[0]} and {names[1]} have no {network or 'network'} in common (finished on: {networks})",
            "name two losses, trials or sweeps that have finished configurations on one network",
        )
    compared = []
    for name in shared:
        rows = [on_networks[name] for on_networks in chosen]
        trials = [text_of(row, "trial") for row in rows]
        if trials[0] == trials[1] and first[0].folder == second[0].folder:
            raise SweeperError(f"{names[0]} and {names[1]} are both {trials[0]}", "name two different ones")
        sides = [TrainedNetworks(results, [trial]) for (results, _), trial in zip((first, second), trials, strict=True)]
        require_same_samples([member for side in sides for member in side.all()])
        stages, changes = dict[str, list[Judgement]](), dict[str, list[Judgement]]()
        before: list[Networks] = []
        for method in methods_of(first[0]):
            after = [side.after(row, method) for side, row in zip(sides, rows, strict=True)]
            words = "uncalibrated" if method == BEFORE else f"after {method_label(*method)}"
            before = before or after
            if not all(after):  # the method could not be fitted on one side
                continue
            stages[words] = _by_every(first[0], after[0], after[1])
            if method != BEFORE:
                for side, trial, own, raw in zip(names, trials, after, before, strict=True):
                    rows_of = _by_every(first[0], own, raw)
                    # The first screen's judgement is used, so that the page has only one verdict on each question. It
                    # judged all finalists together, which estimates the seeds' spread better.
                    said = known.get(trial) if method == TEMPERATURE else None
                    changes[f"{side} {words}"] = [said if said and row.estimator == SHOWN else row for row in rows_of]
        named = (names[0], trials[0]), (names[1], trials[1])
        seeds = len(before[0]), len(before[1])
        compared.append(Estimates(name, named, stages, changes, seeds, sides[0].samples, margin_of(first[0])))
    return compared


def _by_every(results: Results, first: Networks, second: Networks) -> list[Judgement]:
    every = (judged(name, {"": (first, second)}, margin_of(results, name)).get("") for name in ESTIMATORS)
    return [one for one in every if one is not None]


def best_on_networks(results: Results, asked: str | None = None) -> dict[str, Row]:
    """Return network → best finished configuration of the loss or trial `asked`; None means any configuration.

    Raises:
        SweeperError: there is none.
    """
    finished, best = leaderboard(results).finished, dict[str, Row]()
    for row in finished:
        if asked in (None, row["trial"], row["loss"]):
            best.setdefault(str(row["architecture"]), row)  # rows are best first
    if not best:
        known = sorted({str(row["loss"]) for row in finished})
        named = f" with the loss or trial {asked!r}{did_you_mean(asked, tuple(known))}" if asked is not None else ""
        raise SweeperError(
            f"the sweep {results.name!r} has no finished configuration{named}",
            f"losses with finished configurations: {', '.join(known) or 'none yet'}",
        )
    return best


def methods_of(results: Results) -> list[Method]:
    """Return the methods to compare, with options: none, temperature scaling, and the sweep's methods fitted on `val`.

    A user's own method is left out, because its code may be missing on this machine.
    """
    ours = [BEFORE, TEMPERATURE]
    for options in results.posthoc:
        name, fitted_on = str(options.pop("name")), options.pop(FITTED_ON_SPLIT, FITTED_ON)
        options.pop(LABEL, None)
        if fitted_on == FITTED_ON and not POSTHOC.is_own(name):
            method = (name, options_that_differ(POSTHOC[name], options))
            ours += [method] if method not in ours else []
    return ours
