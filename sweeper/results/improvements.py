"""Post-hoc improvement: what each post-hoc method gains over doing nothing, in proper scores on test data.

The gain is the uncalibrated network's score minus the score after the method; above 0, the method helps. A proper score
also counts what a method costs in accuracy or sharpness, which a calibration error alone does not see. Source: Berta,
Holzmüller, Bach & Jordan 2026, CalArena, arXiv:2605.30188, and its released code, which averages the gain over
experiments and counts data sets as independent. Here, a sweep is represented by its best finished configuration on each
network.

Intervals have the level 95 %, for all methods of a network together. For one sweep they are over its seeds and test
samples (`estimators`); with a single seed, over test samples for this network alone. For several, they are over data
sets (`sweeper.judging.means`): sweeps with the same test data, and a sweep's networks, count as one value, their mean.

Which method to use is decided by the NLL alone: one question, on test data after each method, with doing nothing among
the candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sweeper.core.cells import grouped, text_of
from sweeper.core.statistics.basics import spread
from sweeper.judging.judge import judge
from sweeper.judging.means import means
from sweeper.judging.question import Data, Question, Verdict, Verdicts
from sweeper.results import Results
from sweeper.results.estimators import SHOWN, Networks, Scored, measured
from sweeper.results.recalibration import method_label
from sweeper.results.verdicts import BEFORE, TrainedNetworks, best_on_networks, margin_of, methods_of
from trainables.posthoc import POSTHOC
from trainables.registry import entry_label

#: The scores of the table. The NLL comes first, because it orders the methods and decides between them. ECE is not
#: proper: a network that always predicts the classes' shares has an ECE of 0.
SCORES = ("NLL", "Brier", SHOWN)

#: The name of doing nothing.
NONE = "none"

#: The level of all intervals and verdicts.
LEVEL = 0.95


@dataclass(frozen=True)
class Gain:
    """The gain of a method in one score.

    Attributes:
        value: mean of before − after.
        interval: 95 % interval; None for a single data set of several, or if no spread is known.
        n: number of data sets, or of seeds.
        verdict: on the score after the method against before, BETTER if it is smaller; None for a mean over data sets.
    """

    value: float
    interval: tuple[float, float] | None
    n: int
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Improvement:
    """The gains of one method.

    Attributes:
        where: sweep and network, or `mean over data sets`.
        method: the post-hoc method in words.
        gains: score → gain.
    """

    where: str
    method: str
    gains: Mapping[str, Gain]


@dataclass(frozen=True)
class Methods:
    """The post-hoc methods of one network.

    Attributes:
        network: sweep and network in words.
        scores: score → method, NONE among them → mean over seeds. In two classes, ECE is that of the second class.
        improvements: the methods' gains.
        best: verdicts on which method has the smallest NLL, with NONE among the candidates.
        samples: number of test samples.
        positive: whether there are two classes.
        left_out: the sweep's own methods that are not among them, by their names in columns.
    """

    network: str
    scores: Mapping[str, Mapping[str, float]]
    improvements: Sequence[Improvement]
    best: Verdicts
    samples: int
    positive: bool
    left_out: Sequence[str] = ()


def methods_on(network: str, stages: Mapping[str, Networks], margins: Mapping[str, float]) -> Methods:
    """Judge the post-hoc methods of one network.

    Args:
        network: sweep and network in words.
        stages: NONE and the methods → test predictions by seed, after each.
        margins: score → largest difference that counts as none.
    """
    first = next(iter(stages[NONE].values()))
    positive = first.logits is not None and first.logits.shape[1] == 2
    of_class = {name: {seed: _second_class(of) for seed, of in every.items()} for name, every in stages.items()}
    data = {score: measured(of_class if positive and score == SHOWN else stages, score) for score in SCORES}
    methods = [name for name in stages if name != NONE]
    gains: dict[str, dict[str, Gain]] = {method: {} for method in methods}
    for score, of in data.items():
        asked = Question(
            methods, score, margin=margins[score], level=LEVEL, against=[NONE] * len(methods), among=len(methods),
            samples_only=True,
        )  # fmt: skip
        for method, verdict in judge(asked, of).of.items():
            gains[method][score] = _gain(of.values[NONE], of.values[method], verdict)
    question = Question([NONE, *methods], "test_nll", margin=margins["NLL"], level=LEVEL, samples_only=True)
    scores = {
        score: {name: spread([*by.values()]).mean for name, by in of.values.items()} for score, of in data.items()
    }
    rows = [Improvement(network, method, gains[method]) for method in methods]
    return Methods(network, scores, rows, judge(question, data["NLL"]), len(first.targets), positive)


def _second_class(of: Scored) -> Scored:
    """Return the probability of the second of two classes, and whether it is the class, in place of the top class's."""
    predicted = np.where(of.correct == 1, of.targets, 1 - of.targets)
    return replace(
        of, confidence=np.where(predicted == 1, of.confidence, 1 - of.confidence), correct=of.targets.astype(float)
    )


