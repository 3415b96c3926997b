"""Whether one loss is better than another, whatever the estimator: from stored logits, nothing is trained.

A paper's "A is better calibrated than B" may hold for ECE of 15 bins and not for 10, before temperature scaling and not
after, or hang on one seed. A certificate recomputes the difference for every estimator, before and after each post-hoc
method. It counts as decided where its 95 % interval excludes zero and its sign is the same without each seed, and on
each half of the validation data with the method fitted on the other half.

The interval's variance is that of the mean over seeds plus that of the test samples, which all seeds share; a spread
over seeds alone takes the test set for the whole truth. The latter is the delete-a-group jackknife's (Kott 2001, "The
delete-a-group jackknife", J. Official Statistics 17, Eq. 1), the degrees of freedom are Satterthwaite's. Assumed: seeds
are independent, so are samples, and differences of an estimator that its bias shifts alike on both sides. The best
configuration of a loss was chosen on validation data; choosing among few on the same data can still favour one side on
the halves, never on test data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.analysis.predictions import FITTED_ON, MEASURED_ON, StoredPredictions, members_of, require_same_samples
from sweeper.analysis.recalibration import UNCALIBRATED, method_label, options_that_differ
from sweeper.analysis.statistics.differences import Mean, difference_of, mean_of
from sweeper.core.errors import SweeperError
from sweeper.results import Results
from sweeper.results.leaderboard import Leaderboard, leaderboard
from sweeper.text.cells import Row, int_of, text_of
from sweeper.text.labels import plural
from trainables.metrics.base import SMALLEST_PROBABILITY, Floats, Integers, UnusablePredictions, softmax64
from trainables.metrics.evaluate import confidence_metrics
from trainables.metrics.refinement import refinement
from trainables.metrics.smooth import smooth_calibration_error
from trainables.posthoc import POSTHOC, fit
from trainables.posthoc.focal_map import with_training_gamma
from trainables.registry import FITTED_ON as FITTED_ON_SPLIT, LABEL, HyperparameterValue, hyperparameter_values
from trainables.registry.names import did_you_mean

#: Of the jackknife: 19 degrees of freedom, and a twentieth of the samples left out at a time keeps the bins filled.
GROUPS = 20

#: Logits of one side's test samples and seeds up to which a report certifies: about five seconds of a core.
MOST_VALUES = 400_000

BETTER, WORSE, UNDECIDED = "✓", "✗", "undecided"


@dataclass(frozen=True)
class Scored:
    """One network's predictions on N samples: what the estimators are computed from.

    Attributes:
        confidence: of the predicted class [N].
        correct: whether it is the target's [N].
        nll, brier: of each sample [N].
        targets: [N].
        logits: [N, K] of the network itself; none after a post-hoc method, which refinement does not depend on.
    """

    confidence: Floats
    correct: Floats
    nll: Floats
    brier: Floats
    targets: Integers
    logits: Floats | None

    @staticmethod
    def of(probabilities: Floats, targets: Integers, logits: Floats | None = None) -> Scored:
        """Return what probabilities [N, K] come to."""
        top, own = probabilities.argmax(axis=1), probabilities[np.arange(len(targets)), targets]
        brier = (probabilities**2).sum(axis=1) - 2 * own + 1
        nll = -np.log(np.maximum(own, SMALLEST_PROBABILITY))
        return Scored(probabilities.max(axis=1), (top == targets).astype(float), nll, brier, targets, logits)

    def at(self, rows: Integers) -> Scored:
        """Return the samples of these rows."""
        return replace(self, **{name: values[rows] for name, values in vars(self).items() if values is not None})


def _binned(name: str, bins: int) -> Callable[[Scored], float]:
    return lambda of: confidence_metrics(of.confidence, of.correct.astype(bool), bins)[name]


#: Smaller is better by each.
ESTIMATORS: Mapping[str, Callable[[Scored], float]] = {
    **{f"ECE, {bins} bins": _binned("ece", bins) for bins in (10, 15, 20)},
    "equal-mass ECE, 15 bins": _binned("ada_ece", 15),
    "smooth ECE": lambda of: smooth_calibration_error(of.confidence, of.correct),
    "NLL": lambda of: float(of.nll.mean()),
    "Brier": lambda of: float(of.brier.mean()),
    "refinement NLL": lambda of: math.nan if of.logits is None else refinement(of.logits, of.targets).nll,
}


@dataclass(frozen=True)
class Network:
    """One trained network of a side: its seed, its predictions on test data and on either half of validation data."""

    seed: int
    test: Scored
    halves: tuple[Scored, Scored]


@dataclass(frozen=True)
class Judgement:
    """One estimator at one stage.

    Attributes:
        estimator: its name in ESTIMATORS.
        difference: first minus second, over seeds, on test data; negative where the first is better.
        verdict: BETTER (the first), WORSE or UNDECIDED.
        reason: why it is undecided, in a few words; empty where it is not.
    """

    estimator: str
    difference: Mean
    verdict: str
    reason: str


@dataclass(frozen=True)
class Certificate:
    """Two configurations of one network, compared by every estimator before and after each post-hoc method.

    Attributes:
        network: the architecture.
        sides: what was asked for, and the configuration that stands for it.
        stages: post-hoc method in words → its judgements; `uncalibrated` first.
        seeds: of either side.
        paired: whether both were trained on the same seeds.
        samples: of test data.
    """

    network: str
    sides: tuple[tuple[str, str], tuple[str, str]]
    stages: Mapping[str, Sequence[Judgement]]
    seeds: tuple[int, int]
    paired: bool
    samples: int

    def rows(self) -> list[list[str]]:
        """Return for each estimator that has a value its name and a cell of each stage."""
        found = [
            [name, *(next((_cell(one) for one in each if one.estimator == name), "") for each in self.stages.values())]
            for name in ESTIMATORS
        ]
        return [row for row in found if any(row[1:])]

    def sentence(self) -> str:
        """Return the answer in one sentence."""
        (first, a), (second, b) = self.sides
        parts = []
        for stage, found in self.stages.items():
            counts = [sum(each.verdict == verdict for each in found) for verdict in (BETTER, WORSE, UNDECIDED)]
            said = zip(counts, ("better", "worse", "undecided"), strict=True)
            parts.append(f"{stage}: {', '.join(f'{count} {word}' for count, word in said if count)}")
        seeds = plural(self.seeds[0], "seed") if self.paired else f"{self.seeds[0]} and {self.seeds[1]} seeds"
        return (
            f"{self.network}: {first} ({a}) against {second} ({b}), by estimators, {'; '.join(parts)}. "
            f"{seeds}{', paired' if self.paired else ''}, {self.samples:,} test samples."
        )


def judged(estimator: str, first: Sequence[Network], second: Sequence[Network]) -> Judgement | None:
    """Return whether `first` is better than `second` by one estimator; None where it has no value."""
    measure = ESTIMATORS[estimator]
    sides = [{each.seed: each for each in side} for side in (first, second)]
    common = sorted(set(sides[0]) & set(sides[1]))
    if len(common) == len(sides[0]) == len(sides[1]):
        sides = [{seed: side[seed] for seed in common} for side in sides]
    values = [np.array([measure(each.test) for each in side.values()]) for side in sides]
    if not all(np.isfinite(side).all() for side in values):
        return None
    paired = list(sides[0]) == list(sides[1])
    over_seeds = mean_of(values[0] - values[1]) if paired else difference_of(*values)
    if not over_seeds.freedom:
        return Judgement(estimator, over_seeds, UNDECIDED, "one seed says nothing of others")
    difference = with_samples(over_seeds, sample_error([*sides[0].values()], [*sides[1].values()], measure))
    interval = difference.interval()
    assert interval is not None
    sign = np.sign(difference.value)
    if interval[0] <= 0 <= interval[1]:
        return Judgement(estimator, difference, UNDECIDED, "the interval includes 0")
    if (np.sign(_without_each(*values, paired=paired)) != sign).any():
        return Judgement(estimator, difference, UNDECIDED, "one seed decides")
    for half in (0, 1):
        means = [np.mean([measure(each.halves[half]) for each in side.values()]) for side in sides]
        if np.sign(means[0] - means[1]) != sign:
            return Judgement(estimator, difference, UNDECIDED, "half of the validation data disagrees")
    return Judgement(estimator, difference, BETTER if sign < 0 else WORSE, "")


def _without_each(first: Floats, second: Floats, *, paired: bool) -> Floats:
    """Return the difference of the means without each seed in turn."""
    if paired:
        return _means_without_each(first - second)
    return np.append(_means_without_each(first) - second.mean(), first.mean() - _means_without_each(second))


def _means_without_each(values: Floats) -> Floats:
    return np.asarray((values.sum() - values) / (len(values) - 1))


def sample_error(first: Sequence[Network], second: Sequence[Network], measure: Callable[[Scored], float]) -> float:
    """Return the standard error of the mean difference that the test samples cause: the delete-a-group jackknife's."""
    samples = len(first[0].test.targets)
    group = np.random.default_rng(0).permutation(samples) % min(GROUPS, samples)
    kept = [np.flatnonzero(group != each) for each in range(group.max() + 1)]
    means = [[np.mean([measure(each.test.at(rows)) for each in side]) for rows in kept] for side in (first, second)]
    return math.sqrt(len(kept) - 1) * float(np.diff(means, axis=0).std())


