"""Selective prediction of the finalists: AURC, and accuracy on the share of samples that a network is most sure of.

A selective loss is trained to rank samples by confidence, so NLL and ECE do not say whether it does what it is for. All
finalists are measured at one coverage, because accuracies at the losses' own coverages could not be compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sweeper.core.cells import Row, text_of
from sweeper.judging.judge import judge
from sweeper.judging.question import BETTER, WORSE, Mode, Question, Verdict
from sweeper.results.deployed import INTERVAL, Stages
from sweeper.results.estimators import Scored, measured
from trainables.metrics.evaluate import confidence_metrics
from trainables.metrics.out_of_distribution import COVERAGE, risk_among

#: The losses that weigh samples by their rank of confidence.
SELECTIVE = ("selective_risk", "aurc")

#: The judged quantities and their better side.
AURC, ACCURACY = "AURC", "accuracy"
MODES: Mapping[str, Mode] = {ACCURACY: "max", AURC: "min"}


@dataclass(frozen=True)
class Ranked:
    """One quantity of a finalist on test data, before and after temperature scaling.

    Attributes:
        means: mean over seeds before and after.
        verdicts: verdicts against the rival before and after; empty without a rival.
    """

    means: tuple[float, float]
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True)
class Selection:
    """A finalist with a selective loss, against the best finalist with another loss on its network.

    Attributes:
        trial: its name.
        rival: the other's name; empty if there is none.
        coverage: share of samples that are predicted, those with the highest confidence.
        accuracy: accuracy on these samples.
        aurc: area under the risk-coverage curve.
    """

    trial: str
    rival: str
    coverage: float
    accuracy: Ranked
    aurc: Ranked

    @property
    def is_open(self) -> bool:
        """Whether no comparison with the rival is decided."""
        return not {verdict.code for one in (self.accuracy, self.aurc) for verdict in one.verdicts} & {BETTER, WORSE}


def stated_coverage(metrics: Sequence[Mapping[str, float | str]]) -> float:
    """Return the coverage of `risk_at_coverage` among a sweep's resolved metrics; the metric's default without it.

    Example:
        >>> stated_coverage([{"name": "risk_at_coverage", "coverage": 0.9}]), stated_coverage([])
        (0.9, 0.8)
    """
    return float(next((one["coverage"] for one in metrics if one.get("name") == "risk_at_coverage"), COVERAGE))


def selections(stages: Stages, rows: Sequence[Row], coverage: float, *, alone: bool = False) -> list[Selection]:
    """Return the selective finalists' AURC and accuracy at a coverage.

    Args:
        stages: the finalists' predictions.
        rows: their rows, best first on each network.
        coverage: share of samples that are predicted.
        alone: judge single networks over test samples.
    """
    known = [row for row in rows if all(stages.get(text_of(row, "trial"), ()) or (None,))]
    judged = []
    for row in known:
        if row["loss"] in SELECTIVE:
            others = (one for one in known if one["architecture"] == row["architecture"])
            rival = next((text_of(one, "trial") for one in others if one["loss"] not in SELECTIVE), "")
            judged.append(_selection(stages, text_of(row, "trial"), rival, coverage, alone=alone))
    return judged


def _selection(stages: Stages, trial: str, rival: str, coverage: float, *, alone: bool) -> Selection:
    def accuracy(of: Scored) -> float:
        return 1.0 - risk_among(of.confidence, of.correct == 0, coverage)

    def ranked(name: str) -> Ranked:
        means, verdicts = list[float](), list[Verdict]()
        for at in (0, 1):
            sides = {one: stages[one][at] for one in (trial, rival) if one}
            data = measured(sides, accuracy if name == ACCURACY else _aurc)
            means.append(math.fsum(data.values[trial].values()) / len(data.values[trial]))
            question = Question(
                [trial], f"test_{name}", MODES[name], level=INTERVAL, against=[rival], among=2, samples_only=alone
            )
            verdicts += [judge(question, data).of[trial]] if rival else []
        return Ranked((means[0], means[1]), tuple(verdicts))

    return Selection(trial, rival, coverage, ranked(ACCURACY), ranked(AURC))


def _aurc(of: Scored) -> float:
    return float(confidence_metrics(of.confidence, of.correct.astype(np.bool_), bins=1)["aurc"])
