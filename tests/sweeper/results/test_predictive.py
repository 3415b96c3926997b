"""Ensembles of stored predictions: recomputed by hand, never worse than what they start from, and shown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow.dataset as ds
import pytest
from rich.console import Console

from sweeper.core.errors import SweeperError
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.predictions import finished_members
from sweeper.results.predictive import (
    AFTER,
    BEFORE,
    GREEDY,
    NONE,
    REPLICATES,
    SINGLE,
    Conformal,
    conformal_sets,
    conformal_view,
    ensembles,
    greedy_members,
    guarantee,
    too_few,
)
from tests.sweeper.held import held
from tests.sweeper.synthetic_sweep import write_sweep
from trainables.metrics import evaluate_probabilities, softmax64
from trainables.posthoc import fit
from trainables.posthoc.conformal import SCORES

SIZE = 5


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("ensembles") / "s"
    return held(write_sweep(folder, configurations=8, replicates=3, space="gamma", failures=1, samples=120))


def greedy_by_hand(of_target: np.ndarray, size: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(size):
        losses = [-np.log(np.mean(of_target[[*chosen, m]], axis=0)).mean() for m in range(len(of_target))]
        chosen.append(int(np.argmin(losses)))
    return chosen


@pytest.mark.parametrize("seed", range(10))
def test_greedy_selection_equals_trying_each_by_hand(seed: int) -> None:
    of_target = np.random.default_rng(seed).beta(3, 1, (7, 60))
    assert greedy_members(of_target, 6) == greedy_by_hand(of_target, 6)


def test_the_members_are_the_finished_networks_at_their_end(sweep: Results) -> None:
    members = finished_members(sweep, most=3)
    best = [row["trial"] for row in leaderboard(sweep).finished[:3]]
    assert [member.trial for member in members] == [trial for trial in best for _ in range(3)]
    last = max(sweep.rows(f"SELECT epoch FROM evaluations WHERE trial = '{best[0]}'"), key=lambda row: row["epoch"])
    stored = ds.dataset(sweep.folder / "tables" / "predictions").to_table().to_pylist()
    mine = [
        row["logits"]
        for row in stored
        if (row["trial"], row["replicate"], row["epoch"], row["split"]) == (best[0], 1, last["epoch"], "test")
    ]
    np.testing.assert_array_equal(members[1].logits["test"], mine)


def test_every_row_is_found_again_by_hand(sweep: Results) -> None:
    rows, members = ensembles(sweep, size=SIZE), finished_members(sweep, most=50)
    val, test = members[0].targets["val"], members[0].targets["test"]
    plain = [softmax64(member.logits["val"]) for member in members]
    of_target = np.stack([each[np.arange(len(val)), val] for each in plain])
    order = greedy_by_hand(of_target, SIZE)
    found = {(row.ensemble, row.members, row.temperature): row for row in rows}
    for count in (1, 3, SIZE):
        mean = np.mean([softmax64(members[at].logits["test"]) for at in order[:count]], axis=0)
        row = found[GREEDY, count, NONE]
        assert row.metrics["nll"] == pytest.approx(evaluate_probabilities(mean, test)["nll"])
        assert row.configurations == len({members[at].trial for at in order[:count]})
        on_val = np.log(np.mean([plain[at] for at in order[:count]], axis=0))
        after = fit("temperature", on_val, val)(np.log(mean))
        assert found[GREEDY, count, AFTER].metrics["ece"] == pytest.approx(evaluate_probabilities(after, test)["ece"])
    mine = [member for member in members if member.trial == members[0].trial]
    each = [fit("temperature", m.logits["val"], val)(m.logits["test"]) for m in mine]
    expected = evaluate_probabilities(np.mean(each, axis=0), test)
    assert found[REPLICATES, 3, BEFORE].metrics["brier"] == pytest.approx(expected["brier"])
    assert found[SINGLE, 1, NONE].metrics == found[GREEDY, 1, NONE].metrics


def test_a_network_that_takes_no_temperature_is_named(sweep: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    (first, *others) = finished_members(sweep, 4)
    spoiled = replace(first, logits={**first.logits, "val": np.full_like(first.logits["val"], np.nan)})
    monkeypatch.setattr("sweeper.results.predictive.finished_members", lambda *_: [spoiled, *others])
    with pytest.raises(SweeperError, match=f"no temperature can be fitted to {first.trial}: .*\n.*--candidates"):
        ensembles(sweep, size=2, candidates=4)


@pytest.fixture(scope="module")
def conformal_sweep(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("conformal") / "s"
    return held(write_sweep(folder, configurations=3, replicates=2, space="gamma", failures=0, samples=300))


@pytest.fixture(scope="module")
def plain(conformal_sweep: Results) -> Conformal:
    return conformal_sets(conformal_sweep)


@pytest.fixture(scope="module")
def tight(conformal_sweep: Results) -> Conformal:
    return conformal_sets(conformal_sweep, alpha=0.01)


def test_the_sets_of_thr_are_those_of_the_definition(conformal_sweep: Results) -> None:
    found = conformal_sets(conformal_sweep, alpha=0.2, method="temperature")
    assert found.trial == leaderboard(conformal_sweep).finished[0]["trial"] and found.replicates == 2
    assert [(row.score, row.by_class) for row in found.rows] == [(s, b) for b in (False, True) for s in SCORES]
    for at, member in enumerate(finished_members(conformal_sweep, most=1)):
        targets = member.targets["val"]
        of_method = np.random.default_rng(member.replicate).permutation(len(targets)) < len(targets) // 2
        calibrator = fit("temperature", member.logits["val"][of_method], targets[of_method])
        val, test = calibrator(member.logits["val"][~of_method]), calibrator(member.logits["test"])
        strange = np.sort(1 - val[np.arange(len(val)), targets[~of_method]])
        sets = 1 - test <= strange[int(np.ceil((len(val) + 1) * 0.8)) - 1]
        row = found.rows[0].measures
        assert row["size"][at] == pytest.approx(sets.sum(axis=1).mean())
        assert row["coverage"][at] == pytest.approx(sets[np.arange(len(test)), member.targets["test"]].mean())


def test_the_guarantee_is_stated_with_its_conditions(conformal_sweep: Results, plain: Conformal) -> None:
    halves = conformal_sets(conformal_sweep, method="temperature")
    crosswise = conformal_sets(conformal_sweep, method="temperature", crosswise=True)
    assert plain.promised == halves.promised == pytest.approx(0.9)
    assert crosswise.promised == pytest.approx(1 - 0.2 - 2 * (1 - 1 / 5) / (300 / 5 + 1))
    chosen = f"chose it among {len(leaderboard(conformal_sweep).finished)} finished configurations"
    assert all(
        "at least 0.9 on average" in guarantee(found) and chosen in guarantee(found) for found in (plain, halves)
    )
    assert "one half, the thresholds on the other" in guarantee(halves)
    assert "at least 0.774 on average" in guarantee(crosswise) and "CV+" in guarantee(crosswise)


def test_more_coverage_takes_larger_sets_and_classes_held_for_want_of_samples_are_warned_of(
    conformal_sweep: Results, plain: Conformal, tight: Conformal
) -> None:
    for loose, larger in zip(plain.rows, tight.rows, strict=True):
        assert np.mean(loose.measures["size"]) < np.mean(larger.measures["size"])
    counts = np.bincount(finished_members(conformal_sweep, most=1)[0].targets["val"])
    assert tight.always == (0, len(counts)) and counts.max() < 99 and too_few(plain) == ""
    assert f"every set by thresholds per class holds {len(counts)} of {len(counts)} classes" in too_few(tight)
    assert "fewer than 99 validation samples" in too_few(tight) and "one threshold" not in too_few(tight)
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(conformal_view(tight))
    text = console.export_text()
    assert text.count("per class") == 4 and "Warning: every set by" in text and tight.trial in text
