"""Risk-coverage curves of the finalists: the error rate among the samples that a network is most sure of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sweeper.core.cells import Row, text_of
from sweeper.core.errors import SweeperError
from sweeper.core.labels import plural
from sweeper.judging.means import means
from sweeper.judging.question import Data, Question
from sweeper.judging.samples import left_out
from sweeper.reporting.figures.base import FIGURES, Figure, Json, Panel, colour, fields, mark, quantity
from sweeper.results import Results
from sweeper.results.estimators import Networks, Scored
from sweeper.results.leaderboard import leaderboard
from sweeper.results.selection import SELECTIVE
from sweeper.results.verdicts import BEFORE, MOST_VALUES, TEMPERATURE, TrainedNetworks, best_on_networks
from trainables.metrics.base import Floats, Integers
from trainables.metrics.out_of_distribution import risk_among

#: The coverages of the curves. Below a tenth, a curve is of single errors.
COVERAGES = np.linspace(0.1, 1.0, 19)


@FIGURES.add(
    "risk_coverage",
    place=55,
    absent="Risk-coverage curves: no finished configuration with a selective loss has stored predictions, or too many.",
    aliases=("selective",),
)
def draw(results: Results) -> Figure | None:
    """Return the curves of each loss's best configuration on the leader's network, before and after temperature."""
    board = leaderboard(results)
    if board.best is None or not any(row["loss"] in SELECTIVE for row in board.finished):
        return None
    network = str(board.best["architecture"])
    losses = dict.fromkeys(str(row["loss"]) for row in board.finished)
    chosen = {loss: rows[network] for loss in losses if network in (rows := best_on_networks(results, loss))}
    try:
        trained = TrainedNetworks(results, [text_of(row, "trial") for row in chosen.values()])
    except (SweeperError, IndexError):  # predictions were deleted or never written
        return None
    if sum(logits.size for one in trained.all() for logits in one.logits.values()) > MOST_VALUES:
        return None
    stages = {"before": BEFORE, "after temperature scaling": TEMPERATURE}
    panels = [
        panel(f"{network}: {words}", {loss: trained.after(row, method) for loss, row in known(chosen, trained).items()})
        for words, method in stages.items()
    ]
    return Figure(
        title="Risk-coverage curves",
        caption=(
            "Error rate among the share of test samples with the highest confidence, for the best configuration of "
            f"each loss on {network}: mean over seeds, with the 95 % interval for other seeds and test samples. "
            f"{plural(trained.samples, 'test sample')}."
        ),
        sql=[board.sql],
        panels=panels,
        tables=["predictions", "evaluations", "trials"],
        legend=[*chosen],
    )


def known(rows: Mapping[str, Row], trained: TrainedNetworks) -> dict[str, Row]:
    """Return the configurations that have stored predictions."""
    return {loss: row for loss, row in rows.items() if row["trial"] in trained.members}


def panel(heading: str, networks: Mapping[str, Networks]) -> Panel:
    """Return the panel of one stage: a curve with its band for each loss."""
    rows = risks({loss: of for loss, of in networks.items() if of})
    by = colour("loss", [*networks])
    said = fields("loss", coverage="coverage", risk="risk")
    layers = [
        mark("area", [row for row in rows if "high" in row], look={"opacity": 0.15}, color=by, y={"field": "low"},
             y2={"field": "high"}),
        mark("line", rows, look={"strokeWidth": 2, "point": "transparent"}, color=by, tooltip=said),
    ]  # fmt: skip
    return Panel(heading, layers, quantity("coverage", "coverage"), quantity("risk", "error rate", zero=True))


def risks(networks: Mapping[str, Networks]) -> list[Json]:
    """Return a row for each loss and coverage: mean risk, and its interval if there are several seeds."""
    curves = {loss: {seed: curve(of) for seed, of in every.items()} for loss, every in networks.items()}
    without = {loss: {seed: _without(of) for seed, of in every.items()} for loss, every in networks.items()}
    rows: list[Json] = []
    for at, coverage in enumerate(COVERAGES.tolist()):
        here = {loss: {seed: float(of[at]) for seed, of in every.items()} for loss, every in curves.items()}
        left = {loss: {seed: of[:, at] for seed, of in every.items()} for loss, every in without.items()}
        for loss, mean in means(Question([*here], "risk", level=0.95), Data(here, left)).items():
            # Where no seed has an error, their spread is 0, and a band of no width would look like certainty.
            between = {"low": max(0.0, mean.low), "high": mean.high} if mean.high > mean.low else {}
            rows.append({"loss": loss, "coverage": round(coverage, 3), "risk": mean.value, **between})
    return rows


def curve(of: Scored) -> Floats:
    """Return the risk at each of the coverages."""
    wrong = of.correct == 0
    return np.array([risk_among(of.confidence, wrong, coverage) for coverage in COVERAGES])


def _without(of: Scored) -> Floats:
    def measure(rows: Integers) -> Floats:
        return curve(of.at(rows))

    return left_out(measure, len(of.targets))
