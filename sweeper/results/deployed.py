"""The finalists as they are used, with or without temperature scaling, judged on test data.

The order of two losses can be another one with temperature scaling than without: label smoothing and focal loss have a
large NLL without it, and may have the smallest with it. The objective of a sweep asks one of the two questions, on
validation data. So the finalists are judged once more, on test data, by the other question.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sweeper.judging.judge import judge
from sweeper.judging.means import Mean, means
from sweeper.judging.question import LEVEL, Data, Question, Verdict, Verdicts
from sweeper.results.estimators import Networks, Scored, measured

#: The level of the interval of an accuracy.
INTERVAL = 0.95


@dataclass(frozen=True)
class Deployed:
    """The finalists without and with temperature scaling.

    Attributes:
        verdicts: verdicts on which finalist has the smallest test NLL.
        scaled: whether they are about the networks with temperature scaling.
        nll: trial → mean test NLL before and after.
        accuracy: trial → mean test accuracy with its interval; temperature scaling does not change it.
        hits: test accuracy by trial and seed.
    """

    verdicts: Verdicts
    scaled: bool
    nll: Mapping[str, tuple[float, float]]
    accuracy: Mapping[str, Mean]
    hits: Data = field(default_factory=lambda: Data({}))

    def accuracy_against(self, reference: str, trials: Sequence[str]) -> Mapping[str, Verdict]:
        """Return trial → verdict on its test accuracy against a reference; empty if the reference is unknown."""
        known = [trial for trial in trials if trial in self.accuracy and trial != reference]
        if reference not in self.accuracy or not known:
            return {}
        question = Question(known, "test_accuracy", "max", level=INTERVAL, against=[reference] * len(known))
        return judge(question, self.hits).of


#: Trial → its test predictions before and after temperature scaling.
Stages = Mapping[str, tuple[Networks, Networks]]


def deployed(
    stages: Stages, *, scaled: bool = True, margin: float = 0.0, alone: bool = False, first: int = 0
) -> Deployed | None:
    """Judge finalists by their test NLL; None if none has finite values without and with temperature scaling.

    Args:
        stages: the finalists' predictions.
        scaled: judge the networks with temperature scaling, else without.
        margin: largest difference in NLL that counts as none.
        alone: judge single networks over test samples: for these networks, not for other seeds.
        first: seeds at which the sweep judged first, if it judged again after each further one; else 0.
    """
    known = {trial: sides for trial, sides in stages.items() if all(sides)}
    nlls = [measured({trial: sides[at] for trial, sides in known.items()}, "NLL") for at in (0, 1)]
    finite = [trial for trial in known if all(math.isfinite(_mean(data, trial)) for data in nlls)]
    if not finite:
        return None
    # the objective is the screen's other question
    asked = Question(
        finite, "test_nll", margin=margin, relative=True, level=LEVEL, among=2, samples_only=alone, first=first
    )
    nll = {trial: (_mean(nlls[0], trial), _mean(nlls[1], trial)) for trial in finite}
    hits = measured({trial: known[trial][0] for trial in finite}, _accuracy)
    accuracy = means(Question(finite, "test_accuracy", "max", level=INTERVAL, samples_only=alone), hits)
    return Deployed(judge(asked, nlls[scaled]), scaled, nll, accuracy, hits)


def _mean(data: Data, trial: str) -> float:
    return math.fsum(data.values[trial].values()) / len(data.values[trial])


def _accuracy(of: Scored) -> float:
    return float(of.correct.mean())