def with_samples(over_seeds: Mean, error: float) -> Mean:
    """Return a mean over seeds with the test samples' error added; skewness stays the seeds' third moment."""
    total = math.hypot(over_seeds.error, error)
    if not total:  # both sides predict the same
        return over_seeds
    freedom = total**4 / (over_seeds.error**4 / over_seeds.freedom + error**4 / (GROUPS - 1))
    return replace(
        over_seeds, error=total, skewness=over_seeds.skewness * (over_seeds.error / total) ** 3, freedom=freedom
    )


Methods = Sequence[tuple[str, dict[str, object]]]


#: A sweep, and the loss or trial of it that is compared; `None` for its best finished configuration.
Side = tuple[Results, str | None]


def certify(first: Side, second: Side, network: str | None = None, methods: Methods = ()) -> list[Certificate]:
    """Return a certificate for each network on which both sides have a finished configuration.

    Args:
        first, second: a loss stands for its best finished configuration on each network.
        network: only this one.
        methods: post-hoc methods with their options; by default none, temperature scaling and those of the first sweep.

    Raises:
        SweeperError: a side that no finished configuration has, or no predictions of the same samples to compute from.
    """
    chosen = [_finished(*side) for side in (first, second)]
    names = [asked or results.name for results, asked in (first, second)]
    shared = [name for name in chosen[0] if name in chosen[1] and network in (None, name)]
    if not shared:
        known = ", ".join(sorted({*chosen[0], *chosen[1]}))
        raise SweeperError(
            f"{names[0]} and {names[1]} have no {network or 'network'} in common (finished on: {known})",
            "name two losses, trials or sweeps that ran to the end on one network",
        )
    certificates = []
    for name in shared:
        rows = [on_networks[name] for on_networks in chosen]
        trials = [text_of(row, "trial") for row in rows]
        if trials[0] == trials[1] and first[0].folder == second[0].folder:
            raise SweeperError(f"{names[0]} and {names[1]} are both {trials[0]}", "name two that differ")
        sides = [members_of(results, [trial]) for (results, _), trial in zip((first, second), trials, strict=True)]
        require_same_samples([member for side in sides for member in side])
        seeds = [_seeds(results) for results, _ in (first, second)]
        own = [{seeds[at][each.trial, each.replicate] for each in side} for at, side in enumerate(sides)]
        stages = {}
        for method, options in methods or _methods(first[0]):
            networks = [_networks(*side, method, options) for side in zip(sides, rows, seeds, strict=True)]
            if all(networks):
                judgements = (judged(estimator, *networks) for estimator in ESTIMATORS)
                label = "uncalibrated" if method == UNCALIBRATED else f"after {method_label(method, options)}"
                stages[label] = [judgement for judgement in judgements if judgement is not None]
        named = (names[0], trials[0]), (names[1], trials[1])
        samples = len(sides[0][0].targets[MEASURED_ON])
        certificates.append(Certificate(name, named, stages, (len(own[0]), len(own[1])), own[0] == own[1], samples))
    return certificates