def _gain(before: Mapping[int, float], after: Mapping[int, float], verdict: Verdict) -> Gain:
    interval = (-verdict.high, -verdict.low) if verdict.rival else None
    return Gain(spread([*before.values()]).mean - spread([*after.values()]).mean, interval, len(after), verdict)


def mean_gain(of_data: Sequence[Sequence[float]]) -> Gain:
    """Return the mean gain over data sets, from the gains on each."""
    values = {"gain": {at: spread(gains).mean for at, gains in enumerate(of_data)}}
    mean = means(Question(["gain"], "gain", "max", level=LEVEL), Data(values))["gain"]
    return Gain(mean.value, None if mean.seeds < 2 else (mean.low, mean.high), mean.seeds)


def methods_of_sweep(results: Results) -> list[Methods]:
    """Return the post-hoc methods of a sweep's best finished configuration on each network.

    The methods are temperature scaling and the sweep's own that are fitted on validation data; one that cannot be
    fitted is left out.

    Raises:
        SweeperError: there is no finished configuration, or there are no stored test predictions.
    """
    judged, margins = list[Methods](), {score: margin_of(results, score) for score in SCORES}
    for network, row in best_on_networks(results).items():
        trained = TrainedNetworks(results, [text_of(row, "trial")])
        known = [(method, after) for method in methods_of(results) if (after := trained.after(row, method))]
        if len(known) > 1:
            stages = {NONE if method == BEFORE else method_label(*method): after for method, after in known}
            names = {name for (name, _), _ in known}
            left_out = [entry_label(entry) for entry in results.posthoc if entry["name"] not in names]
            judged.append(replace(methods_on(f"{results.name}, {network}", stages, margins), left_out=left_out))
    return judged


def not_judged(sweeps: Sequence[Results]) -> list[str]:
    """Return the labels of users' own methods. `improvements` leaves them out, because reading runs no such code."""
    entries = [entry for results in sweeps for entry in results.posthoc if POSTHOC.is_own(str(entry["name"]))]
    return [*dict.fromkeys(entry_label(entry) for entry in entries)]


def improvements(sweeps: Sequence[Results]) -> list[Improvement]:
    """Return the gain of each method on each network, and its mean over data sets if sweeps have different ones.

    Raises:
        SweeperError: a sweep has no finished configuration or no stored predictions.
    """
    on_data = [
        (str(results.manifest.get("dataset", {}).get("split_hash") or results.name), one)
        for results in sweeps
        for methods in methods_of_sweep(results)
        for one in methods.improvements
    ]
    each = [one for _, one in on_data]
    if len({data for data, _ in on_data}) < 2:
        return each
    averaged = list[Improvement]()
    for method, rows in grouped(on_data, lambda row: row[1].method).items():
        by_data = [[one for _, one in same] for same in grouped(rows, lambda row: row[0]).values()]
        gains = {s: mean_gain([[one.gains[s].value for one in same] for same in by_data]) for s in SCORES}
        averaged.append(Improvement("mean over data sets", method, gains))
    return [*each, *averaged]
