"""The finalists as they are used, with temperature scaling, judged on test data.

The objective of a sweep is measured on validation data, mostly before any post-hoc method. Most networks are used with
temperature scaling, and the order of two losses can be another one then: label smoothing and focal loss have a large
NLL without it, and may have the smallest with it. So the finalists are judged once more, by their test NLL with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sweeper.judging.judge import judge
from sweeper.judging.means import Mean, means
from sweeper.judging.question import LEVEL, Data, Floats, Question, Verdicts
from sweeper.judging.samples import left_out
from sweeper.results.estimators import ESTIMATORS, Networks, Scored

#: The level of the interval of an accuracy.
INTERVAL = 0.95


@dataclass(frozen=True)
class Deployed:
    """The finalists without and with temperature scaling.

    Attributes:
        after: verdicts on which finalist has the smallest test NLL after temperature scaling.
        nll: trial → mean test NLL before and after.
        accuracy: trial → mean test accuracy with its interval; temperature scaling does not change it.
    """

    after: Verdicts
    nll: Mapping[str, tuple[float, float]]
    accuracy: Mapping[str, Mean]


#: Trial → its test predictions before and after temperature scaling.
Stages = Mapping[str, tuple[Networks, Networks]]


def deployed(stages: Stages, *, margin: float = 0.0, alone: bool = False, first: int = 0) -> Deployed | None:
    """Judge finalists by their test NLL with temperature scaling; None if none has finite values without and with it.

    Args:
        stages: the finalists' predictions.
        margin: largest difference in NLL that counts as none.
        alone: judge single networks over test samples: for these networks, not for other seeds.
        first: seeds at which the sweep judged first, if it judged again after each further one; else 0.
    """
    known = {trial: sides for trial, sides in stages.items() if all(sides)}
    measured = [_data({trial: sides[at] for trial, sides in known.items()}, ESTIMATORS["NLL"]) for at in (0, 1)]
    finite = [trial for trial in known if all(math.isfinite(_mean(data, trial)) for data in measured)]
    if not finite:
        return None
    # the objective is the screen's other question
    asked = Question(
        finite, "test_nll", margin=margin, relative=True, level=LEVEL, among=2, samples_only=alone, first=first
    )
    nll = {trial: (_mean(measured[0], trial), _mean(measured[1], trial)) for trial in finite}
    hits = Question(finite, "test_accuracy", "max", level=INTERVAL, samples_only=alone)
    accuracy = means(hits, _data({trial: known[trial][0] for trial in finite}, _accuracy))
    return Deployed(judge(asked, measured[1]), nll, accuracy)


def _mean(data: Data, trial: str) -> float:
    return math.fsum(data.values[trial].values()) / len(data.values[trial])


def _accuracy(of: Scored) -> float:
    return float(of.correct.mean())


def _data(networks: Mapping[str, Networks], measure: Callable[[Scored], float]) -> Data:
    """Return a metric of every network, on all test samples and without each group of them."""

    def without(of: Scored) -> Floats:
        return left_out(lambda rows: measure(of.at(rows)), len(of.targets))

    return Data(
        {trial: {seed: measure(of) for seed, of in every.items()} for trial, every in networks.items()},
        {trial: {seed: without(of) for seed, of in every.items()} for trial, every in networks.items()},
    )
