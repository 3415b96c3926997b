"""The finished networks of a sweep with their stored predictions, by the sweep's objective, best first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeper.analysis.recalibration.predictions import PredictionFiles, StoredPredictions
from sweeper.core.errors import SweeperError
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.text.cells import int_of, text_of
from trainables.metrics.probabilities import Integers

FITTED_ON, MEASURED_ON = "val", "test"


@dataclass(frozen=True)
class Member:
    """One network: a replicate of a configuration at its last evaluation.

    Attributes:
        trial, replicate: which.
        logits: of validation and test data, float32 [N, K].
        targets: the same for all members, [N].
    """

    trial: str
    replicate: int
    logits: dict[str, NDArray[np.float32]]
    targets: dict[str, Integers]


def finished_members(results: Results, most: int) -> list[Member]:
    """Return the networks of the best configurations that ran to the end, configuration by configuration.

    Args:
        results: of the sweep.
        most: configurations; of more, the best by the sweep's objective.

    Raises:
        SweeperError: none finished with predictions of both splits, or they were measured on different samples.
    """
    board = leaderboard(results)
    trials = [text_of(row, "trial") for row in board.finished[:most]]
    last = results.rows("SELECT trial, replicate, max(epoch) AS epoch FROM final GROUP BY trial, replicate")
    wanted = {
        (text_of(row, "trial"), int_of(row, "replicate"), int_of(row, "epoch"))
        for row in last
        if row["trial"] in trials
    }
    files = PredictionFiles(results.paths, trials)
    found = [
        _member(each)
        for each in files.evaluations()
        if (each.trial, each.replicate, each.epoch) in wanted and {FITTED_ON, MEASURED_ON} <= set(each.logits)
    ]
    if not found:
        raise SweeperError(
            f"the sweep {results.name!r} has no finished trial with predictions on validation and test data",
            "wait until one finishes, or resume the sweep",
        )
    for member in found:
        for split, targets in member.targets.items():
            if not np.array_equal(targets, found[0].targets[split]):
                raise SweeperError(
                    f"{member.trial} and {found[0].trial} were measured on different {split} samples",
                    "compare configurations on one data set: a sweep over data-set options has no common samples",
                )
    return sorted(found, key=lambda member: (trials.index(member.trial), member.replicate))


def _member(stored: StoredPredictions) -> Member:
    both = (FITTED_ON, MEASURED_ON)
    return Member(
        stored.trial,
        stored.replicate,
        {split: stored.logits[split] for split in both},
        {split: stored.targets[split].astype(np.int64) for split in both},
    )
