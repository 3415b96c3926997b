"""The Pareto front holds what no finished trial beats beyond the errors, and a constraint keeps trials from the top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeper.reporting.tables import trials_table
from sweeper.results import Results
from sweeper.results.leaderboard import breaking_constraints, final_values, front, leaderboard
from sweeper.results.listing import headline

OBJECTIVES = [{"metric": "val_accuracy", "mode": "max"}, {"metric": "val_ece", "mode": "min"}]


def asked(folder: Path, **changes: Any) -> Results:
    """Return results whose search space was written with these keys."""
    results = Results(folder)
    results.__dict__["specification"] = {**results.specification, **changes}
    return results


def test_final_values_are_means_over_replicates_with_their_error(losses_folder):
    results = Results(losses_folder)
    frame = results.table("final").to_pandas().query("split == 'val' and status == 'completed'")
    found = final_values(results, "val_ece")
    for trial, group in frame.groupby("trial"):
        error = group.ece.std(ddof=1) / np.sqrt(len(group)) if len(group) > 1 else 0.0
        assert found[trial] == pytest.approx((group.ece.mean(), error))


def test_the_front_holds_what_nothing_dominates(losses_folder):
    found = front(asked(losses_folder, objectives=OBJECTIVES))
    worse = set(found.values) - set(found.trials)
    for trial in found.trials:
        accuracy, ece = found.values[trial][0], found.values[trial][1]
        for other in found.values:
            a, e = found.values[other]
            dominated = (
                a[0] >= accuracy[0]
                and e[0] <= ece[0]
                and (a[0] - accuracy[0] > np.hypot(a[1], accuracy[1]) or ece[0] - e[0] > np.hypot(e[1], ece[1]))
            )
            assert not dominated
    assert worse and found.finished == len(found.values)
    heading = f"Pareto front by val_accuracy, val_ece: {len(found.trials)} of {found.finished} finished trials"
    assert found.lines()[0].startswith(heading)


def test_a_constraint_keeps_trials_from_the_top_of_the_leaderboard(losses_folder):
    plain = leaderboard(Results(losses_folder))
    best = float(plain.rows[0]["val_accuracy"])
    accuracies = {row["trial"]: row["val_accuracy"] for row in plain.finished}
    limit = sorted(accuracies.values())[len(accuracies) // 2]
    results = asked(losses_folder, constraints=[{"metric": "val_accuracy", "min": limit}])
    against = breaking_constraints(results)
    assert against == {trial for trial, accuracy in accuracies.items() if accuracy < limit}
    ordered = [row["trial"] for row in leaderboard(results).finished]
    expected = [row["trial"] for row in plain.finished]
    assert ordered == [t for t in expected if t not in against] + [t for t in expected if t in against]
    assert best > 0 and not breaking_constraints(Results(losses_folder))


def test_headline_and_report_say_which_trials_break_a_constraint(losses_folder):
    results = asked(losses_folder, constraints=[{"metric": "val_accuracy", "min": 1.0}])
    board = leaderboard(results)
    assert {row["trial"] for row in board.finished} == board.breaking
    said = "Every finished configuration breaks a constraint: val_accuracy at least 1."
    assert headline(board).endswith(said)
    table = trials_table(board)
    assert {row[0] for row in table.rows if str(row[0]).endswith(" †")} == {f"{trial} †" for trial in board.breaking}
    assert "† breaks a constraint: val_accuracy at least 1;" in table.caption
    assert "†" not in trials_table(leaderboard(Results(losses_folder))).caption


def test_one_objective_has_no_front(losses_folder):
    assert front(Results(losses_folder)) is None
