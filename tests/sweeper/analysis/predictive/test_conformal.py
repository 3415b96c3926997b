"""Conformal sets of a sweep's winner, recomputed by hand and shown."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

from sweeper.analysis.predictive.conformal import conformal_sets, guarantee, view
from sweeper.analysis.recalibration.predictions import finished_members
from sweeper.core.errors import SweeperError
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from tests.sweeper.synthetic_sweep import write_sweep
from trainables.posthoc import fit
from trainables.posthoc.conformal import SCORES


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("conformal") / "s"
    return Results(write_sweep(folder, configurations=6, replicates=2, space="gamma", failures=0, samples=300))


def test_the_sets_of_thr_are_those_of_the_definition(sweep: Results) -> None:
    found = conformal_sets(sweep, alpha=0.2, method="temperature")
    assert found.trial == leaderboard(sweep).finished[0]["trial"] and found.replicates == 2
    assert [(row.score, row.by_class) for row in found.rows] == [(s, b) for b in (False, True) for s in SCORES]
    for at, member in enumerate(finished_members(sweep, most=1)):
        targets = member.targets["val"]
        of_method = np.random.default_rng(member.replicate).permutation(len(targets)) < len(targets) // 2
        calibrator = fit("temperature", member.logits["val"][of_method], targets[of_method])
        val, test = calibrator(member.logits["val"][~of_method]), calibrator(member.logits["test"])
        strange = np.sort(1 - val[np.arange(len(val)), targets[~of_method]])
        sets = 1 - test <= strange[int(np.ceil((len(val) + 1) * 0.8)) - 1]
        row = found.rows[0].measures
        assert row["size"][at] == pytest.approx(sets.sum(axis=1).mean())
        assert row["coverage"][at] == pytest.approx(sets[np.arange(len(test)), member.targets["test"]].mean())


def test_the_guarantee_is_stated_with_its_conditions(sweep: Results) -> None:
    plain, halves = conformal_sets(sweep), conformal_sets(sweep, method="temperature")
    crosswise = conformal_sets(sweep, method="temperature", crosswise=True)
    assert plain.promised == halves.promised == pytest.approx(0.9)
    assert crosswise.promised == pytest.approx(1 - 0.2 - 2 * (1 - 1 / 5) / (300 / 5 + 1))
    chosen = f"chose it among {len(leaderboard(sweep).finished)} finished configurations"
    assert all(
        "at least 0.9 on average" in guarantee(found) and chosen in guarantee(found) for found in (plain, halves)
    )
    assert "one half, the thresholds on the other" in guarantee(halves)
    assert "at least 0.774 on average" in guarantee(crosswise) and "CV+" in guarantee(crosswise)


def test_more_coverage_takes_larger_sets_and_all_is_shown(sweep: Results) -> None:
    few, many = conformal_sets(sweep, alpha=0.3), conformal_sets(sweep, alpha=0.02)
    for loose, tight in zip(few.rows, many.rows, strict=True):
        assert np.mean(loose.measures["size"]) < np.mean(tight.measures["size"])
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(view(many))
    text = console.export_text()
    assert text.count("per class") == 3 and "at least 0.98" in text and many.trial in text


def test_bad_input_is_refused_in_a_sentence(sweep: Results) -> None:
    with pytest.raises(SweeperError, match="outside"):
        conformal_sets(sweep, alpha=1.5)
    with pytest.raises(SweeperError, match="did you mean 'temperature'"):
        conformal_sets(sweep, method="temprature")