def of_the_best(results: Results, board: Leaderboard) -> Certificate | None:
    """Return the best loss on the winner's network against the next best one, before and after temperature scaling.

    None where there is one loss or one seed, without stored predictions, and where that takes longer than a report may.
    """
    on_one = [row for row in board.finished if row["architecture"] == board.finished[0]["architecture"]]
    losses = list(dict.fromkeys(text_of(row, "loss") for row in on_one))
    if len(losses) < 2 or int_of(on_one[0], "replicates") < 2:
        return None
    try:
        values = sum(each.logits[MEASURED_ON].size for each in members_of(results, [text_of(on_one[0], "trial")]))
        if values > MOST_VALUES:
            return None
        methods = [(UNCALIBRATED, {}), TEMPERATURE]
        return certify((results, losses[0]), (results, losses[1]), text_of(on_one[0], "architecture"), methods)[0]
    except SweeperError:  # predictions were deleted, or never written
        return None


def _finished(results: Results, asked: str | None) -> dict[str, Row]:
    """Return network → the best finished configuration that `asked`, a loss or a trial, names; `None` names all."""
    finished, best = leaderboard(results).finished, dict[str, Row]()
    for row in finished:
        if asked in (None, row["trial"], row["loss"]):
            best.setdefault(str(row["architecture"]), row)
    if not best:
        known = sorted({str(row["loss"]) for row in finished})
        named = "" if asked is None else f" has the loss, or is the trial, {asked!r}{did_you_mean(asked, tuple(known))}"
        raise SweeperError(
            f"no configuration of {results.name!r} that ran to the end{named}",
            f"losses with finished configurations: {', '.join(known) or 'none yet'}",
        )
    return best


def _seeds(results: Results) -> dict[tuple[str, int], int]:
    rows = results.rows("SELECT DISTINCT trial, replicate, seed FROM trials")
    return {(text_of(row, "trial"), int_of(row, "replicate")): int_of(row, "seed") for row in rows}


def _methods(results: Results) -> Methods:
    """Return no method, temperature scaling, and what else of ours the sweep fitted on `val`, each with its options."""
    ours = [TEMPERATURE]
    for each in results.posthoc:
        name, fitted_on = str(each.pop("name")), each.pop(FITTED_ON_SPLIT, FITTED_ON)
        each.pop(LABEL, None)
        if fitted_on == FITTED_ON and not POSTHOC.is_own(name):
            method = (name, options_that_differ(POSTHOC[name], each))
            ours += [method] if method not in ours else []
    return [(UNCALIBRATED, {}), *ours]


TEMPERATURE: tuple[str, dict[str, object]] = ("temperature", {})


def _networks(
    side: Sequence[StoredPredictions],
    row: Row,
    seeds: Mapping[tuple[str, int], int],
    method: str,
    options: Mapping[str, object],
) -> list[Network]:
    """Return a side's networks after a method; none where it cannot be fitted."""
    loss = {"name": row["loss"], "gamma": row.get("config_loss_gamma")}
    given = with_training_gamma(method, hyperparameter_values(options), loss)
    found = []
    try:
        for each in side:
            folds = np.arange(len(each.targets[FITTED_ON])) % 2
            first, second = (_after(each, method, given, folds != half, FITTED_ON, folds == half) for half in (0, 1))
            test = _after(each, method, given, slice(None), MEASURED_ON, slice(None))
            found.append(Network(seeds[each.trial, each.replicate], test, (first, second)))
    except UnusablePredictions:
        return []
    return found


def _after(
    of: StoredPredictions,
    method: str,
    options: Mapping[str, HyperparameterValue],
    fit_on: np.ndarray | slice,
    split: str,
    rows: np.ndarray | slice,
) -> Scored:
    """Return predictions of these rows of a split after a method fitted on these validation samples."""
    logits, targets = of.logits[split][rows].astype(np.float64), of.targets[split][rows]
    if method == UNCALIBRATED:
        return Scored.of(softmax64(logits), targets, logits)
    calibrator = fit(method, of.logits[FITTED_ON][fit_on], of.targets[FITTED_ON][fit_on], **options)
    return Scored.of(calibrator(logits), targets)


def view(certificates: Sequence[Certificate]) -> RenderableType:
    """Return a table for each network: estimators down, post-hoc methods across; then the answer in one sentence."""
    parts: list[RenderableType] = []
    for each in certificates:
        (first, _), (second, _) = each.sides
        title = f"{each.network}: is {first} better than {second}?"
        table = Table("estimator", *each.stages, title=title, title_justify="left")
        for row in each.rows():
            table.add_row(*row)
        parts += [table, Text(each.sentence()), Text("")]
    return Group(*parts, Text(CAPTION))


CAPTION = (
    f"{BETTER} the first is better, {WORSE} the second, ? undecided; differences (first − second, smaller is "
    "better by every estimator) with 95 % intervals over seeds and test samples. Decided only where the interval "
    "excludes 0 and neither a seed left out nor a half of the validation data turns the sign."
)


def _cell(one: Judgement) -> str:
    interval = one.difference.interval()
    limits = "" if interval is None else f" ({interval[0]:+.4f} … {interval[1]:+.4f})"
    mark = one.verdict if one.verdict != UNDECIDED else "?"
    return f"{mark} {one.difference.value:+.4f}{limits}".replace("-", "−")
